//! T11 to T18: attempts that fail half-way must leave no keys.

use std::time::Duration;

use futures_util::future::join_all;
use redlockd::manager::types::AcquireError;
use redlockd::redlock::clock::{Clock, SystemClock};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::chaos_proxy::{FAIR, Flow, Weather};
use crate::support::cluster::{Cluster, MUTE, REFUSING, SHORT, Tempo, heal};
use crate::support::poll;

const NO_WAIT: Duration = Duration::ZERO;
/// So long that a key that is gone was released and did not expire.
const LONG_TTL_MS: u64 = 50_000;

#[tokio::test]
async fn t11_no_attempt_is_blocked_by_the_previous_one() {
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(SHORT).await;
    cluster.take_as_foreigner(&[1], "x", 60_000).await;
    cluster.take_as_foreigner(&[2], "x", 100).await;
    let lease = instance.acquire("x", LONG_TTL_MS, Duration::from_secs(20)).await.expect("n1 and n3 are free by then");
    // The TTL that stands in the way is known, so the next look comes right behind its end.
    assert!(lease.waited < Duration::from_secs(2), "{:?}", lease.waited);
    assert_eq!(lease.quorum.granted, 2);
}

#[tokio::test]
async fn t13_a_node_that_refuses_connections_causes_no_error_and_an_error_leaves_no_key() {
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(SHORT).await;
    let cut = |node: usize| {
        instance.proxies[node].set(REFUSING);
        instance.proxies[node].reset();
    };
    cut(0);
    for i in 0..20 {
        instance.acquired(&format!("one-away/{i}"), LONG_TTL_MS).await;
    }
    cut(1);
    poll::until("the second connection is gone, too", || async {
        instance.acquire("two-away", LONG_TTL_MS, NO_WAIT).await.err()
    })
    .await;
    let Err(AcquireError::NoQuorum(refused)) = instance.acquire("two-away", LONG_TTL_MS, NO_WAIT).await else {
        panic!("granted by one node of three");
    };
    assert!(refused.quorum.granted <= 1);
    cluster.until_nowhere("two-away").await;
}

/// Two of three nodes receive the acquire and answer much later; the caller hangs up meanwhile.
#[tokio::test]
async fn t14_a_caller_that_hangs_up_during_an_acquire_leaves_no_key() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    for proxy in &over.proxies[1..] {
        proxy.set(MUTE);
    }
    let mut caller = TcpStream::connect(over.service.address()).await.expect("it listens");
    let request = "POST /locks/x?ttl=4m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    caller.write_all(request.as_bytes()).await.expect("connected");
    poll::until("the acquire has reached the nodes", || async { cluster.has("x").await.contains(&true).then_some(()) })
        .await;
    drop(caller);
    over.proxies.iter().for_each(heal);
    cluster.until_nowhere("x").await;
}

/// The keys are set and the answers are lost: the release must also be sent to nodes that did not answer.
#[tokio::test]
async fn t15_t12_nodes_that_did_not_answer_are_released_as_well() {
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(SHORT).await;
    for proxy in &instance.proxies[1..] {
        proxy.set(MUTE);
    }
    let refused = instance.acquire("x", LONG_TTL_MS, NO_WAIT).await;
    assert!(matches!(refused, Err(AcquireError::NoQuorum(_))), "{refused:?}");
    cluster.until_nowhere("x").await;
}

#[tokio::test]
async fn t16_an_early_answer_and_an_immediate_release_leave_no_orphan() {
    let cluster = Cluster::blank(3).await;
    let patient = Tempo { node_timeout: Duration::from_secs(1), guard: Duration::from_secs(2), ..SHORT };
    let instance = cluster.instance(patient).await;
    // The third node receives everything much later than the others have answered.
    instance.proxies[2].set(Weather { to_node: Flow::Delay(Duration::from_millis(50)), ..FAIR });
    for i in 0..200 {
        let resource = format!("brief/{}", i % 7);
        let lease = instance.acquired(&resource, LONG_TTL_MS).await;
        instance.release(&resource, &lease.token).await.expect("ours");
    }
    instance.until_settled().await;
    for i in 0..7 {
        assert_eq!(cluster.has(&format!("brief/{i}")).await, [false; 3]);
    }
}

/// A request to a node that did not answer arrives after the end of the attempt.
#[tokio::test]
async fn t17_an_acquire_that_arrives_late_does_not_stay() {
    let cluster = Cluster::blank(3).await;
    let wide = Tempo { guard: Duration::from_secs(10), ..SHORT };
    let instance = cluster.instance(wide).await;
    cluster.take_as_foreigner(&[0, 1], "x", 60_000).await;
    instance.proxies[2].set(Weather { to_node: Flow::Hold, to_client: Flow::Silent, ..FAIR });
    let refused = instance.acquire("x", LONG_TTL_MS, NO_WAIT).await;
    assert!(matches!(refused, Err(AcquireError::Held(_))), "{refused:?}");
    // The connection breaks; what was sent on it is delivered all the same, and within the guard.
    instance.proxies[2].reset();
    instance.proxies[2].set(FAIR);
    instance.until_settled().await;
    poll::until("the cancel has reached the node", || async {
        let keys: Vec<String> = cluster.servers[2].ask(&["KEYS", "redlockd:gone:*"]).await;
        (!keys.is_empty()).then_some(())
    })
    .await;
    poll::until("the late acquire is undone", || async {
        (!cluster.servers[2].ask::<bool>(&["EXISTS", "x"]).await).then_some(())
    })
    .await;
    // The first one does not block the next.
    cluster.servers[0].ask::<i64>(&["DEL", "x"]).await;
    let lease = instance.acquire("x", LONG_TTL_MS, Duration::from_secs(10)).await.expect("two nodes are free");
    assert_eq!(lease.quorum.needed, 2);
}

/// Two instances, each with its own queue.
#[tokio::test]
async fn t18_fifty_contenders_all_get_the_lock() {
    let cluster = Cluster::start(3).await;
    let services = [cluster.service().await, cluster.service().await];
    let begun = SystemClock.now();
    let contenders = (0..50).map(|i| {
        let client = services[i % 2].client().clone();
        async move {
            let lease = client.acquired("x", &[("ttl", "20s"), ("wait", "50s")]).await;
            client.release("x", &lease.token()).await.expect_status(204);
            lease.fence()
        }
    });
    let mut fences = join_all(contenders).await;
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 50, "a fence was given twice");
    // A fixed delay would have them collide again and again.
    assert!(SystemClock.now().since(begun) < Duration::from_secs(45));
}
