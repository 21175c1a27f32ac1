//! Tickets: requests for a kept lease that wait without a connection.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::locks::TokenText;

/// A ticket. Its owner, note and metadata are shown only to callers that have its token or have made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketStatus {
    /// Its name; not secret.
    pub ticket: String,
    /// The token that the lease will have; only in the answer to the request that made the ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText>,
    /// Identifies the lease.
    pub token_id: String,
    /// The name of the lock; not of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The names of several locks, which are granted together or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<String>>,
    /// How the lease is to share the lock: `exclusive`, `shared` or `permit`.
    #[serde(default)]
    pub mode: String,
    /// Of a permit: how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u8>,
    /// Of a permit, while it is held: its number, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u8>,
    /// `waiting`, `granted`, `accepted` or `ended`.
    pub state: String,
    /// Only if it is over: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
    /// Its place in the queue, where the instance that answers serves it; 1 is next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// The owner's label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The holder's note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Labels of the holder's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// When it was made. For display.
    pub made_at: String,
    /// While it waits: until when. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The fencing token, once it is granted; not of several locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Of several locks, while it has their leases: the fencing token of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<Vec<TicketFence>>,
    /// While it has a lease: how long that can be relied on. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_for_ms: Option<u64>,
    /// While it has a lease: until when the service renews it. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<String>,
    /// The same from now on. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_for_ms: Option<u64>,
}

/// One lease of a ticket for several locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketFence {
    /// The name of the lock.
    pub resource: String,
    /// Its fencing token.
    pub fence: u64,
}
