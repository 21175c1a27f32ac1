//! The rules of `docs/views.md`, *What is filled*, as properties of arbitrary pages, and each rule's mutant by name.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};

use super::*;
use crate::mutant::{FOUND_BY_CHANGED_LISTS, FOUND_BY_FILL_PLAN, FOUND_BY_MEMBER_FILLS, plant, restore};
use crate::redlock::membership::fill_pages::{PAGE_BYTES_MAX, PAGE_ENTRIES_MAX};
use crate::types::{Mode, PermitLimit, Token, Ttl};

/// Every mutant is found within them.
const CASES: u32 = 4_000;
const NOW_US: u64 = 1_700_000_000_000_000;
const NODES: usize = 5;
const QUORUM: usize = 3;
/// More than a minority.
const WITNESSES: usize = 3;
/// Of five nodes, the others are read.
const TARGET: usize = 4;
const WITHOUT_TTL_MS: u64 = 305_000;

fn resource(i: u8) -> ResourceName {
    ResourceName::parse(&format!("r{i}")).expect("valid")
}

fn token(i: u8) -> TokenHash {
    Token::parse(&format!("token-{i:016}")).expect("valid").hash()
}

/// Each token and resource has attempts of its own.
fn attempt(of: u8, by: u8, i: u8) -> AttemptId {
    AttemptId::from_random(u64::from(of) * 100 + u64::from(by) * 10 + u64::from(i))
}

fn claims(of: u8, by: u8, bits: u8) -> Arc<str> {
    let attempts = (0..2).filter(|i| bits >> i & 1 == 1).map(|i| format!("{},", attempt(of, by, i).as_str()));
    attempts.chain((bits & 4 > 0).then(|| "p,".to_owned())).collect::<String>().into()
}

fn record(of: u8, by: u8, bits: u8, age_s: u64) -> LeaseRecord {
    LeaseRecord {
        mode: Mode::Exclusive,
        token: token(by),
        renewals: u32::from(bits),
        ttl: Ttl::from_ms(30_000).expect("valid"),
        fence: Fence(NOW_US - age_s * 1_000_000),
        claims: claims(of, by, bits),
        labels: "{}".into(),
    }
}

/// What one node shows: a key and a block for each of two resources, and tombstones.
#[derive(Debug, Clone)]
struct Node {
    keys: [Key; 2],
    /// By resource: a token of three (3: a foreign client), its claims, its milliseconds.
    blocks: [Option<(u8, u8, u64)>; 2],
    /// Resource, token, attempt (2: the token), revoked instead of released, milliseconds.
    tombstones: Vec<(u8, u8, u8, bool, u64)>,
}

#[derive(Debug, Clone)]
enum Key {
    Nothing,
    /// Token, claims, milliseconds, and the seconds since it was granted.
    Lease(u8, u8, Option<u64>, u64),
    Foreign(Option<u64>),
}

fn key() -> impl Strategy<Value = Key> {
    let left = || prop_oneof![1 => Just(None), 9 => (0..300_000_u64).prop_map(Some)];
    prop_oneof![
        2 => Just(Key::Nothing),
        12 => (prop_oneof![6 => Just(0_u8), 1 => Just(1), 1 => Just(2)], 1..8_u8, left(), 0..100_u64)
            .prop_map(|(by, bits, left, age)| Key::Lease(by, bits, left, age)),
        1 => left().prop_map(Key::Foreign),
    ]
}

fn node() -> impl Strategy<Value = Node> {
    let block = || prop_oneof![5 => Just(None), 2 => (0..4_u8, 1..8_u8, 0..300_000_u64).prop_map(Some)];
    let tombstone = (0..2_u8, 0..3_u8, 0..3_u8, prop::bool::weighted(0.3), 0..60_000_u64);
    (([key(), key()]), [block(), block()], prop::collection::vec(tombstone, 0..2))
        .prop_map(|(keys, blocks, tombstones)| Node { keys, blocks, tombstones })
}

/// What most of them know was ended everywhere.
fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let known = (0..2_u8, 0..2_u8, 0..3_u8, prop::bool::weighted(0.3), 0..60_000_u64, 0..32_u8);
    (prop::collection::vec(node(), NODES), prop::collection::vec(known, 0..3)).prop_map(|(mut nodes, known)| {
        for (of, by, which, is_revoked, left_ms, by_nodes) in known {
            for (i, node) in nodes.iter_mut().enumerate().filter(|(i, _)| by_nodes >> i & 1 == 1) {
                // Not made at one moment everywhere.
                node.tombstones.push((of, by, which, is_revoked, left_ms.saturating_sub(i as u64 * 100)));
            }
        }
        nodes
    })
}

fn page(node: &Node) -> Vec<ReadEntry> {
    let mut page = Vec::new();
    for (of, key) in (0..).zip(&node.keys) {
        match key {
            Key::Nothing => {}
            Key::Lease(by, bits, left_ms, age_s) => page.push(ReadEntry::Lease {
                resource: resource(of),
                record: record(of, *by, *bits, *age_s),
                left_ms: *left_ms,
            }),
            Key::Foreign(left_ms) => page.push(ReadEntry::Foreign {
                resource: resource(of),
                value: Some(b"theirs"[..].into()),
                left_ms: *left_ms,
            }),
        }
    }
    for (of, block) in (0..).zip(&node.blocks) {
        if let Some((by, bits, left_ms)) = *block {
            let token = (by < 3).then(|| token(by));
            let claims = if by < 3 { claims(of, by, bits) } else { "".into() };
            page.push(ReadEntry::Block { resource: resource(of), token, claims, left_ms });
        }
    }
    for (of, by, which, is_revoked, left_ms) in &node.tombstones {
        let attempt = (*which < 2).then(|| attempt(*of, *by, *which));
        let reason = match (&attempt, is_revoked) {
            (Some(_), _) => EndReason::Cancelled,
            (None, true) => EndReason::Revoked,
            (None, false) => EndReason::Released,
        };
        let (resource, token, left_ms) = (resource(*of), token(*by), *left_ms);
        page.push(ReadEntry::Tombstone(Tombstone { resource, token, attempt, reason, left_ms }));
    }
    page
}

fn plan(nodes: &[Node]) -> FillPlan {
    let mut plan = FillPlan::new(NODES, TARGET, Duration::from_millis(WITHOUT_TTL_MS));
    for (index, node) in nodes.iter().enumerate() {
        plan.add(index, Fence(index as u64), NOW_US, page(node));
        plan.complete(index);
    }
    plan
}

/// One more than what the others show, by any clock that is 1 % slower.
fn is_long_enough(given_ms: u64, shown_ms: u64) -> bool {
    given_ms > shown_ms && (given_ms - shown_ms) * 100 >= shown_ms
}

/// What the nodes show of one token of one resource, counted without the plan.
struct Seen {
    /// Claims that were not cancelled, and lifetimes, of keys and of blocks.
    keys: Vec<(usize, u8, u64, u64)>,
    blocks: Vec<(u8, u64)>,
    /// By node: milliseconds since it was released.
    released: Vec<u64>,
    is_revoked: bool,
}

fn seen(nodes: &[Node], of: u8, by: u8) -> Seen {
    let of_node = |n: &Node| n.tombstones.iter().copied().filter(|t| (t.0, t.1) == (of, by)).collect::<Vec<_>>();
    let tombstones = || nodes.iter().flat_map(of_node);
    let witnesses = |which: u8| nodes.iter().filter(|n| of_node(n).iter().any(|t| t.2 == which)).count();
    let cancelled = (0..2_u8).filter(|which| witnesses(*which) >= WITNESSES).fold(0, |bits, which| bits | 1 << which);
    // The last release that a node shows counts.
    let released = nodes.iter().filter_map(|n| of_node(n).into_iter().filter(|t| t.2 == 2).max_by_key(|t| (!t.3, t.4)));
    let at = usize::from(of);
    let key = |(node, shown): (usize, &Node)| match shown.keys[at] {
        Key::Lease(token, bits, left, age) if token == by => {
            Some((node, bits & !cancelled, left.unwrap_or(WITHOUT_TTL_MS), age))
        }
        _ => None,
    };
    let block = |(token, bits, left): (u8, u8, u64)| (token == by).then_some((bits & !cancelled, left));
    Seen {
        keys: nodes.iter().enumerate().filter(|(n, _)| *n != TARGET).filter_map(key).collect(),
        blocks: nodes[..TARGET.min(nodes.len())].iter().filter_map(|n| n.blocks[at].and_then(block)).collect(),
        released: released.filter(|t| !t.3).map(|t| 60_000 - t.4).collect(),
        is_revoked: tombstones().any(|t| t.2 == 2 && t.3),
    }
}

impl Seen {
    fn claims(&self) -> u8 {
        self.keys.iter().map(|k| k.1).chain(self.blocks.iter().map(|b| b.0)).fold(0, |all, bits| all | bits)
    }

    fn longest_ms(&self) -> u64 {
        self.keys.iter().map(|k| k.2).chain(self.blocks.iter().map(|b| b.1)).max().unwrap_or(0)
    }

    /// More than a minority shows that the token was released, well after all that is shown was granted.
    fn is_released(&self) -> bool {
        let is_after = |ago_ms: &&u64| self.keys.iter().all(|k| k.3 * 1_000 > **ago_ms + 3_000);
        self.blocks.is_empty() && self.released.iter().filter(is_after).count() >= WITNESSES
    }

    fn stands(&self) -> bool {
        self.claims() > 0 && !self.is_released()
    }
}

/// Every rule; the first that is broken.
fn check(nodes: &[Node], entries: &[FillEntry]) -> Result<(), String> {
    let first_other = entries.iter().position(|e| !matches!(e, FillEntry::Tombstone(_))).unwrap_or(entries.len());
    if entries[first_other..].iter().any(|e| matches!(e, FillEntry::Tombstone(_))) {
        return Err("a tombstone comes after what it may end".into());
    }
    for of in 0..2 {
        let name = resource(of);
        let copy = entries.iter().find_map(|e| match e {
            FillEntry::Copy { resource, record, left_ms } if *resource == name => Some((record, *left_ms)),
            _ => None,
        });
        for by in 0..3 {
            check_token(nodes, entries, of, by, copy)?;
        }
        let foreign_ms = nodes[..TARGET].iter().filter_map(|n| {
            let key = match n.keys[usize::from(of)] {
                Key::Foreign(left_ms) => Some(left_ms.unwrap_or(WITHOUT_TTL_MS)),
                _ => None,
            };
            let block = n.blocks[usize::from(of)].filter(|b| b.0 == 3).map(|b| b.2);
            key.max(block)
        });
        let given = entries.iter().find_map(|e| match e {
            FillEntry::Foreign { resource, left_ms, .. } if *resource == name => Some(*left_ms),
            _ => None,
        });
        match (foreign_ms.max(), given, copy) {
            (Some(shown), Some(given), None) if is_long_enough(given, shown) => {}
            (None, None, _) | (_, None, Some(_)) => {}
            other => return Err(format!("foreign lock: {other:?}")),
        }
    }
    Ok(())
}

fn check_token(
    nodes: &[Node],
    entries: &[FillEntry],
    of: u8,
    by: u8,
    copy: Option<(&LeaseRecord, u64)>,
) -> Result<(), String> {
    let (name, token, seen) = (resource(of), token(by), seen(nodes, of, by));
    let block = entries.iter().find_map(|e| match e {
        FillEntry::Block { resource, token: t, claims, left_ms } if (resource, t) == (&name, &token) => {
            Some((claims.clone(), *left_ms))
        }
        _ => None,
    });
    let own_copy = copy.filter(|(record, _)| record.token == token);
    let what = format!("r{of}, token {by}");
    if !seen.stands() && (block.is_some() || own_copy.is_some()) {
        return Err(format!("{what}: nothing stands for it, but it is filled"));
    }
    if seen.stands() && copy.is_none() && block.is_none() {
        return Err(format!("{what}: it is not filled"));
    }
    if copy.is_some() && block.is_some() {
        return Err(format!("{what}: a copy and a block"));
    }
    let given = own_copy.map(|(record, left_ms)| (record.claims.clone(), left_ms)).or(block);
    if let Some((given_claims, left_ms)) = given {
        if !is_long_enough(left_ms, seen.longest_ms()) {
            return Err(format!("{what}: {left_ms} ms for {}", seen.longest_ms()));
        }
        let (mut given, wanted) = (given_claims.split(',').collect::<Vec<_>>(), claims(of, by, seen.claims()));
        let mut wanted: Vec<_> = wanted.split(',').collect();
        given.sort_unstable();
        wanted.sort_unstable();
        if given != wanted {
            return Err(format!("{what}: claimed by {given:?}, not {wanted:?}"));
        }
    }
    if let Some((record, _)) = own_copy {
        let is_free = |node: &usize| nodes[*node].blocks[usize::from(of)].is_none();
        let support = seen.keys.iter().filter(|k| k.1 > 0 && is_free(&k.0)).count();
        if support < QUORUM || !seen.released.is_empty() || seen.is_revoked {
            return Err(format!("{what}: copied with the support of {support}"));
        }
        let ages = seen.keys.iter().map(|k| k.3);
        if Some(record.fence) != ages.min().map(|age_s| Fence(NOW_US - age_s * 1_000_000)) {
            return Err(format!("{what}: copied with the fence {}", record.fence));
        }
    }
    let tombstone = entries.iter().any(|e| match e {
        FillEntry::Tombstone(t) => {
            (&t.resource, &t.token, &t.attempt) == (&name, &token, &None) && t.reason == EndReason::Released
        }
        _ => false,
    });
    let is_shown = !seen.keys.is_empty() || !seen.blocks.is_empty();
    let expected = !seen.released.is_empty() && (!is_shown || seen.is_released());
    if tombstone != expected {
        return Err(format!("{what}: tombstone {tombstone}, not {expected}"));
    }
    Ok(())
}

/// Fixed seeds, so that every run tests the same.
fn outcome(cases: u32) -> Result<(), TestError<Vec<Node>>> {
    let config = ProptestConfig { cases, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() };
    let seed = TestRng::from_seed(RngAlgorithm::ChaCha, b"redlockd plans of fills, seed 01");
    // Five nodes, of which the last is the one to be filled: what it shows counts for nothing.
    TestRunner::new_with_rng(config, seed).run(&nodes(), |nodes| {
        let fill = plan(&nodes).finish().expect("all were read");
        let entries: Vec<FillEntry> = fill.pages.into_iter().flatten().collect();
        check(&without_tombstones_of_target(&nodes), &entries).map_err(TestCaseError::fail)
    })
}

fn without_tombstones_of_target(nodes: &[Node]) -> Vec<Node> {
    let mut nodes = nodes.to_vec();
    nodes[TARGET].tombstones.clear();
    nodes
}

#[test]
fn a_fill_is_what_the_others_support() {
    if let Err(failure) = outcome(CASES) {
        panic!("{failure}");
    }
}

#[test]
fn every_mutant_of_a_rule_is_found() {
    for mutant in FOUND_BY_FILL_PLAN {
        let before = plant(Some(*mutant), false);
        let outcome = outcome(CASES);
        restore(before);
        assert!(outcome.is_err(), "{mutant:?} is not found");
    }
}

#[test]
fn fewer_than_a_quorum_of_others_give_no_fill() {
    let mut plan = FillPlan::new(3, 2, Duration::ZERO);
    for node in [0, 2] {
        plan.add(node, Fence(9), NOW_US, vec![]);
        plan.complete(node);
    }
    assert_eq!(plan.finish(), None, "the process itself does not count");
    let mut plan = FillPlan::new(3, 2, Duration::ZERO);
    plan.add(1, Fence(7), NOW_US, vec![]);
    plan.add(0, Fence(9), NOW_US, vec![]);
    plan.complete(0);
    plan.complete(1);
    assert_eq!(plan.finish(), Some(Fill { seed: Fence(9), pages: vec![vec![]] }), "an empty fill has a page too");
}

#[test]
fn pages_are_bounded_by_entries_and_by_bytes() {
    let lease = |i: u64, labels: usize| {
        let mut record = record(0, 0, 1, 0);
        record.labels = "x".repeat(labels).into();
        ReadEntry::Lease { resource: ResourceName::parse(&format!("r{i}")).expect("valid"), record, left_ms: Some(1) }
    };
    for (labels, least) in [(2, 4), (PAGE_BYTES_MAX / 10, 100)] {
        let mut plan = FillPlan::new(3, 2, Duration::ZERO);
        for node in [0, 1] {
            plan.add(node, Fence(0), NOW_US, (0..1_000).map(|i| lease(i, labels)).collect());
            plan.complete(node);
        }
        let pages = plan.finish().expect("both were read").pages;
        assert!(pages.len() >= least && pages.iter().all(|page| page.len() <= PAGE_ENTRIES_MAX));
        assert_eq!(pages.iter().map(Vec::len).sum::<usize>(), 1_000);
    }
}

/// Node 0 shows a lease, and node 1 claims that it was released, or cancelled: one of them lies.
#[test]
fn one_nodes_tombstones_take_no_lease_away() {
    let given = |attempt: Option<AttemptId>, reason| {
        let mut plan = FillPlan::new(3, 2, Duration::ZERO);
        let lease = ReadEntry::Lease { resource: resource(0), record: record(0, 0, 1, 60), left_ms: Some(9_000) };
        let tombstone = Tombstone { resource: resource(0), token: token(0), attempt, reason, left_ms: 60_000 };
        plan.add(0, Fence(9), NOW_US, vec![lease]);
        plan.add(1, Fence(9), NOW_US, vec![ReadEntry::Tombstone(tombstone)]);
        (0..2).for_each(|node| plan.complete(node));
        plan.finish().expect("both were read").pages.concat()
    };
    for (attempt, reason) in [
        (None, EndReason::Released),
        (None, EndReason::Forced),
        (None, EndReason::Revoked),
        (Some(attempt(0, 0, 0)), EndReason::Cancelled),
    ] {
        let entries = given(attempt, reason);
        assert!(matches!(entries[..], [FillEntry::Block { .. }]), "{reason:?}: {entries:?}");
    }
}

#[test]
fn no_node_can_have_a_block_for_longer_than_a_lease_can_last() {
    let mut plan = FillPlan::new(3, 2, Duration::ZERO);
    for node in 0..2 {
        let lease = ReadEntry::Lease { resource: resource(0), record: record(0, node, 1, 0), left_ms: Some(u64::MAX) };
        plan.add(usize::from(node), Fence(9), NOW_US, vec![lease]);
        plan.complete(usize::from(node));
    }
    for entry in plan.finish().expect("both were read").pages.concat() {
        assert!(matches!(entry, FillEntry::Block { left_ms, .. } if left_ms < LEFT_MAX_MS * 2), "{entry:?}");
    }
}

fn permit(slot: u8) -> Mode {
    Mode::Permit { slot, limit: PermitLimit::new(3).expect("valid") }
}

/// What is filled of one resource where three of five nodes, as many as a quorum, show these records, and a fourth one shows
/// nothing; for each node those of two tokens.
fn member_fill(shown: [[Option<LeaseRecord>; 2]; 3]) -> Vec<FillEntry> {
    let mut plan = FillPlan::new(NODES, TARGET, Duration::ZERO);
    for (node, records) in shown.into_iter().chain([[None, None]]).enumerate() {
        let lease = |record| ReadEntry::Lease { resource: resource(0), record, left_ms: Some(9_000) };
        plan.add(node, Fence(9), NOW_US, records.into_iter().flatten().map(lease).collect());
        plan.complete(node);
    }
    plan.finish().expect("a quorum was read").pages.concat()
}

/// Two members, the first shown alike by all three, the second as `others` has it: a copy of the first one, and of the second one
/// a copy only if `is_agreed`.
fn check_members(modes: [Mode; 2], others: [Option<(Mode, u64)>; 3], is_agreed: bool) -> Result<(), String> {
    let member = |by, (mode, age_s)| LeaseRecord { mode, ..record(0, by, 1, age_s) };
    let shown = others.map(|other| [Some(member(0, (modes[0], 50))), other.map(|other| member(1, other))]);
    let entries = member_fill(shown);
    let copies = entries.iter().filter_map(|entry| match entry {
        FillEntry::Copy { record, left_ms, .. } if *left_ms > 9_000 => {
            Some((record.token.clone(), record.mode, record.fence))
        }
        _ => None,
    });
    let mut expected = vec![(token(0), modes[0], Fence(NOW_US - 50 * 1_000_000))];
    expected.extend(is_agreed.then(|| (token(1), modes[1], Fence(NOW_US - 20 * 1_000_000))));
    let blocks = entries.iter().filter_map(|entry| match entry {
        FillEntry::Block { token, left_ms, .. } if *left_ms > 9_000 => Some(token.clone()),
        _ => None,
    });
    let is_right = copies.collect::<Vec<_>>() == expected
        && blocks.collect::<Vec<_>>() == if is_agreed { vec![] } else { vec![token(1)] };
    is_right.then_some(()).ok_or(format!("{others:?}: {entries:?}"))
}

/// A member is copied where a quorum shows it with one slot and one fence; else there is a block for it beside the copies.
fn check_all_members() -> Result<(), String> {
    for modes in [[Mode::Shared; 2], [permit(0), permit(1)]] {
        let same = Some((modes[1], 20));
        check_members(modes, [same; 3], true)?;
        // Its first fence was not the one that a quorum was brought to.
        check_members(modes, [same, same, Some((modes[1], 40))], false)?;
        // One reader less than a quorum shows it.
        check_members(modes, [same, same, None], false)?;
    }
    let modes = [permit(0), permit(1)];
    check_members(modes, [Some((modes[1], 20)), Some((modes[1], 20)), Some((permit(2), 20))], false)
}

#[test]
fn a_member_is_filled_as_a_quorum_shows_it_or_not_at_all() {
    if let Err(why) = check_all_members() {
        panic!("{why}");
    }
    // None is agreed, two that were given one slot: blocks alone, whatever each of them is.
    let of = |by, mode| Some(LeaseRecord { mode, ..record(0, by, 1, 20) });
    for modes in [[permit(0); 2], [Mode::Shared, permit(0)]] {
        let entries = member_fill([(); 3].map(|()| [of(0, modes[0]), of(1, modes[1])]));
        let is_block = |entry: &FillEntry| matches!(entry, FillEntry::Block { .. });
        assert!(entries.len() == 2 && entries.iter().all(is_block), "{entries:?}");
    }
}

#[test]
fn every_mutant_of_a_fill_of_members_is_found() {
    for mutant in FOUND_BY_MEMBER_FILLS {
        let before = plant(Some(*mutant), false);
        let outcome = check_all_members();
        restore(before);
        assert!(outcome.is_err(), "{mutant:?} is not found");
    }
}

/// Another list, or a lock delay that becomes larger by `longer`, and a process of both lists: two leases that a quorum shows, one
/// of them beside a block of a node that counts; one that only this process shows.
fn check_changed_list(longer: Duration) -> Result<(), String> {
    let mut plan = FillPlan::new(3, 2, Duration::ZERO).for_change(true).lengthened(longer);
    for (node, by) in [(0, 0), (1, 0), (2, 0), (2, 1), (0, 2), (1, 2)] {
        let (resource, record) = (resource(by), record(by, by, 1, 0));
        plan.add(node, Fence(9), NOW_US, vec![ReadEntry::Lease { resource, record, left_ms: Some(9_000) }]);
        plan.complete(node);
    }
    let block = ReadEntry::Block { resource: resource(2), token: Some(token(3)), claims: "p,".into(), left_ms: 9_000 };
    plan.add(1, Fence(9), NOW_US, vec![block]);
    let entries = plan.finish().expect("all were read").pages.concat();
    let left_ms = 9_000 + longer.as_millis() as u64;
    let (mut kept, mut blocked) = (0, 0);
    for entry in &entries {
        match entry {
            FillEntry::Keep { resource: on, left_ms: left, .. } if *on == resource(0) && *left >= left_ms => kept += 1,
            FillEntry::Block { resource: on, left_ms: left, .. } if *on != resource(0) && *left >= left_ms => {
                blocked += 1
            }
            _ => {}
        }
    }
    if (kept, blocked, entries.len()) == (1, 3, 4) { Ok(()) } else { Err(format!("{entries:?}")) }
}

/// A shared lease that has fence 5 on two of three nodes, and 6 on the one that left: whoever kept it gets the first. Without two
/// alike, each keeps its own.
fn check_kept_members() -> Result<(), String> {
    for (fences, expected) in [([5, 5, 6], 5), ([6, 5, 5], 5), ([4, 5, 6], 0)] {
        let mut plan = FillPlan::new(3, 2, Duration::ZERO).for_change(true);
        for (node, fence) in fences.into_iter().enumerate() {
            let record = LeaseRecord { mode: Mode::Shared, fence: Fence(fence), ..record(0, 0, 1, 0) };
            let entry = ReadEntry::Lease { resource: resource(0), record, left_ms: Some(9_000) };
            plan.add(node, Fence(9), NOW_US, vec![entry]);
            plan.complete(node);
        }
        let entries = plan.finish().expect("all were read").pages.concat();
        if !matches!(&entries[..], [FillEntry::Keep { record, .. }] if record.fence == Fence(expected)) {
            return Err(format!("{entries:?}"));
        }
    }
    Ok(())
}

#[test]
fn in_a_changed_list_a_process_keeps_what_a_quorum_shows_and_every_lease_gets_the_longer_lock_delay() {
    let check = || {
        let changed = [Duration::ZERO, Duration::from_secs(5)].into_iter().try_for_each(check_changed_list);
        changed.and_then(|()| check_kept_members())
    };
    assert_eq!(check(), Ok(()));
    for mutant in FOUND_BY_CHANGED_LISTS {
        let before = plant(Some(*mutant), false);
        let outcome = check();
        restore(before);
        assert!(outcome.is_err(), "{mutant:?} is not found");
    }
}

#[test]
fn a_process_of_both_lists_is_filled_only_if_it_was_read_itself() {
    let plan = |complete: &[usize]| {
        let mut plan = FillPlan::new(3, 2, Duration::ZERO).for_change(true);
        complete.iter().for_each(|node| plan.complete(*node));
        plan.finish().is_some()
    };
    assert_eq!([plan(&[0, 2]), plan(&[0, 1]), plan(&[2])], [true, false, false]);
}
