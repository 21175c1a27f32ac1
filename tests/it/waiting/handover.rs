//! A released lock goes to the oldest waiter of this or another instance, without polling.

use std::time::Duration;

use super::{Cluster, Instance, config, timed};
use crate::support::poll;

#[tokio::test(flavor = "multi_thread")]
async fn waiter_is_woken_by_release_of_another_instance_without_polling() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let held = here.acquire("a/b", &[("ttl", "60s")]).await;
    let waiter = there.queue("a/b", &[("wait", "60s")]);
    poll::until("it listens", || async { (cluster.listeners("a/b").await == 1).then_some(()) }).await;
    there.until_probes(1, 3).await;
    let tries = there.calls("acquire").await;
    there.until_probes(3, 3).await;
    assert_eq!(there.calls("acquire").await, tries, "a waiter asked the nodes without a reason");
    assert_eq!(here.release("a/b", &held).await, 204);
    let (took, lease) = timed(waiter).await;
    let lease = lease.expect("no panic");
    assert_eq!(lease.status, 201, "{lease:?}");
    assert!(lease.fence > held.fence);
    assert!(took < Duration::from_secs(10), "no notice came: {took:?}");
    poll::until("all nodes answered", || async { (there.calls("acquire").await >= tries + 3).then_some(()) }).await;
    there.until_probes(1, 3).await;
    assert_eq!(there.calls("acquire").await, tries + 3, "one end is one try");
    // Nobody waits any more, so nobody listens for long.
    poll::until("it no longer listens", || async { (cluster.listeners("a/b").await == 0).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_when_a_node_dies_with_its_subscriptions() {
    let mut cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let waiter = there.queue("x", &[("wait", "60s")]);
    poll::until("it listens", || async { (cluster.listeners("x").await == 1).then_some(()) }).await;
    there.until_probes(1, 3).await;
    cluster.servers[0].kill();
    assert_eq!(here.release("x", &held).await, 204);
    let (took, lease) = timed(waiter).await;
    assert_eq!(lease.expect("no panic").status, 201);
    assert!(took < Duration::from_secs(15), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_may_not_subscribe_polls() {
    let cluster = Cluster::of(3).await;
    let mut urls = Vec::new();
    for (i, server) in cluster.servers.iter().enumerate() {
        server.ask::<()>(&["ACL", "SETUSER", "unsubscribed", "on", ">pw", "~*", "+@all", "resetchannels"]).await;
        urls.push(format!("n{i}=redis://unsubscribed:pw@127.0.0.1:{}", server.port()));
    }
    let (here, polling) = (cluster.instance(&[]).await, Instance::start(&config(&[], urls)).await);
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let waiter = polling.queue("x", &[("wait", "60s")]);
    polling.until_waiting(1).await;
    assert_eq!(here.release("x", &held).await, 204);
    let (took, lease) = timed(waiter).await;
    let lease = lease.expect("no panic");
    assert_eq!(lease.status, 201);
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(polling.release("x", &lease).await, 204, "it may not publish, and releases all the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_waiter_follows_an_expired_lease_without_polling() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let held = here.acquire("x", &[("ttl", "2s")]).await;
    let (took, lease) = timed(there.acquire("x", &[("wait", "60s")])).await;
    assert_eq!(lease.status, 201);
    assert!(lease.fence > held.fence);
    // TTL and lock delay are four seconds.
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(15), "{took:?}");
    let tries = there.calls("acquire").await / 3;
    assert!(tries <= 5, "{tries} tries for one lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_client_is_polled() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    for server in &cluster.servers {
        server.ask::<()>(&["SET", "theirs", "some-value", "PX", "60000"]).await;
    }
    let waiter = here.queue("theirs", &[("wait", "60s")]);
    here.until_waiting(1).await;
    let tries = here.calls("acquire").await;
    here.until_probes(3, 3).await;
    let looks = (here.calls("acquire").await - tries) / 3;
    assert!((1..=8).contains(&looks), "{looks} looks in about three seconds");
    for server in &cluster.servers {
        server.ask::<()>(&["DEL", "theirs"]).await;
    }
    assert_eq!(waiter.await.expect("no panic").status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_waiters_of_two_instances_are_served_in_order_within_each() {
    const CROWD: usize = 24;
    let cluster = Cluster::of(3).await;
    let instances = [cluster.instance(&[]).await, cluster.instance(&[]).await];
    let held = instances[0].acquire("x", &[("ttl", "60s")]).await;
    let mut lines = [Vec::new(), Vec::new()];
    for i in 0..CROWD {
        for (instance, line) in instances.iter().zip(&mut lines) {
            let (request, client) = (instance.post("x", &[("wait", "60s"), ("ttl", "60s")]), instance.client.clone());
            let url = instance.url("/locks/x");
            line.push(tokio::spawn(async move {
                let lease = super::lease(request.send().await.expect("an answer")).await;
                assert_eq!(lease.status, 201, "{lease:?}");
                let released = client.delete(url).header("lock-token", &lease.token).send().await.expect("an answer");
                assert_eq!(released.status().as_u16(), 204);
                lease.fence
            }));
            instance.until_waiting(i + 1).await;
        }
    }
    assert_eq!(instances[0].release("x", &held).await, 204);
    let mut runs = Vec::new();
    for (at, line) in lines.into_iter().enumerate() {
        let mut fences = Vec::new();
        for waiter in line {
            fences.push(waiter.await.expect("served"));
        }
        assert!(fences.is_sorted(), "instance {at} served out of turn: {fences:?}");
        runs.extend(fences.into_iter().map(|fence| (fence, at)));
    }
    runs.sort_unstable();
    let longest = runs.chunk_by(|a, b| a.1 == b.1).map(<[_]>::len).max().unwrap_or(0);
    // Both had waiters for most of the time: neither kept the lock to itself.
    assert!(longest <= CROWD * 3 / 4, "one instance had {longest} turns in a row of {}", runs.len());
}
