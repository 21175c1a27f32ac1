//! The lock without HTTP: the service's own manager in the process of the load, over one embedded node or others. A cycle here
//! costs what the lock contributes to a cycle of the service.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redlockd::manager::LockManager;
use redlockd::manager::types::AcquireRequest;
use redlockd::nodes::embedded::{EmbeddedConfig, EmbeddedNode};
use redlockd::protocol::{ClusterParams, quarantine_for};
use redlockd::redlock::backoff::BackoffRange;
use redlockd::redlock::clock::SystemClock;
use redlockd::redlock::engine::{Redlock, RedlockSettings};
use redlockd::redlock::monitor::NodeMonitor;
use redlockd::redlock::node::Node;
use redlockd::redlock::random::{Entropy, SystemEntropy};
use redlockd::types::{Labels, NodeId, ResourceName, Ttl};
use redlockd::waiting::event::WaitLimits;
use rustix::time::{ClockId, clock_gettime};

use crate::Failure;
use crate::servers::Directory;
use crate::stats::Run;
use crate::workers::{Until, repeat};

/// TTL of every lease here.
const TTL_MS: u64 = 30_000;

/// What the service has for times that nodes and clocks may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How long a node may take to answer.
    pub node_timeout: Duration,
    /// How much clocks may differ.
    pub guard: Duration,
    /// How long a name stays locked after its lease has expired.
    pub lock_delay: Duration,
}

impl Patience {
    /// The service's defaults.
    pub const DEFAULT: Self = Self {
        node_timeout: Duration::from_millis(50),
        guard: Duration::from_millis(500),
        lock_delay: Duration::from_secs(1),
    };
    /// For a run under valgrind, where everything takes fifty times as long.
    pub const UNDER_VALGRIND: Self = Self {
        node_timeout: Duration::from_secs(10),
        guard: Duration::from_secs(11),
        lock_delay: Duration::from_secs(22),
    };

    /// The parameters of a cluster, otherwise with the service's defaults.
    pub fn params(self) -> ClusterParams {
        let Self { guard, lock_delay, .. } = self;
        let quarantine = quarantine_for(Duration::from_secs(300), lock_delay, guard);
        let fence_ttl = Duration::from_secs(3_600);
        ClusterParams {
            cluster: "bench".into(),
            guard,
            lock_delay,
            quarantine,
            fence_ttl,
            template: Default::default(),
        }
    }
}

/// The manager.
pub struct Within<N> {
    locks: LockManager<N, SystemClock, SystemEntropy>,
    _data: Rc<Directory>,
}

impl<N: Node> Clone for Within<N> {
    fn clone(&self) -> Self {
        Self { locks: self.locks.clone(), _data: Rc::clone(&self._data) }
    }
}

/// An embedded node with its file there. It votes at once.
///
/// Errors: where its file cannot be written.
pub fn embedded(number: usize, patience: Patience, data: &Directory) -> Result<Arc<EmbeddedNode>, Failure> {
    let id = NodeId::parse(&format!("embedded-{number}")).map_err(|invalid| invalid.to_string())?;
    Ok(EmbeddedNode::open(EmbeddedConfig { id, dir: data.0.clone(), params: patience.params(), clock: SystemClock })?)
}

impl Within<EmbeddedNode> {
    /// Over one embedded node.
    ///
    /// Errors: where the node's file cannot be written.
    pub async fn start(patience: Patience) -> Result<Self, Failure> {
        let data = Directory::new()?;
        Self::over(vec![embedded(1, patience, &data)?], patience, data, false).await
    }
}

impl<N: Node> Within<N> {
    /// Over these nodes, which vote when this returns. `is_new`: they are blank, and declared as a new cluster. `data` is kept as
    /// long as the manager.
    ///
    /// Errors: where the cluster cannot be declared.
    pub async fn over(nodes: Vec<Arc<N>>, patience: Patience, data: Directory, is_new: bool) -> Result<Self, Failure> {
        let settings = RedlockSettings {
            params: Arc::new(patience.params()),
            node_timeout: patience.node_timeout,
            drift_ppm: 10_000,
            drift_floor: Duration::from_millis(2),
            min_validity_percent: 10,
            retry: BackoffRange { first: Duration::from_millis(2), max: Duration::from_millis(250) },
            poll: Duration::from_secs(1),
            cleanup_limit: 4_096,
            fan_out: redlockd::redlock::fan_out::FanOut::All,
        };
        let engine = Redlock::new(nodes, SystemClock, SystemEntropy, settings);
        let monitor = NodeMonitor::new(engine.clone());
        match is_new {
            true => monitor.init().await?,
            false => monitor.probe_round().await,
        }
        let limits = WaitLimits { per_resource: 1_000, total: 20_000, detects_deadlocks: true };
        let locks = LockManager::new(engine, monitor, limits, Duration::from_secs(2));
        Ok(Self { locks, _data: Rc::new(data) })
    }

    /// Acquires and releases, each of a name of its own.
    ///
    /// Errors: none but those of the workers; cycles that fail are counted.
    pub async fn cycles(&self, connections: usize, until: Until) -> Result<Run, Failure> {
        let ttl = Ttl::from_ms(TTL_MS).map_err(|invalid| invalid.to_string())?;
        let run = SystemEntropy.bits();
        let cycle = async move |within: &mut Self, number| {
            let Ok(resource) = ResourceName::parse(&format!("within-{run:x}-{number}")) else { return false };
            let done = within.cycle(&resource, ttl).await;
            // Nothing here waits for anything: the others would not get their turns.
            tokio::task::yield_now().await;
            done
        };
        repeat(vec![self.clone(); connections], until, cycle).await
    }

    /// The longest of so many cycles, each of a name of its own and one after the other: milliseconds of this thread's processor
    /// time, which other processes do not lengthen. Each leaves a tombstone for a minute.
    ///
    /// Errors: a cycle that fails.
    pub async fn longest_cycle_ms(&self, cycles: u64) -> Result<f64, Failure> {
        let ttl = Ttl::from_ms(TTL_MS).map_err(|invalid| invalid.to_string())?;
        let mut longest = Duration::ZERO;
        for number in 0..cycles {
            let resource = ResourceName::parse(&format!("longest-{number}")).map_err(|invalid| invalid.to_string())?;
            let begun = thread_time();
            if !self.cycle(&resource, ttl).await {
                return Err(format!("cycle {number} failed").into());
            }
            longest = longest.max(thread_time().saturating_sub(begun));
        }
        Ok(longest.as_secs_f64() * 1e3)
    }

    /// An acquire and its release: whether both succeeded.
    async fn cycle(&self, resource: &ResourceName, ttl: Ttl) -> bool {
        let wanted = AcquireRequest {
            resource: resource.clone(),
            mode: redlockd::types::WantedMode::Exclusive,
            ttl,
            wait: Duration::ZERO,
            kept_for: None,
            labels: Labels::default(),
            token: None,
            refuses_deadlock: false,
            principal: None,
            keep: None,
        };
        let Ok(lease) = self.locks.acquire(wanted).await.and_then(|granted| granted.commit()) else { return false };
        self.locks.release(resource, &lease.token).await.is_ok()
    }
}

fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
