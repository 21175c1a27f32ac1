//! Nodes without a vote: blank, restarted, evicting, with a wrong clock, or of another cluster.

use std::sync::Arc;
use std::time::Duration;

use redlockd::nodes::redis::Identity;
use redlockd::protocol::{
    AdmitArgs, ClusterParams, FillArgs, NoVote, NodeInspection, NodeStatus, Reply, Request, RequestStamp, RequestTime,
    RosterEntry, StoredLock, View, ViewId, Vote,
};
use redlockd::redlock::node::Node;
use redlockd::types::Fence;

use super::{Holder, TestNode, config, now, params};
use crate::support::redis_server::{Options, RedisServer};

async fn status(node: &TestNode, request: Request) -> NodeStatus {
    match node.reply(request).await {
        Reply::Status(status) => *status,
        reply => panic!("{reply:?}"),
    }
}

fn is_quarantined(status: &NodeStatus, why: &str) -> bool {
    matches!(status.vote, Vote::NoVote(NoVote::Quarantined { left_ms }) if left_ms > 0) && status.why == why
}

/// ClusterParams with a quarantine of one millisecond.
fn brief() -> Arc<ClusterParams> {
    Arc::new(ClusterParams { quarantine: Duration::from_millis(1), ..params() })
}

/// Fills the node with nothing and gives it the vote in the first view.
async fn admitted(node: &TestNode, seed: Fence) -> Arc<View> {
    let (id, run) = (ViewId::NONE.above(7), status(node, Request::probe()).await.run.into());
    let roster = [(node.redis.id().clone(), RosterEntry { run, since: id, address: None })].into();
    let view = Arc::new(View { id, roster, list: None });
    let fill = FillArgs { view: Arc::clone(&view), nonce: 1, page: 1, pages: 1, keeps: false, entries: vec![] };
    node.reply(Request::Promise { view: id }).await;
    assert_eq!(node.reply(Request::Fill(fill)).await, Reply::Filled { done: 1 });
    let args = AdmitArgs { view: Arc::clone(&view), nonce: 1, pages: 1, seed, by_clock: false };
    assert!(matches!(node.reply(Request::Admit(args)).await, Reply::Member(m) if m.is_done));
    view
}

#[tokio::test]
async fn a_blank_node_has_no_vote_until_init() {
    let server = RedisServer::start().await;
    let node = TestNode::connected(config(&server.url())).await;
    let init = status(&node, Request::init()).await;
    assert_eq!((init.vote, init.why.as_str()), (Vote::Active, "init"));
    assert_eq!(status(&node, Request::init()).await.vote, Vote::AlreadyInitialised);
    assert_eq!(status(&node, Request::probe()).await.vote, Vote::Active);
    assert_eq!(node.redis.report().run_id, init.run);
    server.ask::<()>(&["FLUSHALL"]).await;
    assert!(is_quarantined(&status(&node, Request::probe()).await, "blank"));
    let a = Holder::of("r");
    assert!(matches!(node.reply(a.acquire(1_000)).await, Reply::NoVote(NoVote::Quarantined { .. })));
    let Reply::Inspected(NodeInspection { no_vote, lock, .. }) = node.reply(a.inspect()).await else {
        panic!("not seen")
    };
    assert!(matches!((no_vote, lock), (Some(NoVote::Quarantined { .. }), StoredLock::Free)));
}

#[tokio::test]
async fn requests_an_hour_early_or_late_are_refused_except_releases() {
    let server = RedisServer::start().await;
    let node = TestNode::connected(config(&server.url())).await;
    let hour = Duration::from_hours(1).as_micros() as u64;
    let early = RequestTime(now().0 - hour);
    for sent_at in [early, RequestTime(now().0 + hour)] {
        let Ok(Reply::Status(status)) = node.ask_at(sent_at, Request::init()).await else { panic!("no status") };
        assert!(
            matches!(status.vote, Vote::NoVote(NoVote::ClockOff { node_us }) if node_us.abs_diff(now().0) < hour / 2)
        );
    }
    node.reply(Request::init()).await;
    let a = Holder::of("r");
    for sent_at in [early, RequestTime(now().0 + hour)] {
        let answer = node.ask_at(sent_at, a.acquire(1_000)).await;
        assert!(matches!(answer, Ok(Reply::NoVote(NoVote::ClockOff { .. }))), "{answer:?}");
    }
    node.granted(&a, 10_000).await;
    let answer = node.ask_at(early, a.extend(None)).await;
    assert!(matches!(answer, Ok(Reply::NoVote(NoVote::ClockOff { .. }))), "{answer:?}");
    assert!(matches!(node.ask_at(early, a.release()).await, Ok(Reply::Released(_))), "a release is always allowed");
}

#[tokio::test]
async fn another_cluster_gets_no_vote_and_cannot_take_the_node_over() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let mut other = config(&server.url());
    other.params = Arc::new(ClusterParams { cluster: "c2".into(), ..params() });
    let other = TestNode::connected(other).await;
    let theirs = Reply::NoVote(NoVote::OtherCluster { theirs: "c1".into() });
    assert_eq!(other.reply(Holder::of("r").acquire(1_000)).await, theirs);
    assert!(matches!(status(&other, Request::probe()).await.vote, Vote::NoVote(NoVote::OtherCluster { .. })));
    node.granted(&Holder::of("r"), 1_000).await;
    assert!(is_quarantined(&status(&other, Request::Quarantine { by: "".into() }).await, "ordered"));
    assert_eq!(other.reply(Holder::of("s").acquire(1_000)).await, theirs);
    assert!(is_quarantined(&status(&node, Request::probe()).await, "ordered"), "the cluster is unchanged");
}

#[tokio::test]
async fn a_restarted_node_has_no_vote_until_its_quarantine_ends_and_it_is_seeded() {
    let mut server = RedisServer::start_with(Options { appendonly: true, ..Options::default() }).await;
    let mut brief_config = config(&server.url());
    brief_config.params = brief();
    let node = TestNode::connected(brief_config).await;
    let before = status(&node, Request::init()).await;
    let a = Holder::of("r");
    node.granted(&a, 60_000).await;
    server.kill();
    server.restart().await;
    crate::support::poll::until_true("the new process is connected", || {
        let report = node.redis.report();
        report.connected && report.run_id != before.run
    })
    .await;
    let Reply::NoVote(NoVote::Quarantined { .. }) = node.reply(Holder::of("s").acquire(1_000)).await else {
        panic!("it voted")
    };
    let served = crate::support::poll::until("the quarantine is over", || async {
        match status(&node, Request::probe()).await {
            NodeStatus { vote: Vote::NoVote(NoVote::Unseeded { high_water }), why, .. } => Some((high_water, why)),
            _ => None,
        }
    })
    .await;
    assert_eq!(served.1, "restart");
    assert!(
        matches!(node.reply(a.extend(None)).await, Reply::NoVote(NoVote::Unseeded { .. })),
        "extended, without a vote"
    );
    let seed = Fence(served.0.0 + 5_000_000);
    let view = admitted(&node, seed).await;
    let stamp = || RequestStamp::new(now(), Arc::clone(&view));
    let granted = node.ask_in(stamp(), Holder::of("s").acquire(1_000)).await;
    assert_eq!(granted, Ok(Reply::Granted { fence: Fence(seed.0 + 1), joined: false }));
    assert!(matches!(node.ask_in(stamp(), a.extend(None)).await, Ok(Reply::Updated { .. })));
    let other = View {
        id: view.id,
        roster: [(node.redis.id().clone(), RosterEntry { run: before.run.into(), since: view.id, address: None })]
            .into(),
        list: None,
    };
    let stamp = RequestStamp::new(now(), Arc::new(other));
    let refused = node.ask_in(stamp, Holder::of("t").acquire(1_000)).await;
    assert!(
        matches!(refused, Ok(Reply::NoVote(NoVote::OtherProcess { .. }))),
        "the view names its predecessor: {refused:?}"
    );
}

#[tokio::test]
async fn the_longest_quarantine_of_any_instance_applies() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let mut longer = config(&server.url());
    let quarantine = params().quarantine.saturating_mul(2);
    longer.params = Arc::new(ClusterParams { quarantine, ..params() });
    let longer = TestNode::connected(longer).await;
    node.granted(&Holder::of("a"), 1_000).await;
    longer.granted(&Holder::of("b"), 1_000).await;
    node.granted(&Holder::of("c"), 1_000).await;
    let ordered = status(&node, Request::Quarantine { by: "".into() }).await;
    assert_eq!(ordered.vote, Vote::NoVote(NoVote::Quarantined { left_ms: quarantine.as_millis() as u64 }));
}

#[tokio::test]
async fn a_replaced_quarantine_still_applies_if_the_clock_returns() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let (first, meta) = (status(&node, Request::Quarantine { by: "".into() }).await.until_us, "redlockd:meta");
    status(&node, Request::Quarantine { by: "".into() }).await;
    assert_eq!(server.ask::<u64>(&["HGET", meta, "owed"]).await, first);
    // As if the second one had begun, and ended, by a clock that was an hour behind.
    server.ask::<()>(&["HSET", meta, "until", "1"]).await;
    assert!(is_quarantined(&status(&node, Request::probe()).await, "ordered"));
    // As if the first one had begun by a clock that was ahead.
    let quarantine = params().quarantine.as_micros() as u64;
    server.ask::<()>(&["HSET", meta, "owed", &(now().0 + 3 * quarantine).to_string()]).await;
    let high_water = match status(&node, Request::probe()).await.vote {
        Vote::NoVote(NoVote::Unseeded { high_water }) => high_water,
        vote => panic!("{vote:?}"),
    };
    let seed = Fence(high_water.0 + 1);
    admitted(&node, seed).await;
    assert_eq!(server.ask::<u64>(&["HGET", meta, "owed"]).await, 0, "all is served");
}

#[tokio::test]
async fn a_quarantine_ends_by_the_clock_that_ordered_it() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let hour_ahead = RequestTime(now().0 + 3_600_000_000);
    let ordered = node.ask_at(hour_ahead, Request::Quarantine { by: "".into() }).await.expect("an answer");
    let is_quarantined = |status: &NodeStatus| matches!(status.vote, Vote::NoVote(NoVote::Quarantined { .. }));
    assert!(matches!(ordered, Reply::Status(status) if is_quarantined(&status)));
    let quarantine = params().quarantine.as_micros() as u64;
    assert_eq!(server.ask::<u64>(&["HGET", "redlockd:meta", "owed"]).await, hour_ahead.0 + quarantine);
}

#[tokio::test]
async fn a_node_that_evicted_keys_has_no_vote() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    server.ask::<()>(&["HSET", "redlockd:meta", "ev", "-1"]).await;
    assert!(is_quarantined(&status(&node, Request::probe()).await, "evicted"));
}

#[tokio::test]
async fn with_identity_script_the_scripts_read_the_run_id() {
    let server = RedisServer::start().await;
    let mut by_script = config(&server.url());
    by_script.identity = Identity::Script;
    let by_script = TestNode::connected(by_script).await;
    let by_hand_shake = TestNode::voting(&server).await;
    by_script.granted(&Holder::of("a"), 1_000).await;
    by_hand_shake.granted(&Holder::of("b"), 1_000).await;
    server.ask::<()>(&["HSET", "redlockd:meta", "run", "0", "pass", ""]).await;
    assert!(is_quarantined(&status(&by_script, Request::probe()).await, "restart"));
}

#[tokio::test]
async fn a_malformed_marker_is_an_error_and_no_vote() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    server.ask::<()>(&["SET", "redlockd:meta", "nonsense"]).await;
    use redlockd::protocol::UnreachableKind;
    assert_eq!(node.error(Holder::of("r").acquire(1_000)).await, UnreachableKind::Protocol);
}
