//! Which servers are suitable as nodes, and how they are reached: passwords, users, TLS, sockets, replicas, eviction.

use redlockd::nodes::redis::{NodeTls, NodeUrl, RedisNode, ServerFinding};
use redlockd::protocol::{ListArgs, Reply, Request, UnreachableKind};
use redlockd::redlock::random::SystemEntropy;

use super::{Holder, TestNode, config};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};

/// Acquires, extends, lists and releases.
async fn works(node: &TestNode) {
    node.until_connected().await;
    node.reply(Request::init()).await;
    let a = Holder::of("r");
    node.granted(&a, 10_000).await;
    assert!(matches!(node.reply(a.extend(None)).await, Reply::Updated { .. }));
    assert!(
        matches!(node.reply(Request::List(ListArgs { cursor: 0, count: 10 })).await, Reply::Page { leases, .. } if leases.len() == 1)
    );
    node.reply(a.release()).await;
}

fn codes(node: &TestNode) -> Vec<&'static str> {
    node.redis.report().findings.iter().map(ServerFinding::code).collect()
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_never_printed() {
    let server = RedisServer::start_with(Options { password: Some("right-pw"), ..Options::default() }).await;
    let wrong = TestNode::new(config(&server.url().replace("right-pw", "wrong-pw")));
    let none = TestNode::new(config(&server.url().replace(":right-pw@", "")));
    for node in [&wrong, &none] {
        poll::until_true("it was refused", || node.redis.report().connect_error.is_some()).await;
        assert_eq!(node.error(Request::probe()).await, UnreachableKind::Auth);
        let shown = format!("{:?} {:?}", node.redis.report(), node.redis);
        assert!(!shown.contains("-pw"), "{shown}");
    }
    assert!(!format!("{:?}", config(&server.url())).contains("-pw"));
    works(&TestNode::new(config(&server.url()))).await;
}

/// The fewest permissions that a node's user needs.
const LEAST: &str = "lock on >pw resetchannels &redlockd:freed:* ~* -@all +ping +hello +auth +select +info \
                     +script|load +eval +evalsha +time +hgetall +hmget +hdel +hset +mget +get +set +setrange +del +exists +type +pttl \
                     +pexpire +psetex +publish +rename +zadd +zrem +zscan +zrangebyscore";

#[tokio::test]
async fn a_user_with_the_least_permissions_works_and_one_with_fewer_is_reported() {
    let less = "poor on >pw resetchannels ~* -@all +ping +unwatch +hello +auth +info +script|load +eval +evalsha";
    let server = RedisServer::start_with(Options { users: vec![LEAST, less], ..Options::default() }).await;
    let as_user = |user: &str| config(&server.url().replace("redis://", &format!("redis://{user}:pw@")));
    works(&TestNode::new(as_user("lock"))).await;
    let poor = TestNode::connected(as_user("poor")).await;
    assert_eq!(poor.error(Holder::of("r").acquire(1_000)).await, UnreachableKind::Auth);
    let nobody = TestNode::new(as_user("nobody"));
    poll::until_true("it was refused", || nobody.redis.report().connect_error.is_some()).await;
    assert_eq!(nobody.error(Request::probe()).await, UnreachableKind::Auth);
}

#[tokio::test]
async fn a_unix_socket_and_another_database_work() {
    let server = RedisServer::start().await;
    let node = TestNode::new(config(&format!("{}?db=3", server.unix_url())));
    works(&node).await;
    assert!(server.ask::<String>(&["INFO", "keyspace"]).await.contains("db3:"));
}

#[tokio::test]
async fn tls_requires_a_trusted_certificate_authority() {
    let server = RedisServer::start_with(Options { tls: true, ..Options::default() }).await;
    let mut trusting = config(&server.url());
    trusting.tls = Some(NodeTls { ca: Some(server.ca_pem()), client: None });
    works(&TestNode::new(trusting.clone())).await;
    let untrusting = TestNode::new(config(&server.url()));
    poll::until_true("it was refused", || untrusting.redis.report().connect_error.is_some()).await;
    assert!(!untrusting.redis.report().connected);
    trusting.tls = Some(NodeTls { ca: Some(b"-----BEGIN CERTIFICATE-----\nx".to_vec()), client: None });
    assert!(RedisNode::new(trusting.clone(), SystemEntropy, None).is_err());
    trusting.url = NodeUrl::parse("redis://127.0.0.1").expect("valid");
    assert!(RedisNode::new(trusting, SystemEntropy, None).is_err(), "certificates without TLS");
}

#[tokio::test]
async fn a_replica_gets_no_acquires_and_refuses_writes() {
    let (master, server) = (RedisServer::start().await, RedisServer::start().await);
    let node = TestNode::voting(&server).await;
    let port = master.port().to_string();
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    poll::until("the replica is in step", || async {
        server.ask::<String>(&["INFO", "replication"]).await.contains("master_link_status:up").then_some(())
    })
    .await;
    assert_eq!(node.error(Holder::of("r").release()).await, UnreachableKind::ReadOnly, "before the server checks");
    let refused = node.error(Holder::of("r").acquire(1_000)).await;
    assert!(matches!(refused, UnreachableKind::ReadOnly | UnreachableKind::Unsuitable), "{refused}");
    let fresh = TestNode::new(config(&server.url()));
    poll::until_true("the role is known", || fresh.redis.report().role == "slave").await;
    assert_eq!(codes(&fresh), ["not-master", "no-persistence"]);
    assert_eq!(fresh.error(Holder::of("r").acquire(1_000)).await, UnreachableKind::Unsuitable);
    assert_eq!(fresh.error(Holder::of("r").release()).await, UnreachableKind::ReadOnly);
}

/// F2: what was connected while the server was a replica, or became one, is never used again.
#[tokio::test]
async fn f2_a_server_that_is_no_master_ends_the_connection_until_it_is_one() {
    let (master, server) = (RedisServer::start().await, RedisServer::start().await);
    let node = TestNode::voting(&server).await;
    let port = master.port().to_string();
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    assert_eq!(node.error(Holder::of("r").release()).await, UnreachableKind::ReadOnly);
    assert!(!node.redis.report().connected, "one refused write ends it");
    poll::until_true("the role is known", || node.redis.report().role == "slave").await;
    assert!(!node.redis.report().connected, "a hand-shake with a replica fails");
    server.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    node.until_connected().await;
    assert_eq!(node.redis.report().role, "master");
    assert!(node.redis.report().reconnects > 0);
}

/// F2: a node with a replica is not asked for leases, unless the setting says otherwise.
#[tokio::test]
async fn f2_an_attached_replica_bars_the_vote() {
    let (master, replica) = (RedisServer::start().await, RedisServer::start().await);
    let port = master.port().to_string();
    replica.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    poll::until("the replica is attached", || async {
        master.ask::<String>(&["INFO", "replication"]).await.contains("connected_slaves:1").then_some(())
    })
    .await;
    // Not before: the first replica changes the master's replication id, which costs a node that votes a quarantine.
    TestNode::voting(&master).await;
    let above = TestNode::connected(config(&master.url())).await;
    assert_eq!(codes(&above), ["has-replicas", "no-persistence"]);
    assert_eq!(above.error(Holder::of("r").acquire(1_000)).await, UnreachableKind::Unsuitable);
    let mut allowing = config(&master.url());
    allowing.allow_replicas = true;
    let allowing = TestNode::connected(allowing).await;
    allowing.granted(&Holder::of("r"), 1_000).await;
    assert_eq!(codes(&allowing), ["has-replicas", "no-persistence"]);
}

/// F12 and M2: without the right to publish, waiters do not rely on notices, and the node says why.
#[tokio::test]
async fn f12_a_user_that_may_not_publish_gets_no_notices() {
    for missing in ["-publish", "-pubsub|numsub"] {
        let user: &'static str = format!("lock on >pw ~* &* +@all {missing}").leak();
        let server = RedisServer::start_with(Options { users: vec![user], ..Options::default() }).await;
        let node = TestNode::connected(config(&server.url().replace("redis://", "redis://lock:pw@"))).await;
        poll::until_true("the finding is reported", || codes(&node).contains(&"no-notices")).await;
        let sentence = node.redis.report().findings.iter().map(ServerFinding::sentence).collect::<String>();
        assert!(sentence.contains(missing.trim_start_matches('-').split('|').next().expect("a word")), "{sentence}");
        // The right is given back: no restart is needed.
        server.ask::<()>(&["ACL", "SETUSER", "lock", "+@all"]).await;
        poll::until_true("the finding is gone", || !codes(&node).contains(&"no-notices")).await;
    }
}

/// F8: a full node, and one that cannot save, say so.
#[tokio::test]
async fn f8_a_full_node_and_one_that_cannot_save_are_found() {
    let server = RedisServer::start_with(Options { maxmemory: Some("1"), ..Options::default() }).await;
    let node = TestNode::connected(config(&server.url())).await;
    assert!(codes(&node).contains(&"full"), "{:?}", codes(&node));
    let more = vec!["--enable-protected-configs".into(), "yes".into()];
    let server = RedisServer::start_with(Options { more, ..Options::default() }).await;
    server.ask::<()>(&["CONFIG", "SET", "save", "3600 1"]).await;
    server.ask::<()>(&["CONFIG", "SET", "dir", "/proc"]).await;
    server.ask::<()>(&["BGSAVE"]).await;
    poll::until("the snapshot fails", || async {
        server.ask::<String>(&["INFO", "persistence"]).await.contains("rdb_last_bgsave_status:err").then_some(())
    })
    .await;
    let node = TestNode::connected(config(&server.url())).await;
    assert!(codes(&node).contains(&"cannot-save"), "{:?}", codes(&node));
}

#[tokio::test]
async fn a_node_that_evicts_gets_no_acquires_until_its_policy_changes() {
    let server = RedisServer::start_with(Options { maxmemory: Some("100mb"), ..Options::default() }).await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("r");
    node.granted(&a, 10_000).await;
    server.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    poll::until_true("the finding is reported", || codes(&node).contains(&"evicts")).await;
    assert_eq!(node.error(Holder::of("s").acquire(1_000)).await, UnreachableKind::Unsuitable);
    assert!(matches!(node.reply(a.release()).await, Reply::Released(_)));
    server.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    // A new connection reads the server checks at once.
    server.ask::<i64>(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes"]).await;
    poll::until_true("the finding is gone", || !codes(&node).contains(&"evicts")).await;
    node.granted(&Holder::of("s"), 1_000).await;
}

#[tokio::test]
async fn a_cluster_node_gets_no_acquires() {
    let more = vec!["--cluster-enabled".into(), "yes".into()];
    let server = RedisServer::start_with(Options { more, ..Options::default() }).await;
    let node = TestNode::connected(config(&server.url())).await;
    assert!(codes(&node).contains(&"cluster"));
    assert_eq!(node.error(Holder::of("r").acquire(1_000)).await, UnreachableKind::Unsuitable);
}

#[tokio::test]
async fn persistence_is_checked() {
    let server = RedisServer::start_with(Options { appendonly: true, ..Options::default() }).await;
    let node = TestNode::connected(config(&server.url())).await;
    assert_eq!(codes(&node), Vec::<&str>::new());
    assert_eq!(node.redis.report().version, server_version(&server).await);
}

async fn server_version(server: &RedisServer) -> String {
    let info: String = server.ask(&["INFO", "server"]).await;
    info.lines().find_map(|l| l.strip_prefix("redis_version:")).expect("there").trim().to_owned()
}
