//! An acquire that waits for longer than one request can: the loop over the service's longest wait,
//! over instances that go away, and the clean-up when it is given up. Knows what may be asked
//! again; the words on the wire are [`super::requests`]'.

use std::time::Duration;

use super::error::{ClientError, ErrorClass};
use super::requests::{Answered, Want};
use super::transport::Client;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::entropy::{Entropy, SystemEntropy};
use crate::types::Token;

/// First and longest pause before a service that could not is asked again; random below these.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(2);
/// Longest clean-up of an acquire whose outcome is unknown. Beyond it the TTL ends what is left.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Of an acquire that waited longer than this, what is left of the promise is asked for anew: by this
/// machine's clock it began at an instant that only the service knows.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// How long that may take.
const ANEW_TIMEOUT: Duration = Duration::from_secs(1);
/// Asking again after a wait that ended early: at least this much later.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Acquires, waiting for at most `wait` in all. `on_trouble` is told of each try that the service
/// could not serve and that will be repeated.
///
/// Errors: [`ClientError`] of the last try; nothing is held then, as far as an instance could still
/// be reached.
/// Cancel: see [`Client::acquire_once`]; [`abandon`] cleans up.
pub async fn acquire(
    client: &Client,
    want: &Want,
    token: &Token,
    wait: Duration,
    mut on_trouble: impl FnMut(&ClientError),
) -> Result<Answered, ClientError> {
    let until = SystemClock.now().plus(wait);
    let (mut pause, mut unsure) = (PAUSE_FIRST, false);
    loop {
        let began = SystemClock.now();
        let error = match client.acquire_once(want, token, until.since(began)).await {
            Ok(answered) => return anew(client, want, token, answered).await,
            Err(error) => error,
        };
        unsure |= error.maybe_done();
        let left = until.since(SystemClock.now());
        let again = matches!(error.class(), ErrorClass::Held | ErrorClass::Unavailable) && !left.is_zero();
        if !again {
            if unsure {
                abandon(client, want, token).await;
            }
            return Err(error);
        }
        let after = match error.class() {
            // The service waited for us; only its own bound on waits ended it.
            ErrorClass::Held => {
                pause = PAUSE_FIRST;
                AGAIN_AFTER
            }
            _ => {
                on_trouble(&error);
                let drawn = jittered(pause);
                pause = pause.saturating_mul(2).min(PAUSE_MOST);
                drawn
            }
        };
        SystemClock.sleep(after.min(left)).await;
    }
}

/// Extends a lease that was waited for: its deadline then counts from a request that took no time.
/// Where nobody can, the careful estimate stands.
///
/// Errors: the lease is over already.
async fn anew(client: &Client, want: &Want, token: &Token, answered: Answered) -> Result<Answered, ClientError> {
    if Duration::from_millis(answered.lease.waited_ms.unwrap_or(0)) <= LONG_WAIT {
        return Ok(answered);
    }
    match client.extend(&want.resource, token, serde_json::Map::new(), ANEW_TIMEOUT).await {
        Ok(Answered { granted, deadline, .. }) if deadline > answered.deadline => {
            Ok(Answered { granted, deadline, ..answered })
        }
        Err(error) if error.class() == ErrorClass::Lost => Err(error),
        _ => Ok(answered),
    }
}

/// Gives back what an acquire that was given up may have been granted; the best that can be done,
/// since nobody may answer.
/// Cancel: the TTL ends what is left.
pub async fn abandon(client: &Client, want: &Want, token: &Token) {
    // Mostly answered with 410: there was nothing.
    let _ = client.release(&want.resource, token, CLEANUP_TIMEOUT).await;
}

/// Half of `pause` and a random part of the other half.
pub(super) fn jittered(pause: Duration) -> Duration {
    let half_us = u64::try_from(pause.as_micros() / 2).unwrap_or(u64::MAX);
    Duration::from_micros(half_us.saturating_add(SystemEntropy.below(half_us)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_over_their_upper_half() {
        let pause = Duration::from_millis(100);
        for _ in 0..1_000 {
            let drawn = jittered(pause);
            assert!(drawn >= pause / 2 && drawn < pause, "{drawn:?}");
        }
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
    }
}
