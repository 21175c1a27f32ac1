//! Asks the nodes whether a suspected deadlock exists, before it is reported or a waiter is refused for it.

use super::deadlock::WaitEdge;
use super::driver::WaitDriver;
use crate::mutant::{Mutant, is};
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// Whether a quorum has each lease of the cycle. Also false if too few nodes answer.
    ///
    /// Why no waiter is refused by mistake: each lease in the cycle was known before the first inspection and is
    /// still there after the last one, and each waiter entered its queue before the first inspection and is still
    /// in it after the last one, which the queue checks. So there was an instant, that of the first inspection, at
    /// which the whole cycle existed.
    pub(super) async fn is_confirmed(&self, cycle: &[WaitEdge]) -> bool {
        let lock_delay = self.0.engine.terms().lock_delay;
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
}
