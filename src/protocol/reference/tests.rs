//! What the contract suite cannot see from outside: that memory is freed, and that no request exceeds its effect bound.

use std::time::Duration;

use super::*;
use crate::mutant::{self, FOUND_BY_REFERENCE};
use crate::protocol::{
    AcquireArgs, AcquireSharedArgs, CancelArgs, ChangedTerms, ClusterName, EndReason, IntentArgs, LeaseRecord, NoVote,
    NodeList, OldList, ProbeArgs, ReleaseArgs, Reply, RosterEntry, StoredLock, Terms, TokenUse, UpdateArgs, UpdateKind,
    View, Vote,
};
use crate::types::{AttemptId, Fence, Mode, NodeId, Token, WantedMode};

const NOW_US: u64 = 1_700_000_000_000_000;

fn params() -> ClusterParams {
    ClusterParams {
        cluster: "c".into(),
        guard: Duration::from_millis(500),
        lock_delay: Duration::from_secs(1),
        quarantine: Duration::from_secs(305),
        fence_ttl: Duration::from_mins(10),
        template: Default::default(),
    }
}

fn name(i: u64) -> ResourceName {
    ResourceName::parse(&format!("r{i}")).expect("valid")
}

fn token(i: u64) -> TokenHash {
    Token::parse(&format!("token-{i:016}")).expect("valid").hash()
}

fn acquire(i: u64, ttl_ms: u64) -> Request {
    Request::Acquire(AcquireArgs {
        resource: name(i),
        token: token(i),
        attempt: AttemptId::from_random(i),
        ttl: Ttl::from_ms(ttl_ms).expect("valid"),
        labels: "{}".into(),
        token_use: TokenUse::Again,
    })
}

fn active() -> ReferenceNode {
    let mut node = ReferenceNode::new("run1");
    node.apply(NOW_US, "", RequestTime(NOW_US), &params(), &Request::init()).expect("a reply");
    node
}

/// In the view that the node has installed.
fn call(node: &mut ReferenceNode, now_us: u64, request: &Request) -> Reply {
    let stamp = RequestStamp::new(RequestTime(now_us), node.view());
    node.apply(now_us, "", stamp, &params(), request).expect("a reply")
}

fn call_in(node: &mut ReferenceNode, now_us: u64, number: u64, request: &Request) -> Reply {
    let stamp = RequestStamp::new(RequestTime(now_us), view(number));
    node.apply(now_us, "", stamp, &params(), request).expect("a reply")
}

fn id(number: u64) -> ViewId {
    (0..number).fold(ViewId::NONE, |id, _| id.above(7))
}

/// It admits the only process.
fn view(number: u64) -> Arc<View> {
    let (id, name) = (id(number), NodeId::parse("n").expect("valid"));
    Arc::new(View {
        id,
        list: None,
        roster: [(name, RosterEntry { run: "run1".into(), since: id, address: None })].into(),
    })
}

#[test]
fn expired_keys_are_dropped_by_later_requests() {
    let mut node = active();
    for i in 0..1_000 {
        assert!(matches!(call(&mut node, NOW_US, &acquire(i, 100)), Reply::Granted { joined: false, .. }));
        let cancel = Request::Cancel(CancelArgs {
            resource: name(i),
            token: token(i),
            attempt: AttemptId::from_random(i + 5_000),
        });
        call(&mut node, NOW_US, &cancel);
    }
    assert_eq!(node.key_counts(), KeyCounts { locks: 1_000, index: 0, counters: 1_000, tombstones: 1_000, blocks: 0 });
    let later = NOW_US + 2_000_000_000; // two generations of fences
    let requests = 1_000 / memory::PURGE_PER_REQUEST + 2;
    for _ in 0..requests {
        call(&mut node, later, &Request::probe());
    }
    assert_eq!(node.key_counts(), KeyCounts::default());
}

#[test]
fn a_resource_acquired_and_released_repeatedly_leaves_one_counter() {
    let mut node = active();
    for step in 0..2_000_u64 {
        let now = NOW_US + step * 100_000; // 200 s in all
        let (resource, token) = (name(1), token(step));
        let request = Request::Acquire(AcquireArgs {
            resource: resource.clone(),
            token: token.clone(),
            attempt: AttemptId::from_random(step),
            ttl: Ttl::from_ms(30_000).expect("valid"),
            labels: "{}".into(),
            token_use: TokenUse::Again,
        });
        assert!(matches!(call(&mut node, now, &request), Reply::Granted { joined: false, .. }));
        call(&mut node, now, &Request::Release(ReleaseArgs { resource, token, reason: EndReason::Released }));
    }
    let counts = node.key_counts();
    assert_eq!((counts.locks, counts.index, counts.counters), (0, 0, 1));
    assert!(counts.tombstones <= 602, "a minute of releases at ten a second, not {}", counts.tombstones);
}

#[test]
fn no_request_exceeds_its_effect_bound() {
    let mut node = active();
    let mut now = NOW_US;
    for i in 0..200_u64 {
        now += 37_000;
        let (resource, token) = (name(i % 3), token(i % 3));
        let request = match i % 5 {
            0 | 1 => acquire(i % 3, 50 + i * 10),
            2 => Request::Update(UpdateArgs {
                resource,
                token,
                ttl: None,
                fence: None,
                kind: UpdateKind::Renewal,
                labels: None,
            }),
            3 => {
                let (ttl, fence) = (Ttl::from_ms(i * 7).ok(), Some(Fence(now + 400_000)));
                Request::Update(UpdateArgs { resource, token, ttl, fence, kind: UpdateKind::Edit, labels: None })
            }
            _ => Request::Cancel(CancelArgs { resource, token, attempt: AttemptId::from_random(i % 3) }),
        };
        let before = node.last_lease_end_us();
        let bound = node.effect_bound(now, RequestTime(now), &params(), &request);
        call(&mut node, now, &request);
        assert!(node.last_lease_end_us() <= before.max(bound.end_us.unwrap_or(0)), "{request:?}");
        assert!(node.highest_fence() <= bound.fence, "{request:?}: {} > {bound:?}", node.highest_fence());
    }
}

fn record(i: u64) -> LeaseRecord {
    let (token, ttl) = (token(i), Ttl::from_ms(30_000).expect("valid"));
    let (mode, fence) = (Mode::Exclusive, Fence(NOW_US));
    LeaseRecord { mode, token, renewals: 0, ttl, fence, claims: "p,".into(), labels: "{}".into() }
}

fn fill(node: &mut ReferenceNode, now_us: u64, nonce: u64, entries: Vec<FillEntry>) {
    fill_for(node, now_us, 1, nonce, entries);
}

fn fill_for(node: &mut ReferenceNode, now_us: u64, number: u64, nonce: u64, entries: Vec<FillEntry>) {
    call(node, now_us, &Request::Promise { view: id(number) });
    let request = Request::Fill(FillArgs { view: view(number), ..fill_of(nonce, &entries) });
    let bound = node.effect_bound(now_us, RequestTime(now_us), &params(), &request);
    let before = node.last_lease_end_us();
    assert_eq!(call(node, now_us, &request), Reply::Filled { done: 1 });
    assert!(node.last_lease_end_us() <= before.max(bound.end_us.unwrap_or(0)) && node.highest_fence() <= bound.fence);
}

fn fill_of(nonce: u64, entries: &[FillEntry]) -> FillArgs {
    FillArgs { view: view(1), nonce, page: 1, pages: 1, keeps: false, entries: entries.to_vec() }
}

/// A node has a key of one token and a block for another, as after its clock's quarantine. The first that is broken.
fn blocks_stand() -> Result<(), &'static str> {
    let (mut node, served_us) = (active(), NOW_US + 305_000_000);
    call(&mut node, NOW_US, &Request::Quarantine { by: "".into() });
    let copy = |i, record| FillEntry::Copy { resource: name(i), record, left_ms: 400_000 };
    let block = |i| FillEntry::Block { resource: name(i), token: token(9), claims: "p,".into(), left_ms: 500_000 };
    fill(&mut node, NOW_US, 1, vec![copy(1, record(1)), block(1), block(2), block(3)]);
    let admit = AdmitArgs { view: view(1), nonce: 1, pages: 1, seed: Fence(NOW_US), by_clock: false };
    call(&mut node, served_us, &Request::Admit(admit));
    let older = RestoreArgs { resource: name(3), record: record(1), left_ms: 1_000 };
    call(&mut node, NOW_US, &Request::Quarantine { by: "".into() });
    call_in(&mut node, NOW_US, 0, &Request::Restore(older));
    if node.key_counts().blocks < 3 {
        return Err("a repair of an older view took the place of a block");
    }
    let again = Request::Fill(fill_of(2, &[block(4)]));
    if call(&mut node, NOW_US, &again) != Reply::FillNotNeeded {
        return Err("it is filled for a view in which it has voted");
    }
    fill_for(&mut node, NOW_US, 2, 3, vec![]);
    let admit = AdmitArgs { view: view(2), nonce: 3, pages: 1, seed: Fence(NOW_US), by_clock: false };
    call(&mut node, served_us, &Request::Admit(admit));
    let update = UpdateArgs {
        resource: name(1),
        token: token(1),
        ttl: None,
        fence: None,
        kind: UpdateKind::Renewal,
        labels: None,
    };
    if matches!(call(&mut node, served_us, &Request::Update(update)), Reply::Updated { .. }) {
        return Err("an extend of a blocked resource counts");
    }
    let restore = RestoreArgs { resource: name(2), record: record(1), left_ms: 1_000 };
    assert_eq!(call(&mut node, served_us, &Request::Restore(restore)), Reply::Restored);
    let Reply::Held { .. } = call(&mut node, served_us + 2_000_000, &acquire(2, 1_000)) else {
        return Err("a repair ended before the block whose place it took");
    };
    let others = Arc::new(View { id: id(3), ..View::default() });
    match call(&mut node, served_us, &Request::Install { view: others }) {
        Reply::Member(m) if !m.is_done && matches!(m.vote, Vote::NoVote(NoVote::Quarantined { .. })) => Ok(()),
        _ => Err("it takes, or survives with its vote, a view that does not name it"),
    }
}

/// A process that forgot promises a view, then the admission to a lower one arrives.
fn is_admitted_below_a_promise() -> bool {
    let mut node = active();
    call(&mut node, NOW_US, &Request::Quarantine { by: "".into() });
    fill_for(&mut node, NOW_US, 1, 1, vec![]);
    call(&mut node, NOW_US, &Request::Promise { view: id(2) });
    let admit = AdmitArgs { view: view(1), nonce: 1, pages: 1, seed: Fence(NOW_US), by_clock: false };
    matches!(call(&mut node, NOW_US, &Request::Admit(admit)), Reply::Member(m) if m.is_done)
}

/// A process has a lease's key, and is filled with a block for the lease. Whether the key votes when the block is over.
fn key_votes_after_its_block() -> bool {
    let mut node = active();
    call(&mut node, NOW_US, &Request::Quarantine { by: "".into() });
    let token = token(1);
    let own = |i| FillEntry::Copy { resource: name(i), record: record(1), left_ms: 400_000 };
    let block = |i, left_ms| FillEntry::Block { resource: name(i), token: token.clone(), claims: "p,".into(), left_ms };
    fill(&mut node, NOW_US, 1, vec![own(1), own(2), block(1, 400_000), block(2, 10)]);
    let admit = AdmitArgs { view: view(1), nonce: 1, pages: 1, seed: Fence(NOW_US), by_clock: false };
    let mut now_us = NOW_US + 305_000_000;
    call(&mut node, now_us, &Request::Admit(admit));
    let ttl = Ttl::from_ms(200_000).ok();
    let mut extend = |now_us, i| {
        let token = token.clone();
        let of = UpdateArgs { resource: name(i), token, ttl, fence: None, kind: UpdateKind::Renewal, labels: None };
        matches!(call(&mut node, now_us, &Request::Update(of)), Reply::Updated { .. })
    };
    let is_outlasted = extend(now_us, 2);
    extend(now_us, 1);
    now_us = NOW_US + 401_000_000;
    extend(now_us, 1) || is_outlasted
}

/// A process forgot once more after its promise, and the fill for that view arrives.
fn is_filled_unpromised() -> bool {
    let mut node = ReferenceNode::new("run1");
    call(&mut node, NOW_US, &Request::probe());
    call(&mut node, NOW_US, &Request::Fill(fill_of(1, &[]))) != Reply::FillNotNeeded
}

/// A process of both lists of a change forgot: it is filled as if it had kept its keys.
fn is_filled_without_its_keys() -> bool {
    let mut node = ReferenceNode::new("run1");
    call(&mut node, NOW_US, &Request::probe());
    call(&mut node, NOW_US, &Request::Promise { view: id(1) });
    call(&mut node, NOW_US, &Request::Fill(FillArgs { keeps: true, ..fill_of(1, &[]) })) != Reply::FillNotNeeded
}

/// The list changes, and the only process of the former one has installed the view, but was not filled for it.
fn votes_unfilled_in_a_changed_list() -> bool {
    let mut node = active();
    let name = NodeId::parse("n").expect("valid");
    let old =
        OldList { names: [name.clone()].into(), before: [(name, ("run1".into(), ViewId::NONE))].into(), terms: None };
    let list = NodeList { names: old.names.clone(), terms: "0".into(), changed: None, old: Some(old) };
    let view = Arc::new(View { list: Some(Arc::new(list)), ..View::clone(&view(3)) });
    call(&mut node, NOW_US, &Request::Install { view: Arc::clone(&view) });
    matches!(call_in(&mut node, NOW_US, 3, &acquire(1, 100)), Reply::Granted { .. })
}

/// In a view with other terms than the configured ones: how long a lease's key lasts, and whether a request is too late.
fn has_the_terms_of_its_view() -> bool {
    let (mut node, params) = (active(), params());
    let now = Terms {
        guard: Duration::from_millis(50),
        lock_delay: Duration::from_secs(9),
        fence_ttl: Duration::ZERO,
        template: None,
    };
    let changed = Some(ChangedTerms { now, accepted: vec!["0".into()] });
    let names = [NodeId::parse("n").expect("valid")].into();
    let list = NodeList { names, terms: "c".into(), changed, ..NodeList::default() };
    let view = Arc::new(View { list: Some(Arc::new(list)), ..View::clone(&node.view()) });
    let mut ask = |sent_us, request: &Request| {
        let stamp = RequestStamp::new(RequestTime(sent_us), Arc::clone(&view));
        node.apply(NOW_US, "", stamp, &params, request).expect("a reply")
    };
    let late = ask(NOW_US - 100_000, &acquire(1, 100));
    let granted = ask(NOW_US, &acquire(1, 100));
    matches!((late, granted), (Reply::NoVote(NoVote::ClockOff { .. }), Reply::Granted { .. }))
        && node.last_lease_end_us() > NOW_US + 9_000_000
}

/// The nodes lost the change of the terms with which an instance was started: whether they vote for it under its own key template.
fn votes_under_an_unaccepted_template() -> bool {
    let mut node = active();
    let name = NodeId::parse("n").expect("valid");
    let list = NodeList { names: [name].into(), terms: "declared".into(), ..NodeList::default() };
    let view = Arc::new(View { list: Some(Arc::new(list)), ..View::clone(&node.view()) });
    let cluster = ClusterName::new("other", "unaccepted");
    cluster.learn("c");
    let params = ClusterParams { cluster, ..params() };
    let stamp = RequestStamp::new(RequestTime(NOW_US), view);
    matches!(node.apply(NOW_US, "", stamp, &params, &acquire(1, 100)), Ok(Reply::Granted { .. }))
}

fn acquire_mode(i: u64, by: u64, mode: Mode, ttl_ms: u64) -> Request {
    Request::AcquireShared(AcquireSharedArgs {
        resource: name(i),
        token: token(by),
        mode,
        attempt: AttemptId::from_random(by),
        ttl: Ttl::from_ms(ttl_ms).expect("valid"),
        labels: "{}".into(),
        proposed: None,
    })
}

/// A member lasts as long as its TTL on the node's clock, whatever the sender's says, and none is admitted beside an intent.
fn members_stand() -> Result<(), &'static str> {
    let (mut node, params) = (active(), params());
    let (late, view) = (RequestTime(NOW_US - 400_000), node.view());
    for (by, sent_at) in [(1, late), (2, RequestTime(NOW_US))] {
        let stamp = RequestStamp::new(sent_at, Arc::clone(&view));
        node.apply(NOW_US, "", stamp, &params, &acquire_mode(1, by, Mode::Shared, 1_000)).expect("a reply");
    }
    let Reply::Inspected(seen) = call(&mut node, NOW_US + 1_900_000, &Request::Inspect { resource: name(1) }) else {
        return Err("it is not inspected");
    };
    if !matches!(seen.lock, StoredLock::Members(members) if members.len() == 2) {
        return Err("a member ends before its TTL by the node's clock");
    }
    let intent = |is_withdrawn| {
        Request::Intent(IntentArgs {
            resource: name(2),
            token: token(9),
            since: RequestTime(1),
            mode: WantedMode::Exclusive,
            is_withdrawn,
        })
    };
    call(&mut node, NOW_US, &intent(false));
    let reader = acquire_mode(2, 1, Mode::Shared, 1_000);
    if !matches!(call(&mut node, NOW_US, &reader), Reply::HeldByMembers(held) if held.is_intent && held.members.is_empty())
    {
        return Err("it is admitted beside an intent");
    }
    call(&mut node, NOW_US, &intent(true));
    // Two leases that are held together: the fence of one is proposed for the other.
    let fence_of = |reply: Reply| if let Reply::Admitted { fence, .. } = reply { fence } else { Fence(0) };
    let later = fence_of(call(&mut node, NOW_US, &acquire_mode(3, 2, Mode::Shared, 1_000)));
    let Request::AcquireShared(first) = acquire_mode(3, 1, Mode::Shared, 1_000) else { return Err("not shared") };
    call(&mut node, NOW_US, &acquire_mode(3, 1, Mode::Shared, 1_000));
    let given = call(
        &mut node,
        NOW_US,
        &Request::AcquireShared(AcquireSharedArgs { proposed: Some(Fence(later.0 + 1)), ..first }),
    );
    let last = fence_of(given);
    let Request::AcquireShared(again) = acquire_mode(3, 2, Mode::Shared, 1_000) else { return Err("not shared") };
    let proposed = Some(last);
    if fence_of(call(&mut node, NOW_US, &Request::AcquireShared(AcquireSharedArgs { proposed, ..again }))) == last {
        return Err("it gives one fence to two leases");
    }
    match call(&mut node, NOW_US, &reader) {
        Reply::Admitted { joined: false, .. } => Ok(()),
        _ => Err("it is refused after the intent was withdrawn"),
    }
}

/// The policy of a durable process was changed; it restarts.
fn inherits_what_was_not_synced() -> bool {
    let mut node = active();
    let probe = |node: &mut ReferenceNode, syncs| match call(
        node,
        NOW_US,
        &Request::Probe(ProbeArgs { syncs, ..ProbeArgs::default() }),
    ) {
        Reply::Status(status) => *status,
        reply => panic!("{reply:?}"),
    };
    assert!(probe(&mut node, Some(true)).is_durable);
    assert!(!probe(&mut node, Some(false)).is_durable);
    node.restart_with_memory("run2");
    probe(&mut node, Some(true)).inherited.is_some()
}

/// A token is released; then its first acquire arrives, which was sent before.
fn revives_a_released_token() -> bool {
    let first = |i, token_use| {
        let Request::Acquire(args) = acquire(i, 30_000) else { unreachable!("an acquire") };
        Request::Acquire(AcquireArgs { token_use, ..args })
    };
    let release = |i| {
        let (resource, token, reason) = (name(i), token(i), EndReason::Released);
        Request::Release(ReleaseArgs { resource, token, reason })
    };
    let mut node = active();
    // It had arrived.
    call(&mut node, NOW_US + 100, &first(1, TokenUse::First));
    call(&mut node, NOW_US + 200, &release(1));
    let twice = call(&mut node, NOW_US + 100, &first(1, TokenUse::First));
    // It had not, and another acquire with its token had, by a clock that is behind.
    call(&mut node, NOW_US + 300, &first(2, TokenUse::Again));
    call(&mut node, NOW_US + 400, &release(2));
    let after_another = call(&mut node, NOW_US + 500, &first(2, TokenUse::First));
    // Nothing had.
    let later = NOW_US + 10_000_000;
    call(&mut node, later, &release(3));
    let after_nothing = call(&mut node, later + 100, &first(3, TokenUse::First));
    let is_ended = |reply| reply == Reply::Ended { reason: EndReason::Released };
    ![twice, after_another, after_nothing].into_iter().all(is_ended)
}

#[test]
fn blocks_stand_beside_a_key_and_as_long_as_a_repair_that_takes_their_place() {
    assert_eq!((blocks_stand(), members_stand()), (Ok(()), Ok(())));
    assert!(!is_admitted_below_a_promise());
    assert!(!votes_unfilled_in_a_changed_list());
    assert!(!is_filled_unpromised());
    assert!(!is_filled_without_its_keys());
    assert!(!key_votes_after_its_block());
    assert!(!inherits_what_was_not_synced());
    assert!(!revives_a_released_token());
    assert!(has_the_terms_of_its_view());
    assert!(!votes_under_an_unaccepted_template());
    for mutant in FOUND_BY_REFERENCE {
        let before = mutant::plant(Some(*mutant), false);
        let is_found = blocks_stand().is_err()
            || is_admitted_below_a_promise()
            || members_stand().is_err()
            || is_filled_unpromised()
            || is_filled_without_its_keys()
            || key_votes_after_its_block()
            || inherits_what_was_not_synced()
            || revives_a_released_token()
            || votes_unfilled_in_a_changed_list()
            || votes_under_an_unaccepted_template()
            || !has_the_terms_of_its_view();
        mutant::restore(before);
        assert!(is_found, "{mutant:?} is not found");
    }
}

#[test]
fn a_resumed_node_waits_and_then_votes_with_fences_above_its_former_ones() {
    let mut node = ReferenceNode::new("run2");
    let (fence, until_us) = (NOW_US + 90_000_000, NOW_US + 5_000_000);
    node.resume(NOW_US, &params(), Resumed { fence, until_us, why: "restart" });
    let refused = call(&mut node, NOW_US, &acquire(1, 100));
    assert_eq!(refused, Reply::NoVote(NoVote::Quarantined { left_ms: 5_000 }));
    let granted = call(&mut node, until_us, &acquire(1, 100));
    assert_eq!(granted, Reply::Granted { fence: Fence(fence + 1), joined: false });
    // An ordered quarantine ends with a seed, like any other.
    call(&mut node, until_us, &Request::Quarantine { by: "".into() });
    let served = until_us + 305_000_000;
    assert!(matches!(call(&mut node, served, &Request::probe()), Reply::Status(s) if s.vote != Vote::Active));
}

#[test]
fn a_replaced_quarantine_is_still_served_if_its_clock_returns() {
    const Q_US: u64 = 305_000_000;
    let hour_ago = NOW_US - 3_600_000_000;
    let probe = |node: &mut ReferenceNode, now_us| match call(node, now_us, &Request::probe()) {
        Reply::Status(status) => status.vote,
        reply => panic!("{reply:?}"),
    };
    let mut node = ReferenceNode::new("run2");
    let blank = Vote::NoVote(NoVote::Quarantined { left_ms: Q_US / 1_000 });
    assert_eq!(probe(&mut node, NOW_US), blank);
    call(&mut node, hour_ago, &Request::Quarantine { by: "".into() });
    let returned = probe(&mut node.clone(), NOW_US + 1_000_000);
    assert_eq!(returned, Vote::NoVote(NoVote::Quarantined { left_ms: Q_US / 1_000 - 1_000 }));
    let (served, both) = (probe(&mut node.clone(), hour_ago + Q_US), probe(&mut node, NOW_US + Q_US));
    for vote in [served, both] {
        assert!(matches!(vote, Vote::NoVote(NoVote::Unseeded { .. })), "{vote:?}");
    }
}

/// The node lost its memory while its clock was an hour behind, and an instance with the right time quarantined it.
#[test]
fn a_quarantine_ordered_by_another_clock_is_served_by_that_clock_too() {
    const Q_US: u64 = 305_000_000;
    let hour_ago = NOW_US - 3_600_000_000;
    let mut node = ReferenceNode::new("run2");
    node.apply(hour_ago, "run2", RequestTime(NOW_US), &params(), &Request::Quarantine { by: "".into() })
        .expect("a reply");
    let mut vote = |now_us| match call(&mut node, now_us, &Request::probe()) {
        Reply::Status(status) => status.vote,
        reply => panic!("{reply:?}"),
    };
    assert_eq!(vote(hour_ago), Vote::NoVote(NoVote::Quarantined { left_ms: Q_US / 1_000 }));
    assert_eq!(vote(NOW_US + 1_000_000), Vote::NoVote(NoVote::Quarantined { left_ms: Q_US / 1_000 - 1_000 }));
    assert!(matches!(vote(NOW_US + Q_US), Vote::NoVote(NoVote::Unseeded { .. })));
}
