//! What the sequences (acquire, extend, release, inspect) share: the nodes, the clocks, the settings,
//! and the tasks that outlive a request. Knows no sequence itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::backoff::BackoffRange;
use super::clock::{BootTime, Clock};
use super::cluster_clock::ClusterClock;
use super::entropy::Entropy;
use super::node::Node;
use super::quorum::{self, NodeOutcome, Verdict, quorum_of};
use crate::mutant::{self, Mutant};
use crate::protocol::ClusterParams;
use crate::types::Ttl;

/// How the algorithm behaves. Checked against each other by the configuration.
#[derive(Debug, Clone)]
pub struct RedlockSettings {
    /// What all instances agree on.
    pub params: Arc<ClusterParams>,
    /// How long one round waits for one node.
    pub node_timeout: Duration,
    /// Clock-rate allowance, parts per million of the TTL.
    pub drift_ppm: u32,
    /// Clock-rate allowance, fixed part.
    pub drift_floor: Duration,
    /// A round that leaves less of the TTL than this counts as failed. Percent.
    pub min_validity_percent: u8,
    /// Delays between tries after a split vote or without a quorum.
    pub retry: BackoffRange,
    /// Longest time between two looks of a waiter at a resource that somebody else's instance, or a
    /// foreign client, holds: releases there may go unnoticed.
    pub poll: Duration,
    /// The most clean-ups and repairs under way; beyond it the TTL cleans up.
    pub cleanup_limit: usize,
}

/// The engine of one instance. Cheap to clone.
pub struct Redlock<N, C, E>(Arc<Engine<N, C, E>>);

impl<N, C, E> Clone for Redlock<N, C, E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N, C, E> std::ops::Deref for Redlock<N, C, E> {
    type Target = Engine<N, C, E>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// See [`Redlock`].
pub struct Engine<N, C, E> {
    /// The nodes, in configured order.
    pub nodes: Vec<Arc<N>>,
    /// Decides.
    pub clock: C,
    /// Draws tokens, attempts and jitter.
    pub entropy: E,
    /// Stamps requests.
    pub cluster_clock: ClusterClock<C>,
    /// See [`RedlockSettings`].
    pub settings: RedlockSettings,
    /// Clean-ups, repairs and stragglers: awaited at shutdown.
    pub tasks: TaskTracker,
    pub(super) cleanups: Arc<Semaphore>,
    counts: Counts,
}

/// What happened outside of any request's answer.
#[derive(Debug, Default)]
struct Counts {
    skipped_cleanups: AtomicU64,
    under_replicated: AtomicU64,
    repaired: AtomicU64,
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// An engine over these nodes; the quorum is that of their number, reachable or not.
    pub fn new(nodes: Vec<Arc<N>>, clock: C, entropy: E, settings: RedlockSettings) -> Self {
        let cluster_clock = ClusterClock::new(clock.clone());
        let cleanups = Arc::new(Semaphore::new(settings.cleanup_limit));
        let (tasks, counts) = (TaskTracker::new(), Counts::default());
        Self(Arc::new(Engine { nodes, clock, entropy, cluster_clock, settings, tasks, cleanups, counts }))
    }
}

impl<N: Node, C: Clock, E: Entropy> Engine<N, C, E> {
    /// Nodes that must agree.
    pub fn quorum(&self) -> usize {
        quorum_of(self.nodes.len())
    }

    /// TTL less drift, counted from `started`.
    pub fn deadline(&self, started: BootTime, ttl: Ttl) -> BootTime {
        let started = if mutant::is(Mutant::ValidityFromReply) { self.clock.now() } else { started };
        let drift = quorum::drift(ttl, self.settings.drift_ppm, self.settings.drift_floor);
        started.plus(quorum::validity(ttl, Duration::ZERO, drift))
    }

    /// The least validity that is worth an answer.
    pub fn min_validity(&self, ttl: Ttl) -> Duration {
        let share_ms = u128::from(ttl.as_ms()) * u128::from(self.settings.min_validity_percent) / 100;
        Duration::from_millis(u64::try_from(share_ms).unwrap_or(u64::MAX)).max(Duration::from_millis(1))
    }

    /// Clean-ups and repairs under way.
    pub fn cleanups_in_flight(&self) -> usize {
        self.settings.cleanup_limit.saturating_sub(self.cleanups.available_permits())
    }

    /// Clean-ups that were left to the TTL because too many were under way.
    pub fn skipped_cleanups(&self) -> u64 {
        self.counts.skipped_cleanups.load(Ordering::Relaxed)
    }

    /// Nodes found without a lease that an extend had just confirmed on a quorum, since the start.
    pub fn under_replicated(&self) -> u64 {
        self.counts.under_replicated.load(Ordering::Relaxed)
    }

    /// Leases put back on such nodes, since the start.
    pub fn repaired(&self) -> u64 {
        self.counts.repaired.load(Ordering::Relaxed)
    }

    pub(super) fn count_skipped_cleanup(&self) {
        self.counts.skipped_cleanups.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_under_replicated(&self, nodes: usize) {
        self.counts.under_replicated.fetch_add(nodes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_repaired(&self) {
        self.counts.repaired.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn outcomes(&self, answers: &[Option<crate::protocol::NodeResult>]) -> Vec<NodeOutcome> {
        let verdicts = answers.iter().map(|a| Verdict::of(a.as_ref()));
        self.nodes.iter().zip(verdicts).map(|(n, verdict)| NodeOutcome { node: n.id().clone(), verdict }).collect()
    }
}
