//! Which instance serves which tickets: each instance reports to the nodes the tickets that it still serves, and reads which
//! tickets no instance serves. No vote depends on it: two instances that serve one ticket are never granted two leases. But only
//! one of them acquires; a node accepts no other until that one's time is over.

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
/// An instance that has not reported for this long that it serves a ticket no longer serves it.
pub const TICKET_SERVED: Duration = Duration::from_secs(8);
/// A due ticket belongs to the instance that receives it in a reply; after this time it is reported again.
pub const TICKET_PAUSE: Duration = Duration::from_secs(2);

/// Arguments of [`Request::Tickets`](super::request::Request::Tickets).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketsArgs {
    /// The requesting instance.
    pub instance: InstanceName,
    /// How long the instance serves the tickets.
    pub serve: Duration,
    /// The served tickets, each with the time of its caller's last request, see [`super::StoredTicket`].
    pub served: Vec<(TicketId, u64)>,
    /// Further tickets that callers have asked for at this instance. At most [`TICKETS_PAGE_MAX`] in all.
    pub asked: Vec<(TicketId, u64)>,
    /// The instance takes over tickets that no instance serves: the nodes return each to only one instance per [`TICKET_PAUSE`].
    pub takes_due: bool,
}

/// A node's data of the named tickets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketsPage {
    /// There may be more unserved tickets.
    pub has_more: bool,
    /// The tickets in the order of the request, the served ones first.
    pub named: Vec<NamedTicket>,
    /// The tickets that no instance serves.
    pub due: Vec<TicketId>,
}

/// A node's data of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamedTicket {
    /// The requesting instance serves it, as far as this node knows; otherwise another instance does.
    pub is_own: bool,
    /// The ticket's state; `None`: the node has no such ticket.
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

    /// The tickets in the request, the served ones first.
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
