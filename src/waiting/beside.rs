//! Requests that do not wait, while nobody waits for their resources: they need no place, since they can overtake nobody.

use super::driver::{AttemptResult, WaitDriver};
use super::event::{Admission, SlotChoice, WaitEvent, WaitRequest};
use crate::redlock::acquire::AcquireParams;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// The attempt of a request that does not wait; `None` if the request waits, or if others do: then it must enter. `on_round` is
    /// called as in [`Self::acquire`]. After a refusal the request enters, and the queue decides what follows.
    ///
    /// Cancel: the attempt is cancelled on all nodes.
    pub(super) async fn ask_beside(
        &self,
        params: &AcquireParams,
        request: &WaitRequest,
        on_round: impl Fn(BootTime, &AttemptResult<N, C, E>),
    ) -> Option<AttemptResult<N, C, E>> {
        let has_waiters =
            || self.queue(|queue| params.resources.iter().any(|resource| queue.waiter_count(resource) > 0));
        if request.admission != Admission::Once || has_waiters() {
            return None;
        }
        let begun = self.0.engine.clock.now();
        let outcome = Box::pin(self.0.engine.attempt(params, begun, SlotChoice::default(), params.token_use)).await;
        on_round(begun, &outcome);
        // They have come meanwhile.
        if let Ok(grant) = &outcome
            && has_waiters()
        {
            let (lease, until) = (params.token.clone(), self.keys_gone(grant.deadline));
            self.0.handle(WaitEvent::GrantedBeside(request.clone(), lease, grant.mode.slot(), until));
        }
        Some(outcome)
    }
}
