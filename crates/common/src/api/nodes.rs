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
    /// Whether the finding removes the node's vote.
    pub bars: bool,
}

/// One node's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    pub node: String,
    /// `up`, `down`, or one word with the reason why it has no vote.
    pub state: String,
    /// Whether the node votes.
    pub votes: bool,
    /// How long the node has been in this state. Milliseconds.
    pub state_for_ms: u64,
    /// Time until the node votes again, if known. Milliseconds.
    pub votes_in_ms: Option<u64>,
    /// Why the node has no vote, in one sentence.
    pub why: Option<String>,
    /// The nodes without which this node gets no vote, however long it waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
    /// Round trip of the last probe. Microseconds.
    pub latency_us: Option<u64>,
    /// The node's clock minus the service's. Milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The `run_id` of the node's process.
    pub run_id: Option<String>,
    /// The server's version.
    pub version: Option<String>,
    /// Whether it syncs each write before it replies, with the setting `durable_nodes`.
    #[serde(default)]
    pub durable: bool,
    /// How often the node's process changed.
    pub restarts: u64,
    /// Findings that remove the node's vote or should be checked.
    pub findings: Vec<Finding>,
    /// The number of the view that the node has installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<u64>,
}

/// An incomplete change of the list of nodes: no node votes until it is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeListChange {
    /// The names that voted.
    pub from: Vec<String>,
    /// The names that will vote.
    pub to: Vec<String>,
}

/// Settings on which all instances agree. Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTerms {
    /// The setting `guard`.
    pub guard_ms: u64,
    /// The setting `lock_delay`.
    pub lock_delay_ms: u64,
    /// The setting `fence_ttl`.
    pub fence_ttl_ms: u64,
}

/// An incomplete change of the terms: no node votes until it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTermsChange {
    /// The terms that counted.
    pub from: NodeTerms,
    /// The terms that will count.
    pub to: NodeTerms,
}

/// The answer to `GET /nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// The nodes in configured order.
    pub nodes: Vec<NodeState>,
    /// `granted` counts the nodes that vote.
    pub quorum: Quorum,
    /// How long rounds wait for a node's answer. Milliseconds; `None` from releases that did not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_timeout_ms: Option<u64>,
    /// The number of the view in which this instance asks for votes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<u64>,
    /// The change of the list that is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<NodeListChange>,
    /// The terms in force, if the instance that answers is configured with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<NodeTerms>,
    /// The change of the terms that is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms_change: Option<NodeTermsChange>,
}

/// The successful answer to `GET /health/live` and `/health/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `live` or `ready`.
    pub status: String,
    /// While some nodes do not vote: which nodes, since when, until when and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub situation: Option<String>,
    /// What an operator should do, or must not do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}
