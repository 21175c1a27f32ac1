//! A thousand waiters, each for another resource, that arrive at once and are woken at once: the number of
//! concurrent attempts is bounded, so that other requests get through the queues to the nodes.

use std::time::Duration;

use tokio::task::LocalSet;

use super::clock::{Paused, SeededRandom};
use super::nodes::{Link, NetworkProfile, Server};
use super::scenario::{Manager, instance, params};
use crate::manager::PendingGrant;
use crate::manager::types::{AcquireError, AcquireRequest, GrantedLease};
use crate::redlock::clock::Clock;
use crate::types::{Labels, ResourceName, Ttl};
use crate::waiting::event::WaitLimits;
use crate::waiting::queue::CONCURRENT_ATTEMPTS_MAX;

const CALLERS: usize = 1_000;
const NODES: usize = 3;
/// Each message takes the same time, so that the answers of all nodes come together.
const NETWORK: NetworkProfile = NetworkProfile { latency_ms: 1, spikes: 0, late_inspections: 0, lost: 0, notice_ms: 1 };

async fn acquire(manager: &Manager, number: usize, wait_s: u64) -> Result<GrantedLease, AcquireError> {
    let request = AcquireRequest {
        resource: ResourceName::parse(&format!("r{number}")).expect("valid"),
        token: None,
        ttl: Ttl::from_ms(30_000).expect("in range"),
        wait: Duration::from_secs(wait_s),
        labels: Labels::default(),
        refuses_deadlock: false,
        principal: None,
    };
    manager.acquire(request).await.and_then(PendingGrant::commit)
}

async fn run() {
    let (clock, random, params) = (Paused::start(), SeededRandom::new(1), params());
    let servers: Vec<_> = (0..NODES).map(|_| Server::new(clock, &random, NETWORK)).collect();
    let own = servers.iter().enumerate().map(|(i, s)| Link::open(i, s, &params)).collect();
    let limits = WaitLimits { per_resource: 10, total: CALLERS, detects_deadlocks: false };
    let manager = instance(own, clock, &random, &params, limits, true).await;
    let mut held = Vec::new();
    for i in 0..CALLERS {
        held.push(acquire(&manager, i, 0).await.expect("free"));
    }
    let before = servers.iter().map(|s| s.most_acquires()).max();
    assert_eq!(before, Some(1), "one by one so far");
    let waiters: Vec<_> = (0..CALLERS)
        .map(|i| {
            let manager = manager.clone();
            tokio::task::spawn_local(async move { acquire(&manager, i, 60).await })
        })
        .collect();
    clock.sleep(Duration::from_secs(5)).await;
    assert_eq!(manager.gauges().waiters, CALLERS, "none was refused, and all have tried");
    let at_once = held.iter().map(|lease| {
        let (manager, token) = (manager.clone(), lease.token.clone());
        let resource = lease.resource.clone();
        tokio::task::spawn_local(async move { manager.release(&resource, &token).await })
    });
    for release in at_once.collect::<Vec<_>>() {
        assert!(release.await.expect("no panic").is_ok());
    }
    for waiter in waiters {
        assert!(waiter.await.expect("no panic").is_ok(), "all are served");
    }
    let most = servers.iter().map(|s| s.most_acquires()).max().unwrap_or_default();
    // Two answers of three decide: the third of one attempt may be under way beside the next one.
    assert!((2..=2 * CONCURRENT_ATTEMPTS_MAX).contains(&most), "{most} acquires were under way to a node at once");
}

#[test]
fn attempts_of_a_thousand_waiters_are_bounded() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(LocalSet::new().run_until(run()));
}
