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
    /// What is to be protected.
    pub resource: ResourceName,
    /// Times and mode.
    pub terms: AskedTerms,
    /// Shown to people.
    pub labels: Labels,
    /// Of the lease.
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
    /// Its name.
    pub id: TicketId,
    /// What it asks for.
    pub ticket: Ticket,
    /// Its state.
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

    /// Whether this token is its own.
    pub fn is_of(&self, token: &TokenHash) -> bool {
        self.ticket.token == *token
    }
}

/// A ticket's lease, as far as it is promised now.
#[derive(Debug, Clone)]
pub struct TicketLease {
    /// Its fence.
    pub fence: Fence,
    /// Time left that is promised.
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
    /// It still waits.
    Waiting,
    /// It is over.
    Over(TicketEnd),
    /// This instance serves as many as it may.
    TooMany(usize),
    /// Shutting down.
    Draining,
    /// Its call-back may not go there.
    Callback(CallbackRefused),
    /// Too few nodes answered; nothing is known to have changed.
    NoQuorum(NoQuorum),
    /// Its lease would be kept for too long, or too many are kept here.
    Keep(ExtendError),
}
