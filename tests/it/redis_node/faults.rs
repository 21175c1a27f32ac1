//! Nodes that die, freeze, forget their scripts, run full or cannot be reached.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redlockd::nodes::call_observer::NodeObserver;
use redlockd::nodes::redis::RedisNode;
use redlockd::protocol::{
    EndReason, Found, NodeInspection, NodeResult, Released, Reply, Request, StoredLock, UnreachableKind,
};
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use redlockd::redlock::node::Node;
use redlockd::redlock::random::SystemEntropy;
use redlockd::types::NodeId;

use super::{Holder, TestNode, config, now};
use crate::support::chaos_proxy::{ChaosProxy, FAIR, Flow, Weather};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};

/// A caller's deadline.
const DEADLINE: Duration = Duration::from_millis(50);

/// Asks with a caller's deadline; `None` where it passed.
async fn within_deadline(node: &TestNode, request: Request) -> Option<NodeResult> {
    tokio::time::timeout(DEADLINE, Arc::clone(&node.redis).call(now().into(), Arc::new(request))).await.ok()
}

async fn is_free(node: &TestNode, who: &Holder) -> bool {
    matches!(node.reply(who.inspect()).await, Reply::Inspected(NodeInspection { lock: StoredLock::Free, .. }))
}

/// A node behind a proxy, with short limits, that votes.
async fn voting_behind(proxy: &ChaosProxy) -> TestNode {
    let mut config = config(&format!("redis://{}", proxy.address()));
    (config.connect_timeout, config.node_timeout) = (Duration::from_millis(300), DEADLINE);
    let node = TestNode::connected(config).await;
    node.reply(Request::init()).await;
    node
}

#[tokio::test]
async fn calls_to_a_killed_node_fail_at_once_until_it_is_reconnected() {
    let mut server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let run = node.redis.report().run_id;
    server.kill();
    let first = node.error(Holder::of("r").acquire(1_000)).await;
    assert!(matches!(first, UnreachableKind::Broken | UnreachableKind::Disconnected), "{first}");
    let begun = SystemClock.now();
    assert_eq!(node.error(Holder::of("r").acquire(1_000)).await, UnreachableKind::Disconnected);
    assert!(SystemClock.now().since(begun) < Duration::from_millis(500), "it waited for a connection");
    assert!(!node.redis.report().connected);
    server.restart_empty().await;
    node.until_connected().await;
    let report = node.redis.report();
    assert_ne!(report.run_id, run);
    assert_eq!((report.reconnects, report.connect_error), (1, None));
    assert!(matches!(node.reply(Holder::of("r").acquire(1_000)).await, Reply::NoVote(_)), "it forgot its marker");
}

#[tokio::test]
async fn the_supervisor_notices_the_death_of_an_idle_node() {
    let mut server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    server.kill();
    poll::until_true("the supervisor notices", || !node.redis.report().connected).await;
    assert_eq!(node.redis.report().last_error, Some(UnreachableKind::Disconnected));
}

#[tokio::test]
async fn calls_to_a_frozen_node_time_out_and_later_answers_match_their_requests() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("r");
    let fence = node.granted(&a, 60_000).await;
    server.freeze();
    for _ in 0..3 {
        assert_eq!(within_deadline(&node, Holder::of("other").inspect()).await, None);
    }
    server.thaw();
    // Three answers are on their way that nobody waits for: the fourth must not be taken for one of them.
    match node.reply(a.inspect()).await {
        Reply::Inspected(NodeInspection { lock: StoredLock::Lease { record, .. }, .. }) => {
            assert_eq!(record.fence, fence)
        }
        reply => panic!("{reply:?}"),
    }
}

#[tokio::test]
async fn a_cancelled_acquire_leaves_no_key_on_a_node_that_was_frozen() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let (cancelled, released) = (Holder::of("cancelled"), Holder::of("released"));
    server.freeze();
    assert_eq!(within_deadline(&node, cancelled.acquire(60_000)).await, None);
    assert_eq!(within_deadline(&node, released.acquire(60_000)).await, None);
    assert_eq!(within_deadline(&node, cancelled.cancel()).await, None);
    assert_eq!(within_deadline(&node, released.release()).await, None);
    server.thaw();
    for who in [&cancelled, &released] {
        assert!(is_free(&node, who).await, "{}", who.resource);
        let generations = ["redlockd:fences:0", "redlockd:fences:1"].map(|key| ["HEXISTS", key, who.resource.as_str()]);
        let [a, b] = [server.ask::<i64>(&generations[0]).await, server.ask::<i64>(&generations[1]).await];
        assert_eq!(a + b, 1, "the acquire did run, before its end");
    }
}

#[tokio::test]
async fn a_frozen_node_is_disconnected_and_reconnected_when_it_thaws() {
    let server = RedisServer::start().await;
    let mut config = config(&server.url());
    (config.connect_timeout, config.node_timeout) = (Duration::from_millis(300), DEADLINE);
    let node = TestNode::connected(config).await;
    server.freeze();
    poll::until_true("the checks fail", || !node.redis.report().connected).await;
    assert_eq!(node.error(Holder::of("r").inspect()).await, UnreachableKind::Disconnected);
    server.thaw();
    node.until_connected().await;
    node.reply(Request::probe()).await;
}

#[tokio::test]
async fn lost_packets_in_either_direction_are_detected_by_the_check() {
    let server = RedisServer::start().await;
    let proxy = ChaosProxy::start(server.port()).await;
    let node = voting_behind(&proxy).await;
    for weather in [Weather { to_node: Flow::Silent, ..FAIR }, Weather { to_client: Flow::Silent, ..FAIR }] {
        proxy.set(weather);
        assert_eq!(within_deadline(&node, Holder::of("r").inspect()).await, None);
        poll::until_true("the checks fail", || !node.redis.report().connected).await;
        proxy.set(FAIR);
        node.until_connected().await;
        node.granted(&Holder::of("r"), 1).await;
        node.reply(Request::probe()).await;
        server.ask::<()>(&["DEL", "r"]).await;
    }
}

#[tokio::test]
async fn a_reset_or_refused_connection_is_replaced() {
    let server = RedisServer::start().await;
    let proxy = ChaosProxy::start(server.port()).await;
    let node = voting_behind(&proxy).await;
    proxy.set(Weather { accepts: false, ..FAIR });
    proxy.reset();
    poll::until_true("the reset is noticed", || !node.redis.report().connected).await;
    assert_eq!(node.error(Holder::of("r").acquire(1_000)).await, UnreachableKind::Disconnected);
    proxy.set(FAIR);
    node.until_connected().await;
    node.granted(&Holder::of("r"), 1_000).await;
}

#[tokio::test]
async fn a_half_open_connection_is_detected_by_the_check() {
    let mut server = RedisServer::start().await;
    let proxy = ChaosProxy::start(server.port()).await;
    let node = voting_behind(&proxy).await;
    let run = node.redis.report().run_id;
    proxy.set(Weather { passes_close: false, ..FAIR });
    server.kill();
    server.restart_empty().await;
    poll::until_true("the new process is connected", || {
        let report = node.redis.report();
        report.connected && report.run_id != run
    })
    .await;
}

#[tokio::test]
async fn an_acquire_that_arrives_after_its_cancel_on_another_connection_finds_the_tombstone() {
    let server = RedisServer::start().await;
    let proxy = ChaosProxy::start(server.port()).await;
    let node = voting_behind(&proxy).await;
    let a = Holder::of("r");
    proxy.set(Weather { to_node: Flow::Hold, ..FAIR });
    assert_eq!(within_deadline(&node, a.acquire(60_000)).await, None);
    proxy.reset();
    let direct = TestNode::connected(config(&server.url())).await;
    let nothing = Released { found: Found::Nothing, earlier: None };
    assert_eq!(direct.reply(a.cancel()).await, Reply::Released(nothing));
    let before = calls(&server).await;
    proxy.set(FAIR);
    poll::until("the held acquire has run", || async { (calls(&server).await > before).then_some(()) }).await;
    assert!(is_free(&direct, &a).await);
}

/// Scripts that the server has run.
async fn calls(server: &RedisServer) -> u64 {
    let stats: String = server.ask(&["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|l| l.strip_prefix("cmdstat_evalsha:calls=")).expect("called");
    line.split(',').next().and_then(|n| n.parse().ok()).expect("a number")
}

#[tokio::test]
async fn calls_fail_at_once_while_no_server_listens() {
    let mut server = RedisServer::start().await;
    server.kill();
    let node = TestNode::new(config(&server.url()));
    assert_eq!(node.error(Request::probe()).await, UnreachableKind::Disconnected);
    poll::until_true("it was refused", || node.redis.report().connect_error.is_some()).await;
    assert_eq!(node.error(Holder::of("r").release()).await, UnreachableKind::Disconnected);
    server.restart().await;
    node.until_connected().await;
    node.reply(Request::init()).await;
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again_within_the_call() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("r");
    type IsRight = fn(&Reply) -> bool;
    let requests: [(Request, IsRight); 4] = [
        (a.acquire(10_000), |r| matches!(r, Reply::Granted { .. })),
        (a.extend(None), |r| matches!(r, Reply::Updated { .. })),
        (a.release(), |r| matches!(r, Reply::Released(Released { found: Found::Match, .. }))),
        (Request::probe(), |r| matches!(r, Reply::Status(_))),
    ];
    for (request, is_right) in requests {
        server.ask::<()>(&["SCRIPT", "FLUSH", "SYNC"]).await;
        let reply = node.reply(request).await;
        assert!(is_right(&reply), "{reply:?}");
    }
    assert_eq!(node.redis.report().reconnects, 0);
}

#[tokio::test]
async fn a_node_out_of_memory_grants_nothing_and_still_extends_and_releases() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let (a, b) = (Holder::of("a"), Holder::of("b"));
    node.granted(&a, 10_000).await;
    node.granted(&b, 10_000).await;
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(node.error(Holder::of("c").acquire(1_000)).await, UnreachableKind::Full);
    assert!(matches!(node.reply(a.extend(Some(60_000))).await, Reply::Updated { .. }));
    for (who, request) in [(&a, a.release()), (&b, b.cancel())] {
        let mine = Released { found: Found::Match, earlier: None };
        assert_eq!(node.reply(request).await, Reply::Released(mine));
        assert!(is_free(&node, who).await);
    }
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(
        node.reply(a.acquire(1_000)).await,
        Reply::Ended { reason: EndReason::Released },
        "its tombstone stands"
    );
}

#[tokio::test]
async fn a_busy_node_is_reported_as_busy() {
    let server = RedisServer::start_with(Options {
        more: vec!["--busy-reply-threshold".into(), "1".into()],
        ..Options::default()
    })
    .await;
    let node = TestNode::voting(&server).await;
    let client = deadpool_redis::redis::Client::open(server.unix_url()).expect("valid");
    let endless = tokio::spawn(async move {
        let mut connection = client.get_multiplexed_async_connection().await.expect("up");
        let mut eval = deadpool_redis::redis::cmd("EVAL");
        eval.arg("while true do end").arg(0).query_async::<()>(&mut connection).await
    });
    let busy =
        poll::until("the node is busy", || async { node.ask(Holder::of("r").inspect()).await.err().map(|e| e.kind) })
            .await;
    assert_eq!(busy, UnreachableKind::Busy);
    server.ask::<()>(&["SCRIPT", "KILL"]).await;
    // The script notices a little after the command was answered.
    poll::until("the node is free again", || async { node.ask(Holder::of("r").inspect()).await.ok() }).await;
    assert!(endless.await.expect("no panic").is_err(), "the script was killed");
}

#[tokio::test]
async fn calls_beyond_the_limit_are_refused_until_others_end() {
    let server = RedisServer::start().await;
    let mut config = config(&server.url());
    config.max_in_flight = 2;
    let node = TestNode::connected(config).await;
    server.freeze();
    let mut pending: Vec<_> = (0..2)
        .map(|i| Box::pin(Arc::clone(&node.redis).call(now().into(), Arc::new(Holder::of(&format!("r{i}")).inspect()))))
        .collect();
    for call in &mut pending {
        assert!(futures_util::poll!(call).is_pending());
    }
    assert_eq!(node.error(Request::probe()).await, UnreachableKind::Overloaded);
    server.thaw();
    for call in pending {
        assert!(call.await.is_ok());
    }
    node.reply(Request::probe()).await;
    assert!(node.redis.report().errors.contains(&(UnreachableKind::Overloaded, 1)));
}

#[tokio::test]
async fn requests_for_a_resource_take_effect_in_the_order_of_their_first_poll() {
    let server = RedisServer::start().await;
    for connections in [1, 3] {
        let mut config = config(&server.url());
        config.connections = connections;
        let node = TestNode::connected(config).await;
        node.reply(Request::init()).await;
        let mut calls: Vec<std::pin::Pin<Box<dyn Future<Output = NodeResult> + Send>>> = Vec::new();
        // More than the driver's buffer takes at once, so that the later ones wait.
        let holders: Vec<Holder> = (0..900).map(|i| Holder::of(&format!("r{}", i % 7))).collect();
        for who in &holders {
            for request in [who.acquire(60_000), who.release()] {
                let mut call = Box::pin(Arc::clone(&node.redis).call(now().into(), Arc::new(request)));
                assert!(futures_util::poll!(&mut call).is_pending());
                calls.push(call);
            }
        }
        let mine = Ok(Reply::Released(Released { found: Found::Match, earlier: None }));
        for (at, answer) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
            match at % 2 {
                0 => assert!(matches!(answer, Ok(Reply::Granted { .. })), "{at}: {answer:?}"),
                _ => assert_eq!(answer, mine, "{at}"),
            }
        }
    }
}

#[derive(Default)]
struct CallCounts {
    good: AtomicUsize,
    bad: AtomicUsize,
}

impl NodeObserver for CallCounts {
    fn calls_completed(
        &self,
        node: &NodeId,
        operation: &'static str,
        (_, took): (BootTime, &[Duration]),
        outcome: Result<(), UnreachableKind>,
    ) {
        assert_eq!(node.as_str(), "n1");
        assert!(took.iter().all(|took| *took < poll::PATIENCE));
        match (operation, outcome) {
            ("probe", Ok(())) => self.good.fetch_add(took.len(), Ordering::Relaxed),
            ("inspect", Err(UnreachableKind::Disconnected)) => self.bad.fetch_add(took.len(), Ordering::Relaxed),
            other => panic!("{other:?}"),
        };
    }
}

#[tokio::test]
async fn the_observer_is_notified_of_each_call_and_a_dropped_supervisor_closes_all_connections() {
    let server = RedisServer::start().await;
    let seen = Arc::new(CallCounts::default());
    let mut config = config(&server.url());
    config.connections = 4;
    let observer: Arc<dyn NodeObserver> = seen.clone();
    let (node, supervisor) = RedisNode::new(config, SystemEntropy, Some(observer)).expect("valid");
    let supervisor = tokio::spawn(supervisor);
    poll::until_true("the node is connected", || node.report().connected).await;
    let clients = || async { server.ask::<String>(&["CLIENT", "LIST", "TYPE", "NORMAL"]).await.lines().count() };
    poll::until("four connections, the subscriber and this query", || async {
        (clients().await == 4 + 1 + 1).then_some(())
    })
    .await;
    let probe = Arc::clone(&node).call(now().into(), Arc::new(Request::probe())).await;
    assert!(probe.is_ok(), "{probe:?}");
    supervisor.abort();
    poll::until("all connections are closed", || async { (clients().await == 1).then_some(()) }).await;
    let gone = Arc::clone(&node).call(now().into(), Arc::new(Holder::of("r").inspect())).await;
    assert_eq!(gone.map_err(|e| e.kind), Err(UnreachableKind::Disconnected));
    assert_eq!((seen.good.load(Ordering::Relaxed), seen.bad.load(Ordering::Relaxed)), (1, 1));
}

/// F15: a full node notes the claim of an extend that is shorter than what is left, so that a late cancel of the
/// acquire does not delete the lease.
#[tokio::test]
async fn f15_an_extend_on_a_full_node_is_not_undone_by_a_late_cancel() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("r");
    let fence = node.granted(&a, 60_000).await;
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert!(matches!(node.reply(a.extend(Some(1_000))).await, Reply::Updated { .. }));
    node.reply(a.cancel()).await;
    match node.reply(a.inspect()).await {
        Reply::Inspected(NodeInspection { lock: StoredLock::Lease { record, left_ms, .. }, .. }) => {
            assert_eq!((record.fence, left_ms > 50_000), (fence, true));
        }
        reply => panic!("{reply:?}"),
    }
}
