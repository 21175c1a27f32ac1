//! A release and what it means for those who wait: the oldest waiter of this instance is woken while the
//! release is on its way, unless it is the turn of another instance.

use super::events::{EventKind, set_lease};
use super::queue::HandoverPlan;
use super::service::LockManager;
use super::types::LeaseOutcome;
use crate::protocol::EndReason;
use crate::redlock::clock::Clock;
use crate::redlock::entropy::Entropy;
use crate::redlock::node::Node;
use crate::redlock::notifications::LeaseTag;
use crate::redlock::release::ReleaseOutcome;
use crate::types::{ResourceName, TokenHash};

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Releases a lease and hands over to the oldest waiter here: what that one sends follows the release
    /// on each node's connection, so one round trip does both. After some hand-overs in a row, waiters of
    /// other instances go first.
    ///
    /// Cancel: the release goes on in the background.
    pub(super) async fn release_and_hand_over(
        &self,
        resource: &ResourceName,
        token: &TokenHash,
        reason: LeaseOutcome,
    ) -> ReleaseOutcome {
        let (queues, lease) = (&self.shared.queues, LeaseTag::of(token));
        // Only for a lease that this instance granted: a made-up token must not wake anybody.
        let is_ours = self.shared.own_leases.valid_for(token, self.now()).is_some();
        let plan = if is_ours { queues.plan_handover(resource) } else { HandoverPlan::NoWaiters };
        let yields = match plan {
            HandoverPlan::CheckOtherInstances => {
                let (limit, clock) = (self.engine().settings.node_timeout, self.clock());
                self.shared.subscriptions.has_other_subscribers(resource, limit, clock).await
            }
            _ => false,
        };
        let on_sent = {
            let (queues, resource) = (queues.clone(), resource.clone());
            move || match plan {
                HandoverPlan::NoWaiters => {}
                _ if yields => queues.yield_to_others(&resource, lease),
                plan => queues.on_handover(&resource, lease, plan == HandoverPlan::CheckOtherInstances),
            }
        };
        let begun = self.now();
        let outcome = self.engine().release_then(resource, token, EndReason::Released, on_sent).await;
        let since = self.shared.own_leases.remove(token);
        match outcome {
            ReleaseOutcome::Released => {
                self.record_decided_round(begun);
                self.report_lease_end(since, reason);
                queues.lease_ended(resource, Some(lease));
                self.shared.held_leases.lease_ended(lease);
                let events = &self.shared.events;
                events.publish(EventKind::Released, self.wall_ms(), |event| set_lease(event, resource, token));
            }
            ReleaseOutcome::Unknown { .. } => queues.lease_may_have_ended(resource),
            _ => {}
        }
        outcome
    }
}
