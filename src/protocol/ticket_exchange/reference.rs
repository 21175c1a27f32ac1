//! The reference of `ticket_exchange.lua`.

use crate::protocol::reference::marker::{CallContext, millis};
use crate::protocol::reference::memory::Memory;
use crate::protocol::ticket::padded;
use crate::protocol::{
    NamedTicket, Reply, TICKET_PAUSE, TICKETS_DUE_MAX, TICKETS_PAGE_MAX, TicketId, TicketsArgs, TicketsPage,
};

/// Runs one exchange.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &TicketsArgs) -> Reply {
    let (now_ms, keys, own) = (context.now_ms(), &mut memory.tickets, padded(&args.instance));
    let served = args.served.len().min(TICKETS_PAGE_MAX);
    let mut page = TicketsPage { has_more: false, named: Vec::new(), due: Vec::new() };
    for (place, (id, asked_ms)) in args.named().enumerate() {
        let Some(value) = keys.tickets.get_mut(id, now_ms) else {
            keys.index.remove(id);
            page.named.push(NamedTicket::default());
            continue;
        };
        value.asked_ms = value.asked_ms.max(*asked_ms);
        let due = if value.server == own { 0 } else { keys.index.get(id).copied().unwrap_or(0) };
        let is_own = place < served && due <= now_ms;
        if is_own {
            value.server.clone_from(&own);
            keys.index.insert(id.clone(), now_ms + millis(args.serve));
        }
        page.named.push(NamedTicket { is_own, head: Some(value.head), asked_ms: value.asked_ms });
    }
    let mut found: Vec<(u64, TicketId)> =
        keys.index.iter().filter(|(_, due)| **due <= now_ms).map(|(id, due)| (*due, id.clone())).collect();
    found.sort_unstable();
    found.truncate(args.due_max());
    page.has_more = found.len() == TICKETS_DUE_MAX;
    for (_, id) in found {
        let Some(value) = keys.tickets.get_mut(&id, now_ms) else {
            keys.index.remove(&id);
            continue;
        };
        value.server.clone_from(&own);
        keys.index.insert(id.clone(), now_ms + millis(TICKET_PAUSE));
        page.due.push(id);
    }
    Reply::Tickets(page)
}
