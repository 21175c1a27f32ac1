//! One name is one server: F1 (a name that leads to two servers) and F2 (a failover to a replica and back) on real servers.

use std::time::Duration;

use crate::support::client::{Client, send};
use crate::support::cluster::node_args;
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};
use crate::support::service::{SHORT_MEMORY, SHORT_TIMES, Service};

/// How long a server that may not vote is watched after its quarantine: several probes.
const WATCHED: Duration = Duration::from_secs(3);

fn settings(servers: &[&RedisServer]) -> Vec<String> {
    let more = SHORT_TIMES.iter().chain(&SHORT_MEMORY).map(ToString::to_string);
    node_args(servers.iter().map(|server| server.url())).into_iter().chain(more).collect()
}

fn init(args: &[String]) {
    let words: Vec<&str> = std::iter::once("init").chain(args.iter().map(String::as_str)).collect();
    let done = ended(&mut redlockd(&words));
    assert_eq!(done.code, Some(0), "{done:?}");
}

async fn node(client: &Client, name: &str) -> serde_json::Value {
    let answer = client.get("/nodes").await.json();
    let nodes = answer["nodes"].as_array().expect("a list");
    nodes.iter().find(|node| node["node"] == name).expect("it is listed").clone()
}

async fn all_vote(client: &Client) {
    poll::until("all nodes vote", || async {
        (client.get("/nodes").await.json()["quorum"]["granted"] == 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn f1_a_second_server_under_a_name_gets_no_vote_while_the_first_is_reached() {
    let [old, b, c] = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let first_args = settings(&[&old, &b, &c]);
    init(&first_args);
    let mut first = Service::start(&first_args).await;
    all_vote(first.client()).await;
    // The name n1 moves to an empty server, and the next instance is started with it.
    let new = RedisServer::start().await;
    let second = Service::start(&settings(&[&new, &b, &c])).await;
    let watched = poll::until("its quarantine is over for a while", || async {
        let node = node(second.client(), "n1").await;
        let waits =
            node["state"] == "awaiting-seed" && node["state_for_ms"].as_u64() >= Some(WATCHED.as_millis() as u64);
        (waits || node["votes"] == true).then_some(node)
    })
    .await;
    assert_eq!(watched["votes"], false, "{watched}");
    assert!(watched["why"].as_str().is_some_and(|why| why.contains("two servers")), "{watched}");
    poll::until("the log has it, with the votes and what to do", || async {
        let has = |line: &String| {
            [
                "two servers under one name",
                "voting=2",
                "the next failure is an outage",
                "advice=\"Turn off the wrong server of n1",
            ]
            .iter()
            .all(|part| line.contains(part))
        };
        second.output().iter().any(has).then_some(())
    })
    .await;
    // Each holder has a majority of the three servers that vote.
    let held = first.client().acquired("job", &[("ttl", "2s")]).await;
    second.client().acquire("job", &[("ttl", "2s")]).await.expect_status(423);
    first.client().release("job", &held.token()).await.expect_status(204);
    // The first instance, and its connections to the old server, are gone: now the new one is the node.
    first.kill();
    all_vote(second.client()).await;
    // The view names the new one: an instance that still reaches the old one gets two votes of three, and not the old one's.
    let third = Service::start(&first_args).await;
    let displaced = poll::until("the old server is not named", || async {
        let node = node(third.client(), "n1").await;
        node["why"].as_str().is_some_and(|why| why.contains("two servers")).then_some(node)
    })
    .await;
    assert_eq!(displaced["votes"], false, "{displaced}");
    let held = second.client().acquired("job", &[("ttl", "2s")]).await;
    second.client().extend("job", &held.token(), &[]).await.expect_status(200);
    third.client().acquire("job", &[("ttl", "2s")]).await.expect_status(423);
}

#[tokio::test]
async fn f2_a_server_that_was_a_replica_meanwhile_loses_its_vote() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(RedisServer::start().await);
    }
    let replica = RedisServer::start_with(Options::default()).await;
    let mut args = settings(&servers.iter().collect::<Vec<_>>());
    args.extend(["--set", "allow_replicas=true"].map(ToString::to_string));
    init(&args);
    let service = Service::start(&args).await;
    all_vote(service.client()).await;
    let run = servers[0].ask::<String>(&["INFO", "server"]).await;
    // A replica follows, misses what comes later, and is promoted; the former master follows it, and is promoted again.
    follow(&replica, &servers[0]).await;
    replica.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    service.client().acquired("job", &[("ttl", "2s")]).await;
    follow(&servers[0], &replica).await;
    assert_eq!(servers[0].ask::<u64>(&["EXISTS", "job"]).await, 0, "the lease is lost there");
    servers[0].ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    let id = |info: &str| info.lines().find(|line| line.starts_with("run_id:")).map(str::to_owned);
    assert_eq!(id(&run), id(&servers[0].ask::<String>(&["INFO", "server"]).await), "it is the same process");
    let seen = poll::until("the failover is noticed", || async {
        let node = node(service.client(), "n1").await;
        (node["state"] == "quarantined").then_some(node)
    })
    .await;
    assert!(seen["why"].as_str().is_some_and(|why| why.contains("replica")), "{seen}");
    all_vote(service.client()).await;
}

/// The name gets another server while the service runs. Leases stay, every instance follows, also one with the former address.
#[tokio::test]
async fn a_node_is_replaced_by_another_server_and_all_instances_follow() {
    let [old, b, c] = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let new = RedisServer::start().await;
    let args = settings(&[&old, &b, &c]);
    init(&args);
    let (one, two) = (Service::start(&args).await, Service::start(&args).await);
    all_vote(one.client()).await;
    all_vote(two.client()).await;
    let held = one.client().acquired("job", &[("ttl", "2s")]).await;
    let replace = |url: String| {
        let request = one.client().request("POST", "/nodes/n1");
        send(request.form(&[("action", "replace"), ("url", &url), ("reason", "a new machine")]))
    };
    let field = |answer: crate::support::client::Answer| answer.json()["errors"][0]["field"].clone();
    assert_eq!(field(replace("redis://u:p@h".into()).await.expect_problem(400, "invalid")), "url");
    assert_eq!(field(replace(old.url()).await.expect_problem(400, "invalid")), "url", "it is that server");
    all_vote(one.client()).await;
    let answer = replace(new.url()).await.expect_status(200).json();
    assert!(!answer.to_string().contains(&new.port().to_string()), "no address is shown: {answer}");
    one.client().extend("job", &held.token(), &[]).await.expect_status(200);
    let run = new.ask::<String>(&["INFO", "server"]).await;
    let run = run.lines().find_map(|line| line.strip_prefix("run_id:")).expect("a run id").to_owned();
    // The former server lives: whoever still reached it would get its vote in an older view.
    let late = Service::start(&args).await;
    for service in [&one, &two, &late] {
        poll::until("the instance follows", || async {
            let node = node(service.client(), "n1").await;
            (node["votes"] == true && node["run_id"] == run.as_str()).then_some(())
        })
        .await;
        all_vote(service.client()).await;
        service.client().acquire("job", &[("ttl", "2s")]).await.expect_status(423);
        one.client().extend("job", &held.token(), &[]).await.expect_status(200);
    }
    one.client().release("job", &held.token()).await.expect_status(204);
    // The new server's vote is needed and counts.
    drop(b);
    poll::until("two nodes vote", || async {
        (late.client().get("/nodes").await.json()["quorum"]["granted"] == 2).then_some(())
    })
    .await;
    late.client().acquired("job", &[("ttl", "2s")]).await;
}

/// Makes a server a replica of another, and waits until it has its data.
async fn follow(server: &RedisServer, master: &RedisServer) {
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
    poll::until("it has the master's data", || async {
        server.ask::<String>(&["INFO", "replication"]).await.contains("master_link_status:up").then_some(())
    })
    .await;
}
