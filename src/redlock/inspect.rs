//! Inspect: the state of one resource as a quorum of nodes reports it. Changes nothing.

use std::time::Duration;

use futures_util::future::join_all;

use super::clock::Clock;
use super::engine::Redlock;
use super::fan_out::FanOut;
use super::node::Node;
use super::quorum::Tally;
use super::random::Entropy;
use super::record_agreement::Agreement;
use super::round::{Until, VIEW_REPEATS};
use crate::protocol::{LeaseRecord, NodeResult, Reply, Request, StoredLock};
use crate::types::{Mode, ResourceName, TokenHash};

/// What the nodes report of one resource.
#[derive(Debug, Clone)]
pub struct ClusterInspection {
    /// The state on a quorum.
    pub state: ResourceState,
    /// Number of nodes that report this state.
    pub agreeing: usize,
    /// Each node's answer, by index; `None` if it was not awaited.
    pub answers: Vec<Option<NodeResult>>,
}

/// The state of a resource on the nodes, or their answers if no quorum can report it.
pub(crate) type InspectionResult = Result<ClusterInspection, Vec<Option<NodeResult>>>;

/// State of a resource on a quorum.
#[derive(Debug, Clone)]
pub enum ResourceState {
    /// No lease or lock has a quorum, or can have one.
    Free,
    /// A lease. `left` is the q-th largest time left of its key: after it the lease has no quorum.
    Lease { record: LeaseRecord, left: Duration },
    /// Shared leases or permits, each of which has a quorum or may have one; never empty.
    Members(Vec<HeldMember>),
    /// A foreign client's lock; `left` is `None` without a TTL.
    Foreign { fingerprint: String, left: Option<Duration> },
}

/// One of several leases that are held together.
#[derive(Debug, Clone)]
pub struct HeldMember {
    pub record: LeaseRecord,
    /// The q-th largest time left on a node: after it the lease has no quorum.
    pub left: Duration,
    /// Number of nodes that report this lease.
    pub agreeing: usize,
}

impl ResourceState {
    /// The leases that hold the resource, each with the time after which it has no quorum.
    pub fn holders(&self) -> Vec<(&LeaseRecord, Duration)> {
        match self {
            Self::Free | Self::Foreign { .. } => Vec::new(),
            Self::Lease { record, left } => vec![(record, *left)],
            Self::Members(members) => members.iter().map(|member| (&member.record, member.left)).collect(),
        }
    }

    /// The lease of this token, if it is among the holders.
    pub fn lease_of(&self, token: &TokenHash) -> Option<(&LeaseRecord, Duration)> {
        self.holders().into_iter().find(|(record, _)| record.token == *token)
    }
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Inspects one resource on all nodes.
    ///
    /// Errors: `Err` with the answers if fewer than a quorum answered, or if nodes that show nothing may have
    /// forgotten a lease, since too few of them vote.
    pub async fn inspect(&self, resource: &ResourceName) -> InspectionResult {
        let request = Request::Inspect { resource: resource.clone() };
        let round = async |until| {
            let (started, request) = (self.clock.now(), request.clone());
            let deadline = started.plus(self.node_timeout());
            self.round(&self.everyone(), request, started, deadline, until, Result::is_ok).await
        };
        let mut until = Until::WonAndGrace;
        let mut repeats = VIEW_REPEATS;
        loop {
            let tally = round(until).await;
            let found = majority_state(&tally).filter(|_| tally.yes() >= tally.quorum());
            // The votes count in a view that others have left meanwhile.
            if found.is_none() && repeats > 0 && self.has_moved_on(&tally) {
                repeats -= 1;
                continue;
            }
            // If leases come and go, or a node lies, the first answers may differ: all nodes' answers show what a quorum has.
            let is_open = found.as_ref().is_none_or(|found| found.agreeing < tally.quorum() || !found.is_complete);
            if until == Until::WonAndGrace && is_open && tally.answers().iter().any(Option::is_none) {
                until = Until::All;
                continue;
            }
            let answers = tally.answers().to_vec();
            return match found {
                Some(MajorityState { state, agreeing, .. }) => {
                    if matches!(state, ResourceState::Foreign { .. }) && self.settings.fan_out == FanOut::Quorum {
                        self.foreign.add(resource);
                    }
                    Ok(ClusterInspection { state, agreeing, answers })
                }
                None => Err(answers),
            };
        }
    }

    /// Inspects several resources, each as [`Self::inspect`].
    pub async fn inspect_all(&self, resources: &[ResourceName]) -> Vec<InspectionResult> {
        join_all(resources.iter().map(|resource| self.inspect(resource))).await
    }

    /// The lease of this token as a single node has it, for display only: no quorum confirms it. The token selects the node.
    pub async fn inspect_on_one(&self, resource: &ResourceName, token: &TokenHash) -> Option<LeaseRecord> {
        let connected: Vec<usize> = self.everyone().into_iter().filter(|i| self.nodes[*i].is_connected()).collect();
        let spread = token.as_str().bytes().map(usize::from).sum::<usize>();
        let index = *connected.get(spread.checked_rem(connected.len())?)?;
        let (request, now) = (Request::Inspect { resource: resource.clone() }, self.clock.now());
        let deadline = now.plus(self.node_timeout());
        let mut tally = self.round(&[index], request, now, deadline, Until::All, Result::is_ok).await;
        match tally.take(index)? {
            Ok(Reply::Inspected(inspection)) => inspection.lock.lease_of(token).map(|(record, _)| record.clone()),
            _ => None,
        }
    }
}

/// The state that most nodes report.
struct MajorityState {
    state: ResourceState,
    /// Number of nodes that report this state.
    agreeing: usize,
    /// Whether each lease that a quorum reports has the same fields on that quorum.
    is_complete: bool,
}

/// `None` if the state is not known.
fn majority_state(tally: &Tally) -> Option<MajorityState> {
    let mut groups: Vec<Group> = Vec::new();
    let (mut free, mut known) = (0, 0);
    for (node, answer) in tally.received() {
        let Ok(Reply::Inspected(inspection)) = answer else { continue };
        let found = LockIdentity::all(&inspection.lock);
        // A node without a vote may have forgotten a lease: unknown.
        if found.is_empty() && inspection.no_vote.is_some() {
            continue;
        }
        known += 1;
        free += usize::from(found.is_empty());
        for (identity, left_ms) in found {
            let left = left_ms.map_or(Duration::MAX, Duration::from_millis);
            match groups.iter_mut().find(|g| g.shown[0].is_same(&identity)) {
                // A lease that a node lists twice counts once.
                Some(group) if group.latest == node => {}
                Some(group) => {
                    group.latest = node;
                    group.left.push(left);
                    group.shown.push(identity);
                }
                None => groups.push(Group { latest: node, shown: vec![identity], left: vec![left], agreement: None }),
            }
        }
    }
    let quorum = tally.quorum();
    let unknown = tally.size().saturating_sub(known);
    if groups.is_empty() && unknown >= quorum {
        return None;
    }
    groups.retain(|group| group.left.len() + unknown >= quorum);
    groups.iter_mut().for_each(|group| group.agree(quorum));
    let Some(agreeing) = groups.iter().map(|group| group.left.len()).max() else {
        return Some(MajorityState { state: ResourceState::Free, agreeing: free, is_complete: true });
    };
    if groups.iter().any(Group::is_member) {
        groups.retain(|group| group.is_member() || group.left.len() == agreeing);
    }
    let last = groups.iter().rposition(|group| group.left.len() == agreeing)?;
    if groups[last].is_member() {
        groups.retain(Group::is_member);
        let is_complete = groups.iter().all(|group| group.left.len() < quorum || group.is_complete());
        let members = groups.into_iter().filter_map(|group| group.member(quorum)).collect();
        return Some(MajorityState { state: ResourceState::Members(members), agreeing, is_complete });
    }
    let mut group = groups.swap_remove(last);
    let (left, is_complete) = (group.left_on_quorum(quorum), group.is_complete());
    let state = match (group.agreement, group.shown.swap_remove(0)) {
        (Some(agreement), _) => ResourceState::Lease { record: agreement.record, left },
        (None, LockIdentity::Lease(record)) => ResourceState::Lease { record, left },
        (None, LockIdentity::Foreign(fingerprint)) => {
            ResourceState::Foreign { fingerprint, left: (left < Duration::MAX).then_some(left) }
        }
    };
    Some(MajorityState { state, agreeing, is_complete })
}

impl ClusterInspection {
    /// What the nodes show of this token's lease; `None` if no node shows it.
    pub(crate) fn agreement(&self, token: &TokenHash, quorum: usize) -> Option<Agreement> {
        let shown = self.answers.iter().flatten().filter_map(|answer| match answer {
            Ok(Reply::Inspected(inspection)) => inspection.lock.lease_of(token).map(|(record, _)| record),
            _ => None,
        });
        Agreement::of(&shown.collect::<Vec<_>>(), quorum)
    }
}

enum LockIdentity {
    Lease(LeaseRecord),
    Foreign(String),
}

impl LockIdentity {
    /// Everything that a node shows, each with its remaining milliseconds.
    fn all(lock: &StoredLock) -> Vec<(Self, Option<u64>)> {
        match lock {
            StoredLock::Free => Vec::new(),
            StoredLock::Lease { record, left_ms } => vec![(Self::Lease(record.clone()), Some(*left_ms))],
            StoredLock::Members(members) => {
                members.iter().map(|(record, left_ms)| (Self::Lease(record.clone()), Some(*left_ms))).collect()
            }
            StoredLock::Foreign { left_ms, fingerprint } => vec![(Self::Foreign(fingerprint.to_string()), *left_ms)],
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Lease(a), Self::Lease(b)) => a.token == b.token,
            (Self::Foreign(a), Self::Foreign(b)) => a == b,
            _ => false,
        }
    }
}

/// The nodes that report the same lease or lock, and what each of them shows.
struct Group {
    /// The index of the last node in the group.
    latest: usize,
    shown: Vec<LockIdentity>,
    left: Vec<Duration>,
    /// What the nodes agree on; only for a lease.
    agreement: Option<Agreement>,
}

impl Group {
    fn agree(&mut self, quorum: usize) {
        let records = self.shown.iter().filter_map(|shown| match shown {
            LockIdentity::Lease(record) => Some(record),
            LockIdentity::Foreign(_) => None,
        });
        self.agreement = Agreement::of(&records.collect::<Vec<_>>(), quorum);
    }

    fn is_member(&self) -> bool {
        self.agreement.as_ref().is_some_and(|agreement| agreement.record.mode != Mode::Exclusive)
    }

    fn is_complete(&self) -> bool {
        self.agreement.as_ref().is_none_or(Agreement::is_complete)
    }

    /// The q-th largest time left, or the smallest if fewer nodes report the lease.
    fn left_on_quorum(&mut self, quorum: usize) -> Duration {
        self.left.sort_unstable_by(|a, b| b.cmp(a));
        self.left.get(quorum - 1).or(self.left.last()).copied().unwrap_or_default()
    }

    fn member(mut self, quorum: usize) -> Option<HeldMember> {
        let (left, agreeing) = (self.left_on_quorum(quorum), self.left.len());
        self.agreement.map(|agreement| HeldMember { record: agreement.record, left, agreeing })
    }
}
