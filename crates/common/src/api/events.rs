//! Events of the cluster, and of a stream that holds a lock.

use serde::{Deserialize, Serialize};

use super::locks::Lease;
use super::problem::{DeadlockEdge, ProblemDetails};

/// An event of a stream that holds a lock (`hold=true`): one object per line or event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "it is written at once")]
pub enum HoldEvent {
    /// The request waits.
    Queued {
        /// Position in the queue of the answering instance; 1 is next.
        position: usize,
    },
    /// The lease was granted, with its token.
    Acquired(Lease),
    /// The lease was renewed.
    Renewed {
        /// Validity: how long the lease can be relied on. Milliseconds.
        valid_for_ms: u64,
    },
    /// A renewal failed; it is repeated until the validity ends.
    AtRisk {
        /// Validity: how long the lease can be relied on. Milliseconds.
        valid_for_ms: u64,
    },
    /// The instance stops. The lease stays until its deadline: a repeated request with its token continues the hold at another
    /// instance. The body is aborted.
    Moved {
        /// Validity: how long the lease can be relied on. Milliseconds.
        valid_for_ms: u64,
    },
    /// The lease has ended; the body is aborted.
    Lost {
        /// `expired`, `forced`, `quorum` or `max_hold`.
        reason: String,
    },
    /// The request was refused; the body is aborted.
    Refused(ProblemDetails),
}

impl HoldEvent {
    /// The event's name, the member `event`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Acquired(_) => "acquired",
            Self::Renewed { .. } => "renewed",
            Self::AtRisk { .. } => "at_risk",
            Self::Moved { .. } => "moved",
            Self::Lost { .. } => "lost",
            Self::Refused(_) => "refused",
        }
    }
}

/// An event of the cluster. Never has a token.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// `acquired`, `extended`, `released`, `expired`, `forced`, `lost`, `deadlock`, `node_down`, `node_up`, `quarantined`,
    /// `two_servers`, `quorum_lost`, `quorum_back`, `started`, `stopping` or `reloaded`.
    pub event: String,
    /// The time of the event, on the clock of the reporting instance. Milliseconds since 1970.
    pub at_ms: u64,
    /// `at_ms`, for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The name of the lock, for events of leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Identifies the lease; public, unlike the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// The owner's label, if the reporting instance knew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The fencing token, if the reporting instance knew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// `shared` or `permit`; absent for exclusive leases, and if the reporting instance did not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The number of the permit, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<u8>,
    /// The lease's validity. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_for_ms: Option<u64>,
    /// The mode of a forced end, the reason of a loss, whether the newest request of a deadlock was `refused` or only
    /// `reported`, or the state of a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Details for people: why a node has no vote, or which nodes have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How long the lease was held, the node had no vote, or the quorum was missing. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// Time until a node in quarantine votes again. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// `quorum_back`: how many requests had failed meanwhile at the reporting instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    /// `forced`: the authenticated principal of the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The instance that reports an incident of its own: the name of one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The node, only in events about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `deadlock`: each waiting owner with the next, from the newest request on, without parts that the reader may not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle: Option<Vec<DeadlockEdge>>,
    /// Identifies the event across instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The answer to `GET /events` for the past.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastEvents {
    /// Matching events, newest first.
    pub events: Vec<Event>,
    /// Whether older matching events were left off.
    pub has_more: bool,
    /// Periods of which incidents may be missing here, the oldest first.
    #[serde(default)]
    pub gaps: Vec<EventGap>,
}

/// A period whose events an instance does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventGap {
    /// Its begin; `None` if nothing before its end is known. Milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<u64>,
    /// `from_ms`, for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Its end. Milliseconds since 1970.
    pub to_ms: u64,
    /// `to_ms`, for display.
    pub to: String,
    /// `not-running`: the answering instance did not run, or stood still; `cut-off`: no node passed events on to it.
    pub reason: String,
}
