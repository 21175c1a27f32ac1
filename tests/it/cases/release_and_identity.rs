//! T30 to T39: releases, tokens, names and nodes.

use std::time::Duration;

use futures_util::future::join_all;
use redlockd::manager::types::{AcquireError, GoneReason, LockState, ReleaseError};
use redlockd::redlock::clock::{Clock, SystemClock};

use crate::support::chaos_proxy::FAIR;
use crate::support::cluster::{Cluster, REFUSING, SHORT};
use crate::support::monitor::{Monitor, is_script_call};
use crate::support::poll;
use crate::support::redis_server::Options;
use crate::support::service::{SHORT_MEMORY, SHORT_TIMES};

const NO_WAIT: Duration = Duration::ZERO;

#[tokio::test]
async fn t30_the_release_of_an_expired_lease_is_not_retried() {
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(SHORT).await;
    let lease = instance.acquired("x", 200).await;
    cluster.until_nowhere("x").await;
    let monitors = join_all(cluster.servers.iter().map(Monitor::of)).await;
    let released = instance.release("x", &lease.token).await;
    assert!(matches!(released, Err(ReleaseError::Gone(GoneReason::Expired))), "{released:?}");
    for (server, monitor) in cluster.servers.iter().zip(monitors) {
        let commands = monitor.all_commands(server).await;
        let requests = commands.iter().filter(|line| is_script_call(line) && line.contains("\"x\"")).count();
        // The release, and an inspection that finds out why the lease is gone.
        assert!(requests <= 2, "{requests} requests for one release: {commands:#?}");
    }
}

/// Servers that forbid scripts: nothing safe can be done there, so nothing is done.
#[tokio::test]
async fn t31_without_scripts_nothing_is_set_and_nothing_deleted() {
    let no_scripts = Options { users: vec!["default on nopass ~* &* +@all -@scripting"], ..Options::default() };
    let cluster = Cluster::blank_with(vec![no_scripts; 3]).await;
    let over = cluster.service_at_once(&[]).await;
    poll::until("each node has refused the script", || async {
        let refused = over.client().acquire("x", &[]).await.expect_problem(503, "quorum-unavailable");
        (refused.outcomes() == ["n1: auth", "n2: auth", "n3: auth"]).then_some(())
    })
    .await;
    cluster.take_as_foreigner(&[0, 1, 2], "x", 60_000).await;
    let token = "my-own-token.0123456789";
    over.client().release("x", token).await.expect_problem(503, "quorum-unavailable");
    over.client().extend("x", token, &[]).await.expect_problem(503, "quorum-unavailable");
    for server in &cluster.servers {
        assert_eq!(server.ask::<Vec<String>>(&["KEYS", "*"]).await, ["x"]);
        assert!(server.ask::<i64>(&["PTTL", "x"]).await > 30_000);
    }
}

#[tokio::test]
async fn t33_an_inspection_goes_by_the_quorum_and_not_by_the_first_answer() {
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(SHORT).await;
    let lease = instance.acquired("x", 50_000).await;
    cluster.until_everywhere("x").await;
    cluster.servers[2].ask::<i64>(&["PEXPIRE", "x", "9000"]).await;
    let left = |state: LockState| match state {
        LockState::Held(holders) => holders[0].valid_for,
        other => panic!("{other:?}"),
    };
    // 50 s, 50 s, 9 s: two nodes have it for some 50 s.
    assert!(left(instance.inspect("x").await.state) > Duration::from_secs(10));
    instance.proxies[0].set(REFUSING);
    instance.proxies[0].reset();
    // None, 50 s, 9 s: two nodes have it for at most 9 s.
    poll::until("the first node is unreachable", || async {
        let seen = instance.inspect("x").await;
        assert!(matches!(seen.state, LockState::Held(_)), "held on two of three: {seen:?}");
        (seen.nodes[0].holds.is_empty()).then_some(())
    })
    .await;
    assert!(left(instance.inspect("x").await.state) <= Duration::from_secs(9));
    // Only one node has it: free by the quorum.
    instance.proxies[0].set(FAIR);
    poll::until("the first node is back", || async {
        (!instance.inspect("x").await.nodes[0].holds.is_empty()).then_some(())
    })
    .await;
    for server in &cluster.servers[..2] {
        server.ask::<i64>(&["DEL", "x"]).await;
    }
    assert_eq!(instance.inspect("x").await.state, LockState::Free);
    assert!(instance.extend("x", &lease.token, 1_000).await.is_err());
}

#[tokio::test]
async fn t34_names_that_read_alike_are_different_resources() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let names = ["a", "b", "ab", "a/b", "a:b", "abc", "a/bc", "ab/c", "A", "orders", "invoices", "distributed"];
    for name in names {
        over.client().acquired(name, &[]).await;
    }
    for name in names {
        over.client().acquire(name, &[]).await.expect_problem(423, "locked");
        assert_eq!(cluster.has(name).await, [true; 3], "the key is the name, byte for byte");
    }
    // An encoded slash is a slash; encoded twice it is not a valid name.
    over.client().acquire("a%2Fb", &[]).await.expect_problem(423, "locked");
    over.client().acquire("a%252Fb", &[]).await.expect_problem(400, "invalid");
}

/// The lease has two votes of three; one of the two restarts empty; the third never received it.
#[tokio::test]
async fn t37_a_node_that_restarts_empty_does_not_help_a_second_holder() {
    let mut cluster = Cluster::blank(3).await;
    let settings = [&SHORT_TIMES[..], &SHORT_MEMORY].concat();
    cluster.declare(&settings);
    cluster.servers[2].freeze();
    let over = cluster.service_at_once(&SHORT_MEMORY).await;
    over.service.until_ready().await;
    let client = over.client();
    let lease = client.acquired("x", &[("ttl", "2s")]).await;
    let acquired = SystemClock.now();
    cluster.servers[2].thaw();
    cluster.servers[0].kill();
    cluster.servers[0].restart_empty().await;
    let second = poll::until("a second lease", || async {
        let answer = client.acquire("x", &[("ttl", "2s")]).await;
        match answer.status {
            201 => Some(answer),
            423 | 503 => None,
            _ => panic!("{answer:?}"),
        }
    })
    .await;
    // 2 s, less drift and what the first acquire took, plus the lock delay.
    let since = SystemClock.now().since(acquired);
    let promised = Duration::from_millis(lease.json()["valid_for_ms"].as_u64().expect("a number"));
    assert!(since > promised, "two holders: the second {since:?} after the first, which had {promised:?}");
    assert!(second.fence() > lease.fence());
}

#[tokio::test]
async fn t38_a_flushed_script_cache_causes_no_error() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let flush = async || {
        for server in &cluster.servers {
            server.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        }
    };
    flush().await;
    let lease = client.acquired("x", &[]).await;
    flush().await;
    client.extend("x", &lease.token(), &[]).await.expect_status(200);
    flush().await;
    let seen = client.inspect("x").await.expect_status(200).json();
    assert_eq!(seen["holders"][0]["fence"], lease.fence());
    flush().await;
    client.acquire("x", &[]).await.expect_problem(423, "locked");
    flush().await;
    client.release("x", &lease.token()).await.expect_status(204);
    cluster.until_nowhere("x").await;
}

#[tokio::test]
async fn t39_a_request_that_could_not_be_sent_is_a_failed_vote_and_is_not_sent_later() {
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(SHORT).await;
    instance.proxies[2].set(REFUSING);
    instance.proxies[2].reset();
    poll::until("the node is unreachable", || async {
        let begun = SystemClock.now();
        let seen = instance.inspect("probe").await;
        assert!(SystemClock.now().since(begun) < SHORT.node_timeout * 5, "an answer waits for a dead port");
        (seen.nodes[2].verdict.as_str() == "disconnected").then_some(())
    })
    .await;
    for i in 0..10 {
        let lease = instance.acquired(&format!("x/{i}"), 50_000).await;
        assert_eq!(lease.quorum.granted, 2);
    }
    instance.proxies[2].set(FAIR);
    poll::until("the node is back by itself", || async {
        (instance.inspect("probe").await.nodes[2].verdict.as_str() == "granted").then_some(())
    })
    .await;
    instance.until_settled().await;
    for i in 0..10 {
        let value: Option<String> = cluster.servers[2].ask(&["GET", &format!("x/{i}")]).await;
        assert_eq!(value, None, "an acquire was kept for later");
    }
    // Two nodes that refuse: the answer comes at once, and names both.
    for proxy in &instance.proxies[..2] {
        proxy.set(REFUSING);
        proxy.reset();
    }
    let refused = poll::until("both are unreachable", || async {
        match instance.acquire("y", 50_000, NO_WAIT).await {
            Err(AcquireError::NoQuorum(refused)) => {
                let away = |n: usize| refused.nodes[n].verdict.as_str() == "disconnected";
                (away(0) && away(1)).then_some(refused)
            }
            _ => None,
        }
    })
    .await;
    assert!(refused.quorum.granted <= 1);
}
