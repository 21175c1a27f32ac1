//! Serves one ticket: waits for its lease, stores the grant on a majority of nodes before it is shown, waits until
//! the grant is accepted, and ends it. Another instance can repeat each step from what the nodes show.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::callbacks::over as over_for;
use super::lease::{LeaseSeen, end_of};
use super::table::{Served, TicketEvent};
use crate::manager::acquire::Wanted;
use crate::manager::service::LockManager;
use crate::manager::types::AcquireError;
use crate::mutant::{self, Mutant};
use crate::protocol::{TICKET_SERVED, Ticket, TicketEnd, TicketHead, TicketId, TicketPhase, TokenUse};
use crate::redlock::acquire::AcquireParams;
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::tickets::{TicketRaised, TicketWriter};
use crate::types::{ResourceName, TokenHash};
use crate::waiting::deadlock::Party;

/// A ticket about which no request comes within this time ends.
pub(super) const UNASKED_MAX: Duration = Duration::from_secs(60);
/// Pause before a step that failed for want of nodes is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(500);
/// How often the lease of a ticket is checked, in case another instance ended it; less often if there are many tickets.
pub(super) const LEASE_CHECK: Duration = Duration::from_secs(30);
/// Maximum number of such checks per second.
const LEASE_CHECKS_PER_SECOND: u32 = 50;
/// Time after the end of a kept lease in which the keeper can release it.
const KEPT_OUT_GRACE: Duration = Duration::from_secs(2);

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Serves the ticket from now on.
    pub(super) fn serve_ticket(&self, served: Arc<Served>) {
        let manager = self.clone();
        self.engine().tasks.spawn(async move {
            let draining = manager.draining();
            let steps = async {
                if manager.now() >= served.alone().until {
                    manager.exchange(std::slice::from_ref(&served), TICKET_SERVED, false).await;
                }
                manager.ticket_steps(&served).await;
            };
            tokio::select! {
                biased;
                () = draining.cancelled() => {}
                () = served.stop.cancelled() => {}
                () = Box::pin(steps) => {}
            }
            manager.shared.tickets.remove(&served);
        });
    }

    async fn ticket_steps(&self, served: &Served) {
        loop {
            let head = served.head();
            match head.phase {
                TicketPhase::Waiting => Box::pin(self.wait_for_grant(served, head)).await,
                TicketPhase::Granted if mutant::is(Mutant::TicketAcquiresAgain) && served.is_adopted => {
                    Box::pin(self.wait_for_grant(served, head)).await;
                }
                TicketPhase::Granted | TicketPhase::Accepted => Box::pin(self.watch_ticket_lease(served, head)).await,
                TicketPhase::Ended => Box::pin(self.finish_ticket(served, head)).await,
                TicketPhase::Done => return,
            }
            // A ticket that ended unserved counts until its receiver is informed.
            if !matches!(served.head().phase, TicketPhase::Waiting | TicketPhase::Ended) {
                drop(served.permit.lock().take());
            }
        }
    }

    /// The time that tickets refer to. Milliseconds since 1970.
    pub(super) fn ticket_now_ms(&self) -> u64 {
        self.shared.keeper.now_ms()
    }

    /// For several resources the id is made of the smallest name, so that their order does not matter.
    pub(super) fn ticket_id<'a>(
        &self,
        first: &'a ResourceName,
        others: impl IntoIterator<Item = &'a ResourceName>,
        token: &TokenHash,
    ) -> TicketId {
        let least = others.into_iter().fold(first, |least, name| least.min(name));
        TicketId::of(&self.engine().settings.params.cluster.get(), least, token)
    }

    /// Writes a state to a majority. False if a later state is known, or if it must be tried again.
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

    pub(super) async fn raise_on_nodes(&self, id: &TicketId, ticket: &Ticket, head: TicketHead) -> TicketRaised {
        let engine = self.engine();
        // The end of the lease may still be moved, up to the longest time from its grant.
        let ttl = engine.ticket_ttl(ticket, head).max(self.shared.tickets.limits().max_keep);
        let writer = TicketWriter { id, server: &self.shared.instance, ttl, due: TICKET_SERVED };
        let raised = engine.raise_ticket(&writer, head).await;
        // A grant that is not stored is undone, so its state must not be written later.
        let is_later = head.phase > TicketPhase::Granted;
        if let (true, TicketRaised::Unknown, Some(served)) = (is_later, raised, self.shared.tickets.get(id)) {
            let mut seen = served.seen.lock();
            seen.unsettled = seen.unsettled.max(Some(head));
        }
        raised
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
        let token = ticket.token.clone();
        let wanted = Wanted {
            party: Party::new(&labels.principal, &labels.owner),
            has_own_token: true,
            refuses_deadlock: ticket.body.refuses_deadlock,
            principal: None,
            keep: None,
            is_ticket: true,
        };
        let resources = ticket.resources().cloned().collect();
        let token_use = TokenUse::Again; // other instances serve it, too
        let params = AcquireParams { resources, token, ttl: ticket.ttl, labels, mode: ticket.mode, token_use };
        let asking = async {
            // The instance that served the ticket before may have acquired the lease: then the ticket does not block itself.
            let is_held = served.is_adopted && Box::pin(self.holds_all(ticket)).await;
            let (begun, until) = (self.now(), now.plus(left));
            let until = if is_held { begun } else { until };
            let mut asking = Box::pin(self.acquire_or_wait(&params, wanted, begun, until));
            poll_fn(|cx| {
                // The first poll enters the queue.
                let outcome = asking.as_mut().poll(cx);
                served.began.send_replace(true);
                outcome
            })
            .await
        };
        let attempt = self.while_alone(served, asking);
        let outcome = tokio::select! {
            biased;
            () = served.changed_from(head) => return,
            () = self.unchecked(served) => {
                // Another instance serves the ticket, or any instance that finds it due.
                served.stop.cancel();
                return std::future::pending().await;
            }
            () = self.unasked(served) => {
                self.raise(served, over(TicketEnd::Undelivered)).await;
                return;
            }
            outcome = attempt => outcome,
        };
        let (owner, took) = (ticket.body.labels.owner.as_str(), self.now().since(now));
        ticket.resources().for_each(|name| self.record_acquire((name, owner), &outcome, true, took));
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

    /// Whether the ticket's token holds all that the ticket asks for.
    async fn holds_all(&self, ticket: &Ticket) -> bool {
        let each = ticket.resources().map(|name| self.shared.waiting.holds(name, &ticket.token));
        join_all(each).await.into_iter().all(|is_held| is_held)
    }

    /// Watches a granted ticket's lease, which is kept until it is ended; a grant that is not accepted ends the ticket.
    async fn watch_ticket_lease(&self, served: &Served, head: TicketHead) {
        let is_offered = head.phase == TicketPhase::Granted;
        // The tries of a message continue while the lease is checked.
        let mut offer = Box::pin(self.offer_grant(served, head));
        let (mut announced_ms, mut announcement, mut promised_until) = (0, None, None);
        loop {
            let begun = self.now();
            let is_first = promised_until.is_none();
            let pause = match Box::pin(self.kept_ticket_lease(&served.ticket, head, is_first)).await {
                LeaseSeen::Gone => return Box::pin(self.ticket_lease_is_over(served, head)).await,
                // A try under way is awaited and counts while the lease, as last seen, is still promised.
                LeaseSeen::Unknown if promised_until.is_some_and(|until| self.now() < until) => RETRY,
                LeaseSeen::Unknown => return self.clock().sleep(RETRY).await,
                LeaseSeen::Stands(records, left) => {
                    promised_until = Some(begun.plus(left.saturating_sub(self.engine().terms().lock_delay)));
                    let kept_until_ms = records.iter().map(|record| record.labels().kept_until_ms).min().unwrap_or(0);
                    served.set_leases(records.iter().map(|record| (record.fence, record.mode)));
                    if std::mem::replace(&mut announced_ms, kept_until_ms) != kept_until_ms || announcement.is_none() {
                        announcement = Some(Box::pin(self.announce_end(served, head, kept_until_ms)));
                    }
                    self.lease_check_pause(kept_until_ms)
                }
            };
            let announcing = async {
                match announcement.as_mut() {
                    Some(announcement) => announcement.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = served.changed_from(head) => return,
                () = served.lease_has_ended() => return Box::pin(self.ticket_lease_is_over(served, head)).await,
                next = &mut offer, if is_offered => return Box::pin(self.end_offer(served, head, next)).await,
                () = self.unasked(served), if is_offered => {
                    let over = head.ended(TicketPhase::Ended, TicketEnd::Undelivered, self.ticket_now_ms());
                    return Box::pin(self.end_offer(served, head, over)).await;
                }
                () = announcing => {}
                () = self.clock().sleep(pause) => {}
            }
        }
    }

    /// Ends the offer of a grant that was accepted, or not accepted, at this instance. Another instance may have a
    /// newer state, so only a state that was just read is ended.
    async fn end_offer(&self, served: &Served, head: TicketHead, next: TicketHead) {
        if next.phase == TicketPhase::Ended && !self.read_served(served).await {
            return self.clock().sleep(RETRY).await;
        }
        if served.head() == head {
            self.raise(served, next).await;
        }
    }

    /// Time until the next check of a ticket's lease.
    fn lease_check_pause(&self, kept_until_ms: u64) -> Duration {
        let (now_ms, count) = (self.ticket_now_ms(), u32::try_from(self.shared.tickets.len()).unwrap_or(u32::MAX));
        let pause = LEASE_CHECK.max(Duration::from_secs(1).saturating_mul(count / LEASE_CHECKS_PER_SECOND));
        match kept_until_ms > now_ms {
            true => pause.min(Duration::from_millis(kept_until_ms - now_ms) + KEPT_OUT_GRACE),
            false => pause,
        }
    }

    /// Another instance may have stored the ticket's end, and released its lease: a read after the tombstone was seen counts.
    /// Cancel: some nodes may have the ticket's end, and leases may be released.
    pub(super) async fn ticket_lease_is_over(&self, served: &Served, head: TicketHead) {
        let ticket = &served.ticket;
        let ended = Box::pin(self.ticket_lease_end(&served.id, ticket, head)).await;
        let Some(ended) = ended else { return self.clock().sleep(RETRY).await };
        if !mutant::is(Mutant::TombstoneBelieved) && !self.read_served(served).await {
            return self.clock().sleep(RETRY).await;
        }
        if served.head() != head {
            return;
        }
        let over = over_for(ticket, head, ended.end, self.ticket_now_ms());
        if !self.may_be_over(ticket, over, &ended).await {
            self.clock().sleep(RETRY).await;
        } else if self.raise(served, over).await {
            self.report_lost(ticket, head, &ended);
            if over.phase == TicketPhase::Done {
                self.shared.tickets.report(TicketEvent::Ended(ended.end));
            }
        }
    }

    /// Finishes a ticket that is over: its lease is released, if it has one.
    async fn finish_ticket(&self, served: &Served, head: TicketHead) {
        let is_released = match head.end {
            // The instance that stored this end reports the loss.
            Some(TicketEnd::Lost) => self.rest_is_released(&served.ticket, false).await,
            _ => self.release_ticket_lease(&served.ticket).await,
        };
        if is_released {
            self.inform_of_end(served, head).await;
            let over = head.at(TicketPhase::Done, self.ticket_now_ms());
            if self.raise(served, over).await
                && let Some(end) = over.end
            {
                self.shared.tickets.report(TicketEvent::Ended(end));
            }
        } else {
            self.clock().sleep(RETRY).await;
        }
    }

    /// Resolves when no request about the ticket has come for [`UNASKED_MAX`]; never for a ticket with a call-back.
    async fn unasked(&self, served: &Served) {
        if served.ticket.body.callback.is_some() {
            return std::future::pending().await;
        }
        let most_ms = unasked_max_ms();
        loop {
            let silent_ms = self.ticket_now_ms().saturating_sub(served.seen.lock().asked_ms);
            if silent_ms >= most_ms {
                return;
            }
            self.clock().sleep(Duration::from_millis(most_ms - silent_ms)).await;
        }
    }

    /// Records that a lease has ended, as this instance knows: if it is a ticket's lease, the ticket ends as well.
    pub(in crate::manager) fn ticket_lease_ended(&self, resource: &ResourceName, token: &TokenHash, end: TicketEnd) {
        if let Some(served) = self.shared.tickets.with_lease(resource, token) {
            served.lease_ended(end);
        }
    }
}

pub(super) fn unasked_max_ms() -> u64 {
    u64::try_from(UNASKED_MAX.as_millis()).unwrap_or(u64::MAX)
}
