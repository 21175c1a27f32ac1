//! Inspect: the state of one resource as a quorum of nodes reports it. Changes nothing.

use std::time::Duration;

use super::clock::Clock;
use super::engine::Redlock;
use super::entropy::Entropy;
use super::node::Node;
use super::quorum::Tally;
use super::round::Until;
use crate::protocol::{LeaseRecord, NodeResult, Reply, Request, StoredLock};
use crate::types::{ResourceName, TokenHash};

/// What the nodes report of one resource.
#[derive(Debug, Clone)]
pub struct ClusterInspection {
    /// The state on a quorum.
    pub state: ResourceState,
    /// Number of nodes that report it.
    pub agreeing: usize,
    /// Each node's answer, by index; `None` where it was not awaited.
    pub answers: Vec<Option<NodeResult>>,
}

/// State of a resource on a quorum.
#[derive(Debug, Clone)]
pub enum ResourceState {
    /// No lease or lock has a quorum, or can have one.
    Free,
    /// A lease. `left` is the q-th largest TTL of its key: after it the lease has no quorum.
    Lease { record: LeaseRecord, left: Duration },
    /// A foreign client's lock; `left` is `None` without a TTL.
    Foreign { fingerprint: String, left: Option<Duration> },
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Inspects one resource on all nodes.
    ///
    /// Errors: `Err` with the answers where fewer than a quorum answered, or where the nodes that show nothing may have
    /// forgotten a lease: too few of them vote.
    pub async fn inspect(&self, resource: &ResourceName) -> Result<ClusterInspection, Vec<Option<NodeResult>>> {
        let request = Request::Inspect { resource: resource.clone() };
        let started = self.clock.now();
        let deadline = started.plus(self.node_timeout());
        let tally = self.round(&self.everyone(), request, started, deadline, Until::WonAndGrace, Result::is_ok).await;
        let answers = tally.answers().to_vec();
        if tally.yes() < tally.quorum() {
            return Err(answers);
        }
        match self.majority_state(&tally) {
            Some((state, agreeing)) => Ok(ClusterInspection { state, agreeing, answers }),
            None => Err(answers),
        }
    }

    /// The lease of this token as a single node has it, for display only: no quorum says so. The token chooses the node.
    pub async fn inspect_on_one(&self, resource: &ResourceName, token: &TokenHash) -> Option<LeaseRecord> {
        let connected: Vec<usize> = self.everyone().into_iter().filter(|i| self.nodes[*i].is_connected()).collect();
        let turn = token.as_str().bytes().map(usize::from).sum::<usize>();
        let index = *connected.get(turn.checked_rem(connected.len())?)?;
        let (request, now) = (Request::Inspect { resource: resource.clone() }, self.clock.now());
        let deadline = now.plus(self.node_timeout());
        let mut tally = self.round(&[index], request, now, deadline, Until::All, Result::is_ok).await;
        match tally.take(index)? {
            Ok(Reply::Inspected(inspection)) => match inspection.lock {
                StoredLock::Lease { record, .. } if record.token == *token => Some(record),
                _ => None,
            },
            _ => None,
        }
    }

    /// With how many nodes report it; `None` where it is not known.
    fn majority_state(&self, tally: &Tally) -> Option<(ResourceState, usize)> {
        let mut groups: Vec<Group> = Vec::new();
        let mut free = 0;
        for (_, answer) in tally.received() {
            let Ok(Reply::Inspected(inspection)) = answer else { continue };
            let (identity, left_ms) = match &inspection.lock {
                // A node without a vote may have forgotten a lease: unknown.
                StoredLock::Free => {
                    free += usize::from(inspection.no_vote.is_none());
                    continue;
                }
                StoredLock::Lease { record, left_ms } => (LockIdentity::Lease(record.clone()), Some(*left_ms)),
                StoredLock::Foreign { left_ms, fingerprint } => {
                    (LockIdentity::Foreign(fingerprint.to_string()), *left_ms)
                }
            };
            let left = left_ms.map_or(Duration::MAX, Duration::from_millis);
            match groups.iter_mut().find(|g| g.identity.is_same(&identity)) {
                Some(group) => {
                    group.left.push(left);
                    group.identity.update(identity);
                }
                None => groups.push(Group { identity, left: vec![left] }),
            }
        }
        let quorum = tally.quorum();
        let known = free + groups.iter().map(|g| g.left.len()).sum::<usize>();
        let unknown = tally.size().saturating_sub(known);
        let Some(mut group) = groups.into_iter().max_by_key(|g| g.left.len()) else {
            return (unknown < quorum).then_some((ResourceState::Free, free));
        };
        let agreeing = group.left.len();
        if agreeing + unknown < quorum {
            return Some((ResourceState::Free, free));
        }
        group.left.sort_unstable_by(|a, b| b.cmp(a));
        let left = group.left.get(quorum - 1).or(group.left.last()).copied().unwrap_or_default();
        let lock = match group.identity {
            LockIdentity::Lease(record) => ResourceState::Lease { record, left },
            LockIdentity::Foreign(fingerprint) => {
                ResourceState::Foreign { fingerprint, left: (left < Duration::MAX).then_some(left) }
            }
        };
        Some((lock, agreeing))
    }
}

enum LockIdentity {
    Lease(LeaseRecord),
    Foreign(String),
}

impl LockIdentity {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Lease(a), Self::Lease(b)) => a.token == b.token,
            (Self::Foreign(a), Self::Foreign(b)) => a == b,
            _ => false,
        }
    }

    /// Keeps the latest record.
    fn update(&mut self, other: Self) {
        if let (Self::Lease(a), Self::Lease(b)) = (self, other)
            && b.recency() > a.recency()
        {
            *a = b;
        }
    }
}

/// Nodes that report the same lease or lock.
struct Group {
    identity: LockIdentity,
    left: Vec<Duration>,
}
