//! Clients that disconnect: in the queue, while they are granted, and at any time between. Nothing is left on the nodes,
//! and the next waiter is served.

use futures_util::future::join_all;
use redlockd::redlock::random::Entropy;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::cluster::{Cluster, MUTE, heal};
use crate::support::poll;
use crate::support::seeded::Seeded;
use crate::support::service::Service;

/// Sends an acquire and returns the connection without reading the answer.
async fn call(service: &Service, resource: &str, query: &str) -> TcpStream {
    let mut stream = TcpStream::connect(service.address()).await.expect("it listens");
    let request = format!("POST /locks/{resource}?{query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("connected");
    stream
}

#[tokio::test]
async fn a_disconnected_waiter_leaves_the_queue_at_once() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let lease = client.acquired("x", &[("ttl", "4m")]).await;
    let mut callers = Vec::new();
    for i in 0..3 {
        callers.push(call(&over.service, "x", "ttl=4m&wait=5m").await);
        poll::until("it queues", || async { (client.waiting("x").await == i + 1).then_some(()) }).await;
    }
    // The head and one behind it, with a reset and without one.
    callers.remove(0).set_zero_linger().expect("a socket");
    drop(callers.remove(1));
    poll::until("two are gone", || async { (client.waiting("x").await == 1).then_some(()) }).await;
    drop(callers);
    poll::until("all are gone", || async { (client.waiting("x").await == 0).then_some(()) }).await;
    let next = client.acquire("x", &[("ttl", "20s"), ("wait", "50s")]);
    let release = async {
        poll::until("it queues", || async { (client.waiting("x").await == 1).then_some(()) }).await;
        client.release("x", &lease.token()).await.expect_status(204);
    };
    let (next, ()) = tokio::join!(next, release);
    client.release("x", &next.expect_status(201).token()).await.expect_status(204);
    cluster.until_nowhere("x").await;
}

/// Two of three nodes have set the key, and their replies are delayed when the client disconnects.
#[tokio::test]
async fn a_grant_in_progress_is_undone_and_the_next_is_served() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    for round in 0..5 {
        let resource = format!("x/{round}");
        for proxy in &over.proxies[1..] {
            proxy.set(MUTE);
        }
        let caller = call(&over.service, &resource, "ttl=4m&wait=5m").await;
        poll::until("a node has been asked", || async { cluster.has(&resource).await.contains(&true).then_some(()) })
            .await;
        drop(caller);
        over.proxies.iter().for_each(heal);
        let next = client.acquired(&resource, &[("ttl", "20s"), ("wait", "50s")]).await;
        client.release(&resource, &next.token()).await.expect_status(204);
        cluster.until_nowhere(&resource).await;
    }
}

/// Before, during or after the grant. If the answer was written before the client disconnected, it keeps the lease until
/// its short TTL; otherwise everything is undone.
#[tokio::test]
async fn a_disconnect_at_any_time_leaves_nothing_and_the_next_is_served() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let service = &over.service;
    let rounds = (0..40).map(|round| async move {
        let resource = format!("x/{}", round % 4);
        let caller = call(service, &resource, "ttl=400ms&wait=5s").await;
        for _ in 0..Seeded::new(1, round).below(200) {
            tokio::task::yield_now().await;
        }
        drop(caller);
    });
    join_all(rounds).await;
    for i in 0..4 {
        let resource = format!("x/{i}");
        let next = client.acquired(&resource, &[("ttl", "4m"), ("wait", "50s")]).await;
        client.release(&resource, &next.token()).await.expect_status(204);
        cluster.until_nowhere(&resource).await;
        assert_eq!(client.waiting(&resource).await, 0);
    }
}
