//! A node's replies, and the reasons why a request has no reply.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::kept::KeptPage;
use super::read_all::ReadEntry;
use super::record::LeaseRecord;
use super::ticket::StoredTicket;
use super::ticket_exchange::TicketsPage;
use super::view::{View, ViewId};
use super::waiters::PublishedWaitersPage;
use crate::types::{Fence, Mode, NodeId, ResourceName, TokenHash, WantedMode};

/// Why a lease was ended for good; kept on the nodes for [`TOKEN_TOMBSTONE`](super::params::TOKEN_TOMBSTONE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The holder released it.
    Released,
    /// An operator ended it at once.
    Forced,
    /// An operator revoked it: it keeps its present end and can no longer be renewed.
    Revoked,
    /// The attempt was cancelled before it was granted.
    Cancelled,
}

impl EndReason {
    /// The text that nodes store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Forced => "forced",
            Self::Revoked => "revoked",
            Self::Cancelled => "cancelled",
        }
    }

    /// Reads the word from a node.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Released, Self::Forced, Self::Revoked, Self::Cancelled].into_iter().find(|r| r.as_str() == word)
    }
}

/// A node's reply. [`Request`](super::request::Request) names the replies to each request. It is moved some ten times on its way to
/// the round, so large variants that no caller waits for are boxed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A vote for the acquire. `joined`: the token already held the lease on this node.
    Granted { fence: Fence, joined: bool },
    /// A vote for the acquire of each resource, in their order.
    SetGranted { leases: Vec<NodeGrant> },
    /// Nothing was taken. The resources that refuse the request, by their index in it, each with the reply to its acquire alone.
    SetRefused { refused: Vec<(usize, Reply)> },
    /// Another token holds the resource. `left_ms` is the key's TTL, `None` for a foreign key without one; `record` is `None` for
    /// a foreign client's lock.
    Held { left_ms: Option<u64>, record: Option<LeaseRecord> },
    /// A vote for a shared lease or a permit. `joined`: the token already had it on this node.
    Admitted { fence: Fence, joined: bool },
    /// Shared leases or permits hold the resource, or another caller has left an intent.
    HeldByMembers(HeldByMembers),
    /// This token holds the resource in this mode.
    ModeDiffers { mode: Mode },
    /// The exclusive lease is now shared, or already was, with this record and end.
    Downgraded { record: LeaseRecord, left_ms: u64 },
    /// False if another caller's intent is stored; otherwise this caller's was stored or withdrawn.
    Intent { is_own: bool },
    /// Extended, edited or written back. `record` is the lease as it is now; `before_ms` is the key's former TTL.
    Updated { record: LeaseRecord, before_ms: u64 },
    /// The node has no such key.
    Missing,
    /// The key belongs to another holder, or (with a fence) to this token's next lease.
    Other { fence: Option<Fence> },
    /// This token's lease, or this attempt, was ended for good.
    Ended { reason: EndReason },
    /// [`MAX_CLAIMS`](super::record::MAX_CLAIMS) attempts claim the lease already.
    TooManyClaims,
    /// The fence is further ahead than clocks may differ.
    FenceTooFarAhead,
    /// The lease was put back.
    Restored,
    /// Reply to a release, a cancel or the deletion of a foreign lock.
    Released(Released),
    /// Renewals are refused from now on; the key ends in `left_ms`.
    Revoked { left_ms: u64 },
    /// This node has no vote.
    NoVote(NoVote),
    /// Reply to an inspection.
    Inspected(NodeInspection),
    /// Reply to a list request. `next` is `None` on the last page; `unread` are locks whose members the page leaves out.
    Page { next: Option<u64>, leases: Vec<ListedLease>, unread: Vec<ResourceName> },
    /// The leases are in the index of held leases, if they are held.
    Indexed,
    /// Reply to a request about kept leases.
    Kept(KeptPage),
    /// Reply to an exchange of waiters.
    Waiters(PublishedWaitersPage),
    /// The node's present data of a ticket.
    Ticket(Option<StoredTicket>),
    /// Reply to an exchange of tickets.
    Tickets(TicketsPage),
    /// Reply to a read. `next` is `None` on the last page; `high_water` is the highest fence of this node, `now_us` its clock in
    /// microseconds since 1970.
    Knowledge { next: Option<u64>, high_water: Fence, now_us: u64, entries: Vec<ReadEntry> },
    /// The number of pages that the fill now has.
    Filled { done: u32 },
    /// The page was refused: the next one must follow the first `done` pages.
    FillOutOfOrder { done: u32 },
    /// The node votes: nothing is filled.
    FillNotNeeded,
    /// The place of the next page of a change of names.
    Renaming { receives: bool, cursor: u64 },
    /// Every lease of the process has the names of the view.
    Renamed,
    /// Reply to the operations on the node itself.
    Status(Box<NodeStatus>),
    /// Reply to changes of the view.
    Member(Box<MemberStatus>),
}

/// Why a request is refused for a resource that several leases may share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldByMembers {
    /// When this node expects the resource to be free for the request.
    pub left_ms: u64,
    /// How the holders share it; `None` if there is only an intent.
    pub kind: Option<WantedMode>,
    /// Another caller's intent keeps the request out.
    pub is_intent: bool,
    /// The slots of permits.
    pub taken: BTreeSet<u8>,
    /// Some of the leases, if there are many.
    pub members: Vec<LeaseRecord>,
}

/// One lease of a set that a node granted, as in [`Reply::Granted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeGrant {
    /// The lease's fencing token on this node.
    pub fence: Fence,
    /// The token already held the lease.
    pub joined: bool,
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// The state of the lock's key.
    pub found: Found,
    /// The reason in the tombstone of an earlier release or revocation.
    pub earlier: Option<EndReason>,
}

/// What a release, a cancel or a deletion found at the lock's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The lease, claim or foreign lock that the request named; it is removed now.
    Match,
    /// No lease, claim or lock.
    Nothing,
    /// Another lease or a foreign client's lock; unchanged.
    Other,
}

/// Why a node has no vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoVote {
    /// The node may have forgotten leases that have not ended.
    Quarantined { left_ms: u64 },
    /// The node's quarantine is over; it has not received the other nodes' highest fence yet.
    Unseeded { high_water: Fence },
    /// The node votes, but not on this resource: it does not know what its former process, or a quorum without it, granted there.
    Blocked { left_ms: u64 },
    /// The request was late, or one of the two clocks is off. `node_us` is the node's time,
    /// microseconds since 1970.
    ClockOff { node_us: u64 },
    /// The node belongs to instances with another node list, guard, lock delay or key template.
    OtherCluster { theirs: String },
    /// The node votes in another view: a higher one, with its whole record, or a lower one, without a roster.
    OtherView { view: Arc<View> },
    /// The process that answers under this name is not the one in the view. The instance detects this; nothing was sent.
    OtherProcess { run: Arc<str> },
    /// The node's marker is of a later version of the protocol.
    NewerProtocol { theirs: u64 },
}

/// A node's state of one resource, and whether the node votes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInspection {
    /// Why the node has no vote, if it has none.
    pub no_vote: Option<NoVote>,
    /// What is at the lock's key.
    pub lock: StoredLock,
    /// The resource's fence counter: the highest fence that the node gave to it and remembers; 0 if there is none.
    pub fence: Fence,
}

/// The content of a lock's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredLock {
    /// No lease, claim or lock.
    Free,
    /// A lease of this service.
    Lease { record: LeaseRecord, left_ms: u64 },
    /// Shared leases or permits, each with its remaining milliseconds; never empty.
    Members(Vec<(LeaseRecord, u64)>),
    /// A foreign client's key; without a TTL if `left_ms` is `None`. The fingerprint is the SHA-1 of the value, or `type:` and
    /// the key's type; the value itself is its holder's secret.
    Foreign { left_ms: Option<u64>, fingerprint: Arc<str> },
}

impl StoredLock {
    /// This token's lease, with its remaining milliseconds.
    pub fn lease_of(&self, token: &TokenHash) -> Option<(&LeaseRecord, u64)> {
        let is_its = |record: &LeaseRecord| record.token == *token;
        match self {
            Self::Lease { record, left_ms } => is_its(record).then_some((record, *left_ms)),
            Self::Members(members) => {
                members.iter().find(|(record, _)| is_its(record)).map(|(record, left_ms)| (record, *left_ms))
            }
            Self::Free | Self::Foreign { .. } => None,
        }
    }
}

/// One lease on one node's page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedLease {
    /// The leased resource.
    pub resource: ResourceName,
    pub record: LeaseRecord,
    /// The key's TTL on the node.
    pub left_ms: u64,
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// Whether the node votes.
    pub vote: Vote,
    /// The node's clock, microseconds since 1970.
    pub now_us: u64,
    /// The highest fence that the node has seen.
    pub high_water: Fence,
    /// The process that replied: Redis' `run_id`, and its `master_replid`, which a failover changes.
    pub run: String,
    /// Why the node is in its present state: `init`, `blank`, `restart`, `failover`, `clock`, `evicted`, `ordered`, `replaced`,
    /// `displaced`, `by-clock`, `by-disk`; may be empty.
    pub why: String,
    /// When that state began, by the node's clock. Microseconds since 1970, 0 if unknown.
    pub since_us: u64,
    /// End of the last quarantine, by the node's clock. Microseconds since 1970, 0 if there was none.
    pub until_us: u64,
    /// The last view that the node installed.
    pub view: Arc<View>,
    /// The node installs no view below this one.
    pub promised: ViewId,
    /// The view of the node's last admission.
    pub admitted: ViewId,
    /// The process has loaded the data of a durable one and waits.
    pub inherited: Option<Inherited>,
    /// Redis syncs each write of the process before it replies, and a probe has noted that.
    pub is_durable: bool,
    /// The runs under each node name that other instances' probes noted here within the last 3 s.
    pub alive: BTreeSet<(NodeId, Arc<str>)>,
}

/// Reply to a change of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// The change was made, now or before.
    pub is_done: bool,
    /// Whether the process votes, in whatever view.
    pub vote: Vote,
    /// The highest fence that the process has seen.
    pub high_water: Fence,
    /// The process that replied.
    pub run: Arc<str>,
    /// The last view that the process installed.
    pub view: Arc<View>,
    /// The process installs no view below this one.
    pub promised: ViewId,
    /// The view of the process' last admission.
    pub admitted: ViewId,
    /// The process has loaded the data of a durable one and waits.
    pub inherited: Option<Inherited>,
}

/// What a restarted process has of a durable one, whose data it has loaded (`docs/views.md`, *By its disk*).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// The durable process.
    pub run: Arc<str>,
    /// The last probe in the loaded data, by the node's clock. Microseconds since 1970.
    pub beat_us: u64,
    /// No key ended early since then, and every key that could have is over by now.
    pub is_ready: bool,
}

impl NodeStatus {
    /// Whether the process votes, in whatever view.
    pub fn is_sound(&self) -> bool {
        matches!(self.vote, Vote::Active | Vote::NoVote(NoVote::OtherView { .. }))
    }

    /// The `run_id` in [`Self::run`].
    pub fn run_id(&self) -> &str {
        self.run.get(..RUN_ID_LENGTH).unwrap_or(&self.run)
    }
}

/// The length of a Redis server's `run_id`, in characters.
pub(super) const RUN_ID_LENGTH: usize = 40;

/// Whether a node votes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vote {
    Active,
    /// The node does not vote.
    NoVote(NoVote),
    /// Reply to an `Init` only: the node has a marker already.
    AlreadyInitialised,
    /// Reply to a `Quarantine` only: refused, because another instance's time agreed with this clock just now.
    Witnessed,
}

/// No usable reply from a node. The request may have taken effect, or may still take effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {detail}")]
pub struct Unreachable {
    /// For metrics and for the caller.
    pub kind: UnreachableKind,
    /// For the log only: may contain addresses.
    pub detail: Arc<str>,
}

impl Unreachable {
    /// `detail` is for the log only.
    pub fn new(kind: UnreachableKind, detail: impl Into<Arc<str>>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

/// Kinds of [`Unreachable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnreachableKind {
    /// No reply within the node timeout.
    Timeout,
    /// No connection; nothing was sent.
    Disconnected,
    /// The connection broke before the reply.
    Broken,
    /// Too many requests await a reply; nothing was sent.
    Overloaded,
    /// Wrong password, or missing permission.
    Auth,
    /// The server is a replica.
    ReadOnly,
    /// The server's memory is full.
    Full,
    /// The server is loading its data, runs a slow script, or takes no more connections.
    Busy,
    /// The server is unsuitable as a node, see the node's findings. Nothing was sent.
    Unsuitable,
    /// A malformed reply.
    Protocol,
    /// The node answered, but this instance may not ask for votes yet; no request for one was sent.
    NotAsked,
}

impl UnreachableKind {
    /// The kinds that a call of a node ends with.
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

    /// The word in responses and metrics.
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
            Self::NotAsked => "not-asked",
        }
    }
}

impl fmt::Display for UnreachableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The result of one request to one node.
pub type NodeResult = Result<Reply, Unreachable>;
