//! The tickets of this instance, as pages show them: tickets that wait, and tickets whose grant was not accepted yet.

use crate::manager::service::LockManager;
use crate::protocol::{TicketId, TicketPhase};
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::ResourceName;

/// A ticket, for one of its resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTicket {
    pub id: TicketId,
    /// The resource that the ticket waits for, or was granted.
    pub resource: ResourceName,
    pub owner: String,
    /// The name of the target of the ticket's call-backs; `None`: the caller asks.
    pub target: Option<String>,
    /// The ticket's position in this instance's queue, from 1; `None`: it was granted, and nobody has accepted it.
    pub position: Option<usize>,
    /// Until when the grant may be accepted; 0 while the ticket waits. Milliseconds since 1970.
    pub accept_by_ms: u64,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Each ticket that waits in a queue of this instance, or is offered by it, once for each of its resources.
    pub fn listed_tickets(&self) -> Vec<ListedTicket> {
        let mut listed = Vec::new();
        for served in self.shared.tickets.all() {
            let (head, ticket) = (served.head(), &served.ticket);
            if !matches!(head.phase, TicketPhase::Waiting | TicketPhase::Granted) {
                continue;
            }
            for resource in ticket.resources() {
                let position = match head.phase {
                    TicketPhase::Waiting => {
                        self.shared.waiting.queue(|queue| queue.position_of(resource, &ticket.token))
                    }
                    _ => None,
                };
                if position.is_none() && head.phase == TicketPhase::Waiting {
                    continue;
                }
                listed.push(ListedTicket {
                    id: served.id.clone(),
                    resource: resource.clone(),
                    owner: ticket.body.labels.owner.to_string(),
                    target: ticket.body.callback.as_ref().map(|callback| callback.target.clone()),
                    position,
                    accept_by_ms: head.accept_by_ms,
                });
            }
        }
        listed.sort_by(|a, b| (&a.resource, a.position, &a.id).cmp(&(&b.resource, b.position, &b.id)));
        listed
    }
}
