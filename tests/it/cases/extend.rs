//! T19 to T29: extends.

use std::time::Duration;

use futures_util::future::join_all;
use redlockd::manager::types::ExtendError;
use redlockd::redlock::clock::{Clock, SystemClock};

use crate::support::cluster::{Cluster, MUTE, SHORT, SILENT, Tempo, heal, slow_to_answer};
use crate::support::poll;

#[tokio::test]
async fn t19_a_failed_extend_keeps_the_key_on_every_node() {
    let cluster = Cluster::start(3).await;
    let (holder, other) = (cluster.service().await, cluster.service().await);
    let lease = holder.client().acquired("x", &[("ttl", "40s")]).await;
    cluster.until_everywhere("x").await;
    for proxy in &holder.proxies[1..] {
        proxy.set(SILENT);
    }
    let failed = holder.client().extend("x", &lease.token(), &[]).await.expect_problem(503, "quorum-unavailable");
    let left = failed.json()["valid_for_ms"].as_u64().expect("what is left of the old promise");
    assert!((1..=39_598).contains(&left), "{failed:?}");
    assert!(failed.json()["detail"].as_str().is_some_and(|d| d.contains("old deadline is valid")));
    assert_eq!(cluster.has("x").await, [true; 3], "a failed extend has released something");
    other.client().acquire("x", &[]).await.expect_problem(423, "locked");
    holder.proxies.iter().for_each(heal);
    poll::until("the extend works again", || async {
        (holder.client().extend("x", &lease.token(), &[]).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn t20_t19_full_nodes_still_extend_and_release() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let lease = over.client().acquired("x", &[("ttl", "10s")]).await;
    cluster.until_everywhere("x").await;
    for server in &cluster.servers {
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    }
    let refused = over.client().acquire("y", &[]).await.expect_problem(503, "quorum-unavailable");
    assert!(refused.outcomes().contains(&"n1: full".to_owned()), "{refused:?}");
    over.client().extend("x", &lease.token(), &[("ttl", "40s")]).await.expect_status(200);
    for server in &cluster.servers {
        assert!(server.ask::<i64>(&["PTTL", "x"]).await > 20_000, "it was not extended");
    }
    over.client().release("x", &lease.token()).await.expect_status(204);
    cluster.until_nowhere("x").await;
}

#[tokio::test]
async fn t21_t24_an_ended_lease_is_never_revived() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let first = client.acquired("x", &[("ttl", "400ms")]).await;
    cluster.until_nowhere("x").await;
    client.extend("x", &first.token(), &[]).await.expect_problem(410, "lease-expired");
    let second = client.acquired("x", &[]).await;
    client.extend("x", &first.token(), &[]).await.expect_problem(409, "not-holder");
    client.release("x", &second.token()).await.expect_status(204);
    let gone = client.extend("x", &first.token(), &[("ttl", "1s")]).await.expect_problem(410, "lease-expired");
    assert_eq!(gone.json()["reason"], "expired");
    // Unknown fields and values that are too large are refused.
    for field in ["create", "force", "upsert", "extend_only_if_life", "nx"] {
        let refused = client.extend("x", &first.token(), &[(field, "true")]).await.expect_problem(400, "invalid");
        assert_eq!(refused.json()["errors"][0]["field"], field);
    }
    assert_eq!(cluster.has("x").await, [false; 3]);
}

#[tokio::test]
async fn t22_a_renewal_in_progress_does_not_restore_a_released_key() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    for i in 0..20 {
        let (client, resource) = (over.client(), format!("x/{i}"));
        let token = client.acquired(&resource, &[("ttl", "60s")]).await.token();
        let renewals = join_all((0..4).map(|_| client.extend(&resource, &token, &[])));
        let (renewals, released) = tokio::join!(renewals, client.release(&resource, &token));
        assert_eq!(released.status, 204, "{released:?}");
        assert!(renewals.iter().all(|r| matches!(r.status, 200 | 410)), "{renewals:?}");
        cluster.until_nowhere(&resource).await;
        client.extend(&resource, &token, &[]).await.expect_problem(410, "lease-expired");
    }
}

/// The clean-up of a failed attempt must not end the lease that the same token gets afterwards.
#[tokio::test]
async fn t23_after_a_failed_attempt_the_same_token_gets_a_lease_that_can_be_extended() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let token = "my-own-token.0123456789";
    cluster.take_as_foreigner(&[0, 1], "x", 60_000).await;
    client.acquire("x", &[("token", token)]).await.expect_problem(423, "locked");
    for server in &cluster.servers[..2] {
        server.ask::<i64>(&["DEL", "x"]).await;
    }
    client.acquired("x", &[("token", token), ("wait", "10s")]).await;
    for _ in 0..3 {
        client.extend("x", token, &[]).await.expect_status(200);
    }
}

#[tokio::test]
async fn t24_a_missing_or_foreign_key_is_never_reported_as_extended_or_released() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let token = "my-own-token.0123456789";
    over.client().extend("x", token, &[]).await.expect_problem(410, "lease-expired");
    over.client().release("x", token).await.expect_problem(410, "lease-expired");
    cluster.take_as_foreigner(&[0, 1, 2], "y", 60_000).await;
    over.client().extend("y", token, &[]).await.expect_problem(409, "not-holder");
    over.client().release("y", token).await.expect_problem(409, "not-holder");
    assert_eq!(cluster.has("y").await, [true; 3]);
}

#[tokio::test]
async fn t25_an_extend_by_a_majority_succeeds_and_releases_nothing() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let lease = over.client().acquired("x", &[("ttl", "30s")]).await;
    cluster.until_everywhere("x").await;
    over.proxies[0].set(MUTE);
    for _ in 0..5 {
        let extended = over.client().extend("x", &lease.token(), &[]).await.expect_status(200).json();
        assert_eq!(extended["quorum"]["granted"], 2);
    }
    heal(&over.proxies[0]);
    let looked = over.client().inspect("x").await.expect_status(200).json();
    assert_eq!(looked["holders"][0]["fence"], lease.fence());
    assert_eq!(cluster.has("x").await, [true; 3]);
}

#[tokio::test]
async fn t27_three_seconds_are_three_thousand_milliseconds_on_the_nodes() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let lease = over.client().acquired("x", &[("ttl", "1s")]).await;
    cluster.until_everywhere("x").await;
    let extended = over.client().extend("x", &lease.token(), &[("ttl", "3000ms")]).await.expect_status(200).json();
    assert!(extended["valid_for_ms"].as_u64().is_some_and(|v| (1_000..=2_968).contains(&v)), "{extended}");
    for server in &cluster.servers {
        let left: i64 = server.ask(&["PTTL", "x"]).await;
        // Plus the lock delay of 600 ms, minus the time that this machine took.
        assert!((1_600..=3_600).contains(&left), "{left}");
    }
}

#[tokio::test]
async fn t28_an_extend_that_is_answered_too_late_keeps_the_old_deadline() {
    let patient = Tempo { node_timeout: Duration::from_secs(2), guard: Duration::from_secs(3), ..SHORT };
    let cluster = Cluster::blank(3).await;
    let instance = cluster.instance(patient).await;
    let lease = instance.acquired("x", 30_000).await;
    for proxy in &instance.proxies[1..] {
        proxy.set(slow_to_answer(Duration::from_millis(500)));
    }
    // Two of three nodes agree, but after the 300 ms have passed.
    let refused = instance.extend("x", &lease.token, 300).await;
    let Err(ExtendError::NoQuorum { valid_for, .. }) = refused else { panic!("{refused:?}") };
    let old = lease.deadline.since(SystemClock.now());
    let valid_for = valid_for.expect("this instance granted it");
    assert!(valid_for >= old && valid_for < old + Duration::from_secs(20), "{valid_for:?}, {old:?}");
}

/// The renewal margin is a third of the TTL, so that no TTL can be shorter than it.
#[tokio::test]
async fn t26_a_held_lease_with_any_ttl_is_renewed_in_time() {
    let cluster = Cluster::start(1).await;
    let over = cluster.service().await;
    let ask = over.client().request("POST", "/locks/x").form(&[("hold", "true"), ("ttl", "1s")]);
    let mut stream = ask.send().await.expect("a stream");
    let mut received = String::new();
    while received.matches("\"renewed\"").count() < 4 {
        let chunk = stream.chunk().await.expect("a stream that is not broken off").expect("no end");
        received.push_str(std::str::from_utf8(&chunk).expect("text"));
        assert!(!received.contains("\"lost\""), "{received}");
    }
    drop(stream);
    cluster.until_nowhere("x").await;
}
