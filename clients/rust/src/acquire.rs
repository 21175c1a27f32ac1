//! An acquire that may wait longer than one request can: repeats the request beyond the service's maximum wait and when instances
//! fail. When it gives up, it releases a lease that may have been granted.

use std::time::Duration;

use super::answers::{Extended, TimedLease};
use super::error::{ClientError, ErrorClass};
use super::requests::LockRequest;
use super::transport::Client;
use redlockd_common::backoff::{Backoff, BackoffRange};
use redlockd_common::clock::{Clock, SystemClock};
use redlockd_common::random::SystemEntropy;
use redlockd_common::types::Token;

/// Pauses before an unavailable service is tried again.
pub(super) const UNAVAILABLE: BackoffRange =
    BackoffRange { first: Duration::from_millis(100), max: Duration::from_secs(2) };
/// Maximum duration of the release after an acquire with an unknown outcome. Beyond it, the TTL ends the lease.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);
/// After a longer wait the lease is extended at once: only the service knows the time of the grant, and the estimate by this
/// machine's clock loses 1 % of the wait.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// Timeout of that extend.
const EXTEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum pause before waiting again after the service ended a wait.
const PAUSE_AFTER_WAIT: Duration = Duration::from_millis(20);

/// Acquires, waiting for at most `wait` in all. `on_failure` is called for each failed try that will be repeated.
///
/// Errors: [`ClientError`] of the last try; nothing is held then, unless no instance could be reached.
/// Cancel: see [`Client::acquire_once`]; [`abandon`] cleans up.
pub async fn acquire(
    client: &Client,
    request: &LockRequest,
    token: &Token,
    wait: Duration,
    mut on_failure: impl FnMut(&ClientError),
) -> Result<TimedLease, ClientError> {
    let until = SystemClock.now().plus(wait);
    let (mut pauses, mut unsure) = (Backoff::new(UNAVAILABLE, SystemEntropy), false);
    loop {
        let began = SystemClock.now();
        let error = match client.acquire_once(request, token, until.since(began)).await {
            Ok(lease) => return with_exact_deadline(client, request, token, lease).await,
            Err(error) => error,
        };
        unsure |= error.maybe_done();
        let left = until.since(SystemClock.now());
        let again = matches!(error.class(), ErrorClass::Held | ErrorClass::Unavailable) && !left.is_zero();
        if !again {
            if unsure {
                abandon(client, request, token).await;
            }
            return Err(error);
        }
        let after = match error.class() {
            // The service's maximum wait ended the wait.
            ErrorClass::Held => {
                pauses.reset();
                PAUSE_AFTER_WAIT
            }
            _ => {
                on_failure(&error);
                pauses.next_delay()
            }
        };
        SystemClock.sleep(after.min(left)).await;
    }
}

/// Extends a lease that was granted after a wait: its deadline then counts from a request that did not wait. If that fails, the
/// estimate stands.
///
/// Errors: the lease has ended already.
async fn with_exact_deadline(
    client: &Client,
    request: &LockRequest,
    token: &Token,
    lease: TimedLease,
) -> Result<TimedLease, ClientError> {
    if lease.waited() <= LONG_WAIT {
        return Ok(lease);
    }
    match client.extend(&request.names, token, serde_json::Map::new(), EXTEND_TIMEOUT).await {
        Ok(Extended { granted, deadline, .. }) if deadline > lease.deadline => {
            Ok(TimedLease { granted, deadline, ..lease })
        }
        Err(error) if error.is_lost() => {
            // The other locks of a set are still held.
            abandon(client, request, token).await;
            Err(error)
        }
        _ => Ok(lease),
    }
}

/// Releases the lease that an abandoned acquire may have been granted, in one try. Cancel: the TTL ends the lease.
pub async fn abandon(client: &Client, request: &LockRequest, token: &Token) {
    // Usually answered with 410: nothing was granted.
    let _ = client.release(&request.names, token, CLEANUP_TIMEOUT).await;
}
