//! Tickets on the nodes: one register per ticket, whose state only rises. A ticket counts if a majority of all voting
//! nodes shows it. Its state is the highest that a majority can have had, which is written to a majority before it is
//! acted on (as the two phases of an atomic register: Attiya, Bar-Noy, Dolev 1995). A state that only one node shows
//! is not acted on. docs/tickets.md has the argument.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::node::Node;
use super::quorum::{Tally, quorum_of};
use super::random::Entropy;
use super::round::Until;
use crate::mutant::{self, Mutant};
use crate::protocol::{
    InstanceName, NamedTicket, NodeResult, Reply, Request, StoredTicket, TICKET_SERVED, Ticket, TicketArgs, TicketHead,
    TicketId, TicketOrder, TicketPhase, TicketsArgs, TicketsPage,
};

/// How long an ended ticket is remembered, for requests about its outcome.
pub(crate) const TICKET_MEMORY: Duration = Duration::from_mins(10);

/// What the nodes show of a ticket.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "it is handed on at once")]
pub(crate) enum TicketFound {
    /// A majority shows the ticket, and has this state.
    Known(Ticket, TicketHead),
    /// No majority can show the ticket: it does not count, if it was ever made.
    Absent,
    /// Too few nodes answered to know.
    Unknown,
}

/// The outcome of writing a new state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TicketRaised {
    /// A majority has the state.
    Done,
    /// The ticket has a higher state already.
    Overtaken(TicketHead),
    /// Some nodes may have the state.
    Unknown,
}

/// The parameters of writing a ticket.
pub(crate) struct TicketWriter<'a> {
    pub(crate) id: &'a TicketId,
    pub(crate) server: &'a InstanceName,
    /// How long the nodes keep the ticket.
    pub(crate) ttl: Duration,
    /// As in [`TicketArgs`].
    pub(crate) due: Duration,
}

/// What an exchange with all nodes showed.
#[derive(Debug, Default)]
pub(crate) struct TicketsShown {
    /// For each named ticket: how many nodes take the caller for its server, how many take another instance, how many have it,
    /// how many lack it, the highest state that a majority can have, and when it was last asked for, as two nodes report.
    pub(crate) named: Vec<ShownTicket>,
    /// Tickets that no instance serves, as some node reports.
    pub(crate) due: Vec<TicketId>,
}

/// See [`TicketsShown`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ShownTicket {
    pub(crate) is_own: usize,
    pub(crate) is_others: usize,
    pub(crate) has: usize,
    pub(crate) lacks: usize,
    pub(crate) head: Option<TicketHead>,
    pub(crate) asked_ms: u64,
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Stores a new ticket. Returns the ticket that counts from now on: an earlier ticket of the same token, if there is one.
    ///
    /// Cancel: some nodes may have the ticket; if they are a majority, the instance that takes over unserved tickets finds it.
    pub(crate) async fn put_ticket(&self, writer: &TicketWriter<'_>, ticket: &Ticket, head: TicketHead) -> TicketFound {
        let (Ok(body), started) = (ticket.encode(), self.clock.now()) else { return TicketFound::Unknown };
        // A node that forgot must not get the first state of a ticket with a higher state: the ticket is stored only
        // if no majority can have it. The request carries the time of that read.
        let found = self.read_ticket(writer.id, writer.ttl).await;
        if !matches!(found, TicketFound::Absent) && !mutant::is(Mutant::TicketPutUnread) {
            return found;
        }
        let tally = self.write_ticket(writer, TicketOrder::Put, head, body.into(), started, Until::WonAndGrace).await;
        self.settled(writer.id, &tally).await
    }

    /// Reads a ticket.
    ///
    /// Cancel: the ticket's state may have been written to more nodes.
    pub(crate) async fn read_ticket(&self, id: &TicketId, ttl: Duration) -> TicketFound {
        let (server, started) = (nobody(), self.clock.now());
        let writer = TicketWriter { id, server: &server, ttl, due: Duration::ZERO };
        let args = TicketArgs {
            id: id.clone(),
            order: TicketOrder::Read,
            head: TicketHead::waiting(0),
            body: Arc::default(),
            server: server.clone(),
            ttl,
            due: None,
        };
        let deadline = started.plus(self.node_timeout());
        let everyone = self.everyone();
        let request = Request::Ticket(args);
        let is_win = |answer: &NodeResult| stored(answer).is_some();
        let mut tally = self.round(&everyone, request.clone(), started, deadline, Until::WonAndGrace, is_win).await;
        let mut found = self.settled(id, &tally).await;
        if matches!(found, TicketFound::Unknown) && tally.received().count() < tally.size() {
            // A node that is slower than the others may decide.
            let deadline = self.clock.now().plus(self.node_timeout());
            tally = self.round(&everyone, request, started, deadline, Until::All, is_win).await;
            found = self.settled(id, &tally).await;
        }
        if let TicketFound::Known(ticket, head) = &found {
            self.put_back(&writer, &tally, (ticket, *head), started).await;
        }
        found
    }

    /// Raises a ticket's state. `Done` means that a majority had it at some time.
    ///
    /// Cancel: some nodes may have it.
    pub(crate) async fn raise_ticket(&self, writer: &TicketWriter<'_>, head: TicketHead) -> TicketRaised {
        // A state that reached only a minority is written again at once, and all nodes are awaited: while a node is
        // silent, a state that only one other node shows leaves the ticket unknown.
        for until in [Until::WonAndGrace, Until::All] {
            let raising = self.write_ticket(writer, TicketOrder::Raise, head, Arc::default(), self.clock.now(), until);
            let tally = raising.await;
            let shown = || tally.received().filter_map(|(_, answer)| stored(answer)).map(|stored| stored.head);
            if shown().filter(|shown| *shown == head).count() >= needed(&tally) {
                return TicketRaised::Done;
            }
            let mut higher: Vec<TicketHead> = shown().filter(|shown| *shown > head).collect();
            higher.sort_unstable();
            let vouched = higher.len().checked_sub(vouchers(&tally)).and_then(|place| higher.get(place));
            if let Some(vouched) = vouched {
                return TicketRaised::Overtaken(*vouched);
            }
        }
        TicketRaised::Unknown
    }

    /// Reports which tickets this instance serves, and which were asked for here, and reads what the nodes show.
    pub(crate) async fn exchange_tickets(&self, args: TicketsArgs) -> TicketsShown {
        let mut shown = TicketsShown::default();
        shown.named.resize(args.served.len() + args.asked.len(), ShownTicket::default());
        let everyone = self.everyone();
        let size = everyone.len();
        let mut all_shown = vec![(Vec::new(), Vec::new()); shown.named.len()];
        let nodes = everyone.into_iter().map(|node| self.exchange_tickets_with(node, args.clone()));
        for page in join_all(nodes).await.into_iter().flatten() {
            for ((all, (heads, asked)), one) in shown.named.iter_mut().zip(&mut all_shown).zip(page.named) {
                let NamedTicket { is_own, head, asked_ms } = one;
                all.is_own += usize::from(is_own);
                all.is_others += usize::from(!is_own && head.is_some());
                all.has += usize::from(head.is_some());
                all.lacks += usize::from(head.is_none());
                heads.extend(head);
                asked.push(asked_ms);
            }
            shown.due.extend(page.due);
        }
        for (all, (mut heads, mut asked)) in shown.named.iter_mut().zip(all_shown) {
            all.head = highest_possible(&mut heads, size).map(|(head, _)| head);
            asked.sort_unstable();
            all.asked_ms = asked.iter().rev().nth(vouchers_of(size) - 1).copied().unwrap_or(0);
        }
        shown.due.sort_unstable();
        shown.due.dedup();
        shown
    }

    async fn exchange_tickets_with(&self, node: usize, args: TicketsArgs) -> Option<TicketsPage> {
        let now = self.clock.now();
        let deadline = now.plus(self.node_timeout());
        let mut tally = self.round(&[node], Request::Tickets(args), now, deadline, Until::All, Result::is_ok).await;
        match tally.take(node) {
            Some(Ok(Reply::Tickets(page))) => Some(page),
            _ => None,
        }
    }

    async fn write_ticket(
        &self,
        writer: &TicketWriter<'_>,
        order: TicketOrder,
        head: TicketHead,
        body: Arc<str>,
        started: BootTime,
        until: Until,
    ) -> Tally {
        let request = self.writing(writer, order, head, body);
        let deadline = self.clock.now().plus(self.node_timeout());
        self.round(&self.everyone(), request, started, deadline, until, |answer| {
            stored(answer).is_some_and(|stored| stored.head == head)
        })
        .await
    }

    fn writing(&self, writer: &TicketWriter<'_>, order: TicketOrder, head: TicketHead, body: Arc<str>) -> Request {
        let due = (head.phase != TicketPhase::Done).then_some(writer.due);
        let ttl = if head.phase == TicketPhase::Done { TICKET_MEMORY } else { writer.ttl };
        let (id, server) = (writer.id.clone(), writer.server.clone());
        Request::Ticket(TicketArgs { id, order, head, body, server, ttl, due })
    }

    /// The ticket that these answers show; afterwards its state is on a majority.
    async fn settled(&self, id: &TicketId, tally: &Tally) -> TicketFound {
        let shown: Vec<&StoredTicket> = tally.received().filter_map(|(_, answer)| stored(answer)).collect();
        let same = |body: &Arc<str>| shown.iter().filter(|stored| stored.body == *body).count();
        let votes = tally.received().filter(|(_, answer)| is_vote(answer)).count();
        let unknown = tally.size().saturating_sub(votes);
        let Some(most) = shown.iter().max_by_key(|stored| same(&stored.body)) else {
            return if unknown < needed(tally) { TicketFound::Absent } else { TicketFound::Unknown };
        };
        let agreeing = same(&most.body);
        if agreeing < needed(tally) {
            let can_be = agreeing + unknown >= needed(tally);
            return if can_be { TicketFound::Unknown } else { TicketFound::Absent };
        }
        let Some(ticket) = Ticket::parse(&most.body) else { return TicketFound::Absent };
        let now_ms = self.cluster_clock.request_time().0 / 1_000;
        let heads = shown.iter().filter(|stored| stored.body == most.body).map(|stored| stored.head);
        let mut heads: Vec<TicketHead> = heads.filter(|head| can_be_written(&ticket, *head, now_ms)).collect();
        let Some((head, showing)) = highest_possible(&mut heads, tally.size()) else { return TicketFound::Unknown };
        if showing < vouchers(tally) {
            return TicketFound::Unknown;
        }
        let is_settled = heads.iter().filter(|shown| **shown == head).count() >= needed(tally);
        if is_settled || mutant::is(Mutant::TicketUnsettled) {
            return TicketFound::Known(ticket, head);
        }
        // The instance that wrote the state may have ended in between.
        let (server, due, ttl) = (nobody(), due_of_read(head), self.ticket_ttl(&ticket, head));
        let writer = TicketWriter { id, server: &server, ttl, due };
        match self.raise_ticket(&writer, head).await {
            TicketRaised::Done => TicketFound::Known(ticket, head),
            _ => TicketFound::Unknown,
        }
    }

    /// Stores the ticket again on voting nodes that have forgotten it. The request carries the time at which a
    /// majority without them showed the state: a node that took a higher state since then, and forgot that too, has
    /// no vote for longer than the request is valid.
    async fn put_back(
        &self,
        writer: &TicketWriter<'_>,
        tally: &Tally,
        (ticket, head): (&Ticket, TicketHead),
        started: BootTime,
    ) {
        let lacks = |(node, answer): (usize, &NodeResult)| matches!(answer, Ok(Reply::Ticket(None))).then_some(node);
        let lacking: Vec<usize> = tally.received().filter_map(lacks).collect();
        let Ok(body) = ticket.encode() else { return };
        if lacking.is_empty() {
            return;
        }
        let ttl = self.ticket_ttl(ticket, head).max(writer.ttl);
        let writer = TicketWriter { ttl, due: due_of_read(head), ..*writer };
        let request = self.writing(&writer, TicketOrder::Put, head, body.into());
        let deadline = self.clock.now().plus(self.node_timeout());
        self.round(&lacking, request, started, deadline, Until::All, Result::is_ok).await;
    }

    /// Minimum time for which the nodes keep a ticket in this state: as long as its state can still change.
    pub(crate) fn ticket_ttl(&self, ticket: &Ticket, head: TicketHead) -> Duration {
        let now_ms = self.cluster_clock.request_time().0 / 1_000;
        let keep_ms = ticket.body.keep_ms;
        let until_ms = match head.phase {
            TicketPhase::Waiting => ticket.body.wait_until_ms.saturating_add(keep_ms),
            // No lease was granted later than now. The head's time may come from one node only.
            _ => now_ms.saturating_add(keep_ms),
        };
        Duration::from_millis(until_ms.saturating_sub(now_ms)).saturating_add(TICKET_MEMORY)
    }
}

/// How many nodes must show a state, or a higher one, before it is acted on: at least one of them does not lie.
const VOUCHERS: usize = 2;

fn vouchers_of(nodes: usize) -> usize {
    if mutant::is(Mutant::TicketHeadOfOne) || mutant::is(Mutant::TicketByMinority) {
        1
    } else {
        VOUCHERS.min(quorum_of(nodes))
    }
}

fn vouchers(tally: &Tally) -> usize {
    vouchers_of(tally.size())
}

/// The highest of these states that a majority of `nodes` nodes can have had, and how many show it or a higher one. A
/// node whose state is missing may show any state. Sorts the states, the highest first.
///
/// A state that a majority had is at most this one: each node of that majority shows it or a higher one, or is
/// missing. So a later reader never finds an earlier state.
fn highest_possible(heads: &mut [TicketHead], nodes: usize) -> Option<(TicketHead, usize)> {
    heads.sort_unstable_by(|a, b| b.cmp(a));
    let unknown = nodes.saturating_sub(heads.len());
    let place = match mutant::is(Mutant::TicketHeadOfOne) {
        true => 0,
        false => quorum_of(nodes).saturating_sub(unknown + 1),
    };
    let head = *heads.get(place)?;
    Some((head, heads.iter().filter(|shown| **shown >= head).count()))
}

/// Whether the service can have written this state: no time in it is later than possible now, apart from differences of clocks.
fn can_be_written(ticket: &Ticket, head: TicketHead, now_ms: u64) -> bool {
    let latest_ms = now_ms.saturating_add(u64::try_from(TICKET_MEMORY.as_millis()).unwrap_or(u64::MAX));
    let accept_ms = ticket.body.callback.as_ref().map_or(0, |callback| callback.accept_ms);
    head.since_ms <= latest_ms
        && head.kept_until_ms <= latest_ms.saturating_add(ticket.body.keep_ms)
        && head.accept_by_ms <= latest_ms.saturating_add(accept_ms)
}

/// The server that a reader writes, which names no instance: reading does not make an instance serve the ticket.
fn nobody() -> InstanceName {
    InstanceName::from_random(0)
}

/// When a ticket that a reader has written is due. A waiting ticket is due only when the instance that is its only server, as far
/// as the node knows, must have stopped: otherwise, on a node that forgot it, another instance would become its server at once.
fn due_of_read(head: TicketHead) -> Duration {
    if head.phase == TicketPhase::Waiting { TICKET_SERVED } else { Duration::ZERO }
}

/// The number of nodes of the round's list that a ticket needs to count.
fn needed(tally: &Tally) -> usize {
    if mutant::is(Mutant::TicketByMinority) { 1 } else { tally.quorum() }
}

fn stored(answer: &NodeResult) -> Option<&StoredTicket> {
    match answer {
        Ok(Reply::Ticket(stored)) => stored.as_ref(),
        _ => None,
    }
}

fn is_vote(answer: &NodeResult) -> bool {
    matches!(answer, Ok(Reply::Ticket(_)))
}

#[cfg(test)]
#[path = "tickets_tests.rs"]
mod tests;
