//! Exchanges tickets between instances, through the nodes: each reports which tickets it serves, takes over those that no
//! instance serves, and receives states that others have written.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::table::{Seen, Served, TicketNews};
use crate::manager::service::LockManager;
use crate::protocol::{TICKET_SERVED, TICKETS_PAGE_MAX, Ticket, TicketHead, TicketId, TicketPhase, TicketsArgs};
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::tickets::{ShownTicket, TicketFound, TicketsShown};

/// Time between two exchanges.
const TICK: Duration = Duration::from_secs(1);
/// How often an instance says that it serves a ticket.
const EXCHANGE_EVERY: Duration = Duration::from_millis(2_500);
/// A ticket that a node lacks is stored there again at most this often.
const PUT_BACK_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of tickets that one exchange reads; further ones follow in the next.
const READS_MAX: usize = 512;
/// Of these at a time.
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
        served.retain(|ticket| now.since(ticket.seen.lock().exchanged) >= EXCHANGE_EVERY);
        let (mut to_read, mut due) = (Vec::new(), Vec::new());
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
                }
            }
        }
        to_read.truncate(READS_MAX);
        let reads = to_read.iter().map(|served| self.read_served(served));
        futures_util::stream::iter(reads).for_each_concurrent(CONCURRENT_READS, |read| read).await;
        due.retain(|id| self.shared.tickets.get(id).is_none());
        due.sort_unstable();
        due.dedup();
        due.truncate(READS_MAX);
        self.adopt_tickets(due).await;
    }

    /// `takes_due`: the caller serves what is due.
    async fn exchange(&self, page: &[Arc<Served>], serve: Duration, takes_due: bool) -> TicketsShown {
        let served = page.iter().map(|ticket| (ticket.id.clone(), ticket.seen.lock().asked_ms)).collect();
        let instance = self.shared.instance.clone();
        let begun = self.now();
        let args = TicketsArgs { instance, serve, served, asked: Vec::new(), takes_due };
        let shown = self.engine().exchange_tickets(args).await;
        for ticket in page {
            ticket.seen.lock().exchanged = begun;
        }
        shown
    }

    /// What the nodes show of a ticket that this instance serves. Whether it is to be read.
    fn is_to_be_read(&self, served: &Arc<Served>, shown: ShownTicket) -> bool {
        if shown.is_others >= self.engine().quorum() {
            // This instance was silent for too long.
            served.stop.cancel();
            return false;
        }
        served.asked(shown.asked_ms);
        let now = self.now();
        let mut seen = served.seen.lock();
        let is_lacking = shown.lacks > 0 && now.since(seen.put_back) >= PUT_BACK_EVERY;
        if is_lacking {
            seen.put_back = now;
        }
        is_lacking || shown.head.is_some_and(|head| head > served.head())
    }

    pub(super) async fn read_served(&self, served: &Served) {
        match self.find_on_nodes(&served.id).await {
            TicketFound::Known(_, head) => served.set(head),
            // The nodes have forgotten it, so no request can name it: its lease must end, too.
            TicketFound::Absent => {
                if served.head().phase == TicketPhase::Waiting || self.release_ticket_lease(&served.ticket).await {
                    served.stop.cancel();
                }
            }
            TicketFound::Unknown => {}
        }
    }

    pub(super) async fn find_on_nodes(&self, id: &TicketId) -> TicketFound {
        self.engine().read_ticket(id, &self.shared.instance, Duration::ZERO).await
    }

    /// Takes over tickets that no instance serves, the oldest first in their queues.
    async fn adopt_tickets(&self, due: Vec<TicketId>) {
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
                // A node has missed that.
                self.raise_on_nodes(&id, &ticket, head).await;
                continue;
            }
            let served = Arc::new(Served::new(id, ticket, head, self.seen_now(), true));
            if self.shared.tickets.add(&served) {
                self.shared.tickets.report(TicketNews::Adopted);
                self.serve_ticket(Arc::clone(&served));
                adopted.push(served);
            }
        }
        for page in adopted.chunks(TICKETS_PAGE_MAX) {
            self.exchange(page, TICKET_SERVED, false).await;
        }
    }

    /// Of a ticket that this instance begins to serve: counts as if it had been requested just now.
    pub(super) fn seen_now(&self) -> Seen {
        let (asked_ms, now) = (self.ticket_now_ms(), self.now());
        Seen { asked_ms, exchanged: now.minus(EXCHANGE_EVERY), put_back: now.minus(PUT_BACK_EVERY) }
    }

    /// Others may serve them at once.
    async fn hand_tickets_over(&self) {
        let served = self.shared.tickets.all();
        for page in served.chunks(TICKETS_PAGE_MAX) {
            self.exchange(page, Duration::ZERO, false).await;
        }
    }
}
