//! Cases about leases, for every node: reference, embedded and Redis.

use std::time::Duration;

use redlockd::protocol::{
    AdmitArgs, EndReason, Found, INDEX_MAX, LeaseRecord, ListArgs, MAX_CLAIMS, NoVote, ReleaseArgs, Released, Reply,
    Request, RequestTime, RestoreArgs, StoredLock, UpdateArgs, UpdateKind, Vote,
};
use redlockd::types::{Fence, Labels};

use super::subject::{
    GUARD, Subject, acquire, attempt, cancel, extend, index, inspect, name, params, release, revoke, token, ttl, view,
};

fn granted(node: &mut impl Subject, request: &Request) -> Fence {
    match node.ask(request) {
        Reply::Granted { fence, joined: false } => fence,
        other => panic!("{request:?}: {other:?}"),
    }
}

fn record(node: &mut impl Subject, resource: &str) -> LeaseRecord {
    match node.ask(&inspect(resource)) {
        Reply::Inspected(seen) => match seen.lock {
            StoredLock::Lease { record, .. } => record,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn left_ms(node: &mut impl Subject, resource: &str) -> u64 {
    match node.ask(&inspect(resource)) {
        Reply::Inspected(seen) => match seen.lock {
            StoredLock::Lease { left_ms, .. } => left_ms,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn is_free(node: &mut impl Subject, resource: &str) -> bool {
    matches!(node.ask(&inspect(resource)), Reply::Inspected(seen) if seen.lock == StoredLock::Free)
}

fn is_match(reply: &Reply) -> bool {
    matches!(reply, Reply::Released(Released { found: Found::Match, .. }))
}

pub fn one_token_holds_and_others_see_the_remaining_time(node: &mut impl Subject) {
    granted(node, &acquire("a", 1, 1, 10_000));
    match node.ask(&acquire("a", 2, 2, 10_000)) {
        Reply::Held { left_ms: Some(left), record: Some(record) } => {
            assert!((5_000..=10_020).contains(&left), "{left}");
            assert_eq!((record.token, record.renewals, record.ttl), (token(1), 0, ttl(10_000)));
            assert_eq!(&*record.claims, &format!("{},", attempt(1).as_str()));
            assert_eq!(&*record.labels, r#"{"o":"me|you"}"#);
        }
        other => panic!("{other:?}"),
    }
    granted(node, &acquire("a/b", 2, 2, 10_000)); // another name is another resource
}

pub fn a_key_expires_after_the_ttl_and_the_lock_delay(node: &mut impl Subject) {
    granted(node, &acquire("a", 1, 1, 100));
    assert!((60..=120).contains(&left_ms(node, "a")));
    node.pass(Duration::from_millis(122));
    assert!(is_free(node, "a"));
    granted(node, &acquire("a", 2, 2, 100));
}

pub fn fences_rise_across_releases_expiries_and_slow_clocks(node: &mut impl Subject) {
    let mut last = granted(node, &acquire("a", 1, 1, 1));
    for by in 2..6 {
        node.pass(Duration::from_millis(23));
        let slow = RequestTime(node.now_us() - 400_000); // within the guard
        match node.ask_with(slow, &params(), &acquire("a", by, by, 1)) {
            Ok(Reply::Granted { fence, .. }) => {
                assert_eq!(fence, Fence(last.0 + 1), "the counter is ahead of this caller's clock");
                last = fence;
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn a_replay_joins_its_lease_and_never_shortens_it(node: &mut impl Subject) {
    let fence = granted(node, &acquire("a", 1, 1, 20_000));
    for at in [1, 2, 2] {
        assert_eq!(node.ask(&acquire("a", 1, at, 1_000)), Reply::Granted { fence, joined: true });
    }
    assert!(left_ms(node, "a") > 10_000);
    let record = record(node, "a");
    assert_eq!(&*record.claims, &format!("{},{},", attempt(1).as_str(), attempt(2).as_str()));
    assert_eq!(record.ttl, ttl(20_000));
    node.ask(&acquire("a", 1, 3, 40_000));
    assert!(left_ms(node, "a") > 30_000, "but a longer one counts");
}

pub fn claims_beyond_the_maximum_are_refused(node: &mut impl Subject) {
    let most = u64::try_from(MAX_CLAIMS).expect("small");
    granted(node, &acquire("a", 1, 0, 20_000));
    for at in 1..most {
        assert!(matches!(node.ask(&acquire("a", 1, at, 20_000)), Reply::Granted { joined: true, .. }), "{at}");
    }
    assert_eq!(node.ask(&acquire("a", 1, most, 20_000)), Reply::TooManyClaims);
    assert!(matches!(node.ask(&acquire("a", 1, 0, 20_000)), Reply::Granted { joined: true, .. }));
}

pub fn a_cancel_withdraws_one_claim_and_the_lease_ends_with_the_last(node: &mut impl Subject) {
    granted(node, &acquire("a", 1, 1, 20_000));
    node.ask(&acquire("a", 1, 2, 20_000));
    assert!(is_match(&node.ask(&cancel("a", 1, 1))));
    assert_eq!(&*record(node, "a").claims, &format!("{},", attempt(2).as_str()));
    let again = Reply::Released(Released { found: Found::Other, earlier: Some(EndReason::Cancelled) });
    assert_eq!(node.ask(&cancel("a", 1, 1)), again);
    assert!(!is_free(node, "a"), "a repeated cancel withdraws no other claim");
    assert!(is_match(&node.ask(&cancel("a", 1, 2))));
    assert!(is_free(node, "a"));
}

pub fn an_acquire_that_arrives_after_its_cancel_is_refused(node: &mut impl Subject) {
    let nothing = Reply::Released(Released { found: Found::Nothing, earlier: None });
    assert_eq!(node.ask(&cancel("a", 1, 1)), nothing);
    assert_eq!(node.ask(&acquire("a", 1, 1, 1_000)), Reply::Ended { reason: EndReason::Cancelled });
    granted(node, &acquire("a", 1, 2, 1_000));
}

/// Its acquire is sent again if the view changes, and may arrive after it on another connection.
pub fn an_acquire_that_is_repeated_after_its_cancel_is_refused(node: &mut impl Subject) {
    granted(node, &acquire("a", 1, 1, 20_000));
    assert!(is_match(&node.ask(&cancel("a", 1, 1))));
    assert_eq!(node.ask(&acquire("a", 1, 1, 20_000)), Reply::Ended { reason: EndReason::Cancelled });
}

pub fn a_released_token_is_refused_with_the_reason(node: &mut impl Subject) {
    granted(node, &acquire("a", 1, 1, 20_000));
    assert_eq!(node.ask(&release("a", 1)), Reply::Released(Released { found: Found::Match, earlier: None }));
    let again = Reply::Released(Released { found: Found::Nothing, earlier: Some(EndReason::Released) });
    assert_eq!(node.ask(&release("a", 1)), again);
    assert_eq!(node.ask(&acquire("a", 1, 2, 1_000)), Reply::Ended { reason: EndReason::Released });
    assert_eq!(node.ask(&extend("a", 1, None, None)), Reply::Ended { reason: EndReason::Released });
    granted(node, &acquire("a", 2, 3, 20_000));
    let others = Reply::Released(Released { found: Found::Other, earlier: Some(EndReason::Released) });
    assert_eq!(node.ask(&release("a", 1)), others);
    assert_eq!(record(node, "a").token, token(2));
}

/// A client may use one token for several resources.
pub fn releasing_one_resource_leaves_the_tokens_other_leases(node: &mut impl Subject) {
    granted(node, &acquire("a", 1, 1, 20_000));
    granted(node, &acquire("b", 1, 2, 20_000));
    assert!(is_match(&node.ask(&release("a", 1))));
    assert!(matches!(node.ask(&extend("b", 1, None, None)), Reply::Updated { .. }));
    assert!(matches!(node.ask(&acquire("b", 1, 3, 20_000)), Reply::Granted { joined: true, .. }));
    assert!(is_match(&node.ask(&release("b", 1))));
}

pub fn the_first_end_reason_stays_except_that_a_release_replaces_a_revocation(node: &mut impl Subject) {
    let end = |reason| Request::Release(ReleaseArgs { resource: name("a"), token: token(1), reason });
    granted(node, &acquire("a", 1, 1, 20_000));
    assert!(matches!(node.ask(&revoke("a", 1)), Reply::Revoked { left_ms } if left_ms > 10_000));
    let earlier = Some(EndReason::Revoked);
    assert_eq!(node.ask(&end(EndReason::Forced)), Reply::Released(Released { found: Found::Match, earlier }));
    let earlier = Some(EndReason::Forced);
    for reason in [EndReason::Released, EndReason::Forced] {
        assert_eq!(node.ask(&end(reason)), Reply::Released(Released { found: Found::Nothing, earlier }));
    }
}

pub fn a_revoked_lease_keeps_its_end_and_cannot_be_renewed(node: &mut impl Subject) {
    assert_eq!(node.ask(&revoke("a", 1)), Reply::Missing);
    granted(node, &acquire("a", 1, 1, 20_000));
    assert_eq!(node.ask(&revoke("a", 2)), Reply::Other { fence: None });
    node.ask(&revoke("a", 1));
    assert_eq!(node.ask(&extend("a", 1, Some(50_000), None)), Reply::Ended { reason: EndReason::Revoked });
    assert_eq!(node.ask(&acquire("a", 1, 2, 50_000)), Reply::Ended { reason: EndReason::Revoked });
    assert!((10_000..=20_020).contains(&left_ms(node, "a")));
}

pub fn an_extend_lengthens_the_lease_counts_and_never_shortens(node: &mut impl Subject) {
    let fence = granted(node, &acquire("a", 1, 1, 10_000));
    for (ms, least, most) in [(None, 5_000, 10_020), (Some(30_000), 20_000, 30_020), (Some(100), 20_000, 30_020)] {
        match node.ask(&extend("a", 1, ms, Some(fence))) {
            Reply::Updated { record: kept, before_ms } => {
                assert_eq!((kept.fence, kept.ttl), (fence, ttl(10_000)));
                assert_eq!(kept, record(node, "a"), "the answer is the lease as it stands");
                assert!(before_ms <= 30_020);
            }
            other => panic!("{other:?}"),
        }
        assert!((least..=most).contains(&left_ms(node, "a")), "{ms:?}");
    }
    assert_eq!(record(node, "a").renewals, 3);
}

pub fn an_extend_never_creates_and_never_revives(node: &mut impl Subject) {
    assert_eq!(node.ask(&extend("a", 1, Some(1_000), None)), Reply::Missing);
    granted(node, &acquire("a", 1, 1, 1));
    node.pass(Duration::from_millis(23));
    assert_eq!(node.ask(&extend("a", 1, Some(1_000), None)), Reply::Missing);
    granted(node, &acquire("a", 2, 2, 10_000));
    assert_eq!(node.ask(&extend("a", 1, Some(1_000), None)), Reply::Other { fence: None });
}

pub fn a_written_back_fence_raises_the_lease_and_the_counter(node: &mut impl Subject) {
    let fence = granted(node, &acquire("a", 1, 1, 10_000));
    let lifted = Fence(fence.0 + 100_000);
    assert!(
        matches!(node.ask(&extend("a", 1, None, Some(lifted))), Reply::Updated { record, .. } if record.fence == lifted)
    );
    let lower = node.ask(&extend("a", 1, None, Some(fence)));
    assert_eq!(lower, Reply::Other { fence: Some(lifted) }, "an extend of this token's earlier lease");
    let too_far = Fence(node.now_us() + 10_000_000);
    assert_eq!(node.ask(&extend("a", 1, None, Some(too_far))), Reply::FenceTooFarAhead);
    assert_eq!(record(node, "a").fence, lifted);
    node.ask(&release("a", 1));
    assert!(granted(node, &acquire("a", 2, 2, 10_000)) > lifted);
}

pub fn an_edit_of_labels_is_no_renewal_and_keeps_the_end(node: &mut impl Subject) {
    let fence = granted(node, &acquire("a", 1, 1, 10_000));
    let labels = Labels { owner: "ünï|code\n\0".into(), ..Labels::default() };
    let edit = Request::Update(UpdateArgs {
        resource: name("a"),
        token: token(1),
        ttl: Some(ttl(1)),
        fence: None,
        kind: UpdateKind::Edit,
        labels: Some(labels.encode()),
    });
    assert!(matches!(node.ask(&edit), Reply::Updated { record: kept, .. } if kept.fence == fence));
    let record = record(node, "a");
    assert_eq!((record.labels(), record.renewals, record.fence), (labels, 0, fence));
    assert!(left_ms(node, "a") > 5_000);
}

/// The end that an instance gives a lease after its grant may arrive after the holder has set another one.
pub fn a_late_first_end_leaves_a_later_one(node: &mut impl Subject) {
    granted(node, &acquire("a", 1, 1, 10_000));
    let labels = |kept_until_ms| Labels { note: "\"k\":1".into(), kept_until_ms, ..Labels::default() };
    let update = |kind, kept_until_ms| {
        let (resource, token, labels) = (name("a"), token(1), Some(labels(kept_until_ms).encode()));
        Request::Update(UpdateArgs { resource, token, ttl: None, fence: None, kind, labels })
    };
    for (kind, sent, expected) in [
        (UpdateKind::Edit, 0, 0),
        (UpdateKind::FirstEnd, 7, 7),
        (UpdateKind::FirstEnd, 9, 7),
        (UpdateKind::Renewal, 8, 8),
    ] {
        assert!(
            matches!(node.ask(&update(kind, sent)), Reply::Updated { record, .. } if record.labels() == labels(expected))
        );
        assert_eq!(record(node, "a").labels(), labels(expected));
    }
}

pub fn a_restore_needs_a_free_key_and_no_tombstone(node: &mut impl Subject) {
    let fence = granted(node, &acquire("a", 1, 1, 10_000));
    let restored = LeaseRecord { claims: "p,".into(), renewals: 3, ..record(node, "a") };
    let restore = |resource: &str, record: &LeaseRecord| {
        Request::Restore(RestoreArgs { resource: name(resource), record: record.clone(), left_ms: 5_000 })
    };
    assert_eq!(node.ask(&restore("a", &restored)), Reply::Other { fence: None });
    assert_eq!(node.ask(&restore("b", &restored)), Reply::Restored);
    assert_eq!(record(node, "b"), restored);
    assert!((1_000..=5_000).contains(&left_ms(node, "b")));
    node.ask(&cancel("b", 1, 1));
    assert!(!is_free(node, "b"), "no attempt claims a restored lease");
    assert!(is_match(&node.ask(&release("b", 1))));
    assert_eq!(node.ask(&restore("b", &restored)), Reply::Ended { reason: EndReason::Released });
    assert!(granted(node, &acquire("b", 2, 2, 1_000)) > fence, "the restore raised the counter");
    let too_far = LeaseRecord { fence: Fence(node.now_us() + 10_000_000), ..restored };
    assert_eq!(node.ask(&restore("c", &too_far)), Reply::FenceTooFarAhead);
}

pub fn a_restore_with_a_low_fence_does_not_lower_the_counter(node: &mut impl Subject) {
    let fence = granted(node, &acquire("a", 1, 1, 10_000));
    let small = LeaseRecord { token: token(2), fence: Fence(fence.0 - 5), claims: "p,".into(), ..record(node, "a") };
    node.ask(&release("a", 1));
    assert_eq!(
        node.ask(&Request::Restore(RestoreArgs { resource: name("a"), record: small, left_ms: 5_000 })),
        Reply::Restored
    );
    node.ask(&release("a", 2));
    let slow = RequestTime(node.now_us() - 400_000);
    let next = node.ask_with(slow, &params(), &acquire("a", 3, 3, 10_000));
    assert_eq!(next, Ok(Reply::Granted { fence: Fence(fence.0 + 1), joined: false }));
}

pub fn late_requests_and_requests_of_clocks_that_are_off_get_no_vote(node: &mut impl Subject) {
    let fence = granted(node, &acquire("a", 1, 1, 20_000));
    let off = u64::try_from(GUARD.as_micros()).expect("small") + 200_000;
    for sent_at in [RequestTime(node.now_us() - off), RequestTime(node.now_us() + off)] {
        for request in [acquire("b", 2, 2, 1_000), acquire("a", 1, 1, 1_000), extend("a", 1, None, Some(fence))] {
            let reply = node.ask_with(sent_at, &params(), &request);
            assert!(matches!(reply, Ok(Reply::NoVote(NoVote::ClockOff { .. }))), "{reply:?}");
        }
    }
    assert_eq!(record(node, "a").renewals, 0);
    assert!(
        is_match(&node.ask_with(RequestTime(0), &params(), &release("a", 1)).expect("an answer")),
        "a release is accepted regardless of clocks"
    );
}

pub fn the_list_has_every_held_lease_over_its_pages(node: &mut impl Subject) {
    for i in 0..300 {
        granted(node, &acquire(&format!("held/{i}"), i, i, 60_000));
    }
    granted(node, &acquire("over", 1, 1, 1));
    granted(node, &acquire("freed", 1, 2, 60_000));
    let Reply::Page { leases, .. } = node.ask(&Request::List(ListArgs { cursor: 0, count: 50 })) else {
        panic!("no page")
    };
    assert_eq!(leases, [], "an acquire leaves the index to its instance");
    let names: Vec<String> = (0..300).map(|i| format!("held/{i}")).collect();
    let mut all: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(0..).collect();
    all.extend([("over", 1), ("freed", 1), ("held/7", 8), ("never", 1)]);
    for some in all.chunks(INDEX_MAX) {
        assert_eq!(node.ask(&index(some)), Reply::Indexed);
    }
    node.ask(&release("freed", 1));
    node.pass(Duration::from_millis(23));
    let (mut cursor, mut seen, mut pages) = (0, std::collections::BTreeMap::new(), 0);
    loop {
        let Reply::Page { next, leases, .. } = node.ask(&Request::List(ListArgs { cursor, count: 50 })) else {
            panic!("no page")
        };
        for lease in leases {
            assert!(lease.left_ms > 1_000);
            seen.insert(lease.resource, lease.record.token);
        }
        pages += 1;
        match next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    assert!(pages > 1);
    let expected = (0..300).map(|i| (name(&format!("held/{i}")), token(i))).collect();
    assert_eq!(seen, expected);
}

pub fn an_ordered_quarantine_takes_the_vote_but_not_the_leases(node: &mut impl Subject) {
    let fence = granted(node, &acquire("a", 1, 1, 20_000));
    let now = node.now_us();
    match node.ask(&Request::Quarantine { by: "".into() }) {
        Reply::Status(status) => {
            assert_eq!(status.vote, Vote::NoVote(NoVote::Quarantined { left_ms: 60_000 }));
            assert_eq!((status.why.as_str(), status.high_water), ("ordered", fence));
            assert!(status.until_us >= now + 60_000_000);
        }
        other => panic!("{other:?}"),
    }
    for request in [acquire("b", 2, 2, 1_000), extend("a", 1, Some(40_000), Some(fence))] {
        assert!(matches!(node.ask(&request), Reply::NoVote(NoVote::Quarantined { .. })));
    }
    assert!(left_ms(node, "a") > 30_000, "it was extended all the same");
    let view = view(1, &node.run());
    let unfilled = AdmitArgs { view, nonce: 1, pages: 1, seed: fence, by_clock: false };
    assert!(matches!(node.ask(&Request::Admit(unfilled)), Reply::Member(m) if !m.is_done && m.vote != Vote::Active));
    assert!(is_match(&node.ask(&release("a", 1))));
}

pub fn a_node_is_initialised_once(node: &mut impl Subject) {
    match node.ask(&Request::init()) {
        Reply::Status(status) => assert_eq!(status.vote, Vote::AlreadyInitialised),
        other => panic!("{other:?}"),
    }
    assert!(matches!(node.ask(&Request::probe()), Reply::Status(s) if s.vote == Vote::Active && s.why == "init"));
}
