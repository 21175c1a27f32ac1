//! What a node does that forgot, whose clock is off, or that belongs to others.

use std::sync::Arc;
use std::time::Duration;

use redlockd::nodes::redis::Identity;
use redlockd::protocol::{
    ClusterParams, NoVote, NodeInspection, NodeStatus, Reply, Request, RequestTime, StoredLock, Vote,
};
use redlockd::types::Fence;

use super::{Rig, Who, config, now, params};
use crate::support::redis_server::{Options, RedisServer};

async fn status(rig: &Rig, request: Request) -> NodeStatus {
    match rig.reply(request).await {
        Reply::Status(status) => status,
        reply => panic!("{reply:?}"),
    }
}

fn is_quarantined(status: &NodeStatus, why: &str) -> bool {
    matches!(status.vote, Vote::NoVote(NoVote::Quarantined { left_ms }) if left_ms > 0) && status.why == why
}

/// ClusterParams whose quarantine is over as soon as it began.
fn brief() -> Arc<ClusterParams> {
    Arc::new(ClusterParams { quarantine: Duration::from_millis(1), ..params() })
}

#[tokio::test]
async fn a_blank_node_has_no_vote_until_it_is_declared() {
    let server = RedisServer::start().await;
    let rig = Rig::connected(config(&server.url())).await;
    let init = status(&rig, Request::Init).await;
    assert_eq!((init.vote, init.why.as_str()), (Vote::Active, "init"));
    assert_eq!(status(&rig, Request::Init).await.vote, Vote::AlreadyInitialised);
    assert_eq!(status(&rig, Request::Probe).await.vote, Vote::Active);
    assert_eq!(rig.node.report().run_id, init.run);
    server.ask::<()>(&["FLUSHALL"]).await;
    assert!(is_quarantined(&status(&rig, Request::Probe).await, "blank"));
    let a = Who::wanting("r");
    assert!(matches!(rig.reply(a.acquire(1_000)).await, Reply::NoVote(NoVote::Quarantined { .. })));
    let Reply::Inspected(NodeInspection { no_vote, lock }) = rig.reply(a.inspect()).await else { panic!("not seen") };
    assert!(matches!((no_vote, lock), (Some(NoVote::Quarantined { .. }), StoredLock::Free)));
}

#[tokio::test]
async fn a_request_from_an_hour_ago_or_ahead_is_refused_and_changes_nothing() {
    let server = RedisServer::start().await;
    let rig = Rig::connected(config(&server.url())).await;
    let hour = Duration::from_hours(1).as_micros() as u64;
    let early = RequestTime(now().0 - hour);
    for sent_at in [early, RequestTime(now().0 + hour)] {
        let Ok(Reply::Status(status)) = rig.ask_at(sent_at, Request::Init).await else { panic!("no status") };
        assert!(
            matches!(status.vote, Vote::NoVote(NoVote::ClockOff { node_us }) if node_us.abs_diff(now().0) < hour / 2)
        );
    }
    rig.reply(Request::Init).await;
    let a = Who::wanting("r");
    for sent_at in [early, RequestTime(now().0 + hour)] {
        let answer = rig.ask_at(sent_at, a.acquire(1_000)).await;
        assert!(matches!(answer, Ok(Reply::NoVote(NoVote::ClockOff { .. }))), "{answer:?}");
    }
    rig.granted(&a, 10_000).await;
    let answer = rig.ask_at(early, a.extend(None)).await;
    assert!(matches!(answer, Ok(Reply::NoVote(NoVote::ClockOff { .. }))), "{answer:?}");
    assert!(matches!(rig.ask_at(early, a.release()).await, Ok(Reply::Released(_))), "giving back is always allowed");
}

#[tokio::test]
async fn another_cluster_gets_no_vote_and_takes_no_node_over() {
    let server = RedisServer::start().await;
    let rig = Rig::voting(&server).await;
    let mut other = config(&server.url());
    other.params = Arc::new(ClusterParams { cluster: "c2".into(), ..params() });
    let other = Rig::connected(other).await;
    let theirs = Reply::NoVote(NoVote::OtherCluster { theirs: "c1".into() });
    assert_eq!(other.reply(Who::wanting("r").acquire(1_000)).await, theirs);
    assert!(matches!(status(&other, Request::Probe).await.vote, Vote::NoVote(NoVote::OtherCluster { .. })));
    rig.granted(&Who::wanting("r"), 1_000).await;
    assert!(is_quarantined(&status(&other, Request::Quarantine).await, "ordered"));
    assert_eq!(other.reply(Who::wanting("s").acquire(1_000)).await, theirs);
    assert!(is_quarantined(&status(&rig, Request::Probe).await, "ordered"), "the list stays whose it was");
}

#[tokio::test]
async fn a_restart_costs_the_vote_until_the_quarantine_is_served_and_seeded() {
    let mut server = RedisServer::start_with(Options { appendonly: true, ..Options::default() }).await;
    let mut brief_config = config(&server.url());
    brief_config.params = brief();
    let rig = Rig::connected(brief_config).await;
    let before = status(&rig, Request::Init).await;
    let a = Who::wanting("r");
    rig.granted(&a, 60_000).await;
    server.kill();
    server.restart().await;
    crate::support::poll::until_true("another process is met", || {
        let report = rig.node.report();
        report.connected && report.run_id != before.run
    })
    .await;
    let Reply::NoVote(NoVote::Quarantined { .. }) = rig.reply(Who::wanting("s").acquire(1_000)).await else {
        panic!("it voted")
    };
    let served = crate::support::poll::until("the quarantine is served", || async {
        match status(&rig, Request::Probe).await {
            NodeStatus { vote: Vote::NoVote(NoVote::Unseeded { high_water }), why, .. } => Some((high_water, why)),
            _ => None,
        }
    })
    .await;
    assert_eq!(served.1, "restart");
    assert!(
        matches!(rig.reply(a.extend(None)).await, Reply::NoVote(NoVote::Unseeded { .. })),
        "extended, without a vote"
    );
    let seed = Fence(served.0.0 + 5_000_000);
    assert_eq!(status(&rig, Request::Activate { seed }).await.vote, Vote::Active);
    assert_eq!(rig.granted(&Who::wanting("s"), 1_000).await, Fence(seed.0 + 1));
    assert!(matches!(rig.reply(a.extend(None)).await, Reply::Updated { .. }));
}

#[tokio::test]
async fn a_longer_quarantine_of_one_instance_counts_for_all() {
    let server = RedisServer::start().await;
    let rig = Rig::voting(&server).await;
    let mut longer = config(&server.url());
    let quarantine = params().quarantine.saturating_mul(2);
    longer.params = Arc::new(ClusterParams { quarantine, ..params() });
    let longer = Rig::connected(longer).await;
    rig.granted(&Who::wanting("a"), 1_000).await;
    longer.granted(&Who::wanting("b"), 1_000).await;
    rig.granted(&Who::wanting("c"), 1_000).await;
    let ordered = status(&rig, Request::Quarantine).await;
    assert_eq!(ordered.vote, Vote::NoVote(NoVote::Quarantined { left_ms: quarantine.as_millis() as u64 }));
}

#[tokio::test]
async fn a_quarantine_that_another_replaced_is_owed_where_its_clock_returns() {
    let server = RedisServer::start().await;
    let rig = Rig::voting(&server).await;
    let (first, meta) = (status(&rig, Request::Quarantine).await.until_us, "redlockd:meta");
    status(&rig, Request::Quarantine).await;
    assert_eq!(server.ask::<u64>(&["HGET", meta, "owed"]).await, first);
    // As if the second one had begun, and ended, by a clock that was an hour behind.
    server.ask::<()>(&["HSET", meta, "until", "1"]).await;
    assert!(is_quarantined(&status(&rig, Request::Probe).await, "ordered"));
    // As if the first one had begun by a clock that was ahead.
    let quarantine = params().quarantine.as_micros() as u64;
    server.ask::<()>(&["HSET", meta, "owed", &(now().0 + 3 * quarantine).to_string()]).await;
    let high_water = match status(&rig, Request::Probe).await.vote {
        Vote::NoVote(NoVote::Unseeded { high_water }) => high_water,
        vote => panic!("{vote:?}"),
    };
    let seed = Fence(high_water.0 + 1);
    assert_eq!(status(&rig, Request::Activate { seed }).await.vote, Vote::Active);
    assert_eq!(server.ask::<u64>(&["HGET", meta, "owed"]).await, 0, "all is served");
}

#[tokio::test]
async fn a_quarantine_that_was_ordered_by_another_clock_is_owed_by_that_one() {
    let server = RedisServer::start().await;
    let rig = Rig::voting(&server).await;
    let hour_ahead = RequestTime(now().0 + 3_600_000_000);
    let ordered = rig.ask_at(hour_ahead, Request::Quarantine).await.expect("an answer");
    assert!(matches!(ordered, Reply::Status(NodeStatus { vote: Vote::NoVote(NoVote::Quarantined { .. }), .. })));
    let quarantine = params().quarantine.as_micros() as u64;
    assert_eq!(server.ask::<u64>(&["HGET", "redlockd:meta", "owed"]).await, hour_ahead.0 + quarantine);
}

#[tokio::test]
async fn an_eviction_costs_the_vote() {
    let server = RedisServer::start().await;
    let rig = Rig::voting(&server).await;
    server.ask::<()>(&["HSET", "redlockd:meta", "ev", "1"]).await;
    assert!(is_quarantined(&status(&rig, Request::Probe).await, "evicted"));
}

#[tokio::test]
async fn scripts_read_the_run_id_themselves_where_told_so() {
    let server = RedisServer::start().await;
    let mut by_script = config(&server.url());
    by_script.identity = Identity::Script;
    let by_script = Rig::connected(by_script).await;
    let by_hand_shake = Rig::voting(&server).await;
    by_script.granted(&Who::wanting("a"), 1_000).await;
    by_hand_shake.granted(&Who::wanting("b"), 1_000).await;
    server.ask::<()>(&["HSET", "redlockd:meta", "run", "0", "pass", ""]).await;
    assert!(is_quarantined(&status(&by_script, Request::Probe).await, "restart"));
}

#[tokio::test]
async fn a_marker_of_nonsense_is_an_error_and_no_vote() {
    let server = RedisServer::start().await;
    let rig = Rig::voting(&server).await;
    server.ask::<()>(&["SET", "redlockd:meta", "nonsense"]).await;
    use redlockd::protocol::UnreachableKind;
    assert_eq!(rig.error(Who::wanting("r").acquire(1_000)).await, UnreachableKind::Protocol);
}
