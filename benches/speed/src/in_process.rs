//! The lock without HTTP: the service's own manager over one embedded node, in the process of the load. A cycle here
//! costs what the lock contributes to a cycle of the service on embedded nodes.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redlockd::manager::LockManager;
use redlockd::manager::types::AcquireRequest;
use redlockd::nodes::embedded::{EmbeddedConfig, EmbeddedNode};
use redlockd::redlock::backoff::BackoffRange;
use redlockd::redlock::clock::SystemClock;
use redlockd::redlock::engine::{Redlock, RedlockSettings};
use redlockd::redlock::random::{Entropy, SystemEntropy};
use redlockd::protocol::{ClusterParams, quarantine_for};
use redlockd::redlock::monitor::NodeMonitor;
use redlockd::types::{Labels, NodeId, ResourceName, Ttl};
use redlockd::waiting::event::WaitLimits;
use rustix::time::{ClockId, clock_gettime};

use crate::Failure;
use crate::workers::{Until, repeat};
use crate::servers::Directory;
use crate::stats::Run;

/// TTL of every lease here.
const TTL_MS: u64 = 30_000;

/// The manager, and the node that it works with.
#[derive(Clone)]
pub struct Within {
    locks: LockManager<EmbeddedNode, SystemClock, SystemEntropy>,
    _data: Rc<Directory>,
}

impl Within {
    /// With the service's defaults. The node votes when this returns.
    ///
    /// Errors: where the node's file cannot be written.
    pub async fn start() -> Result<Self, Failure> {
        let data = Directory::new()?;
        let (guard, lock_delay) = (Duration::from_millis(500), Duration::from_secs(1));
        let quarantine = quarantine_for(Duration::from_secs(300), lock_delay, guard);
        let fence_ttl = Duration::from_secs(3_600);
        let params = ClusterParams { cluster: "bench".into(), guard, lock_delay, quarantine, fence_ttl, template: Default::default() };
        let id = NodeId::parse("embedded-1").map_err(|invalid| invalid.to_string())?;
        let (dir, clock) = (data.0.clone(), SystemClock);
        let node = EmbeddedNode::open(EmbeddedConfig { id, dir, params: params.clone(), clock })?;
        let settings = RedlockSettings {
            params: Arc::new(params),
            node_timeout: Duration::from_millis(50),
            drift_ppm: 10_000,
            drift_floor: Duration::from_millis(2),
            min_validity_percent: 10,
            retry: BackoffRange { first: Duration::from_millis(2), max: Duration::from_millis(250) },
            poll: Duration::from_secs(1),
            cleanup_limit: 4_096,
            fan_out: redlockd::redlock::fan_out::FanOut::All,
        };
        let engine = Redlock::new(vec![node], SystemClock, SystemEntropy, settings);
        let monitor = NodeMonitor::new(engine.clone());
        monitor.probe_round().await;
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
