//! When a node is tried again after an error, and how often that is logged. If rights are missing, trying again soon does not
//! help: the pauses are longer.

use std::time::Duration;

use crate::protocol::UnreachableKind;
use crate::redlock::backoff::{Backoff, BackoffRange};
use crate::redlock::clock::BootTime;
use crate::redlock::random::Entropy;

/// Pauses between attempts; random, so that many instances do not reconnect in step.
const DELAYS: BackoffRange = BackoffRange { first: Duration::from_millis(20), max: Duration::from_secs(1) };
/// The pauses if the node refuses: a person has to change something first.
const REFUSED_DELAYS: BackoffRange = BackoffRange { first: Duration::from_millis(500), max: Duration::from_secs(8) };
/// Minimum time between two lines of the log about one kind of error.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Pauses and log of one connection.
#[derive(Debug)]
pub(super) struct Retry<E> {
    usual: Backoff<E>,
    refused: Backoff<E>,
    reported: [Option<BootTime>; UnreachableKind::ALL.len()],
}

impl<E: Entropy> Retry<E> {
    pub(super) fn new(entropy: E) -> Self {
        Self {
            usual: Backoff::new(DELAYS, entropy.clone()),
            refused: Backoff::new(REFUSED_DELAYS, entropy),
            reported: Default::default(),
        }
    }

    /// Records a success: the next pause is a short one again.
    pub(super) fn succeeded(&mut self) {
        self.usual.reset();
        self.refused.reset();
    }

    /// The pause after an error.
    pub(super) fn next_delay(&mut self, kind: UnreachableKind) -> Duration {
        match kind {
            UnreachableKind::Auth => self.refused.next_delay(),
            _ => self.usual.next_delay(),
        }
    }

    /// Whether to log an error: each kind at most once in [`LOG_INTERVAL`].
    pub(super) fn is_to_be_reported(&mut self, kind: UnreachableKind, now: BootTime) -> bool {
        let index = UnreachableKind::ALL.iter().position(|k| *k == kind);
        let Some(last) = index.and_then(|index| self.reported.get_mut(index)) else { return false };
        let is_due = last.is_none_or(|last| now.since(last) >= LOG_INTERVAL);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::random::SystemEntropy;

    /// M2: neither lines nor attempts go on at the first rate.
    #[test]
    fn m2_pauses_grow_where_rights_are_missing_and_a_minute_has_one_line() {
        let mut retry = Retry::new(SystemEntropy);
        let waited: Duration = (0..60).map(|_| retry.next_delay(UnreachableKind::Auth)).sum();
        assert!(waited > Duration::from_mins(2), "60 attempts within {waited:?}");
        let lines = (0..600)
            .filter(|s| retry.is_to_be_reported(UnreachableKind::Auth, BootTime::from_nanos(s * 1_000_000_000)));
        assert_eq!(lines.count(), 10);
        assert!(retry.is_to_be_reported(UnreachableKind::Timeout, BootTime::from_nanos(1)), "another kind");
    }
}
