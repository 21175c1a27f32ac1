//! What the nodes show of a ticket's lease: whether it is held and kept, how it ended, and that nothing is left of it.

use std::time::Duration;

use futures_util::future::join_all;

use super::serve::RETRY;
use crate::manager::service::LockManager;
use crate::manager::types::LeaseOutcome;
use crate::mutant::{self, Mutant};
use crate::protocol::{EndReason, LeaseRecord, Ticket, TicketEnd, TicketHead, TicketId, TicketPhase};
use crate::redlock::acquire::Grant;
use crate::redlock::clock::Clock;
use crate::redlock::extend::{ExtendParams, ExtendRefusal};
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::release::ReleaseOutcome;
use crate::types::{Fence, Labels, ResourceName, TokenHash};

/// A fence that no lease has: nodes derive fences from their time.
const NO_FENCE: Fence = Fence(1);

/// The state of a ticket's lease, or of its leases.
pub(super) enum LeaseSeen {
    /// The records in the order of the resources, and the time that is left of all.
    Stands(Vec<LeaseRecord>, Duration),
    /// The lease, or one of the leases, has ended.
    Gone,
    Unknown,
}

/// How a ticket's lease has ended, or the first of several.
pub(super) struct TicketLeaseEnd {
    pub(super) end: TicketEnd,
    /// Whether a request to this instance, the keeper or another instance's message has reported the end.
    is_known: bool,
    /// The resources whose lost leases nobody has reported.
    lost: Vec<ResourceName>,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The state of the leases that the ticket was granted. They are kept from now on, if the instance that granted them ended
    /// before it could write that. `is_first`: the caller begins to serve the ticket in this state, so the leases are indexed.
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
            // The end and the index are two requests: if an instance ended between them, no other would renew the lease.
            let is_indexed = !is_first || mutant::is(Mutant::KeptUnindexed) || self.shared.keeper.index(resource).await;
            return if is_indexed { LeaseSeen::Stands(vec![record], left) } else { LeaseSeen::Unknown };
        }
        // What only one node shows is written to no other node.
        let agreement = found.agreement(&ticket.token, self.engine().quorum());
        if agreement.is_none_or(|agreement| !agreement.may_be_written() || !agreement.has_fence) {
            return LeaseSeen::Unknown;
        }
        // The lease's fence may be larger than the head's: if another instance joined it, the largest one counts.
        labels.kept_until_ms = head.kept_until_ms;
        match self.shared.keeper.begin(resource, &ticket.token, record.fence, &labels).await {
            true => LeaseSeen::Stands(vec![LeaseRecord { labels: labels.encode(), ..record }], left),
            false => LeaseSeen::Unknown,
        }
    }

    /// Gives the lease with this fence these labels and their end. Returns whether it has them from now on.
    ///
    /// Cancel: some nodes may have them.
    pub(super) async fn keep_lease_of(
        &self,
        ticket: &Ticket,
        (resource, fence): (&ResourceName, Fence),
        labels: &Labels,
    ) -> bool {
        if !self.shared.keeper.index(resource).await {
            return false;
        }
        let extension = ExtendParams {
            resource: resource.clone(),
            token: ticket.token.clone(),
            ttl: Some(ticket.ttl),
            until_ms: labels.kept_until_ms,
            fence: Some(fence),
            labels: Some(labels.encode()),
        };
        let extended = self.engine().extend(&extension).await;
        if let Ok(extended) = &extended {
            self.shared.keeper.keep(resource, &extended.record, extended.deadline);
        }
        extended.is_ok()
    }

    /// How a ticket's lease that no quorum shows has ended, or the first of several. Changes nothing. `None`: not known.
    pub(super) async fn ticket_lease_end(
        &self,
        id: &TicketId,
        ticket: &Ticket,
        head: TicketHead,
    ) -> Option<TicketLeaseEnd> {
        let of = |end, is_known| TicketLeaseEnd { end, is_known, lost: Vec::new() };
        if let Some(end) = self.shared.tickets.get(id).and_then(|served| served.lease_end()) {
            return Some(of(end, true));
        }
        if self.ticket_now_ms() >= head.kept_until_ms {
            return Some(of(TicketEnd::KeptOut, false));
        }
        if mutant::is(Mutant::LostReleasedFirst) && !self.release_ticket_lease(ticket).await {
            return None;
        }
        let each = ticket.resources().map(|name| Box::pin(self.shown_end(name, &ticket.token)));
        let shown: Option<Vec<Option<TicketEnd>>> = join_all(each).await.into_iter().collect();
        let mut shown = shown?;
        if let [end] = shown.as_mut_slice() {
            // Too few nodes have the lease, and nobody ended it.
            end.get_or_insert(TicketEnd::Lost);
        }
        let lost = ticket.resources().zip(&shown).filter(|(_, end)| **end == Some(TicketEnd::Lost));
        let lost = lost.map(|(name, _)| name.clone()).collect();
        Some(TicketLeaseEnd {
            end: shown.into_iter().flatten().min().unwrap_or(TicketEnd::Lost),
            is_known: false,
            lost,
        })
    }

    /// How a lease ended, by the nodes. `Some(None)`: a node has it. An extend revives none, and extends only one with its fence.
    async fn shown_end(&self, resource: &ResourceName, token: &TokenHash) -> Option<Option<TicketEnd>> {
        let (resource, token) = (resource.clone(), token.clone());
        let params = ExtendParams { resource, token, ttl: None, until_ms: 0, fence: Some(NO_FENCE), labels: None };
        match self.engine().extend(&params).await {
            Err(ExtendRefusal::Gone(Some(reason))) => Some(Some(end_of(reason))),
            Err(ExtendRefusal::Gone(None) | ExtendRefusal::NotHolder) => Some(Some(TicketEnd::Lost)),
            Err(ExtendRefusal::Changed(_)) => Some(None),
            Err(ExtendRefusal::Unknown { .. }) | Ok(_) => None,
        }
    }

    /// Whether this state of a ticket whose lease has ended may be stored: its leases are gone, or are released later. If nobody
    /// ended the lease, nothing is released before: a later reader would take the tombstone for its holder's release (seed 2586).
    /// Cancel: as [`Self::rest_is_released`].
    pub(super) async fn may_be_over(&self, ticket: &Ticket, over: TicketHead, ended: &TicketLeaseEnd) -> bool {
        let is_released_later = over.phase == TicketPhase::Ended && over.end == Some(TicketEnd::Lost);
        let was_released = ended.is_known && ticket.others.is_empty() && ended.end != TicketEnd::Lost;
        let is_kept_out = !ended.is_known && ended.end == TicketEnd::KeptOut;
        is_released_later || was_released || Box::pin(self.rest_is_released(ticket, is_kept_out)).await
    }

    /// Whether nothing is left of leases, one of which has ended. Other leases end here, and are reported, unless all are over.
    /// Cancel: releases that were begun go on.
    pub(super) async fn rest_is_released(&self, ticket: &Ticket, is_kept_out: bool) -> bool {
        if !ticket.others.is_empty() && !is_kept_out {
            return self.release_ticket_lease(ticket).await;
        }
        let each = ticket.resources().map(|name| self.engine().release(name, &ticket.token, EndReason::Released));
        let outcomes = join_all(each).await;
        ticket.resources().for_each(|name| self.shared.waiting.lease_may_have_ended(name));
        !outcomes.iter().any(|outcome| matches!(outcome, ReleaseOutcome::Unknown { .. }))
    }

    /// Reports the lost leases, once their ticket's state records it. Not if the keeper has noticed it before.
    pub(super) fn report_lost(&self, ticket: &Ticket, head: TicketHead, ended: &TicketLeaseEnd) {
        let served = self.shared.tickets.with_lease(&ticket.resource, &ticket.token);
        if ended.lost.is_empty() || !served.is_none_or(|served| served.lease_ended(TicketEnd::Lost)) {
            return;
        }
        let fence = ticket.others.is_empty().then_some(head.fence);
        ended.lost.iter().for_each(|name| self.kept_lease_is_lost((name, &ticket.token), fence, &ticket.body.labels));
    }

    /// A ticket that is over must have no lease: the cancel of the attempt is one of many clean-ups and is skipped if
    /// there are too many, so the token is released as well.
    pub(super) async fn undo_grant(&self, ticket: &Ticket, later: TicketHead, grant: Grant<N, C, E>) {
        let ends = grant.deadline;
        drop(grant);
        while later.end.is_some() && self.now() < ends && !self.release_ticket_lease(ticket).await {
            self.clock().sleep(RETRY).await;
        }
    }

    /// Releases the ticket's leases. Returns whether nothing is left of them.
    pub(super) async fn release_ticket_lease(&self, ticket: &Ticket) -> bool {
        self.end_ticket_lease(ticket, LeaseOutcome::Released).await
    }

    /// Ends the ticket's leases for this reason. Returns whether nothing is left of them.
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
