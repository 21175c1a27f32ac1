//! Kept leases: renewed by the service, by any instance, until their end and not longer.

use std::collections::BTreeSet;
use std::time::Duration;

use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use redlockd::types::Token;
use serde_json::{Value, json};

use crate::access::{Access, as_principal};
use crate::support::client::{Client, lock, send};
use crate::support::cluster::Cluster;
use crate::support::poll;
use crate::support::service::{SHORT_MEMORY, Service};

/// What the end of a kept lease may be late by: a look of the keeper, a round, and a machine that does other things.
const LATE_MAX: Duration = Duration::from_secs(2);

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Waits for the lock from `begun` on, and answers after how long it was granted.
async fn granted_after(client: &Client, resource: &str, begun: BootTime) -> Duration {
    client.acquire(resource, &[("wait", "20s"), ("ttl", "1s")]).await.expect_status(201);
    SystemClock.now().since(begun)
}

#[tokio::test]
async fn a_kept_lease_needs_nobody_and_ends_on_time() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service_with(&SHORT_MEMORY).await;
    let client = over.client();
    let begun = SystemClock.now();
    let lease = client.acquired("freeze", &[("keep", "5s"), ("owner", "ann"), ("note", "until Monday")]).await;
    let body = lease.json();
    assert_eq!(body["ttl_ms"], 2_000, "the longest TTL that is allowed");
    let kept_for = body["kept_for_ms"].as_u64().expect("a number");
    assert!((4_000..=5_500).contains(&kept_for), "{body}");
    let shown = client.inspect("freeze").await.json();
    let holder = &shown["holders"][0];
    assert_eq!((&holder["owner"], &holder["kept_until"]), (&json!("ann"), &body["kept_until"]), "{shown}");
    assert!(holder["valid_for_ms"].as_u64() < holder["kept_for_ms"].as_u64(), "what is promised is the TTL: {shown}");
    let refused = client.acquire("freeze", &[]).await.expect_status(423).json();
    assert_eq!(refused["holders"][0]["kept_until"], body["kept_until"]);
    let took = granted_after(client, "freeze", begun).await;
    assert!(took >= seconds(4.5) && took < seconds(5.0) + LATE_MAX, "{took:?}");
    let events = client.get("/events?since=1m&name=freeze").await.json().to_string();
    assert!(!events.contains("lost"), "{events}");
    let metrics = client.get("/metrics").await.text;
    assert!(metrics.contains("\nredlockd_lock_kept_ends_total{reason=\"kept-out\"} 1\n"), "{metrics}");
    assert!(metrics.contains("\nredlockd_lock_kept 0\n"));
    let renewed = metrics
        .lines()
        .find(|l| l.starts_with("redlockd_lock_kept_renewals_total{by=\"granter\",outcome=\"renewed\"}"));
    assert!(renewed.is_some_and(|line| !line.ends_with(" 0")), "{renewed:?}");
}

#[tokio::test]
async fn another_instance_keeps_what_a_killed_one_granted() {
    let cluster = Cluster::start(3).await;
    let (mut here, there) = (cluster.service_with(&SHORT_MEMORY).await, cluster.service_with(&SHORT_MEMORY).await);
    let begun = SystemClock.now();
    let lease = here.client().acquired("x", &[("keep", "8s")]).await;
    here.service.kill();
    let took = granted_after(there.client(), "x", begun).await;
    assert!(took >= seconds(7.5) && took < seconds(8.0) + LATE_MAX, "{took:?}: released on time by the other instance");
    there.client().extend("x", &lease.token(), &[]).await.expect_status(410);
    let metrics = there.client().get("/metrics").await.text;
    assert!(metrics.contains("redlockd_lock_kept_ends_total{reason=\"kept-out\"} 1"), "{metrics}");
    assert!(metrics.contains("redlockd_lock_kept_renewals_total{by=\"adopter\",outcome=\"renewed\"} "), "{metrics}");
}

#[tokio::test]
async fn a_kept_lease_outlives_all_instances_for_a_while() {
    let cluster = Cluster::start(3).await;
    // Half of the TTL, less two seconds: 8 s are enough to start again, also on a busy machine.
    let more = ["--set", "max_ttl=20s", "--set", "default_ttl=2s"];
    let mut first = cluster.service_with(&more).await;
    let lease = first.client().acquired("x", &[("keep", "1m")]).await;
    first.service.kill();
    let second = cluster.service_with(&more).await;
    poll::until("it is kept again", || async {
        let shown = second.client().inspect("x").await.json();
        shown["holders"][0]["renewals"].as_u64().is_some_and(|renewals| renewals > 0).then_some(())
    })
    .await;
    // The token is good at any instance.
    second.client().release("x", &lease.token()).await.expect_status(204);
    second.client().acquired("x", &[]).await;
}

#[tokio::test]
async fn a_remainder_on_a_minority_is_not_kept() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service_with(&SHORT_MEMORY).await;
    let until_ms = SystemClock.wall_ms() + 60_000;
    let hash = Token::from_random([7; 24]).hash();
    let record = format!("{}|000000|2000|7|a0123456789abcdef,|{{\"k\":{until_ms}}}", hash.as_str());
    let node = &cluster.servers[0];
    node.ask::<()>(&["SET", "x", &record, "PX", "2600"]).await;
    node.ask::<()>(&["ZADD", "redlockd:kept", "0", "x"]).await;
    poll::until("an instance has looked at it", || async {
        let next: f64 = node.ask(&["ZSCORE", "redlockd:kept", "x"]).await;
        (next > 1.0).then_some(())
    })
    .await;
    poll::until("it is gone with its TTL", || async { (node.ask::<i64>(&["EXISTS", "x"]).await == 0).then_some(()) })
        .await;
    let indexed = || async { node.ask::<Option<f64>>(&["ZSCORE", "redlockd:kept", "x"]).await };
    poll::until("and out of the index", || async { indexed().await.is_none().then_some(()) }).await;
    assert!(over.client().get("/metrics").await.text.contains("\nredlockd_lock_kept 0\n"));
}

#[tokio::test]
async fn its_end_is_moved_by_patch_at_any_instance() {
    let cluster = Cluster::start(3).await;
    let more = [&SHORT_MEMORY[..], &["--set", "max_keep=1m"]].concat();
    let (here, there) = (cluster.service_with(&more).await, cluster.service_with(&more).await);
    let lease = here.client().acquired("x", &[("keep", "2s")]).await;
    let longer = there.client().extend("x", &lease.token(), &[("keep", "30s")]).await.expect_status(200).json();
    assert!(longer["kept_for_ms"].as_u64().is_some_and(|ms| ms > 28_000), "{longer}");
    assert_eq!(
        (&longer["ttl_ms"], lease.json()["ttl_ms"].as_u64()),
        (&json!(2_000), Some(2_000)),
        "its TTL is as before"
    );
    // An edit of other labels carries the end on.
    let edited = here.client().extend("x", &lease.token(), &[("note", "later")]).await.expect_status(200).json();
    assert_eq!(edited["kept_until"], longer["kept_until"]);
    let too_long =
        here.client().extend("x", &lease.token(), &[("keep", "60s")]).await.expect_problem(400, "keep-too-long");
    assert!(too_long.json()["kept_for_ms"].as_u64().is_some_and(|ms| ms < 60_000), "{}", too_long.text);
    // The instance that granted it knows the former end, and must not end it then.
    poll::until("it has been renewed past its first end", || async {
        let shown = here.client().inspect("x").await.json();
        let is_past = lease.json()["kept_until"].as_str() < shown["observed_at"].as_str();
        assert_eq!(shown["holders"][0]["kept_until"], longer["kept_until"], "{shown}");
        (is_past && shown["holders"][0]["renewals"].as_u64() > Some(4)).then_some(())
    })
    .await;
    let begun = SystemClock.now();
    there.client().extend("x", &lease.token(), &[("keep", "3s")]).await.expect_status(200);
    let took = granted_after(here.client(), "x", begun).await;
    assert!(took >= seconds(2.5) && took < seconds(3.0) + LATE_MAX, "{took:?}");
    // One that was not kept begins to be.
    let plain = here.client().acquired("y", &[("ttl", "2s")]).await;
    assert_eq!(plain.json().get("kept_until"), None);
    here.client().extend("y", &plain.token(), &[("keep", "4s")]).await.expect_status(200);
    let begun = SystemClock.now();
    let took = granted_after(there.client(), "y", begun).await;
    assert!(took >= seconds(3.5), "{took:?}");
}

#[tokio::test]
async fn whoever_ends_it_ends_it() {
    let cluster = Cluster::start(3).await;
    let (here, there) = (cluster.service_with(&SHORT_MEMORY).await, cluster.service_with(&SHORT_MEMORY).await);
    let mut leases = Vec::new();
    for how in ["release", "now", "revoke"] {
        let begun = SystemClock.now();
        let lease = here.client().acquired(how, &[("keep", "1m")]).await;
        leases.push(lease.json()["token_id"].clone());
        match how {
            "release" => there.client().release(how, &lease.token()).await.expect_status(204),
            _ => {
                let path = format!("{}?force={how}&reason=over", lock(how));
                send(there.client().request("DELETE", &path)).await.expect_status(if how == "now" { 204 } else { 202 })
            }
        };
        let took = granted_after(there.client(), how, begun).await;
        assert!(took < seconds(5.0) + LATE_MAX, "{how}: {took:?}, at the latest with its TTL");
    }
    // Each instance checks what has run out in the order of the deadlines: after its next one, nothing is to come of the others.
    let mut past = Vec::new();
    for instance in [&here, &there] {
        let marker = instance.client().acquired("marker", &[("ttl", "1s"), ("wait", "9s")]).await.json();
        let events = poll::until("the marker has expired", || async {
            let events = instance.client().get("/events?since=1m").await.json()["events"].as_array().cloned()?;
            let is_its = |event: &Value| event["event"] == "expired" && event["token_id"] == marker["token_id"];
            events.iter().any(is_its).then_some(events)
        });
        past.extend(events.await);
    }
    let ends = [("released", "released"), ("forced", "forced"), ("forced", "revoked")];
    for (lease, end) in leases.iter().zip(ends) {
        let its = past.iter().filter(|event| event["token_id"] == *lease && event["event"] != "acquired");
        let its: BTreeSet<_> = its.map(|event| (event["event"].as_str(), event["reason"].as_str())).collect();
        assert_eq!(its, BTreeSet::from([(Some(end.0), Some(end.1))]), "{past:?}");
    }
    poll::until("the granter knows", || async {
        let metrics = here.client().get("/metrics").await.text;
        let counts =
            |reason: &str| metrics.contains(&format!("redlockd_lock_kept_ends_total{{reason=\"{reason}\"}} 1"));
        (counts("released") && counts("forced") && counts("revoked")).then_some(())
    })
    .await;
}

/// With the longest TTL the granter looks at its lease again when the nodes have forgotten how it ended.
#[tokio::test]
async fn who_granted_a_lease_knows_that_another_instance_ended_it() {
    let cluster = Cluster::start(3).await;
    let (here, there) = (cluster.service().await, cluster.service().await);
    for (how, reason) in [("release", "released"), ("now", "forced")] {
        let lease = here.client().acquired(how, &[("keep", "1h")]).await;
        assert_eq!(lease.json()["ttl_ms"], 300_000);
        // Whoever moves the end renews it as well.
        there.client().extend(how, &lease.token(), &[("keep", "30m")]).await.expect_status(200);
        match how {
            "release" => there.client().release(how, &lease.token()).await.expect_status(204),
            _ => {
                let path = format!("{}?force=now&reason=over", lock(how));
                send(there.client().request("DELETE", &path)).await.expect_status(204)
            }
        };
        poll::until("the granter knows", || async {
            let metrics = here.client().get("/metrics").await.text;
            let line = format!("redlockd_lock_kept_ends_total{{reason=\"{reason}\"}} 1");
            (metrics.contains(&line) && metrics.contains("\nredlockd_lock_kept 0\n")).then_some(())
        })
        .await;
    }
    let events = here.client().get("/events?since=1m").await.text;
    assert!(!events.contains("\"lost\"") && !events.contains("\"expired\""), "{events}");
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_is_lost_and_reported() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service_with(&SHORT_MEMORY).await;
    over.client().acquired("x", &[("keep", "1m"), ("owner", "ann")]).await;
    // All nodes forget it.
    for server in &cluster.servers {
        server.ask::<()>(&["DEL", "x"]).await;
    }
    let lost = poll::until("the loss is reported", || async {
        let past = over.client().get("/events?kind=lost&since=1m").await.json();
        past["events"].as_array().and_then(|events| events.first().cloned())
    })
    .await;
    assert_eq!(
        (&lost["resource"], &lost["reason"], &lost["owner"]),
        (&json!("x"), &json!("lost"), &json!("ann")),
        "{lost}"
    );
    assert!(over.client().get("/metrics").await.text.contains("redlockd_lock_kept_ends_total{reason=\"lost\"} 1"));
    over.client().acquired("x", &[]).await;
}

#[tokio::test]
async fn what_is_not_possible_is_refused_by_name() {
    let service = Service::embedded(&["--set", "max_keep=1h", "--set", "kept_total=1"]).await;
    let client = service.client();
    for (fields, field) in [
        (&[("keep", "999ms")][..], "keep"),
        (&[("keep", "10")], "keep"),
        (&[("keep", "1m"), ("ttl", "4999ms")], "ttl"),
        (&[("keep", "1m"), ("hold", "true")], "keep"),
    ] {
        let refused = client.acquire("x", fields).await.expect_problem(400, "invalid").json();
        assert_eq!(refused["errors"][0]["field"], field, "{refused}");
    }
    let long = client.acquire("x", &[("keep", "61m")]).await.expect_problem(400, "keep-too-long").json();
    assert_eq!(long["kept_for_ms"], 3_600_000, "{long}");
    let lease = client.acquired("x", &[("keep", "1m")]).await;
    let many = client.acquire("y", &[("keep", "1m")]).await.expect_problem(429, "quota-exceeded").json();
    assert_eq!((&many["limit"], &many["scope"]), (&json!(1), &json!("instance")), "{many}");
    let plain = client.acquired("y", &[]).await;
    client.extend("y", &plain.token(), &[("keep", "1m")]).await.expect_problem(429, "quota-exceeded");
    client.extend("x", &lease.token(), &[("keep", "2m")]).await.expect_status(200);
    client.release("x", &lease.token()).await.expect_status(204);
    client.acquired("z", &[("keep", "1m")]).await;
}

#[tokio::test]
async fn a_page_takes_a_lock_and_only_who_took_it_gives_it_back() {
    let access = Access::of(&[("ann", &["acquire:**", "read:**"]), ("bob", &["acquire:**", "read:**"])]);
    let service = access.service(&["--set", "max_keep=8h"]).await;
    let client = service.client();
    let post = |path: &str, name: &'static str, fields: &[(&str, &str)]| {
        as_principal(client.request("POST", path).form(fields), name)
    };
    let page = async |name: &'static str| as_principal(client.request("GET", "/ui/locks/deploy"), name).await.text;
    assert!(page("ann").await.contains("/ui/take/deploy"), "a free lock can be taken");
    for (kept_for, said) in [("", "For how long"), ("4", "For how long"), ("9h", "from 1s to 8h")] {
        let refused = post("/ui/take/deploy", "ann", &[("for", kept_for)]).await.expect_status(400);
        assert!(refused.text.contains(said), "{kept_for}: {}", refused.text);
    }
    let far =
        post("/ui/take/deploy", "ann", &[("until", "2999-01-01T08:00"), ("note", "far")]).await.expect_status(400);
    for said in ["keeps a lock for 8h at most", "max_keep", "value=\"2999-01-01T08:00\"", "value=\"far\""] {
        assert!(far.text.contains(said), "{said}: {}", far.text);
    }
    let in_an_hour =
        jiff::Timestamp::from_millisecond(i64::try_from(SystemClock.wall_ms()).expect("small") + 3_600_000)
            .expect("a time");
    let until = in_an_hour.strftime("%Y-%m-%dT%H:%M").to_string();
    let taken = post("/ui/take/until", "ann", &[("until", &until)]).await;
    assert!(taken.text.contains("Taken."), "{}", taken.text);
    let kept_until = as_principal(client.request("GET", "/locks/until"), "bob").await.json();
    let kept_until = kept_until["holders"][0]["kept_until"].as_str().expect("a time").to_owned();
    let asked_for: jiff::Timestamp = format!("{until}:00Z").parse().expect("a time");
    let is_off_by = kept_until.parse::<jiff::Timestamp>().expect("a time").duration_since(asked_for).abs();
    assert!(is_off_by < jiff::SignedDuration::from_secs(10), "{kept_until}, {until}");
    let taken = post("/ui/take/deploy", "ann", &[("for", "4h"), ("note", "until Monday")]).await;
    assert!(taken.text.contains("Taken.") && taken.text.contains("until Monday"), "{}", taken.text);
    let shown = as_principal(client.request("GET", "/locks/deploy"), "bob").await.json();
    let holder = &shown["holders"][0];
    assert_eq!((&holder["owner"], &holder["note"]), (&json!("ann"), &json!("until Monday")), "{shown}");
    assert!(holder["kept_for_ms"].as_u64().is_some_and(|ms| ms > 14_000_000), "{shown}");
    let again = post("/ui/take/deploy", "bob", &[("for", "1h")]).await.expect_status(423);
    assert!(again.text.contains("Not taken: deploy is held by ann"), "{}", again.text);
    assert!(page("ann").await.contains("action=\"/ui/give-back/deploy\""));
    assert!(!page("bob").await.contains("/ui/give-back/") && !page("bob").await.contains("/ui/take/"));
    let said = "by the service for <bdi>principal ann</bdi>";
    assert!(page("bob").await.contains(said), "for whom: {}", page("bob").await);
    let sure = [("sure", "yes")];
    post("/ui/give-back/deploy", "bob", &sure).await.expect_problem(409, "not-holder");
    post("/ui/give-back/deploy", "ann", &[]).await.expect_problem(400, "invalid");
    let given = post("/ui/give-back/deploy", "ann", &sure).await;
    assert!(given.text.contains("Given back."), "{}", given.text);
    as_principal(client.request("GET", "/locks/deploy"), "bob").await.expect_status(404);
    // What is held by a token alone is not the page's to end.
    as_principal(client.request("POST", "/locks/deploy").form(&[("ttl", "1m")]), "ann").await.expect_status(201);
    post("/ui/give-back/deploy", "ann", &sure).await.expect_problem(409, "not-holder");
}

/// The principal stands in the record: whoever renews its lease counts it in its quota, and goes on when it is gone from the access
/// file.
#[tokio::test]
async fn an_adopted_lease_counts_for_its_principal_and_outlives_its_rights() {
    let ann = ("ann", &["acquire:**", "read:**"][..]);
    let bob = ("bob", &["read:**"][..]);
    let access = Access::of(&[ann, bob]);
    let cluster = Cluster::blank(3).await;
    cluster.declare(&PATIENT);
    let setting = access.setting();
    let settings = [&PATIENT[..], &["--set", &setting, "--set", "leases_per_principal=1"]].concat();
    let (mut here, there) = (cluster.service_with(&settings).await, cluster.service_with(&settings).await);
    let acquire = |client: &Client, name: &str| {
        as_principal(client.request("POST", &lock(name)).form(&[("keep", "3m"), ("ttl", "8s")]), "ann")
    };
    acquire(here.client(), "x").await.expect_status(201);
    here.service.kill();
    let client = there.client();
    let renewals = || async {
        let shown = as_principal(client.request("GET", &lock("x")), "bob").await;
        if shown.status == 200 { shown.json()["holders"][0]["renewals"].as_u64() } else { None }
    };
    let renewed = async || {
        let before = poll::until("it is shown", renewals).await;
        poll::until("it is renewed", || async { (renewals().await > Some(before)).then_some(()) }).await;
    };
    renewed().await;
    // Nodes that are late grant nothing, and say nothing about quotas.
    let counted = poll::until("an answer", || async {
        let answer = acquire(client, "y").await;
        (answer.status != 503).then_some(answer)
    });
    counted.await.expect_problem(429, "quota-exceeded");
    access.write(&Access::text(&[bob]));
    poll::until("she has no rights", || async { (acquire(client, "z").await.status == 401).then_some(()) }).await;
    renewed().await;
}

/// Leases and limits for nodes that may be slow, on a busy machine.
const PATIENT: [&str; 10] = [
    "--set",
    "max_ttl=40s",
    "--set",
    "node_timeout=2s",
    "--set",
    "min_ttl=4s",
    "--set",
    "guard=3s",
    "--set",
    "lock_delay=6s",
];
