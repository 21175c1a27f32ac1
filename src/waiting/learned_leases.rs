//! Reports leases to the queue that it does not know from notices, and confirms suspected deadlocks with the nodes.

use super::deadlock::WaitEdge;
use super::driver::WaitDriver;
use super::event::{Event, Mode};
use crate::mutant::{Mutant, is};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::notifications::LeaseTag;
use crate::redlock::random::Entropy;
use crate::types::ResourceName;

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// Whether a quorum has each lease of the cycle. False also where too few nodes answer.
    ///
    /// Why no waiter is refused by mistake: each lease in the cycle was known before the first inspection and is
    /// still there after the last one, and each waiter entered its queue before the first inspection and is still
    /// in it after the last one, which the queue checks. So there was an instant, that of the first inspection, at
    /// which the whole cycle existed.
    pub(super) async fn is_confirmed(&self, cycle: &[WaitEdge]) -> bool {
        let lock_delay = self.0.engine.settings.params.lock_delay;
        for edge in cycle.iter().filter(|_| !is(Mutant::DeadlockUnverified)) {
            let inspected = self.0.engine.inspect(&edge.resource).await;
            // A lease that has run out ends the cycle by itself.
            let is_held = inspected.is_ok_and(|inspected| {
                inspected.state.lease_of(&edge.holder.token).is_some_and(|(_, left)| left > lock_delay)
            });
            if !is_held {
                return false;
            }
        }
        true
    }

    /// See [`Event::LeaseEnded`].
    pub(crate) fn lease_ended(&self, resource: &ResourceName, lease: Option<LeaseTag>) {
        self.0.handle(Event::LeaseEnded(resource.clone(), lease));
    }

    /// See [`Event::LeaseMayHaveEnded`].
    pub(crate) fn lease_may_have_ended(&self, resource: &ResourceName) {
        self.0.handle(Event::LeaseMayHaveEnded(resource.clone()));
    }

    /// A lease was extended here to this deadline.
    pub(crate) fn extended(&self, resource: &ResourceName, deadline: BootTime, mode: Mode) {
        self.0.handle(Event::HeldUntil(resource.clone(), self.keys_gone(deadline), mode));
    }

    /// When the keys of a lease with this deadline are gone from the nodes.
    pub(super) fn keys_gone(&self, deadline: BootTime) -> BootTime {
        deadline.plus(self.0.engine.settings.params.lock_delay)
    }
}
