//! One ticket on a node: reads it, or raises its state. Only nodes that vote accept it, so that two majorities share one.

mod record;
pub(super) mod reference;

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::Value;

pub(super) use record::{HEAD_BYTES, SERVER_BYTES, STAMP_BYTES, TIME_DIGITS, padded};
pub use record::{
    TICKET_MAX_BYTES, Ticket, TicketBody, TicketCallback, TicketEnd, TicketHead, TicketId, TicketPhase, TicketTerms,
};

use super::keys;
use super::params::RequestTime;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, millis, node_script};
use super::waiters::InstanceName;

node_script!(with_marker "ticket.lua");

/// The operation on a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketOrder {
    /// Only read the ticket.
    Read,
    /// Raise the ticket's state, if the node has the ticket.
    Raise,
    /// As `Raise`; also store the ticket if the node has none.
    Put,
}

/// Arguments of [`Request::Ticket`](super::request::Request::Ticket).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketArgs {
    pub id: TicketId,
    /// The operation.
    pub order: TicketOrder,
    /// The state to raise the ticket to.
    pub head: TicketHead,
    /// See [`Ticket::encode`]; only for [`TicketOrder::Put`].
    pub body: Arc<str>,
    /// The instance that serves the ticket, if the node has no ticket.
    pub server: InstanceName,
    /// How long the node keeps it.
    pub ttl: Duration,
    /// The time from which other instances read the ticket, unless it is served for longer; `None`: never.
    pub due: Option<Duration>,
}

/// A node's data of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTicket {
    /// The highest state that this node knows.
    pub head: TicketHead,
    /// When the caller last asked for the ticket, on the cluster clock. Milliseconds since 1970.
    pub asked_ms: u64,
    /// See [`Ticket::parse`].
    pub body: Arc<str>,
}

/// The length of the value of a ticket with this body. Bytes.
pub(crate) fn ticket_bytes(body: &str) -> usize {
    HEAD_BYTES + STAMP_BYTES + body.len()
}

impl StoredTicket {
    /// Reads a value; `None` for a text that no instance writes.
    fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= TICKET_MAX_BYTES)?;
        let head = TicketHead::parse(text.get(..HEAD_BYTES)?)?;
        let asked_ms = text.get(HEAD_BYTES..HEAD_BYTES + TIME_DIGITS)?.parse().ok()?;
        Some(Self { head, asked_ms, body: text.get(HEAD_BYTES + STAMP_BYTES..)?.into() })
    }
}

/// The stamp of a ticket that is stored now, at its caller's request.
pub(super) fn stamp(asked_ms: u64, server: &InstanceName) -> String {
    format!("{:0t$}{:.s$}", asked_ms, padded(server), t = TIME_DIGITS, s = SERVER_BYTES)
}

/// The command for a ticket.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &TicketArgs,
    script_ref: ScriptRef,
) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 3, 1);
    command.keys([keys::META_KEY, &keys::ticket(args.id.as_str()), keys::TICKETS_KEY]);
    command.marker_args(context, sent_at);
    let order = match args.order {
        TicketOrder::Read => "read",
        TicketOrder::Raise => "raise",
        TicketOrder::Put => "put",
    };
    command.text(order).text(args.id.as_str()).text(&args.head.encode());
    command.text(&stamp(args.head.since_ms, &args.server)).text(&args.body).number(millis(args.ttl));
    match args.due {
        Some(due) => command.number(millis(due)),
        None => command.text(""),
    };
    command.build()
}

pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "T" => match reply.bytes()? {
            b"" => Ok(Reply::Ticket(None)),
            value => match StoredTicket::parse(value) {
                Some(stored) => Ok(Reply::Ticket(Some(stored))),
                None => malformed("has an unreadable ticket"),
            },
        },
        code => Ok(Reply::NoVote(reply.no_vote(code)?)),
    }
}
