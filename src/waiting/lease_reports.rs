//! Reports to the queue about leases that this instance extended, or whose ends it knows without a notice.

use super::driver::WaitDriver;
use super::event::{Mode, WaitEvent};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::notifications::LeaseTag;
use crate::redlock::random::Entropy;
use crate::types::ResourceName;

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// See [`WaitEvent::LeaseEnded`].
    pub(crate) fn lease_ended(&self, resource: &ResourceName, lease: Option<LeaseTag>) {
        let mut state = self.0.state.lock();
        // Without waiters, as for most leases, the event would change nothing.
        if state.queue.waiter_count(resource) > 0 {
            self.0.handle_in(&mut state, WaitEvent::LeaseEnded(resource.clone(), lease));
        }
    }

    /// See [`WaitEvent::LeaseMayHaveEnded`].
    pub(crate) fn lease_may_have_ended(&self, resource: &ResourceName) {
        self.0.handle(WaitEvent::LeaseMayHaveEnded(resource.clone()));
    }

    /// A lease was extended here to this deadline.
    pub(crate) fn extended(&self, resource: &ResourceName, deadline: BootTime, mode: Mode) {
        self.0.handle(WaitEvent::HeldUntil(resource.clone(), self.keys_gone(deadline), mode));
    }

    /// When the keys of a lease with this deadline are gone from the nodes.
    pub(super) fn keys_gone(&self, deadline: BootTime) -> BootTime {
        deadline.plus(self.0.engine.terms().lock_delay)
    }
}
