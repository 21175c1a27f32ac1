//! Requests that are sent again with their own token, while the first is queued or holds.

use super::Cluster;
use crate::support::poll;

const MINE: &str = "a-token-of-my-own-0123456789";

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_a_held_lease_passes_the_queue_and_gets_the_same_lease() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("x", &[("ttl", "60s"), ("token", MINE)]).await;
    poll::until("every node has it", || async { (cluster.nodes_with("x").await == 3).then_some(()) }).await;
    let other = here.queue("x", &[("wait", "60s")]);
    here.until_waiting(1).await;
    for wait in ["0s", "10s"] {
        let again = here.acquire("x", &[("ttl", "60s"), ("token", MINE), ("wait", wait)]).await;
        assert_eq!((again.status, again.fence), (200, held.fence), "{again:?}");
    }
    assert_eq!(here.release("x", &held).await, 204);
    assert_eq!(other.await.expect("no panic").status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_a_queued_request_joins_it_when_it_is_granted() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let mine = || here.queue("x", &[("wait", "60s"), ("ttl", "60s"), ("token", MINE)]);
    let first = mine();
    here.until_waiting(1).await;
    let between = here.queue("x", &[("wait", "60s"), ("ttl", "60s")]);
    here.until_waiting(2).await;
    let second = mine();
    here.until_waiting(3).await;
    assert_eq!(here.release("x", &held).await, 204);
    let (first, second) = (first.await.expect("no panic"), second.await.expect("no panic"));
    // The second may reach the third node first, which then gives a later fence to the same lease, and calls it new.
    assert!(first.status == 201 && [200, 201].contains(&second.status), "{first:?} {second:?}");
    assert!(first.fence <= second.fence, "{first:?} {second:?}");
    assert!(!between.is_finished(), "and nobody else has it");
    assert_eq!(here.release("x", &first).await, 204, "one lease: nothing is left of it");
    assert_eq!(between.await.expect("no panic").status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_waiting_does_not_pass_the_queue() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let waiter = here.queue("x", &[("wait", "60s")]);
    here.until_waiting(1).await;
    let hasty = here.acquire("x", &[]).await;
    assert_eq!((hasty.status, &hasty.body["waiting"]), (423, &1.into()));
    assert_eq!(here.release("x", &held).await, 204);
    assert_eq!(waiter.await.expect("no panic").status, 201);
}
