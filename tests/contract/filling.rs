//! Cases about blocks, reads and fills, for the nodes that can lose their memory: reference and Redis.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redlockd::protocol::{
    AcquireSetArgs, AcquireSharedArgs, AdmitArgs, ChangedTerms, ClusterParams, EndReason, FillArgs, FillEntry, Found,
    LeaseRecord, NoVote, NodeList, OldList, ReadArgs, ReadEntry, ReleaseArgs, Released, Reply, Request, RequestTime,
    RestoreArgs, StoredLock, Tombstone, UpdateArgs, UpdateKind, View, Vote,
};
use redlockd::types::{Fence, Mode, NodeId};

use super::subject::{
    Server, Subject, acquire, attempt, begin_generation, cancel, extend, first, inspect, name, params, release, revoke,
    token, ttl, view,
};

const LONG_MS: u64 = 40_000;

fn brief() -> ClusterParams {
    ClusterParams { quarantine: Duration::from_millis(40), ..params() }
}

fn ask_brief(node: &mut impl Server, request: &Request) -> Reply {
    let sent_at = RequestTime(node.now_us());
    node.ask_with(sent_at, &brief(), request).expect("an answer")
}

fn record(node: &mut impl Server, by: u64, attempts: &[u64]) -> LeaseRecord {
    LeaseRecord {
        mode: Mode::Exclusive,
        token: token(by),
        renewals: 3,
        ttl: ttl(LONG_MS),
        fence: Fence(node.now_us() - 1_000_000),
        claims: attempts.iter().map(|at| format!("{},", attempt(*at).as_str())).collect::<String>().into(),
        labels: "{}".into(),
    }
}

fn copy(node: &mut impl Server, resource: &str, by: u64, left_ms: u64) -> FillEntry {
    FillEntry::Copy { resource: name(resource), record: record(node, by, &[by]), left_ms }
}

fn block(resource: &str, by: u64, attempts: &[u64], left_ms: u64) -> FillEntry {
    let claims: String = attempts.iter().map(|at| format!("{},", attempt(*at).as_str())).collect();
    FillEntry::Block { resource: name(resource), token: token(by), claims: claims.into(), left_ms }
}

fn tombstone(resource: &str, by: u64, reason: EndReason) -> FillEntry {
    let attempt = (reason == EndReason::Cancelled).then(|| attempt(by));
    FillEntry::Tombstone(Tombstone { resource: name(resource), token: token(by), attempt, reason, left_ms: LONG_MS })
}

/// The view after the one that the node has installed; it admits the node.
fn next_view(node: &mut impl Server) -> Arc<View> {
    match ask_brief(node, &Request::probe()) {
        Reply::Status(status) => view(status.view.id.number() + 1, &node.run()),
        other => panic!("{other:?}"),
    }
}

/// A page of a fill for the next view, which the node promises.
fn fill(node: &mut impl Server, nonce: u64, page: u32, pages: u32, entries: Vec<FillEntry>) -> Reply {
    let view = next_view(node);
    ask_brief(node, &Request::Promise { view: view.id });
    ask_brief(node, &Request::Fill(FillArgs { view, nonce, page, pages, keeps: false, entries }))
}

/// The node forgets everything. It has no vote until `votes_again`.
fn forget(node: &mut impl Server) {
    node.flush_all();
    assert!(matches!(ask_brief(node, &Request::probe()), Reply::Status(s) if s.vote != Vote::Active));
}

/// After this fill.
fn votes_again(node: &mut impl Server, nonce: u64, pages: u32) {
    let (view, seed) = (next_view(node), Fence(node.now_us()));
    let args = AdmitArgs { view: Arc::clone(&view), nonce, pages, seed, by_clock: false };
    assert!(matches!(ask_brief(node, &Request::Admit(args)), Reply::Member(m) if m.is_done && m.vote == Vote::Active));
    node.set_view(&view);
}

/// The node forgets, is filled with this, and votes again.
fn filled(node: &mut impl Server, entries: impl FnOnce(&mut dyn FnMut(u64) -> LeaseRecord) -> Vec<FillEntry>) {
    forget(node);
    let entries = {
        let mut record = |by| record(node, by, &[by]);
        entries(&mut record)
    };
    assert_eq!(fill(node, 1, 1, 1, entries), Reply::Filled { done: 1 });
    votes_again(node, 1, 1);
}

fn blocked_ms(reply: &Reply) -> u64 {
    match reply {
        Reply::NoVote(NoVote::Blocked { left_ms }) => *left_ms,
        other => panic!("{other:?}"),
    }
}

fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Granted { joined: false, .. })
}

fn left_ms(node: &mut impl Server, resource: &str) -> Option<u64> {
    match node.ask(&inspect(resource)) {
        Reply::Inspected(seen) => match seen.lock {
            StoredLock::Lease { left_ms, .. } => Some(left_ms),
            StoredLock::Foreign { left_ms, .. } => left_ms,
            StoredLock::Members(members) => members.iter().map(|(_, left_ms)| *left_ms).max(),
            StoredLock::Free => None,
        },
        other => panic!("{other:?}"),
    }
}

fn is_blocked(node: &mut impl Server, resource: &str) -> bool {
    matches!(node.ask(&inspect(resource)), Reply::Inspected(s) if matches!(s.no_vote, Some(NoVote::Blocked { .. })))
}

pub fn a_resource_with_a_block_gets_no_vote_until_the_block_ends(node: &mut impl Server) {
    filled(node, |_| vec![block("a", 1, &[1], LONG_MS), block("b", 1, &[1], 100)]);
    for by in [1, 2] {
        let left_ms = blocked_ms(&node.ask(&acquire("a", by, by, 1_000)));
        assert!((20_000..=LONG_MS).contains(&left_ms), "{left_ms}");
        assert!(blocked_ms(&node.ask(&extend("a", by, None, None))) > 20_000, "no opinion: neither held nor missing");
    }
    assert!(is_blocked(node, "a"));
    assert!(is_granted(&node.ask(&acquire("c", 2, 3, 1_000))), "of other resources nothing is unknown");
    node.pass(Duration::from_millis(102));
    assert!(!is_blocked(node, "b") && is_granted(&node.ask(&acquire("b", 2, 2, 1_000))));
}

pub fn an_update_of_a_resource_with_a_block_is_applied_and_is_no_vote(node: &mut impl Server) {
    filled(node, |record| {
        let (resource, record) = (name("a"), record(1));
        vec![block("a", 2, &[2], LONG_MS), FillEntry::Copy { resource, record, left_ms: 5_000 }]
    });
    blocked_ms(&node.ask(&extend("a", 1, Some(30_000), None)));
    assert!(left_ms(node, "a").is_some_and(|left_ms| left_ms > 20_000));
    assert!(blocked_ms(&node.ask(&acquire("a", 1, 1, 1_000))) > 20_000, "nor is a replay");
    node.ask(&release("a", 2));
    assert!(matches!(node.ask(&extend("a", 1, None, None)), Reply::Updated { record, .. } if record.renewals == 5));
}

/// Otherwise the key would vote again when the block is over.
pub fn a_key_behind_the_block_of_its_own_lease_is_not_extended_and_ends_with_the_block(node: &mut impl Server) {
    filled(node, |record| {
        let mut copy = |resource: &str, mode, left_ms| {
            let record = LeaseRecord { mode, ..record(1) };
            FillEntry::Copy { resource: name(resource), record, left_ms }
        };
        let copies = [copy("a", Mode::Exclusive, 5_000), copy("b", Mode::Exclusive, LONG_MS)];
        let members = [copy("c", Mode::Shared, 5_000), copy("d", Mode::Shared, LONG_MS)];
        let blocks = [("a", LONG_MS), ("b", 10), ("c", LONG_MS), ("d", 10)].map(|(name, ms)| block(name, 1, &[1], ms));
        copies.into_iter().chain(members).chain(blocks).collect()
    });
    node.pass(Duration::from_millis(20));
    for resource in ["a", "b", "c", "d"] {
        assert!(blocked_ms(&node.ask(&extend(resource, 1, Some(30_000), None))) > 20_000, "{resource}");
    }
    for resource in ["a", "c"] {
        assert!(left_ms(node, resource).is_some_and(|left_ms| left_ms <= 5_000), "{resource}");
    }
}

pub fn a_release_takes_its_token_out_and_the_last_one_ends_the_block(node: &mut impl Server) {
    filled(node, |_| vec![block("a", 1, &[1], LONG_MS), block("a", 2, &[2], 20_000), block("b", 1, &[1], LONG_MS)]);
    let matched = Reply::Released(Released { found: Found::Match, earlier: None });
    assert_eq!(node.ask(&release("a", 1)), matched);
    let left_ms = blocked_ms(&node.ask(&acquire("a", 3, 3, 1_000)));
    assert!((5_000..=20_000).contains(&left_ms), "the other token's time counts now: {left_ms}");
    assert_eq!(node.ask(&release("a", 3)), Reply::Released(Released { found: Found::Nothing, earlier: None }));
    let forced = Request::Release(ReleaseArgs { resource: name("a"), token: token(2), reason: EndReason::Forced });
    assert_eq!(node.ask(&forced), matched);
    assert!(is_granted(&node.ask(&acquire("a", 4, 4, 1_000))));
    assert!(is_blocked(node, "b"), "of this resource alone");
}

/// Of what was filled twice, the longer time and all claims count.
pub fn a_cancel_takes_its_claim_out_of_a_block(node: &mut impl Server) {
    filled(node, |_| vec![block("a", 1, &[1], LONG_MS), block("a", 1, &[1, 2], 5_000)]);
    assert!(blocked_ms(&node.ask(&acquire("a", 3, 4, 1_000))) > 20_000);
    let found = |reply| matches!(reply, Reply::Released(Released { found: Found::Match, .. }));
    assert!(!found(node.ask(&cancel("a", 1, 3))), "another attempt's");
    assert!(found(node.ask(&cancel("a", 1, 1))));
    assert!(is_blocked(node, "a"), "the other attempt may have the lease");
    assert!(!found(node.ask(&cancel("a", 1, 1))));
    assert!(found(node.ask(&cancel("a", 1, 2))));
    assert!(is_granted(&node.ask(&acquire("a", 2, 4, 1_000))));
}

/// A revoked lease is held until its end.
pub fn a_revocation_leaves_the_block(node: &mut impl Server) {
    filled(node, |_| vec![block("a", 1, &[1], LONG_MS)]);
    assert_eq!(node.ask(&revoke("a", 2)), Reply::Missing);
    assert!(matches!(node.ask(&revoke("a", 1)), Reply::Revoked { left_ms } if left_ms > 20_000));
    assert!(is_blocked(node, "a"));
    assert_eq!(node.ask(&extend("a", 1, None, None)), Reply::Ended { reason: EndReason::Revoked });
}

pub fn a_repair_takes_the_place_of_a_block_and_ends_no_earlier(node: &mut impl Server) {
    filled(node, |record| {
        let other = FillEntry::Copy { resource: name("b"), record: record(2), left_ms: 20_000 };
        let own = FillEntry::Copy { resource: name("c"), record: record(1), left_ms: 35_000 };
        let mut blocks: Vec<_> = ["a", "b", "c"].map(|r| block(r, 1, &[1], 30_000)).into();
        blocks.extend([block("a", 2, &[2], LONG_MS), other, own]);
        blocks
    });
    let record = LeaseRecord { claims: "p,".into(), ..record(node, 1, &[]) };
    let restore = |resource, record| Request::Restore(RestoreArgs { resource: name(resource), record, left_ms: 5_000 });
    assert_eq!(node.ask(&restore("b", record.clone())), Reply::Other { fence: None });
    assert!(is_blocked(node, "b"));
    for (resource, least_ms) in [("a", 35_000), ("c", 31_000)] {
        let earlier = LeaseRecord { fence: Fence(1), ..record.clone() };
        let refused = node.ask(&restore(resource, earlier));
        assert_eq!(refused == Reply::Other { fence: None }, resource == "c", "this token's next lease is there");
        filled_again(node, resource);
        assert_eq!(node.ask(&restore(resource, record.clone())), Reply::Restored);
        let left_ms = left_ms(node, resource).expect("the lease is there");
        assert!(!is_blocked(node, resource) && left_ms > least_ms, "{resource}: {left_ms}");
        assert!(matches!(node.ask(&extend(resource, 1, None, None)), Reply::Updated { .. }), "it votes on it");
    }
}

/// Where a repair has just taken the place of the block, the block is put back.
fn filled_again(node: &mut impl Server, resource: &str) {
    if !is_blocked(node, resource) {
        ask_brief(node, &Request::Quarantine { by: "".into() });
        let blocks = vec![block(resource, 1, &[1], 30_000), block(resource, 2, &[2], LONG_MS)];
        assert_eq!(fill(node, 9, 1, 1, blocks), Reply::Filled { done: 1 });
        node.foreign_delete(&name(resource));
        votes_again(node, 9, 1);
    }
}

pub fn a_copy_counts_like_a_vote_of_its_own(node: &mut impl Server) {
    filled(node, |record| vec![FillEntry::Copy { resource: name("a"), record: record(1), left_ms: LONG_MS }]);
    match node.ask(&acquire("a", 2, 2, 1_000)) {
        Reply::Held { left_ms: Some(left_ms), record: Some(record) } => {
            assert_eq!((record.token, record.renewals), (token(1), 3));
            assert!((20_000..=LONG_MS).contains(&left_ms));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(node.ask(&acquire("a", 1, 1, 1_000)), Reply::Granted { joined: true, .. }));
    assert!(matches!(node.ask(&extend("a", 1, None, None)), Reply::Updated { .. }));
    let Reply::Page { leases, .. } = node.ask(&Request::List(redlockd::protocol::ListArgs { cursor: 0, count: 9 }))
    else {
        panic!("no page")
    };
    assert_eq!(leases.len(), 1, "it is listed");
    assert!(matches!(node.ask(&release("a", 1)), Reply::Released(Released { found: Found::Match, .. })));
    assert!(is_granted(&node.ask(&acquire("a", 2, 2, 1_000))));
}

pub fn a_first_acquire_is_refused_after_the_release_of_a_copy(node: &mut impl Server) {
    filled(node, |record| vec![FillEntry::Copy { resource: name("a"), record: record(1), left_ms: LONG_MS }]);
    begin_generation(node);
    assert!(matches!(node.ask(&release("a", 1)), Reply::Released(Released { found: Found::Match, .. })));
    assert_eq!(node.ask(&first("a", 1, 1, 1_000)), Reply::Ended { reason: EndReason::Released });
}

/// Its own key counts for nothing, but stays: another token's makes the copy a block, its own token's is added to.
pub fn a_copy_neither_replaces_nor_shortens_what_the_node_has(node: &mut impl Server) {
    assert!(is_granted(&node.ask(&acquire("a", 1, 1, LONG_MS))));
    assert!(is_granted(&node.ask(&acquire("b", 1, 1, LONG_MS))));
    let Reply::Granted { fence, .. } = node.ask(&acquire("d", 1, 1, LONG_MS)) else { panic!("free") };
    node.foreign_list(&name("c"), Some(LONG_MS));
    node.ask(&Request::Quarantine { by: "".into() });
    let (mut same, mut entries) = (record(node, 1, &[2]), Vec::new());
    let higher = Fence(node.now_us() + 1_000);
    same.fence = higher;
    entries.push(copy(node, "a", 2, 20_000));
    entries.push(FillEntry::Copy { resource: name("b"), record: same, left_ms: 5_000 });
    entries.extend([copy(node, "c", 2, 20_000), copy(node, "d", 1, 5_000)]);
    assert_eq!(fill(node, 1, 1, 1, entries), Reply::Filled { done: 1 });
    votes_again(node, 1, 1);
    for resource in ["a", "c"] {
        let left_ms = blocked_ms(&node.ask(&acquire(resource, 3, 3, 1_000)));
        assert!((5_000..=20_000).contains(&left_ms), "{left_ms}");
    }
    assert_eq!(node.ask(&acquire("d", 1, 1, 1_000)), Reply::Granted { fence, joined: true }, "the higher fence stays");
    match node.ask(&inspect("b")) {
        Reply::Inspected(seen) => match (seen.no_vote, seen.lock) {
            (None, StoredLock::Lease { record, left_ms }) => {
                assert_eq!((record.fence, record.renewals), (higher, 3));
                assert_eq!(&*record.claims, &format!("{},{},", attempt(1).as_str(), attempt(2).as_str()));
                assert!(left_ms > 30_000, "{left_ms}");
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// What was ended on the node itself, or by a tombstone of this fill, is left out; a revoked lease is held all the same.
pub fn tombstones_leave_out_what_they_ended(node: &mut impl Server) {
    forget(node);
    node.ask(&release("own", 1));
    node.ask(&cancel("own", 2, 2));
    let mut entries = vec![
        tombstone("a", 1, EndReason::Released),
        tombstone("a", 2, EndReason::Cancelled),
        tombstone("b", 1, EndReason::Revoked),
        tombstone("own", 1, EndReason::Revoked),
    ];
    for resource in ["own", "a"] {
        entries.extend([block(resource, 1, &[1], LONG_MS), block(resource, 2, &[2], LONG_MS)]);
        entries.extend([copy(node, resource, 1, LONG_MS), copy(node, resource, 2, LONG_MS)]);
    }
    entries.push(copy(node, "b", 1, LONG_MS));
    assert_eq!(fill(node, 1, 1, 1, entries), Reply::Filled { done: 1 });
    votes_again(node, 1, 1);
    assert!(matches!(node.ask(&inspect("b")), Reply::Inspected(s) if s.lock == StoredLock::Free));
    assert!(is_blocked(node, "b"));
    for resource in ["own", "a"] {
        assert!(!is_blocked(node, resource));
        assert_eq!(node.ask(&acquire(resource, 1, 1, 1_000)), Reply::Ended { reason: EndReason::Released });
        assert_eq!(node.ask(&acquire(resource, 2, 2, 1_000)), Reply::Ended { reason: EndReason::Cancelled });
        assert!(is_granted(&node.ask(&acquire(resource, 3, 3, 1_000))));
    }
    assert_eq!(node.ask(&acquire("b", 1, 9, 1_000)), Reply::Ended { reason: EndReason::Revoked });
}

pub fn a_foreign_lock_is_planted_and_blocks(node: &mut impl Server) {
    let foreign = |resource, value: Option<&[u8]>| FillEntry::Foreign {
        resource: name(resource),
        value: value.map(Into::into),
        left_ms: LONG_MS,
    };
    filled(node, |_| vec![foreign("a", Some(b"theirs")), foreign("b", None), foreign("c", Some(b""))]);
    assert!(!node.foreign_acquire(&name("a"), b"others", 1_000), "it excludes other foreign clients");
    assert!(node.foreign_acquire(&name("b"), b"others", 1_000));
    for resource in ["a", "b", "c"] {
        assert!(blocked_ms(&node.ask(&acquire(resource, 1, 1, 1_000))) > 20_000);
    }
    let fingerprint = match node.ask(&inspect("a")) {
        Reply::Inspected(seen) => match seen.lock {
            StoredLock::Foreign { fingerprint, .. } => fingerprint,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let delete = redlockd::protocol::DeleteForeignArgs { resource: name("a"), fingerprint };
    assert!(matches!(node.ask(&Request::DeleteForeign(delete)), Reply::Released(Released { found: Found::Match, .. })));
    assert!(is_granted(&node.ask(&acquire("a", 1, 2, 1_000))), "an operator's deletion ends the block too");
}

pub fn pages_are_taken_in_order_and_once_and_only_without_a_vote(node: &mut impl Server) {
    let blocks = |resource| vec![block(resource, 1, &[1], LONG_MS)];
    let run = node.run();
    let of = |view| Request::Fill(FillArgs { view, nonce: 1, page: 1, pages: 1, keeps: false, entries: blocks("a") });
    assert_eq!(node.ask(&of(view(0, &run))), Reply::FillNotNeeded, "no higher view");
    assert_eq!(node.ask(&of(view(1, &run))), Reply::FillNotNeeded, "not promised");
    node.ask(&Request::Promise { view: view(1, &run).id });
    assert_eq!(node.ask(&of(view(1, "00"))), Reply::FillNotNeeded, "not of this process");
    assert!(!is_blocked(node, "a"));
    assert!(matches!(node.ask(&Request::probe()), Reply::Status(s) if s.vote == Vote::Active));
    forget(node);
    let view = next_view(node);
    assert_eq!(ask_brief(node, &of(view)), Reply::FillNotNeeded, "it forgot what it had promised");
    let mut ask = |nonce, number, pages, resource| fill(node, nonce, number, pages, blocks(resource));
    assert_eq!(ask(1, 2, 3, "x"), Reply::FillOutOfOrder { done: 0 });
    assert_eq!(ask(1, 1, 3, "a"), Reply::Filled { done: 1 });
    assert_eq!(ask(1, 3, 3, "x"), Reply::FillOutOfOrder { done: 1 });
    assert_eq!(ask(1, 2, 3, "b"), Reply::Filled { done: 2 });
    assert_eq!(ask(1, 1, 3, "x"), Reply::Filled { done: 2 }, "a repeated page changes nothing");
    assert_eq!(ask(2, 3, 3, "x"), Reply::FillOutOfOrder { done: 0 }, "of another fill");
    assert_eq!(ask(1, 3, 3, "c"), Reply::Filled { done: 3 });
    assert_eq!(ask(2, 1, 3, "d"), Reply::Filled { done: 1 }, "another fill begins anew");
    assert_eq!(ask(1, 3, 3, "x"), Reply::FillOutOfOrder { done: 0 });
    ask_brief(node, &Request::Quarantine { by: "".into() });
    let after = fill(node, 2, 2, 3, blocks("x"));
    assert_eq!(after, Reply::FillOutOfOrder { done: 0 }, "a loss of the vote discards what was filled");
    assert_eq!(fill(node, 3, 1, 1, vec![]), Reply::Filled { done: 1 });
    votes_again(node, 3, 1);
    for (resource, expected) in [("a", true), ("b", true), ("c", true), ("d", true), ("x", false)] {
        assert_eq!(is_blocked(node, resource), expected, "{resource}");
    }
}

/// Everything that a node that votes shows.
pub fn everything(
    node: &mut impl Subject,
    count: u32,
    mut between: impl FnMut(&mut dyn FnMut(&Request)),
) -> Vec<ReadEntry> {
    let (mut cursor, mut all) = (0, Vec::new());
    loop {
        match node.ask(&Request::Read(ReadArgs { cursor, count })) {
            Reply::Knowledge { next, now_us, entries, .. } => {
                assert!(now_us.abs_diff(node.now_us()) < 30_000_000);
                all.extend(entries);
                match next {
                    Some(next) => cursor = next,
                    None => return all,
                }
            }
            other => panic!("{other:?}"),
        }
        between(&mut |request| {
            node.ask(request);
        });
    }
}

pub fn a_read_shows_leases_foreign_locks_blocks_and_tombstones(node: &mut impl Server) {
    filled(node, |_| vec![block("blocked", 1, &[1, 2], LONG_MS), block("blocked", 2, &[3], 20_000)]);
    node.ask(&acquire("held", 1, 1, LONG_MS));
    node.foreign_set(&name("foreign"), b"theirs", Some(LONG_MS));
    node.foreign_set(&name("long"), &[b'x'; 5_000], None);
    node.foreign_list(&name("list"), Some(LONG_MS));
    node.ask(&release("ended", 1));
    node.ask(&cancel("ended", 2, 2));
    let mut seen = BTreeSet::new();
    for entry in everything(node, 500, |_| {}) {
        let text = match entry {
            ReadEntry::Lease { resource, record, left_ms } => {
                assert!(left_ms.is_some_and(|left_ms| left_ms > 20_000));
                format!("lease {resource} {:?} {}", record.token, record.claims)
            }
            ReadEntry::Foreign { resource, value, left_ms } => {
                format!("foreign {resource} {value:?} {}", left_ms.is_some())
            }
            ReadEntry::Block { resource, token, claims, left_ms } => {
                format!("block {resource} {token:?} {claims} {}", left_ms > 20_000)
            }
            ReadEntry::Tombstone(Tombstone { resource, token, attempt, reason, left_ms }) => {
                format!("tombstone {resource} {token:?} {attempt:?} {reason:?} {}", left_ms > 20_000)
            }
        };
        seen.insert(text);
    }
    let (one, two) = (token(1), token(2));
    let [a1, a2, a3] = [1, 2, 3].map(attempt).map(|a| a.as_str().to_owned());
    let expected: BTreeSet<String> = [
        format!("lease held {one:?} {a1},"),
        format!("foreign foreign {:?} true", Some(b"theirs")),
        "foreign long None false".to_owned(),
        "foreign list None true".to_owned(),
        format!("block blocked {:?} {a1},{a2}, true", Some(&one)),
        format!("block blocked {:?} {a3}, false", Some(&two)),
        format!("tombstone ended {one:?} None Released true"),
        format!("tombstone ended {two:?} Some({a2}) Cancelled false"),
    ]
    .into();
    assert_eq!(seen, expected);
}

/// A clock was an hour ahead when this was written, and went back: no lease lasts longer than a quarantine; a foreign lock may.
pub fn what_was_written_before_the_clock_went_back_lasts_no_longer_than_a_quarantine(node: &mut impl Server) {
    const HOUR_MS: u64 = 3_600_000;
    let is_cut = |left_ms: u64| (59_000..=60_000).contains(&left_ms);
    forget(node);
    let entries = ["blocked", "set"].map(|resource| block(resource, 1, &[1], 1_000));
    let foreign = FillEntry::Foreign { resource: name("foreign"), value: None, left_ms: HOUR_MS };
    for (page, entry) in (1..).zip(entries.into_iter().chain([foreign])) {
        let (view, resource) = (next_view(node), name(["blocked", "set", "foreign"][page as usize - 1]));
        ask_brief(node, &Request::Promise { view: view.id });
        let page = FillArgs { view, nonce: 1, page, pages: 3, keeps: false, entries: vec![entry] };
        let ahead_ms = if resource == name("foreign") { 0 } else { HOUR_MS };
        node.ask_ahead(&Request::Fill(page), &resource, ahead_ms);
    }
    votes_again(node, 1, 3);
    node.ask_ahead(&acquire("held", 1, 1, 1_000), &name("held"), HOUR_MS);
    let shared = AcquireSharedArgs {
        resource: name("shared"),
        token: token(1),
        mode: Mode::Shared,
        attempt: attempt(1),
        ttl: ttl(1_000),
        labels: "{}".into(),
        proposed: None,
    };
    node.ask_ahead(&Request::AcquireShared(shared.clone()), &name("shared"), HOUR_MS);
    let mut seen = BTreeSet::new();
    for entry in everything(node, 500, |_| {}) {
        match entry {
            ReadEntry::Lease { resource, left_ms, .. } => {
                assert!(left_ms.is_some_and(is_cut), "{resource} {left_ms:?}");
                seen.insert(resource);
            }
            ReadEntry::Block { resource, token, left_ms, .. } => {
                assert!(
                    if token.is_some() { is_cut(left_ms) } else { left_ms > HOUR_MS - 60_000 },
                    "{resource} {left_ms}"
                );
                seen.insert(resource);
            }
            _ => {}
        }
    }
    assert_eq!(seen, ["blocked", "set", "foreign", "held", "shared"].map(name).into());
    // Whoever asks for the resource cuts the block.
    assert!(is_blocked(node, "blocked"));
    let blocked = blocked_ms(&node.ask(&acquire("blocked", 2, 2, 1_000)));
    assert!(is_cut(blocked), "{blocked}");
    let again = blocked_ms(
        &node.ask(&Request::AcquireShared(AcquireSharedArgs { resource: name("blocked"), ..shared.clone() })),
    );
    assert!(again <= blocked, "{again} of {blocked}");
    let set = AcquireSetArgs {
        resources: vec![name("free"), name("set")].into(),
        token: token(3),
        attempt: attempt(3),
        ttl: ttl(1_000),
        labels: "{}".into(),
        is_shared: false,
    };
    match node.ask(&Request::AcquireSet(set)) {
        Reply::SetRefused { refused } => {
            assert!(matches!(refused.as_slice(), [(1, no)] if is_cut(blocked_ms(no))), "{refused:?}")
        }
        other => panic!("{other:?}"),
    }
    let foreign = blocked_ms(&node.ask(&acquire("foreign", 2, 2, 1_000)));
    assert!(foreign > HOUR_MS - 60_000, "{foreign}");
}

/// Instances may have different longest leases, and the one with the shorter ones fills a node.
pub fn a_lease_that_was_filled_in_is_not_cut_to_the_quarantine_of_who_filled_it(node: &mut impl Server) {
    filled(node, |record| vec![FillEntry::Copy { resource: name("a"), record: record(1), left_ms: LONG_MS }]);
    for by in [2, 3] {
        let refused = ask_brief(node, &acquire("a", by, by, 30));
        assert!(matches!(refused, Reply::Held { left_ms: Some(20_000..=LONG_MS), .. }), "{refused:?}");
    }
    assert!(left_ms(node, "a").is_some_and(|left_ms| left_ms > 20_000));
}

/// Thousands of keys, while others come and go between the pages.
pub fn a_read_has_everything_that_is_there_throughout(node: &mut impl Server) {
    const LEASES: u64 = 3_000;
    for i in 0..LEASES {
        node.ask(&acquire(&format!("held/{i}"), i, i, 300_000));
        if i % 3 == 0 {
            node.ask(&release(&format!("gone/{i}"), i));
        }
    }
    let mut step = 0_u64;
    let all = everything(node, 100, |ask| {
        for i in step * 20..(step + 1) * 20 {
            ask(&acquire(&format!("late/{i}"), i, i + LEASES, 300_000));
            if i % 2 == 0 {
                ask(&release(&format!("late/{}", i / 2), i / 2));
            }
        }
        step += 1;
    });
    assert!(step > 20, "{step} pages");
    let held: BTreeSet<String> = all
        .iter()
        .filter_map(|e| match e {
            ReadEntry::Lease { resource, .. } if resource.as_str().starts_with("held/") => Some(resource.to_string()),
            _ => None,
        })
        .collect();
    let gone: BTreeSet<String> = all
        .iter()
        .filter_map(|e| match e {
            ReadEntry::Tombstone(t) if t.resource.as_str().starts_with("gone/") => Some(t.resource.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!((held.len() as u64, gone.len() as u64), (LEASES, LEASES.div_ceil(3)));
}

/// An instance takes no reply of more than 16,384 elements, of which a member is four.
pub fn a_page_is_bounded_where_locks_have_many_members(node: &mut impl Server) {
    const LOCKS: u64 = 6;
    const MEMBERS: u64 = 900;
    for i in 0..LOCKS * MEMBERS {
        admit_reader(node, &format!("read/{}", i % LOCKS), i);
    }
    let (mut cursor, mut members, mut largest) = (0, BTreeSet::new(), 0);
    loop {
        let Reply::Knowledge { next, entries, .. } = node.ask(&Request::Read(ReadArgs { cursor, count: 500 })) else {
            panic!("no page")
        };
        largest = largest.max(entries.len());
        members.extend(entries.into_iter().filter_map(|entry| match entry {
            ReadEntry::Lease { resource, record, .. } => Some((resource, record.token)),
            _ => None,
        }));
        let Some(next) = next else { break };
        cursor = next;
    }
    assert_eq!(members.len() as u64, LOCKS * MEMBERS);
    assert!(largest < 4_000, "{largest} entries in one page");
}

pub fn a_node_without_a_vote_is_not_read(node: &mut impl Server) {
    forget(node);
    let read = Request::Read(ReadArgs { cursor: 0, count: 10 });
    assert!(matches!(ask_brief(node, &read), Reply::NoVote(NoVote::Quarantined { .. })));
}

/// An edit of labels is an update too.
pub fn an_edit_of_a_resource_with_a_block_is_no_vote(node: &mut impl Server) {
    filled(node, |_| vec![block("a", 1, &[1], LONG_MS)]);
    let edit = Request::Update(UpdateArgs {
        resource: name("a"),
        token: token(1),
        ttl: None,
        fence: None,
        kind: UpdateKind::Edit,
        labels: Some("{}".into()),
    });
    blocked_ms(&node.ask(&edit));
}

/// The list of nodes changes: who voted in the old one keeps its keys, and votes again only when it was filled.
pub fn a_process_of_both_lists_keeps_its_keys_and_votes_when_it_was_filled(node: &mut impl Server) {
    let member = |reply| match reply {
        Reply::Member(member) => *member,
        other => panic!("{other:?}"),
    };
    for resource in ["own", "longer", "other", "unknown"] {
        assert!(matches!(node.ask(&acquire(resource, 1, 1, 20_000)), Reply::Granted { .. }));
    }
    assert!(matches!(node.ask(&release("unknown", 1)), Reply::Released(_)));
    let fences: Vec<Fence> = (6..8).map(|by| admit_reader(node, "read", by)).collect();
    let run = node.run();
    let new = changed(&run, 7, Some(0));
    // One that this change did not find voting has to be filled like one that forgot.
    let promise = Request::Promise { view: new.id };
    assert!(member(node.ask(&promise)).is_done);
    let installed = member(node.ask(&Request::Install { view: Arc::clone(&new) }));
    assert_eq!((installed.is_done, installed.vote, installed.view), (true, Vote::Active, Arc::clone(&new)));
    node.set_view(&new);
    let only_id = Arc::new(View { id: new.id, ..View::default() });
    let unfilled = Reply::NoVote(NoVote::OtherView { view: only_id });
    assert_eq!(node.ask(&acquire("free", 2, 2, 1_000)), unfilled);
    assert_eq!(node.ask(&extend("own", 1, None, None)), unfilled);
    assert!(matches!(node.ask(&Request::Read(ReadArgs { cursor: 0, count: 500 })), Reply::Knowledge { .. }));
    let keep = |node: &mut _, resource: &str, by: u64, left_ms| FillEntry::Keep {
        resource: name(resource),
        record: record(node, by, &[by, 9]),
        left_ms,
    };
    let entries = vec![
        tombstone("over", 5, EndReason::Released),
        keep(node, "longer", 1, 90_000),
        keep(node, "other", 2, 30_000),
        keep(node, "missed", 3, 30_000),
        keep(node, "unknown", 1, 30_000),
        keep(node, "over", 5, 30_000),
        keep_reader(node, 6, Fence(fences[0].0 - 1)),
        keep_reader(node, 7, Fence(0)),
    ];
    let (nonce, page, pages) = (3, 1, 1);
    let admit = AdmitArgs { view: Arc::clone(&new), nonce, pages, seed: Fence(0), by_clock: false };
    assert!(!member(node.ask(&Request::Admit(admit.clone()))).is_done, "it was not filled");
    let filled =
        node.ask(&Request::Fill(FillArgs { view: Arc::clone(&new), nonce, page, pages, keeps: true, entries }));
    assert_eq!(filled, Reply::Filled { done: 1 });
    assert_eq!(node.ask(&acquire("free", 2, 2, 1_000)), unfilled, "before it is admitted");
    let admitted = member(node.ask(&Request::Admit(admit.clone())));
    assert_eq!((admitted.is_done, admitted.admitted), (true, new.id));
    assert!(member(node.ask(&Request::Admit(admit))).is_done, "a repeated request");
    assert!(matches!(node.ask(&extend("own", 1, None, None)), Reply::Updated { .. }));
    assert!(
        matches!(node.ask(&extend("longer", 1, Some(1_000), None)), Reply::Updated { before_ms, .. } if before_ms > 80_000)
    );
    let fence_of = |reply| match reply {
        Reply::Updated { record, .. } => record.fence,
        other => panic!("{other:?}"),
    };
    assert_eq!(fence_of(node.ask(&extend("read", 6, None, None))), Fence(fences[0].0 - 1), "a quorum gave it that one");
    assert_eq!(fence_of(node.ask(&extend("read", 7, None, None))), fences[1], "none is known");
    let is_blocked = |reply| matches!(reply, Reply::NoVote(NoVote::Blocked { left_ms }) if left_ms > 20_000);
    assert!(is_blocked(node.ask(&extend("other", 1, None, None))), "another token may hold it");
    assert!(is_blocked(node.ask(&acquire("missed", 4, 4, 1_000))), "it holds what it does not know");
    assert!(matches!(node.ask(&acquire("unknown", 4, 4, 1_000)), Reply::Granted { .. }), "it was released here");
    assert!(matches!(node.ask(&acquire("over", 4, 4, 1_000)), Reply::Granted { .. }));
    // Whoever completes the change knows the record of before: one that was admitted since is in it, too.
    let again = changed(&run, 8, Some(0));
    assert!(member(node.ask(&Request::Install { view: Arc::clone(&again) })).is_done);
    node.set_view(&again);
    assert!(matches!(node.ask(&acquire("free", 2, 2, 1_000)), Reply::NoVote(NoVote::OtherView { .. })));
    // Of another life than the change found.
    let other = changed("00", 9, Some(0));
    assert!(!member(node.ask(&Request::Install { view: other })).is_done);
    assert!(matches!(ask_brief(node, &Request::probe()), Reply::Status(s) if s.why == "displaced"));
}

/// The list of nodes changes, and a process of both lists forgets everything after the view was installed: a fill that counts on
/// the keys that it had is refused, and one for a process that forgot is not.
pub fn a_process_of_both_lists_that_forgot_is_not_filled_as_if_it_had_kept_its_keys(node: &mut impl Server) {
    let new = changed(&node.run(), 7, Some(0));
    assert!(matches!(node.ask(&Request::Install { view: Arc::clone(&new) }), Reply::Member(m) if m.is_done));
    forget(node);
    ask_brief(node, &Request::Promise { view: new.id });
    let of =
        |keeps| Request::Fill(FillArgs { view: Arc::clone(&new), nonce: 3, page: 1, pages: 1, keeps, entries: vec![] });
    assert_eq!(ask_brief(node, &of(true)), Reply::FillNotNeeded);
    assert_eq!(ask_brief(node, &of(false)), Reply::Filled { done: 1 });
}

/// The fence of a new shared lease.
fn admit_reader(node: &mut impl Server, resource: &str, by: u64) -> Fence {
    let (resource, token, attempt, ttl) = (name(resource), token(by), attempt(by), ttl(300_000));
    let (mode, labels, proposed) = (Mode::Shared, "{}".into(), None);
    match node.ask(&Request::AcquireShared(AcquireSharedArgs { resource, token, mode, attempt, ttl, labels, proposed }))
    {
        Reply::Admitted { fence, .. } => fence,
        other => panic!("{other:?}"),
    }
}

fn keep_reader(node: &mut impl Server, by: u64, fence: Fence) -> FillEntry {
    let record = LeaseRecord { mode: Mode::Shared, fence, ..record(node, by, &[by]) };
    FillEntry::Keep { resource: name("read"), record, left_ms: 30_000 }
}

/// A view that makes a list of two of a list of one. `before`: the view in which this process voted.
fn changed(run: &str, number: u64, before: Option<u64>) -> Arc<View> {
    let of = |text: &str| NodeId::parse(text).expect("valid");
    let (n, m) = (of("n"), of("m"));
    let before = before.map(|since| (n.clone(), (run.into(), view(since, run).id)));
    // Some views change the terms, too: the record then has more lines.
    let terms = params().terms();
    let changed =
        number.is_multiple_of(2).then(|| ChangedTerms { now: terms.clone(), accepted: vec!["1".into(), "2".into()] });
    let terms = changed.is_some().then_some(terms);
    let old = OldList { names: [n.clone()].into(), before: before.into_iter().collect(), terms };
    let list = NodeList { names: [m, n].into(), terms: "0".into(), changed, old: Some(old) };
    Arc::new(View { list: Some(Arc::new(list)), ..View::clone(&view(number, run)) })
}
