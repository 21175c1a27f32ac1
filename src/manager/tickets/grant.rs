//! What follows the grant of a ticket's lease: the grant is stored on a majority of nodes before anybody learns of
//! it, and then the lease is kept.

use futures_util::future::join_all;

use super::serve::{RETRY, unasked_max_ms};
use super::table::{Served, TicketEvent};
use crate::auth::quota::CountedName;
use crate::manager::events::{EventKind, set_lease, set_mode};
use crate::manager::lease_snapshot::LeaseChange;
use crate::manager::service::LockManager;
use crate::mutant::{self, Mutant};
use crate::protocol::{LeaseRecord, TicketHead, TicketPhase};
use crate::redlock::acquire::Grant;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::tickets::{TicketFound, TicketRaised};
use crate::types::{Fence, Labels, Mode, ResourceName};

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Handles the grant of a ticket's lease: the grant is stored first, and only then is the lease kept.
    pub(super) async fn ticket_granted(&self, served: &Served, head: TicketHead, grant: Grant<N, C, E>) {
        let (ticket, now_ms) = (&served.ticket, self.ticket_now_ms());
        let granted = TicketHead {
            fence: grant.fence(),
            kept_until_ms: now_ms.saturating_add(ticket.body.keep_ms),
            accept_by_ms: now_ms.saturating_add(accept_ms(ticket)),
            ..head.at(TicketPhase::Granted, now_ms)
        };
        match self.store_grant(served, granted, &grant).await {
            TicketRaised::Done => {}
            TicketRaised::Overtaken(_) if mutant::is(Mutant::TicketKeptOvertaken) => {}
            TicketRaised::Overtaken(later) => {
                // The grant is undone: the ticket is over, or another instance has its lease.
                self.undo_grant(ticket, later, grant).await;
                served.set(later);
                ticket.resources().for_each(|name| self.shared.waiting.lease_may_have_ended(name));
                return;
            }
            TicketRaised::Unknown if mutant::is(Mutant::CallbackBeforeGranted) => {}
            TicketRaised::Unknown => {
                drop(grant);
                ticket.resources().for_each(|name| self.shared.waiting.lease_may_have_ended(name));
                return;
            }
        }
        let labels = Labels {
            acquired_at_ms: grant.acquired_at_ms,
            kept_until_ms: granted.kept_until_ms,
            ..ticket.body.labels.clone()
        };
        let (deadline, mode, leases) = (grant.deadline, grant.mode, grant.leases.clone());
        if grant.keep().is_ok() {
            let each = ticket.resources().zip(&leases);
            let kept = each.map(|(name, lease)| {
                Box::pin(self.keep_from_now_on(served, name, lease.fence, (labels.clone(), mode, deadline)))
            });
            join_all(kept).await;
        }
        self.shared.tickets.report(TicketEvent::Granted);
        served.set(granted);
    }

    /// Stores the grant until a majority has it, or another state; `Unknown`: not known in time, or it must not be stored.
    async fn store_grant(&self, served: &Served, granted: TicketHead, grant: &Grant<N, C, E>) -> TicketRaised {
        let (mut is_sent, half) = (false, served.ticket.ttl.as_duration() / 2);
        loop {
            let is_alone = self.is_alone_since(served, grant.started);
            let raised = match is_alone {
                true => self.raise_on_nodes(&served.id, &served.ticket, granted).await,
                // Another instance may serve the ticket. The state that this one wrote may count; the other one then finds it.
                false if is_sent => match self.find_on_nodes(&served.id).await {
                    TicketFound::Known(_, head) if head == granted => TicketRaised::Done,
                    TicketFound::Known(_, head) if head.phase != TicketPhase::Waiting => TicketRaised::Overtaken(head),
                    TicketFound::Known(..) | TicketFound::Absent => return TicketRaised::Unknown,
                    TicketFound::Unknown => TicketRaised::Unknown,
                },
                false => return TicketRaised::Unknown,
            };
            is_sent = true;
            let is_late = grant.valid_for() < half || mutant::is(Mutant::CallbackBeforeGranted);
            if raised != TicketRaised::Unknown || is_late {
                return raised;
            }
            self.clock().sleep(RETRY).await;
        }
    }

    /// Keeps one of the ticket's leases; lists, events and the pages show it from now on.
    async fn keep_from_now_on(
        &self,
        served: &Served,
        resource: &ResourceName,
        fence: Fence,
        (mut labels, mode, deadline): (Labels, Mode, BootTime),
    ) {
        let ticket = &served.ticket;
        if !self.shared.keeper.begin(resource, &ticket.token, fence, &labels).await {
            labels.kept_until_ms = 0;
        }
        let record = LeaseRecord {
            token: ticket.token.clone(),
            renewals: 0,
            ttl: ticket.ttl,
            fence,
            claims: "".into(),
            mode,
            labels: labels.encode(),
        };
        let at = self.moment();
        self.record_own_lease(&ticket.token, (resource, &labels, mode), deadline, at);
        self.shared.keeper.keep(resource, &record, deadline);
        self.record_change(at.now, resource, |until| LeaseChange::Granted(record.clone(), until(deadline)));
        if let Some(permit) = &*served.permit.lock() {
            permit.granted(CountedName::of(resource, ticket.token.id(), mode), deadline);
        }
        self.shared.events.publish(EventKind::Acquired, self.wall_ms(), |event| {
            set_lease(event, resource, &ticket.token);
            event.owner = Some(labels.owner.clone()).filter(|owner| !owner.is_empty());
            event.fence = Some(fence.0);
            set_mode(event, mode);
            event.valid_for_ms = u64::try_from(deadline.since(self.now()).as_millis()).ok();
        });
    }
}

/// For how long the grant is offered.
fn accept_ms(ticket: &crate::protocol::Ticket) -> u64 {
    ticket.body.callback.as_ref().map_or_else(unasked_max_ms, |callback| callback.accept_ms)
}
