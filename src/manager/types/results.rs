//! Results of the lock manager.

use std::collections::BTreeSet;
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::quarantine_counts::QuarantineCounts;
use crate::auth::quota::CountedName;
use crate::protocol::{InstanceName, LeaseRecord, Terms, UnreachableKind};
use crate::redlock::clock::BootTime;
use crate::redlock::monitor::{MemoryLosses, OtherList, WaitedFor};
use crate::redlock::quorum::{NotAsked, Verdict};
use crate::types::{Fence, Labels, Mode, NodeId, ResourceName, Token, TokenId, Ttl, WantedMode};

/// A granted lease, with its token.
#[derive(Debug, Clone)]
pub struct GrantedLease {
    /// The leased resource.
    pub resource: ResourceName,
    /// The proof of the lease.
    pub token: Token,
    /// The fencing token.
    pub fence: Fence,
    /// The labels as stored with the lease.
    pub labels: Labels,
    /// How the lease shares the resource.
    pub mode: Mode,
    /// For how long the service renews the lease from now on; `None` if it does not.
    pub kept_for: Option<Duration>,
    /// The TTL that was asked for.
    pub ttl: Ttl,
    /// Until when the lease may be relied on, on the service's boot clock.
    pub deadline: BootTime,
    /// Whether this token held the lease already: the answer repeats an earlier grant.
    pub replay: bool,
    /// How long the request waited and tried.
    pub waited: Duration,
    pub quorum: QuorumCount,
}

impl GrantedLease {
    /// The name of the lease in quotas.
    pub fn counted(&self) -> CountedName {
        CountedName::of(&self.resource, self.token.hash().id(), self.mode)
    }

    /// The record as the nodes have it, without the attempts that claim it.
    pub(in crate::manager) fn record(&self) -> LeaseRecord {
        let (mode, token, ttl, fence) = (self.mode, self.token.hash(), self.ttl, self.fence);
        LeaseRecord { mode, token, renewals: 0, ttl, fence, claims: "".into(), labels: self.labels.encode() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuorumCount {
    /// Number of nodes that had granted when the decision was clear.
    pub granted: usize,
    /// Number of nodes that must grant: N/2 + 1.
    pub needed: usize,
    /// Number of configured nodes.
    pub nodes: usize,
}

/// A lease without its token, as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderInfo {
    /// Identifies the lease; not secret.
    pub token_id: TokenId,
    /// How the lease shares the resource.
    pub mode: Mode,
    /// The lease's fencing token.
    pub fence: Fence,
    /// Owner, note and metadata, as the holder gave them.
    pub labels: Labels,
    /// Maximum time left until the lease's deadline. Zero while the lock delay passes, and if the lease is not confirmed.
    pub valid_for: Duration,
    /// For how long the service renews the lease from now on; `None` if it does not.
    pub kept_for: Option<Duration>,
    /// Whether a quorum of nodes has it. Otherwise it is not known whether it is held, and its holder may not rely on it.
    pub is_confirmed: bool,
    /// How often the lease was extended.
    pub renewals: u32,
}

/// A waiting request, as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterInfo {
    /// The instance whose queue it is in.
    pub instance: InstanceName,
    /// Its position in that instance's queue; 1 is the head.
    pub position: usize,
    /// How the waiter wants to share the resource.
    pub mode: WantedMode,
    /// The owner that the waiter names.
    pub owner: String,
    /// How long the request has waited.
    pub waiting: Duration,
    /// Maximum time that it will still wait; `None` if an instance of an earlier release does not report it.
    pub left: Option<Duration>,
    /// The waiter's note; for other instances only the beginning.
    pub note: String,
    /// Whether a ticket waits, not a connection; of other instances, only those of this release report it.
    pub is_ticket: bool,
}

/// An extended lease.
#[derive(Debug, Clone)]
pub struct ExtendedLease {
    /// The lease; `waited` is zero, `replay` false.
    pub lease: GrantedLease,
    /// How often the lease was extended, including this time.
    pub renewals: u32,
}

/// The effect of an operator's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forced {
    /// The resource is free.
    Freed,
    /// The resource will be free after this time.
    FreesIn(Duration),
}

/// The lease that an operator ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedLease {
    /// Identifies the lease; not secret.
    pub token_id: TokenId,
    /// How the lease shared the resource.
    pub mode: Mode,
    /// The lease's fencing token.
    pub fence: Fence,
    /// The lease's owner label; empty if it has none.
    pub owner: String,
    /// For how long it was held, by the wall clocks of two instances; `None` if its grant has no time.
    pub held: Option<Duration>,
}

/// Everything that is known of one resource.
#[derive(Debug, Clone)]
pub struct Inspection {
    pub resource: ResourceName,
    /// The state on a quorum.
    pub state: LockState,
    /// The instance that inspected it.
    pub instance: InstanceName,
    /// The requests that wait for it: all of this instance in order, then the first ones of every other instance.
    pub waiters: Vec<WaiterInfo>,
    /// How many wait for it in this instance.
    pub waiting_here: usize,
    /// How many wait for it in all.
    pub waiting: usize,
    /// Whether the waiters of all other instances are known; see [`ListPage::waiters_known`].
    pub waiters_known: bool,
    /// The state on each node.
    pub nodes: Vec<ResourceOnNode>,
    /// Number of nodes that agree on `state`, needed, configured.
    pub quorum: QuorumCount,
}

impl Inspection {
    /// Whether a quorum reports the state. Always true for a free resource.
    pub fn is_confirmed(&self) -> bool {
        self.state == LockState::Free || self.quorum.granted >= self.quorum.needed
    }

    /// Changes only with the holders: the fence, a hash of several holders, or of a foreign value. Unquoted; `None` when free.
    pub fn etag(&self) -> Option<String> {
        match &self.state {
            LockState::Free => None,
            LockState::Held(holders) => match holders.as_slice() {
                [only] => Some(only.fence.to_string()),
                several => Some(tag_of(several)),
            },
            LockState::Foreign { fingerprint, .. } => Some(fingerprint.clone()),
        }
    }

    /// Whether the tag is the present one, or the fence of one of several holders.
    pub fn has_tag(&self, tag: &str) -> bool {
        let of_one = |holder: &HolderInfo| holder.fence.to_string() == tag;
        self.etag().is_some_and(|present| present == tag) || self.holders().iter().any(of_one)
    }

    /// The leases that hold the resource; none if it is free, or held by another client.
    pub fn holders(&self) -> &[HolderInfo] {
        match &self.state {
            LockState::Held(holders) => holders,
            LockState::Free | LockState::Foreign { .. } => &[],
        }
    }

    /// How the holders share the resource.
    pub fn mode(&self) -> WantedMode {
        mode_of(self.holders())
    }
}

/// How these leases share their resource. Without leases, or with a foreign lock, it is exclusive.
pub fn mode_of(holders: &[HolderInfo]) -> WantedMode {
    holders.first().map_or(WantedMode::Exclusive, |holder| holder.mode.wanted())
}

/// How many permits are left beside these; `None` if the leases are not permits.
pub fn permits_free(holders: &[HolderInfo]) -> Option<usize> {
    let limit = usize::from(mode_of(holders).limit()?.get());
    let taken: BTreeSet<u8> = holders.iter().filter_map(|holder| holder.mode.slot()).collect();
    Some(limit.saturating_sub(taken.len()))
}

/// The tag of a set of holders, in any order.
fn tag_of(holders: &[HolderInfo]) -> String {
    let fences: BTreeSet<u64> = holders.iter().map(|holder| holder.fence.0).collect();
    let digest = fences.iter().fold(Sha256::new(), |digest, fence| digest.chain_update(fence.to_be_bytes()));
    format!("h{}", HEXLOWER.encode(&digest.finalize()[..TAG_BYTES]))
}

/// Bytes of the hash in a tag of several holders: it guards against a mistake, not against an attack.
const TAG_BYTES: usize = 8;

/// The holder of a resource, by quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockState {
    /// No holder, or none on a quorum of nodes.
    Free,
    /// Leases of this service: one, or several that are held together; never none. In the order of slots and fences.
    Held(Vec<HolderInfo>),
    /// Another Redlock client.
    Foreign {
        /// The q-th largest TTL; `None` for a key without a TTL.
        left: Option<Duration>,
        /// A fingerprint of the value, which may be a secret.
        fingerprint: String,
    },
}

/// What one node has for one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceOnNode {
    pub node: NodeId,
    /// The leases that the node has; empty if it has none, or another client's lock.
    pub holds: Vec<TokenId>,
    /// Whether the node has a lock of another Redlock client.
    pub foreign: bool,
    /// The key's TTL on the node.
    pub ttl_ms: Option<u64>,
    /// `granted` if the node votes and answered, otherwise see [`Verdict::as_str`].
    pub verdict: Verdict,
}

/// One page of held leases.
#[derive(Debug, Clone)]
pub struct ListPage {
    /// The items in order of their names.
    pub items: Vec<ListItem>,
    /// `after` for the next page.
    pub next: Option<String>,
    /// `None`: a quorum of nodes was read to its end. Otherwise the reason: each node that does not vote, its reason and time.
    pub incomplete: Option<String>,
    /// How old the snapshot is.
    pub age: Duration,
    /// Leases in the whole snapshot, before filtering.
    pub total: usize,
    /// The instance that answers.
    pub instance: InstanceName,
    /// Whether the waiters of all other instances are known: a quorum of nodes was asked for them in the last seconds.
    pub waiters_known: bool,
}

/// One resource in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListItem {
    /// The resource that is held, or waited for.
    pub resource: ResourceName,
    /// The holders; none if requests only wait for the resource.
    pub holders: Vec<HolderInfo>,
    /// Where requests wait for the resource, this instance first.
    pub waiting: Vec<InstanceQueue>,
}

/// How many requests wait for one resource at one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceQueue {
    pub instance: InstanceName,
    /// How many requests wait there.
    pub waiting: usize,
    /// How long the oldest of these has waited.
    pub oldest: Duration,
}

/// One node as operators see it.
#[derive(Debug, Clone)]
pub struct NodeSummary {
    pub node: NodeId,
    /// `up`, `down`, or why the node has no vote; see [`Verdict::as_str`].
    pub state: String,
    /// Whether the node votes.
    pub votes: bool,
    /// Why this instance does not ask the node for votes, which would vote.
    pub not_asked: Option<NotAsked>,
    /// How long the node has been in this state.
    pub since: Duration,
    /// Time until the node votes again, where that is known.
    pub votes_in: Option<Duration>,
    /// Why the node has no vote, in one sentence.
    pub why: Option<String>,
    /// Why the node is in quarantine, in one word of [`QuarantineCounts::REASONS`].
    pub quarantine: Option<String>,
    /// How often this instance saw the node begin a quarantine.
    pub quarantines: QuarantineCounts,
    /// How often it was noticed that the node lost its memory, and the last reason.
    pub losses: MemoryLosses,
    /// How long ago the last loss was noticed.
    pub lost_ago: Option<Duration>,
    /// Why the last probe failed.
    pub error: Option<UnreachableKind>,
    /// Whether the node's name leads to two servers.
    pub has_two_servers: bool,
    /// How long the name has led to two servers.
    pub doubled_for: Option<Duration>,
    /// The nodes without which this node gets no vote, however long it waits.
    pub waits_for: WaitedFor,
    /// What the node shows of the list of another cluster.
    pub other_list: OtherList,
    /// Round trip of the last probe.
    pub latency: Option<Duration>,
    /// The node's clock minus ours, milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The run id of the server that answers.
    pub run_id: Option<String>,
    /// The server's version.
    pub version: Option<String>,
    /// Whether the server syncs each write before it replies, with `durable_nodes`: after a restart it may count by its disk.
    pub is_durable: bool,
    /// How often a process other than the one before answered.
    pub restarts: u64,
    /// What makes the server unsuitable, or needs attention.
    pub findings: Vec<NodeFinding>,
    /// The number of the view that the node has installed, if it has one.
    pub view: Option<u64>,
}

/// The list of the nodes that vote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeListState {
    /// The number of the view in which this instance asks for votes; `None` before the first.
    pub view: Option<u64>,
    /// The change that is under way: the former names, and the names that are to vote. No node votes meanwhile.
    pub change: Option<(Vec<NodeId>, Vec<NodeId>)>,
    /// The terms in force, if they are not those that this instance is configured with.
    pub other_terms: Option<Terms>,
    /// The change of the terms that is under way: the former ones, and those that are to count. No node votes meanwhile.
    pub terms_change: Option<(Terms, Terms)>,
}

impl NodeSummary {
    /// A node about which nothing is known yet.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            state: "unknown".to_owned(),
            votes: false,
            not_asked: None,
            since: Duration::ZERO,
            votes_in: None,
            why: None,
            quarantine: None,
            quarantines: QuarantineCounts::default(),
            losses: MemoryLosses::default(),
            lost_ago: None,
            error: None,
            has_two_servers: false,
            doubled_for: None,
            waits_for: WaitedFor::default(),
            other_list: OtherList::default(),
            latency: None,
            clock_offset_ms: None,
            is_durable: false,
            run_id: None,
            version: None,
            restarts: 0,
            findings: Vec::new(),
            view: None,
        }
    }
}

/// A loss of the quorum that lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuorumLoss {
    /// When this instance saw it begin. Milliseconds since 1970.
    pub since_ms: u64,
    /// How long the loss has lasted.
    pub lasts: Duration,
    /// Number of requests that failed here because of it.
    pub refused: u64,
    /// Whether this instance never had a quorum: the loss began with its start.
    pub from_start: bool,
}

/// A fact about a node that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFinding {
    /// A stable word, for scripts.
    pub code: String,
    /// One sentence, with what to do.
    pub detail: String,
    /// Whether it costs the node its vote.
    pub bars: bool,
}

impl NodeFinding {
    /// The codes of those that cost the node its vote.
    pub fn codes_that_bar(findings: &[Self]) -> Vec<&str> {
        findings.iter().filter(|finding| finding.bars).map(|finding| finding.code.as_str()).collect()
    }
}

/// Whether requests can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// A quorum of nodes answered lately and votes.
    Ready,
    /// Too few nodes vote.
    NoQuorum {
        voting: usize,
        /// Time until enough nodes vote, where that is known.
        ready_in: Option<Duration>,
    },
    /// The service is shutting down.
    Draining,
}
