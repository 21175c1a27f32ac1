//! Ending another client's lease: `force=revoke` and `force=now`, and what the holder and others see.

use serde_json::json;

use crate::support::client::{Answer, Client, send};
use crate::support::cluster::Cluster;
use crate::support::service::Service;

async fn force(client: &Client, resource: &str, mode: &str, if_match: Option<&str>) -> Answer {
    let path = format!("/locks/{resource}?force={mode}&reason=stuck+deploy");
    let request = client.request("DELETE", &path);
    send(if let Some(tag) = if_match { request.header("If-Match", tag) } else { request }).await
}

#[tokio::test]
async fn revoke_refuses_renewals_and_frees_when_the_lease_ends() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    let lease = one.client().acquired("x", &[("ttl", "2s")]).await;
    cluster.until_everywhere("x").await;
    let revoked = force(two.client(), "x", "revoke", Some(lease.header("etag"))).await.expect_status(202).json();
    assert!(revoked["frees_at"].as_str().is_some_and(|t| t.ends_with('Z')), "{revoked}");
    assert!(revoked["frees_in_ms"].as_u64().is_some_and(|ms| (1..=2_600).contains(&ms)), "{revoked}");
    let refused = one.client().extend("x", &lease.token(), &[]).await.expect_problem(410, "lease-expired");
    assert_eq!(refused.json()["reason"], "forced");
    // Safe: while the lease runs nobody else gets it.
    two.client().acquire("x", &[]).await.expect_problem(423, "locked");
    let next = two.client().acquired("x", &[("wait", "20s")]).await;
    assert!(next.fence() > lease.fence());
    one.client().extend("x", &lease.token(), &[]).await.expect_problem(410, "lease-expired");
    // A revoked holder may still give it back.
    let other = one.client().acquired("y", &[]).await;
    force(two.client(), "y", "revoke", None).await.expect_status(202);
    one.client().release("y", &other.token()).await.expect_status(204);
    one.client().acquired("y", &[]).await;
}

#[tokio::test]
async fn force_now_frees_at_once_and_warns() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    let lease = one.client().acquired("x", &[("ttl", "1m")]).await;
    cluster.until_everywhere("x").await;
    let freed = force(two.client(), "x", "now", Some(lease.header("etag"))).await.expect_status(204);
    assert!(freed.header("warning").contains("may still be working"), "{freed:?}");
    let next = two.client().acquired("x", &[]).await;
    assert!(next.fence() > lease.fence());
    one.client().extend("x", &lease.token(), &[]).await.expect_status(410);
    two.client().release("x", &next.token()).await.expect_status(204);
    let gone = one.client().extend("x", &lease.token(), &[]).await.expect_problem(410, "lease-expired");
    assert_eq!(gone.json()["reason"], "forced");
    force(two.client(), "x", "now", None).await.expect_problem(404, "not-held");
}

#[tokio::test]
async fn force_now_serves_the_next_waiter() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    client.acquired("x", &[("ttl", "4m")]).await;
    let waiting = client.acquire("x", &[("wait", "50s")]);
    let forcing = async {
        crate::support::poll::until("it queues", || async { (client.waiting("x").await == 1).then_some(()) }).await;
        force(client, "x", "now", None).await.expect_status(204);
    };
    let (next, ()) = tokio::join!(waiting, forcing);
    next.expect_status(201);
}

#[tokio::test]
async fn only_the_holder_that_the_operator_saw_is_ended() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let seen = client.acquired("x", &[]).await;
    client.release("x", &seen.token()).await.expect_status(204);
    let present = client.acquired("x", &[("ttl", "1m")]).await;
    for mode in ["revoke", "now"] {
        let stale = force(client, "x", mode, Some(seen.header("etag"))).await.expect_problem(412, "changed");
        assert_eq!(stale.header("etag"), present.header("etag"));
    }
    client.extend("x", &present.token(), &[]).await.expect_status(200);
    let one_of = format!("{}, {}", seen.header("etag"), present.header("etag"));
    force(client, "x", "now", Some(&one_of)).await.expect_status(204);
}

#[tokio::test]
async fn a_reason_is_required_and_force_has_two_values() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    client.acquired("x", &[]).await;
    for (query, field) in [
        ("force=now", "reason"),
        ("force=now&reason=+", "reason"),
        ("force=gently&reason=x", "force"),
        ("reason=x", "reason"),
    ] {
        let refused = send(client.request("DELETE", &format!("/locks/x?{query}"))).await.expect_problem(400, "invalid");
        assert_eq!(refused.json()["errors"][0]["field"], field, "{query}");
    }
    let in_body = client.request("DELETE", "/locks/x").json(&json!({"force": "now", "reason": "stuck"}));
    send(in_body).await.expect_status(204);
}
