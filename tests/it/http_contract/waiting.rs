//! The queue: its order, what wakes a waiter, and the answer to a wait that times out.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::task::JoinSet;

use crate::support::client::{Client, send};
use crate::support::cluster::Cluster;
use crate::support::poll;
use crate::support::service::Service;

async fn until_waiting(client: &Client, resource: &str, count: usize) {
    let what = format!("{count} wait for {resource}");
    poll::until(&what, || async { (client.waiting(resource).await == count).then_some(()) }).await;
}

/// `waiting/handover.rs` counts the requests of a hand-over, which shows that the release wakes a waiter.
#[tokio::test]
async fn waiters_are_served_in_order() {
    const WAITERS: usize = 12;
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let lease = client.acquired("x", &[("ttl", "4m")]).await;
    let served: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mut waiters = JoinSet::new();
    for i in 0..WAITERS {
        let (client, served) = (client.clone(), Arc::clone(&served));
        waiters.spawn(async move {
            let mine = client.acquired("x", &[("ttl", "4m"), ("wait", "50s")]).await;
            served.lock().expect("not poisoned").push(i);
            client.release("x", &mine.token()).await.expect_status(204);
        });
        until_waiting(over.client(), "x", i + 1).await;
    }
    client.release("x", &lease.token()).await.expect_status(204);
    while let Some(ended) = waiters.join_next().await {
        ended.expect("granted");
    }
    assert_eq!(*served.lock().expect("not poisoned"), (0..WAITERS).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_expiry() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    client.acquired("x", &[("ttl", "500ms")]).await;
    let next = client.acquired("x", &[("ttl", "20s"), ("wait", "50s")]).await.json();
    let waited = next["waited_ms"].as_u64().expect("a number");
    // 500 ms and the lock delay of 600 ms; the rest is margin for a busy machine.
    assert!((200..5_000).contains(&waited), "{next}");
}

#[tokio::test]
async fn a_wait_timeout_has_duration_and_queue_position() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let lease = client.acquired("x", &[("ttl", "4m"), ("owner", "me")]).await;
    let first = client.acquire("x", &[("wait", "3s")]);
    let second = async {
        until_waiting(client, "x", 1).await;
        client.acquire("x", &[("wait", "300ms")]).await
    };
    let (first, second) = tokio::join!(first, second);
    for (answer, position, least) in [(first, 1, 3_000), (second, 2, 300)] {
        let body = answer.clone().expect_problem(423, "wait-timeout").json();
        assert_eq!((&body["position"], &body["holders"][0]["owner"]), (&json!(position), &json!("me")), "{body}");
        assert!(body["waited_ms"].as_u64().is_some_and(|w| w >= least), "{body}");
        assert_eq!(answer.header("retry-after"), "30");
    }
    assert_eq!(client.waiting("x").await, 0);
    client.release("x", &lease.token()).await.expect_status(204);
    client.acquired("x", &[]).await;
}

#[tokio::test]
async fn prefer_wait_is_an_alias_and_confirmed() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let lease = client.acquired("x", &[]).await;
    let waiting = send(client.request("POST", "/locks/x").header("Prefer", "wait=50"));
    let releasing = async {
        until_waiting(client, "x", 1).await;
        client.release("x", &lease.token()).await.expect_status(204);
    };
    let (granted, ()) = tokio::join!(waiting, releasing);
    assert_eq!(granted.expect_status(201).header("preference-applied"), "wait=50");
}

#[tokio::test]
async fn the_queue_is_limited_and_cannot_be_overtaken() {
    let service = Service::embedded(&["--set", "waiters_per_resource=2", "--set", "waiters_total=3"]).await;
    let client = service.client();
    let lease = client.acquired("x", &[("ttl", "4m")]).await;
    let other = client.acquired("y", &[("ttl", "4m")]).await;
    let mut waiters = JoinSet::new();
    for (resource, count) in [("x", 1), ("x", 2), ("y", 1)] {
        let client = client.clone();
        waiters.spawn(async move {
            let mine = client.acquired(resource, &[("wait", "50s")]).await;
            client.release(resource, &mine.token()).await.expect_status(204);
        });
        until_waiting(service.client(), resource, count).await;
    }
    for (resource, scope, limit) in [("x", "instance", 3), ("y", "instance", 3)] {
        let full = client.acquire(resource, &[("wait", "5s")]).await.expect_problem(429, "too-many-waiters");
        assert_eq!((&full.json()["scope"], &full.json()["limit"]), (&json!(scope), &json!(limit)));
        assert!(!full.header("retry-after").is_empty());
    }
    // Who does not wait does not jump the queue either.
    client.acquire("x", &[]).await.expect_problem(423, "locked");
    client.release("y", &other.token()).await.expect_status(204);
    poll::until("a queue position is free", || async { (client.waiting("y").await == 0).then_some(()) }).await;
    let full = client.acquire("x", &[("wait", "5s")]).await.expect_problem(429, "too-many-waiters");
    assert_eq!((&full.json()["scope"], &full.json()["limit"]), (&json!("resource"), &json!(2)));
    client.release("x", &lease.token()).await.expect_status(204);
    while let Some(ended) = waiters.join_next().await {
        ended.expect("granted");
    }
}

/// Waiters of different instances do not know of each other, and all are served.
#[tokio::test]
async fn a_waiter_is_served_after_a_release_on_another_instance() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    let lease = one.client().acquired("x", &[("ttl", "4m")]).await;
    let waiting = two.client().acquire("x", &[("wait", "50s")]);
    let releasing = async {
        until_waiting(two.client(), "x", 1).await;
        one.client().release("x", &lease.token()).await.expect_status(204);
    };
    let (granted, ()) = tokio::join!(waiting, releasing);
    granted.expect_status(201);
}
