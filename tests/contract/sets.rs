//! Cases about sets: several resources with one token, all of them or none.

use std::sync::Arc;
use std::time::Duration;

use redlockd::protocol::{
    AcquireSetArgs, AcquireSharedArgs, EndReason, Found, IntentArgs, ListArgs, MAX_CLAIMS, NoVote, NodeGrant,
    NodeInspection, ReadArgs, ReadEntry, Released, Reply, Request, RequestTime, SET_MAX, StoredLock,
};
use redlockd::types::{Fence, Mode, WantedMode};

use super::subject::{
    GUARD, Server, Subject, acquire, attempt, cancel, extend, inspect, name, params, release, token, ttl,
};

pub fn set(resources: &[&str], by: u64, at: u64, ms: u64) -> Request {
    set_in(resources, by, at, ms, false)
}

fn set_in(resources: &[&str], by: u64, at: u64, ms: u64, is_shared: bool) -> Request {
    Request::AcquireSet(AcquireSetArgs {
        resources: resources.iter().map(|text| name(text)).collect(),
        token: token(by),
        attempt: attempt(at),
        ttl: ttl(ms),
        labels: r#"{"o":"me|you"}"#.into(),
        is_shared,
    })
}

fn granted(node: &mut impl Subject, request: &Request) -> Vec<NodeGrant> {
    match node.ask(request) {
        Reply::SetGranted { leases } => leases,
        other => panic!("{request:?}: {other:?}"),
    }
}

fn refused(node: &mut impl Subject, request: &Request) -> Vec<(usize, Reply)> {
    match node.ask(request) {
        Reply::SetRefused { refused } => refused,
        other => panic!("{request:?}: {other:?}"),
    }
}

/// Token and claims at the resource; `None` if it is free.
fn holder(node: &mut impl Subject, resource: &str) -> Option<(bool, Arc<str>, Fence)> {
    match node.ask(&inspect(resource)) {
        Reply::Inspected(seen) => match seen.lock {
            StoredLock::Lease { record, .. } => Some((record.token == token(1), record.claims, record.fence)),
            StoredLock::Free => None,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

pub fn a_shared_set_is_members_beside_others(node: &mut impl Subject) {
    let first = granted(node, &set_in(&["a", "b"], 1, 1, 10_000, true));
    let second = granted(node, &set_in(&["b", "c"], 2, 2, 20_000, true));
    assert!(second[0].fence > first[1].fence && first.iter().chain(&second).all(|lease| !lease.joined));
    let members = |node: &mut _, resource| match Subject::ask(node, &inspect(resource)) {
        Reply::Inspected(NodeInspection { lock: StoredLock::Members(members), .. }) => members.len(),
        other => panic!("{resource}: {other:?}"),
    };
    assert_eq!([members(node, "a"), members(node, "b"), members(node, "c")], [1, 2, 1]);
    assert_eq!(granted(node, &set_in(&["a", "b"], 1, 1, 10_000, true))[0], NodeGrant { joined: true, ..first[0] });
    // Neither takes a part beside the other mode, and each says who holds.
    let by_members = refused(node, &set(&["free", "b"], 3, 3, 1_000));
    assert!(matches!(&by_members[..], [(1, Reply::HeldByMembers(held))] if held.members.len() == 2), "{by_members:?}");
    assert!(matches!(node.ask(&acquire("writer", 4, 4, 10_000)), Reply::Granted { .. }));
    let by_writer = refused(node, &set_in(&["free", "writer"], 3, 5, 1_000, true));
    assert!(matches!(&by_writer[..], [(1, Reply::Held { record: Some(_), .. })]), "{by_writer:?}");
    assert_eq!(holder(node, "free"), None);
    let own = refused(node, &set(&["a", "free"], 1, 6, 1_000));
    assert_eq!(own, [(0, Reply::ModeDiffers { mode: Mode::Shared })]);
    let back = refused(node, &set_in(&["free", "writer"], 4, 7, 1_000, true));
    assert_eq!(back, [(1, Reply::ModeDiffers { mode: Mode::Exclusive })]);
    // A caller that waits keeps new ones out of what it waits for.
    assert_eq!(node.ask(&intent("a", 9, 1)), Reply::Intent { is_own: true });
    let waits = refused(node, &set_in(&["a", "free"], 3, 8, 1_000, true));
    assert!(matches!(&waits[..], [(0, Reply::HeldByMembers(held))] if held.is_intent), "{waits:?}");
    granted(node, &set_in(&["a", "b"], 1, 9, 10_000, true));
}

fn intent(resource: &str, t: u64, since: u64) -> Request {
    let (mode, since) = (WantedMode::Exclusive, RequestTime(since));
    Request::Intent(IntentArgs { resource: name(resource), token: token(t), since, mode, is_withdrawn: false })
}

pub fn who_has_waited_longest_is_next(node: &mut impl Subject) {
    let own = |is_own| Reply::Intent { is_own };
    assert_eq!(node.ask(&intent("a", 1, 100)), own(true));
    assert_eq!(node.ask(&intent("a", 2, 200)), own(false), "it has waited for a shorter time");
    // Nobody else takes it meanwhile, alone or in a set.
    let is_next = |reply: &Reply| matches!(reply, Reply::HeldByMembers(held) if held.is_intent && held.kind.is_none());
    let single = node.ask(&acquire("a", 2, 1, 1_000));
    assert!(is_next(&single), "{single:?}");
    for is_shared in [false, true] {
        let refused = refused(node, &set_in(&["free", "a"], 2, 2 + u64::from(is_shared), 1_000, is_shared));
        assert!(matches!(&refused[..], [(1, reply)] if is_next(reply)), "{refused:?}");
    }
    assert_eq!(holder(node, "free"), None);
    // But who holds one of the set goes on: the other may be waiting for that.
    assert!(matches!(node.ask(&acquire("held", 2, 4, 10_000)), Reply::Granted { .. }));
    assert_eq!(granted(node, &set(&["held", "a"], 2, 5, 10_000)).len(), 2);
    assert_eq!(node.ask(&release("a", 2)), Reply::Released(Released { found: Found::Match, earlier: None }));
    // Who has waited longer takes its place, and is let in; the former is not, and readers are let in beside a reader only.
    assert_eq!(node.ask(&intent("a", 3, 50)), own(true));
    assert_eq!(node.ask(&intent("a", 1, 100)), own(false));
    assert!(is_next(&node.ask(&acquire("a", 1, 6, 1_000))));
    assert!(matches!(node.ask(&acquire("a", 3, 7, 1_000)), Reply::Granted { .. }));
    let (mode, since) = (WantedMode::Shared, RequestTime(1));
    let reader = IntentArgs { resource: name("read"), token: token(1), since, mode, is_withdrawn: false };
    assert_eq!(node.ask(&Request::Intent(reader)), own(true));
    assert!(is_next(&node.ask(&acquire("read", 2, 8, 1_000))));
    assert_eq!(granted(node, &set_in(&["read", "other"], 4, 9, 1_000, true)).len(), 2);
}

pub fn a_set_is_ordinary_leases(node: &mut impl Subject) {
    let before = node.now_us();
    let leases = granted(node, &set(&["a", "b", "c"], 1, 1, 10_000));
    assert!(leases.len() == 3 && leases.iter().all(|lease| !lease.joined && lease.fence.0 >= before), "{leases:?}");
    for (resource, lease) in ["a", "b", "c"].into_iter().zip(&leases) {
        let claims = format!("{},", attempt(1).as_str());
        assert_eq!(holder(node, resource), Some((true, claims.as_str().into(), lease.fence)), "{resource}");
        assert!(matches!(node.ask(&acquire(resource, 2, 2, 1_000)), Reply::Held { record: Some(_), .. }));
    }
    let Reply::Page { leases: listed, .. } = node.ask(&Request::List(ListArgs { cursor: 0, count: 50 })) else {
        panic!("no page")
    };
    assert_eq!(listed.len(), 3, "each is indexed");
    assert!(matches!(node.ask(&extend("b", 1, Some(20_000), Some(leases[1].fence))), Reply::Updated { .. }));
    node.ask(&release("a", 1));
    assert!(holder(node, "a").is_none() && holder(node, "b").is_some() && holder(node, "c").is_some());
    let Reply::Granted { fence, joined: false } = node.ask(&acquire("a", 2, 2, 1_000)) else { panic!("it is free") };
    assert!(fence > leases[0].fence);
}

pub fn a_set_that_is_refused_takes_nothing(node: &mut impl Subject) {
    node.ask(&acquire("b", 2, 2, 10_000));
    node.ask(&acquire("d", 3, 3, 10_000));
    let blockers = refused(node, &set(&["a", "b", "c", "d"], 1, 1, 10_000));
    let shown = blockers.iter().map(|(index, why)| match why {
        Reply::Held { left_ms: Some(5_000..=10_020), record: Some(record) } => (*index, record.token.clone()),
        other => panic!("{other:?}"),
    });
    assert_eq!(shown.collect::<Vec<_>>(), [(1, token(2)), (3, token(3))], "each that keeps it out, and by whom");
    assert!(holder(node, "a").is_none() && holder(node, "c").is_none());
    node.ask(&release("b", 2));
    assert_eq!(refused(node, &set(&["a", "b", "c", "d"], 1, 1, 10_000)).len(), 1);
    node.ask(&release("d", 3));
    assert_eq!(granted(node, &set(&["a", "b", "c", "d"], 1, 1, 10_000)).len(), 4);
}

pub fn a_token_that_holds_some_of_a_set_acquires_the_rest(node: &mut impl Subject) {
    let Reply::Granted { fence, .. } = node.ask(&acquire("b", 1, 1, 20_000)) else { panic!("it is free") };
    node.ask(&acquire("c", 2, 2, 20_000));
    refused(node, &set(&["a", "b", "c"], 1, 3, 30_000));
    let claims: Arc<str> = format!("{},", attempt(1).as_str()).into();
    assert_eq!(holder(node, "b"), Some((true, claims, fence)), "a refusal changes nothing of what it held");
    node.ask(&release("c", 2));
    let leases = granted(node, &set(&["a", "b", "c"], 1, 4, 1_000));
    let joined: Vec<bool> = leases.iter().map(|lease| lease.joined).collect();
    assert_eq!((joined, leases[1].fence), (vec![false, true, false], fence), "its fence stays");
    let Reply::Updated { before_ms, .. } = node.ask(&extend("b", 1, None, None)) else { panic!("it stands") };
    assert!(before_ms > 10_000, "a shorter TTL does not shorten what it held: {before_ms}");
    for resource in ["a", "b", "c"] {
        node.ask(&cancel(resource, 1, 4));
    }
    assert!(holder(node, "a").is_none() && holder(node, "c").is_none());
    assert!(holder(node, "b").is_some(), "a cancel of the set's attempt leaves what it held before");
}

pub fn a_set_that_arrives_after_the_cancel_of_one_of_it_is_refused(node: &mut impl Subject) {
    node.ask(&cancel("b", 1, 1));
    let why = Reply::Ended { reason: EndReason::Cancelled };
    assert_eq!(refused(node, &set(&["a", "b"], 1, 1, 10_000)), [(1, why)]);
    assert!(holder(node, "a").is_none());
    granted(node, &set(&["a", "b"], 1, 2, 10_000));
    node.ask(&release("a", 1));
    let why = Reply::Ended { reason: EndReason::Released };
    assert_eq!(refused(node, &set(&["a", "b", "c"], 1, 3, 10_000)), [(0, why)], "a released token is not revived");
    assert!(holder(node, "b").is_some() && holder(node, "c").is_none());
}

pub fn a_set_is_claimed_once_by_each_attempt_and_not_too_often(node: &mut impl Subject) {
    let first = granted(node, &set(&["a", "b"], 1, 1, 10_000));
    let again = granted(node, &set(&["a", "b"], 1, 1, 10_000));
    assert!(again.iter().zip(&first).all(|(now, then)| now.joined && now.fence == then.fence), "{again:?}");
    for at in 2..=u64::try_from(MAX_CLAIMS).expect("small") {
        node.ask(&acquire("a", 1, at, 10_000));
    }
    assert_eq!(refused(node, &set(&["a", "b"], 1, 99, 10_000)), [(0, Reply::TooManyClaims)]);
    let Reply::Released(Released { found, .. }) = node.ask(&cancel("b", 1, 99)) else { panic!("a cancel") };
    assert_eq!(found, Found::Other, "the refused attempt claims nothing");
}

pub fn the_largest_set_is_taken_and_given_back(node: &mut impl Subject) {
    let names: Vec<String> = (0..SET_MAX).map(|i| format!("many/{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(granted(node, &set(&names, 1, 1, 100)).len(), SET_MAX);
    node.pass(Duration::from_millis(200));
    let next = granted(node, &set(&names, 2, 2, 10_000));
    assert!(next.iter().all(|lease| !lease.joined), "they ran out with their TTL and the lock delay");
}

pub fn a_late_set_gets_no_vote(node: &mut impl Subject) {
    let now = node.now_us();
    let late = RequestTime(now - u64::try_from(2 * GUARD.as_micros()).expect("short"));
    let reply = node.ask_with(late, &params(), &set(&["a", "b"], 1, 1, 10_000));
    assert!(matches!(reply, Ok(Reply::NoVote(NoVote::ClockOff { .. }))), "{reply:?}");
    assert!(holder(node, "a").is_none() && holder(node, "b").is_none());
}

pub fn a_foreign_lock_of_any_type_keeps_a_set_out(node: &mut impl Server) {
    node.foreign_list(&name("c"), Some(20_000));
    node.foreign_set(&name("b"), b"theirs", None);
    let blockers = refused(node, &set(&["a", "b", "c"], 1, 1, 10_000));
    assert_eq!(blockers[0], (1, Reply::Held { left_ms: None, record: None }));
    assert!(matches!(blockers[1], (2, Reply::Held { left_ms: Some(_), record: None })), "{blockers:?}");
    assert!(holder(node, "a").is_none());
    assert!(node.foreign_delete(&name("b")) && node.foreign_delete(&name("c")));
    granted(node, &set(&["a", "b", "c"], 1, 1, 10_000));
    assert!(!node.foreign_acquire(&name("b"), b"theirs", 20_000), "a set keeps foreign clients out");
}

/// Seed 86620 of the simulation: it would keep everybody out for as long as the clock was ahead.
pub fn an_intent_from_before_the_clock_went_back_does_not_count(node: &mut impl Server) {
    node.ask_ahead(&intent("a", 9, 1), &name("a"), 3_600_000);
    assert!(matches!(node.ask(&acquire("a", 1, 1, 10_000)), Reply::Granted { .. }));
    node.ask(&release("a", 1));
    assert_eq!(granted(node, &set(&["a", "b"], 2, 2, 10_000)).len(), 2);
    [release("a", 2), release("b", 2)].iter().for_each(|release| drop(node.ask(release)));
    assert_eq!(granted(node, &set_in(&["a", "b"], 3, 3, 10_000, true)).len(), 2);
    let reader = AcquireSharedArgs {
        resource: name("a"),
        token: token(4),
        mode: Mode::Shared,
        attempt: attempt(4),
        ttl: ttl(10_000),
        labels: "".into(),
        proposed: None,
    };
    let admitted = node.ask(&Request::AcquireShared(reader));
    assert!(matches!(admitted, Reply::Admitted { .. }), "{admitted:?}");
    assert_eq!(node.ask(&intent("a", 5, 100)), Reply::Intent { is_own: true }, "it does not stand before a later one");
}

/// Somebody deletes the lock's key, and its members stay: they hold nothing.
pub fn a_refusal_names_no_members_of_a_lock_that_was_deleted(node: &mut impl Server) {
    assert_eq!(granted(node, &set_in(&["a", "b"], 1, 1, 10_000, true)).len(), 2);
    assert!(node.foreign_delete(&name("b")));
    assert_eq!(node.ask(&intent("b", 9, 1)), Reply::Intent { is_own: true });
    let why = refused(node, &set(&["a", "b"], 2, 2, 1_000));
    let members = why.iter().map(|(index, reply)| match reply {
        Reply::HeldByMembers(held) => (*index, held.is_intent, held.members.len()),
        other => panic!("{other:?}"),
    });
    assert_eq!(members.collect::<Vec<_>>(), [(0, false, 1), (1, true, 0)]);
}

/// An intent decides the order for two seconds, nobody's exclusion: a process that forgot is filled without it.
pub fn an_intent_is_not_filled(node: &mut impl Subject) {
    assert_eq!(node.ask(&intent("a", 9, 1)), Reply::Intent { is_own: true });
    assert!(matches!(node.ask(&acquire("b", 1, 1, 10_000)), Reply::Granted { .. }));
    let read = Request::Read(ReadArgs { cursor: 0, count: 500 });
    let Reply::Knowledge { next: None, entries, .. } = node.ask(&read) else { panic!("one page") };
    assert!(matches!(&entries[..], [ReadEntry::Lease { resource, .. }] if *resource == name("b")), "{entries:?}");
}
