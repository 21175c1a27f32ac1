//! Waiting through the manager, over one node on paused time: what the queue alone cannot show, since it is decided by
//! an answer that is not written, or by what the nodes confirm.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::*;
use crate::manager::types::{AcquireError, KeepPlace};
use crate::mutant::{Mutant, plant, restore};
use crate::protocol::reference::ReferenceNode;
use crate::protocol::{ClusterParams, NodeResult, Request, RequestStamp, quarantine_for};
use crate::redlock::backoff::BackoffRange;
use crate::redlock::clock::PausedClock;
use crate::redlock::engine::RedlockSettings;
use crate::redlock::notifications::NotificationSource;
use crate::redlock::random::SystemEntropy;
use crate::types::{Labels, NodeId, Ttl, WaitId, WantedMode};

const RUN: &str = "0000000000000000000000000000000000000001";

/// A node that answers at once. Its managers take themselves for the only ones, so that what one ends the other does not
/// learn.
struct TestNode {
    id: NodeId,
    clock: PausedClock,
    params: ClusterParams,
    machine: Mutex<ReferenceNode>,
}

impl Node for TestNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Local
    }

    async fn call(self: Arc<Self>, stamp: RequestStamp, request: Arc<Request>) -> NodeResult {
        let now_us = self.clock.wall_ms() * 1_000;
        self.machine.lock().apply(now_us, RUN, stamp, &self.params, &request)
    }
}

type Manager = LockManager<TestNode, PausedClock, SystemEntropy>;

/// Two managers over one node.
async fn managers() -> [Manager; 2] {
    let clock = PausedClock::start();
    let (guard, lock_delay) = (Duration::from_millis(500), Duration::from_secs(1));
    let quarantine = quarantine_for(Duration::from_secs(60), lock_delay, guard);
    let fence_ttl = Duration::from_hours(1);
    let params = ClusterParams {
        cluster: "test".into(),
        guard,
        lock_delay,
        quarantine,
        fence_ttl,
        template: Default::default(),
    };
    let (id, machine) = (NodeId::parse("n1").expect("valid"), Mutex::new(ReferenceNode::new(RUN)));
    let node = Arc::new(TestNode { id, clock, params: params.clone(), machine });
    let params = Arc::new(params);
    let settings = RedlockSettings {
        params,
        retry: BackoffRange { first: Duration::from_millis(2), max: Duration::from_millis(100) },
        ..RedlockSettings::of_tests()
    };
    let limits = WaitLimits { per_resource: 10, total: 10, detects_deadlocks: true };
    let manager = || {
        let engine = Redlock::new(vec![Arc::clone(&node)], clock, SystemEntropy, settings.clone());
        let monitor = NodeMonitor::new(engine.clone());
        LockManager::new(engine, monitor, limits, Duration::from_secs(2))
    };
    let managers = [manager(), manager()];
    managers[0].shared.monitor.init().await.expect("a new cluster");
    for manager in &managers {
        manager.shared.monitor.probe_round().await;
    }
    managers
}

fn request(resource: &str, owner: &str, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        resource: ResourceName::parse(resource).expect("valid"),
        mode: WantedMode::Exclusive,
        ttl: Ttl::from_ms(60_000).expect("in range"),
        wait,
        kept_for: None,
        labels: Labels { owner: owner.to_owned(), ..Labels::default() },
        token: None,
        refuses_deadlock: true,
        principal: None,
        keep: None,
    }
}

const WAIT: Duration = Duration::from_secs(30);

async fn hold(manager: &Manager, resource: &str, owner: &str) -> GrantedLease {
    let granted = manager.acquire(request(resource, owner, Duration::ZERO)).await;
    granted.and_then(PendingGrant::commit).expect("it is free")
}

/// Waits in a task of its own; has asked when this returns.
async fn wait(manager: &Manager, resource: &str, owner: &str) -> JoinHandle<Result<GrantedLease, AcquireError>> {
    let (own, request) = (manager.clone(), request(resource, owner, WAIT));
    let waiting = tokio::task::spawn_local(async move { own.acquire(request).await.and_then(PendingGrant::commit) });
    manager.clock().sleep(Duration::from_millis(20)).await;
    waiting
}

fn run<T>(bug: Option<Mutant>, work: impl Future<Output = T>) -> T {
    let before = plant(bug, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let outcome = runtime.expect("a runtime").block_on(tokio::task::LocalSet::new().run_until(work));
    restore(before);
    outcome
}

/// An instance stops while a caller waits there; it comes back at another one, where somebody has come since. Who is served
/// first there, and how long the caller has waited.
async fn served_first_after_a_move(wait_id: &str) -> (&'static str, Duration) {
    let [here, there] = managers().await;
    let held = hold(&here, "x", "").await;
    for manager in [&here, &there] {
        tokio::task::spawn_local(manager.clone().run_waiter_exchange());
    }
    let moving = |wait_id: &str| {
        let keep = Some(KeepPlace { wait_id: WaitId::parse(wait_id).expect("valid"), permit: None });
        AcquireRequest { keep, ..request("x", "moved", WAIT) }
    };
    let (own, first) = (there.clone(), moving("0123456789abcdef"));
    let waiting = tokio::task::spawn_local(async move { own.acquire(first).await.and_then(PendingGrant::commit) });
    here.clock().sleep(Duration::from_secs(3)).await;
    let later = wait(&here, "x", "later").await;
    there.drain();
    let answer = waiting.await.expect("no panic");
    assert!(matches!(answer, Err(AcquireError::Draining { wait_id: Some(_) })), "{answer:?}");
    here.clock().sleep(Duration::from_secs(2)).await;
    let moved = Box::pin(here.acquire(moving(wait_id)));
    let begun = here.now();
    let serve = async {
        here.clock().sleep(Duration::from_millis(20)).await;
        let waits = here.waiters_for(&held.resource).0;
        assert_eq!(here.release(&held.resource, &held.token).await.map(|_| ()).ok(), Some(()));
        waits
    };
    let (served, waits) = tokio::join!(
        async {
            tokio::select! {
                granted = moved => ("moved", granted.map(|_| ())),
                granted = later => ("later", granted.expect("no panic").map(|_| ())),
            }
        },
        serve
    );
    assert!(served.1.is_ok(), "{served:?}");
    let moved = waits.iter().find(|waiter| waiter.owner == "moved" && waiter.instance == *here.instance());
    (served.0, moved.expect("it waits").waiting.saturating_sub(here.now().since(begun)))
}

#[test]
fn who_comes_from_an_instance_that_stopped_keeps_its_place() {
    let (first, waited) = run(None, served_first_after_a_move("0123456789abcdef"));
    assert_eq!(first, "moved");
    assert!(waited >= Duration::from_secs(5), "{waited:?}");
    assert_eq!(run(None, served_first_after_a_move("another-id-of-16")).0, "later", "nobody has waited by this name");
}

/// A grant whose answer is not written is undone, and the next waiter served at once. How long that one waited.
async fn waited_behind_a_grant_without_an_answer() -> Option<Duration> {
    let [manager, _] = managers().await;
    let granted = manager.acquire(request("x", "", Duration::ZERO)).await.ok()?;
    let next = wait(&manager, "x", "").await;
    drop(granted);
    next.await.expect("no panic").ok().map(|lease| lease.waited)
}

#[test]
fn a_grant_that_is_not_answered_is_undone_and_the_next_waiter_is_served() {
    let waited = run(None, waited_behind_a_grant_without_an_answer());
    assert!(waited.is_some_and(|waited| waited < Duration::from_millis(100)), "{waited:?}");
    assert_eq!(run(Some(Mutant::GrantUnanswered), waited_behind_a_grant_without_an_answer()), None, "it would be kept");
}

/// How long a waiter waited that asked just before the release was sent, whose caller hung up then.
async fn waited_behind_a_release_without_its_caller() -> Option<Duration> {
    let [manager, _] = managers().await;
    let held = hold(&manager, "x", "").await;
    let mut release = Box::pin(manager.release(&held.resource, &held.token));
    let mut waiter = Box::pin(manager.acquire(request("x", "", WAIT)));
    std::future::poll_fn(|cx| {
        assert!(release.as_mut().poll(cx).is_pending(), "its task has not run yet");
        assert!(waiter.as_mut().poll(cx).is_pending(), "it is held");
        std::task::Poll::Ready(())
    })
    .await;
    drop(release);
    waiter.await.and_then(PendingGrant::commit).ok().map(|lease| lease.waited)
}

/// F16: nobody else publishes the end of a lease on embedded nodes.
#[test]
fn f16_a_release_whose_caller_hung_up_wakes_the_next_waiter() {
    let waited = run(None, waited_behind_a_release_without_its_caller());
    assert!(waited.is_some_and(|waited| waited < Duration::from_millis(100)), "{waited:?}");
}

/// `a` waits for what `b` held; `b` released it elsewhere, which is not known here, and now waits for what `a` holds.
/// What the waiter of `b` is answered when `a` releases.
async fn answer_in_a_cycle_that_is_over() -> Result<GrantedLease, AcquireError> {
    let [here, there] = managers().await;
    let (x, y) = (hold(&there, "x", "b").await, hold(&here, "y", "a").await);
    let a = wait(&here, "x", "a").await;
    assert!(there.release(&x.resource, &x.token).await.is_ok());
    let b = wait(&here, "y", "b").await;
    assert!(here.release(&y.resource, &y.token).await.is_ok());
    a.abort();
    b.await.expect("no panic")
}

#[test]
fn a_cycle_that_the_nodes_do_not_confirm_refuses_nobody() {
    let answer = run(None, answer_in_a_cycle_that_is_over());
    assert!(answer.is_ok(), "{answer:?}");
    let without = run(Some(Mutant::DeadlockUnverified), answer_in_a_cycle_that_is_over());
    assert!(matches!(without, Err(AcquireError::Deadlock { .. })), "{without:?}");
}
