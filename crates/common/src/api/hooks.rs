//! Targets of call-backs, and hooks, as operators see them. No URL beyond its host, and no secret.

use serde::{Deserialize, Serialize};

/// A try to send a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookTry {
    /// When the try ended. For display.
    pub at: String,
    /// Whether the receiver accepted the message (2xx).
    pub accepted: bool,
    /// The status of the answer, or why there was none.
    pub answer: String,
    /// Duration of the try. Milliseconds.
    pub took_ms: u64,
}

/// A receiver of messages that the webhooks file names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookTarget {
    /// Unique among the targets.
    pub name: String,
    /// Scheme, host and port.
    pub origin: String,
    /// `standard`, `github-dispatch` or `gitlab-trigger`.
    pub form: String,
    /// Number of secrets that sign its messages.
    pub secrets: usize,
    /// The principals that may name the target; absent: every one that may acquire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principals: Option<Vec<String>>,
    /// The last try of any message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<HookTry>,
    /// Call-backs of tickets to it that are not accepted yet.
    #[serde(default)]
    pub callbacks: usize,
    /// Time until the next try of one of them; absent: none pauses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_in_ms: Option<u64>,
}

/// A hook: the events that one target receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookState {
    /// Unique among the hooks.
    pub name: String,
    /// The name of its target.
    pub target: String,
    /// The kinds of events that it receives.
    pub events: Vec<String>,
    /// Patterns of the names of locks; empty: all.
    pub names: Vec<String>,
    /// `on`, `failing` or `off`.
    pub state: String,
    /// Why it is off; only while it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Since when it has been off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Messages that wait for a try or are being sent.
    pub queued: usize,
    /// Time until the next try. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_in_ms: Option<u64>,
    /// Messages that were accepted since the start.
    pub accepted: u64,
    /// Messages that were dropped since the start.
    pub dropped: u64,
    /// Messages whose last try was not accepted.
    pub gave_up: u64,
    /// Messages that a replay sends again.
    pub replayable: usize,
    /// The last try; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<HookTry>,
}

/// The answer to `GET /hooks`: the state at the answering instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// The answering instance: each has its own queues.
    pub instance: String,
    /// In the order of the file.
    pub targets: Vec<HookTarget>,
    /// In the order of the file.
    pub hooks: Vec<HookState>,
}

/// The answer to `POST /hooks/{name}/replay`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReplay {
    /// Number of messages that are sent again.
    pub queued: usize,
}
