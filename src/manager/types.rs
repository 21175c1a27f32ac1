//! What is asked of the lock manager and what it answers: domain words, no HTTP. The one place where
//! the doors (`http`, later others) and the manager meet.

use std::time::Duration;

pub use super::force::{EndedLease, ForceError, ForceMode, ForceRequest, Forced};
use crate::protocol::EndReason;
use crate::redlock::clock::BootTime;
use crate::redlock::quorum::NodeOutcome;
use crate::types::{Fence, Labels, NodeId, ResourceName, Token, TokenId, Ttl};

/// Ask for a lease.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// What is to be protected.
    pub resource: ResourceName,
    /// For how long.
    pub ttl: Ttl,
    /// How long to queue; zero asks once.
    pub wait: Duration,
    /// For people. `acquired_at_ms` is filled in by the manager.
    pub labels: Labels,
    /// The client's own token: a repeated request joins its lease. `None`: the service draws one.
    pub token: Option<Token>,
}

/// A granted lease.
#[derive(Debug, Clone)]
pub struct GrantedLease {
    /// What is protected.
    pub resource: ResourceName,
    /// The proof.
    pub token: Token,
    /// The fencing token.
    pub fence: Fence,
    /// As stored with the lease.
    pub labels: Labels,
    /// The TTL that was asked for.
    pub ttl: Ttl,
    /// Until when it may be relied on, on the service's boot clock.
    pub deadline: BootTime,
    /// This token held it already: the answer repeats an earlier grant.
    pub replay: bool,
    /// How long the request queued and tried.
    pub waited: Duration,
    /// The vote.
    pub quorum: QuorumCount,
}

/// How a vote went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuorumCount {
    /// Nodes that had said yes when the answer was clear.
    pub granted: usize,
    /// Nodes that must.
    pub needed: usize,
    /// Nodes configured.
    pub nodes: usize,
}

/// Somebody's lease as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderInfo {
    /// Names the lease.
    pub token_id: TokenId,
    /// Its fencing token: also the ETag.
    pub fence: Fence,
    /// For people.
    pub labels: Labels,
    /// What is left of the promise, at most. Zero while the lock delay passes.
    pub valid_for: Duration,
    /// How often it was extended.
    pub renewals: u32,
}

/// A place in this instance's queue as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterInfo {
    /// 1 is next.
    pub position: usize,
    /// Who waits, as it says itself.
    pub owner: String,
    /// Since how long.
    pub waiting: Duration,
}

/// Why a resource is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldReason {
    /// A lease is running.
    Lease,
    /// Another Redlock client has it.
    Foreign,
    /// The last lease ran out; its safety margin is passing.
    LockDelay,
}

/// The resource is taken.
#[derive(Debug, Clone)]
pub struct HeldRefusal {
    /// Why.
    pub reason: HeldReason,
    /// By whom; empty for a foreigner.
    pub holders: Vec<HolderInfo>,
    /// How many queue for it in this instance.
    pub waiting: usize,
    /// The earliest time at which a quorum can be free, where that is known.
    pub free_in: Option<Duration>,
    /// What each node said.
    pub nodes: Vec<NodeOutcome>,
}

/// Too few nodes that may vote, or votes split to the end.
#[derive(Debug, Clone)]
pub struct NoQuorum {
    /// The vote.
    pub quorum: QuorumCount,
    /// What each node said.
    pub nodes: Vec<NodeOutcome>,
    /// When asking again makes sense.
    pub retry_after: Duration,
}

/// Why there is no lease.
#[derive(Debug, Clone)]
pub enum AcquireError {
    /// Taken, and the request did not want to wait.
    Held(HeldRefusal),
    /// Taken, and the wait ran out.
    WaitTimeout {
        /// The last that was heard.
        held: HeldRefusal,
        /// How long it queued.
        waited: Duration,
        /// Its place at the end: 1 was next.
        position: usize,
    },
    /// See [`NoQuorum`].
    NoQuorum(NoQuorum),
    /// This token's lease was ended less than a minute ago.
    Ended(EndReason),
    /// The same token claims its lease too often.
    TooManyReplays,
    /// The owners in this circle wait for each other, and nobody in it asked later than this one.
    Deadlock {
        /// From this request's owner back to it.
        cycle: Vec<CycleEdge>,
        /// How long it queued.
        waited: Duration,
    },
    /// The queue is full.
    TooManyWaiters {
        /// The bound.
        limit: usize,
        /// Of this resource's queue, not of all together.
        per_resource: bool,
    },
    /// The service is shutting down.
    Draining,
}

/// One owner waits for what the next one in the circle has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CycleEdge {
    /// Who waits.
    pub owner: String,
    /// For what.
    pub waits_for: ResourceName,
    /// Who has that.
    pub held_by: String,
    /// Their lease.
    pub token_id: TokenId,
}

/// Ask for more time, or for other labels.
#[derive(Debug, Clone)]
pub struct ExtendRequest {
    /// Which.
    pub resource: ResourceName,
    /// The proof.
    pub token: Token,
    /// Time left from now; `None`: the lease's own TTL.
    pub ttl: Option<Ttl>,
    /// Only if the lease has this fence (`If-Match`).
    pub fence: Option<Fence>,
    /// `Some`: replace the note.
    pub note: Option<String>,
    /// Merge-patch of the metadata: `None` values remove keys.
    pub metadata: Vec<(String, Option<String>)>,
}

/// An extended lease.
#[derive(Debug, Clone)]
pub struct ExtendedLease {
    /// The lease; `waited` is zero, `replay` false.
    pub lease: GrantedLease,
    /// How often it was extended, this time included.
    pub renewals: u32,
}

/// Why there is no more time.
#[derive(Debug, Clone)]
pub enum ExtendError {
    /// Another token holds the resource.
    NotHolder,
    /// This token's lease is gone.
    Gone(GoneReason),
    /// The fence differs from the one asked for.
    Changed {
        /// The one that the nodes have.
        current: Fence,
    },
    /// The labels would exceed their bounds: field and reason.
    Invalid(&'static str, String),
    /// Not known whether it took effect; nothing was released, and the old deadline stands.
    NoQuorum {
        /// The vote.
        no_quorum: NoQuorum,
        /// What is left of the old promise, where this instance knows it.
        valid_for: Option<Duration>,
    },
}

/// Why a lease is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoneReason {
    /// It ran out.
    Expired,
    /// Its holder gave it back.
    Released,
    /// An operator ended it, or forbade its renewal.
    Forced,
    /// The nodes no longer know.
    Unknown,
}

impl GoneReason {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Expired, Self::Released, Self::Forced, Self::Unknown];

    /// The word in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Forced => "forced",
            Self::Unknown => "unknown",
        }
    }
}

/// What happens to a lease that is held on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldLeaseEvent {
    /// It has its whole TTL again.
    Renewed,
    /// A renewal failed; the deadline stands, and the next try follows soon.
    AtRisk,
    /// It may no longer be relied on.
    Lost(LostReason),
    /// It was given back with its token.
    Released,
}

/// Why a lease that was held on to is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// It ran out, or the nodes no longer have it.
    Expired,
    /// An operator ended it, or forbade its renewal.
    Forced,
    /// Too few nodes answered until its deadline.
    Quorum,
    /// The service is shutting down; the lease was given back.
    Draining,
    /// Held for the longest time that is allowed; the lease was given back.
    MaxHold,
}

impl LostReason {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Expired, Self::Forced, Self::Quorum, Self::Draining, Self::MaxHold];

    /// The word in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Forced => "forced",
            Self::Quorum => "quorum",
            Self::Draining => "draining",
            Self::MaxHold => "max_hold",
        }
    }
}

/// How a lease ended, as far as this instance saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseOutcome {
    /// Its holder gave it back.
    Released,
    /// The connection that held it ended.
    Disconnected,
    /// The service gave it back for a connection: it shuts down, or `max_hold` has passed.
    GivenBack,
    /// An operator ended it.
    Forced,
    /// The last promise that this instance gave ran out: expired, unless another instance extended
    /// or released it, which is not heard of here.
    Lapsed,
}

impl LeaseOutcome {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Released, Self::Disconnected, Self::GivenBack, Self::Forced, Self::Lapsed];

    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Disconnected => "disconnected",
            Self::GivenBack => "given-back",
            Self::Forced => "forced",
            Self::Lapsed => "lapsed",
        }
    }
}

/// Why a release did not release.
#[derive(Debug, Clone)]
pub enum ReleaseError {
    /// Another token holds the resource.
    NotHolder,
    /// This token's lease is gone already.
    Gone(GoneReason),
    /// Too few nodes answered. What was reached is released, the rest is tried in the background,
    /// and the TTL ends it at the latest.
    NoQuorum(NoQuorum),
}

/// Everything that is known of one resource.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// Which.
    pub resource: ResourceName,
    /// The quorum's view.
    pub state: LockState,
    /// Who queues in this instance.
    pub waiters: Vec<WaiterInfo>,
    /// What each node says.
    pub nodes: Vec<ResourceOnNode>,
    /// Nodes that answered and hold it, needed, configured.
    pub quorum: QuorumCount,
}

impl Inspection {
    /// Changes with the holder, not with renewals: the fence, or a fingerprint of a foreigner's
    /// value. `None` when free. Without the quotes.
    pub fn etag(&self) -> Option<String> {
        match &self.state {
            LockState::Free => None,
            LockState::Held(holder) => Some(holder.fence.to_string()),
            LockState::Foreign { fingerprint, .. } => Some(fingerprint.clone()),
        }
    }
}

/// Who has it, by quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockState {
    /// Nobody, or nobody on a quorum of nodes.
    Free,
    /// A lease of ours.
    Held(HolderInfo),
    /// Another Redlock client. `left` is `None` for a key without a TTL.
    Foreign {
        /// The q-th largest TTL.
        left: Option<Duration>,
        /// Of its value.
        fingerprint: String,
    },
}

/// One node's word on one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceOnNode {
    /// Which node.
    pub node: NodeId,
    /// The lease it holds, `None` if it holds none or a foreigner's.
    pub holds: Option<TokenId>,
    /// It holds a foreigner's lock.
    pub foreign: bool,
    /// The key's TTL there.
    pub ttl_ms: Option<u64>,
    /// Its state: `granted` where it votes and answered, else see [`crate::redlock::quorum::Verdict::as_str`].
    pub verdict: crate::redlock::quorum::Verdict,
}

/// Which leases to list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// Names that begin with this.
    pub prefix: String,
    /// Exactly this owner.
    pub owner: Option<String>,
    /// Only what is in this state.
    pub state: Option<ListState>,
    /// After this name.
    pub after: Option<String>,
    /// At most so many; see [`LIST_LIMIT_MAX`].
    pub limit: usize,
}

/// States to filter a list by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListState {
    /// A lease is running.
    Held,
    /// Somebody waits in this instance.
    Waited,
    /// The last lease ran out; its safety margin is passing.
    LockDelay,
}

/// Page size where none is asked for.
pub const LIST_LIMIT_DEFAULT: usize = 100;
/// The largest page.
pub const LIST_LIMIT_MAX: usize = 1_000;

/// One page of held leases.
#[derive(Debug, Clone, Default)]
pub struct ListPage {
    /// In order of their names.
    pub items: Vec<ListItem>,
    /// Pass as `after` for the next page.
    pub next: Option<String>,
    /// A quorum of nodes stands behind it.
    pub complete: bool,
    /// How old the snapshot is.
    pub age: Duration,
    /// Leases in the whole snapshot, before filtering.
    pub total: usize,
}

/// One held lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListItem {
    /// What is held, or waited for.
    pub resource: ResourceName,
    /// By whom; `None` if it is only waited for.
    pub holder: Option<HolderInfo>,
    /// How many wait in this instance.
    pub waiting: usize,
}

/// One node as operators see it.
#[derive(Debug, Clone)]
pub struct NodeSummary {
    /// Its name.
    pub node: NodeId,
    /// `up`, `down`, or why it has no vote; see [`crate::redlock::quorum::Verdict::as_str`].
    pub state: String,
    /// Whether it votes.
    pub votes: bool,
    /// In this state since.
    pub since: Duration,
    /// Until it votes again, where that is known.
    pub votes_in: Option<Duration>,
    /// Why it has no vote, in one sentence.
    pub why: Option<String>,
    /// Round trip of the last probe.
    pub latency: Option<Duration>,
    /// Its clock minus ours, milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The process that answers.
    pub run_id: Option<String>,
    /// The server's version.
    pub version: Option<String>,
    /// How often another process answered than before.
    pub restarts: u64,
    /// What makes it unfit or worth a look.
    pub findings: Vec<NodeFinding>,
}

/// Something about a node that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFinding {
    /// Stable word.
    pub code: String,
    /// One sentence, with what to do.
    pub detail: String,
    /// It costs the node its vote.
    pub bars: bool,
}

/// Whether requests can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// A quorum of nodes answered lately and votes.
    Ready,
    /// Too few; how many vote.
    NoQuorum {
        /// Nodes that vote.
        voting: usize,
        /// Until enough vote, where that is known.
        ready_in: Option<Duration>,
    },
    /// The service is shutting down.
    Draining,
}
