//! Targets of call-backs, and hooks, as operators see them. No URL beyond its host, and no secret.

use serde::{Deserialize, Serialize};

/// A try to send a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookTry {
    /// When it ended. For display.
    pub at: String,
    /// Whether it was accepted (2xx).
    pub accepted: bool,
    /// The status of the answer, or why there was none.
    pub answer: String,
    /// How long it took. Milliseconds.
    pub took_ms: u64,
}

/// A receiver of messages, which the webhooks file names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookTarget {
    /// Unique among the targets.
    pub name: String,
    /// Scheme, host and port.
    pub origin: String,
    /// `standard`, `github-dispatch` or `gitlab-trigger`.
    pub form: String,
    /// How many secrets sign its messages.
    pub secrets: usize,
    /// Who may name it; absent: everybody who may acquire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principals: Option<Vec<String>>,
    /// The last try, of whatever message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<HookTry>,
    /// Call-backs of tickets to it that are not accepted yet.
    #[serde(default)]
    pub callbacks: usize,
    /// Until the next try of one of them; absent: none pauses.
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
    /// What it is about.
    pub events: Vec<String>,
    /// Patterns of the names of locks; empty: all.
    pub names: Vec<String>,
    /// `on`, `failing` or `off`.
    pub state: String,
    /// Only while it is off: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Since when it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Messages that wait for a try or are under way.
    pub queued: usize,
    /// Until the next try. Milliseconds.
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

/// The answer to `GET /hooks`: as the instance that answers sees them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// The instance: each has its own queues.
    pub instance: String,
    /// In the order of the file.
    pub targets: Vec<HookTarget>,
    /// In the order of the file.
    pub hooks: Vec<HookState>,
}

/// The answer to `POST /hooks/{name}/replay`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReplay {
    /// How many messages are sent again.
    pub queued: usize,
}
