//! Guard, lock delay and fence TTL are changed while the service runs, on real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::relist::{change, init, load, quorum_is, renew};
use crate::support::client::{Answer, Client, send};
use crate::support::cluster::node_args;
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::{SHORT_TIMES, Service};

pub(crate) fn settings(servers: &[RedisServer], more: &[&str]) -> Vec<String> {
    let more = SHORT_TIMES.iter().chain(&["--set", "max_ttl=1m"]).chain(more).map(ToString::to_string);
    node_args(servers.iter().map(RedisServer::url)).into_iter().chain(more).collect()
}

pub(crate) async fn set(client: &Client, terms: &[(&str, &str)]) -> Answer {
    let form: Vec<_> = terms.iter().copied().chain([("reason", "the test")]).collect();
    send(client.request("POST", "/nodes").form(&form)).await
}

/// The instance follows these terms; `null`: it is configured with them.
async fn terms_are(client: &Client, wanted: serde_json::Value) {
    poll::until("the terms are followed", || async {
        let seen = client.get("/nodes").await.json();
        (seen["terms"] == wanted && seen["terms_change"].is_null()).then_some(())
    })
    .await;
}

fn terms(guard: u64, lock_delay: u64, fence_ttl: u64) -> serde_json::Value {
    serde_json::json!({ "guard_ms": guard, "lock_delay_ms": lock_delay, "fence_ttl_ms": fence_ttl })
}

/// What is left of the longest key of a resource, on any server.
async fn left_ms(servers: &[RedisServer], resource: &str) -> i64 {
    let mut longest = 0;
    for server in servers {
        longest = longest.max(server.ask::<i64>(&["PTTL", resource]).await);
    }
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_are_changed_under_load_and_all_instances_follow() {
    let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let args = settings(&servers, &[]);
    init(&args);
    let (one, two) = (Service::start(&args).await, Service::start(&args).await);
    quorum_is(one.client(), 3, 2, 3).await;
    quorum_is(two.client(), 3, 2, 3).await;
    let held = one.client().acquired("held", &[("ttl", "2s")]).await;
    one.client().acquired("long", &[("ttl", "1m")]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers = [("x", &one), ("y", &two)].map(|(resource, service)| {
        tokio::spawn(load(Client::new(service.client().base()), resource.into(), Arc::clone(&stop)))
    });
    let renewal = tokio::spawn(renew(Client::new(two.client().base()), held.token(), Arc::clone(&stop)));

    for (wrong, field) in [
        (&[("guard", "200ms")][..], "guard"),
        (&[("guard", "400ms")], "lock_delay"),
        (&[("fence_ttl", "1s")], "fence_ttl"),
        (&[("lock_delay", "3m")], "lock_delay"),
        (&[], "guard"),
    ] {
        let refused = set(one.client(), wrong).await.expect_problem(400, "invalid");
        assert_eq!(refused.json()["errors"][0]["field"], field, "{refused:?}");
    }

    // Up: every lease has the larger lock delay, also one that nobody renews.
    let before = left_ms(&servers, "long").await;
    let done = set(one.client(), &[("guard", "500ms"), ("lock_delay", "8s")]).await.expect_status(200);
    assert_eq!(done.json()["terms"], terms(500, 8_000, 60_000), "{done:?}");
    let after = left_ms(&servers, "long").await;
    assert!(after > before, "it is {after} ms, and was {before} ms: 7.4 s more, less the time of the change");
    terms_are(two.client(), terms(500, 8_000, 60_000)).await;
    // The fence TTL, at the other instance.
    set(two.client(), &[("fence_ttl", "2m")]).await.expect_status(200);
    terms_are(one.client(), terms(500, 8_000, 120_000)).await;

    // Instances with the first configuration, with the present one, and with one that never was.
    let today = settings(&servers, &["--set", "guard=500ms", "--set", "lock_delay=8s", "--set", "fence_ttl=2m"]);
    let other = settings(&servers, &["--set", "guard=400ms", "--set", "lock_delay=8s"]);
    let (yesterday, today) = (Service::start(&args).await, Service::start(&today).await);
    terms_are(yesterday.client(), terms(500, 8_000, 120_000)).await;
    terms_are(today.client(), serde_json::Value::Null).await;
    for service in [&yesterday, &today] {
        quorum_is(service.client(), 3, 2, 3).await;
        for resource in ["held", "long"] {
            service.client().acquire(resource, &[("ttl", "2s")]).await.expect_status(423);
        }
    }
    let unlike = Service::start(&other).await;
    quorum_is(unlike.client(), 0, 2, 3).await;
    assert_eq!(unlike.client().get("/nodes").await.json()["nodes"][0]["state"], "other-cluster");
    drop(unlike);
    let words: Vec<&str> = std::iter::once("doctor").chain(args.iter().map(String::as_str)).collect();
    let doctor = ended(&mut redlockd(&words));
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
    assert!(doctor.out.contains("other terms than the configured ones are in force (guard 500ms"), "{doctor:?}");
    assert!(one.client().get("/ui/nodes").await.text.contains("guard 500ms, lock delay 8s, fence TTL 2m"));

    // And back, by the command.
    let url = one.client().base().to_owned();
    let back = ["nodes", "settings", "--guard", "300ms", "--lock-delay", "600ms", "--reason", "back", "--url", &url];
    let done = ended(&mut redlockd(&back));
    assert_eq!(done.code, Some(0), "{done:?}");
    for service in [&one, &two, &yesterday] {
        terms_are(service.client(), terms(300, 600, 120_000)).await;
        for resource in ["held", "long"] {
            service.client().acquire(resource, &[("ttl", "2s")]).await.expect_status(423);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        let longest = caller.await.expect("no panic");
        assert!(longest < Duration::from_secs(5), "{longest:?}");
    }
    renewal.await.expect("the lease is never lost");

    // The input is right, but too few nodes answer.
    let mut servers = Vec::from(servers);
    servers.truncate(1);
    let (of_terms, of_list) =
        tokio::join!(set(one.client(), &[("guard", "250ms")]), change(two.client(), "n2", "remove", None));
    for answer in [of_terms, of_list] {
        answer.expect_problem(503, "quorum-unavailable");
    }
}
