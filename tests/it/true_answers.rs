//! Answers that operators act on say what is so: the time of the grant, leases that nobody can confirm, deadlines that have
//! passed, the list after a change, and how many leases the cluster has.

use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::support::client::Answer;
use crate::support::cluster::{Cluster, slow_to_answer};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::Service;

fn ms(stamp: &Value) -> i64 {
    let stamp: jiff::Timestamp = stamp.as_str().expect("a time").parse().expect("RFC 3339");
    stamp.as_millisecond()
}

#[tokio::test]
async fn acquired_at_is_the_time_of_the_grant_and_not_of_the_request() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let first = client.acquired("x", &[("ttl", "30s")]).await;
    let waiter = tokio::spawn({
        let client = client.clone();
        async move { client.acquire("x", &[("wait", "1m"), ("ttl", "30s"), ("owner", "second")]).await }
    });
    poll::until("it waits", || async { (client.waiting("x").await == 1).then_some(()) }).await;
    let released_ms = i64::try_from(SystemClock.wall_ms()).expect("in range");
    client.release("x", &first.token()).await.expect_status(204);
    let granted = waiter.await.expect("no panic").expect_status(201).json();
    assert!(ms(&granted["acquired_at"]) >= released_ms, "{granted}, released at {released_ms}");
    let shown = client.inspect("x").await.expect_status(200).json();
    assert_eq!(shown["holders"][0]["acquired_at"], granted["acquired_at"], "stored as it was answered");
}

#[tokio::test]
async fn a_list_shows_what_its_reader_has_just_done() {
    // A list is read from the nodes every 2 s.
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let listed = async || client.get("/locks").await.expect_status(200).json()["items"].clone();
    assert_eq!(listed().await, json!([]));
    let lease = client.acquired("x", &[("ttl", "30s"), ("owner", "me"), ("note", "why")]).await;
    let after = listed().await;
    assert_eq!((&after[0]["resource"], &after[0]["state"]), (&json!("x"), &json!("held")), "{after}");
    assert_eq!((&after[0]["holders"][0]["owner"], &after[0]["holders"][0]["note"]), (&json!("me"), &json!("why")));
    let left = after[0]["holders"][0]["valid_for_ms"].as_u64().expect("a number");
    assert!((25_000..=30_000).contains(&left), "{after}");
    client.extend("x", &lease.token(), &[("ttl", "1m")]).await.expect_status(200);
    assert!(listed().await[0]["holders"][0]["valid_for_ms"].as_u64() > Some(left), "it was extended");
    let page = client.get("/ui/").await.expect_status(200).text;
    assert!(page.contains("data-key=\"x\""), "{page}");
    client.release("x", &lease.token()).await.expect_status(204);
    assert_eq!(listed().await, json!([]));
    assert!(!client.get("/ui/").await.text.contains("data-key=\"x\""), "it is no row of the list");
}

#[tokio::test]
async fn a_lease_that_no_quorum_confirms_is_unknown_and_promises_nothing() {
    let mut cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    let lease = client.acquired("x", &[("ttl", "8s"), ("owner", "ann")]).await;
    let token = lease.token();
    // Two of three lose their memory, and are in quarantine for five minutes.
    for server in &mut cluster.servers[..2] {
        server.kill();
        server.restart_empty().await;
    }
    let shown = poll::until("both are in quarantine", || async {
        let shown = client.inspect("x").await;
        (shown.status == 200 && shown.json()["quorum"]["granted"] == 1).then(|| shown.json())
    })
    .await;
    assert_eq!((&shown["state"], &shown["holders"][0]["valid_for_ms"]), (&json!("unknown"), &json!(0)), "{shown}");
    assert_eq!(shown["holders"][0]["owner"], "ann");
    let early = client.extend("x", &token, &[]).await.expect_problem(503, "quorum-unavailable").json();
    assert!(early["detail"].as_str().is_some_and(|d| d.contains("old deadline is valid for")), "{early}");
    // Each extend keeps the lease on the third node, which is no quorum.
    let late = poll::until("the deadline has passed", || async {
        let answer = client.extend("x", &token, &[]).await.expect_problem(503, "quorum-unavailable").json();
        (answer["valid_for_ms"] == 0).then_some(answer)
    })
    .await;
    assert!(late["detail"].as_str().is_some_and(|d| d.contains("deadline has passed")), "{late}");
    let holder = poll::until("the page shows it", || async {
        client.extend("x", &token, &[]).await.expect_status(503);
        let page = client.get("/ui/locks/x").await.text;
        let holder = page.split("id=\"holder\"").nth(1).and_then(|rest| rest.split("</section>").next());
        holder.filter(|holder| holder.contains("ann")).map(str::to_owned)
    })
    .await;
    assert!(holder.contains("badge bad") && holder.contains("unknown") && holder.contains("not known"), "{holder}");
    assert!(!holder.contains("badge good") && !holder.contains("data-left"), "{holder}");
    let list = poll::until("the list is read again", || async {
        client.extend("x", &token, &[]).await.expect_status(503);
        let list = client.get("/locks").await.expect_status(200).json();
        (list["items"][0]["state"] == "unknown").then_some(list)
    })
    .await;
    assert_eq!((&list["complete"], &list["items"][0]["holders"][0]["valid_for_ms"]), (&json!(false), &json!(0)));
    let metrics = client.get("/metrics").await.text;
    assert!(metrics.contains("\nredlockd_cluster_locks_held NaN\n"), "{metrics}");
    let home = client.get("/ui/").await.text;
    assert!(home.contains("id=\"figure-held\" data-live>unknown<"), "{home}");
    let filtered = client.get("/ui/?prefix=nothing").await.text;
    assert!(
        filtered.contains("Which locks are held is not known") && !filtered.contains("No lock matches"),
        "{filtered}"
    );
    // Two nodes may have forgotten that somebody has it.
    let free = client.inspect("y").await.expect_problem(503, "quorum-unavailable").json();
    let nodes = free["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.iter().filter(|node| node["outcome"] == "quarantined").count(), 2, "{free}");
}

/// It answers every probe, and lacks nothing.
#[tokio::test]
async fn a_node_that_is_not_asked_before_a_quorum_answers_is_not_said_to_be_ill() {
    let mut cluster = Cluster::start(3).await;
    cluster.servers[1..].iter_mut().for_each(RedisServer::kill);
    let over = cluster.service_at_once(&[]).await;
    let client = over.client();
    let first = async || client.get("/nodes").await.json()["nodes"][0].clone();
    let node =
        poll::until("the first node answers", || async { Some(first().await).filter(|n| n["state"] == "not-asked") });
    let node = node.await;
    assert_eq!(node["votes"], false, "{node}");
    let why = node["why"].as_str().expect("a reason");
    assert!(why.contains("once a quorum of the nodes answers"), "{node}");
    let unready = client.get("/health/ready").await.expect_problem(503, "quorum-unavailable").json();
    let said = unready["detail"].as_str().expect("a sentence");
    for part in ["answers, and is asked for votes once a quorum", "One of them is enough."] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // A busy machine may answer too late.
    let is_not_asked = |answer: Answer| {
        let refused = answer.expect_problem(503, "quorum-unavailable").json();
        (refused["nodes"][0]["outcome"] == "not-asked").then_some(refused)
    };
    let refused = poll::until("it is said", || async { is_not_asked(client.acquire("x", &[]).await) }).await;
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains(why)), "{refused}");
    poll::until("a reader gets the same", || async { is_not_asked(client.inspect("x").await) }).await;
    assert!(client.get("/ui/nodes").await.expect_status(200).text.contains("not asked yet"));
    cluster.servers[1].restart_empty().await;
    poll::until("it is asked", || async { Some(first().await).filter(|n| n["votes"] == true && n["state"] == "up") })
        .await;
}

#[tokio::test]
async fn the_leases_of_the_cluster_are_counted_once_whoever_releases_them() {
    let cluster = Cluster::start(3).await;
    let fresh = ["--set", "list_refresh=100ms"];
    let (one, two) = (cluster.service_with(&fresh).await, cluster.service_with(&fresh).await);
    let tokens: Vec<String> = {
        let mut tokens = Vec::new();
        for i in 0..3 {
            tokens.push(one.client().acquired(&format!("x/{i}"), &[("ttl", "1m")]).await.token());
        }
        tokens
    };
    two.client().release("x/0", &tokens[0]).await.expect_status(204);
    for client in [one.client(), two.client()] {
        poll::until("two leases are counted", || async {
            let text = client.get("/metrics").await.text;
            text.contains("\nredlockd_cluster_locks_held 2\n").then_some(())
        })
        .await;
    }
}

/// S4: a node that answers later than rounds wait has no vote on any surface, and the margin is without it.
#[tokio::test]
async fn a_node_that_is_too_slow_for_rounds_counts_as_without_a_vote() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    over.proxies[2].set(slow_to_answer(Duration::from_millis(300)));
    let nodes = poll::until("it is slow", || async {
        let nodes = client.get("/nodes").await.json();
        (nodes["nodes"][2]["state"] == "slow").then_some(nodes)
    })
    .await;
    assert_eq!((&nodes["nodes"][2]["votes"], &nodes["quorum"]["granted"]), (&json!(false), &json!(2)), "{nodes}");
    let metrics = client.get("/metrics").await.text;
    for line in ["redlockd_quorum_margin 0", "redlockd_node_votes{node=\"n3\"} 0", "redlockd_node_up{node=\"n3\"} 1"] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
    let home = client.get("/ui/").await.text;
    assert!(home.contains("Node n3 has answered too late for most rounds since"), "{home}");
    poll::until_true("the log has it", || {
        let parts = ["node=n3 state=\"slow\"", " late_percent=", " late_of=", " late_in_s="];
        over.service
            .output()
            .iter()
            .any(|line| parts.iter().all(|part| line.contains(part)) && !line.contains("_percent=0"))
    })
    .await;
}
