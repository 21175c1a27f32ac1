//! Requests of HTTP handlers about tickets: make a ticket, show it, change its end, end it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::callbacks::{message_of_end, over};
use super::lease::LeaseSeen;
use super::table::{Served, TicketEvent, TicketLimits, TicketListener, TicketQuota, TicketSender};
use super::types::{AskedTerms, FoundTicket, TicketError, TicketLease, TicketRequest};
use crate::auth::principal::Principal;
use crate::manager::acquire::principal_tag;
use crate::manager::callbacks::{Callback, CallbackRefused};
use crate::manager::service::LockManager;
use crate::manager::types::LeaseOutcome;
use crate::mutant::{self, Mutant};
use crate::protocol::{
    LeaseRecord, TICKET_MAX_BYTES, TICKET_SERVED, Ticket, TicketCallback, TicketEnd, TicketHead, TicketId, TicketPhase,
    TicketTerms, TicketsArgs, ticket_bytes,
};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::tickets::{TicketFound, TicketRaised, TicketWriter};
use crate::types::{ResourceName, Token, TokenHash};

/// How often the nodes are asked for a ticket that another instance serves, while a caller waits for it here.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the nodes are informed that a caller waits for a ticket.
const ASKED_EVERY: Duration = Duration::from_secs(20);

/// How long to wait for a new ticket to enter its queue, so that its position is known.
const ENTERED_WITHIN: Duration = Duration::from_secs(1);

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Sets the limits of tickets, and the listener for each [`TicketEvent`]. Only the first call counts.
    pub fn set_tickets(&self, limits: TicketLimits, listener: TicketListener) {
        self.shared.tickets.set(limits, listener);
    }

    /// Sets the sender of call-backs; without it no address is accepted. Only the first call counts.
    pub fn set_callbacks(&self, sender: TicketSender) {
        self.shared.tickets.set_sender(sender);
    }

    /// Sets the function that counts taken-over tickets in quotas. Only the first call counts.
    pub fn set_ticket_quota(&self, quota: TicketQuota) {
        self.shared.tickets.set_quota(quota);
    }

    /// Checks the address of a request. Errors: [`CallbackRefused`].
    pub fn resolve_callback(&self, address: &str, principal: Option<&Principal>) -> Result<Callback, CallbackRefused> {
        match self.shared.tickets.sender() {
            Some(sender) => sender.resolve(address, principal.map(|principal| &principal.name)),
            None => Err(CallbackRefused::NotAllowed("this instance sends no call-backs".to_owned())),
        }
    }

    /// The call-back as it is stored with the ticket.
    fn stored_callback(
        &self,
        id: &TicketId,
        (callback, accept): (Callback, Duration),
    ) -> Result<TicketCallback, TicketError> {
        let sealed = self.shared.tickets.sender().map(|sender| sender.seal(&callback, id.as_str()));
        let sealed = sealed.transpose().map_err(TicketError::Callback)?.flatten();
        let accept_ms = u64::try_from(accept.as_millis()).unwrap_or(u64::MAX);
        Ok(TicketCallback { target: callback.target().to_owned(), sealed, accept_ms })
    }

    /// How many tickets this instance serves, by state: waiting, granted, accepted, ended.
    pub fn ticket_counts(&self) -> [usize; 5] {
        self.shared.tickets.counts()
    }

    /// A token for a request without one.
    pub fn new_token(&self) -> Token {
        self.entropy().token()
    }

    /// Makes a ticket, or finds this token's ticket. It is stored on a majority when this returns.
    ///
    /// Cancel: if a majority has it, some instance serves it until no request about it has come for a minute.
    pub async fn make_ticket(&self, request: TicketRequest) -> Result<FoundTicket, TicketError> {
        let limits = self.shared.tickets.limits();
        if self.draining().is_cancelled() {
            return Err(TicketError::Draining);
        }
        if self.shared.tickets.len() >= limits.total {
            return Err(TicketError::TooMany { limit: limits.total, per_resource: false });
        }
        let full = self.shared.waiting.queue(|queue| {
            let limits = queue.limits();
            match () {
                () if queue.total_waiters() >= limits.total => Some((limits.total, false)),
                () if request.resources().any(|name| queue.waiter_count(name) >= limits.per_resource) => {
                    Some((limits.per_resource, true))
                }
                () => None,
            }
        });
        if let Some((limit, per_resource)) = full {
            return Err(TicketError::TooMany { limit, per_resource });
        }
        let TicketRequest { resource, others, terms, mut labels, token, principal, callback, permit } = request;
        let AskedTerms { ttl, wait, keep, mode, refuses_deadlock } = terms;
        labels.principal = principal_tag(&self.engine().settings.params.cluster.get(), principal.as_deref());
        let (made_ms, token) = (self.ticket_now_ms(), token.hash());
        let ms = |period: Duration| u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let (keep_ms, wait_until_ms) = (ms(keep), made_ms.saturating_add(ms(wait)));
        let id = self.ticket_id(&resource, &others, &token);
        let callback = callback.map(|callback| self.stored_callback(&id, callback)).transpose()?;
        let terms = TicketTerms { labels, keep_ms, made_ms, wait_until_ms, refuses_deadlock, mode, callback };
        let ticket = Ticket::new(resource, token, ttl, terms).with_others(others);
        check_length(&ticket)?;
        let head = TicketHead::waiting(made_ms);
        let ttl = self.engine().ticket_ttl(&ticket, head);
        let writer = TicketWriter { id: &id, server: &self.shared.instance, ttl, due: TICKET_SERVED };
        match self.engine().put_ticket(&writer, &ticket, head).await {
            TicketFound::Known(stored, found) => {
                if stored == ticket && found == head {
                    let served = Served::new(id.clone(), stored.clone(), found, self.seen_now(), false);
                    *served.permit.lock() = permit;
                    let served = Arc::new(served);
                    if self.shared.tickets.add(&served) {
                        self.shared.tickets.report(TicketEvent::Made);
                        self.serve_ticket(Arc::clone(&served));
                        let (mut began, slow) = (served.began.subscribe(), self.clock().sleep(ENTERED_WITHIN));
                        tokio::select! {
                            biased;
                            _ = began.wait_for(|began| *began) => {}
                            () = served.stop.cancelled() => {}
                            () = slow => {}
                        }
                    }
                }
                Ok(FoundTicket { id, ticket: stored, head: found })
            }
            TicketFound::Absent | TicketFound::Unknown => {
                // No caller was answered: if a majority may still have the ticket, it is given up.
                let over = head.ended(TicketPhase::Ended, TicketEnd::Cancelled, made_ms);
                self.raise_on_nodes(&id, &ticket, over).await;
                Err(self.ticket_no_quorum())
            }
        }
    }

    fn ticket_no_quorum(&self) -> TicketError {
        let voting = self.nodes().iter().filter(|node| node.votes).count();
        TicketError::NoQuorum(self.no_quorum(voting, Vec::new()))
    }

    /// Finds a ticket on a majority of the nodes.
    pub async fn find_ticket(&self, id: &TicketId) -> Result<FoundTicket, TicketError> {
        let mut found = self.find_on_nodes(id).await;
        if matches!(found, TicketFound::Unknown) {
            // Another request may have raised the ticket's state meanwhile.
            found = self.find_on_nodes(id).await;
        }
        match found {
            TicketFound::Known(ticket, head) => Ok(FoundTicket { id: id.clone(), ticket, head }),
            TicketFound::Absent => Err(TicketError::NotFound),
            TicketFound::Unknown => Err(self.ticket_no_quorum()),
        }
    }

    /// The ticket of a request with this token.
    pub async fn find_ticket_of(
        &self,
        resources: &[ResourceName],
        token: &TokenHash,
    ) -> Result<FoundTicket, TicketError> {
        let (first, others) = resources.split_first().ok_or(TicketError::NotFound)?;
        self.find_ticket(&self.ticket_id(first, others, token)).await
    }

    /// Whether this principal made the ticket. Always true without authentication.
    pub fn has_made(&self, found: &FoundTicket, principal: Option<&Principal>) -> bool {
        found.ticket.body.labels.principal == principal_tag(&self.engine().settings.params.cluster.get(), principal)
    }

    /// The ticket's position in this instance's queue; `None` if it is in no queue.
    pub fn ticket_position(&self, found: &FoundTicket) -> Option<usize> {
        let (resource, token) = (&found.ticket.resource, &found.ticket.token);
        // For several resources, the position in the first resource's queue.
        self.shared.waiting.queue(|queue| queue.position_of(resource, token))
    }

    /// Records that the ticket's caller has asked for it.
    async fn ask_for_ticket(&self, id: &TicketId) {
        let asked_ms = self.ticket_now_ms();
        match self.shared.tickets.get(id) {
            Some(served) => served.asked(asked_ms),
            None => {
                let (instance, asked) = (self.shared.instance.clone(), vec![(id.clone(), asked_ms)]);
                // Due tickets stay due for the instance that serves them.
                let (served, takes_due) = (Vec::new(), false);
                let args = TicketsArgs { instance, serve: TICKET_SERVED, served, asked, takes_due };
                self.engine().exchange_tickets(args).await;
            }
        }
    }

    /// Waits on behalf of the caller until the ticket no longer waits, at most until `until`.
    ///
    /// Cancel: the ticket keeps its place.
    pub async fn await_ticket(&self, mut found: FoundTicket, until: BootTime) -> Result<FoundTicket, TicketError> {
        let draining = self.draining();
        let mut asked = None::<BootTime>;
        loop {
            let now = self.now();
            if asked.is_none_or(|asked| now.since(asked) >= ASKED_EVERY) {
                self.ask_for_ticket(&found.id).await;
                asked = Some(now);
            }
            if found.head.phase != TicketPhase::Waiting || now >= until || draining.is_cancelled() {
                return Ok(found);
            }
            let served = self.shared.tickets.get(&found.id);
            let pause = if served.is_some() { ASKED_EVERY } else { LOOK_EVERY };
            tokio::select! {
                biased;
                () = draining.cancelled() => {}
                () = async { match &served {
                    Some(served) => served.changed_from(found.head).await,
                    None => std::future::pending().await,
                } } => {}
                () = self.clock().sleep_until(until.min(now.plus(pause))) => {}
            }
            found = match served {
                Some(served) => FoundTicket { head: served.head().max(found.head), ..found },
                None => self.find_ticket(&found.id).await?,
            };
        }
    }

    /// Accepts a ticket whose caller is about to learn of the grant, and returns it. A grant offered to a receiver of
    /// call-backs is accepted only by that receiver: a reader of such a ticket may not be the one that waits for it.
    pub async fn accept_ticket(&self, found: FoundTicket) -> Result<FoundTicket, TicketError> {
        match found.ticket.body.callback {
            Some(_) => Ok(found),
            None => self.accept(found).await,
        }
    }

    /// Accepts the ticket if it is granted.
    async fn accept(&self, found: FoundTicket) -> Result<FoundTicket, TicketError> {
        if found.head.phase != TicketPhase::Granted {
            return Ok(found);
        }
        let head = found.head.at(TicketPhase::Accepted, self.ticket_now_ms());
        match self.raise_on_nodes(&found.id, &found.ticket, head).await {
            TicketRaised::Done => {
                self.note_state(&found.id, head);
                Ok(found)
            }
            TicketRaised::Overtaken(head) => Ok(FoundTicket { head, ..found }),
            TicketRaised::Unknown => Err(self.ticket_no_quorum()),
        }
    }

    fn note_state(&self, id: &TicketId, head: TicketHead) {
        if let Some(served) = self.shared.tickets.get(id) {
            served.set(head);
        }
    }

    /// The lease of a granted ticket; if it has ended, the ticket is over.
    pub async fn ticket_lease(&self, found: FoundTicket) -> Result<(FoundTicket, Option<TicketLease>), TicketError> {
        if !matches!(found.head.phase, TicketPhase::Granted | TicketPhase::Accepted) {
            return Ok((found, None));
        }
        match Box::pin(self.kept_ticket_lease(&found.ticket, found.head, false)).await {
            LeaseSeen::Stands(records, left) => {
                let valid_for = left.saturating_sub(self.engine().terms().lock_delay);
                let ends = records.iter().map(LeaseRecord::labels);
                let Some(labels) = ends.min_by_key(|labels| labels.kept_until_ms) else {
                    return Err(self.ticket_no_quorum());
                };
                let kept_until_ms = labels.kept_until_ms;
                let kept_for = Duration::from_millis(kept_until_ms.saturating_sub(self.ticket_now_ms()));
                let fences = records.iter().map(|record| record.fence).collect();
                let slot = records.first().and_then(|record| record.mode.slot());
                Ok((found, Some(TicketLease { fences, slot, valid_for, kept_until_ms, kept_for, labels })))
            }
            LeaseSeen::Unknown => Err(self.ticket_no_quorum()),
            LeaseSeen::Gone => {
                let ended = Box::pin(self.ticket_lease_end(&found.id, &found.ticket, found.head)).await;
                let ended = ended.ok_or_else(|| self.ticket_no_quorum())?;
                // Read after the tombstone was seen, as in `ticket_lease_is_over`.
                let found = self.find_ticket(&found.id).await?;
                if found.is_over() {
                    return Ok((found, None));
                }
                let over = over(&found.ticket, found.head, ended.end, self.ticket_now_ms());
                if !self.may_be_over(&found.ticket, over, &ended).await {
                    return Err(self.ticket_no_quorum());
                }
                let head = match self.raise_on_nodes(&found.id, &found.ticket, over).await {
                    TicketRaised::Done => {
                        self.report_lost(&found.ticket, found.head, &ended);
                        over
                    }
                    TicketRaised::Overtaken(later) => later,
                    TicketRaised::Unknown => return Err(self.ticket_no_quorum()),
                };
                self.note_state(&found.id, head);
                Ok((FoundTicket { head, ..found }, None))
            }
        }
    }

    /// Gives the ticket's lease another end, from now on. A caller that does so to its own ticket works under the lease, so
    /// this accepts the grant: even if the receiver's 2xx was lost, and the receiver can be called only once.
    pub async fn keep_ticket(&self, found: &FoundTicket, kept_for: Duration, is_own: bool) -> Result<(), TicketError> {
        if found.head.phase == TicketPhase::Waiting {
            return Err(TicketError::Waiting);
        }
        let over = |found: &FoundTicket| TicketError::Over(found.head.end.unwrap_or(TicketEnd::Lost));
        let (mut found, lease) = self.ticket_lease(found.clone()).await?;
        let Some(lease) = lease else { return Err(over(&found)) };
        let mut labels = lease.labels;
        self.set_kept_until(&mut labels, kept_for).map_err(TicketError::Keep)?;
        if is_own && !mutant::is(Mutant::KeepAcceptsNothing) {
            found = self.accept(found).await?;
        }
        if found.is_over() {
            return Err(over(&found));
        }
        let each = found.ticket.resources().zip(&lease.fences);
        let each = each.map(|(name, fence)| Box::pin(self.keep_lease_of(&found.ticket, (name, *fence), &labels)));
        match join_all(each).await.into_iter().all(|is_kept| is_kept) {
            true => Ok(()),
            // The lease may have ended meanwhile: then the cause is not a lack of votes.
            false => match Box::pin(self.ticket_lease(self.find_ticket(&found.id).await?)).await? {
                (found, None) => Err(over(&found)),
                (_, Some(_)) => Err(self.ticket_no_quorum()),
            },
        }
    }

    /// Ends the ticket for its caller or an operator: gives it up, or releases its lease. Nothing is left of it when
    /// this returns.
    ///
    /// Cancel: some instance ends the ticket.
    pub async fn end_ticket(&self, found: &FoundTicket, is_forced: bool) -> Result<TicketEnd, TicketError> {
        let end = match found.head.phase {
            TicketPhase::Ended | TicketPhase::Done => {
                return Err(TicketError::Over(found.head.end.unwrap_or(TicketEnd::Lost)));
            }
            TicketPhase::Waiting => TicketEnd::Cancelled,
            TicketPhase::Granted | TicketPhase::Accepted if is_forced => TicketEnd::Forced,
            TicketPhase::Granted | TicketPhase::Accepted => TicketEnd::Released,
        };
        let mut head = found.head;
        loop {
            let over = head.ended(TicketPhase::Ended, end, self.ticket_now_ms());
            match self.raise_on_nodes(&found.id, &found.ticket, over).await {
                TicketRaised::Done => break head = over,
                // The ticket was granted, or accepted, meanwhile.
                TicketRaised::Overtaken(later) if later.end.is_none() => head = later,
                TicketRaised::Overtaken(later) => return Err(TicketError::Over(later.end.unwrap_or(end))),
                TicketRaised::Unknown => {
                    let now = self.find_ticket(&found.id).await?;
                    return Err(match now.head.end {
                        Some(end) if now.head != over => TicketError::Over(end),
                        _ => self.ticket_no_quorum(),
                    });
                }
            }
        }
        let reason = if end == TicketEnd::Forced { LeaseOutcome::Forced } else { LeaseOutcome::Released };
        if !self.end_ticket_lease(&found.ticket, reason).await {
            return Err(self.ticket_no_quorum());
        }
        self.note_state(&found.id, head);
        if message_of_end(&found.ticket, head).is_some() {
            // The instance that serves it informs the receiver.
            return Ok(end);
        }
        let done = head.at(TicketPhase::Done, self.ticket_now_ms());
        if self.raise_on_nodes(&found.id, &found.ticket, done).await == TicketRaised::Done {
            self.shared.tickets.report(TicketEvent::Ended(end));
            self.note_state(&found.id, done);
        }
        Ok(end)
    }
}

/// Errors: too long to be stored; nothing was written. Names and call-back have limits of their own; labels may be long.
pub(super) fn check_length(ticket: &Ticket) -> Result<(), TicketError> {
    let body = ticket.encode().unwrap_or_default();
    if ticket_bytes(&body) <= TICKET_MAX_BYTES {
        return Ok(());
    }
    let (labels, callback) = (&ticket.body.labels, ticket.body.callback.as_ref());
    let stored = |value: &str| serde_json::to_string(value).map_or(0, |text| text.len());
    let parts = [
        ("metadata", serde_json::to_string(&labels.metadata).map_or(0, |text| text.len())),
        ("note", stored(&labels.note)),
        ("owner", stored(&labels.owner)),
        ("callback", callback.and_then(|callback| callback.sealed.as_ref()).map_or(0, String::len)),
        ("resource", ticket.resources().map(|name| name.to_string().len()).sum()),
    ];
    let (field, _) = parts.into_iter().max_by_key(|(_, bytes)| *bytes).unwrap_or_default();
    Err(TicketError::TooLarge { field, bytes: ticket_bytes(&body) })
}
