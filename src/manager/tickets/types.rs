//! Requests about tickets, with their results and errors, for HTTP handlers.

use std::sync::Arc;
use std::time::Duration;

use super::table::phase_word;
use crate::auth::principal::Principal;
use crate::auth::quota::QuotaPermit;
use crate::manager::callbacks::{Callback, CallbackRefused};
use crate::manager::types::{ExtendError, NoQuorum};
use crate::protocol::{Ticket, TicketEnd, TicketHead, TicketId, TicketPhase};
use crate::types::{Fence, Labels, ResourceName, Token, TokenHash, Ttl, WantedMode};

/// Asks for a ticket.
#[derive(Debug, Clone)]
pub struct TicketRequest {
    /// The resource to protect; of several, the first.
    pub resource: ResourceName,
    /// The other resources, all distinct: all are granted, or none.
    pub others: Vec<ResourceName>,
    /// The terms of the lease, and until when it is wanted.
    pub terms: AskedTerms,
    /// Owner, note and metadata of the lease.
    pub labels: Labels,
    /// The token that the lease will have.
    pub token: Token,
    /// The principal that asks; `None` without authentication.
    pub principal: Option<Arc<Principal>>,
    /// The receiver that is informed of the grant, and for how long the grant is offered; `None`: the caller asks.
    pub callback: Option<(Callback, Duration)>,
    /// Counts the ticket in the principal's quota while it waits.
    pub permit: Option<Arc<QuotaPermit>>,
}

/// The terms of the lease, and when it is wanted.
#[derive(Debug, Clone, Copy)]
pub struct AskedTerms {
    /// TTL of the lease.
    pub ttl: Ttl,
    /// For how long to wait.
    pub wait: Duration,
    /// For how long after the grant the lease is kept.
    pub keep: Duration,
    /// How the lease may share the resource.
    pub mode: WantedMode,
    /// Whether the ticket ends if it is the newest in a deadlock.
    pub refuses_deadlock: bool,
}

/// A ticket on a majority of nodes.
#[derive(Debug, Clone)]
pub struct FoundTicket {
    pub id: TicketId,
    /// What the ticket asks for.
    pub ticket: Ticket,
    pub head: TicketHead,
}

impl FoundTicket {
    /// The word for the ticket's state.
    pub fn state(&self) -> &'static str {
        phase_word(self.head.phase)
    }

    /// Whether the ticket is over.
    pub fn is_over(&self) -> bool {
        matches!(self.head.phase, TicketPhase::Ended | TicketPhase::Done)
    }

    /// Whether the ticket is for these resources, in any order.
    pub fn is_for(&self, names: &[ResourceName]) -> bool {
        self.ticket.resources().count() == names.len() && self.ticket.resources().all(|name| names.contains(name))
    }

    /// Whether this token is the ticket's own.
    pub fn is_of(&self, token: &TokenHash) -> bool {
        self.ticket.token == *token
    }
}

impl TicketRequest {
    /// The first name, then the others.
    pub(super) fn resources(&self) -> impl Iterator<Item = &ResourceName> {
        std::iter::once(&self.resource).chain(&self.others)
    }
}

/// A ticket's lease, or its leases, as far as they are promised now.
#[derive(Debug, Clone)]
pub struct TicketLease {
    /// The fence; for several leases, in the order of the resources.
    pub fences: Box<[Fence]>,
    /// The number of the permit, if the lease is one.
    pub slot: Option<u8>,
    /// Time left that is promised, for all leases.
    pub valid_for: Duration,
    /// Until when the service renews the lease. Milliseconds since 1970.
    pub kept_until_ms: u64,
    /// How long the service renews it from now on.
    pub kept_for: Duration,
    /// The labels as on the nodes now.
    pub labels: Labels,
}

/// Why there is no ticket, or why it was not shown or changed.
#[derive(Debug, Clone)]
pub enum TicketError {
    /// No majority has such a ticket.
    NotFound,
    /// The ticket waits, and has no lease yet.
    Waiting,
    /// The ticket is over, for this reason.
    Over(TicketEnd),
    /// This instance serves the maximum number of tickets, or the maximum number waits, in all or for one of the resources.
    TooMany {
        /// The limit that was reached.
        limit: usize,
        /// Whether the limit is for one resource.
        per_resource: bool,
    },
    /// The ticket is larger than a node would store.
    TooLarge {
        /// The field that takes most of the space.
        field: &'static str,
        /// Length of what would be stored.
        bytes: usize,
    },
    /// The instance is shutting down.
    Draining,
    /// The ticket's call-back may not be sent to this address.
    Callback(CallbackRefused),
    /// Too few nodes answered; nothing is known to have changed.
    NoQuorum(NoQuorum),
    /// The ticket's lease would be kept for too long, or too many are kept here.
    Keep(ExtendError),
}
