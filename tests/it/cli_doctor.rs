//! `redlockd doctor` on real nodes: what it finds, that it changes nothing, and that it shows no
//! password. What follows from what is tested beside its rules.

use crate::support::daemon::{Daemon, Ended, ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};

fn over(command: &str, nodes: &[RedisServer], more: &[&str]) -> Ended {
    let named: Vec<String> = nodes.iter().enumerate().map(|(i, node)| format!("n{i}={}", node.url())).collect();
    let mut args = vec![command];
    named.iter().for_each(|node| args.extend(["--node", node]));
    args.extend(more);
    ended(&mut redlockd(&args))
}

/// Far above what a node on this machine needs, however busy it is.
const PATIENT: [&str; 8] =
    ["--set", "node_timeout=5s", "--set", "min_ttl=20s", "--set", "guard=6s", "--set", "lock_delay=12s"];

fn patient(nodes: &[RedisServer]) -> Ended {
    over("doctor", nodes, &PATIENT)
}

#[tokio::test]
async fn new_nodes_are_reported_and_left_as_they_are() {
    let nodes = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let done = patient(&nodes);
    assert_eq!((done.code, done.err.as_str()), (Some(1), ""), "{done:?}");
    assert!(done.out.contains("PROBLEM: all nodes are new: declare them once, with `redlockd init`"), "{done:?}");
    for node in &nodes {
        assert_eq!(node.ask::<u64>(&["DBSIZE"]).await, 0, "it wrote nothing");
    }
}

#[tokio::test]
async fn a_healthy_cluster_has_nothing_to_do_and_each_fault_is_named() {
    let mut nodes = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    assert_eq!(over("init", &nodes, &PATIENT).code, Some(0));
    let daemon = Daemon::over(&nodes, &PATIENT);
    daemon.get(&["acquire", "--ttl", "1m", "x"]);
    let done = patient(&nodes);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    assert!(
        done.out.contains("votes") && done.out.contains("1 lease(s)") && done.out.ends_with("no problems\n"),
        "{done:?}"
    );
    // S5: settings with which a roll-out would be an outage.
    let other = over("doctor", &nodes, &[&PATIENT[..], &["--set", "lock_delay=13s"]].concat());
    assert!(other.code == Some(1) && other.out.contains("other settings than these"), "{other:?}");
    // A lease that lost its quorum, a foreigner with a TTL, one without.
    nodes[1].ask::<u64>(&["DEL", "x"]).await;
    nodes[2].ask::<u64>(&["DEL", "x"]).await;
    nodes[0].ask::<String>(&["SET", "their/lock", "hunter2", "PX", "60000"]).await;
    nodes[0].ask::<u64>(&["HSET", "session:1", "user", "hunter2"]).await;
    let done = patient(&nodes);
    assert_eq!(done.code, Some(1), "{done:?}");
    for words in [
        "remark: x: the lease ",
        " is on 1 of 3 nodes",
        "remark: n0: 1 lock(s) of other Redlock clients, or other data: their/lock",
        "PROBLEM: n0: 1 foreign key(s) without a TTL",
        "session:1",
    ] {
        assert!(done.out.contains(words), "{words}: {}", done.out);
    }
    assert!(!done.out.contains("hunter2"));
    nodes[1].kill();
    let done = patient(&nodes);
    assert!(done.code == Some(1) && done.out.contains("PROBLEM: n1: the connection is refused"), "{done:?}");
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_not_shown() {
    let node = RedisServer::start_with(Options { password: Some("sesame"), ..Options::default() }).await;
    let url = node.url().replace("sesame", "hunter2");
    let done = ended(&mut redlockd(&["doctor", "--node", &url]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.out.contains("authentication failed") && !done.out.contains("hunter2"), "{done:?}");
    assert_eq!(ended(&mut redlockd(&["doctor"])).code, Some(64));
}

/// Shared leases and permits are in a hash beside their lock's key: each is counted as a lease, none as foreign.
#[tokio::test]
async fn leases_that_are_held_together_are_counted_each() {
    let nodes = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    assert_eq!(over("init", &nodes, &PATIENT).code, Some(0));
    let daemon = Daemon::over(&nodes, &PATIENT);
    poll::until_true("a quorum is connected", || daemon.ask(&["acquire", "--ttl", "1m", "x"]).code == Some(0)).await;
    for name in ["a/b", "a/b", "c"] {
        daemon.get(&["acquire", "--shared", "--ttl", "1m", name]);
    }
    daemon.get(&["acquire", "--permits", "3", "--ttl", "1m", "gpu"]);
    let lost = daemon.json(&["acquire", "--permits", "3", "--ttl", "1m", "--json", "gpu"]);
    let done = patient(&nodes);
    assert_eq!((done.code, done.out.matches("6 lease(s)").count()), (Some(0), 3), "{done:?}");
    assert!(done.out.ends_with("no problems\n") && !done.out.contains("other Redlock clients"), "{done:?}");
    // One of two permits is lost on a quorum; one on a node has been over for long.
    let token = redlockd::types::Token::parse(lost["token"].as_str().expect("a token")).expect("a token");
    for node in &nodes[1..] {
        assert_eq!(node.ask::<u64>(&["HDEL", "redlockd:m:gpu", token.hash().as_str()]).await, 1);
    }
    let over_ms = "1000|s|000000|60000|1|p,|{}";
    nodes[0].ask::<u64>(&["HSET", "redlockd:m:c", &"0".repeat(64), over_ms]).await;
    let done = patient(&nodes);
    assert_eq!((done.code, done.out.matches("6 lease(s)").count()), (Some(0), 1), "{done:?}");
    let remark = format!("remark: gpu: the lease {} is on 1 of 3 nodes", lost["token_id"].as_str().expect("an id"));
    assert!(done.out.contains(&remark) && done.out.matches(": the lease ").count() == 1, "{done:?}");
}
