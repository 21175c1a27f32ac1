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
    /// What is to be protected; of several the first.
    pub resource: ResourceName,
    /// The others, which differ from it and from each other: all are granted, or none.
    pub others: Vec<ResourceName>,
    /// What the lease is to be, and until when it is wanted.
    pub terms: AskedTerms,
    /// Owner, note and metadata of the lease.
    pub labels: Labels,
    /// The token that the lease will have.
    pub token: Token,
    /// Who asks; `None` without authentication.
    pub principal: Option<Arc<Principal>>,
    /// Who is informed of the grant, and for how long that is offered; `None`: the caller asks.
    pub callback: Option<(Callback, Duration)>,
    /// Counts it in the principal's quota while it waits.
    pub permit: Option<Arc<QuotaPermit>>,
}

/// What the lease is to be, and when it is wanted.
#[derive(Debug, Clone, Copy)]
pub struct AskedTerms {
    /// TTL of the lease.
    pub ttl: Ttl,
    /// For how long to wait.
    pub wait: Duration,
    /// For how long after the grant the lease is kept.
    pub keep: Duration,
    /// How the lease is to share the resource.
    pub mode: WantedMode,
    /// It ends if it is the newest in a deadlock.
    pub refuses_deadlock: bool,
}

/// A ticket on a majority of nodes.
#[derive(Debug, Clone)]
pub struct FoundTicket {
    pub id: TicketId,
    /// What it asks for.
    pub ticket: Ticket,
    pub head: TicketHead,
}

impl FoundTicket {
    /// The word of its state.
    pub fn state(&self) -> &'static str {
        phase_word(self.head.phase)
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self.head.phase, TicketPhase::Ended | TicketPhase::Done)
    }

    /// Whether it is for these resources, in whatever order.
    pub fn is_for(&self, names: &[ResourceName]) -> bool {
        self.ticket.resources().count() == names.len() && self.ticket.resources().all(|name| names.contains(name))
    }

    /// Whether this token is its own.
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

/// A ticket's lease, or its leases, as far as it is promised now.
#[derive(Debug, Clone)]
pub struct TicketLease {
    /// Its fence; of several in the order of the resources.
    pub fences: Box<[Fence]>,
    /// The number of its permit, if it is one.
    pub slot: Option<u8>,
    /// Time left that is promised, of all.
    pub valid_for: Duration,
    /// Until when the service renews it. Milliseconds since 1970.
    pub kept_until_ms: u64,
    /// The same from now on.
    pub kept_for: Duration,
    /// As on the nodes now.
    pub labels: Labels,
}

/// Why there is no ticket, or none was shown or changed.
#[derive(Debug, Clone)]
pub enum TicketError {
    /// No majority has such a ticket.
    NotFound,
    /// It waits, and has no lease yet.
    Waiting,
    /// It is over, for this reason.
    Over(TicketEnd),
    /// This instance serves as many as it may, or as many wait, or as many for one of the resources.
    TooMany {
        /// The limit that was reached.
        limit: usize,
        /// The limit is for a resource.
        per_resource: bool,
    },
    /// A node would not store so much.
    TooLarge {
        /// What takes most of it.
        field: &'static str,
        /// Length of what would be stored.
        bytes: usize,
    },
    /// The instance is shutting down.
    Draining,
    /// Its call-back may not go there.
    Callback(CallbackRefused),
    /// Too few nodes answered; nothing is known to have changed.
    NoQuorum(NoQuorum),
    /// Its lease would be kept for too long, or too many are kept here.
    Keep(ExtendError),
}
