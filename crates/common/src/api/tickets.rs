//! Tickets: requests for a kept lease that wait without a connection.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::locks::TokenText;

/// A ticket. Its owner, note and metadata are shown only to callers that have its token or made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketStatus {
    /// The ticket's id; not secret.
    pub ticket: String,
    /// The token of the future lease; only in the answer to the request that made the ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText>,
    /// Identifies the lease.
    pub token_id: String,
    /// The name of the lock; absent for several locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The names of several locks, which are granted together or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<String>>,
    /// How the lease shares the lock: `exclusive`, `shared` or `permit`.
    #[serde(default)]
    pub mode: String,
    /// For a permit: the number of permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u8>,
    /// For a permit, while it is held: its number, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u8>,
    /// `waiting`, `granted`, `accepted` or `ended`.
    pub state: String,
    /// Why the ticket ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
    /// The ticket's place in the queue, if the answering instance serves it; 1 is next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// The owner's label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The holder's note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The holder's own labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// When the ticket was made. For display.
    pub made_at: String,
    /// While the ticket waits: the end of its wait. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The fencing token, once the lease is granted; absent for several locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// For several locks, while the ticket has their leases: the fencing token of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<Vec<TicketFence>>,
    /// While the ticket has a lease: how long the lease can be relied on. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_for_ms: Option<u64>,
    /// While the ticket has a lease: until when the service renews it. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<String>,
    /// How long the service still renews it. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_for_ms: Option<u64>,
}

/// One lease of a ticket for several locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketFence {
    /// The name of the lock.
    pub resource: String,
    /// The fencing token of the lock's lease.
    pub fence: u64,
}
