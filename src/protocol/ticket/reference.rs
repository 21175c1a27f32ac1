//! The reference of `ticket.lua`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::record::padded;
use crate::mutant::{self, Mutant};
use crate::protocol::reference::marker::{CallContext, millis};
use crate::protocol::reference::memory::{Memory, end_ms};
use crate::protocol::reference::store::Expiring;
use crate::protocol::{Reply, StoredTicket, TicketArgs, TicketHead, TicketId, TicketOrder};

/// The keys of the tickets: `redlockd:ticket:*` and their index.
#[derive(Debug, Clone, Default)]
pub(in crate::protocol) struct TicketKeys {
    pub(in crate::protocol) tickets: Expiring<TicketId, TicketValue>,
    /// For each ticket, the time from which an instance that does not serve it reads it. Milliseconds.
    pub(in crate::protocol) index: BTreeMap<TicketId, u64>,
}

/// A ticket's value.
#[derive(Debug, Clone)]
pub(in crate::protocol) struct TicketValue {
    pub(in crate::protocol) head: TicketHead,
    pub(in crate::protocol) asked_ms: u64,
    pub(in crate::protocol) server: String,
    body: Arc<str>,
}

/// Runs one request.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &TicketArgs) -> Reply {
    if let Some(no_vote) = memory.marker.check_vote(context) {
        return Reply::NoVote(no_vote);
    }
    let now_ms = context.now_ms();
    let shown = |value: &TicketValue| {
        let TicketValue { head, asked_ms, body, .. } = value.clone();
        Reply::Ticket(Some(StoredTicket { head, asked_ms, body }))
    };
    let stored = memory.tickets.tickets.get(&args.id, now_ms).cloned();
    let value = match (stored, args.order) {
        (None, TicketOrder::Read | TicketOrder::Raise) => return Reply::Ticket(None),
        (Some(value), TicketOrder::Read) => return shown(&value),
        (Some(value), _) if value.head >= args.head && !mutant::is(Mutant::TicketGoesBack) => return shown(&value),
        (Some(value), _) => TicketValue { head: args.head, ..value },
        (None, TicketOrder::Put) => TicketValue {
            head: args.head,
            asked_ms: args.head.since_ms,
            server: padded(&args.server),
            body: Arc::clone(&args.body),
        },
    };
    let reply = shown(&value);
    memory.tickets.tickets.put(args.id.clone(), value, Some(end_ms(context, args.ttl)));
    match args.due {
        Some(due) => memory.tickets.index.insert(args.id.clone(), now_ms + millis(due)),
        None => memory.tickets.index.remove(&args.id),
    };
    reply
}
