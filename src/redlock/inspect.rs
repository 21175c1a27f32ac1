//! Inspect: what a quorum says of one resource, not what the first node says. Reads only.

use std::time::Duration;

use super::clock::Clock;
use super::engine::Redlock;
use super::entropy::Entropy;
use super::node::Node;
use super::quorum::Tally;
use super::round::Until;
use crate::protocol::{LeaseRecord, NodeResult, Reply, Request, StoredLock};
use crate::types::ResourceName;

/// A quorum's view.
#[derive(Debug, Clone)]
pub struct ClusterInspection {
    /// Who has it.
    pub state: ResourceState,
    /// Nodes that have that.
    pub agreeing: usize,
    /// What each node answered, by index; `None` where it was not awaited.
    pub answers: Vec<Option<NodeResult>>,
}

/// Who has it.
#[derive(Debug, Clone)]
pub enum ResourceState {
    /// Nobody has it on a quorum, nor can have.
    Free,
    /// A lease of ours. `left` is the q-th largest TTL of its key: the quorum ends then.
    Lease { record: LeaseRecord, left: Duration },
    /// A foreigner; `left` is `None` without a TTL.
    Foreign { fingerprint: String, left: Option<Duration> },
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Looks at one resource on all nodes.
    ///
    /// Errors: `Err` with the answers where fewer than a quorum answered.
    pub async fn inspect(&self, resource: &ResourceName) -> Result<ClusterInspection, Vec<Option<NodeResult>>> {
        let request = Request::Inspect { resource: resource.clone() };
        let started = self.clock.now();
        let deadline = started.plus(self.settings.node_timeout);
        let tally = self.round(&self.everyone(), request, started, deadline, Until::WonAndGrace, Result::is_ok).await;
        let answers = tally.answers().to_vec();
        if tally.yes() < self.quorum() {
            return Err(answers);
        }
        let (state, agreeing) = self.majority_state(&tally);
        Ok(ClusterInspection { state, agreeing, answers })
    }

    fn majority_state(&self, tally: &Tally) -> (ResourceState, usize) {
        let mut groups: Vec<Group> = Vec::new();
        let mut free = 0;
        for (_, answer) in tally.received() {
            let Ok(Reply::Inspected(seen)) = answer else { continue };
            let (key, left_ms) = match &seen.lock {
                // A node without a vote that has nothing may have forgotten it: not known.
                StoredLock::Free => {
                    free += usize::from(seen.no_vote.is_none());
                    continue;
                }
                StoredLock::Lease { record, left_ms } => (Key::Lease(record.clone()), Some(*left_ms)),
                StoredLock::Foreign { left_ms, fingerprint } => (Key::Foreign(fingerprint.to_string()), *left_ms),
            };
            let left = left_ms.map_or(Duration::MAX, Duration::from_millis);
            match groups.iter_mut().find(|g| g.key.same(&key)) {
                Some(group) => {
                    group.left.push(left);
                    group.key.update(key);
                }
                None => groups.push(Group { key, left: vec![left] }),
            }
        }
        let need = self.quorum();
        let known = free + groups.iter().map(|g| g.left.len()).sum::<usize>();
        let unknown = tally.answers().len() - known;
        let Some(mut group) = groups.into_iter().max_by_key(|g| g.left.len()) else {
            return (ResourceState::Free, free);
        };
        let agreeing = group.left.len();
        if agreeing + unknown < need {
            return (ResourceState::Free, free);
        }
        group.left.sort_unstable_by(|a, b| b.cmp(a));
        let left = group.left.get(need - 1).or(group.left.last()).copied().unwrap_or_default();
        let lock = match group.key {
            Key::Lease(record) => ResourceState::Lease { record, left },
            Key::Foreign(fingerprint) => {
                ResourceState::Foreign { fingerprint, left: (left < Duration::MAX).then_some(left) }
            }
        };
        (lock, agreeing)
    }
}

enum Key {
    Lease(LeaseRecord),
    Foreign(String),
}

impl Key {
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Lease(a), Self::Lease(b)) => a.token == b.token,
            (Self::Foreign(a), Self::Foreign(b)) => a == b,
            _ => false,
        }
    }

    /// Keeps the record that says most: the highest fence, then the most renewals.
    fn update(&mut self, other: Self) {
        if let (Self::Lease(a), Self::Lease(b)) = (self, other)
            && (b.fence, b.renewals) > (a.fence, a.renewals)
        {
            *a = b;
        }
    }
}

struct Group {
    key: Key,
    left: Vec<Duration>,
}
