//! T01 to T10: quorum and validity.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use redlockd::manager::types::AcquireError;
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};

use crate::support::chaos_proxy::{FAIR, Flow, Weather};
use crate::support::cluster::{Cluster, Instance, SHORT, Tempo, slow_to_answer};
use crate::support::service::SHORT_TIMES;

const NO_WAIT: Duration = Duration::ZERO;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The least allowance for clock rates: 1 % and 2 ms.
fn drift(ttl_ms: u64) -> Duration {
    ms(ttl_ms / 100 + 2)
}

#[tokio::test]
async fn t01_a_tied_vote_is_answered_and_leaves_no_key() {
    for count in [2, 4] {
        let cluster = Cluster::blank(count).await;
        let instance = cluster.instance(SHORT).await;
        let taken: Vec<usize> = (0..count / 2).collect();
        cluster.take_as_foreigner(&taken, "tie", 60_000).await;
        let begun = SystemClock.now();
        match instance.acquire("tie", 10_000, NO_WAIT).await {
            Err(AcquireError::NoQuorum(split)) => {
                assert_eq!((split.quorum.needed, split.quorum.nodes), (count / 2 + 1, count));
            }
            // Decided before a slow node answered, which the foreign client may hold as well.
            Err(AcquireError::Held(locked)) => {
                assert!(locked.nodes.iter().any(|n| n.verdict.as_str() == "not-awaited"), "{locked:?}");
            }
            other => panic!("{count} nodes: {:?}", other.err()),
        }
        // Six rounds, each of which a silent node could have lengthened to the node timeout.
        assert!(SystemClock.now().since(begun) < SHORT.node_timeout * 20);
        instance.until_settled().await;
        for (i, server) in cluster.servers.iter().enumerate() {
            let value: Option<String> = server.ask(&["GET", "tie"]).await;
            assert_eq!(value.as_deref(), taken.contains(&i).then_some("foreign"), "n{}", i + 1);
        }
    }
}

#[tokio::test]
async fn t02_two_free_nodes_of_three_are_enough() {
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(SHORT).await;
    cluster.take_as_foreigner(&[1], "x", 60_000).await;
    let lease = instance.acquired("x", 10_000).await;
    assert_eq!((lease.quorum.granted, lease.quorum.needed), (2, 2));
}

#[tokio::test]
async fn t03_nodes_that_are_unreachable_at_the_start_still_count() {
    let mut cluster = Cluster::start(5).await;
    cluster.servers[0].kill();
    cluster.servers[3].kill();
    let over = cluster.service_at_once(&[]).await;
    over.service.until_ready().await;
    let lease = over.client().acquired("x", &[]).await.json();
    assert_eq!(lease["quorum"], serde_json::json!({"granted": 3, "needed": 3, "nodes": 5}));
    cluster.servers[4].kill();
    let refused = over.client().acquire("y", &[]).await.expect_problem(503, "quorum-unavailable").json();
    assert_eq!((&refused["quorum"]["needed"], &refused["quorum"]["nodes"]), (&3.into(), &5.into()));
    assert!(cluster.servers[1].ask::<bool>(&["EXISTS", "x"]).await);
}

#[tokio::test]
async fn t06_a_ttl_that_leaves_no_validity_is_refused() {
    let cluster = Cluster::blank(1).await;
    let instance = cluster.instance(SHORT).await;
    // Of 3 ms, 2.03 ms are drift, and a round takes some of the rest: never an answer with nothing left.
    for ttl_ms in [1, 2, 3] {
        match instance.acquire("brief", ttl_ms, NO_WAIT).await {
            Ok(lease) => assert!(lease.deadline > SystemClock.now().minus(ms(ttl_ms))),
            Err(AcquireError::NoQuorum(_) | AcquireError::Held(_)) => {}
            Err(other) => panic!("{ttl_ms} ms: {other:?}"),
        }
        instance.until_settled().await;
        cluster.until_nowhere("brief").await;
    }
    let cluster = Cluster::start(1).await;
    let over = cluster.service().await;
    for ttl in ["0ms", "1ms", "2ms", "399ms"] {
        over.client().acquire("brief", &[("ttl", ttl)]).await.expect_problem(400, "invalid");
    }
}

/// The lease would have run out before the quorum's last answer came.
#[tokio::test]
async fn t07_t12_a_majority_that_answers_after_the_ttl_grants_nothing_and_leaves_no_key() {
    let patient = Tempo { node_timeout: ms(2_000), guard: ms(2_500), ..SHORT };
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(patient).await;
    for proxy in &instance.proxies[1..] {
        proxy.set(slow_to_answer(ms(300)));
    }
    let Err(AcquireError::NoQuorum(late)) = instance.acquire("late", 200, NO_WAIT).await else {
        panic!("granted after its TTL");
    };
    assert!(late.quorum.granted >= 2, "{late:?}");
    // The lock delay is five seconds: what is gone before was released, not expired.
    let begun = SystemClock.now();
    cluster.until_nowhere("late").await;
    assert!(SystemClock.now().since(begun) < ms(4_000), "it was left to expire");
}

#[tokio::test]
async fn t08_t36_validity_counts_from_the_attempt_that_won_and_units_are_converted_once() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    // Longer than the whole TTL: counted from the first attempt nothing would be left of the lease.
    cluster.take_as_foreigner(&[0, 1, 2], "x", 1_500).await;
    let answer = over.client().acquired("x", &[("ttl", "1s"), ("wait", "10s")]).await;
    let lease = answer.json();
    let (valid, waited) = (lease["valid_for_ms"].as_u64(), lease["waited_ms"].as_u64());
    assert!(waited.is_some_and(|w| w >= 1_000), "{lease}");
    assert!(valid.is_some_and(|v| (100..=988).contains(&v)), "{lease}");
    for server in &cluster.servers {
        let left: i64 = server.ask(&["PTTL", "x"]).await;
        assert!((-2..=1_600).contains(&left), "1 s and the lock delay of 600 ms, not {left} ms");
    }
}

#[tokio::test]
async fn t09_nothing_is_reported_valid_after_its_deadline() {
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(SHORT).await;
    let lease = instance.acquired("x", 1_000).await;
    let acquired = SystemClock.now();
    // One node answers long after the end of the attempt.
    instance.proxies[2].set(Weather { to_node: Flow::Hold, ..FAIR });
    loop {
        let asked = SystemClock.now();
        let inspected = instance.inspect("x").await;
        let [holder] = inspected.holders() else { break };
        // Nodes count whole milliseconds.
        assert!(holder.valid_for <= acquired.plus(ms(1_002)).since(asked), "{holder:?}");
    }
    assert!(SystemClock.now() >= lease.deadline, "free before its deadline");
    assert!(instance.extend("x", &lease.token, 1_000).await.is_err(), "revived");
    instance.proxies[2].set(FAIR);
}

/// The machine's clock with an offset.
#[derive(Clone, Default)]
struct Moved {
    wall_ms: Arc<AtomicI64>,
    slept_ms: Arc<AtomicU64>,
}

impl Clock for Moved {
    fn now(&self) -> BootTime {
        SystemClock.now().plus(ms(self.slept_ms.load(Ordering::SeqCst)))
    }

    fn wall_ms(&self) -> u64 {
        SystemClock.wall_ms().saturating_add_signed(self.wall_ms.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, at: BootTime) -> impl Future<Output = ()> + Send + 'static {
        SystemClock.sleep_until(at.minus(ms(self.slept_ms.load(Ordering::SeqCst))))
    }
}

#[tokio::test]
async fn t10_a_step_of_the_wall_clock_changes_nothing_and_suspend_consumes_validity() {
    let cluster = Cluster::blank(3).await;
    let clock = Moved::default();
    let instance: Instance<Moved> = cluster.instance_at(SHORT, clock.clone()).await;
    let lease = instance.acquired("x", 40_000).await;
    for step_ms in [3_600_000, -3_600_000] {
        clock.wall_ms.store(step_ms, Ordering::SeqCst);
        let before = clock.now();
        let inspected = instance.inspect("x").await;
        let [holder] = inspected.holders() else { panic!("it is held: {inspected:?}") };
        assert!(holder.valid_for + drift(40_000) >= lease.deadline.since(clock.now()), "{holder:?}");
        assert!(holder.valid_for <= lease.deadline.since(before) + drift(40_000) + ms(1_000), "{holder:?}");
        let extended = instance.extend("x", &lease.token, 40_000).await.expect("the wall clock decides nothing");
        assert!(extended.lease.deadline.since(clock.now()) <= ms(40_000));
        assert!(instance.acquire("x", 1_000, NO_WAIT).await.is_err(), "taken twice");
    }
    // A suspend between the grant and the answer: the lease is not handed out.
    let lease = instance.acquired("y", 40_000).await;
    clock.slept_ms.store(30_000, Ordering::SeqCst);
    let left = lease.deadline.since(clock.now());
    assert!(left <= ms(10_000), "30 s of suspend are gone from the validity: {left:?}");
}

#[test]
fn the_short_times_are_those_of_both_kinds_of_instance() {
    let node_timeout = format!("node_timeout={}ms", SHORT.node_timeout.as_millis());
    let lock_delay = format!("lock_delay={}ms", SHORT.lock_delay().as_millis());
    assert!(SHORT_TIMES.contains(&node_timeout.as_str()) && SHORT_TIMES.contains(&lock_delay.as_str()));
}
