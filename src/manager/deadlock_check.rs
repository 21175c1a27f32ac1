//! What a waiter does where the wait-for graph has a cycle: the nodes decide whether it is a deadlock.

use super::deadlock::WaitEdge;
use super::service::LockManager;
use super::types::{AcquireError, CycleEdge};
use super::waiter::WaiterHandle;
use crate::mutant::{self, Mutant};
use crate::redlock::backoff::uniform;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::entropy::Entropy;
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Refuses the waiter if it is the newest in a cycle that the nodes confirm.
    ///
    /// Why nobody is refused by mistake: each lease in the cycle was known before the first inspection and is
    /// still there after the last one, and each waiter entered its queue before the first inspection and is still
    /// in it after the last one. So there was an instant, that of the first inspection, at which the whole cycle
    /// existed. Where the nodes cannot confirm it (waiters of other instances, too few nodes), nobody is refused;
    /// it is checked again within a poll for as long as the cycle is suspected, since nothing else would wake
    /// the waiters in it.
    ///
    /// Errors: [`AcquireError::Deadlock`]. Cancel: nothing is left behind.
    pub(super) async fn refuse_if_deadlocked(
        &self,
        waiter: &mut WaiterHandle,
        started: BootTime,
    ) -> Result<(), AcquireError> {
        waiter.set_recheck_deadlock_at(None);
        let Some(cycle) = waiter.cycle() else { return Ok(()) };
        if !mutant::is(Mutant::DeadlockUnverified) && !self.is_confirmed(waiter, &cycle).await {
            if !mutant::is(Mutant::DeadlockForgotten) {
                let poll = uniform(self.entropy(), self.engine().settings.poll);
                waiter.set_recheck_deadlock_at(Some(self.now().plus(poll)));
            }
            return Ok(());
        }
        let confirmed = |edge: WaitEdge| CycleEdge {
            owner: edge.owner.to_string(),
            waits_for: edge.waiter.resource,
            held_by: edge.holder.owner.to_string(),
            token_id: edge.holder.token.id(),
        };
        let cycle = cycle.into_iter().map(confirmed).collect();
        Err(AcquireError::Deadlock { cycle, waited: self.now().since(started) })
    }

    /// Whether a quorum has each lease of the cycle while all its waiters wait. False also where too few nodes
    /// answer.
    async fn is_confirmed(&self, waiter: &WaiterHandle, cycle: &[WaitEdge]) -> bool {
        let lock_delay = self.engine().settings.params.lock_delay;
        for edge in cycle {
            let inspected = self.engine().inspect(&edge.waiter.resource).await;
            let is_held = inspected.is_ok_and(|inspected| match inspected.state {
                // A lease that has run out ends the cycle by itself.
                ResourceState::Lease { record, left } => record.token == edge.holder.token && left > lock_delay,
                _ => false,
            });
            if !is_held {
                return false;
            }
        }
        waiter.all_still_wait(cycle)
    }
}
