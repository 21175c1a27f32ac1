//! Who may be a node: passwords, users, TLS, sockets, replicas, eviction.

use redlockd::nodes::redis::{NodeTls, NodeUrl, RedisNode, ServerFinding};
use redlockd::protocol::{ListArgs, Reply, Request, UnreachableKind};
use redlockd::redlock::entropy::SystemEntropy;

use super::{Rig, Who, config};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};

/// Takes and gives back, as proof that everything works.
async fn works(rig: &Rig) {
    rig.until_connected().await;
    rig.reply(Request::Init).await;
    let a = Who::wanting("r");
    rig.granted(&a, 10_000).await;
    assert!(matches!(rig.reply(a.extend(None)).await, Reply::Updated { .. }));
    assert!(
        matches!(rig.reply(Request::List(ListArgs { cursor: 0, count: 10 })).await, Reply::Page { leases, .. } if leases.len() == 1)
    );
    rig.reply(a.release()).await;
}

fn codes(rig: &Rig) -> Vec<&'static str> {
    rig.node.report().findings.iter().map(ServerFinding::code).collect()
}

#[tokio::test]
async fn a_wrong_password_is_said_as_such_and_never_shown() {
    let server = RedisServer::start_with(Options { password: Some("right-pw"), ..Options::default() }).await;
    let wrong = Rig::new(config(&server.url().replace("right-pw", "wrong-pw")));
    let none = Rig::new(config(&server.url().replace(":right-pw@", "")));
    for rig in [&wrong, &none] {
        poll::until_true("it was refused", || rig.node.report().refusal.is_some()).await;
        assert_eq!(rig.error(Request::Probe).await, UnreachableKind::Auth);
        let shown = format!("{:?} {:?}", rig.node.report(), rig.node);
        assert!(!shown.contains("-pw"), "{shown}");
    }
    assert!(!format!("{:?}", config(&server.url())).contains("-pw"));
    works(&Rig::new(config(&server.url()))).await;
}

/// The least that a node's user needs.
const LEAST: &str = "lock on >pw resetchannels &redlockd:freed:* ~* -@all +ping +unwatch +hello +auth +select +info \
                     +script|load +eval +evalsha +time +hmget +hset +mget +get +set +setrange +del +exists +type +pttl \
                     +pexpire +publish +zadd +zrem +zscan +zrangebyscore";

#[tokio::test]
async fn a_user_with_the_least_permissions_will_do_and_one_with_less_is_told() {
    let less = "poor on >pw resetchannels ~* -@all +ping +unwatch +hello +auth +info +script|load +eval +evalsha";
    let server = RedisServer::start_with(Options { users: vec![LEAST, less], ..Options::default() }).await;
    let as_user = |user: &str| config(&server.url().replace("redis://", &format!("redis://{user}:pw@")));
    works(&Rig::new(as_user("lock"))).await;
    let poor = Rig::connected(as_user("poor")).await;
    assert_eq!(poor.error(Who::wanting("r").acquire(1_000)).await, UnreachableKind::Auth);
    let nobody = Rig::new(as_user("nobody"));
    poll::until_true("it was refused", || nobody.node.report().refusal.is_some()).await;
    assert_eq!(nobody.error(Request::Probe).await, UnreachableKind::Auth);
}

#[tokio::test]
async fn a_socket_and_another_database_will_do() {
    let server = RedisServer::start().await;
    let rig = Rig::new(config(&format!("{}?db=3", server.unix_url())));
    works(&rig).await;
    assert!(server.ask::<String>(&["INFO", "keyspace"]).await.contains("db3:"));
}

#[tokio::test]
async fn tls_needs_the_right_authority() {
    let server = RedisServer::start_with(Options { tls: true, ..Options::default() }).await;
    let mut trusting = config(&server.url());
    trusting.tls = Some(NodeTls { ca: Some(server.ca_pem()), client: None });
    works(&Rig::new(trusting.clone())).await;
    let stranger = Rig::new(config(&server.url()));
    poll::until_true("it was refused", || stranger.node.report().refusal.is_some()).await;
    assert!(!stranger.node.report().connected);
    trusting.tls = Some(NodeTls { ca: Some(b"-----BEGIN CERTIFICATE-----\nx".to_vec()), client: None });
    assert!(RedisNode::new(trusting.clone(), SystemEntropy, None).is_err());
    trusting.url = NodeUrl::parse("redis://127.0.0.1").expect("valid");
    assert!(RedisNode::new(trusting, SystemEntropy, None).is_err(), "certificates without TLS");
}

#[tokio::test]
async fn a_replica_has_no_vote_and_says_so_to_the_rest() {
    let (master, server) = (RedisServer::start().await, RedisServer::start().await);
    let rig = Rig::voting(&server).await;
    let port = master.port().to_string();
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    poll::until("the replica is in step", || async {
        server.ask::<String>(&["INFO", "replication"]).await.contains("master_link_status:up").then_some(())
    })
    .await;
    assert_eq!(rig.error(Who::wanting("r").release()).await, UnreachableKind::ReadOnly, "before it is looked at");
    assert_eq!(rig.error(Who::wanting("r").acquire(1_000)).await, UnreachableKind::ReadOnly);
    let fresh = Rig::connected(config(&server.url())).await;
    assert_eq!((codes(&fresh), fresh.node.report().role.as_str()), (vec!["not-master", "no-persistence"], "slave"));
    assert_eq!(fresh.error(Who::wanting("r").acquire(1_000)).await, UnreachableKind::Unsuitable);
    assert_eq!(fresh.error(Who::wanting("r").release()).await, UnreachableKind::ReadOnly, "releases still pass");
    let above = Rig::connected(config(&master.url())).await;
    assert_eq!(codes(&above), ["has-replicas", "no-persistence"]);
}

#[tokio::test]
async fn a_node_that_evicts_has_no_vote_until_it_stops() {
    let server = RedisServer::start_with(Options { maxmemory: Some("100mb"), ..Options::default() }).await;
    let rig = Rig::voting(&server).await;
    let a = Who::wanting("r");
    rig.granted(&a, 10_000).await;
    server.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    poll::until_true("the finding is made", || codes(&rig).contains(&"evicts")).await;
    assert_eq!(rig.error(Who::wanting("s").acquire(1_000)).await, UnreachableKind::Unsuitable);
    assert!(matches!(rig.reply(a.release()).await, Reply::Released(_)));
    server.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    // A new connection looks at once; nobody need wait for the next round.
    server.ask::<i64>(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes"]).await;
    poll::until_true("the finding is gone", || !codes(&rig).contains(&"evicts")).await;
    rig.granted(&Who::wanting("s"), 1_000).await;
}

#[tokio::test]
async fn a_cluster_node_has_no_vote() {
    let more = vec!["--cluster-enabled".into(), "yes".into()];
    let server = RedisServer::start_with(Options { more, ..Options::default() }).await;
    let rig = Rig::connected(config(&server.url())).await;
    assert!(codes(&rig).contains(&"cluster"));
    assert_eq!(rig.error(Who::wanting("r").acquire(1_000)).await, UnreachableKind::Unsuitable);
}

#[tokio::test]
async fn persistence_is_looked_at() {
    let server = RedisServer::start_with(Options { appendonly: true, ..Options::default() }).await;
    let rig = Rig::connected(config(&server.url())).await;
    assert_eq!(codes(&rig), Vec::<&str>::new());
    assert_eq!(rig.node.report().version, server_version(&server).await);
}

async fn server_version(server: &RedisServer) -> String {
    let info: String = server.ask(&["INFO", "server"]).await;
    info.lines().find_map(|l| l.strip_prefix("redis_version:")).expect("there").trim().to_owned()
}
