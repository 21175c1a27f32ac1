//! Several locks at once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::locks::{Quorum, TokenText};

/// The answer to an acquire of several locks: ordinary leases with one token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseSet {
    /// One for each lock, in the order of the request.
    pub leases: Vec<LeaseOfSet>,
    /// The mode of all leases: `exclusive` or `shared`.
    pub mode: String,
    /// The token that proves each lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText>,
    /// Identifies the token; public.
    pub token_id: String,
    /// The owner's label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The holder's note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The holder's own labels, the same for all leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// When the leases were granted. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired_at: Option<String>,
    /// End of the validity of all leases on the service's wall clock. For display.
    pub expires_at: String,
    /// The requested TTL. Milliseconds.
    pub ttl_ms: u64,
    /// Validity: how long all leases can be relied on. Milliseconds.
    pub valid_for_ms: u64,
    /// Until when the service renews the leases, if it does. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<String>,
    /// How long the service still renews them. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_for_ms: Option<u64>,
    /// How long the request waited. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    pub quorum: Quorum,
}

/// One lease of a [`LeaseSet`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseOfSet {
    /// The name of the lock.
    pub resource: String,
    /// The fencing token.
    pub fence: u64,
    /// The token already held the lease.
    #[serde(default, rename = "replay", skip_serializing_if = "std::ops::Not::not")]
    pub is_replay: bool,
}

/// The answer to an extend or a release of several leases, if all succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetResults {
    /// One for each lock, in the order of the request.
    pub results: Vec<SetResult>,
    /// After an extend: how long all leases can be relied on. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_for_ms: Option<u64>,
}

/// The result for one of several locks: the answer that a request for it alone would have had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetResult {
    /// The name of the lock.
    pub resource: String,
    /// 200: extended; 204: released; otherwise the status of a problem.
    pub status: u16,
    /// The kind of the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slug: Option<String>,
    /// The problem's reason, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One sentence about the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// After an extend: the fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// After an extend: end of the validity. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// After an extend: validity. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_for_ms: Option<u64>,
}

impl SetResult {
    /// A result for this lock, with this status.
    pub fn of(resource: &str, status: u16) -> Self {
        Self {
            resource: resource.to_owned(),
            status,
            slug: None,
            reason: None,
            detail: None,
            fence: None,
            expires_at: None,
            valid_for_ms: None,
        }
    }
}

/// A lock that prevents an acquire of several locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedBy {
    /// The name of the lock.
    pub resource: String,
    /// The holder's owner label; null for another Redlock client's lock.
    pub owner: Option<String>,
    /// The holder's fencing token; null for another Redlock client's lock.
    pub fence: Option<u64>,
}
