//! Exchanges tickets between instances, through the nodes: each instance reports which tickets it serves, takes over
//! those that no instance serves, and receives states that others have written.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;

use super::table::{Seen, Served, TicketEvent};
use crate::manager::service::LockManager;
use crate::mutant::{self, Mutant};
use crate::protocol::{TICKET_SERVED, TICKETS_PAGE_MAX, Ticket, TicketHead, TicketId, TicketPhase, TicketsArgs};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::tickets::{ShownTicket, TicketFound, TicketRaised, TicketsShown};

/// Time between two exchanges.
const TICK: Duration = Duration::from_secs(1);
/// How often an instance reports that it serves a ticket.
const EXCHANGE_EVERY: Duration = Duration::from_millis(2_500);
/// An instance does not acquire for a ticket if no majority of the nodes has shown it for this time that the ticket still
/// waits: less than [`TOKEN_TOMBSTONE`](crate::protocol::TOKEN_TOMBSTONE) and the age of an attempt that nodes accept.
const UNCHECKED_MAX: Duration = Duration::from_secs(20);
/// For how long after the start of an exchange no other instance is the ticket's server on a majority: less than
/// [`TICKET_SERVED`] by the time that a request may be late and nodes' clocks may be set forward.
const ALONE_FOR: Duration = Duration::from_secs(6);
/// If no instance is the server on a majority, each instance that serves the ticket gives that up in one of this many exchanges.
const YIELDS_ONE_IN: u64 = 4;
/// A ticket that a node lacks is stored there again at most this often.
const PUT_BACK_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of tickets that one exchange reads; the next exchange continues.
const READS_MAX: usize = 512;
/// Maximum number of these at a time.
const CONCURRENT_READS: usize = 16;

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Exchanges tickets with the nodes, until the drain.
    ///
    /// Cancel: other instances serve the tickets after [`TICKET_SERVED`].
    pub async fn run_tickets(self) {
        let draining = self.draining();
        loop {
            tokio::select! {
                biased;
                () = draining.cancelled() => return self.hand_tickets_over().await,
                () = self.clock().sleep(TICK) => {}
            }
            tokio::select! {
                biased;
                () = draining.cancelled() => {}
                () = Box::pin(self.look_at_tickets()) => {}
            }
        }
    }

    async fn look_at_tickets(&self) {
        let now = self.now();
        let mut served = self.shared.tickets.all();
        served.retain(|ticket| {
            let is_ending = || ticket.alone().until <= now.plus(EXCHANGE_EVERY);
            now.since(ticket.seen.lock().exchanged) >= EXCHANGE_EVERY
                || ticket.head().phase == TicketPhase::Waiting && is_ending()
        });
        let (mut to_read, mut yielded, mut due) = (Vec::new(), Vec::new(), Vec::new());
        let mut pages: Vec<&[Arc<Served>]> = served.chunks(TICKETS_PAGE_MAX).collect();
        if pages.is_empty() {
            pages.push(&[]);
        }
        for page in pages {
            let TicketsShown { named, due: more } = self.exchange(page, TICKET_SERVED, true).await;
            due.extend(more);
            for (served, shown) in page.iter().zip(named) {
                if self.is_to_be_read(served, shown) {
                    to_read.push(Arc::clone(served));
                } else if self.is_to_be_yielded(served, shown) {
                    yielded.push(Arc::clone(served));
                }
            }
        }
        for page in yielded.chunks(TICKETS_PAGE_MAX) {
            page.iter().for_each(|served| served.stop.cancel());
            self.exchange(page, Duration::ZERO, false).await;
        }
        to_read.truncate(READS_MAX);
        let reads = to_read.iter().map(|served| async move { _ = self.read_served(served).await });
        futures_util::stream::iter(reads).for_each_concurrent(CONCURRENT_READS, |read| read).await;
        due.retain(|id| self.shared.tickets.get(id).is_none());
        due.sort_unstable();
        due.dedup();
        due.truncate(READS_MAX);
        self.adopt_tickets(due).await;
    }

    /// `takes_due`: the caller serves the due tickets.
    pub(super) async fn exchange(&self, page: &[Arc<Served>], serve: Duration, takes_due: bool) -> TicketsShown {
        let served = page.iter().map(|ticket| (ticket.id.clone(), ticket.seen.lock().asked_ms)).collect();
        let instance = self.shared.instance.clone();
        let begun = self.now();
        let args = TicketsArgs { instance, serve, served, asked: Vec::new(), takes_due };
        let shown = self.engine().exchange_tickets(args).await;
        for (ticket, shown) in page.iter().zip(&shown.named) {
            ticket.seen.lock().exchanged = begun;
            if shown.head.is_some_and(|head| head > ticket.head()) {
                ticket.is_not_alone(begun);
            } else if shown.is_own >= self.engine().quorum() && !serve.is_zero() {
                ticket.is_alone_for(begun, ALONE_FOR);
            }
        }
        shown
    }

    /// Handles what the nodes show of a ticket that this instance serves. Returns whether to read the ticket.
    fn is_to_be_read(&self, served: &Arc<Served>, shown: ShownTicket) -> bool {
        if shown.is_others >= self.engine().quorum() {
            // This instance was silent for too long.
            served.stop.cancel();
            return false;
        }
        served.asked(shown.asked_ms.min(self.ticket_now_ms()));
        let now = self.now();
        let is_later = shown.head.is_some_and(|head| head > served.head());
        let mut seen = served.seen.lock();
        if shown.has >= self.engine().quorum() && !is_later {
            seen.checked = seen.exchanged;
        }
        let is_lacking = shown.lacks > 0 && now.since(seen.put_back) >= PUT_BACK_EVERY;
        if is_lacking {
            seen.put_back = now;
        }
        is_lacking || is_later
    }

    /// Two instances that each serve the ticket on a minority would wait for ever.
    fn is_to_be_yielded(&self, served: &Served, shown: ShownTicket) -> bool {
        let is_split = shown.is_others > 0 && shown.is_own < self.engine().quorum();
        is_split
            && served.head().phase == TicketPhase::Waiting
            && self.now() >= served.alone().until
            && self.entropy().below(YIELDS_ONE_IN) == 0
            && !mutant::is(Mutant::TicketNeverYielded)
    }

    /// Reads a served ticket. Returns whether its state is known.
    pub(super) async fn read_served(&self, served: &Served) -> bool {
        match self.find_on_nodes(&served.id).await {
            TicketFound::Known(_, head) => {
                served.set(head);
                return true;
            }
            // The nodes have forgotten the ticket, so no request can name it: its lease must end, too.
            TicketFound::Absent => {
                if served.head().phase == TicketPhase::Waiting || self.release_ticket_lease(&served.ticket).await {
                    served.stop.cancel();
                }
            }
            // It may be this instance's own state on too few nodes, for which no node's report is needed (seed 2743).
            TicketFound::Unknown => {
                let (head, unsettled) = (served.head(), served.seen.lock().unsettled);
                let own = unsettled.map_or(head, |unsettled| unsettled.max(head));
                if own.phase > TicketPhase::Waiting
                    && self.raise_on_nodes(&served.id, &served.ticket, own).await == TicketRaised::Done
                {
                    served.set(own);
                    return true;
                }
            }
        }
        false
    }

    /// Resolves when no majority has shown this instance for [`UNCHECKED_MAX`] that the ticket still waits. Compares
    /// at each poll: a process that was stopped must not ask before its timers have fired.
    pub(super) async fn unchecked(&self, served: &Served) {
        if is_unchecked_mutant() {
            return std::future::pending().await;
        }
        loop {
            let ends = served.seen.lock().checked.plus(UNCHECKED_MAX);
            let mut pause = std::pin::pin!(self.clock().sleep_until(ends));
            poll_fn(|cx| if self.now() >= ends { Poll::Ready(()) } else { pause.as_mut().poll(cx) }).await;
            if self.now() >= served.seen.lock().checked.plus(UNCHECKED_MAX) {
                return;
            }
        }
    }

    /// Polls the acquire of a ticket only while no other instance can do the same: if two joined one lease, the nodes would raise
    /// its fence after the first had reported it. From the start of an exchange in which a majority of nodes took this instance
    /// for the server, they take no other for [`TICKET_SERVED`]. Compares at each poll, as [`Self::unchecked`].
    pub(super) async fn while_alone<T>(&self, served: &Served, asking: impl Future<Output = T>) -> T {
        let mut asking = std::pin::pin!(asking);
        if mutant::is(Mutant::TicketServedTwice) || is_unchecked_mutant() {
            return asking.await;
        }
        loop {
            served.alone_at(|| self.now()).await;
            let mut pause = std::pin::pin!(self.clock().sleep_until(served.alone().until));
            let asked = poll_fn(|cx| match self.now() < served.alone().until {
                true => match asking.as_mut().poll(cx) {
                    Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                    Poll::Pending => pause.as_mut().poll(cx).map(|()| None),
                },
                false => Poll::Ready(None),
            });
            if let Some(outcome) = asked.await {
                return outcome;
            }
        }
    }

    /// Whether the grant of an attempt that began at `began` may be stored: no other instance has acquired for the ticket since.
    pub(super) fn is_alone_since(&self, served: &Served, began: BootTime) -> bool {
        let alone = served.alone();
        let is_alone = alone.since <= began && self.now() < alone.until;
        is_alone || mutant::is(Mutant::TicketServedTwice) || is_unchecked_mutant()
    }

    pub(super) async fn find_on_nodes(&self, id: &TicketId) -> TicketFound {
        self.engine().read_ticket(id, Duration::ZERO).await
    }

    /// Takes over tickets that no instance serves, the oldest first in their queues.
    pub(super) async fn adopt_tickets(&self, due: Vec<TicketId>) {
        let reads = due.into_iter().map(|id| async move {
            let found = self.find_on_nodes(&id).await;
            (id, found)
        });
        let found: Vec<(TicketId, TicketFound)> =
            futures_util::stream::iter(reads).buffer_unordered(CONCURRENT_READS).collect().await;
        let known = |(id, found)| match found {
            TicketFound::Known(ticket, head) => Some((id, ticket, head)),
            TicketFound::Absent | TicketFound::Unknown => None,
        };
        let mut known: Vec<(TicketId, Ticket, TicketHead)> = found.into_iter().filter_map(known).collect();
        known.sort_by(|a, b| (a.1.body.made_ms, &a.0).cmp(&(b.1.body.made_ms, &b.0)));
        let mut adopted = Vec::new();
        for (id, ticket, head) in known {
            if head.phase == TicketPhase::Done {
                // A node has missed this state.
                self.raise_on_nodes(&id, &ticket, head).await;
                continue;
            }
            let permit = self.shared.tickets.permit_of(&ticket);
            let served = Arc::new(Served::new(id, ticket, head, self.seen_now(), true));
            *served.permit.lock() = permit;
            if self.shared.tickets.add(&served) {
                self.shared.tickets.report(TicketEvent::Adopted);
                adopted.push(served);
            }
        }
        for page in adopted.chunks(TICKETS_PAGE_MAX) {
            self.exchange(page, TICKET_SERVED, false).await;
        }
        adopted.into_iter().for_each(|served| self.serve_ticket(served));
    }

    /// For a ticket that this instance begins to serve: it counts as requested just now.
    pub(super) fn seen_now(&self) -> Seen {
        let (asked_ms, now) = (self.ticket_now_ms(), self.now());
        Seen {
            asked_ms,
            exchanged: now.minus(EXCHANGE_EVERY),
            checked: now,
            put_back: now.minus(PUT_BACK_EVERY),
            unsettled: None,
        }
    }

    /// Lets other instances serve the tickets at once.
    async fn hand_tickets_over(&self) {
        let served = self.shared.tickets.all();
        for page in served.chunks(TICKETS_PAGE_MAX) {
            self.exchange(page, Duration::ZERO, false).await;
        }
    }
}

/// For a mutant: an instance asks at any time, whatever the nodes show.
fn is_unchecked_mutant() -> bool {
    mutant::is(Mutant::TicketServedUnchecked) || mutant::is(Mutant::TicketKeptOvertaken)
}
