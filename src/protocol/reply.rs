//! What a node answers, and how it can fail to.

use std::fmt;
use std::sync::Arc;

use super::record::LeaseRecord;
use super::request::EndReason;
use crate::types::{Fence, ResourceName};

/// What a node answered. Which request may get which answer is said at [`Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A vote. `joined`: the token already held it here.
    Granted { fence: Fence, joined: bool },
    /// Somebody else has it. `left_ms` is the key's TTL, `None` for a foreign key without one;
    /// `record` is `None` for a foreigner's lock.
    Held { left_ms: Option<u64>, record: Option<LeaseRecord> },
    /// Extended. `record` is the lease as it stands now; `before_ms` what the key had left before.
    Updated { record: LeaseRecord, before_ms: u64 },
    /// The node has no such key.
    Missing,
    /// Somebody else's, or (with a fence) this token's next lease.
    Other { fence: Option<Fence> },
    /// This token's lease, or this attempt, was ended for good.
    Ended { reason: EndReason },
    /// More than [`MAX_CLAIMS`] attempts claim the lease.
    TooManyClaims,
    /// The fence lies further ahead than clocks may differ.
    FenceTooFarAhead,
    /// Repaired.
    Restored,
    /// Of a release, a cancel or an eviction.
    Released(Released),
    /// Renewals are refused from now on; the key ends in `left_ms`.
    Revoked { left_ms: u64 },
    /// This node has no vote.
    NoVote(NoVote),
    /// See [`Request::Inspect`].
    Inspected(NodeInspection),
    /// See [`Request::List`]. `next` is `None` at the end.
    Page { next: Option<u64>, leases: Vec<ListedLease> },
    /// See [`Request::Probe`].
    Status(NodeStatus),
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// What stood there.
    pub found: Found,
    /// The tombstone that an earlier release or revocation had left.
    pub earlier: Option<EndReason>,
}

/// What a release found in place of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The lease (or claim) itself; it is gone now.
    Match,
    /// Nothing.
    Nothing,
    /// Another lease or a foreigner's lock, untouched.
    Other,
}

/// Why a node has no vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoVote {
    /// It may have forgotten leases that are still running.
    Quarantined { left_ms: u64 },
    /// Quarantine is over; the others have not yet told it their fences.
    Unseeded { high_water: Fence },
    /// The request was late, or one of the two clocks is off. `node_us` is the node's time,
    /// microseconds since 1970.
    ClockOff { node_us: u64 },
    /// It belongs to instances with another node list, guard, lock delay or key template.
    OtherCluster { theirs: String },
}

/// One node's view of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInspection {
    /// Why the node has no vote, if so.
    pub no_vote: Option<NoVote>,
    /// What it holds.
    pub lock: StoredLock,
}

/// What stands at the lock's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredLock {
    /// Nothing.
    Free,
    /// A lease of ours.
    Lease { record: LeaseRecord, left_ms: u64 },
    /// Somebody else's key: no TTL where `left_ms` is `None`. The fingerprint is a SHA-1 of the
    /// value, or `type:` and the key's type; the value itself is a secret of its holder.
    Foreign { left_ms: Option<u64>, fingerprint: Arc<str> },
}

/// One lease on one node's page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedLease {
    /// What is held.
    pub resource: ResourceName,
    /// By whom.
    pub record: LeaseRecord,
    /// The key's TTL on the node.
    pub left_ms: u64,
}

/// A node's own affairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// Whether it votes.
    pub vote: Vote,
    /// Its clock, microseconds since 1970.
    pub now_us: u64,
    /// The highest fence that it has seen.
    pub high_water: Fence,
    /// The process that answers: Redis' `run_id`.
    pub run: String,
    /// Why it entered its present state: `init`, `blank`, `restart`, `clock`, `evicted`, `ordered`; may be empty.
    pub why: String,
    /// Since when, on the node's clock. Microseconds since 1970, 0 if unknown.
    pub since_us: u64,
    /// End of the last quarantine on the node's clock. Microseconds since 1970, 0 if there was none.
    pub until_us: u64,
}

/// Whether a node votes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vote {
    /// It does.
    Active,
    /// It does not.
    NoVote(NoVote),
    /// Answer to an `Init` only: the node carries a marker already.
    AlreadyInitialised,
}

/// No usable answer from a node. The request may still have taken effect, or may yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {detail}")]
pub struct Unreachable {
    /// What kind, for metrics and for the caller.
    pub kind: UnreachableKind,
    /// For the log only: may name addresses.
    pub detail: Arc<str>,
}

impl Unreachable {
    /// An error with its detail for the log.
    pub fn new(kind: UnreachableKind, detail: impl Into<Arc<str>>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

/// Kinds of [`Unreachable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnreachableKind {
    /// No answer within the node timeout.
    Timeout,
    /// No connection; nothing was sent.
    Disconnected,
    /// The connection broke while the request was under way.
    Broken,
    /// More requests under way than the limit; nothing was sent.
    Overloaded,
    /// Wrong password, or not permitted.
    Auth,
    /// A replica.
    ReadOnly,
    /// Memory full.
    Full,
    /// Still loading its data, or busy in a script.
    Busy,
    /// Unsuitable to vote: see the node's findings. Nothing was sent.
    Unsuitable,
    /// An answer that is none.
    Protocol,
}

impl UnreachableKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Timeout,
        Self::Disconnected,
        Self::Broken,
        Self::Overloaded,
        Self::Auth,
        Self::ReadOnly,
        Self::Full,
        Self::Busy,
        Self::Unsuitable,
        Self::Protocol,
    ];

    /// The word in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::Broken => "broken",
            Self::Overloaded => "overloaded",
            Self::Auth => "auth",
            Self::ReadOnly => "read-only",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Unsuitable => "unsuitable",
            Self::Protocol => "protocol",
        }
    }
}

impl fmt::Display for UnreachableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One node's answer to one request.
pub type NodeResult = Result<Reply, Unreachable>;
