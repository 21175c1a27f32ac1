//! Releases that hand the lock over: the first waiter of the same instance asks the nodes as soon as the release is sent.

use super::driver::WaitDriver;
use super::event::{HandoverPlan, WaitEvent};
use crate::protocol::EndReason;
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::notifications::{LeaseTag, NotificationSource, Topic};
use crate::redlock::random::Entropy;
use crate::redlock::release::ReleaseOutcome;
use crate::types::{ResourceName, TokenHash};

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// Releases a lease. `hands_over`: the lease is one of this instance, so its first waiter here asks as soon as
    /// the release is sent. On one thread its request follows the release on each node's connection, so both need one round trip;
    /// from another thread it may overtake the release, and is then repeated when the release is certain.
    /// After some hand-overs in a row, waiters of other instances go first.
    ///
    /// Cancel: the release continues in the background.
    pub(crate) async fn release(&self, resource: &ResourceName, token: &TokenHash, hands_over: bool) -> ReleaseOutcome {
        let lease = LeaseTag::of(token);
        let plan = if hands_over { self.queue(|queue| queue.handover_plan(resource)) } else { HandoverPlan::NoWaiters };
        let others_wait = match plan {
            HandoverPlan::AskForOthers => Some(self.has_other_subscribers(resource).await),
            _ => None,
        };
        let on_sent = {
            let (driver, resource) = (self.clone(), resource.clone());
            move || {
                if plan != HandoverPlan::NoWaiters {
                    driver.0.handle(WaitEvent::ReleaseSent { resource, lease, others_wait });
                }
            }
        };
        let on_end = {
            let (driver, resource, token) = (self.clone(), resource.clone(), token.clone());
            move |outcome: &ReleaseOutcome| driver.note_end(&resource, &token, outcome)
        };
        self.0.engine.release_then(resource, token, EndReason::Released, on_sent, on_end).await
    }

    /// Wakes a waiter that asked after the waiters were counted, but before the release was sent.
    fn note_end(&self, resource: &ResourceName, token: &TokenHash, outcome: &ReleaseOutcome) {
        match outcome {
            ReleaseOutcome::Released => return self.lease_ended(resource, Some(LeaseTag::of(token))),
            ReleaseOutcome::Unknown { .. } => self.lease_may_have_ended(resource),
            _ => {}
        }
        // A caller that releases a lease which it does not hold may still wait for it: that wait is given up.
        self.give_up_places(|places, _| places.forget(resource, token));
    }

    /// Whether another instance subscribes to this resource, as the first connected node answers (one round trip).
    /// True if no node can answer.
    async fn has_other_subscribers(&self, resource: &ResourceName) -> bool {
        let topic = Topic::LeaseEnded(resource.clone());
        let Some(node) = self.channels().into_iter().find(|node| node.is_connected()) else {
            return !self.channels().is_empty() || self.0.engine.nodes.iter().any(|node| is_poll_only(node.as_ref()));
        };
        let own = usize::from(node.is_active(&topic));
        tokio::select! {
            biased;
            count = node.subscriber_count(&topic) => count.is_none_or(|n| n > own),
            () = self.0.engine.clock.sleep(self.0.engine.node_timeout()) => true,
        }
    }
}

fn is_poll_only<N: Node>(node: &N) -> bool {
    matches!(node.notifications(), NotificationSource::PollOnly)
}
