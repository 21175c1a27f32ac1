//! `GET /fences/{resource}`: what a fence is worth now, over real nodes.

use crate::support::client::{Answer, Client, send};
use crate::support::cluster::Cluster;
use crate::support::service::Service;

async fn check(client: &Client, resource: &str, fence: u64) -> Answer {
    send(client.request("GET", &format!("/fences/{resource}")).header("Fencing-Token", fence)).await
}

#[tokio::test]
async fn a_fence_is_current_then_stale_then_over() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    let (one, two) = (one.client(), two.client());
    check(one, "a/b", 17).await.expect_problem(410, "lease-expired");
    let first = one.acquired("a/b", &[("ttl", "1m")]).await;
    let current = check(two, "a/b", first.fence()).await.expect_status(200);
    assert_eq!(current.fence(), first.fence());
    let body = current.json();
    assert_eq!(body["resource"], "a/b");
    assert_eq!(body["token_id"], first.json()["token_id"]);
    assert!(body["valid_for_ms"].as_u64().is_some_and(|ms| (1..60_000).contains(&ms)), "{body}");
    // Never given, and said so in the field's name.
    let never = check(two, "a/b", first.fence() + 1).await.expect_problem(400, "invalid");
    assert_eq!(never.json()["errors"][0]["field"], "Fencing-Token");
    one.release("a/b", &first.token()).await.expect_status(204);
    check(two, "a/b", first.fence()).await.expect_problem(410, "lease-expired");
    check(two, "a/b", first.fence() + 1).await.expect_problem(400, "invalid");
    let second = two.acquired("a/b", &[("ttl", "1m")]).await;
    let stale = check(one, "a/b", first.fence()).await.expect_problem(412, "stale-fence");
    assert_eq!(stale.json()["newest_fence"], second.fence());
    assert_eq!(stale.fence(), second.fence());
    two.release("a/b", &second.token()).await.expect_status(204);
    check(one, "a/b", first.fence()).await.expect_problem(412, "stale-fence");
    // Another name's fences are others.
    check(one, "a/c", second.fence()).await.expect_problem(410, "lease-expired");
}

#[tokio::test]
async fn without_a_quorum_nothing_is_confirmed() {
    let mut cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let lease = over.client().acquired("x", &[("ttl", "1m")]).await;
    cluster.until_everywhere("x").await;
    cluster.servers[0].kill();
    check(over.client(), "x", lease.fence()).await.expect_status(200);
    cluster.servers[1].kill();
    check(over.client(), "x", lease.fence()).await.expect_problem(503, "quorum-unavailable");
}

#[tokio::test]
async fn proxies_get_the_status_that_they_know_and_shells_get_lines() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let (first, second) = {
        let first = client.acquired("x", &[]).await;
        client.release("x", &first.token()).await.expect_status(204);
        (first.fence(), client.acquired("x", &[]).await.fence())
    };
    let denied = client.get(&format!("/fences/x?fence={first}&deny=403")).await.expect_problem(403, "stale-fence");
    assert_eq!(denied.json()["status"], 403);
    client.get(&format!("/fences/x?fence={second}&deny=403")).await.expect_status(200);
    let text = send(client.request("GET", &format!("/fences/x?fence={second}")).header("Accept", "text/plain")).await;
    assert!(text.text.starts_with(&format!("resource=x\nfence={second}\ntoken_id=")), "{text:?}");
    let refused = send(client.request("GET", "/fences/x?fence=1").header("Accept", "text/plain")).await;
    assert!(refused.text.starts_with("stale-fence: 1 is not the newest fence of x: "), "{refused:?}");
    let missing = client.get("/fences/x").await.expect_problem(400, "invalid");
    assert_eq!(missing.json()["errors"][0]["field"], "Fencing-Token");
    send(client.request("HEAD", &format!("/fences/x?fence={second}"))).await.expect_status(200);
    let metrics = client.get("/metrics").await.text;
    assert!(metrics.contains("route=\"/fences/{resource}\""), "the route has its own label");
}
