//! What the pages for operators show. No node is asked for it, so it may be some seconds old; `report` has
//! the answers of the API, which are not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::latency::LatencyWindow;
use super::service::LockManager;
use super::situation::Situation;
use super::snapshots::Snapshot;
use super::types::{CycleEdge, Deadlock, NodeSummary, QuorumCount, WaitingAt};
use crate::protocol::InstanceName;
use crate::redlock::clock::Clock;
use crate::redlock::entropy::Entropy;
use crate::redlock::node::Node;
use crate::types::ResourceName;
use crate::waiting::queue::Queue;

/// The leases and waiters of the cluster.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The held leases when the snapshot was taken.
    pub leases: Arc<Snapshot>,
    /// How old the snapshot is.
    pub age: Duration,
    /// How long the nodes keep a lease's keys after its deadline.
    pub lock_delay: Duration,
    /// The instance that shows it.
    pub instance: InstanceName,
    /// How many requests wait for a resource, at all instances.
    pub waiting: HashMap<ResourceName, usize>,
    /// How many wait at other instances for resources that these did not name.
    pub unnamed: usize,
    /// How long the oldest of all waiters has waited.
    pub longest_wait: Option<Duration>,
    /// Whether the waiters of all other instances are known.
    pub waiters_known: bool,
}

impl Overview {
    /// How many requests wait at all instances.
    pub fn total_waiting(&self) -> usize {
        self.waiting.values().sum::<usize>().saturating_add(self.unnamed)
    }

    /// The part that a caller may see: resources that `is_visible` accepts, and the waiters in `visible`.
    #[must_use]
    pub fn only(self, is_visible: impl Fn(&ResourceName) -> bool, visible: &[ListedWaiter]) -> Self {
        let mut waiting = self.waiting;
        waiting.retain(|name, _| is_visible(name));
        let longest_wait = visible.iter().map(|waiter| waiter.waiting).max();
        Self { leases: Arc::new(self.leases.only(is_visible)), waiting, unnamed: 0, longest_wait, ..self }
    }
}

/// One waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedWaiter {
    /// What it waits for.
    pub resource: ResourceName,
    /// Where it waits.
    pub instance: InstanceName,
    /// Its position in that instance's queue; 1 is the head.
    pub position: usize,
    /// The owner that it names.
    pub owner: Arc<str>,
    /// How long it has waited.
    pub waiting: Duration,
}

/// The state of the nodes, and whether they are a quorum.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    /// In configured order.
    pub nodes: Vec<NodeSummary>,
    /// `granted` counts those that vote.
    pub quorum: QuorumCount,
    /// The service is shutting down.
    pub draining: bool,
    /// The same in words, with what to do.
    pub situation: Situation,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// From the last snapshot: the nodes are asked only where there is none of the last half minute.
    ///
    /// Cancel: nothing is left behind.
    pub async fn overview(&self) -> Overview {
        let leases = self.shared.snapshots.overview(self.engine(), || self.nodes_without_vote()).await;
        let (now, others) = (self.now(), self.shared.cluster_waiters.summary(self.now()));
        let own_longest = self.shared.waiting.queue(Queue::oldest_since).map(|since| now.since(since));
        let count = |(name, at): (ResourceName, Vec<WaitingAt>)| (name, at.iter().map(|at| at.waiting).sum());
        Overview {
            age: now.since(leases.taken),
            leases,
            lock_delay: self.engine().settings.params.lock_delay,
            instance: self.shared.instance.clone(),
            waiting: self.waiting_by_resource().into_iter().map(count).collect(),
            unnamed: others.unnamed,
            longest_wait: own_longest.max(others.oldest),
            waiters_known: others.is_known,
        }
    }

    /// Keeps the snapshot fresh while pages are read or metrics scraped. Never returns; dropping it stops it.
    pub async fn run_snapshot_refresh(self) {
        self.shared.snapshots.keep_fresh(self.engine(), || self.nodes_without_vote()).await;
    }

    /// The deadlocks of this instance's waiters that the nodes confirmed, and that last.
    pub fn deadlocks(&self) -> Vec<Deadlock> {
        let waits = |edge: &CycleEdge, waiter| self.shared.waiting.queue(|queue| queue.waits(&edge.waits_for, waiter));
        self.shared.deadlocks.present(self.now(), waits)
    }

    /// The nodes as the monitor last saw them. Asks no node.
    pub fn cluster_status(&self) -> ClusterStatus {
        let nodes = self.nodes();
        let granted = nodes.iter().filter(|node| node.votes).count();
        let situation = self.situation(&nodes);
        ClusterStatus { quorum: self.count(granted), situation, nodes, draining: self.is_stopping() }
    }

    /// How long quorums took to decide, over the last quarter of an hour.
    pub fn round_latency(&self) -> LatencyWindow {
        self.shared.round_latency.window(self.now())
    }

    /// How long the nodes keep a lease's keys after its deadline.
    pub fn lock_delay(&self) -> Duration {
        self.engine().settings.params.lock_delay
    }
}
