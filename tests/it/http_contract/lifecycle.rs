//! Start, readiness, drain, restart, and the declaration of a new cluster.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::redlock::clock::{Clock, SystemClock};
use serde_json::json;

use crate::support::cluster::{Cluster, node_args};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::{SHORT_MEMORY, SHORT_TIMES, Service, redlockd};

#[tokio::test]
async fn sigterm_answers_waiters_at_once_and_ends_with_0() {
    let cluster = Cluster::start(3).await;
    let mut over = cluster.service().await;
    let client = over.client().clone();
    client.acquired("x", &[("ttl", "4m")]).await;
    let waiters = (0..5).map(|_| client.acquire("x", &[("wait", "5m")]));
    let service = &over.service;
    let stopping = async {
        poll::until("all queue", || async { (client.waiting("x").await == 5).then_some(()) }).await;
        service.terminate();
    };
    let (answers, ()) = tokio::join!(join_all(waiters), stopping);
    for answer in answers {
        let answer = answer.expect_problem(503, "draining");
        assert_eq!((answer.header("retry-after"), answer.header("connection")), ("1", "close"));
    }
    let begun = SystemClock.now();
    assert_eq!(over.service.exit_code().await, Some(0));
    assert!(SystemClock.now().since(begun) < Duration::from_secs(9), "it waited for its drain timeout");
    // Leases live on the nodes, not in the instance.
    cluster.service().await.client().acquire("x", &[]).await.expect_problem(423, "locked");
}

#[tokio::test]
async fn a_service_is_ready_with_a_quorum_and_alive_without() {
    let mut cluster = Cluster::blank(3).await;
    cluster.declare(&[&SHORT_TIMES[..], &SHORT_MEMORY].concat());
    let over = cluster.service_with(&SHORT_MEMORY).await;
    let client = over.client();
    assert_eq!(client.get("/health/ready").await.expect_status(200).json(), json!({"status": "ready"}));
    cluster.servers[0].kill();
    client.acquired("x", &[]).await;
    client.get("/health/ready").await.expect_status(200);
    cluster.servers[1].kill();
    let unready = poll::until("it is not ready", || async {
        let answer = client.get("/health/ready").await;
        (answer.status == 503).then_some(answer)
    });
    let unready = unready.await.expect_problem(503, "quorum-unavailable");
    assert_eq!(unready.json()["quorum"]["needed"], 2);
    client.get("/health/ready?local=true&probe=7").await.expect_status(200);
    client.get("/health/ready?local=false").await.expect_status(503);
    let odd = client.get("/health/ready?local=yes").await.expect_problem(400, "invalid");
    assert_eq!(odd.json()["errors"][0]["field"], "local");
    client.get("/health/live").await.expect_status(200);
    for server in &mut cluster.servers[..2] {
        server.restart_empty().await;
    }
    // It says when it will be ready, and then it is: three seconds of quarantine.
    let soon = poll::until("it knows when it will be ready", || async {
        let answer = client.get("/health/ready").await;
        (answer.status == 200 || answer.json()["ready_in_seconds"].is_u64()).then_some(answer)
    })
    .await;
    if soon.status == 503 {
        assert!(soon.json()["ready_in_seconds"].as_u64().is_some_and(|s| s <= 5), "{soon:?}");
    }
    over.service.until_ready().await;
    client.acquired("y", &[]).await;
}

#[tokio::test]
async fn an_undeclared_cluster_reports_seconds_and_the_command() {
    let cluster = Cluster::blank(3).await;
    let over = cluster.service_at_once(&[]).await;
    let client = over.client();
    let unready = client.get("/health/ready").await.expect_problem(503, "quorum-unavailable");
    let seconds = unready.json()["ready_in_seconds"].as_u64();
    // ⌈1.01 · (5 m + 0.6 s)⌉ + 0.6 s
    assert!(seconds.is_some_and(|s| (250..=305).contains(&s)), "{unready:?}");
    assert!(unready.text.contains("redlockd init"), "the command is missing: {unready:?}");
    let refused = client.acquire("x", &[]).await.expect_problem(503, "quorum-unavailable");
    for node in refused.json()["nodes"].as_array().expect("nodes") {
        let outcome = node["outcome"].as_str();
        let quarantined = outcome == Some("quarantined") && node["seconds_left"].as_u64().is_some_and(|s| s >= 250);
        assert!(quarantined || outcome == Some("not-awaited"), "{node}");
    }
    assert_eq!(refused.header("retry-after"), "30");
    let nodes = client.get("/nodes").await.expect_status(200).json();
    for node in nodes["nodes"].as_array().expect("nodes") {
        assert_eq!((&node["state"], &node["votes"]), (&json!("quarantined"), &json!(false)));
        assert!(node["why"].as_str().is_some_and(|w| w.contains("redlockd init")), "{node}");
        assert!(node["votes_in_ms"].as_u64().is_some_and(|ms| ms >= 250_000), "{node}");
    }
    let announced = over.service.output().into_iter().find(|line| line.contains("not ready")).expect("it says so");
    assert!(announced.contains("enough in 30") && announced.contains("redlockd init"), "{announced}");
    cluster.declare(&SHORT_TIMES);
    over.service.until_ready().await;
    client.acquired("x", &[]).await;
}

fn init(servers: &[RedisServer]) -> (Option<i32>, String, String) {
    let mut args = vec!["init".to_owned()];
    args.extend(node_args(servers.iter().map(RedisServer::url)));
    args.extend(SHORT_TIMES.iter().map(ToString::to_string));
    let output = redlockd(&args).output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn a_cluster_is_declared_once() {
    for count in [1, 2, 3, 4, 5] {
        let cluster = Cluster::blank(count).await;
        let (code, out, err) = init(&cluster.servers);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains(&format!("{} of them must agree", count / 2 + 1)), "{out}");
        let over = cluster.service().await;
        let lease = over.client().acquired("x", &[]).await.json();
        assert_eq!((&lease["quorum"]["needed"], &lease["quorum"]["nodes"]), (&json!(count / 2 + 1), &json!(count)));
        // One node, and an even number of them, are served and warned about.
        let warned = over.service.output().iter().any(|line| line.contains("WARN") && line.contains("`nodes` names"));
        assert_eq!(warned, [1, 2, 4].contains(&count), "{:#?}", over.service.output());
        let (code, out, err) = init(&cluster.servers);
        assert_eq!((code, out.as_str(), err.lines().count()), (Some(1), "", 1), "{err}");
        assert!(err.contains(&format!("all {count} nodes are part of this cluster already")), "{err}");
        over.client().acquire("x", &[]).await.expect_problem(423, "locked");
    }
}

#[tokio::test]
async fn a_cluster_with_a_node_missing_is_not_declared() {
    let mut cluster = Cluster::blank(3).await;
    cluster.servers[1].kill();
    let (code, out, err) = init(&cluster.servers);
    assert_eq!((code, out.as_str(), err.lines().count()), (Some(69), "", 1), "{err}");
    assert!(err.contains("node n2 did not answer"), "{err}");
    // Nothing was declared: with the node it works.
    cluster.servers[1].restart_empty().await;
    assert_eq!(init(&cluster.servers).0, Some(0));
}

#[tokio::test]
async fn embedded_nodes_wait_after_a_crash_with_leases_and_not_after_a_clean_stop() {
    let settings = [&SHORT_TIMES[..], &SHORT_MEMORY].concat();
    let mut service = Service::start(&settings).await;
    let lease = service.client().acquired("x", &[("ttl", "2s")]).await;
    let acquired = SystemClock.now();
    service.kill();
    let data = service.data();
    let mut service = Service::start_in(Arc::clone(&data), &settings).await;
    let second = poll::until("the lease may be over", || async {
        let answer = service.client().acquire("x", &[("ttl", "2s")]).await;
        match answer.status {
            201 => Some(answer),
            423 => None,
            503 => {
                assert_eq!(answer.slug(), "quorum-unavailable");
                None
            }
            _ => panic!("{answer:?}"),
        }
    })
    .await;
    let promised = Duration::from_millis(lease.json()["valid_for_ms"].as_u64().expect("a number"));
    assert!(SystemClock.now().since(acquired) > promised, "two holders at once");
    assert!(second.fence() > lease.fence(), "fences rise over a crash");
    // In good order and with nothing out: the next start need not wait.
    service.client().release("x", &second.token()).await.expect_status(204);
    service.terminate();
    assert_eq!(service.exit_code().await, Some(0));
    let mut service = Service::start_in(Arc::clone(&data), &settings).await;
    let third = service.client().acquired("x", &[("ttl", "2s")]).await;
    assert!(third.fence() > second.fence());
    // In good order, but with a lease out: nobody else gets it while it runs.
    let acquired = SystemClock.now();
    service.terminate();
    assert_eq!(service.exit_code().await, Some(0));
    let service = Service::start_in(data, &settings).await;
    poll::until("the lease is over", || async {
        (service.client().acquire("x", &[("ttl", "2s")]).await.status == 201).then_some(())
    })
    .await;
    let promised = Duration::from_millis(third.json()["valid_for_ms"].as_u64().expect("a number"));
    assert!(SystemClock.now().since(acquired) > promised, "two holders at once");
}
