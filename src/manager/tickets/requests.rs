//! What HTTP handlers ask of tickets: make one, show it, change its end, end it.

use std::sync::Arc;
use std::time::Duration;

use super::serve::LeaseSeen;
use super::table::{Served, TicketLimits, TicketListener, TicketNews, phase_word};
use crate::auth::principal::Principal;
use crate::auth::quota::QuotaPermit;
use crate::manager::acquire::principal_tag;
use crate::manager::service::LockManager;
use crate::manager::types::{ExtendError, NoQuorum};
use crate::protocol::{TICKET_SERVED, Ticket, TicketEnd, TicketHead, TicketId, TicketPhase, TicketTerms, TicketsArgs};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::entropy::Entropy;
use crate::redlock::extend::ExtendParams;
use crate::redlock::node::Node;
use crate::redlock::tickets::{TicketFound, TicketRaised, TicketWriter};
use crate::types::{Fence, Labels, ResourceName, Token, TokenHash, Ttl};

/// How often the nodes are asked for a ticket that another instance serves, while somebody waits for it here.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the nodes are informed that somebody waits for a ticket.
const ASKED_EVERY: Duration = Duration::from_secs(20);

/// How long a new ticket is waited for to stand in its queue, so that its position is known.
const ENTERED_WITHIN: Duration = Duration::from_secs(1);

/// Asks for a ticket.
#[derive(Debug, Clone)]
pub struct TicketRequest {
    /// What is to be protected.
    pub resource: ResourceName,
    /// TTL of the lease.
    pub ttl: Ttl,
    /// For how long to wait.
    pub wait: Duration,
    /// For how long after the grant the lease is kept.
    pub keep: Duration,
    /// Shown to people.
    pub labels: Labels,
    /// Of the lease.
    pub token: Token,
    /// It ends if it is the newest in a deadlock.
    pub refuses_deadlock: bool,
    /// Who asks; `None` without authentication.
    pub principal: Option<Arc<Principal>>,
    /// Counts it in the principal's quota while it waits.
    pub permit: Option<Arc<QuotaPermit>>,
}

/// A ticket on a majority of nodes.
#[derive(Debug, Clone)]
pub struct FoundTicket {
    /// Its name.
    pub id: TicketId,
    /// What it asks for.
    pub ticket: Ticket,
    /// Its state.
    pub head: TicketHead,
}

impl FoundTicket {
    /// The word of its state.
    pub fn state(&self) -> &'static str {
        phase_word(self.head.phase)
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self.head.phase, TicketPhase::Ended | TicketPhase::Done)
    }

    /// Whether this token is its own.
    pub fn is_of(&self, token: &TokenHash) -> bool {
        self.ticket.token == *token
    }
}

/// A ticket's lease, as far as it is promised now.
#[derive(Debug, Clone)]
pub struct TicketLease {
    /// Its fence.
    pub fence: Fence,
    /// Time left that is promised.
    pub valid_for: Duration,
    /// Until when the service renews it. Milliseconds since 1970.
    pub kept_until_ms: u64,
    /// The same from now on.
    pub kept_for: Duration,
    /// As on the nodes now.
    pub labels: Labels,
}

/// Why there is no ticket, or none was shown or changed.
#[derive(Debug, Clone)]
pub enum TicketError {
    /// No majority has such a ticket.
    NotFound,
    /// It still waits.
    Waiting,
    /// It is over.
    Over(TicketEnd),
    /// This instance serves as many as it may.
    TooMany(usize),
    /// Shutting down.
    Draining,
    /// Too few nodes answered; nothing is known to have changed.
    NoQuorum(NoQuorum),
    /// Its lease would be kept for too long, or too many are kept here.
    Keep(ExtendError),
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Sets the limits of tickets, and who is called with [`TicketNews`]. Only the first call counts.
    pub fn set_tickets(&self, limits: TicketLimits, listener: TicketListener) {
        self.shared.tickets.set(limits, listener);
    }

    /// How many tickets this instance serves, by state: waiting, granted, accepted, ended.
    pub fn ticket_counts(&self) -> [usize; 5] {
        self.shared.tickets.counts()
    }

    /// A token for a request without one.
    pub fn new_token(&self) -> Token {
        self.entropy().token()
    }

    /// Makes a ticket, or finds the one that this token has. Stored on a majority when this returns.
    ///
    /// Cancel: if a majority has it, some instance serves it until nobody has asked for it for a minute.
    pub async fn make_ticket(&self, request: TicketRequest) -> Result<FoundTicket, TicketError> {
        let limits = self.shared.tickets.limits();
        if self.draining().is_cancelled() {
            return Err(TicketError::Draining);
        }
        if self.shared.tickets.len() >= limits.total {
            return Err(TicketError::TooMany(limits.total));
        }
        let full = self.shared.waiting.queue(|queue| {
            let limits = queue.limits();
            match () {
                () if queue.total_waiters() >= limits.total => Some(limits.total),
                () if queue.waiter_count(&request.resource) >= limits.per_resource => Some(limits.per_resource),
                () => None,
            }
        });
        if let Some(limit) = full {
            return Err(TicketError::TooMany(limit));
        }
        let TicketRequest { resource, ttl, wait, keep, mut labels, token, refuses_deadlock, principal, permit } =
            request;
        labels.principal = principal_tag(&self.engine().settings.params.cluster.get(), principal.as_deref());
        let (made_ms, token) = (self.ticket_now_ms(), token.hash());
        let ms = |period: Duration| u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let (keep_ms, wait_until_ms) = (ms(keep), made_ms.saturating_add(ms(wait)));
        let id = self.ticket_id(&resource, &token);
        let terms = TicketTerms { labels, keep_ms, made_ms, wait_until_ms, refuses_deadlock };
        let ticket = Ticket::new(resource, token, ttl, terms);
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
                        self.shared.tickets.report(TicketNews::Made);
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
                // Nobody was answered: where a majority may have it all the same, it is given up.
                let over = head.ended(TicketPhase::Ended, TicketEnd::Cancelled, made_ms);
                self.raise_on_nodes(&id, &ticket, over).await;
                Err(self.ticket_no_quorum())
            }
        }
    }

    fn ticket_no_quorum(&self) -> TicketError {
        TicketError::NoQuorum(self.no_quorum(0, Vec::new()))
    }

    /// Finds a ticket.
    pub async fn find_ticket(&self, id: &TicketId) -> Result<FoundTicket, TicketError> {
        match self.find_on_nodes(id).await {
            TicketFound::Known(ticket, head) => Ok(FoundTicket { id: id.clone(), ticket, head }),
            TicketFound::Absent => Err(TicketError::NotFound),
            TicketFound::Unknown => Err(self.ticket_no_quorum()),
        }
    }

    /// The ticket of a request with this token.
    pub async fn find_ticket_of(&self, resource: &ResourceName, token: &TokenHash) -> Result<FoundTicket, TicketError> {
        self.find_ticket(&self.ticket_id(resource, token)).await
    }

    /// Whether this principal made the ticket. Without authentication everybody has.
    pub fn has_made(&self, found: &FoundTicket, principal: Option<&Principal>) -> bool {
        found.ticket.body.labels.principal == principal_tag(&self.engine().settings.params.cluster.get(), principal)
    }

    /// Its position in this instance's queue; `None` where it stands in none.
    pub fn ticket_position(&self, found: &FoundTicket) -> Option<usize> {
        let (resource, token) = (&found.ticket.resource, &found.ticket.token);
        self.shared.waiting.queue(|queue| queue.position_of(resource, token))
    }

    /// Its caller has asked for it.
    async fn ask_for_ticket(&self, id: &TicketId) {
        let asked_ms = self.ticket_now_ms();
        match self.shared.tickets.get(id) {
            Some(served) => served.asked(asked_ms),
            None => {
                let (instance, asked) = (self.shared.instance.clone(), vec![(id.clone(), asked_ms)]);
                // What is due stays so for whoever serves it.
                let (served, takes_due) = (Vec::new(), false);
                let args = TicketsArgs { instance, serve: TICKET_SERVED, served, asked, takes_due };
                self.engine().exchange_tickets(args).await;
            }
        }
    }

    /// Waits for its caller until it waits no more, at most until `until`.
    ///
    /// Cancel: it keeps its place.
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

    /// Its caller is about to learn that it is granted. Returns it as it is then.
    pub async fn accept_ticket(&self, found: FoundTicket) -> Result<FoundTicket, TicketError> {
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

    /// The lease of a ticket that is granted; where it has ended, the ticket is over.
    pub async fn ticket_lease(&self, found: FoundTicket) -> Result<(FoundTicket, Option<TicketLease>), TicketError> {
        if !matches!(found.head.phase, TicketPhase::Granted | TicketPhase::Accepted) {
            return Ok((found, None));
        }
        match Box::pin(self.kept_ticket_lease(&found.ticket, found.head)).await {
            LeaseSeen::Stands(record, left) => {
                let labels = record.labels();
                let valid_for = left.saturating_sub(self.engine().settings.params.lock_delay);
                let kept_for = Duration::from_millis(labels.kept_until_ms.saturating_sub(self.ticket_now_ms()));
                let (fence, kept_until_ms) = (record.fence, labels.kept_until_ms);
                Ok((found, Some(TicketLease { fence, valid_for, kept_until_ms, kept_for, labels })))
            }
            LeaseSeen::Unknown => Err(self.ticket_no_quorum()),
            LeaseSeen::Gone => {
                let end = Box::pin(self.ticket_lease_end(&found.ticket, found.head)).await;
                let end = end.ok_or_else(|| self.ticket_no_quorum())?;
                let over = found.head.ended(TicketPhase::Done, end, self.ticket_now_ms());
                let head = match self.raise_on_nodes(&found.id, &found.ticket, over).await {
                    TicketRaised::Done => over,
                    TicketRaised::Overtaken(later) => later,
                    TicketRaised::Unknown => return Err(self.ticket_no_quorum()),
                };
                self.note_state(&found.id, head);
                Ok((FoundTicket { head, ..found }, None))
            }
        }
    }

    /// Gives its lease another end, from now on.
    pub async fn keep_ticket(&self, found: &FoundTicket, kept_for: Duration) -> Result<(), TicketError> {
        if found.head.phase == TicketPhase::Waiting {
            return Err(TicketError::Waiting);
        }
        let (found, lease) = self.ticket_lease(found.clone()).await?;
        let Some(lease) = lease else { return Err(TicketError::Over(found.head.end.unwrap_or(TicketEnd::Lost))) };
        let mut labels = lease.labels;
        self.set_kept_until(&mut labels, kept_for).map_err(TicketError::Keep)?;
        let Ticket { resource, token, ttl, .. } = found.ticket;
        if !self.shared.keeper.index(&resource).await {
            return Err(self.ticket_no_quorum());
        }
        let extension = ExtendParams {
            resource: resource.clone(),
            token,
            ttl: Some(ttl),
            until_ms: labels.kept_until_ms,
            fence: Some(lease.fence),
            labels: Some(labels.encode()),
        };
        match self.engine().extend(&extension).await {
            Ok(extended) => {
                self.shared.keeper.keep(&resource, &extended.record, extended.deadline);
                Ok(())
            }
            Err(_) => Err(self.ticket_no_quorum()),
        }
    }

    /// Ends it at its caller's or an operator's word: gives it up, or releases its lease. Nothing is left of it when this
    /// returns.
    ///
    /// Cancel: some instance ends it.
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
                // It was granted, or accepted, meanwhile.
                TicketRaised::Overtaken(later) if later.end.is_none() => head = later,
                TicketRaised::Overtaken(later) => return Err(TicketError::Over(later.end.unwrap_or(end))),
                TicketRaised::Unknown => return Err(self.ticket_no_quorum()),
            }
        }
        if !self.release_ticket_lease(&found.ticket).await {
            return Err(self.ticket_no_quorum());
        }
        let done = head.at(TicketPhase::Done, self.ticket_now_ms());
        if self.raise_on_nodes(&found.id, &found.ticket, done).await == TicketRaised::Done {
            self.shared.tickets.report(TicketNews::Ended(end));
            self.note_state(&found.id, done);
        }
        Ok(end)
    }
}
