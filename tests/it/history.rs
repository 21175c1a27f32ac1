//! What happened: incidents are kept apart from the stream of locks, over restarts and of all instances, and can be asked
//! for by time, kind and name.

use std::sync::Arc;
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::support::client::{Client, send};
use crate::support::cluster::{Cluster, MUTE, heal};
use crate::support::poll;
use crate::support::service::{SHORT_TIMES, Service};
use crate::support::temp_dir;

async fn past(client: &Client, query: &str) -> Vec<Value> {
    let answer = client.get(&format!("/events?{query}")).await.expect_status(200).json();
    answer["events"].as_array().expect("events").clone()
}

async fn force(client: &Client, resource: &str) {
    let path = format!("/locks/{resource}?force=now&reason=host%20is%20gone");
    send(client.request("DELETE", &path)).await.expect_status(204);
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().expect("a kind")).collect()
}

#[tokio::test]
async fn incidents_survive_a_thousand_locks_and_a_restart() {
    let data = Arc::new(temp_dir::in_memory());
    let mut service = Service::start_in(Arc::clone(&data), &SHORT_TIMES).await;
    service.until_ready().await;
    let client = service.client();
    client.acquired("deploy/prod", &[("owner", "ann"), ("ttl", "30s")]).await;
    force(client, "deploy/prod").await;
    for _ in 0..600 {
        let lease = client.acquired("busy", &[("ttl", "30s"), ("owner", "bob")]).await;
        client.release("busy", &lease.token()).await.expect_status(204);
    }
    let forced = past(client, "since=1h&prefix=deploy/&kind=forced").await;
    let event = &forced[0];
    assert_eq!((forced.len(), &event["owner"], &event["reason"]), (1, &json!("ann"), &json!("now")), "{forced:?}");
    assert_eq!((&event["detail"], event["after_ms"].is_u64()), (&json!("host is gone"), true), "{event}");
    let released = past(client, "since=1h&kind=released&limit=1").await;
    assert_eq!((&released[0]["owner"], released[0]["after_ms"].is_u64()), (&json!("bob"), true), "{released:?}");
    service.terminate();
    assert_eq!(service.exit_code().await, Some(0));
    let again = Service::start_in(data, &SHORT_TIMES).await;
    let expected = ["started", "stopping", "forced", "started"];
    poll::until("the past and the start are known", || async {
        let since = past(again.client(), "since=1h").await;
        let lasting: Vec<&str> = kinds(&since).into_iter().filter(|kind| expected.contains(kind)).collect();
        (lasting == expected).then_some(())
    })
    .await;
    let page = again.client().get("/ui/events?kind=forced").await.expect_status(200).text;
    assert!(
        page.contains("released by an operator") && page.contains("host is gone") && page.contains("ann"),
        "{page}"
    );
}

#[tokio::test]
async fn incidents_of_all_instances_are_known_without_a_reader() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    one.client().acquired("x", &[("ttl", "30s")]).await;
    force(one.client(), "x").await;
    let seen = poll::until("the other instance knows it", || async {
        let seen = past(two.client(), "kind=forced").await;
        (!seen.is_empty()).then_some(seen)
    })
    .await;
    assert_eq!((seen.len(), &seen[0]["resource"]), (1, &json!("x")), "once, though three nodes pass it on: {seen:?}");
    assert_eq!(past(one.client(), "kind=forced").await.len(), 1, "nor twice where it happened");
}

#[tokio::test]
async fn an_outage_has_its_length_and_what_it_cost() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();
    over.proxies[..2].iter().for_each(|proxy| proxy.set(MUTE));
    poll::until("no quorum", || async { (client.get("/health/ready").await.status == 503).then_some(()) }).await;
    client.acquire("x", &[]).await.expect_status(503);
    // On a busy machine the service may have begun without a quorum, so which nodes it names is tested elsewhere.
    let lost = poll::until("the loss is an event", || async {
        past(client, "kind=quorum_lost").await.into_iter().find(|lost| lost["detail"].is_string())
    })
    .await;
    over.proxies.iter().for_each(heal);
    let has_length_and_cost = |back: &Value| back["after_ms"].as_u64() > Some(0) && back["refused"].as_u64() >= Some(1);
    poll::until("it is back", || async {
        past(client, "kind=quorum_back").await.into_iter().find(has_length_and_cost)
    })
    .await;
    let nodes = past(client, "since=5m&prefix=n1").await;
    assert!(kinds(&nodes).contains(&"node_down"), "{nodes:?}");
    assert_eq!(past(client, "to=1h").await, Vec::<Value>::new(), "nothing an hour ago");
    let stamp = lost["at"].as_str().expect("a time");
    assert!(!past(client, &format!("at={}&kind=quorum_lost", &stamp[11..16])).await.is_empty(), "around {stamp}");
}

#[tokio::test]
async fn wrong_times_and_kinds_are_named() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    for (query, field) in [("at=noon", "at"), ("since=x", "since"), ("kind=x", "kind"), ("limit=0", "limit")] {
        let problem = client.get(&format!("/events?{query}")).await.expect_problem(400, "invalid").json();
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
    }
    client.get("/ui/events?at=noon").await.expect_status(400);
}

#[tokio::test]
async fn a_deadlock_is_shown_by_every_instance_while_it_lasts() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    let client = one.client();
    client.acquired("x", &[("ttl", "1m"), ("owner", "ann")]).await;
    let of_bob = client.acquired("y", &[("ttl", "1m"), ("owner", "bob")]).await.token();
    let wait = |resource: &'static str, owner: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.acquire(resource, &[("wait", "1m"), ("owner", owner)]).await })
    };
    let ann = wait("y", "ann");
    poll::until("ann waits", || async { (client.waiting("y").await == 1).then_some(()) }).await;
    let bob = wait("x", "bob");
    let shows = async |is_shown: bool| {
        for over in [&one, &two] {
            poll::until("the page of each instance", || async {
                let [page, other] = ["/ui/waiters", "/ui/nodes"].map(|path| over.client().get(path));
                let [page, other] = [page.await.text, other.await.text];
                let is_said = page.contains("<strong>Deadlock.</strong>");
                let [said, is_healthy] = ["deadlock</span>", "healthy</span>"].map(|badge| other.contains(badge));
                (is_said == is_shown && said == is_shown && is_healthy != is_shown).then_some(())
            })
            .await;
        }
    };
    shows(true).await;
    client.release("y", &of_bob).await.expect_status(204);
    ann.await.expect("no panic").expect_status(201);
    shows(false).await;
    bob.abort();
}

async fn a_while() {
    let end = SystemClock.now().plus(Duration::from_millis(300));
    poll::until_true("a while has passed", || SystemClock.now() >= end).await;
}

/// As behind a balancer: another instance than the one that granted extends and releases.
#[tokio::test]
async fn a_release_at_another_instance_says_whose_the_lease_was_and_for_how_long() {
    let cluster = Cluster::start(3).await;
    let [one, two, three] = [cluster.service().await, cluster.service().await, cluster.service().await];
    let lease = one.client().acquired("x", &[("ttl", "30s"), ("owner", "ann")]).await;
    a_while().await;
    two.client().extend("x", &lease.token(), &[]).await.expect_status(200);
    two.client().release("x", &lease.token()).await.expect_status(204);
    let lease = one.client().acquired("x", &[("ttl", "30s"), ("owner", "bob")]).await;
    a_while().await;
    three.client().release("x", &lease.token()).await.expect_status(204);
    for (over, owner) in [(&two, "ann"), (&three, "bob")] {
        let released = past(over.client(), "kind=released").await;
        let held = released[0]["after_ms"].as_u64();
        assert!(released[0]["owner"] == owner && held >= Some(250), "{owner}: {released:?}");
    }
}

#[tokio::test]
async fn the_last_hour_is_of_all_instances() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    let lease = one.client().acquired("hot/name", &[("ttl", "30s"), ("owner", "ann")]).await;
    for _ in 0..3 {
        one.client().acquire("hot/name", &[]).await.expect_status(423);
    }
    one.client().release("hot/name", &lease.token()).await.expect_status(204);
    poll::until("the other instance shows who met contention, and who held it", || async {
        let page = two.client().get("/ui/").await.text;
        let section = page.split_once("id=\"hour\"")?.1.split_once("</section>")?.0.to_owned();
        let is_there = ["hot/name", "ann", "Of 2 instances"].iter().all(|part| section.contains(part));
        is_there.then_some(())
    })
    .await;
}

/// As behind a balancer: what the page of one instance shows must not be free time because the lease was another one's.
#[tokio::test]
async fn a_timeline_has_the_leases_and_waits_of_all_instances_and_is_not_displaced() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service().await, cluster.service().await);
    let lease = one.client().acquired("deploy/prod", &[("ttl", "30s"), ("owner", "ann")]).await;
    let waiting = one.client().clone();
    let wait = tokio::spawn(async move {
        waiting.acquired("deploy/prod", &[("ttl", "30s"), ("owner", "bob"), ("wait", "20s")]).await
    });
    poll::until("bob waits", || async { (one.client().waiting("deploy/prod").await == 1).then_some(()) }).await;
    a_while().await;
    one.client().release("deploy/prod", &lease.token()).await.expect_status(204);
    let second = wait.await.expect("no panic").token();
    one.client().release("deploy/prod", &second).await.expect_status(204);
    for _ in 0..1_100 {
        let lease = two.client().acquired("busy", &[("ttl", "30s"), ("owner", "eve")]).await;
        two.client().release("busy", &lease.token()).await.expect_status(204);
    }
    for over in [&one, &two] {
        for path in ["/ui/timeline?prefix=deploy/", "/ui/locks/deploy/prod"] {
            poll::until("both leases and the wait", || async {
                let page = over.client().get(path).await.text;
                let rows = page.split_once("<details>")?.1.split_once("</details>")?.0.to_owned();
                let ends = ["released", "then granted"].map(|end| rows.matches(&format!(">{end}<")).count());
                (ends == [2, 1] && rows.contains("ann") && rows.contains("bob")).then_some(())
            })
            .await;
        }
    }
    poll::until("the other's busy name, as few bars", || async {
        let page = one.client().get("/ui/timeline?prefix=busy").await.text;
        page.contains(" leases with ").then_some(())
    })
    .await;
}
