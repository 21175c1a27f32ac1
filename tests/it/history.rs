//! What happened: incidents are kept apart from the stream of locks, over restarts and of all instances, and can be asked
//! for by time, kind and name.

use std::sync::Arc;
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::client::{Client, send};
use crate::support::cluster::{Cluster, MUTE, heal, node_args};
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
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

/// An instance at these nodes, in a data directory that a former run may have had.
async fn run(cluster: &Cluster, data: &Arc<TempDir>) -> Service {
    let mut args = node_args(cluster.servers.iter().map(RedisServer::url));
    args.extend(SHORT_TIMES.iter().map(ToString::to_string));
    let service = Service::start_in(Arc::clone(data), &args).await;
    service.until_ready().await;
    service
}

/// The times of which it says that it does not know them, within these.
async fn gaps(client: &Client, query: &str) -> Vec<Value> {
    let answer = client.get(&format!("/events?limit=100&{query}")).await.expect_status(200).json();
    answer["gaps"].as_array().expect("gaps").clone()
}

/// Its own start lies behind it: it receives what others report.
async fn until_it_knows(client: &Client) {
    poll::until("it knows the present", || async { gaps(client, "since=500ms").await.is_empty().then_some(()) }).await;
}

async fn stop(mut service: Service) {
    service.terminate();
    assert_eq!(service.exit_code().await, Some(0));
}

#[tokio::test]
async fn what_happened_while_an_instance_was_away_is_learnt_from_another() {
    let cluster = Cluster::start(3).await;
    let (data, other_data) = (Arc::new(temp_dir::in_memory()), Arc::new(temp_dir::in_memory()));
    let (here, there) = (run(&cluster, &data).await, run(&cluster, &other_data).await);
    until_it_knows(here.client()).await;
    until_it_knows(there.client()).await;
    let left_ms = SystemClock.wall_ms();
    stop(here).await;
    there.client().acquired("x", &[("ttl", "30s"), ("owner", "ann")]).await;
    force(there.client(), "x").await;
    let here = run(&cluster, &data).await;
    let away = gaps(here.client(), "since=1m").await;
    let last = away.last().expect("it says that it was away");
    assert_eq!(last["reason"], "not-running", "{away:?}");
    let forced = poll::until("it knows what happened meanwhile", || async {
        let forced = past(here.client(), "kind=forced").await;
        (!forced.is_empty()).then_some(forced)
    })
    .await;
    let expected = past(there.client(), "kind=forced").await;
    assert_eq!(forced, expected, "as the one that saw it");
    // Nobody knows what was before both.
    poll::until("only that is unknown", || async {
        let left = gaps(here.client(), "since=1m").await;
        let is_before = |gap: &Value| gap["to_ms"].as_u64() < Some(left_ms);
        left.iter().all(is_before).then_some(())
    })
    .await;
    // The file has it, whether another instance is there or not.
    stop(there).await;
    stop(here).await;
    let again = run(&cluster, &data).await;
    assert_eq!(past(again.client(), "kind=forced").await, expected);
}

#[tokio::test]
async fn a_time_that_nobody_knows_is_said_on_every_surface() {
    let cluster = Cluster::start(3).await;
    let data = Arc::new(temp_dir::in_memory());
    let first = run(&cluster, &data).await;
    let own_start = poll::until("it says what it does not know", || async {
        gaps(first.client(), "since=1m").await.pop().filter(|gap| gap["from_ms"].is_null())
    })
    .await;
    assert!(own_start["to_ms"].is_u64(), "nothing is known before the first start: {own_start}");
    let mut first = first;
    first.kill();
    let again = run(&cluster, &data).await;
    let client = again.client();
    until_it_knows(client).await;
    let gap = gaps(client, "since=1m").await.pop().expect("it was away");
    let (from, to) = (gap["from"].as_str().expect("a begin"), gap["to"].as_str().expect("an end"));
    assert_eq!((gap["reason"].as_str(), from < to), (Some("not-running"), true), "{gap}");
    let lease = client.acquired("deploy/prod", &[("ttl", "30s"), ("owner", "ann")]).await;
    client.release("deploy/prod", &lease.token()).await.expect_status(204);
    let page = client.get(&format!("/ui/events?kind=forced&at={}", &to[11..19])).await.expect_status(200).text;
    let said = format!("to {} {} UTC this instance did not run", &to[..10], &to[11..19]);
    assert!(page.contains("Events may be missing") && page.contains(&said), "{said}: {page}");
    for path in ["/ui/timeline?prefix=deploy/", "/ui/locks/deploy/prod", "/ui/timeline?prefix=none"] {
        let page = client.get(path).await.expect_status(200).text;
        assert!(page.contains("not known: ") && page.contains("this instance did not run"), "{path}: {page}");
        let rows = page.matches("<th scope=\"row\">not known</th>").count();
        assert_eq!(rows, usize::from(!path.contains("none")), "in the table: {path}");
    }
    let url = client.base().to_owned();
    let events = ended(&mut redlockd(&["events", "--url", &url, "--since", "1m"]));
    assert!(events.code == Some(0) && events.err.contains("events may be missing: "), "{events:?}");
    assert!(events.err.contains("the instance that answers did not run"), "{events:?}");
}

/// Each instance says of itself whether it sees a quorum: the rows and the marks name it.
#[tokio::test]
async fn a_lost_quorum_names_the_instance_that_lost_it() {
    let cluster = Cluster::start(3).await;
    let (cut_off, other) = (cluster.service().await, cluster.service().await);
    cut_off.client().acquired("a", &[("ttl", "30s")]).await;
    let name = cut_off.client().inspect("a").await.json()["answered_by"].as_str().expect("a name").to_owned();
    cut_off.proxies[..2].iter().for_each(|proxy| proxy.set(MUTE));
    let lost = poll::until("the other instance knows that this one has no quorum", || async {
        past(other.client(), "kind=quorum_lost").await.pop()
    })
    .await;
    assert_eq!(lost["instance"], name.as_str(), "{lost}");
    let page = other.client().get("/ui/events?kind=quorum_lost").await.expect_status(200).text;
    assert!(page.contains(&format!("instance <span class=\"code\">{name}</span>")), "{page}");
    let page = other.client().get("/ui/locks/a").await.expect_status(200).text;
    assert!(page.contains(&format!("no quorum, instance {name}")), "{page}");
    cut_off.proxies.iter().for_each(heal);
}
