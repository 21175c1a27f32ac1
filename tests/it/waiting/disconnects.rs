//! Clients that disconnect in each state, on real sockets; and shutdown with waiters.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Cluster, Instance};
use crate::support::chaos_proxy::{ChaosProxy, FAIR, Flow};
use crate::support::poll;

/// A caller that speaks HTTP by hand, so that it can go away at any point.
pub(super) async fn caller(instance: &Instance, resource: &str, form: &str) -> TcpStream {
    let mut stream = TcpStream::connect(instance.address).await.expect("loopback");
    let head = format!(
        "POST /locks/{resource} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\n\r\n{form}",
        form.len()
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_disconnects_leaves_the_queue_at_once() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let head = caller(&here, "x", "wait=60s&ttl=60s").await;
    here.until_waiting(1).await;
    let middle = caller(&here, "x", "wait=60s&ttl=60s").await;
    here.until_waiting(2).await;
    let last = here.queue("x", &[("wait", "60s"), ("owner", "last")]);
    here.until_waiting(3).await;
    drop(middle);
    here.until_waiting(2).await;
    drop(head);
    here.until_waiting(1).await;
    assert_eq!(here.release("x", &held).await, 204);
    assert_eq!(last.await.expect("no panic").status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_during_its_grant_leaves_nothing_behind() {
    let cluster = Cluster::of(3).await;
    let mut proxies = Vec::new();
    for server in &cluster.servers {
        proxies.push(ChaosProxy::start(server.port()).await);
    }
    let nodes = proxies.iter().enumerate().map(|(i, p)| format!("n{i}=redis://{}", p.address())).collect();
    let here = Instance::start(&super::config(&[], nodes)).await;
    let mut slow = FAIR;
    slow.to_client = Flow::Delay(Duration::from_millis(60));
    for round in 0..6 {
        // Answers of the nodes are late: the grant is under way when the caller goes.
        for proxy in &proxies {
            proxy.set(slow);
        }
        let tries = here.calls("acquire").await;
        let gone = caller(&here, "x", if round % 2 == 0 { "wait=60s&ttl=60s" } else { "ttl=60s" }).await;
        poll::until("the nodes have it", || async {
            let held: bool = cluster.servers[0].ask(&["EXISTS", "x"]).await;
            (held || here.calls("acquire").await > tries).then_some(())
        })
        .await;
        drop(gone);
        for proxy in &proxies {
            proxy.set(FAIR);
        }
        let next = here.acquire("x", &[("wait", "20s"), ("ttl", "60s")]).await;
        assert_eq!(next.status, 201, "round {round}: {next:?}");
        assert_eq!(here.release("x", &next).await, 204);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_waiter_follows_a_grant_that_could_not_be_answered() {
    // Many callers that may be gone at any moment, the moment of the grant among them: nobody who
    // stays waits longer than the hand-over takes.
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    for round in 0..8_u32 {
        let held = here.acquire("x", &[("ttl", "60s"), ("wait", "20s")]).await;
        assert_eq!(held.status, 201, "round {round}: {held:?}");
        let fickle = caller(&here, "x", "wait=60s&ttl=1s").await;
        here.until_waiting(1).await;
        let staying = here.queue("x", &[("wait", "20s"), ("ttl", "60s")]);
        here.until_waiting(2).await;
        let (released, ()) = tokio::join!(here.release("x", &held), async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            // Answered or not: closing with unread bytes is a reset.
            drop(fickle);
        });
        assert_eq!(released, 204);
        // Where the answer was written before the caller was known to be gone, its short lease runs out.
        let lease = staying.await.expect("no panic");
        assert_eq!(lease.status, 201, "round {round}: {lease:?}");
        assert_eq!(here.release("x", &lease).await, 204);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_shutdown_all_waiters_are_answered() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let mut waiters = Vec::new();
    for i in 0..20 {
        waiters.push(caller(&there, "x", &format!("wait=60s&wait_id=0123456789abcdef-{i}")).await);
    }
    there.until_waiting(20).await;
    let staying = here.queue("x", &[("wait", "60s")]);
    there.shutdown.cancel();
    for mut waiter in waiters {
        let mut answer = String::new();
        waiter.read_to_string(&mut answer).await.expect("an answer, and the end");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("draining"), "{answer}");
        assert!(answer.contains("\"wait_id\":\"0123456789abcdef-"), "to ask another instance with: {answer}");
    }
    there.ended().await;
    assert_eq!(here.release("x", &held).await, 204);
    assert_eq!(staying.await.expect("no panic").status, 201, "another instance's end stops nobody");
}

/// A client behind a network that drops everything silently: in the queue, while it is granted,
/// and after the grant. Nobody can know, so it keeps its turn; the next is served when its lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_delays_the_next_waiter_by_its_ttl_at_most() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let proxy = ChaosProxy::start(here.address.port()).await;
    let mut silent = FAIR;
    (silent.to_node, silent.to_client, silent.passes_close) = (Flow::Silent, Flow::Silent, false);
    for state in ["queued", "being granted", "answered"] {
        proxy.set(FAIR);
        let held = here.acquire("x", &[("ttl", "60s"), ("wait", "20s")]).await;
        assert_eq!(held.status, 201, "{state}: {held:?}");
        let url = format!("http://{}/locks/x", proxy.address());
        let half_open = tokio::spawn(here.client.post(url).form(&[("wait", "60s"), ("ttl", "1s")]).send());
        here.until_waiting(1).await;
        if state == "queued" {
            proxy.set(silent);
        }
        let next = here.queue("x", &[("wait", "60s"), ("ttl", "60s")]);
        here.until_waiting(2).await;
        let release = here.release("x", &held);
        let (released, ()) = tokio::join!(release, async {
            if state == "being granted" {
                proxy.set(silent);
            }
        });
        assert_eq!(released, 204);
        if state == "answered" {
            here.until_waiting(1).await;
            proxy.set(silent);
        }
        let (took, lease) = super::timed(next).await;
        let lease = lease.expect("no panic");
        assert_eq!(lease.status, 201, "{state}: {lease:?}");
        // A TTL of one second and a lock delay of two.
        assert!(took < Duration::from_secs(15), "{state}: {took:?}");
        half_open.abort();
        assert_eq!(here.release("x", &lease).await, 204);
    }
}
