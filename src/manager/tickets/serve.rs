//! Serves one ticket: waits for its lease, has the grant stored before anybody learns of it, sees that it is accepted, and
//! ends it. Each step can be repeated by another instance from what the nodes show.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use super::table::{Served, TicketNews};
use crate::manager::acquire::Wanted;
use crate::manager::events::{EventKind, set_lease};
use crate::manager::service::LockManager;
use crate::manager::snapshots::LeaseChange;
use crate::manager::types::{AcquireError, LeaseOutcome};
use crate::protocol::{EndReason, LeaseRecord, TICKET_SERVED, TicketEnd, TicketHead, TicketId, TicketPhase};
use crate::redlock::acquire::{AcquireParams, Grant};
use crate::redlock::clock::Clock;
use crate::redlock::entropy::Entropy;
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;
use crate::redlock::release::ReleaseOutcome;
use crate::redlock::tickets::{TicketRaised, TicketWriter};
use crate::types::{Labels, Mode, ResourceName, TokenHash, WantedMode};
use crate::waiting::deadlock::Party;

/// A ticket that nobody asks for within this time ends.
pub(super) const UNASKED_MAX: Duration = Duration::from_secs(60);
/// Pause before what failed for want of nodes is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// How often the lease of a ticket is looked for, in case that another instance ended it; longer where there are many.
const LEASE_CHECK: Duration = Duration::from_secs(30);
/// Maximum number of such looks per second.
const LEASE_CHECKS_PER_SECOND: u32 = 50;
/// After the end of a kept lease, for the keeper to release it.
const KEPT_OUT_GRACE: Duration = Duration::from_secs(2);

/// What stands of a ticket's lease.
pub(super) enum LeaseSeen {
    Stands(LeaseRecord, Duration),
    Gone,
    Unknown,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Serves it from now on.
    pub(super) fn serve_ticket(&self, served: Arc<Served>) {
        let manager = self.clone();
        self.engine().tasks.spawn(async move {
            let draining = manager.draining();
            tokio::select! {
                biased;
                () = draining.cancelled() => {}
                () = served.stop.cancelled() => {}
                () = Box::pin(manager.ticket_steps(&served)) => {}
            }
            manager.shared.tickets.remove(&served);
        });
    }

    async fn ticket_steps(&self, served: &Served) {
        loop {
            let head = served.head();
            match head.phase {
                TicketPhase::Waiting => Box::pin(self.wait_for_grant(served, head)).await,
                TicketPhase::Granted | TicketPhase::Accepted => Box::pin(self.watch_ticket_lease(served, head)).await,
                TicketPhase::Ended => Box::pin(self.finish_ticket(served, head)).await,
                TicketPhase::Done => return,
            }
            if served.head().phase != TicketPhase::Waiting {
                drop(served.permit.lock().take());
            }
        }
    }

    /// The time that tickets refer to. Milliseconds since 1970.
    pub(super) fn ticket_now_ms(&self) -> u64 {
        self.shared.keeper.now_ms()
    }

    pub(super) fn ticket_id(&self, resource: &ResourceName, token: &TokenHash) -> TicketId {
        TicketId::of(&self.engine().settings.params.cluster.get(), resource, token)
    }

    /// Brings a state to a majority. Whether it stands there; otherwise a later one is known, or it is to be tried again.
    async fn raise(&self, served: &Served, head: TicketHead) -> bool {
        match self.raise_on_nodes(&served.id, &served.ticket, head).await {
            TicketRaised::Done => {
                served.set(head);
                true
            }
            TicketRaised::Overtaken(later) => {
                served.set(later);
                false
            }
            TicketRaised::Unknown => {
                self.clock().sleep(RETRY).await;
                false
            }
        }
    }

    pub(super) async fn raise_on_nodes(
        &self,
        id: &TicketId,
        ticket: &crate::protocol::Ticket,
        head: TicketHead,
    ) -> TicketRaised {
        let engine = self.engine();
        // The end of the lease may still be moved, up to the longest time from its grant.
        let ttl = engine.ticket_ttl(ticket, head).max(self.shared.tickets.limits().max_keep);
        let writer = TicketWriter { id, server: &self.shared.instance, ttl, due: TICKET_SERVED };
        engine.raise_ticket(&writer, head).await
    }

    async fn wait_for_grant(&self, served: &Served, head: TicketHead) {
        let (ticket, now_ms, now) = (&served.ticket, self.ticket_now_ms(), self.now());
        let over = |end| head.ended(TicketPhase::Ended, end, self.ticket_now_ms());
        let left = Duration::from_millis(ticket.body.wait_until_ms.saturating_sub(now_ms));
        if left.is_zero() {
            self.raise(served, over(TicketEnd::WaitTimeout)).await;
            return;
        }
        let labels = ticket.body.labels.clone();
        let (resource, token) = (ticket.resource.clone(), ticket.token.clone());
        // The instance that served it before may have got the lease: then it is not in its own way.
        let is_held = served.is_adopted && Box::pin(self.shared.waiting.holds(&resource, &token)).await;
        let until = if is_held { now } else { now.plus(left) };
        let wanted = Wanted {
            party: Party::new(&labels.principal, &labels.owner),
            has_own_token: true,
            refuses_deadlock: ticket.body.refuses_deadlock,
            principal: None,
            keep: None,
        };
        let params =
            AcquireParams { resources: [resource].into(), token, ttl: ticket.ttl, labels, mode: WantedMode::Exclusive };
        let mut asking = Box::pin(self.acquire_or_wait(&params, wanted, now, until));
        let attempt = poll_fn(|cx| {
            // The first poll enters the queue.
            let outcome = asking.as_mut().poll(cx);
            served.began.send_replace(true);
            outcome
        });
        let outcome = tokio::select! {
            biased;
            () = served.changed_from(head) => return,
            () = self.unasked(served) => {
                self.raise(served, over(TicketEnd::Undelivered)).await;
                return;
            }
            outcome = attempt => outcome,
        };
        self.record_acquire(&ticket.resource, &outcome, true, self.now().since(now));
        match outcome {
            Ok(grant) => Box::pin(self.ticket_granted(served, head, grant)).await,
            Err(AcquireError::Deadlock { cycle, .. }) => {
                self.shared.deadlocks.refuse(&cycle, self.wall_ms(), &self.shared.events);
                self.raise(served, over(TicketEnd::Deadlock)).await;
            }
            Err(AcquireError::Ended(reason)) => {
                self.raise(served, over(end_of(reason))).await;
            }
            Err(AcquireError::WaitTimeout { .. }) => {}
            Err(_) => self.clock().sleep(RETRY).await,
        }
    }

    /// Its lease was granted: that is stored first, and only then is the lease kept.
    async fn ticket_granted(&self, served: &Served, head: TicketHead, grant: Grant<N, C, E>) {
        let (ticket, now_ms) = (&served.ticket, self.ticket_now_ms());
        let granted = TicketHead {
            fence: grant.fence(),
            kept_until_ms: now_ms.saturating_add(ticket.body.keep_ms),
            accept_by_ms: now_ms.saturating_add(u64::try_from(UNASKED_MAX.as_millis()).unwrap_or(0)),
            ..head.at(TicketPhase::Granted, now_ms)
        };
        let half = ticket.ttl.as_duration() / 2;
        loop {
            match self.raise_on_nodes(&served.id, ticket, granted).await {
                TicketRaised::Done => break,
                TicketRaised::Overtaken(later) => {
                    // What was granted is undone: the ticket is over, or another instance has its lease.
                    served.set(later);
                    drop(grant);
                    self.shared.waiting.lease_may_have_ended(&ticket.resource);
                    return;
                }
                TicketRaised::Unknown if grant.valid_for() < half => {
                    drop(grant);
                    self.shared.waiting.lease_may_have_ended(&ticket.resource);
                    return;
                }
                TicketRaised::Unknown => self.clock().sleep(RETRY).await,
            }
        }
        let (deadline, acquired_at_ms) = (grant.deadline, grant.acquired_at_ms);
        if grant.keep().is_ok() {
            let mut labels =
                Labels { acquired_at_ms, kept_until_ms: granted.kept_until_ms, ..ticket.body.labels.clone() };
            if !self.shared.keeper.begin(&ticket.resource, &ticket.token, granted.fence, &labels).await {
                labels.kept_until_ms = 0;
            }
            let record = LeaseRecord {
                token: ticket.token.clone(),
                renewals: 0,
                ttl: ticket.ttl,
                fence: granted.fence,
                claims: "".into(),
                mode: Mode::Exclusive,
                labels: labels.encode(),
            };
            self.record_own_lease(&ticket.token, (&ticket.resource, &labels), deadline);
            self.shared.keeper.keep(&ticket.resource, &record, deadline);
            self.record_change(&ticket.resource, |until| LeaseChange::Granted(record.clone(), until(deadline)));
            if let Some(permit) = &*served.permit.lock() {
                permit.granted(&ticket.resource, deadline);
            }
            self.shared.events.publish(EventKind::Acquired, self.wall_ms(), |event| {
                set_lease(event, &ticket.resource, &ticket.token);
                event.owner = Some(labels.owner.clone()).filter(|owner| !owner.is_empty());
                event.fence = Some(granted.fence.0);
                event.valid_for_ms = u64::try_from(deadline.since(self.now()).as_millis()).ok();
            });
        }
        self.shared.tickets.report(TicketNews::Granted);
        served.set(granted);
    }

    /// Its lease is kept until somebody ends it; a grant that nobody accepts ends it.
    async fn watch_ticket_lease(&self, served: &Served, head: TicketHead) {
        match Box::pin(self.kept_ticket_lease(&served.ticket, head)).await {
            LeaseSeen::Gone => return Box::pin(self.ticket_lease_is_over(served, head)).await,
            LeaseSeen::Unknown => return self.clock().sleep(RETRY).await,
            LeaseSeen::Stands(..) => {}
        }
        let now_ms = self.ticket_now_ms();
        let count = u32::try_from(self.shared.tickets.len()).unwrap_or(u32::MAX);
        let mut pause = LEASE_CHECK.max(Duration::from_secs(1).saturating_mul(count / LEASE_CHECKS_PER_SECOND));
        if head.kept_until_ms > now_ms {
            pause = pause.min(Duration::from_millis(head.kept_until_ms - now_ms) + KEPT_OUT_GRACE);
        }
        tokio::select! {
            biased;
            () = served.changed_from(head) => {}
            () = served.lease_has_ended() => Box::pin(self.ticket_lease_is_over(served, head)).await,
            () = self.unasked(served), if head.phase == TicketPhase::Granted => {
                let over = head.ended(TicketPhase::Ended, TicketEnd::Undelivered, self.ticket_now_ms());
                self.raise(served, over).await;
            }
            () = self.clock().sleep(pause) => {}
        }
    }

    /// What stands of the lease that the ticket was granted. It is kept from now on, if the instance that granted it ended
    /// before it could write that.
    pub(super) async fn kept_ticket_lease(&self, ticket: &crate::protocol::Ticket, head: TicketHead) -> LeaseSeen {
        let Ok(found) = self.engine().inspect(&ticket.resource).await else { return LeaseSeen::Unknown };
        match found.state {
            ResourceState::Lease { record, left } if record.token == ticket.token => {
                if found.agreeing < self.engine().quorum() {
                    return LeaseSeen::Unknown;
                }
                let mut labels = record.labels();
                if labels.kept_until_ms > 0 {
                    return LeaseSeen::Stands(record, left);
                }
                if self.ticket_now_ms() >= head.kept_until_ms {
                    return LeaseSeen::Stands(record, left);
                }
                // Its fence may be larger than the head's: where another instance joined it, the largest one counts.
                labels.kept_until_ms = head.kept_until_ms;
                match self.shared.keeper.begin(&ticket.resource, &ticket.token, record.fence, &labels).await {
                    true => LeaseSeen::Stands(LeaseRecord { labels: labels.encode(), ..record }, left),
                    false => LeaseSeen::Unknown,
                }
            }
            _ => LeaseSeen::Gone,
        }
    }

    async fn ticket_lease_is_over(&self, served: &Served, head: TicketHead) {
        let end = match served.lease_end() {
            Some(end) => Some(end),
            None => Box::pin(self.ticket_lease_end(&served.ticket, head)).await,
        };
        match end {
            Some(end) => {
                let over = head.ended(TicketPhase::Done, end, self.ticket_now_ms());
                if self.raise(served, over).await {
                    self.shared.tickets.report(TicketNews::Ended(end));
                }
            }
            None => self.clock().sleep(RETRY).await,
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

    /// It is over: its lease is released, if it has one.
    async fn finish_ticket(&self, served: &Served, head: TicketHead) {
        if self.release_ticket_lease(&served.ticket).await {
            let over = head.at(TicketPhase::Done, self.ticket_now_ms());
            if self.raise(served, over).await
                && let Some(end) = over.end
            {
                self.shared.tickets.report(TicketNews::Ended(end));
            }
        } else {
            self.clock().sleep(RETRY).await;
        }
    }

    /// Whether nothing is left of its lease.
    pub(super) async fn release_ticket_lease(&self, ticket: &crate::protocol::Ticket) -> bool {
        let (outcome, _) = Box::pin(self.end_lease(&ticket.resource, &ticket.token, LeaseOutcome::Released)).await;
        !matches!(outcome, ReleaseOutcome::Unknown { .. })
    }

    /// Resolves when nobody has asked for it for [`UNASKED_MAX`].
    async fn unasked(&self, served: &Served) {
        let most_ms = u64::try_from(UNASKED_MAX.as_millis()).unwrap_or(u64::MAX);
        loop {
            let silent_ms = self.ticket_now_ms().saturating_sub(served.seen.lock().asked_ms);
            if silent_ms >= most_ms {
                return;
            }
            self.clock().sleep(Duration::from_millis(most_ms - silent_ms)).await;
        }
    }

    /// A lease has ended, as this instance knows: if it is a ticket's, so has that.
    pub(in crate::manager) fn ticket_lease_ended(&self, resource: &ResourceName, token: &TokenHash, end: TicketEnd) {
        if self.shared.tickets.len() > 0
            && let Some(served) = self.shared.tickets.get(&self.ticket_id(resource, token))
        {
            served.lease_ended(end);
        }
    }
}

fn end_of(reason: EndReason) -> TicketEnd {
    match reason {
        EndReason::Released => TicketEnd::Released,
        EndReason::Forced | EndReason::Revoked => TicketEnd::Forced,
        EndReason::Cancelled => TicketEnd::Cancelled,
    }
}
