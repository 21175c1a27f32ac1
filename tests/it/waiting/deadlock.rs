//! Deadlocks: of owners that wait for each other the newest request is refused if it asked for that, and no other.
//! Otherwise the deadlock is reported, and everybody waits on.

use std::time::Duration;

use super::{Cluster, Instance, Lease, timed};
use crate::support::poll;

/// Waits here with a name, in a task of its own, and is refused rather than part of a deadlock.
fn wait(instance: &Instance, resource: &str, owner: &str) -> tokio::task::JoinHandle<Lease> {
    instance.queue(resource, &[("wait", "60s"), ("ttl", "60s"), ("owner", owner), ("on_deadlock", "refuse")])
}

async fn hold(instance: &Instance, resource: &str, owner: &str) -> Lease {
    let lease = instance.acquire(resource, &[("ttl", "60s"), ("owner", owner)]).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    lease
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_that_closes_a_cycle_is_refused_and_the_others_go_on() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let mut held = Vec::new();
    for (resource, owner) in [("x", "a"), ("y", "b"), ("z", "c")] {
        held.push(hold(&here, resource, owner).await);
    }
    let a = wait(&here, "y", "a");
    here.until_waiting(1).await;
    let b = wait(&here, "z", "b");
    here.until_waiting(2).await;
    // One more waiter for the same resource, in no cycle, and one without an owner.
    let bystander = wait(&here, "z", "d");
    here.until_waiting(3).await;
    let nameless = here.queue("x", &[("wait", "60s"), ("ttl", "60s")]);
    here.until_waiting(4).await;
    let (took, refused) = timed(wait(&here, "x", "c")).await;
    let refused = refused.expect("no panic");
    assert_eq!((refused.status, refused.body["type"].as_str()), (409, Some("/problems/deadlock")), "{refused:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    let steps = refused.body["cycle"].as_array().expect("a list");
    let steps: Vec<[&str; 3]> =
        steps.iter().map(|s| ["owner", "waits_for", "held_by"].map(|k| s[k].as_str().expect("text"))).collect();
    assert_eq!(steps, [["c", "x", "a"], ["a", "y", "b"], ["b", "z", "c"]]);
    assert_eq!(refused.body["cycle"][0]["token_id"], held[0].body["token_id"]);
    assert!(!refused.body.to_string().contains(&held[0].token), "no token is disclosed");
    assert_eq!(here.waiting().await, 4, "everybody else waits on");
    // It gives back what it has, and all is well.
    assert_eq!(here.release("z", &held[2]).await, 204);
    let b = b.await.expect("no panic");
    assert_eq!(b.status, 201);
    for (resource, lease) in [("z", &b), ("y", &held[1]), ("x", &held[0])] {
        assert_eq!(here.release(resource, lease).await, 204);
    }
    for waiter in [a, bystander, nameless] {
        assert_eq!(waiter.await.expect("no panic").status, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_granted_by_another_instance_counts() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    hold(&there, "x", "a").await;
    hold(&there, "y", "b").await;
    let a = wait(&here, "y", "a");
    here.until_waiting(1).await;
    let refused = wait(&here, "x", "b").await.expect("no panic");
    assert_eq!(refused.status, 409, "{refused:?}");
    assert_eq!(here.waiting().await, 1);
    a.abort();
}

/// One owner with two requests at once: it waits for `y`, and is then granted `x`, for which the owner
/// of `y` waits. That closes the cycle, and the newest request is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_may_close_the_cycle() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let first = hold(&here, "x", "somebody").await;
    let b_holds = hold(&here, "y", "b").await;
    let a_wants_x = wait(&here, "x", "a");
    here.until_waiting(1).await;
    let b_wants_x = wait(&here, "x", "b");
    here.until_waiting(2).await;
    let a_wants_y = wait(&here, "y", "a");
    here.until_waiting(3).await;
    assert_eq!(here.release("x", &first).await, 204);
    let granted = a_wants_x.await.expect("no panic");
    assert_eq!(granted.status, 201, "{granted:?}");
    let refused = a_wants_y.await.expect("no panic");
    assert_eq!(refused.status, 409, "{refused:?}");
    assert_eq!(here.release("x", &granted).await, 204);
    assert_eq!(b_wants_x.await.expect("no panic").status, 201);
    assert_eq!(here.release("y", &b_holds).await, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_refused_without_a_cycle_without_owners_or_with_detection_off() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    // Two of one name for one thing: two callers who share a name.
    let held = hold(&here, "x", "a").await;
    let same = wait(&here, "x", "a");
    here.until_waiting(1).await;
    // A chain that is none: `b` waits for `a`, who waits for nothing.
    hold(&here, "y", "b").await;
    let b = wait(&here, "x", "b");
    here.until_waiting(2).await;
    here.until_probes(2, 3).await;
    assert_eq!(here.waiting().await, 2);
    assert_eq!(here.release("x", &held).await, 204);
    let same = same.await.expect("no panic");
    assert_eq!(same.status, 201);
    b.abort();
    let off = cluster.instance(&[("deadlock_detection", "false")]).await;
    hold(&off, "p", "a").await;
    hold(&off, "q", "b").await;
    let waiters = [wait(&off, "q", "a"), wait(&off, "p", "b")];
    off.until_waiting(2).await;
    off.until_probes(2, 3).await;
    assert_eq!(off.waiting().await, 2, "nobody looks for it");
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    poll::until("they are gone", || async { (off.waiting().await == 0).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_did_not_ask_to_be_refused_waits_on_and_the_deadlock_is_reported() {
    const REPORTED: &str = "redlockd_lock_deadlocks_total{outcome=\"reported\"} ";
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let (held_x, held_y) = (hold(&here, "x", "a").await, hold(&here, "y", "b").await);
    let a = here.queue("y", &[("wait", "60s"), ("ttl", "60s"), ("owner", "a"), ("on_deadlock", "refuse")]);
    here.until_waiting(1).await;
    let page = async || {
        let page = here.client.get(here.url("/ui/waiters")).send().await.expect("an answer");
        page.text().await.expect("text")
    };
    assert!(!page().await.contains("Deadlock."));
    let b = here.queue("x", &[("wait", "60s"), ("ttl", "60s"), ("owner", "b")]);
    poll::until("it is reported", || async { (here.metric(REPORTED).await == Some(1)).then_some(()) }).await;
    let shown = page().await;
    assert!(shown.contains("Deadlock.") && shown.contains("<bdi>b</bdi> waits for"), "{shown}");
    let events = here.client.get(here.url("/ui/events?kind=deadlock")).send().await.expect("an answer");
    assert!(events.text().await.expect("text").contains("b waits for x, held by a"));
    here.until_probes(2, 3).await;
    assert_eq!(here.waiting().await, 2, "both wait on");
    assert_eq!(here.metric(REPORTED).await, Some(1), "once");
    // One of them gives up what it has, and all is well.
    assert_eq!(here.release("x", &held_x).await, 204);
    let b = b.await.expect("no panic");
    assert_eq!(b.status, 201);
    assert!(!page().await.contains("Deadlock."), "it is over");
    for (resource, lease) in [("x", &b), ("y", &held_y)] {
        assert_eq!(here.release(resource, lease).await, 204);
    }
    assert_eq!(a.await.expect("no panic").status, 201);
}
