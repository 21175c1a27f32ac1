//! Requests that do not wait, while nobody waits for their resources: they need no place, since they can overtake nobody.

use super::driver::{AttemptResult, WaitDriver};
use super::event::{SlotChoice, WaitEvent, WaitRequest};
use crate::redlock::acquire::{AcquireParams, Grant};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::ResourceName;

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// The attempt of a request that does not wait, and when it began; `None` if there are waiters, so that the request must enter.
    /// Else it overtakes nobody, and [`Self::granted_beside`] or [`Self::acquire`] must get the outcome.
    ///
    /// Cancel: the attempt is cancelled on all nodes.
    pub(crate) async fn ask_beside(&self, params: &AcquireParams) -> Option<(BootTime, AttemptResult<N, C, E>)> {
        if self.has_waiters(&params.resources) {
            return None;
        }
        let begun = self.0.engine.clock.now();
        Some((begun, Box::pin(self.0.engine.attempt(params, begun, SlotChoice::default())).await))
    }

    /// Reports a grant of [`Self::ask_beside`] to waiters that have come meanwhile.
    pub(crate) fn granted_beside(
        &self,
        params: &AcquireParams,
        grant: &Grant<N, C, E>,
        request: impl FnOnce() -> WaitRequest,
    ) {
        if self.has_waiters(&params.resources) {
            let (lease, until) = (params.token.clone(), self.keys_gone(grant.deadline));
            self.0.handle(WaitEvent::GrantedBeside(request(), lease, grant.mode.slot(), until));
        }
    }

    fn has_waiters(&self, resources: &[ResourceName]) -> bool {
        self.queue(|queue| resources.iter().any(|resource| queue.waiter_count(resource) > 0))
    }
}
