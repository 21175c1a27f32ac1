//! Waiting for a condition, with a bound: the only way in which these tests pass time.

use std::future::Future;
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};

/// Generous: it is only ever waited out by a test that fails.
pub const PATIENCE: Duration = Duration::from_mins(1);
const STEP: Duration = Duration::from_millis(5);

/// Asks until the answer is `Some`.
///
/// Panics: after [`PATIENCE`], with `what` was waited for.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, ask: impl FnMut() -> F) -> T {
    let end = SystemClock.now().plus(PATIENCE);
    until_over(what, || SystemClock.now() >= end, ask).await
}

/// The same with a bound of the caller's own.
pub async fn until_over<T, F>(what: &str, is_over: impl Fn() -> bool, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(!is_over(), "waited in vain: {what}");
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
