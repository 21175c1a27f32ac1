//! Nodes that restart without their memory are filled with what the others know, and vote again within seconds (F4).

use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};

use crate::support::client::{Client, send};
use crate::support::cluster::node_args;
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::{SHORT_MEMORY, SHORT_TIMES, Service};

/// Starts that many servers, declares them a cluster, and starts two instances with the shipped settings.
async fn cluster(nodes: usize) -> (Vec<RedisServer>, Service, Service) {
    // A machine that runs other tests beside this one answers late.
    cluster_with(nodes, &["--set", "node_timeout=200ms", "--set", "min_ttl=400ms"]).await
}

async fn cluster_with(nodes: usize, more: &[&str]) -> (Vec<RedisServer>, Service, Service) {
    let mut servers = Vec::new();
    for _ in 0..nodes {
        servers.push(RedisServer::start().await);
    }
    let more = more.iter().map(ToString::to_string);
    let args: Vec<String> = node_args(servers.iter().map(RedisServer::url)).into_iter().chain(more).collect();
    let words: Vec<&str> = std::iter::once("init").chain(args.iter().map(String::as_str)).collect();
    let done = ended(&mut redlockd(&words));
    assert_eq!(done.code, Some(0), "{done:?}");
    let (one, two) = (Service::start(&args).await, Service::start(&args).await);
    for service in [&one, &two] {
        poll::until("all nodes vote", || async { votes(service.client(), nodes).await.then_some(()) }).await;
    }
    (servers, one, two)
}

async fn votes(client: &Client, nodes: usize) -> bool {
    client.get("/nodes").await.json()["quorum"]["granted"] == nodes
}

/// Each of five nodes forgets everything in turn. A lease that nobody renews, and one that is renewed all the time, keep
/// everybody else out; nothing is refused that is free; fences rise.
#[tokio::test]
async fn f4_five_nodes_are_restarted_in_turn_and_no_lease_is_lost() {
    let (mut servers, one, two) = cluster(5).await;
    let left_alone = one.client().acquired("left-alone", &[("ttl", "4m")]).await;
    let renewed = two.client().acquired("renewed", &[("ttl", "10s")]).await;
    let mut fence = 0;
    for server in &mut servers {
        server.kill();
        server.restart_empty().await;
        // Not before an instance has noticed.
        poll::until("the node has lost its vote", || async { (!votes(one.client(), 5).await).then_some(()) }).await;
        // Its quarantine is 305 s: longer than is waited here.
        poll::until("all nodes vote for both", || async {
            one.client().extend("renewed", &renewed.token(), &[]).await.expect_status(200);
            (votes(one.client(), 5).await && votes(two.client(), 5).await).then_some(())
        })
        .await;
        for service in [&one, &two] {
            service.client().acquire("left-alone", &[("ttl", "1s")]).await.expect_status(423);
            service.client().acquire("renewed", &[("ttl", "1s")]).await.expect_status(423);
            let free = service.client().acquired("free", &[("ttl", "1s")]).await;
            assert!(free.fence() > fence, "{} after {fence}", free.fence());
            fence = free.fence();
            service.client().release("free", &free.token()).await.expect_status(204);
        }
    }
    two.client().release("left-alone", &left_alone.token()).await.expect_status(204);
    one.client().acquired("left-alone", &[("ttl", "1s")]).await;
}

/// Of three nodes one has ended and another forgot: they wait, and say for whom, until an operator says that it has ended.
#[tokio::test]
async fn f4_a_node_that_has_ended_is_waited_for_until_an_operator_says_so() {
    let (mut servers, one, _two) = cluster_with(3, &[&SHORT_TIMES[..], &SHORT_MEMORY[..]].concat()).await;
    let (gone, fellow) = ("n3", "n1");
    let node = |name: &'static str| {
        let client = one.client();
        async move {
            let nodes = client.get("/nodes").await.json();
            let nodes = nodes["nodes"].as_array().expect("a list");
            nodes.iter().find(|node| node["node"] == name).expect("it is listed").clone()
        }
    };
    let forget = |name: &str| {
        let request = one.client().request("POST", &format!("/nodes/{name}"));
        send(request.form(&[("action", "forget"), ("reason", "the test ended it")]))
    };
    forget("n9").await.expect_problem(404, "not-found");
    let refused = forget(fellow).await.expect_problem(400, "invalid").json();
    assert_eq!(refused["errors"][0]["field"], "node", "{refused}");
    let mut third = servers.remove(2);
    third.kill();
    servers[0].kill();
    servers[0].restart_empty().await;
    let waiting = poll::until("it has served its quarantine", || async {
        let node = node(fellow).await;
        (node["state"] == "awaiting-seed").then_some(node)
    })
    .await;
    assert_eq!(waiting["waits_for"], serde_json::json!([gone]), "{waiting}");
    assert!(waiting["why"].as_str().is_some_and(|why| why.contains("nodes forget")), "{waiting}");
    one.client().acquire("job", &[("ttl", "2s")]).await.expect_status(503);
    poll::until("the log has it", || async {
        one.output().iter().any(|line| line.contains("waits_for=\"n3\"")).then_some(())
    })
    .await;
    // An instance that reached it within the last seconds left a note of it.
    poll::until("the word is taken", || async { (forget(gone).await.status == 200).then_some(()) }).await;
    assert!(node(gone).await["why"].as_str().is_some_and(|why| why.contains("an operator said")));
    poll::until("two nodes vote", || async { votes(one.client(), 2).await.then_some(()) }).await;
    one.client().acquired("job", &[("ttl", "2s")]).await;
    // A blank server under its name is filled.
    third.restart_empty().await;
    poll::until("all nodes vote", || async { votes(one.client(), 3).await.then_some(()) }).await;
    assert!(node(gone).await["why"].is_null());
}

/// How long a node of three that was killed and is empty has no vote, for both instances, counted from when it answers again.
async fn without_a_vote(leases: usize) -> Duration {
    let (mut servers, one, two) = cluster(3).await;
    for server in &servers {
        server.hold("held/", leases).await;
    }
    servers[0].kill();
    servers[0].restart_empty().await;
    let (begun, run) = (SystemClock.now(), run_id(&servers[0]).await);
    for service in [&one, &two] {
        poll::until("the new process votes", || async {
            let node = service.client().get("/nodes").await.json()["nodes"][0].clone();
            (node["votes"] == true && node["run_id"] == run.as_str()).then_some(())
        })
        .await;
    }
    let took = SystemClock.now().since(begun);
    assert_eq!(servers[0].ask::<usize>(&["ZCARD", "redlockd:leases"]).await, leases);
    took
}

async fn run_id(server: &RedisServer) -> String {
    let info: String = server.ask(&["INFO", "server"]).await;
    info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("a run id").trim().to_owned()
}

#[tokio::test]
async fn a_node_that_forgot_gets_every_lease_of_a_thousand() {
    without_a_vote(1_000).await;
}

/// The figures of docs/views.md.
#[tokio::test]
#[ignore = "a measurement, by command"]
#[expect(clippy::print_stdout, reason = "figures are its output")]
async fn measure_how_long_a_node_that_forgot_has_no_vote() {
    for leases in [1_000, 10_000, 100_000] {
        let mut took = Vec::new();
        for _ in 0..3 {
            took.push(without_a_vote(leases).await);
        }
        took.sort_unstable();
        println!("{leases} leases: {took:.2?}");
    }
}
