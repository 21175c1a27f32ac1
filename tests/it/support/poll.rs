//! Waiting for a condition, with a bound: the only way in which these tests pass time.

use std::future::Future;
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};

/// Generous: it is only ever waited out by a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(5);

/// Asks until the answer is `Some`.
///
/// Panics: after [`PATIENCE`], with `what` was waited for.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let end = SystemClock.now().plus(PATIENCE);
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(SystemClock.now() < end, "waited {PATIENCE:?} in vain: {what}");
        SystemClock.sleep(STEP).await;
    }
}

/// Looks until it is so.
pub async fn until_true(what: &str, mut look: impl FnMut() -> bool) {
    until(what, || {
        let so = look();
        async move { so.then_some(()) }
    })
    .await;
}
