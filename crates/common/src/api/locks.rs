//! Locks, leases, their holders and waiters.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A token in an answer. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenText<S = String>(pub S);

impl<S> fmt::Debug for TokenText<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenText(…)")
    }
}

/// The result of a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quorum {
    /// Nodes that granted.
    pub granted: usize,
    /// How many nodes must grant: N/2 + 1.
    pub needed: usize,
    /// Nodes configured.
    pub nodes: usize,
}

/// The answer to an acquire (with `token`) and to an extend (without). The service writes it from borrowed texts and metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease<S = String, M = BTreeMap<String, String>> {
    /// The name of the lock.
    pub resource: S,
    /// `exclusive`, `shared` or `permit`.
    pub mode: S,
    /// The number of the permit, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u8>,
    /// Number of permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u8>,
    /// The token that proves the lease; only in the answer to an acquire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText<S>>,
    /// Identifies the lease; public, unlike the token.
    pub token_id: S,
    /// The fencing token.
    pub fence: u64,
    /// The owner's label. This and the next three fields are absent in the answer to an extend that did not read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<S>,
    /// The holder's note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<S>,
    /// The holder's own labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<M>,
    /// When the lease was granted. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired_at: Option<S>,
    /// End of the validity on the service's wall clock. For display.
    pub expires_at: S,
    /// The requested TTL. Milliseconds.
    pub ttl_ms: u64,
    /// Validity: how long the lease can be relied on. Milliseconds.
    pub valid_for_ms: u64,
    /// Until when the service renews the lease, if it does. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<S>,
    /// How long the service still renews the lease, if it does. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_for_ms: Option<u64>,
    /// How long the request waited; only in the answer to an acquire. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Number of extends; only in the answer to an extend, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewals: Option<u32>,
    /// How many nodes granted or extended the lease.
    pub quorum: Quorum,
}

/// A lease as other clients may see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Identifies the lease; public, unlike the token.
    pub token_id: String,
    /// The number of its permit, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u8>,
    /// The owner's label.
    pub owner: String,
    /// The holder's note.
    pub note: String,
    /// The holder's own labels; empty without any.
    pub metadata: BTreeMap<String, String>,
    /// The fencing token.
    pub fence: u64,
    /// When the lease was granted. For display.
    pub acquired_at: String,
    /// Maximum remaining validity. Milliseconds; zero during the lock delay, and if the state is `unknown`; `None` if a refusal
    /// does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_for_ms: Option<u64>,
    /// Until when the service renews the lease, if it does. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<String>,
    /// How long the service still renews the lease, if it does. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_for_ms: Option<u64>,
    /// Number of extends.
    pub renewals: u32,
}

/// A request in the queue of one lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The instance of the queue: the name of one run.
    #[serde(default)]
    pub instance: String,
    /// Position in that instance's queue; 1 is next.
    pub position: usize,
    /// The waiter's owner label.
    pub owner: String,
    /// `exclusive`, `shared` or `permit`.
    pub mode: String,
    /// How long it has waited. Milliseconds.
    pub waiting_ms: u64,
    /// Maximum further wait; `None` from an instance of an earlier release that does not report it. Milliseconds.
    #[serde(default)]
    pub left_ms: Option<u64>,
    /// The waiter's note; for waiters at other instances, its beginning.
    #[serde(default)]
    pub note: String,
    /// Whether a ticket waits instead of a connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ticket: bool,
}

/// One node's state of one lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHold {
    pub node: String,
    /// The `token_id` of the lease on the node; of several, the first one's.
    pub holds: Option<String>,
    /// If several leases share the lock: the `token_id` of each that the node has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds_all: Vec<String>,
    /// The key's TTL on the node. Milliseconds.
    pub ttl_ms: Option<u64>,
    /// The key belongs to another Redlock client.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// `granted` if the node answered and votes, else one word with the reason.
    pub state: String,
}

/// The answer to `GET /locks/{resource}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockDetails {
    /// The name of the lock.
    pub resource: String,
    /// `held`, `lock-delay` during the safety margin after the last lease, or `unknown` if fewer than a quorum of nodes confirm
    /// the lease: then neither the lease nor its end can be relied on.
    pub state: String,
    /// `exclusive`, `shared` or `permit`.
    pub mode: String,
    /// Number of permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u8>,
    /// Number of free permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<usize>,
    /// Another Redlock client holds it; its holder is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// One holder; several for shared leases and permits; none for a foreign client.
    pub holders: Vec<Holder>,
    /// The waiters: all of the answering instance, then the first ones of every other instance.
    pub waiters: Vec<Waiter>,
    /// Number of waiters at all instances.
    #[serde(default)]
    pub waiting: usize,
    /// Number of waiters at the answering instance.
    #[serde(default)]
    pub waiting_here: usize,
    /// Whether the waiters of all other instances are known.
    #[serde(default)]
    pub waiters_known: bool,
    /// The answering instance.
    #[serde(default)]
    pub answered_by: String,
    /// The state on each node.
    pub nodes: Vec<NodeHold>,
    /// Nodes that hold it, needed, configured.
    pub quorum: Quorum,
    /// The service's wall clock at the answer. For display.
    pub observed_at: String,
}

/// The answer to `DELETE …?force=revoke`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// The name of the lock.
    pub resource: String,
    /// When the lock will be free. For display.
    pub frees_at: String,
    /// Time until the lock is free. Milliseconds.
    pub frees_in_ms: u64,
}

/// The answer to `GET /fences/{resource}`: the fence is that of the current lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceCheck {
    /// The name of the lock.
    pub resource: String,
    /// The checked fence.
    pub fence: u64,
    /// Identifies the lease; public, unlike the token.
    pub token_id: String,
    /// Time until the lease ends, unless it is renewed. Milliseconds.
    pub valid_for_ms: u64,
}

/// One entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListEntry {
    /// The name of the lock.
    pub resource: String,
    /// `held`, `lock-delay`, `unknown`, or `waited` if it is free and has waiters.
    pub state: String,
    /// `exclusive`, `shared` or `permit`.
    pub mode: String,
    /// Number of permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u8>,
    /// Number of free permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<usize>,
    /// One holder; several for shared leases and permits; none if the lock only has waiters.
    pub holders: Vec<Holder>,
    /// Number of waiters at all instances.
    pub waiting: usize,
    /// Number of waiters at each instance that has any; the answering instance comes first.
    #[serde(default)]
    pub waiting_at: Vec<WaitingAt>,
}

/// The waiters for one lock at one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingAt {
    /// The name of one run of an instance.
    pub instance: String,
    /// Number of waiters at that instance.
    pub waiting: usize,
    /// How long the oldest of them has waited. Milliseconds.
    pub oldest_ms: u64,
}

/// The answer to `GET /locks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// The entries in the order of their names.
    pub items: Vec<ListEntry>,
    /// The `cursor` of the next page; null on the last one.
    pub next_cursor: Option<String>,
    /// Whether a quorum of nodes answered.
    pub complete: bool,
    /// If the list is not complete: each node that does not vote, with its reason and time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// Age of the snapshot. Milliseconds.
    pub age_ms: u64,
    /// Leases in the whole snapshot, before filtering.
    pub total: usize,
    /// Whether the waiters of all other instances are known.
    #[serde(default)]
    pub waiters_known: bool,
    /// The answering instance.
    #[serde(default)]
    pub answered_by: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_does_not_print() {
        let shown = format!("{:?}", TokenText("abcdefghijklmnopqrstuv"));
        assert!(!shown.contains("abc"), "{shown}");
    }
}
