//! Results of the lock manager.

use std::collections::BTreeSet;
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::quarantine_counts::QuarantineCounts;
use crate::auth::quota::CountedName;
use crate::protocol::{InstanceName, LeaseRecord};
use crate::redlock::clock::BootTime;
use crate::redlock::monitor::MemoryLosses;
use crate::redlock::quorum::Verdict;
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
    /// As stored with the lease.
    pub labels: Labels,
    /// How it shares the resource.
    pub mode: Mode,
    /// For how long the service renews it from now on; `None` where it does not.
    pub kept_for: Option<Duration>,
    /// The TTL that was asked for.
    pub ttl: Ttl,
    /// Until when it may be relied on, on the service's boot clock.
    pub deadline: BootTime,
    /// This token held it already: the answer repeats an earlier grant.
    pub replay: bool,
    /// How long the request waited and tried.
    pub waited: Duration,
    pub quorum: QuorumCount,
}

impl GrantedLease {
    /// Names it in quotas.
    pub fn counted(&self) -> CountedName {
        CountedName::of(&self.resource, self.token.hash().id(), self.mode)
    }

    /// As the nodes have it, without the attempts that claim it.
    pub(in crate::manager) fn record(&self) -> LeaseRecord {
        let (mode, token, ttl, fence) = (self.mode, self.token.hash(), self.ttl, self.fence);
        LeaseRecord { mode, token, renewals: 0, ttl, fence, claims: "".into(), labels: self.labels.encode() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuorumCount {
    /// Nodes that had granted when the decision was clear.
    pub granted: usize,
    /// Nodes that must grant: N/2 + 1.
    pub needed: usize,
    /// Nodes configured.
    pub nodes: usize,
}

/// A lease without its token, as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderInfo {
    /// Identifies the lease; not secret.
    pub token_id: TokenId,
    /// How it shares the resource.
    pub mode: Mode,
    /// Its fencing token.
    pub fence: Fence,
    /// Owner, note and metadata, as the holder gave them.
    pub labels: Labels,
    /// Time left until its deadline, at most. Zero while the lock delay passes, and where it is not confirmed.
    pub valid_for: Duration,
    /// For how long the service renews it from now on; `None` where it does not.
    pub kept_for: Option<Duration>,
    /// A quorum of nodes has it. Otherwise it is not known whether it is held, and its holder may not rely on it.
    pub is_confirmed: bool,
    /// How often it was extended.
    pub renewals: u32,
}

/// A waiting request, as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterInfo {
    /// The instance whose queue it is in.
    pub instance: InstanceName,
    /// Its position in that instance's queue; 1 is the head.
    pub position: usize,
    /// How it wants to share the resource.
    pub mode: WantedMode,
    /// The owner that it names.
    pub owner: String,
    /// How long it has waited.
    pub waiting: Duration,
    /// How much longer it waits at most; `None` where an instance of an earlier release does not say it.
    pub left: Option<Duration>,
    /// Its note; of other instances the beginning.
    pub note: String,
    /// A ticket waits, and no connection; of other instances only those of this release say it.
    pub is_ticket: bool,
}

/// An extended lease.
#[derive(Debug, Clone)]
pub struct ExtendedLease {
    /// The lease; `waited` is zero, `replay` false.
    pub lease: GrantedLease,
    /// How often it was extended, this time included.
    pub renewals: u32,
}

/// What an operator's request did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forced {
    /// The resource is free.
    Freed,
    /// It will be free after this time.
    FreesIn(Duration),
}

/// The lease that an operator ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedLease {
    /// Identifies the lease; not secret.
    pub token_id: TokenId,
    /// How it shared the resource.
    pub mode: Mode,
    /// Its fencing token.
    pub fence: Fence,
    /// Its owner label; empty if it has none.
    pub owner: String,
    /// For how long it was held, by the wall clocks of two instances; `None` where its grant has no time.
    pub held: Option<Duration>,
}

/// Everything that is known of one resource.
#[derive(Debug, Clone)]
pub struct Inspection {
    pub resource: ResourceName,
    /// What a quorum has.
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
    /// What each node has.
    pub nodes: Vec<ResourceOnNode>,
    /// Nodes that agree on `state`, needed, configured.
    pub quorum: QuorumCount,
}

impl Inspection {
    /// Whether a quorum reports the state. It always does for a free resource.
    pub fn is_confirmed(&self) -> bool {
        self.state == LockState::Free || self.quorum.granted >= self.quorum.needed
    }

    /// Changes with the holders only: the fence, a hash of several, or of a foreign value. Unquoted; `None` when free.
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

    /// The leases that hold it; none where it is free, or another client's.
    pub fn holders(&self) -> &[HolderInfo] {
        match &self.state {
            LockState::Held(holders) => holders,
            LockState::Free | LockState::Foreign { .. } => &[],
        }
    }

    /// How its holders share it.
    pub fn mode(&self) -> WantedMode {
        mode_of(self.holders())
    }
}

/// How these leases share their resource: none or a foreign one does not.
pub fn mode_of(holders: &[HolderInfo]) -> WantedMode {
    holders.first().map_or(WantedMode::Exclusive, |holder| holder.mode.wanted())
}

/// How many permits are left beside these; `None` where they are none.
pub fn permits_free(holders: &[HolderInfo]) -> Option<usize> {
    let limit = usize::from(mode_of(holders).limit()?.get());
    let taken: BTreeSet<u8> = holders.iter().filter_map(|holder| holder.mode.slot()).collect();
    Some(limit.saturating_sub(taken.len()))
}

/// Of a set of holders, whatever their order.
fn tag_of(holders: &[HolderInfo]) -> String {
    let fences: BTreeSet<u64> = holders.iter().map(|holder| holder.fence.0).collect();
    let digest = fences.iter().fold(Sha256::new(), |digest, fence| digest.chain_update(fence.to_be_bytes()));
    format!("h{}", HEXLOWER.encode(&digest.finalize()[..TAG_BYTES]))
}

/// Of the hash in a tag of several holders: it guards against a mistake, not against an attack.
const TAG_BYTES: usize = 8;

/// Who holds a resource, by quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockState {
    /// No holder, or none on a quorum of nodes.
    Free,
    /// By leases of this service: one, or several that are held together; never none. In the order of slots and fences.
    Held(Vec<HolderInfo>),
    /// Another Redlock client.
    Foreign {
        /// The q-th largest TTL; `None` for a key without one.
        left: Option<Duration>,
        /// A fingerprint of the value, which may be a secret.
        fingerprint: String,
    },
}

/// What one node has of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceOnNode {
    pub node: NodeId,
    /// The leases that it has; empty if it has none, or another client's lock.
    pub holds: Vec<TokenId>,
    /// It has a lock of another Redlock client.
    pub foreign: bool,
    /// The key's TTL there.
    pub ttl_ms: Option<u64>,
    /// `granted` where it votes and answered, else see [`Verdict::as_str`].
    pub verdict: Verdict,
}

/// One page of held leases.
#[derive(Debug, Clone)]
pub struct ListPage {
    /// In order of their names.
    pub items: Vec<ListItem>,
    /// `after` for the next page.
    pub next: Option<String>,
    /// `None`: a quorum of nodes was read to its end. Else why not: each node that does not vote, its reason and time.
    pub incomplete: Option<String>,
    /// How old the snapshot is.
    pub age: Duration,
    /// Leases in the whole snapshot, before filtering.
    pub total: usize,
    /// The instance that answers.
    pub instance: InstanceName,
    /// The waiters of all other instances are known: a quorum of nodes was asked for them in the last seconds.
    pub waiters_known: bool,
}

/// One resource in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListItem {
    /// What is held, or waited for.
    pub resource: ResourceName,
    /// The holders; none if it is only waited for.
    pub holders: Vec<HolderInfo>,
    /// Where requests wait for it, this instance first.
    pub waiting: Vec<InstanceQueue>,
}

/// How many requests wait for one resource at one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceQueue {
    pub instance: InstanceName,
    /// How many wait there.
    pub waiting: usize,
    /// How long the oldest of them has waited.
    pub oldest: Duration,
}

/// One node as operators see it.
#[derive(Debug, Clone)]
pub struct NodeSummary {
    pub node: NodeId,
    /// `up`, `down`, or why it has no vote; see [`Verdict::as_str`].
    pub state: String,
    /// Whether it votes.
    pub votes: bool,
    /// How long it has been in this state.
    pub since: Duration,
    /// Until it votes again, where that is known.
    pub votes_in: Option<Duration>,
    /// Why it has no vote, in one sentence.
    pub why: Option<String>,
    /// Why it is in quarantine, in one word of [`QuarantineCounts::REASONS`].
    pub quarantine: Option<String>,
    /// How often this instance saw it begin a quarantine.
    pub quarantines: QuarantineCounts,
    /// How often it was noticed that it lost its memory, and why the last time.
    pub losses: MemoryLosses,
    /// How long ago that was noticed.
    pub lost_ago: Option<Duration>,
    /// It answers, and refuses what has to be stored: its memory or its disk is full.
    pub is_full: bool,
    /// Its name leads to two servers.
    pub has_two_servers: bool,
    /// For how long that has been so.
    pub doubled_for: Option<Duration>,
    /// The nodes without which it gets no vote, however long it waits.
    pub waits_for: Vec<NodeId>,
    /// Round trip of the last probe.
    pub latency: Option<Duration>,
    /// Its clock minus ours, milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The run id of the server that answers.
    pub run_id: Option<String>,
    /// The server's version.
    pub version: Option<String>,
    /// How often another process answered than before.
    pub restarts: u64,
    /// What makes the server unsuitable, or should be looked into.
    pub findings: Vec<NodeFinding>,
    /// The number of the view that it has installed, if it has one.
    pub view: Option<u64>,
}

/// The list of the nodes that vote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeListState {
    /// The number of the view in which this instance asks for votes; `None` before the first.
    pub view: Option<u64>,
    /// The change that is under way: the former names, and those that are to vote. Nobody votes meanwhile.
    pub change: Option<(Vec<NodeId>, Vec<NodeId>)>,
}

impl NodeSummary {
    /// A node of which nothing is known yet.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            state: "unknown".to_owned(),
            votes: false,
            since: Duration::ZERO,
            votes_in: None,
            why: None,
            quarantine: None,
            quarantines: QuarantineCounts::default(),
            losses: MemoryLosses::default(),
            lost_ago: None,
            is_full: false,
            has_two_servers: false,
            doubled_for: None,
            waits_for: Vec::new(),
            latency: None,
            clock_offset_ms: None,
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
    /// For how long it has lasted.
    pub lasts: Duration,
    /// Requests that failed for it here.
    pub refused: u64,
    /// This instance never had a quorum: it began with its start.
    pub from_start: bool,
}

/// Something about a node that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFinding {
    /// A stable word, for scripts.
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
    /// Too few nodes vote.
    NoQuorum {
        voting: usize,
        /// Until enough vote, where that is known.
        ready_in: Option<Duration>,
    },
    /// The service is shutting down.
    Draining,
}
