//! What the nodes show of a ticket's lease: whether it is held and kept, how it ended, and that nothing is left of it.

use std::time::Duration;

use crate::manager::service::LockManager;
use crate::manager::types::LeaseOutcome;
use crate::protocol::{EndReason, LeaseRecord, TicketEnd, TicketHead};
use crate::redlock::clock::Clock;
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::release::ReleaseOutcome;

/// The state of a ticket's lease.
pub(super) enum LeaseSeen {
    Stands(LeaseRecord, Duration),
    Gone,
    Unknown,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The state of the lease that the ticket was granted. It is kept from now on, if the instance that granted it ended
    /// before it could write that.
    pub(super) async fn kept_ticket_lease(&self, ticket: &crate::protocol::Ticket, head: TicketHead) -> LeaseSeen {
        let Ok(found) = self.engine().inspect(&ticket.resource).await else { return LeaseSeen::Unknown };
        let agreeing = match &found.state {
            ResourceState::Members(members) => {
                members.iter().find(|member| member.record.token == ticket.token).map_or(0, |member| member.agreeing)
            }
            _ => found.agreeing,
        };
        let Some((record, left)) = found.state.lease_of(&ticket.token) else { return LeaseSeen::Gone };
        if agreeing < self.engine().quorum() {
            return LeaseSeen::Unknown;
        }
        let (record, mut labels) = (record.clone(), record.labels());
        if labels.kept_until_ms > 0 || self.ticket_now_ms() >= head.kept_until_ms {
            return LeaseSeen::Stands(record, left);
        }
        // Its fence may be larger than the head's: where another instance joined it, the largest one counts.
        labels.kept_until_ms = head.kept_until_ms;
        match self.shared.keeper.begin(&ticket.resource, &ticket.token, record.fence, &labels).await {
            true => LeaseSeen::Stands(LeaseRecord { labels: labels.encode(), ..record }, left),
            false => LeaseSeen::Unknown,
        }
    }

    /// Why a lease that no quorum shows has ended; nothing is left of it afterwards. `None`: not known.
    pub(super) async fn ticket_lease_end(
        &self,
        ticket: &crate::protocol::Ticket,
        head: TicketHead,
    ) -> Option<TicketEnd> {
        let outcome = self.engine().release(&ticket.resource, &ticket.token, EndReason::Released).await;
        if matches!(outcome, ReleaseOutcome::Unknown { .. }) {
            return None;
        }
        if self.ticket_now_ms() >= head.kept_until_ms {
            return Some(TicketEnd::KeptOut);
        }
        Some(match outcome {
            ReleaseOutcome::Gone(Some(reason)) => end_of(reason),
            ReleaseOutcome::Released => TicketEnd::Released,
            _ => TicketEnd::Lost,
        })
    }

    /// Whether nothing is left of its lease.
    pub(super) async fn release_ticket_lease(&self, ticket: &crate::protocol::Ticket) -> bool {
        let (outcome, _) = Box::pin(self.end_lease(&ticket.resource, &ticket.token, LeaseOutcome::Released)).await;
        !matches!(outcome, ReleaseOutcome::Unknown { .. })
    }
}

pub(super) fn end_of(reason: EndReason) -> TicketEnd {
    match reason {
        EndReason::Released => TicketEnd::Released,
        EndReason::Forced | EndReason::Revoked => TicketEnd::Forced,
        EndReason::Cancelled => TicketEnd::Cancelled,
    }
}
