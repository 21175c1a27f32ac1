//! The acquire of a request: beside the queue if it does not wait and nobody waits for its resources, since it can overtake
//! nobody then; otherwise the steps that the queue decides for its waiter.

use super::driver::{AttemptResult, Step, WaitDriver};
use super::event::{Admission, AttemptOutcome, RefuseReason, SlotChoice, WaitError, WaitEvent, WaitRequest};
use super::kept_places::PlaceRequest;
use crate::mutant::{Mutant, is};
use crate::protocol::TokenUse;
use crate::redlock::acquire::{AcquireParams, Grant, Refusal};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::ResourceName;

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// Acquires, waiting as `request` says: in the queues of all resources of `params`, or only of those that its
    /// token does not hold already. It is refused only for a deadlock of which it `may_know` each resource.
    /// `on_round` is called after each attempt, with the time at which the attempt began.
    ///
    /// Cancel: an attempt under way is cancelled on all nodes. The request leaves the queue at once; with `keep` its place
    /// stays for [`super::kept_places::PLACE_KEPT`], for the next request with this key.
    pub(crate) async fn acquire(
        &self,
        params: &AcquireParams,
        request: WaitRequest,
        keep: Option<Box<PlaceRequest>>,
        may_know: impl Fn(&ResourceName) -> bool,
        on_round: impl Fn(BootTime, &AttemptResult<N, C, E>),
    ) -> Result<Grant<N, C, E>, WaitError> {
        match self.ask_beside(params, &request, &on_round).await {
            Some(Ok(grant)) => Ok(grant),
            // In a box of its own: most requests need no queue.
            outcome => {
                let refused = outcome.and_then(Result::err);
                Box::pin(self.acquire_in_queue(params, request, keep, refused, may_know, on_round)).await
            }
        }
    }

    /// The attempt of a request that does not wait; `None` if the request waits, or if others do: then it must enter. `on_round` is
    /// called as in [`Self::acquire`]. After a refusal the request enters, and the queue decides what follows.
    ///
    /// Cancel: the attempt is cancelled on all nodes.
    async fn ask_beside(
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

    /// As [`Self::acquire`], from the queue; `refused`: the outcome of an attempt beside it. Cancel: as there.
    async fn acquire_in_queue(
        &self,
        params: &AcquireParams,
        request: WaitRequest,
        keep: Option<Box<PlaceRequest>>,
        mut refused: Option<Refusal>,
        may_know: impl Fn(&ResourceName) -> bool,
        on_round: impl Fn(BootTime, &AttemptResult<N, C, E>),
    ) -> Result<Grant<N, C, E>, WaitError> {
        let engine = &self.0.engine;
        let mut token_use = if refused.is_some() { TokenUse::Again } else { params.token_use };
        let place = self.enter(request, &params.token, keep).map_err(WaitError::Differs)?;
        // After an attempt that may have set a key, the request's own lease is not one that existed before.
        let (mut granted, mut last, mut took_effect, entered) = (None, None::<Refusal>, false, engine.clock.now());
        loop {
            let step = match place.take_step() {
                Some(step) => step,
                None => {
                    // Many waiters sleep here: they keep neither the nodes' answers nor times that run out.
                    last = last.map(|refusal| Refusal { nodes: Vec::new(), free_in: None, ..refusal });
                    place.next_step().await
                }
            };
            match step {
                Step::Attempt(true, _) if !Box::pin(self.holds_all(&params.resources, &params.token)).await => {
                    place.report(AttemptOutcome::NotJoined);
                }
                Step::Attempt(joins, slots) => {
                    let outcome = match refused.take() {
                        Some(refusal) => Err(refusal),
                        None => {
                            let begun = engine.clock.now();
                            let started = if is(Mutant::RetryKeepsStart) { entered } else { begun };
                            let outcome = Box::pin(engine.attempt(params, started, slots, token_use)).await;
                            token_use = TokenUse::Again;
                            on_round(begun, &outcome);
                            outcome
                        }
                    };
                    if !place.report(self.summary(params, &outcome, joins)) {
                        // What was granted is undone, as for a caller that disconnected.
                        drop(outcome);
                        params.resources.iter().for_each(|resource| self.lease_may_have_ended(resource));
                        continue;
                    }
                    match outcome {
                        Ok(mut grant) => {
                            grant.leases.iter_mut().for_each(|lease| lease.joined &= joins || !took_effect);
                            granted = Some(grant);
                        }
                        Err(refusal) => {
                            took_effect |= !joins && refusal.took_effect;
                            last = Some(refusal);
                        }
                    }
                }
                Step::CheckCycle(cycle) => {
                    let is_confirmed = Box::pin(self.is_confirmed(&cycle)).await;
                    let may_refuse = cycle.iter().all(|edge| may_know(&edge.resource));
                    place.handle(WaitEvent::CycleChecked { waiter: place.waiter, cycle, is_confirmed, may_refuse });
                }
                Step::Grant => return granted.ok_or(WaitError::NotAsked(None)),
                Step::Refuse(reason) => return Err(self.error(params, reason, last).await),
                Step::Replaced => return Err(WaitError::Replaced),
            }
        }
    }

    async fn error(&self, params: &AcquireParams, reason: RefuseReason, last: Option<Refusal>) -> WaitError {
        match (reason, last) {
            (RefuseReason::LastAttempt, Some(refusal)) => WaitError::Refused(refusal),
            (RefuseReason::LastAttempt | RefuseReason::NotAsked, last) => WaitError::NotAsked(last),
            (RefuseReason::OthersWait, _) => WaitError::OthersWait,
            (RefuseReason::QueueFull(full), _) => WaitError::QueueFull(full),
            (RefuseReason::Deadlock(cycle), _) => WaitError::Deadlock(cycle),
            (RefuseReason::TimedOut { position }, _) => {
                let inspected = Box::pin(self.0.engine.inspect_all(&params.resources)).await;
                WaitError::TimedOut { position, inspected }
            }
        }
    }

    /// The result of an attempt as an event of the queue.
    fn summary(&self, params: &AcquireParams, outcome: &AttemptResult<N, C, E>, joins: bool) -> AttemptOutcome {
        match outcome {
            Ok(grant) => {
                let until = self.keys_gone(grant.deadline);
                AttemptOutcome::Granted { lease: params.token.clone(), slot: grant.mode.slot(), until }
            }
            Err(refusal) if joins && !refusal.kind.is_final() => AttemptOutcome::NotJoined,
            Err(refusal) => AttemptOutcome::of_refusal(refusal, self.0.engine.quorum(), &*self.0.party_of),
        }
    }
}
