//! Nodes as operators see them, and health.

use serde::{Deserialize, Serialize};

use super::locks::Quorum;

/// A property of a node that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// A stable identifier.
    pub code: String,
    /// One sentence, with the remedy.
    pub detail: String,
    /// Whether the node has no vote because of it.
    pub bars: bool,
}

/// One node's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    pub node: String,
    /// `up`, `down`, or one word with the reason why it has no vote.
    pub state: String,
    /// Whether it votes.
    pub votes: bool,
    /// How long it has been in this state. Milliseconds.
    pub state_for_ms: u64,
    /// Time until it votes again, if known. Milliseconds.
    pub votes_in_ms: Option<u64>,
    /// Why it has no vote, in one sentence.
    pub why: Option<String>,
    /// The nodes without which it gets no vote, however long it waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
    /// Round trip of the last probe. Microseconds.
    pub latency_us: Option<u64>,
    /// Its clock minus the service's. Milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The `run_id` of its process.
    pub run_id: Option<String>,
    /// The server's version.
    pub version: Option<String>,
    /// How often its process changed.
    pub restarts: u64,
    /// Properties that cost its vote or should be checked.
    pub findings: Vec<Finding>,
    /// The number of the view that it has installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<u64>,
}

/// A change of the list of nodes that is not complete: nobody votes until it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeListChange {
    /// The names that voted.
    pub from: Vec<String>,
    /// Those that are to vote.
    pub to: Vec<String>,
}

/// The answer to `GET /nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// In configured order.
    pub nodes: Vec<NodeState>,
    /// `granted` counts the nodes that vote.
    pub quorum: Quorum,
    /// How long rounds wait for a node's answer. Milliseconds; `None` from releases before it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_timeout_ms: Option<u64>,
    /// The number of the view in which this instance asks for votes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<u64>,
    /// The change of the list that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<NodeListChange>,
}

/// The successful answer to `GET /health/live` and `/health/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `live` or `ready`.
    pub status: String,
    /// While some nodes do not vote: which, since when, until when and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub situation: Option<String>,
    /// What an operator does about it, or must not do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}
