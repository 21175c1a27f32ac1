//! Deadlocks that the nodes confirmed: counts them, publishes them as events, and keeps them for the pages while they last.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::events::{EventHub, EventKind};
use super::types::{CycleEdge, Deadlock};
use crate::redlock::clock::BootTime;

/// Maximum number of deadlocks of this instance that are shown; further ones are only counted and published.
const SHOWN_MAX: usize = 16;

/// The deadlocks that this instance has found.
#[derive(Default)]
pub(super) struct Deadlocks {
    found: Mutex<Vec<Found>>,
    reported: AtomicU64,
    refused: AtomicU64,
}

/// A deadlock whose newest request continues to wait.
#[derive(Clone)]
struct Found {
    cycle: Vec<CycleEdge>,
    /// The waiter of each edge.
    waiters: Vec<u64>,
    since: BootTime,
}

impl Deadlocks {
    /// Reports a cycle whose newest request, the first in the cycle, continues to wait. `waiters`: the numbers of its waiters.
    pub(super) fn report(
        &self,
        cycle: Vec<CycleEdge>,
        waiters: Vec<u64>,
        now: BootTime,
        wall_ms: u64,
        events: &EventHub,
    ) {
        self.reported.fetch_add(1, Ordering::Relaxed);
        publish(&cycle, "reported", wall_ms, events);
        let mut found = self.found.lock();
        found.retain(|known| known.waiters != waiters);
        if found.len() < SHOWN_MAX {
            found.push(Found { cycle, waiters, since: now });
        }
    }

    /// Reports a cycle whose newest request, the first in the cycle, is refused, as it asked for.
    pub(super) fn refuse(&self, cycle: &[CycleEdge], wall_ms: u64, events: &EventHub) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        publish(cycle, "refused", wall_ms, events);
    }

    /// How many newest requests continued to wait, and how many were refused.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.reported.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// The deadlocks whose waiters all still wait; the others are forgotten. Not locked while `waits` is called,
    /// since deadlocks are reported under the lock of the queues.
    pub(super) fn present(&self, now: BootTime, waits: impl Fn(&CycleEdge, u64) -> bool) -> Vec<Deadlock> {
        let lasts = |known: &&Found| known.cycle.iter().zip(&known.waiters).all(|(edge, waiter)| waits(edge, *waiter));
        let known = self.found.lock().clone();
        let (present, over): (Vec<&Found>, Vec<&Found>) = known.iter().partition(lasts);
        if !over.is_empty() {
            self.found.lock().retain(|known| over.iter().all(|over| over.waiters != known.waiters));
        }
        present.iter().map(|known| Deadlock { cycle: known.cycle.clone(), age: now.since(known.since) }).collect()
    }
}

fn publish(cycle: &[CycleEdge], answer: &str, wall_ms: u64, events: &EventHub) {
    let Some(newest) = cycle.first() else { return };
    let (resource, owners) = (&newest.waits_for, cycle.len());
    tracing::warn!(%resource, owners, answer, "owners wait for each other in a cycle");
    events.publish(EventKind::Deadlock, wall_ms, |event| {
        event.resource = Some(newest.waits_for.to_string());
        event.owner = Some(newest.owner.clone());
        event.reason = Some(answer.to_owned());
        event.cycle = Some(cycle.iter().map(Into::into).collect());
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::InstanceName;
    use crate::types::{ResourceName, TokenHash};

    fn edge(owner: &str, resource: &str) -> CycleEdge {
        CycleEdge {
            owner: owner.to_owned(),
            waits_for: ResourceName::parse(resource).expect("valid"),
            held_by: "other".to_owned(),
            token_id: TokenHash::parse(&"a".repeat(64)).expect("hex").id(),
        }
    }

    #[test]
    fn a_deadlock_is_shown_once_while_its_waiters_wait() {
        let (deadlocks, events) = (Deadlocks::default(), EventHub::new(&InstanceName::from_random(1)));
        let at = |s| BootTime::default().plus(Duration::from_secs(s));
        let cycle = || vec![edge("b", "x"), edge("a", "y")];
        deadlocks.report(cycle(), vec![8, 7], at(1), 0, &events);
        deadlocks.report(cycle(), vec![8, 7], at(2), 0, &events);
        deadlocks.refuse(&cycle(), 0, &events);
        let shown = deadlocks.present(at(5), |_, _| true);
        assert_eq!(shown, [Deadlock { cycle: cycle(), age: Duration::from_secs(3) }]);
        let waits = |edge: &CycleEdge, waiter| edge.waits_for.as_str() != "y" || waiter != 7;
        assert_eq!(deadlocks.present(at(5), waits), []);
        assert_eq!(deadlocks.present(at(5), |_, _| true), [], "forgotten");
        assert_eq!(deadlocks.counts(), (2, 1));
        let event = &events.recent()[0];
        let about = (event.event.as_str(), event.resource.as_deref(), event.reason.as_deref());
        assert_eq!(about, ("deadlock", Some("x"), Some("refused")));
        assert_eq!(event.cycle.as_ref().map(Vec::len), Some(2));
    }

    #[test]
    fn so_many_deadlocks_are_shown() {
        let (deadlocks, events) = (Deadlocks::default(), EventHub::new(&InstanceName::from_random(1)));
        for waiter in 0..20 {
            deadlocks.report(vec![edge("a", "x")], vec![waiter], BootTime::default(), 0, &events);
        }
        assert_eq!(deadlocks.present(BootTime::default(), |_, _| true).len(), SHOWN_MAX);
        assert_eq!(deadlocks.counts(), (20, 0));
    }
}
