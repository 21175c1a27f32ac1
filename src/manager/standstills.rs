//! Times when this process stood still: stopped, suspended, or without processor time. Its reports of nodes then concern itself.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

use super::service::LockManager;
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;

/// A pass of the maintenance that begins this late shows that this process stood still.
const STANDSTILL_MIN: Duration = Duration::from_secs(3);
/// Maximum number of standstills that are remembered; beyond it the oldest are forgotten.
const STANDSTILLS_MAX: usize = 32;

/// A time in which this process did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standstill {
    /// The end of that time, by the wall clock. Milliseconds since 1970.
    pub to_ms: u64,
    pub lasted: Duration,
}

/// The last standstills of this process.
#[derive(Debug, Default)]
pub(super) struct Standstills(Mutex<VecDeque<Standstill>>);

impl Standstills {
    /// Observes a pass that begins `late` after its time.
    pub(super) fn observe(&self, late: Duration, wall_ms: u64) {
        if late < STANDSTILL_MIN {
            return;
        }
        let stood_still_s = late.as_secs();
        tracing::warn!(stood_still_s, "this process stood still: it was stopped, suspended, or got no processor time");
        let mut all = self.0.lock();
        all.push_front(Standstill { to_ms: wall_ms, lasted: late });
        all.truncate(STANDSTILLS_MAX);
    }
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The last standstills of this process, newest first.
    pub(crate) fn standstills(&self) -> Vec<Standstill> {
        self.shared.standstills.0.lock().iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_standstills_are_remembered_and_what_is_only_late_is_none() {
        let standstills = Standstills::default();
        standstills.observe(Duration::from_millis(2_999), 1);
        assert!(standstills.0.lock().is_empty());
        (0..40).for_each(|n| standstills.observe(Duration::from_secs(3), n));
        let all = standstills.0.lock();
        assert_eq!((all.len(), all[0].to_ms, all[STANDSTILLS_MAX - 1].to_ms), (STANDSTILLS_MAX, 39, 8));
    }
}
