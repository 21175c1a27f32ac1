//! What the nodes show of a ticket's lease: whether it is held and kept, how it ended, and that nothing is left of it.

use std::time::Duration;

use futures_util::future::join_all;

use super::callbacks::is_unaccepted;
use super::serve::RETRY;
use crate::manager::service::LockManager;
use crate::manager::types::LeaseOutcome;
use crate::mutant::{self, Mutant};
use crate::protocol::{EndReason, LeaseRecord, Ticket, TicketEnd, TicketHead, TicketId};
use crate::redlock::acquire::Grant;
use crate::redlock::clock::Clock;
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::release::ReleaseOutcome;
use crate::types::ResourceName;

/// The state of a ticket's lease, or of its leases.
pub(super) enum LeaseSeen {
    /// The records in the order of the resources, and the time that is left of all.
    Stands(Vec<LeaseRecord>, Duration),
    /// It has ended, or one of them has.
    Gone,
    Unknown,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The state of the leases that the ticket was granted. They are kept from now on, if the instance that granted them ended
    /// before it could write that. `is_first`: the caller begins to serve the ticket in this state, so that it has them indexed.
    pub(super) async fn kept_ticket_lease(&self, ticket: &Ticket, head: TicketHead, is_first: bool) -> LeaseSeen {
        let each = ticket.resources().map(|resource| Box::pin(self.kept_lease_of(ticket, resource, head, is_first)));
        let (mut records, mut least, mut is_unknown) = (Vec::new(), Duration::MAX, false);
        for seen in join_all(each).await {
            match seen {
                LeaseSeen::Stands(record, left) => {
                    records.extend(record);
                    least = least.min(left);
                }
                LeaseSeen::Gone => return LeaseSeen::Gone,
                LeaseSeen::Unknown => is_unknown = true,
            }
        }
        if is_unknown { LeaseSeen::Unknown } else { LeaseSeen::Stands(records, least) }
    }

    async fn kept_lease_of(
        &self,
        ticket: &Ticket,
        resource: &ResourceName,
        head: TicketHead,
        is_first: bool,
    ) -> LeaseSeen {
        let Ok(found) = self.engine().inspect(resource).await else { return LeaseSeen::Unknown };
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
        if self.ticket_now_ms() >= head.kept_until_ms {
            return LeaseSeen::Stands(vec![record], left);
        }
        if labels.kept_until_ms > 0 {
            // The end and the index are two requests: of an instance that ended between them no other one would renew the lease.
            let is_indexed = !is_first || mutant::is(Mutant::KeptUnindexed) || self.shared.keeper.index(resource).await;
            return if is_indexed { LeaseSeen::Stands(vec![record], left) } else { LeaseSeen::Unknown };
        }
        // What one node alone shows is put on no other one.
        let agreement = found.agreement(&ticket.token, self.engine().quorum());
        if agreement.is_none_or(|agreement| !agreement.may_be_written() || !agreement.has_fence) {
            return LeaseSeen::Unknown;
        }
        // Its fence may be larger than the head's: where another instance joined it, the largest one counts.
        labels.kept_until_ms = head.kept_until_ms;
        match self.shared.keeper.begin(resource, &ticket.token, record.fence, &labels).await {
            true => LeaseSeen::Stands(vec![LeaseRecord { labels: labels.encode(), ..record }], left),
            false => LeaseSeen::Unknown,
        }
    }

    /// Why a lease that no quorum shows has ended; nothing is left of it afterwards, nor of the ticket's other leases. `None`: not
    /// known.
    pub(super) async fn ticket_lease_end(&self, ticket: &Ticket, head: TicketHead) -> Option<TicketEnd> {
        let each = ticket.resources().map(|name| self.engine().release(name, &ticket.token, EndReason::Released));
        let outcomes = join_all(each).await;
        if outcomes.iter().any(|outcome| matches!(outcome, ReleaseOutcome::Unknown { .. })) {
            return None;
        }
        if self.ticket_now_ms() >= head.kept_until_ms {
            return Some(TicketEnd::KeptOut);
        }
        // What stood until now of several was released here.
        let mut ended = outcomes.iter().filter(|outcome| !matches!(outcome, ReleaseOutcome::Released)).peekable();
        if ended.peek().is_none() {
            // Of one that nobody ended too few nodes were left: whoever did not accept it may not know of it (seed 2586).
            return Some(if is_unaccepted(ticket, head) { TicketEnd::Lost } else { TicketEnd::Released });
        }
        let end = |outcome: &ReleaseOutcome| match outcome {
            ReleaseOutcome::Gone(Some(reason)) => end_of(*reason),
            _ => TicketEnd::Lost,
        };
        let mut end_of_all = ended.map(end).min();
        // Of those that look at once the first one counts: the others find its tombstone.
        if let (Some(served), Some(end)) = (self.shared.tickets.with_lease(&ticket.resource, &ticket.token), end_of_all)
        {
            served.lease_ended(end);
            end_of_all = served.lease_end();
        }
        for (name, outcome) in ticket.resources().zip(&outcomes) {
            if !matches!(outcome, ReleaseOutcome::Released) && end(outcome) == TicketEnd::Lost {
                let fence = ticket.others.is_empty().then_some(head.fence);
                self.kept_lease_is_lost((name, &ticket.token), fence, &ticket.body.labels);
            }
        }
        end_of_all
    }

    /// The same as this instance knows it: who looks after it finds the tombstone that it left.
    pub(super) fn known_lease_end(&self, id: &TicketId) -> Option<TicketEnd> {
        self.shared.tickets.get(id)?.lease_end()
    }

    /// Of a ticket that is over, no lease may stand: the cancel of the attempt is one of many clean-ups and is left out where there
    /// are too many, so that the token is released as well.
    pub(super) async fn undo_grant(&self, ticket: &Ticket, later: TicketHead, grant: Grant<N, C, E>) {
        let ends = grant.deadline;
        drop(grant);
        while later.end.is_some() && self.now() < ends && !self.release_ticket_lease(ticket).await {
            self.clock().sleep(RETRY).await;
        }
    }

    /// Whether nothing is left of its leases.
    pub(super) async fn release_ticket_lease(&self, ticket: &Ticket) -> bool {
        self.end_ticket_lease(ticket, LeaseOutcome::Released).await
    }

    /// The same, for this reason.
    pub(super) async fn end_ticket_lease(&self, ticket: &Ticket, reason: LeaseOutcome) -> bool {
        let each = ticket.resources().map(|name| Box::pin(self.end_lease(name, &ticket.token, reason)));
        join_all(each).await.iter().all(|(outcome, _)| !matches!(outcome, ReleaseOutcome::Unknown { .. }))
    }
}

pub(super) fn end_of(reason: EndReason) -> TicketEnd {
    match reason {
        EndReason::Released => TicketEnd::Released,
        EndReason::Forced | EndReason::Revoked => TicketEnd::Forced,
        EndReason::Cancelled => TicketEnd::Cancelled,
    }
}
