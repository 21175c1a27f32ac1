//! `--at-least`: keeps the lock held for a while after a short command, so that a host with a late clock finds it held.

use std::time::Duration;

use super::locked_run::{RunContext, RunToken, interrupted, release};
use super::signals::RunSignals;
use crate::cli::output::MessageWriter;
use crate::client::answers::TimedLease;
use crate::client::renewal::sleep_until;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::renewal::renewal_interval;

/// Timeout of one extend.
const EXTEND_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed extend.
const EXTEND_PAUSE: Duration = Duration::from_millis(500);
/// A remainder of at most this length is waited for: the service refuses very short TTLs.
const WAITED_FOR: Duration = Duration::from_secs(1);

/// Returns on a signal, or when the lease will end by its TTL at the end of [`RunContext::at_least`] or later. A remainder longer
/// than the TTL is renewed until it is shorter. With `is_interrupted`, a signal came while the command ran: the lease is renewed
/// once, for as much of the remainder as one TTL covers. Cancel: the lease ends by its TTL.
pub(super) async fn keep(
    run: &RunContext,
    run_token: &RunToken,
    lease: &TimedLease,
    is_interrupted: bool,
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) {
    let until = lease.granted.plus(run.at_least);
    tokio::select! {
        biased;
        _ = interrupted(signals) => {}
        () = extend_until(run, run_token, until, is_interrupted, messages) => {}
    }
}

async fn extend_until(
    run: &RunContext,
    run_token: &RunToken,
    until: BootTime,
    is_interrupted: bool,
    messages: &MessageWriter<'_>,
) {
    let mut failed_since: Option<BootTime> = None;
    loop {
        let now = SystemClock.now();
        let left = until.since(now);
        if left <= WAITED_FOR {
            sleep_until(until).await;
            return release(run, run_token, messages).await;
        }
        let ttl = left.min(run.ttl);
        let changes = [("ttl".to_owned(), format!("{}ms", ttl.as_millis()).into())].into_iter().collect();
        match run.client.extend(&run.request.names, &run_token.token, changes, EXTEND_TIMEOUT).await {
            Ok(_) if ttl == left || is_interrupted => return,
            Ok(_) => {
                failed_since = None;
                sleep_until(now.plus(renewal_interval(run.ttl)).min(until)).await;
            }
            Err(error) => {
                let since = *failed_since.get_or_insert(now);
                if error.is_lost() || is_interrupted || now.since(since) >= run.ttl {
                    messages.message(&format!("the lock may be free before --at-least is over: {error}"));
                    return;
                }
                SystemClock.sleep(EXTEND_PAUSE).await;
            }
        }
    }
}
