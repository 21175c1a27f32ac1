//! What pages are made of: everything that operators look at, without a node being asked. Apart from
//! the answers of the contract (`report`), which say less and say it fresher. Knows no page.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::latency::LatencyWindow;
use super::leases::Snapshot;
use super::queue::Seated;
use super::service::LockManager;
use super::types::{NodeSummary, QuorumCount};
use crate::redlock::clock::Clock;
use crate::redlock::entropy::Entropy;
use crate::redlock::node::Node;
use crate::types::ResourceName;

/// The cluster at a overview.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The held leases, as of a moment ago.
    pub leases: Arc<Snapshot>,
    /// How long ago.
    pub age: Duration,
    /// What the nodes keep beyond the promise.
    pub lock_delay: Duration,
    /// How many wait for a resource in this instance.
    pub waiting: HashMap<ResourceName, usize>,
    /// The longest that any of them has waited.
    pub longest_wait: Option<Duration>,
}

impl Overview {
    /// What may be seen of it; `queued` are the waiters that may be seen.
    #[must_use]
    pub fn only(self, seen: impl Fn(&ResourceName) -> bool, queued: &[ListedWaiter]) -> Self {
        let mut waiting = self.waiting;
        waiting.retain(|name, _| seen(name));
        let longest_wait = queued.iter().map(|waiter| waiter.waiting).max();
        Self { leases: Arc::new(self.leases.only(seen)), waiting, longest_wait, ..self }
    }
}

/// One waiter of this instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedWaiter {
    /// For what.
    pub resource: ResourceName,
    /// 1 is next.
    pub position: usize,
    /// Who, as it says itself.
    pub owner: Arc<str>,
    /// Since how long.
    pub waiting: Duration,
}

/// The nodes and the vote that they make up.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    /// In configured order.
    pub nodes: Vec<NodeSummary>,
    /// `granted` counts those that vote.
    pub quorum: QuorumCount,
    /// The service is shutting down.
    pub draining: bool,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// From the kept snapshot: the nodes are asked only where nobody has looked for a while.
    ///
    /// Cancel: nothing is left behind.
    pub async fn overview(&self) -> Overview {
        let leases = self.shared.snapshots.overview(self.engine()).await;
        let (now, room) = (self.now(), &self.shared.room);
        Overview {
            age: now.since(leases.taken),
            leases,
            lock_delay: self.engine().settings.params.lock_delay,
            waiting: room.queues().into_iter().collect(),
            longest_wait: room.oldest().map(|since| now.since(since)),
        }
    }

    /// Keeps the snapshot fresh while pages are looked at. Never returns; dropping it stops it.
    pub async fn run_snapshot_refresh(self) {
        self.shared.snapshots.keep_fresh(self.engine()).await;
    }

    /// Every waiter of this instance, the oldest first.
    pub fn waiters(&self) -> Vec<ListedWaiter> {
        let now = self.now();
        let queued = |(resource, position, seat): (ResourceName, usize, Seated)| ListedWaiter {
            resource,
            position,
            owner: seat.owner,
            waiting: now.since(seat.since),
        };
        self.shared.room.everybody().into_iter().map(queued).collect()
    }

    /// Asks no node.
    pub fn cluster_status(&self) -> ClusterStatus {
        let nodes = self.nodes();
        let granted = nodes.iter().filter(|node| node.votes).count();
        ClusterStatus { quorum: self.count(granted), nodes, draining: self.shared.draining.is_cancelled() }
    }

    /// How long quorums took to decide, over the last quarter of an hour.
    pub fn round_latency(&self) -> LatencyWindow {
        self.shared.rounds.window(self.now())
    }

    /// What the nodes keep beyond the promise.
    pub fn lock_delay(&self) -> Duration {
        self.engine().settings.params.lock_delay
    }
}
