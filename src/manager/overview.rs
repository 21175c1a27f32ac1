//! The data of the pages. It is read without a request to the nodes, so it may be some seconds old; the answers of
//! the API, in `queries`, are not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::activity::Hour;
use super::cluster_state::Situation;
use super::events::EventKind;
use super::latency::{LatencyWindow, Round};
use super::lease_snapshot::Snapshot;
use super::service::LockManager;
use super::tenures::KnownTenures;
use super::types::{CycleEdge, Deadlock, InstanceQueue, NodeListState, NodeSummary, QuorumCount};
use crate::api::DeadlockEdge;
use crate::protocol::InstanceName;
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{ResourceName, TokenId};
use crate::waiting::state_machine::Queue;

/// Number of the latest reloads that are examined for failures.
const RELOADS_EXAMINED: usize = 256;
/// Number of the latest deadlocks that are examined for whether they still last.
const DEADLOCKS_EXAMINED: usize = 64;

/// The leases and waiters of the cluster.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The held leases when the snapshot was taken.
    pub leases: Arc<Snapshot>,
    /// How old the snapshot is.
    pub age: Duration,
    /// How long the nodes keep a lease's keys after its deadline.
    pub lock_delay: Duration,
    /// The instance that shows the overview.
    pub instance: InstanceName,
    /// How many requests wait for a resource, at all instances.
    pub waiting: HashMap<ResourceName, usize>,
    /// How many requests wait at other instances for resources that these did not name.
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

/// A waiter of any instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedWaiter {
    /// The resource that it waits for.
    pub resource: ResourceName,
    /// The instance whose queue it is in.
    pub instance: InstanceName,
    /// Its position in that instance's queue; 1 is the head.
    pub position: usize,
    /// The owner that the waiter names.
    pub owner: Arc<str>,
    /// How long it has waited.
    pub waiting: Duration,
    /// Maximum time that it will still wait; `None` if an instance of an earlier release does not report it.
    pub left: Option<Duration>,
    /// The waiter's note; for other instances only the beginning.
    pub note: Arc<str>,
    /// Whether a ticket waits, not a connection; of other instances, only those of this release report it.
    pub is_ticket: bool,
}

/// The state of the nodes, and whether they have a quorum.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    /// The nodes in configured order.
    pub nodes: Vec<NodeSummary>,
    /// The quorum; `granted` counts the nodes that vote.
    pub quorum: QuorumCount,
    /// Whether the service is shutting down.
    pub draining: bool,
    /// The instance that reports the status.
    pub instance: InstanceName,
    /// The status in words, with what to do.
    pub situation: Situation,
    /// The nodes' view, and the change of their list that is under way.
    pub list: NodeListState,
}

/// An edge as another instance reported it; `None` if malformed.
fn cycle_edge(edge: &DeadlockEdge) -> Option<CycleEdge> {
    Some(CycleEdge {
        owner: edge.owner.clone(),
        waits_for: ResourceName::parse(&edge.waits_for).ok()?,
        held_by: edge.held_by.clone(),
        token_id: TokenId::parse(&edge.token_id)?,
    })
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The overview from the last snapshot: the nodes are read only if there is none of the last half minute.
    ///
    /// Cancel: nothing is left behind.
    pub async fn overview(&self) -> Overview {
        let leases = self.shared.snapshots.overview(self.engine(), || self.nodes_without_vote()).await;
        let (now, others) = (self.now(), self.shared.cluster_waiters.summary(self.now()));
        let own_longest = self.shared.waiting.queue(Queue::oldest_since).map(|since| now.since(since));
        let count = |(name, at): (ResourceName, Vec<InstanceQueue>)| (name, at.iter().map(|at| at.waiting).sum());
        Overview {
            age: now.since(leases.taken),
            leases,
            lock_delay: self.engine().terms().lock_delay,
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

    /// The deadlocks of all instances that the nodes confirmed, and that last: those of other instances for as long
    /// as each of their owners is known to wait there.
    pub fn deadlocks(&self) -> Vec<Deadlock> {
        let waits = |edge: &CycleEdge, waiter| self.shared.waiting.queue(|queue| queue.waits(&edge.waits_for, waiter));
        let mut all = self.shared.deadlocks.present(self.now(), waits);
        let reported = self.shared.events.incidents(EventKind::Deadlock, DEADLOCKS_EXAMINED);
        if reported.is_empty() {
            return all;
        }
        let (waiting, wall_ms) = (self.waiters(), self.wall_ms());
        let waits_there = |edge: &CycleEdge, instance: &str| {
            let mut there = waiting.iter().filter(|waiter| waiter.instance.as_str() == instance);
            there.any(|waiter| waiter.resource == edge.waits_for && *waiter.owner == *edge.owner)
        };
        for event in reported {
            let instance = event.instance.as_deref().filter(|name| *name != self.shared.instance.as_str());
            let Some(instance) = instance.filter(|_| event.reason.as_deref() == Some("reported")) else { continue };
            let edges = event.cycle.iter().flatten();
            let Some(cycle) = edges.map(cycle_edge).collect::<Option<Vec<_>>>() else { continue };
            let is_new = !cycle.is_empty() && all.iter().all(|known| known.cycle != cycle);
            if is_new && cycle.iter().all(|edge| waits_there(edge, instance)) {
                all.push(Deadlock { cycle, age: Duration::from_millis(wall_ms.saturating_sub(event.at_ms)) });
            }
        }
        all
    }

    /// The nodes as the monitor last saw them. Asks no node.
    pub fn cluster_status(&self) -> ClusterStatus {
        let nodes = self.nodes();
        let granted = nodes.iter().filter(|node| node.votes).count();
        let situation = self.situation(&nodes);
        let (draining, instance) = (self.is_stopping(), self.shared.instance.clone());
        ClusterStatus { quorum: self.count(granted), situation, nodes, draining, instance, list: self.node_list() }
    }

    /// The files of this instance whose last reload failed, so that the former content is in force: by their names
    /// among events, with the time of the first of these failures (milliseconds since 1970).
    pub(crate) fn rejected_files(&self) -> Vec<(String, u64)> {
        let own = self.shared.instance.to_string();
        let mut files: Vec<(String, Option<u64>, bool)> = Vec::new();
        for event in self.shared.events.incidents(EventKind::Reloaded, RELOADS_EXAMINED) {
            let Some(file) = event.detail.as_deref().filter(|_| event.instance.as_ref() == Some(&own)) else {
                continue;
            };
            let is_rejected = event.reason.as_deref() == Some("rejected");
            match files.iter_mut().find(|(name, ..)| name == file) {
                None => files.push((file.to_owned(), is_rejected.then_some(event.at_ms), is_rejected)),
                // Newest first: rejections before a success are over.
                Some((_, since, lasts)) => {
                    *lasts &= is_rejected;
                    if *lasts {
                        *since = Some(event.at_ms);
                    }
                }
            }
        }
        files.into_iter().filter_map(|(name, since, _)| since.map(|since| (name, since))).collect()
    }

    /// What happened to locks in the last hour, at all instances.
    pub(crate) fn hour(&self) -> Hour {
        self.shared.events.hour(self.wall_ms())
    }

    /// The owners that held, or waited for, these names at any instance since then (milliseconds since 1970; at most an hour).
    pub(crate) fn tenures(&self, from_ms: u64, is_wanted: impl Fn(&str) -> bool) -> KnownTenures {
        self.shared.events.tenures(from_ms, self.wall_ms(), is_wanted)
    }

    /// How long quorums took to decide, over the last quarter of an hour: all rounds together, and each kind.
    pub fn round_latency(&self) -> (LatencyWindow, [(Round, LatencyWindow); 4]) {
        self.shared.round_latency.windows(self.now())
    }

    /// How long the nodes keep a lease's keys after its deadline.
    pub fn lock_delay(&self) -> Duration {
        self.engine().terms().lock_delay
    }
}
