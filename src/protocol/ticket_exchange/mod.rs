//! Which instance serves which tickets: each instance reports on the nodes that it still serves its own, and reads which tickets
//! no instance serves. No vote depends on it: two instances that serve the same ticket are never granted two leases. But only one of
//! them acquires, which a node takes no other for until its time is over.

pub(super) mod reference;

use std::time::Duration;

use deadpool_redis::redis::Value;

use super::keys;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptRef, millis, node_script};
use super::ticket::{HEAD_BYTES, TIME_DIGITS, TicketHead, TicketId, padded};
use super::waiters::InstanceName;

node_script!("ticket_exchange.lua");

/// The maximum number of tickets that one request names.
pub const TICKETS_PAGE_MAX: usize = 256;
/// The maximum number of tickets without an instance that one request reports.
pub const TICKETS_DUE_MAX: usize = 64;
/// An instance that has not said for so long that it serves a ticket does not.
pub const TICKET_SERVED: Duration = Duration::from_secs(8);
/// One that is due belongs to the instance that is informed of it, and is reported again after this time.
pub const TICKET_PAUSE: Duration = Duration::from_secs(2);

/// Arguments of [`Request::Tickets`](super::request::Request::Tickets).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketsArgs {
    /// The instance that asks.
    pub instance: InstanceName,
    /// For how long it serves the tickets.
    pub serve: Duration,
    /// Those that it serves, each with when its caller asked for it last, see [`super::StoredTicket`].
    pub served: Vec<(TicketId, u64)>,
    /// Further ones that callers have asked for here. At most [`TICKETS_PAGE_MAX`] in all.
    pub asked: Vec<(TicketId, u64)>,
    /// The instance takes over tickets that no instance serves: the nodes return each to only one instance per [`TICKET_PAUSE`].
    pub takes_due: bool,
}

/// What a node shows of the tickets that a request named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketsPage {
    /// There may be more without an instance.
    pub has_more: bool,
    /// In the order of the request, the served ones first.
    pub named: Vec<NamedTicket>,
    /// Nobody serves them.
    pub due: Vec<TicketId>,
}

/// What a node shows of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamedTicket {
    /// The caller serves it, as far as this node knows; otherwise another instance does.
    pub is_own: bool,
    /// Its state; `None`: the node has no such ticket.
    pub head: Option<TicketHead>,
    /// As in [`super::StoredTicket`].
    pub asked_ms: u64,
}

/// The command for an exchange.
pub(super) fn build(args: &TicketsArgs, script_ref: ScriptRef) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 1, 1);
    command.keys([keys::TICKETS_KEY]);
    command.text(keys::TICKET_PREFIX).text(&padded(&args.instance));
    command.number(millis(args.serve)).number(millis(TICKET_PAUSE)).number(args.due_max() as u64);
    command.number(HEAD_BYTES as u64).number(TIME_DIGITS as u64);
    command.number(args.served.len().min(TICKETS_PAGE_MAX) as u64);
    for (id, asked_ms) in args.named() {
        command.text(id.as_str()).text(&format!("{asked_ms:0t$}", t = TIME_DIGITS));
    }
    command.build()
}

impl TicketsArgs {
    /// Maximum number of unserved tickets that are reported.
    pub(super) fn due_max(&self) -> usize {
        if self.takes_due { TICKETS_DUE_MAX } else { 0 }
    }

    /// What the request names, the served ones first.
    pub(super) fn named(&self) -> impl Iterator<Item = &(TicketId, u64)> {
        self.served.iter().chain(&self.asked).take(TICKETS_PAGE_MAX)
    }
}

/// Reads the reply to an exchange.
pub(super) fn parse(args: &TicketsArgs, value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    let mut page = TicketsPage { has_more: reply.flag()?, named: Vec::new(), due: Vec::new() };
    for _ in args.named() {
        let (is_own, head, asked) = (reply.flag()?, reply.text()?, reply.text()?);
        let (head, asked_ms) = (TicketHead::parse(head), asked.parse().unwrap_or(0));
        page.named.push(NamedTicket { is_own, head, asked_ms });
    }
    while reply.remaining() > 0 {
        if page.due.len() == TICKETS_DUE_MAX {
            return malformed("has more tickets than were asked for");
        }
        // Skipped: an index entry that names no ticket. Any client of the node may have made it.
        let id = std::str::from_utf8(reply.bytes()?).ok().and_then(TicketId::parse);
        page.due.extend(id);
    }
    Ok(Reply::Tickets(page))
}
