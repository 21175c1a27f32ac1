//! `redlockd doctor` on real nodes: what it finds, that it changes nothing, and that it shows no
//! password. What follows from what is tested beside its rules.

use crate::support::daemon::{Daemon, Ended, ended, redlockd};
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
async fn new_nodes_are_told_and_left_as_they_are() {
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
async fn a_wrong_password_is_told_and_not_shown() {
    let node = RedisServer::start_with(Options { password: Some("sesame"), ..Options::default() }).await;
    let url = node.url().replace("sesame", "hunter2");
    let done = ended(&mut redlockd(&["doctor", "--node", &url]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.out.contains("authentication failed") && !done.out.contains("hunter2"), "{done:?}");
    assert_eq!(ended(&mut redlockd(&["doctor"])).code, Some(64));
}
