//! The wire types of the HTTP contract: what an answer and a problem look like as JSON. Shared by
//! the server and the client, and therefore apart from both. Knows serde and nothing else: no
//! domain type, no clock, no HTTP library.
//!
//! Integers carry their unit in the name (`ttl_ms`). Times are RFC 3339 in UTC and for people; a
//! client trusts `valid_for_ms`, counted from before it sent its request.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The one mode that there is so far.
pub const MODE_EXCLUSIVE: &str = "exclusive";

/// A token on the wire. Its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How a vote went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quorum {
    /// Nodes that said yes.
    pub granted: usize,
    /// Nodes that must.
    pub needed: usize,
    /// Nodes configured.
    pub nodes: usize,
}

/// The answer to an acquire (with `token`) and to an extend (without).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// What is protected.
    pub resource: String,
    /// Always [`MODE_EXCLUSIVE`].
    pub mode: String,
    /// The proof; only in the answer to an acquire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// Names the lease without proving it.
    pub token_id: String,
    /// The fencing token.
    pub fence: u64,
    /// Who the holder says it is. This and the next three: absent in the answer to an extend that did not
    /// have to read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// More of the same, in pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// When it was granted. For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired_at: Option<String>,
    /// When it can no longer be relied on, on the service's wall clock. For people.
    pub expires_at: String,
    /// The TTL asked for. Milliseconds.
    pub ttl_ms: u64,
    /// For how long it can be relied on. Milliseconds.
    pub valid_for_ms: u64,
    /// How long the request queued and tried; only in the answer to an acquire. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// How often it was extended; only in the answer to an extend, and only where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewals: Option<u32>,
    /// The vote.
    pub quorum: Quorum,
}

/// Somebody's lease as others may see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Names the lease without proving it.
    pub token_id: String,
    /// Who the holder says it is.
    pub owner: String,
    /// What it is doing.
    pub note: String,
    /// More of the same, in pairs.
    pub metadata: BTreeMap<String, String>,
    /// The fencing token.
    pub fence: u64,
    /// When it was granted. For people.
    pub acquired_at: String,
    /// What is left of the promise, at most. Milliseconds; zero while the lock delay passes.
    pub valid_for_ms: u64,
    /// How often it was extended.
    pub renewals: u32,
}

/// A place in the queue of the instance that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// 1 is next.
    pub position: usize,
    /// Who waits, as it says itself.
    pub owner: String,
    /// Always [`MODE_EXCLUSIVE`].
    pub mode: String,
    /// Since how long. Milliseconds.
    pub waiting_ms: u64,
}

/// What one node says of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHold {
    /// Which node.
    pub node: String,
    /// The `token_id` of the lease that it holds.
    pub holds: Option<String>,
    /// The key's TTL there. Milliseconds.
    pub ttl_ms: Option<u64>,
    /// It holds another Redlock client's lock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// `granted` where it answered and votes, else one word that says why not.
    pub state: String,
}

/// The answer to `GET /locks/{resource}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Which.
    pub resource: String,
    /// `held`, or `lock-delay` while the safety margin of the last lease passes.
    pub state: String,
    /// Always [`MODE_EXCLUSIVE`].
    pub mode: String,
    /// Another Redlock client has it: nothing is known of the holder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// One, or none for a foreigner.
    pub holders: Vec<Holder>,
    /// Who queues in the instance that answers.
    pub waiters: Vec<Waiter>,
    /// What each node says.
    pub nodes: Vec<NodeHold>,
    /// Nodes that hold it, needed, configured.
    pub quorum: Quorum,
    /// The service's wall clock at the answer. For people.
    pub observed_at: String,
}

/// The answer to `DELETE …?force=revoke`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// Which.
    pub resource: String,
    /// When it will be free. For people.
    pub frees_at: String,
    /// The same, from now. Milliseconds.
    pub frees_in_ms: u64,
}

/// One entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListEntry {
    /// What is held, or waited for.
    pub resource: String,
    /// `held`, `lock-delay`, or `waited` where nobody holds it.
    pub state: String,
    /// Always [`MODE_EXCLUSIVE`].
    pub mode: String,
    /// One, or none where it is only waited for.
    pub holders: Vec<Holder>,
    /// How many queue for it in the instance that answers.
    pub waiting: usize,
}

/// The answer to `GET /locks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// In order of their names.
    pub items: Vec<ListEntry>,
    /// Send it as `cursor` for the next page; null on the last one.
    pub next_cursor: Option<String>,
    /// A quorum of nodes stands behind it.
    pub complete: bool,
    /// How old the snapshot is. Milliseconds.
    pub age_ms: u64,
    /// Leases in the whole snapshot, before filtering.
    pub total: usize,
}

/// Something about a node that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable word.
    pub code: String,
    /// One sentence, with what to do.
    pub detail: String,
    /// It costs the node its vote.
    pub bars: bool,
}

/// One node as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// Its name.
    pub node: String,
    /// `up`, `down`, or one word that says why it has no vote.
    pub state: String,
    /// Whether it votes.
    pub votes: bool,
    /// How long it has been in this state. Milliseconds.
    pub state_for_ms: u64,
    /// Until it votes again, where that is known. Milliseconds.
    pub votes_in_ms: Option<u64>,
    /// Why it has no vote, in one sentence.
    pub why: Option<String>,
    /// Round trip of the last probe. Microseconds.
    pub latency_us: Option<u64>,
    /// Its clock minus the service's. Milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The process that answers.
    pub run_id: Option<String>,
    /// The server's version.
    pub version: Option<String>,
    /// How often another process answered than before.
    pub restarts: u64,
    /// What makes it unfit or worth a look.
    pub findings: Vec<Finding>,
}

/// The answer to `GET /nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// In configured order.
    pub nodes: Vec<NodeState>,
    /// `granted` counts the nodes that vote.
    pub quorum: Quorum,
}

/// The answer to `GET /health/live` and `/health/ready` when all is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `live` or `ready`.
    pub status: String,
}

/// What a stream that holds a lock tells, one object per line or event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum HoldEvent {
    /// Others are first.
    Queued {
        /// 1 is next.
        position: usize,
    },
    /// The lease, with its token.
    Acquired(Lease),
    /// It was renewed.
    Renewed {
        /// For how long it can be relied on. Milliseconds.
        valid_for_ms: u64,
    },
    /// A renewal failed; it is tried again until the validity ends.
    AtRisk {
        /// For how long it can be relied on. Milliseconds.
        valid_for_ms: u64,
    },
    /// It can no longer be relied on; the body is broken off.
    Lost {
        /// `expired`, `forced`, `quorum`, `draining` or `max_hold`.
        reason: String,
    },
    /// It was not granted; the body is broken off.
    Refused(Problem),
}

impl HoldEvent {
    /// Its name.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Acquired(_) => "acquired",
            Self::Renewed { .. } => "renewed",
            Self::AtRisk { .. } => "at_risk",
            Self::Lost { .. } => "lost",
            Self::Refused(_) => "refused",
        }
    }
}

/// Something that happened in the cluster. Never a token.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// `acquired`, `extended`, `released`, `expired`, `forced`, `lost`, `node_down`, `node_up` or
    /// `quarantined`.
    pub event: String,
    /// When, on the clock of the instance that tells it. Milliseconds since 1970.
    pub at_ms: u64,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Of what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Names the lease without proving it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// Who the holder says it is, where the instance that acted knew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The fencing token, where the instance that acted knew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// For how long the lease can be relied on. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_for_ms: Option<u64>,
    /// Why: of a forced end the mode, of a loss its reason, of a node its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Which node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Tells it from every other event, between instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// One node's part in an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOutcome {
    /// Which node.
    pub node: String,
    /// One stable word: `granted`, `held`, `timeout`, `quarantined`, …
    pub outcome: String,
    /// What is left of the key that it holds. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// The `token_id` of the lease that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<String>,
    /// Until its quarantine ends. Seconds, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// One field of the input that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// The field, parameter or header.
    pub field: String,
    /// What is wrong with it.
    pub detail: String,
}

/// An error, RFC 9457. The members behind `instance` are extensions; which problem has which is
/// said in `openapi.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Problem {
    /// `/problems/` and the slug.
    #[serde(rename = "type")]
    pub kind: String,
    /// The slug's title.
    pub title: String,
    /// The status code.
    pub status: u16,
    /// This case, in a sentence.
    pub detail: String,
    /// The request's id.
    pub instance: String,
    /// The other members.
    #[serde(flatten)]
    pub members: Members,
}

/// One owner of a deadlock waits for what the next one has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlockEdge {
    /// Who waits.
    pub owner: String,
    /// For what.
    pub waits_for: String,
    /// Who has that.
    pub held_by: String,
    /// Their lease.
    pub token_id: String,
}

/// Extension members of a [`Problem`]; absent where they do not apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Members {
    /// What the problem is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// `locked`: `held`, `foreign`, `lock-delay`. `lease-expired`: `expired`, `released`, `forced`, `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders: Option<Vec<Holder>>,
    /// How many queue for it in the instance that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<usize>,
    /// How long the request queued. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Its place at the end: 1 was next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// What is left of the old promise. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_for_ms: Option<u64>,
    /// `deadlock`: who waits for whom, from this request's owner back to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle: Option<Vec<DeadlockEdge>>,
    /// The vote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quorum: Option<Quorum>,
    /// What each node said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeOutcome>>,
    /// Until the service is expected to be ready. Seconds, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_in_seconds: Option<u64>,
    /// The bound that was met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// What the bound is on: `resource` or `instance`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// `forbidden`: the right that was missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed: Option<String>,
    /// The fields that are wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<Vec<FieldError>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let shown = format!("{:?}", Secret("abcdefghijklmnopqrstuv".into()));
        assert!(!shown.contains("abc"), "{shown}");
    }

    #[test]
    fn a_problem_reads_back_and_shows_no_member_that_it_has_not() {
        let problem = Problem {
            kind: "/problems/lease-expired".into(),
            status: 410,
            members: Members { reason: Some("released".into()), ..Members::default() },
            ..Problem::default()
        };
        let json = serde_json::to_value(&problem).expect("plain data");
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(6), "{json}");
        assert_eq!(serde_json::from_value::<Problem>(json).expect("reads back"), problem);
    }
}
