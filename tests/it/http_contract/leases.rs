//! Acquire, replay, extend, edit, inspect, release.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{Answer, lock, send};
use crate::support::cluster::Cluster;
use crate::support::poll;
use crate::support::service::Service;

const OWN_TOKEN: &str = "my-own-token.0123456789";

fn keys(body: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = body.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|t| t.len() == 24 && t.ends_with('Z') && t.as_bytes()[10] == b'T')
}

#[tokio::test]
async fn an_acquire_answers_the_lease_and_accepts_json_form_and_query() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let fields = [("ttl", "20s"), ("owner", "ci-4711"), ("note", "release 1.9 ä")];
    let metadata = json!({"build": "17", "host": "h1"});
    let text = metadata.to_string();
    let with_metadata: Vec<(&str, &str)> = fields.into_iter().chain([("metadata", text.as_str())]).collect();
    let mut object = json!({"metadata": metadata});
    fields.iter().for_each(|(k, v)| object[*k] = json!(v));
    let path = lock("deploy/prod");
    let url = reqwest::Url::parse_with_params("http://any", &with_metadata).expect("a URL");
    let asks = [
        client.request("POST", &path).json(&object),
        client.request("POST", &path).form(&with_metadata),
        client.request("POST", &format!("{path}?{}", url.query().expect("fields"))),
        client.request("POST", &format!("{path}?ttl=20s")).form(&with_metadata[1..]),
    ];
    for ask in asks {
        let answer = send(ask).await.expect_status(201);
        let lease = answer.json();
        assert_eq!(
            keys(&lease),
            [
                "acquired_at",
                "expires_at",
                "fence",
                "metadata",
                "mode",
                "note",
                "owner",
                "quorum",
                "resource",
                "token",
                "token_id",
                "ttl_ms",
                "valid_for_ms",
                "waited_ms"
            ]
        );
        assert_eq!((&lease["resource"], &lease["mode"]), (&json!("deploy/prod"), &json!("exclusive")));
        assert_eq!((&lease["owner"], &lease["note"]), (&json!("ci-4711"), &json!("release 1.9 ä")));
        assert_eq!((&lease["metadata"], &lease["ttl_ms"]), (&metadata, &json!(20_000)));
        assert!(is_time(&lease["acquired_at"]) && is_time(&lease["expires_at"]), "{lease}");
        assert!(lease["valid_for_ms"].as_u64().is_some_and(|v| (1..=19_798).contains(&v)), "{lease}");
        assert_eq!((&lease["quorum"]["needed"], &lease["quorum"]["nodes"]), (&json!(2), &json!(3)));
        assert_eq!(answer.header("location"), "/locks/deploy/prod");
        assert_eq!(lease["token"], answer.header("lock-token"));
        assert_eq!(lease["fence"], answer.fence());
        assert_eq!(answer.header("etag"), format!("\"{}\"", answer.fence()));
        assert_eq!(answer.token().len(), 32, "192 random bits");
        assert_eq!(lease["token_id"].as_str().map(str::len), Some(8));
        let released = client.release("deploy/prod", &format!("<{}>", answer.token())).await.expect_status(204);
        assert_eq!(released.text, "");
    }
}

#[tokio::test]
async fn defaults_apply_and_fences_rise() {
    let service = Service::embedded(&[]).await;
    let mut last = 0;
    for _ in 0..20 {
        let answer = service.client().acquire("x", &[]).await.expect_status(201);
        assert_eq!(answer.json()["ttl_ms"], 30_000);
        assert!(answer.fence() > last && answer.fence() < 1 << 53);
        last = answer.fence();
        service.client().release("x", &answer.token()).await.expect_status(204);
    }
}

#[tokio::test]
async fn a_replay_with_the_same_token_gets_the_same_lease() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    let fields = [("ttl", "20s"), ("token", OWN_TOKEN)];
    let first = one.client().acquired("x", &fields).await;
    assert_eq!(first.token(), OWN_TOKEN);
    for client in [one.client(), two.client()] {
        let again = client.acquire("x", &fields).await.expect_status(200);
        assert_eq!((again.token(), again.fence()), (OWN_TOKEN.to_owned(), first.fence()));
        assert_eq!(again.json()["token_id"], first.json()["token_id"]);
        assert!(again.json()["valid_for_ms"].as_u64().is_some_and(|v| v <= 19_798));
    }
    // The header carries it as well; the two must not differ.
    let by_header = one.client().request("POST", "/locks/x").header("Lock-Token", OWN_TOKEN);
    assert_eq!(send(by_header).await.expect_status(200).fence(), first.fence());
    let differs = one.client().request("POST", "/locks/x").header("Lock-Token", "another-token.0123456789");
    send(differs.form(&fields)).await.expect_problem(400, "invalid");
    // One token that claims its lease over and over.
    let mut bounded = None;
    for _ in 0..20 {
        let answer = one.client().acquire("x", &fields).await;
        if answer.status != 200 {
            bounded = Some(answer);
            break;
        }
    }
    let bounded = bounded.expect("replays are bounded").expect_problem(429, "quota-exceeded");
    assert!(!bounded.header("retry-after").is_empty());
    // Released is released, for this token, also when the POST is repeated.
    two.client().release("x", OWN_TOKEN).await.expect_status(204);
    let gone = one.client().acquire("x", &fields).await.expect_problem(410, "lease-expired");
    assert_eq!(gone.json()["reason"], "released");
    one.client().acquired("x", &[]).await;
}

#[tokio::test]
async fn text_plain_answers_the_bare_token() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let plain = |method: &str, path: &str| client.request(method, path).header("Accept", "text/plain");
    let acquired =
        send(plain("POST", "/locks/x").form(&[("owner", "a\nb=c"), ("ttl", "20s")])).await.expect_status(201);
    assert_eq!(acquired.text, format!("{}\n", acquired.token()));
    assert!(acquired.header("content-type").starts_with("text/plain"));
    let seen = send(plain("GET", "/locks/x")).await.expect_status(200);
    assert!(seen.text.lines().all(|line| line.contains('=')), "{}", seen.text);
    assert!(seen.text.contains("state=held\n") && seen.text.contains("owner=a\\nb=c\n"), "{}", seen.text);
    assert!(!seen.text.contains(&acquired.token()));
    let held = send(plain("POST", "/locks/x")).await.expect_status(423);
    assert!(held.text.starts_with("locked: ") && held.text.lines().count() == 1, "{}", held.text);
    let free = send(plain("GET", "/locks/y")).await.expect_status(404);
    assert!(free.text.starts_with("not-held: "), "{}", free.text);
}

#[tokio::test]
async fn a_held_lock_shows_holder_remaining_time_and_nodes() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let mine = client.acquired("x", &[("ttl", "20s"), ("owner", "me"), ("note", "why")]).await;
    cluster.until_everywhere("x").await;
    let refused = client.acquire("x", &[]).await.expect_problem(423, "locked");
    let body = refused.json();
    assert_eq!((&body["reason"], &body["resource"], &body["waiting"]), (&json!("held"), &json!("x"), &json!(0)));
    let holder = &body["holders"][0];
    assert_eq!(
        (&holder["owner"], &holder["note"], &holder["fence"]),
        (&json!("me"), &json!("why"), &json!(mine.fence()))
    );
    assert!(refused.outcomes().iter().filter(|o| o.ends_with(": held")).count() >= 2, "{refused:?}");
    let after: u64 = refused.header("retry-after").parse().expect("seconds");
    assert!((15..=21).contains(&after), "20 s and the lock delay, rounded up: {after}");
    for shown in [refused, client.inspect("x").await.expect_status(200), client.get("/locks").await] {
        assert!(!shown.text.contains(&mine.token()), "the token is shown: {shown:?}");
    }
    let seen = poll::until("all three nodes answer", || async {
        let seen = client.inspect("x").await.expect_status(200);
        let hold = |nodes: &Vec<Value>| nodes.iter().all(|node| node["holds"] == mine.json()["token_id"]);
        seen.json()["nodes"].as_array().is_some_and(hold).then_some(seen)
    })
    .await;
    let body = seen.json();
    let expected = [
        "answered_by",
        "holders",
        "mode",
        "nodes",
        "observed_at",
        "quorum",
        "resource",
        "state",
        "waiters",
        "waiters_known",
        "waiting",
        "waiting_here",
    ];
    assert_eq!(keys(&body), expected);
    assert_eq!(
        keys(&body["holders"][0]),
        ["acquired_at", "fence", "metadata", "note", "owner", "renewals", "token_id", "valid_for_ms"]
    );
    assert_eq!(seen.header("etag"), format!("\"{}\"", mine.fence()));
    assert_eq!(body["nodes"].as_array().map(Vec::len), Some(3));
    for node in body["nodes"].as_array().expect("nodes") {
        assert!(node["ttl_ms"].as_u64().is_some_and(|t| (10_000..=20_600).contains(&t)), "{node}");
    }
    let head = send(client.request("HEAD", "/locks/x")).await.expect_status(200);
    assert_eq!((head.text.as_str(), head.header("etag")), ("", seen.header("etag")));
    send(client.request("HEAD", "/locks/y")).await.expect_status(404);
    client.inspect("y").await.expect_problem(404, "not-held");
}

#[tokio::test]
async fn an_expired_lease_is_in_its_lock_delay() {
    let cluster = Cluster::blank(3).await;
    let long_delay =
        ["--set", "node_timeout=200ms", "--set", "min_ttl=400ms", "--set", "guard=5s", "--set", "lock_delay=10s"];
    cluster.declare(&long_delay);
    let over = cluster.service_with(&long_delay).await;
    let client = over.client();
    let lease = client.acquired("x", &[("ttl", "400ms")]).await;
    let delayed = poll::until("the lease has run out", || async {
        let answer = client.acquire("x", &[]).await;
        (answer.json()["reason"] == "lock-delay").then_some(answer)
    });
    let delayed = delayed.await.expect_problem(423, "locked");
    assert!(delayed.header("retry-after").parse::<u64>().is_ok_and(|s| (1..=11).contains(&s)), "{delayed:?}");
    assert_eq!(client.inspect("x").await.expect_status(200).json()["state"], "lock-delay");
    // Nobody else had it: an extend finds it as it was.
    client.extend("x", &lease.token(), &[("ttl", "20s")]).await.expect_status(200);
}

#[tokio::test]
async fn an_extend_renews_or_edits_and_keeps_fence_and_etag() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let lease = client.acquired("x", &[("ttl", "20s"), ("note", "one"), ("metadata", r#"{"a":"1","b":"2"}"#)]).await;
    let valid = |answer: &Answer| answer.json()["valid_for_ms"].as_u64().expect("a number");
    let renewed = client.extend("x", &lease.token(), &[]).await.expect_status(200);
    assert!((10_000..=19_798).contains(&valid(&renewed)), "an empty body renews by the lease's own TTL: {renewed:?}");
    let longer = client.extend("x", &lease.token(), &[("ttl", "1m")]).await.expect_status(200);
    assert!((30_000..=59_398).contains(&valid(&longer)), "{longer:?}");
    for answer in [&renewed, &longer] {
        assert_eq!((answer.fence(), answer.header("etag")), (lease.fence(), lease.header("etag")));
        assert!(answer.json().get("token").is_none() && answer.header("lock-token").is_empty());
    }
    let patch = client.request("PATCH", "/locks/x").header("Lock-Token", format!("<{}>", lease.token()));
    let patch = patch.header("Content-Type", "application/merge-patch+json");
    let edited = send(patch.body(r#"{"note":"two","metadata":{"a":null,"c":"3"}}"#)).await.expect_status(200).json();
    assert_eq!((&edited["note"], &edited["metadata"]), (&json!("two"), &json!({"b": "2", "c": "3"})));
    let seen = client.inspect("x").await;
    let holder = seen.json()["holders"][0].clone();
    assert_eq!((&holder["note"], &holder["metadata"]), (&json!("two"), &json!({"b": "2", "c": "3"})));
    assert!(holder["renewals"].as_u64().is_some_and(|n| n >= 2), "{holder}");
    assert_eq!(seen.header("etag"), lease.header("etag"), "it changes with the holders, not with renewals");
    // With If-Match: the lease that is meant, or none.
    for (tag, status) in [(lease.header("etag"), 200), ("*", 200), ("\"1\"", 412)] {
        let request = client.request("PATCH", "/locks/x").header("Lock-Token", lease.token()).header("If-Match", tag);
        let answer = send(request).await.expect_status(status);
        assert_eq!(answer.header("etag"), lease.header("etag"), "{tag}");
    }
}

#[tokio::test]
async fn a_foreign_token_is_409_and_an_ended_lease_410() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let lease = client.acquired("x", &[("ttl", "20s")]).await;
    client.extend("x", OWN_TOKEN, &[]).await.expect_problem(409, "not-holder");
    client.release("x", OWN_TOKEN).await.expect_problem(409, "not-holder");
    client.release("x", &lease.token()).await.expect_status(204);
    let again = client.release("x", &lease.token()).await.expect_problem(410, "lease-expired");
    assert_eq!((&again.json()["reason"], &again.json()["resource"]), (&json!("released"), &json!("x")));
    let gone = client.extend("x", &lease.token(), &[]).await.expect_problem(410, "lease-expired");
    assert_eq!(gone.json()["reason"], "released");
    let short = client.acquired("y", &[("ttl", "400ms")]).await;
    cluster.until_nowhere("y").await;
    let expired = client.extend("y", &short.token(), &[]).await.expect_problem(410, "lease-expired");
    assert_eq!(expired.json()["reason"], "expired");
    client.inspect("y").await.expect_problem(404, "not-held");
}

#[tokio::test]
async fn a_token_is_valid_on_every_instance() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    let lease = one.client().acquired("x", &[("ttl", "20s")]).await;
    two.client().acquire("x", &[]).await.expect_problem(423, "locked");
    two.client().extend("x", &lease.token(), &[]).await.expect_status(200);
    two.client().release("x", &lease.token()).await.expect_status(204);
    let next = one.client().acquired("x", &[]).await;
    assert!(next.fence() > lease.fence());
    assert!(next.took < Duration::from_secs(10));
}
