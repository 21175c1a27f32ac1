//! Each request about a lease, in all its branches.

use redlockd::protocol::{
    DeleteForeignArgs, EndReason, Found, LeaseRecord, ListArgs, NodeInspection, Released, Reply, Request, RestoreArgs,
    StoredLock, UpdateKind,
};
use redlockd::redlock::node::Node;
use redlockd::redlock::notifications::{NotificationSource, Topic};
use redlockd::types::{Fence, Mode, ResourceName};

use super::{Holder, TestNode, now, ttl};
use crate::support::poll;
use crate::support::redis_server::RedisServer;

fn released(found: Found, earlier: Option<EndReason>) -> Reply {
    Reply::Released(Released { found, earlier })
}

async fn seen(node: &TestNode, who: &Holder) -> StoredLock {
    match node.reply(who.inspect()).await {
        Reply::Inspected(NodeInspection { no_vote: None, lock, .. }) => lock,
        reply => panic!("{reply:?}"),
    }
}

async fn lease(node: &TestNode, who: &Holder) -> (LeaseRecord, u64) {
    match seen(node, who).await {
        StoredLock::Lease { record, left_ms } => (record, left_ms),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_free_resource_is_granted_and_held_against_others() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let (a, b) = (Holder::of("deploy/prod"), Holder::of("deploy/prod"));
    let sent = now();
    let Reply::Granted { fence, joined: false } = node.reply(a.acquire(30_000)).await else { panic!("not granted") };
    assert!(fence.0 >= sent.0, "a fence is no less than the time of sending of its request");
    match node.reply(b.acquire(30_000)).await {
        Reply::Held { left_ms: Some(left), record: Some(record) } => {
            assert!((1..=31_000).contains(&left), "{left}");
            assert_eq!((record.token, record.fence, record.ttl), (a.token.clone(), fence, ttl(30_000)));
        }
        reply => panic!("{reply:?}"),
    }
    let left: i64 = server.ask(&["PTTL", "deploy/prod"]).await;
    assert!(left > 30_000, "the node holds it for the TTL and the lock delay: {left}");
    assert_eq!(node.reply(a.release()).await, released(Found::Match, None));
    assert!(node.granted(&b, 30_000).await > fence);
}

#[tokio::test]
async fn the_same_token_joins_with_its_fence_until_sixteen_attempts_claim_it() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("r");
    let fence = node.granted(&a, 1_000).await;
    for _ in 1..16 {
        assert_eq!(node.reply(a.again().acquire(2_000)).await, Reply::Granted { fence, joined: true });
    }
    assert_eq!(node.reply(a.acquire(2_000)).await, Reply::Granted { fence, joined: true }, "a claim that is there");
    assert_eq!(node.reply(a.again().acquire(2_000)).await, Reply::TooManyClaims);
    let (record, left) = lease(&node, &a).await;
    assert_eq!(record.claims.matches(',').count(), 16);
    assert_eq!(record.ttl, ttl(1_000));
    assert!(left > 2_000, "a join may lengthen: {left}");
}

#[tokio::test]
async fn foreign_keys_of_any_type_are_held_and_not_touched() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let set = |words: &'static [&'static str]| server.ask::<deadpool_redis::redis::Value>(words);
    set(&["SET", "with-ttl", "f00", "PX", "60000"]).await;
    set(&["SET", "no-ttl", "f00"]).await;
    set(&["HSET", "hash", "f", "v"]).await;
    for (name, has_ttl) in [("with-ttl", true), ("no-ttl", false), ("hash", false)] {
        let who = Holder::of(name);
        match node.reply(who.acquire(1_000)).await {
            Reply::Held { left_ms, record: None } => assert_eq!(left_ms.is_some(), has_ttl, "{name}"),
            reply => panic!("{name}: {reply:?}"),
        }
        assert_eq!(node.reply(who.release()).await, released(Found::Other, None));
        let other = Reply::Other { fence: None };
        assert_eq!(node.reply(Holder::of(name).extend(None)).await, other);
        assert_eq!(node.reply(Holder::of(name).revoke()).await, other);
        let StoredLock::Foreign { left_ms, fingerprint } = seen(&node, &who).await else { panic!("{name}") };
        assert_eq!(left_ms.is_some(), has_ttl);
        assert_eq!(&*fingerprint == "type:hash", name == "hash");
        assert!(!fingerprint.contains("f00"));
        assert_eq!(server.ask::<i64>(&["EXISTS", name]).await, 1);
    }
}

#[tokio::test]
async fn released_cancelled_and_revoked_leases_stay_ended() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("r");
    let fence = node.granted(&a, 10_000).await;
    assert_eq!(node.reply(a.end(EndReason::Forced)).await, released(Found::Match, None));
    assert_eq!(node.reply(a.release()).await, released(Found::Nothing, Some(EndReason::Forced)), "idempotent");
    let ended = Reply::Ended { reason: EndReason::Forced };
    assert_eq!(node.reply(a.acquire(10_000)).await, ended);
    assert_eq!(node.reply(a.again().acquire(10_000)).await, ended);
    assert_eq!(node.reply(a.extend(None)).await, ended);
    let record = LeaseRecord {
        mode: Mode::Exclusive,
        token: a.token.clone(),
        renewals: 0,
        ttl: ttl(10_000),
        fence,
        claims: "p,".into(),
        labels: "{}".into(),
    };
    assert_eq!(
        node.reply(Request::Restore(RestoreArgs { resource: a.resource.clone(), record, left_ms: 5_000 })).await,
        ended
    );

    let b = Holder::of("r");
    assert_eq!(node.reply(b.cancel()).await, released(Found::Nothing, None), "before its acquire arrived");
    assert_eq!(node.reply(b.acquire(10_000)).await, Reply::Ended { reason: EndReason::Cancelled });
    assert!(matches!(node.reply(b.again().acquire(10_000)).await, Reply::Granted { joined: false, .. }));
    assert!(matches!(node.reply(b.revoke()).await, Reply::Revoked { left_ms: 1..=11_000 }));
    let revoked = Reply::Ended { reason: EndReason::Revoked };
    assert_eq!(node.reply(b.extend(None)).await, revoked);
    assert_eq!(node.reply(b.again().acquire(10_000)).await, revoked);
    assert!(matches!(seen(&node, &b).await, StoredLock::Lease { .. }), "it keeps its end");
    assert_eq!(node.reply(b.release()).await, released(Found::Match, Some(EndReason::Revoked)));
    assert_eq!(node.reply(b.release()).await, released(Found::Nothing, Some(EndReason::Released)));
    assert_eq!(node.reply(b.revoke()).await, Reply::Missing);
    let c = Holder::of("r");
    node.granted(&c, 10_000).await;
    assert_eq!(node.reply(b.revoke()).await, Reply::Other { fence: None });
    assert_eq!(node.reply(b.release()).await, released(Found::Other, Some(EndReason::Released)));
}

#[tokio::test]
async fn a_cancel_removes_its_own_claim_and_the_last_one_ends_the_lease() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let first = Holder::of("r");
    let second = first.again();
    node.granted(&first, 10_000).await;
    node.granted(&second, 10_000).await;
    assert_eq!(node.reply(first.again().cancel()).await, released(Found::Other, None), "a claim that is not there");
    assert_eq!(node.reply(first.cancel()).await, released(Found::Match, None));
    let (record, _) = lease(&node, &first).await;
    assert_eq!(*record.claims, format!("{},", second.attempt.as_str()));
    assert_eq!(node.reply(second.cancel()).await, released(Found::Match, None));
    assert_eq!(seen(&node, &first).await, StoredLock::Free);
    assert_eq!(node.reply(second.cancel()).await, released(Found::Nothing, Some(EndReason::Cancelled)));
}

#[tokio::test]
async fn an_extend_never_creates_and_never_shortens() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("r");
    assert_eq!(node.reply(a.extend(None)).await, Reply::Missing);
    let fence = node.granted(&a, 10_000).await;
    let kept = |reply| match reply {
        Reply::Updated { record, before_ms } => (record, before_ms),
        reply => panic!("{reply:?}"),
    };
    let (record, before) = kept(node.reply(a.extend(Some(60_000))).await);
    assert_eq!((record.fence, record.ttl, record.renewals), (fence, ttl(10_000), 1));
    assert_eq!(record, lease(&node, &a).await.0, "the answer is the lease as it stands");
    assert!((1..=11_000).contains(&before), "{before}");
    let (_, before) = kept(node.reply(a.extend(None)).await);
    assert!(before > 50_000, "{before}");
    let (kept_record, before) =
        kept(node.reply(a.update(Some(1), None, UpdateKind::Edit, Some("{\"n\":\"x\"}"))).await);
    assert!(before > 50_000, "an extend by less shortened it to {before}");
    let (record, _) = lease(&node, &a).await;
    assert_eq!((record.renewals, &*record.labels), (2, "{\"n\":\"x\"}"));
    assert_eq!(record, kept_record);
    assert_eq!(node.reply(Holder::of("r").extend(None)).await, Reply::Other { fence: None });
}

#[tokio::test]
async fn a_fence_only_rises_and_is_never_too_far_ahead() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("r");
    let fence = node.granted(&a, 10_000).await;
    let higher = Fence(fence.0 + 7);
    assert!(
        matches!(node.reply(a.update(None, Some(higher), UpdateKind::Edit, None)).await, Reply::Updated { record, .. } if record.fence == higher)
    );
    assert_eq!(
        node.reply(a.update(None, Some(fence), UpdateKind::Edit, None)).await,
        Reply::Other { fence: Some(higher) }
    );
    let future = Fence(fence.0 + 3_600_000_000);
    assert_eq!(node.reply(a.update(None, Some(future), UpdateKind::Edit, None)).await, Reply::FenceTooFarAhead);
    let (record, _) = lease(&node, &a).await;
    assert_eq!(record.fence, higher);
    node.reply(a.release()).await;
    // A stamp that lies before the last fence: the counter keeps the fences rising all the same.
    let b = Holder::of("r");
    let next = node.ask_at(redlockd::protocol::RequestTime(fence.0 - 1_000), b.acquire(10_000)).await;
    assert_eq!(next, Ok(Reply::Granted { fence: Fence(higher.0 + 1), joined: false }));
}

#[tokio::test]
async fn a_missing_lease_is_restored_once_and_extended() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("r");
    let fence = Fence(now().0);
    let record = LeaseRecord {
        mode: Mode::Exclusive,
        token: a.token.clone(),
        renewals: 3,
        ttl: ttl(10_000),
        fence,
        claims: "p,".into(),
        labels: "{}".into(),
    };
    let restore =
        Request::Restore(RestoreArgs { resource: a.resource.clone(), record: record.clone(), left_ms: 9_000 });
    assert_eq!(node.reply(restore.clone()).await, Reply::Restored);
    assert_eq!(node.reply(restore).await, Reply::Other { fence: None });
    let (found, left) = lease(&node, &a).await;
    assert_eq!(found, record);
    assert!((1..=9_000).contains(&left), "{left}");
    assert!(matches!(node.reply(a.extend(None)).await, Reply::Updated { .. }));
    let future = LeaseRecord { fence: Fence(fence.0 + 3_600_000_000), ..record };
    let late = Request::Restore(RestoreArgs {
        resource: ResourceName::parse("s").expect("valid"),
        record: future,
        left_ms: 9_000,
    });
    assert_eq!(node.reply(late).await, Reply::FenceTooFarAhead);
}

#[tokio::test]
async fn deleting_a_foreign_lock_requires_the_inspected_value() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let who = Holder::of("r");
    let delete_foreign = |print: &str| {
        Request::DeleteForeign(DeleteForeignArgs { resource: who.resource.clone(), fingerprint: print.into() })
    };
    assert_eq!(node.reply(delete_foreign("type:hash")).await, released(Found::Nothing, None));
    server.ask::<()>(&["SET", "r", "foreign"]).await;
    let StoredLock::Foreign { fingerprint, .. } = seen(&node, &who).await else { panic!("not foreign") };
    server.ask::<()>(&["SET", "r", "another"]).await;
    assert_eq!(node.reply(delete_foreign(&fingerprint)).await, released(Found::Other, None));
    let StoredLock::Foreign { fingerprint, .. } = seen(&node, &who).await else { panic!("not foreign") };
    assert_eq!(node.reply(delete_foreign(&fingerprint)).await, released(Found::Match, None));
    server.ask::<()>(&["HSET", "r", "f", "v"]).await;
    assert_eq!(node.reply(delete_foreign("type:hash")).await, released(Found::Match, None));
    node.granted(&who, 1_000).await;
}

#[tokio::test]
async fn the_pages_of_a_list_contain_every_held_lease_and_nothing_else() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let holders: Vec<Holder> = (0..300).map(|i| Holder::of(&format!("job/{i}"))).collect();
    for who in &holders {
        node.granted(who, 60_000).await;
    }
    node.reply(holders[0].release()).await;
    server.ask::<()>(&["DEL", "job/1"]).await;
    server.ask::<()>(&["SET", "job/2", "foreign"]).await;
    let (mut found, mut cursor, mut pages) = (std::collections::BTreeSet::new(), Some(0), 0);
    while let Some(at) = cursor {
        let Reply::Page { next, leases, .. } = node.reply(Request::List(ListArgs { cursor: at, count: 50 })).await
        else {
            panic!("no page")
        };
        for listed in leases {
            assert!(listed.left_ms > 30_000 && listed.record.ttl == ttl(60_000));
            found.insert(listed.resource.as_str().to_owned());
        }
        (cursor, pages) = (next, pages + 1);
    }
    assert!(pages > 1, "{pages}");
    let expected: std::collections::BTreeSet<_> = (3..300).map(|i| format!("job/{i}")).collect();
    assert_eq!(found, expected);
}

/// All names on pages of `count`, with repetitions.
async fn pages(node: &TestNode, count: u32) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), Some(0));
    while let Some(at) = cursor {
        let Reply::Page { next, leases, .. } = node.reply(Request::List(ListArgs { cursor: at, count })).await else {
            panic!("no page")
        };
        found.extend(leases.into_iter().map(|listed| listed.resource.as_str().to_owned()));
        cursor = next;
    }
    found.sort();
    found
}

#[tokio::test]
async fn leases_that_end_in_one_millisecond_are_all_listed_whatever_the_page_size() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    // More than a sorted set keeps in one piece, so that ZSCAN goes through it in steps.
    let names: Vec<String> = (100..400).map(|i| format!("job/{i}")).collect();
    for name in &names {
        node.granted(&Holder::of(name), 60_000).await;
    }
    let end = (now().0 / 1_000 + 61_000).to_string();
    let index = async |end: &str, names: &[String]| {
        let pairs = names.iter().flat_map(|name| [end, name.as_str()]);
        server.ask::<()>(&["ZADD", "redlockd:leases"].into_iter().chain(pairs).collect::<Vec<_>>()).await;
    };
    index(&end, &names[50..90]).await;
    assert_eq!(pages(&node, 50).await, names, "a page ends before them or behind them, never among them");
    index(&end, &names).await;
    for count in [1, 50, 300] {
        let mut found = pages(&node, count).await;
        found.dedup();
        assert_eq!(found, names, "in pages of {count}");
    }
    assert_eq!(pages(&node, 301).await, names);
}

#[tokio::test]
async fn expired_leases_are_removed_from_the_index_and_extended_ones_are_kept() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let (gone, stays) = (Holder::of("gone"), Holder::of("stays"));
    node.granted(&gone, 10_000).await;
    node.granted(&stays, 10_000).await;
    server.ask::<()>(&["DEL", "gone"]).await;
    // Both ends lie in the past, as if they had run out and one had been extended.
    server.ask::<()>(&["ZADD", "redlockd:leases", "1", "gone", "1", "stays"]).await;
    node.reply(Request::probe()).await;
    assert_eq!(server.ask::<Option<f64>>(&["ZSCORE", "redlockd:leases", "gone"]).await, None);
    assert!(server.ask::<f64>(&["ZSCORE", "redlockd:leases", "stays"]).await > 1_000.0);
}

/// F13: the index does not grow where as many leases run out unreleased as an instance can grant.
#[tokio::test]
async fn f13_one_probe_drains_what_ran_out_within_a_second() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let fill = "for i = 1, 8000 do redis.call('ZADD', 'redlockd:leases', 1, 'gone/' .. i) end";
    server.ask::<()>(&["EVAL", fill, "0"]).await;
    node.reply(Request::probe()).await;
    assert_eq!(server.ask::<u64>(&["ZCARD", "redlockd:leases"]).await, 0);
}

#[tokio::test]
async fn a_release_publishes_the_id_of_the_token_and_nothing_else() {
    use futures_util::StreamExt;
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let client = deadpool_redis::redis::Client::open(server.unix_url()).expect("valid");
    let mut subscriber = client.get_async_pubsub().await.expect("up");
    subscriber.subscribe("redlockd:freed:r").await.expect("up");
    let a = Holder::of("r");
    node.granted(&a, 10_000).await;
    node.reply(a.again().cancel()).await;
    node.reply(a.release()).await;
    // No instance listens yet: nothing was published for nobody.
    let a = Holder::of("r");
    server.ask::<()>(&["SET", "redlockd:notices", "1", "PX", "60000"]).await;
    node.granted(&a, 10_000).await;
    node.reply(a.release()).await;
    let notice = subscriber.on_message().next().await.expect("a notice").get_payload::<String>().expect("text");
    assert_eq!(notice, format!("r{}", a.token.id()));
}

/// What was published while the key was away is lost: the waiters must know.
#[tokio::test]
async fn subscriptions_count_as_lost_where_the_node_forgot_that_somebody_listens() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let NotificationSource::Subscriptions(subscriptions) = node.redis.notifications() else { panic!("it publishes") };
    let topic = Topic::LeaseEnded(ResourceName::parse("r").expect("valid"));
    subscriptions.subscribe(&topic);
    poll::until_true("it is confirmed", || subscriptions.is_active(&topic)).await;
    let listening = async || server.ask::<i64>(&["PTTL", "redlockd:notices"]).await;
    assert!((50_000..=60_000).contains(&listening().await));
    let ids = async || server.ask::<String>(&["CLIENT", "LIST", "TYPE", "PUBSUB"]).await;
    let before = ids().await;
    let id_of = |list: &str| list.split_whitespace().next().map(str::to_owned);
    server.ask::<()>(&["DEL", "redlockd:notices"]).await;
    poll::until("another connection subscribes", || async {
        let after = ids().await;
        (!after.is_empty() && id_of(&after) != id_of(&before)).then_some(())
    })
    .await;
    poll::until_true("it is confirmed again", || subscriptions.is_active(&topic)).await;
    assert!(listening().await > 50_000);
}

#[tokio::test]
async fn one_token_for_two_resources_ends_on_each_separately() {
    let server = RedisServer::start().await;
    let node = TestNode::voting(&server).await;
    let a = Holder::of("a");
    let b = Holder { resource: ResourceName::parse("b").expect("valid"), ..a.clone() };
    node.granted(&a, 10_000).await;
    node.granted(&b, 10_000).await;
    node.reply(a.release()).await;
    node.reply(a.cancel()).await;
    assert!(matches!(node.reply(b.extend(None)).await, Reply::Updated { .. }));
    assert!(matches!(node.reply(b.acquire(10_000)).await, Reply::Granted { joined: true, .. }));
}
