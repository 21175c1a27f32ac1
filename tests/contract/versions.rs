//! Versions of the protocol on one Redis: a node of the former version is taken over with its leases, one of a later version
//! is left alone.

use redlockd::protocol::{ClusterParams, Found, NoVote, Reply, Request, RequestTime, Vote};

use super::redis_server::RedisServer;
use super::subject::{Subject, acquire, extend, name, params, release, token};

const META: &[u8] = b"redlockd:meta";

fn of(cluster: &str) -> ClusterParams {
    ClusterParams { cluster: cluster.into(), ..params() }
}

fn ask(node: &mut RedisServer, cluster: &str, request: &Request) -> Reply {
    let sent_at = RequestTime(node.now_us());
    node.ask_with(sent_at, &of(cluster), request).expect("an answer")
}

/// As version 1 left it: the quarantine in `pass`, the `run_id` alone as the run, and neither `proto` nor `ask`.
fn make_version_1(node: &mut RedisServer) {
    let run_id = node.run[..40].to_owned();
    let pass = format!("{run_id}|one|60000");
    node.command::<()>(&[b"HSET", META, b"pass", pass.as_bytes(), b"run", run_id.as_bytes(), b"cfg", b"one"]);
    node.command::<()>(&[b"HDEL", META, b"proto", b"ask", b"roll"]);
}

#[test]
fn a_node_of_version_1_is_taken_over_with_its_leases() {
    let mut node = RedisServer::start();
    let info: String = node.command(&[b"INFO", b"replication"]);
    let replid = info.lines().find_map(|line| line.strip_prefix("master_replid:")).expect("a replication id").trim();
    node.run.push_str(replid);
    assert!(matches!(ask(&mut node, "4.one", &Request::init()), Reply::Status(s) if s.vote == Vote::Active));
    let Reply::Granted { fence, .. } = ask(&mut node, "4.one", &acquire("a", 1, 1, 20_000)) else {
        panic!("not granted")
    };
    make_version_1(&mut node);
    match ask(&mut node, "4.one", &extend("a", 1, None, Some(fence))) {
        Reply::Updated { record, .. } => assert_eq!(record.fence, fence),
        other => panic!("{other:?}"),
    }
    assert!(matches!(ask(&mut node, "4.one", &acquire("a", 2, 2, 1_000)), Reply::Held { .. }));
    // The former version's instances ask for their cluster: it is another one now.
    let theirs = "4.one".to_owned();
    assert_eq!(ask(&mut node, "one", &acquire("b", 3, 3, 1_000)), Reply::NoVote(NoVote::OtherCluster { theirs }));
}

/// As version 3 left it: each resource's fence in a key of its own, and their copy in `base` once a period.
fn make_version_3(node: &mut RedisServer, resource: &str, fence: u64) {
    let (pass, fence) = (format!("{}|2.one|{}", node.run, "0".repeat(32)), fence.to_string());
    node.command::<()>(&[b"HSET", META, b"pass", pass.as_bytes(), b"cfg", b"2.one", b"proto", b"3", b"per", b"7"]);
    node.command::<()>(&[b"HSET", META, b"hw", fence.as_bytes()]);
    node.command::<()>(&[b"HDEL", META, b"gen", b"last"]);
    node.command::<()>(&[b"DEL", b"redlockd:fences:0", b"redlockd:fences:1"]);
    let counter = format!("redlockd:fence:{resource}");
    node.command::<()>(&[b"SET", counter.as_bytes(), fence.as_bytes(), b"PX", b"3600000"]);
}

#[test]
fn a_node_of_version_3_is_taken_over_with_its_leases_and_above_its_fences() {
    for first in [acquire("ended", 4, 4, 1_000), extend("a", 1, None, None), Request::probe()] {
        let mut node = RedisServer::start();
        ask(&mut node, "4.one", &Request::init());
        ask(&mut node, "4.one", &acquire("a", 1, 1, 20_000));
        let ahead = node.now_us() + 400_000; // of a caller whose clock is ahead
        make_version_3(&mut node, "ended", ahead);
        match (ask(&mut node, "4.one", &first), &first) {
            (Reply::Granted { fence, .. }, _) => assert!(fence.0 > ahead),
            (Reply::Updated { record, .. }, _) => assert_eq!(record.renewals, 1),
            (Reply::Status(status), _) => assert_eq!(status.vote, Vote::Active),
            (other, first) => panic!("{first:?}: {other:?}"),
        }
        match ask(&mut node, "4.one", &acquire("ended", 5, 5, 1_000)) {
            Reply::Granted { fence, .. } => assert!(fence.0 > ahead),
            Reply::Held { .. } => {}
            other => panic!("{other:?}"),
        }
        assert!(matches!(ask(&mut node, "4.one", &acquire("a", 2, 2, 1_000)), Reply::Held { .. }));
        let pass: String = node.command(&[b"HGET", META, b"pass"]);
        assert_eq!(pass, format!("{}|4.one|{}", node.run, "0".repeat(32)), "the next request needs no full check");
    }
}

#[test]
fn a_node_of_version_1_with_other_settings_is_another_cluster() {
    let mut node = RedisServer::start();
    ask(&mut node, "4.one", &Request::init());
    make_version_1(&mut node);
    let theirs = "one".to_owned();
    assert_eq!(ask(&mut node, "4.two", &acquire("a", 1, 1, 1_000)), Reply::NoVote(NoVote::OtherCluster { theirs }));
}

/// F11.
#[test]
fn a_node_of_a_later_version_is_left_as_it_is() {
    let mut node = RedisServer::start();
    ask(&mut node, "4.one", &Request::init());
    node.command::<()>(&[b"HSET", META, b"proto", b"5", b"pass", b"in another form"]);
    let mut before: Vec<String> = node.command(&[b"HGETALL", META]);
    let newer = NoVote::NewerProtocol { theirs: 5 };
    assert_eq!(ask(&mut node, "4.one", &acquire("a", 1, 1, 1_000)), Reply::NoVote(newer.clone()));
    for request in [Request::probe(), Request::init(), Request::Quarantine { by: "".into() }] {
        match ask(&mut node, "4.one", &request) {
            Reply::Status(status) => assert_eq!(status.vote, Vote::NoVote(newer.clone())),
            other => panic!("{other:?}"),
        }
    }
    let mut after: Vec<String> = node.command(&[b"HGETALL", META]);
    before.sort_unstable();
    after.sort_unstable();
    assert_eq!(before, after);
}

/// F2: a failover to a replica and back keeps the process and its data, and changes the replication id.
#[test]
fn f2_a_server_that_was_a_replica_meanwhile_has_no_vote() {
    let mut node = RedisServer::start();
    ask(&mut node, "4.one", &Request::init());
    // The marker comes from the replica, as it was before; the connection's hand-shake is as old.
    node.run.push_str(&"0".repeat(40));
    let (run, pass) = (node.run.clone(), format!("{}|4.one", node.run));
    node.command::<()>(&[b"HSET", META, b"run", run.as_bytes(), b"pass", pass.as_bytes()]);
    assert!(matches!(ask(&mut node, "4.one", &acquire("a", 1, 1, 1_000)), Reply::Granted { .. }));
    match ask(&mut node, "4.one", &Request::probe()) {
        Reply::Status(status) if matches!(status.vote, Vote::NoVote(NoVote::Quarantined { .. })) => {
            assert_eq!(status.why, "failover");
            assert_ne!(status.run, node.run, "the caller sees which run it is, to connect again");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(ask(&mut node, "4.one", &acquire("b", 2, 2, 1_000)), Reply::NoVote(NoVote::Quarantined { .. })));
}

/// Times and fences are compared as text where both have 16 digits.
#[test]
fn a_time_or_a_fence_of_the_marker_that_is_ahead_counts_however_long_it_is() {
    for ahead in ["1999999999999999", "10000000000000000"] {
        let mut node = RedisServer::start();
        ask(&mut node, "4.one", &Request::init());
        let grant = |node: &mut RedisServer, name, by| match ask(node, "4.one", &acquire(name, by, by, 1_000)) {
            Reply::Granted { fence, .. } => fence.0,
            other => panic!("{other:?}"),
        };
        let given = grant(&mut node, "a", 1);
        assert!(grant(&mut node, "b", 2) > given, "by its time");
        node.command::<()>(&[b"HSET", META, b"hw", ahead.as_bytes()]);
        grant(&mut node, "c", 3);
        let highest: String = node.command(&[b"HGET", META, b"hw"]);
        assert_eq!(highest, ahead, "the highest fence is not lowered");
        // Below every time, so that no fence keeps the requests from what most of them need.
        let low = b"1000000000000000";
        node.command::<()>(&[b"HSET", META, b"hw", low, b"seen", low]);
        for sent_us in [node.now_us() - 3_600_000_000, node.now_us() + 3_600_000_000] {
            let off = node.ask_with(RequestTime(sent_us), &of("4.one"), &acquire("d", 4, 4, 1_000));
            assert!(matches!(off, Ok(Reply::NoVote(NoVote::ClockOff { .. }))), "{off:?}");
        }
        node.command::<()>(&[b"HSET", META, b"seen", ahead.as_bytes()]);
        let back = ask(&mut node, "4.one", &acquire("d", 4, 4, 1_000));
        assert!(matches!(back, Reply::NoVote(NoVote::Quarantined { .. })), "this clock went back: {back:?}");
    }
}

#[test]
fn a_value_that_only_begins_like_the_lease_is_another_clients() {
    let mut node = RedisServer::start();
    let (key, value) = (params().template.lock(&name("a")), format!("{}x000000|1|1|a,|{{}}", token(1).as_str()));
    node.command::<()>(&[b"SET", key.as_bytes(), value.as_bytes()]);
    let released = ask(&mut node, "4.one", &release("a", 1));
    assert!(matches!(released, Reply::Released(of) if of.found == Found::Other), "{released:?}");
    assert_eq!(node.command::<String>(&[b"GET", key.as_bytes()]), value);
}
