//! Nodes are added to the list and removed from it while the service runs, on real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::support::client::{Answer, Client, send};
use crate::support::cluster::node_args;
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::{SHORT_MEMORY, SHORT_TIMES, Service};

fn settings(servers: &[&RedisServer]) -> Vec<String> {
    let more = SHORT_TIMES.iter().chain(&SHORT_MEMORY).map(ToString::to_string);
    node_args(servers.iter().map(|server| server.url())).into_iter().chain(more).collect()
}

pub(crate) fn init(args: &[String]) {
    let words: Vec<&str> = std::iter::once("init").chain(args.iter().map(String::as_str)).collect();
    let done = ended(&mut redlockd(&words));
    assert_eq!(done.code, Some(0), "{done:?}");
}

pub(crate) async fn quorum_is(client: &Client, granted: usize, needed: usize, nodes: usize) {
    let wanted = serde_json::json!({ "granted": granted, "needed": needed, "nodes": nodes });
    let what = format!("{granted} of {nodes} nodes vote");
    poll::until(&what, || async { (client.get("/nodes").await.json()["quorum"] == wanted).then_some(()) }).await;
}

pub(crate) async fn change(client: &Client, node: &str, action: &str, url: Option<String>) -> Answer {
    let mut form = vec![("action", action), ("reason", "the test")];
    form.extend(url.as_deref().map(|url| ("url", url)));
    send(client.request("POST", &format!("/nodes/{node}")).form(&form)).await
}

/// Acquires and releases until it is stopped; returns how long nothing was granted at most.
#[expect(clippy::disallowed_methods, reason = "measures how long callers wait, and decides nothing about leases")]
pub(crate) async fn load(client: Client, resource: String, stop: Arc<AtomicBool>) -> Duration {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let answer = client.acquire(&resource, &[("ttl", "2s"), ("wait", "1s")]).await;
        if matches!(answer.status, 200 | 201) {
            longest = longest.max(last.elapsed());
            last = Instant::now();
            client.release(&resource, &answer.token()).await;
        }
    }
    longest.max(last.elapsed())
}

/// Extends a lease until it is stopped: it may not be confirmed for a moment, and must never be lost.
pub(crate) async fn renew(client: Client, token: String, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let answer = client.extend("held", &token, &[]).await;
        assert!(matches!(answer.status, 200 | 503), "{answer:?}");
    }
}

fn all(servers: &[RedisServer]) -> Vec<String> {
    settings(&servers.iter().collect::<Vec<_>>())
}

/// Four servers, of which the last one was added to a list of the others, and the settings with that former list. No instance runs.
async fn four_nodes_of_which_one_was_added() -> (Vec<RedisServer>, Vec<String>) {
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(RedisServer::start().await);
    }
    let former = all(&servers[..3]);
    init(&former);
    let one = Service::start(&former).await;
    quorum_is(one.client(), 3, 2, 3).await;
    change(one.client(), "n4", "add", Some(servers[3].url())).await.expect_status(200);
    quorum_is(one.client(), 4, 3, 4).await;
    (servers, former)
}

/// Most of the nodes that knew of an added one forgot, and so did the instances: what is missing is in nobody's configuration.
#[tokio::test]
async fn an_instance_without_a_node_of_the_list_says_so_and_started_with_it_it_serves() {
    let (mut servers, args) = four_nodes_of_which_one_was_added().await;
    restart_empty(&mut servers[..2]).await;
    let without = Service::start(&args).await;
    let why = poll::until("it says for which node the others wait", || async {
        let nodes = without.client().get("/nodes").await.json();
        let nodes = nodes["nodes"].as_array().expect("a list");
        let itself =
            |node: &serde_json::Value| node["waits_for"].as_array().is_some_and(|all| all.contains(&node["node"]));
        assert!(!nodes.iter().any(itself), "a node waits for itself, since its former process was seen: {nodes:?}");
        let first = nodes.iter().find(|node| node["node"] == "n1" && node["waits_for"] == serde_json::json!(["n4"]))?;
        first["why"].as_str().map(str::to_owned)
    })
    .await;
    assert!(why.contains("start the instances with n4") && !why.contains("nodes forget"), "{why}");
    without.client().acquire("job", &[("ttl", "2s")]).await.expect_status(503);
    change(without.client(), "n4", "forget", None).await.expect_problem(404, "not-found");
    let with = Service::start(&all(&servers)).await;
    for service in [&with, &without] {
        quorum_is(service.client(), 4, 3, 4).await;
    }
    with.client().acquired("job", &[("ttl", "2s")]).await;
    without.client().acquire("job", &[("ttl", "2s")]).await.expect_status(423);
}

/// Seed 7110: most nodes forgot, and so did the instances. The cluster's name goes back to a list that is in no configuration.
#[tokio::test]
async fn one_node_that_knows_a_changed_list_suffices_and_nobody_goes_back_to_the_first_list() {
    let (mut servers, former) = four_nodes_of_which_one_was_added().await;
    servers[..3].iter_mut().for_each(RedisServer::kill);
    let present = Service::start(&all(&servers)).await;
    let detail = poll::until("it says that the others are missing", || async {
        let unready = present.client().get("/health/ready").await.json();
        let detail = unready["detail"].as_str()?.to_owned();
        detail.contains("Node n4 shows the cluster's name").then_some(detail)
    })
    .await;
    assert!(detail.contains("Bring back n1, n2 and n3. 2 of them are enough."), "{detail}");
    assert!(!detail.contains("config show") && detail.contains("its list was changed since"), "{detail}");
    for server in &mut servers[..3] {
        server.restart_empty().await;
    }
    quorum_is(present.client(), 4, 3, 4).await;
    let late = Service::start(&former).await;
    quorum_is(late.client(), 4, 3, 4).await;
    drop(late);
    // Now all forget. An instance that knows the cluster by its first name begins it anew, and another one finds that name.
    restart_empty(&mut servers).await;
    quorum_is(present.client(), 4, 3, 4).await;
    let other = Service::start(&all(&servers)).await;
    quorum_is(other.client(), 4, 3, 4).await;
    drop(other);
    // The reverse: one that knows no such name declares the cluster while the first one stands still.
    kill_process(present.pid(), Signal::STOP).expect("own child");
    restart_empty(&mut servers).await;
    let other = Service::start(&all(&servers)).await;
    quorum_is(other.client(), 4, 3, 4).await;
    kill_process(present.pid(), Signal::CONT).expect("own child");
    // Until it has asked the nodes again, it answers with what it saw before it stood still.
    poll::until("it uses the name under which the cluster was declared anew", || async {
        (present.client().acquire("free", &[("ttl", "2s")]).await.status == 201).then_some(())
    })
    .await;
    quorum_is(present.client(), 4, 3, 4).await;
    let held = other.client().acquired("job", &[("ttl", "2s")]).await;
    present.client().acquire("job", &[("ttl", "2s")]).await.expect_status(423);
    present.client().release("job", &held.token()).await.expect_status(204);
}

/// Seeds 708466 and 771185: a removed node goes on, one that was removed after it does not, and those that are left restart with
/// their data, like all instances.
#[tokio::test]
async fn a_removed_node_does_not_say_which_list_counts_when_the_others_restart() {
    let (mut servers, _) = four_nodes_of_which_one_was_added().await;
    let former = all(&servers);
    let one = Service::start(&former).await;
    quorum_is(one.client(), 4, 3, 4).await;
    change(one.client(), "n3", "remove", None).await.expect_status(200);
    change(one.client(), "n4", "remove", None).await.expect_status(200);
    quorum_is(one.client(), 2, 2, 2).await;
    drop(one);
    servers[3].kill();
    for server in &mut servers[..2] {
        server.ask::<()>(&["SAVE"]).await;
        server.kill();
        server.restart().await;
    }
    let again = Service::start(&former).await;
    let detail = poll::until("it says for whom it waits", || async {
        let unready = again.client().get("/health/ready").await.json();
        let detail = unready["detail"].as_str()?.to_owned();
        detail.contains("Nodes n1 and n2 have been in quarantine").then_some(detail)
    })
    .await;
    assert!(detail.contains("0 of 2 nodes vote") && !detail.contains("n4"), "{detail}");
    quorum_is(again.client(), 2, 2, 2).await;
    again.client().acquired("job", &[("ttl", "2s")]).await;
}

async fn restart_empty(servers: &mut [RedisServer]) {
    for server in servers {
        server.kill();
        server.restart_empty().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_added_and_removed_under_load_and_all_instances_follow() {
    let mut servers = Vec::new();
    for _ in 0..5 {
        servers.push(RedisServer::start().await);
    }
    let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|i| &servers[i]);
    let args = settings(&[a, b, c]);
    init(&args);
    let (one, two) = (Service::start(&args).await, Service::start(&args).await);
    quorum_is(one.client(), 3, 2, 3).await;
    quorum_is(two.client(), 3, 2, 3).await;
    let held = one.client().acquired("held", &[("ttl", "2s")]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers = [("x", &one), ("y", &two)].map(|(resource, service)| {
        tokio::spawn(load(Client::new(service.client().base()), resource.into(), Arc::clone(&stop)))
    });

    let renewal = tokio::spawn(renew(Client::new(two.client().base()), held.token(), Arc::clone(&stop)));

    let field = |answer: Answer| answer.json()["errors"][0]["field"].clone();
    let refused = change(one.client(), "n1", "add", Some(d.url())).await.expect_problem(400, "invalid");
    assert_eq!(field(refused), "node", "the name is taken");
    change(one.client(), "n9", "remove", None).await.expect_problem(404, "not-found");

    change(one.client(), "n4", "add", Some(d.url())).await.expect_status(200);
    quorum_is(two.client(), 4, 3, 4).await;
    change(two.client(), "n5", "add", Some(e.url())).await.expect_status(200);
    quorum_is(one.client(), 5, 3, 5).await;
    two.client().acquire("held", &[("ttl", "2s")]).await.expect_status(423);

    // Yesterday's list, and today's.
    let (yesterday, today) = (Service::start(&args).await, Service::start(&settings(&[a, b, c, d, e])).await);
    for service in [&yesterday, &today] {
        quorum_is(service.client(), 5, 3, 5).await;
        service.client().acquire("held", &[("ttl", "2s")]).await.expect_status(423);
        let free = service.client().acquired("free", &[("ttl", "2s")]).await;
        two.client().acquire("free", &[("ttl", "2s")]).await.expect_status(423);
        service.client().release("free", &free.token()).await.expect_status(204);
    }

    // The first two of the former list leave, one after the other.
    change(yesterday.client(), "n1", "remove", None).await.expect_status(200);
    quorum_is(one.client(), 4, 3, 4).await;
    change(one.client(), "n2", "remove", None).await.expect_status(200);
    for service in [&one, &two, &yesterday, &today] {
        quorum_is(service.client(), 3, 2, 3).await;
        service.client().acquire("held", &[("ttl", "2s")]).await.expect_status(423);
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        let longest = caller.await.expect("no panic");
        assert!(longest < Duration::from_secs(5), "{longest:?}");
    }
    renewal.await.expect("the lease is never lost");
    // The page, the answer and `doctor` with yesterday's list say what there is.
    let seen = one.client().get("/nodes").await.json();
    assert!(seen["view"].as_u64().is_some_and(|view| view > 4) && seen["change"].is_null(), "{seen}");
    assert!(one.client().get("/ui/nodes").await.text.contains("<dt>View</dt>"));
    let words: Vec<&str> = std::iter::once("doctor").chain(args.iter().map(String::as_str)).collect();
    let doctor = ended(&mut redlockd(&words));
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
    for text in ["the nodes' list has n4, n5, not configured here", "n1, n2: not of the nodes' list any more"] {
        assert!(doctor.out.contains(text), "{doctor:?}");
    }
    // Nobody needs those that left; two of the three that are left suffice.
    servers.drain(..2);
    let e = servers.pop().expect("five");
    drop(e);
    quorum_is(one.client(), 2, 2, 3).await;
    one.client().acquired("last", &[("ttl", "2s")]).await;
    one.client().release("held", &held.token()).await.expect_status(204);
    two.client().acquired("held", &[("ttl", "2s")]).await;
}
