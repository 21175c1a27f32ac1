//! What each node is sent when an acquire asks a quorum first. On reference nodes and paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::mutant::{FOUND_BY_FAN_OUT, plant, restore};
use crate::protocol::reference::{ForeignValue, ReferenceNode};
use crate::protocol::{ClusterParams, EndReason, RequestStamp, RequestTime, RosterEntry, View, ViewId};
use crate::protocol::{NodeResult, Request, TokenUse, Unreachable, UnreachableKind};
use crate::redlock::acquire::{Grant, Refusal, RefusalKind};
use crate::redlock::acquire_set::{granted, request_for};
use crate::redlock::clock::PausedClock;
use crate::redlock::engine::RedlockSettings;
use crate::redlock::extend::ExtendParams;
use crate::redlock::quorum::{NodeOutcome, NotAsked, Verdict};
use crate::redlock::random::SystemEntropy;
use crate::redlock::release::ReleaseOutcome;
use crate::types::{AttemptId, Fence, Labels, Mode, NodeId, PermitLimit, SlotChoice, Token, TokenHash, Ttl};

const NODES: usize = 5;
const QUORUM: usize = 3;

struct TestNode {
    id: NodeId,
    clock: PausedClock,
    reference: Mutex<ReferenceNode>,
    /// It takes requests, and does not answer.
    is_silent: AtomicBool,
    is_connected: AtomicBool,
    sent: Mutex<Vec<(RequestTime, Arc<Request>)>>,
}

impl TestNode {
    fn now_us(&self) -> u64 {
        self.clock.wall_ms() * 1_000
    }

    /// The acquires that it was sent.
    fn acquires(&self) -> Vec<(RequestTime, Arc<Request>)> {
        let of = |request: &Request| {
            matches!(request, Request::Acquire(_) | Request::AcquireShared(_) | Request::AcquireSet(_))
        };
        self.sent.lock().iter().filter(|(_, request)| of(request)).cloned().collect()
    }

    fn releases(&self) -> usize {
        self.sent.lock().iter().filter(|(_, request)| matches!(**request, Request::Release(_))).count()
    }

    fn has(&self, name: &ResourceName) -> bool {
        !self.reference.lock().leases_of(self.now_us(), name).is_empty()
    }
}

impl Node for TestNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    async fn call(self: Arc<Self>, stamp: RequestStamp, request: Arc<Request>) -> NodeResult {
        if !self.is_connected() {
            return Err(Unreachable::new(UnreachableKind::Disconnected, "down"));
        }
        self.sent.lock().push((stamp.sent_at, Arc::clone(&request)));
        let answer = self.reference.lock().apply(self.now_us(), "", stamp, &params(), &request);
        if self.is_silent.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        answer
    }
}

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn params() -> ClusterParams {
    ClusterParams {
        cluster: "c".into(),
        guard: ms(500),
        lock_delay: ms(1_000),
        quarantine: Duration::from_secs(60),
        fence_ttl: Duration::from_hours(1),
        template: Default::default(),
    }
}

type TestEngine = Redlock<TestNode, PausedClock, SystemEntropy>;
type TestGrant = Grant<TestNode, PausedClock, SystemEntropy>;

fn view_of(number: u64) -> Arc<View> {
    let id = ViewId::NONE.above(number);
    let name = |i: usize| NodeId::parse(&format!("n{i}")).expect("valid");
    let entry = |i: usize| (name(i), RosterEntry { run: format!("run {i}").into(), since: id, address: None });
    Arc::new(View { id, list: None, roster: (0..NODES).map(entry).collect() })
}

/// All its nodes vote, and are ready.
fn engine() -> TestEngine {
    let (clock, view) = (PausedClock::start(), view_of(1));
    let node = |i: usize| {
        let mut reference = ReferenceNode::new(&format!("run {i}"));
        let now_us = clock.wall_ms() * 1_000;
        let stamp = RequestStamp::new(RequestTime(now_us), Arc::clone(&view));
        let init = Request::Init { view: Arc::clone(&view) };
        reference.apply(now_us, "", stamp, &params(), &init).expect("an answer");
        Arc::new(TestNode {
            id: NodeId::parse(&format!("n{i}")).expect("valid"),
            clock,
            reference: Mutex::new(reference),
            is_silent: AtomicBool::new(false),
            is_connected: AtomicBool::new(true),
            sent: Mutex::default(),
        })
    };
    let params = Arc::new(params());
    let settings = RedlockSettings { params, fan_out: FanOut::Quorum, ..RedlockSettings::of_tests() };
    let engine = Redlock::new((0..NODES).map(node).collect(), clock, SystemEntropy, settings);
    engine.cluster_clock.anchor(0);
    engine.views.take(&view);
    engine.ready.set(0b11111);
    engine
}

fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).expect("valid")
}

fn token(by: u8) -> TokenHash {
    Token::from_random([by; 24]).hash()
}

fn request(resource: &str, by: u8) -> AcquireParams {
    AcquireParams {
        resources: [name(resource)].into(),
        token: token(by),
        ttl: Ttl::from_ms(10_000).expect("valid"),
        mode: WantedMode::Exclusive,
        labels: Labels::default(),
        token_use: TokenUse::First,
    }
}

async fn attempt(engine: &TestEngine, params: &AcquireParams) -> Result<TestGrant, Refusal> {
    engine.attempt(params, engine.clock.now(), SlotChoice::default(), params.token_use).await
}

/// Acquires, and answers.
async fn acquire(engine: &TestEngine, resource: &str, by: u8) {
    let grant = attempt(engine, &request(resource, by)).await.map_err(|refusal| refusal.kind).expect("granted");
    grant.keep().expect("in time");
}

async fn release(engine: &TestEngine, resource: &str, by: u8) {
    let outcome = engine.release(&name(resource), &token(by), EndReason::Released).await;
    assert!(matches!(outcome, ReleaseOutcome::Released), "{outcome:?}");
}

fn extension(resource: &str, by: u8) -> ExtendParams {
    ExtendParams { resource: name(resource), token: token(by), ttl: None, until_ms: 0, fence: None, labels: None }
}

/// The nodes that were sent an acquire, by index.
fn asked(engine: &TestEngine) -> Vec<usize> {
    let nodes = engine.nodes.iter().enumerate().filter(|(_, node)| !node.acquires().is_empty());
    nodes.map(|(i, _)| i).collect()
}

fn holding(engine: &TestEngine, resource: &str) -> usize {
    engine.nodes.iter().filter(|node| node.has(&name(resource))).count()
}

/// The nodes that an acquire of this name asks first.
fn first(engine: &TestEngine, resource: &str) -> Vec<usize> {
    engine.acquire_order(&request(resource, 1), ms(50)).expect("all is well").first
}

/// Whether all nodes were sent one and the same request, with one stamp.
fn is_one_request(engine: &TestEngine) -> bool {
    let all: Vec<_> = engine.nodes.iter().flat_map(|node| node.acquires()).collect();
    all.len() == NODES && all.iter().all(|one| *one == all[0])
}

#[tokio::test(start_paused = true)]
async fn a_quorum_is_asked_for_a_short_lease_and_is_sent_its_release_and_nobody_else_anything() {
    let engine = engine();
    for i in 0..500 {
        let resource = format!("job/{i}");
        acquire(&engine, &resource, 1).await;
        assert_eq!(holding(&engine, &resource), QUORUM);
        release(&engine, &resource, 1).await;
        assert_eq!(holding(&engine, &resource), 0);
    }
    let sent: Vec<usize> = engine.nodes.iter().map(|node| node.sent.lock().len()).collect();
    assert_eq!(sent.iter().sum::<usize>(), 500 * QUORUM * 2);
    assert!(sent.iter().all(|sent| (500..=700).contains(sent)), "of 600 on average: {sent:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(engine.nodes.iter().map(|node| node.sent.lock().len()).collect::<Vec<_>>(), sent, "nor later");
}

/// Seed 337442. Releases are sent.
#[tokio::test(start_paused = true)]
async fn no_node_is_asked_for_a_lease_while_an_order_of_quarantine_is_due() {
    let engine = engine();
    acquire(&engine, "before", 1).await;
    let asked_before = asked(&engine);
    engine.cluster_clock.set_order_due(true);
    assert_eq!(engine.not_asked(), Some(NotAsked::OrderDue));
    let refusal = attempt(&engine, &request("job", 1)).await.map(drop).expect_err("no node may be asked");
    assert!(matches!(refusal.kind, RefusalKind::NoQuorum) && !refusal.took_effect, "{:?}", refusal.kind);
    let is_not_asked = |node: &NodeOutcome| node.verdict == Verdict::Unreachable(UnreachableKind::NotAsked);
    assert!(refusal.nodes.len() == NODES && refusal.nodes.iter().all(is_not_asked), "{:?}", refusal.nodes);
    assert_eq!((asked(&engine), holding(&engine, "job")), (asked_before, 0));
    release(&engine, "before", 1).await;
    assert_eq!(holding(&engine, "before"), 0);
    engine.cluster_clock.set_order_due(false);
    assert_eq!(engine.not_asked(), None);
    acquire(&engine, "job", 1).await;
}

#[tokio::test(start_paused = true)]
async fn one_name_is_asked_of_the_same_nodes_by_each_instance_and_in_turn_of_the_others_where_one_is_not_ready() {
    let (engine, other) = (engine(), engine());
    for i in 0..50 {
        let resource = format!("job/{i}");
        let before = first(&engine, &resource);
        assert_eq!(before, first(&other, &resource));
        engine.ready.set(0b11111 & !(1 << before[0]));
        let after = first(&engine, &resource);
        assert_eq!(after[..2], before[1..], "the order stays");
        engine.nodes[before[1]].is_connected.store(false, Ordering::Relaxed);
        assert_eq!(first(&engine, &resource)[0], before[2]);
        engine.nodes[before[1]].is_connected.store(true, Ordering::Relaxed);
        engine.ready.set(0b11111);
    }
    engine.ready.set(0b00011);
    assert!(engine.acquire_order(&request("x", 1), ms(50)).is_none(), "too few are ready");
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_costs_five_milliseconds_and_its_release_goes_to_all() {
    let engine = engine();
    let silent = &engine.nodes[first(&engine, "job")[0]];
    silent.is_silent.store(true, Ordering::Relaxed);
    let began = engine.clock.now();
    acquire(&engine, "job", 1).await;
    assert_eq!(engine.clock.now().since(began).as_millis(), REST_AFTER.as_millis());
    assert!(is_one_request(&engine));
    assert_eq!(holding(&engine, "job"), NODES);
    release(&engine, "job", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(holding(&engine, "job"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_silent_at_the_release_leaves_nothing_behind() {
    let engine = engine();
    acquire(&engine, "job", 1).await;
    let silent = &engine.nodes[first(&engine, "job")[0]];
    silent.is_silent.store(true, Ordering::Relaxed);
    release(&engine, "job", 1).await;
    assert!(engine.nodes.iter().all(|node| node.releases() > 0), "all were sent it after 5 ms");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(silent.releases() > 1, "and the silent one again");
    assert_eq!((holding(&engine, "job"), asked(&engine).len()), (0, QUORUM));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_stands_for_100_ms_is_asked_of_all_by_the_same_request() {
    let engine = engine();
    acquire(&engine, "job", 1).await;
    tokio::time::sleep(ms(99)).await;
    assert_eq!(holding(&engine, "job"), QUORUM);
    tokio::time::sleep(ms(2)).await;
    assert_eq!(holding(&engine, "job"), NODES);
    assert!(is_one_request(&engine));
    release(&engine, "job", 1).await;
    tokio::time::sleep(ms(1)).await;
    assert_eq!(holding(&engine, "job"), 0, "the release goes to all");
    acquire(&engine, "job", 2).await;
    acquire(&engine, "other", 2).await;
    release(&engine, "job", 2).await;
    tokio::time::sleep(ms(101)).await;
    assert_eq!((holding(&engine, "job"), holding(&engine, "other")), (0, NODES));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_not_kept_is_cancelled_and_never_spread() {
    let engine = engine();
    drop(attempt(&engine, &request("job", 1)).await.map_err(|refusal| refusal.kind).expect("granted"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((asked(&engine).len(), holding(&engine, "job")), (QUORUM, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_spread_before_it_is_revoked_downgraded_or_kept() {
    for what in 0..3 {
        let engine = engine();
        acquire(&engine, "job", 1).await;
        let (job, token) = (name("job"), token(1));
        match what {
            0 => assert!(engine.revoke(&job, &token).await.is_ok()),
            1 => assert!(engine.downgrade(&job, &token).await.is_ok()),
            _ => {
                let keeper = crate::redlock::kept_lease_renewal::Keeper::new(engine.clone());
                let labels = Labels { kept_until_ms: keeper.now_ms() + 60_000, ..Labels::default() };
                let (found, _) = (engine.inspect(&job).await.expect("known"), ());
                let fence = found.state.lease_of(&token).expect("held").0.fence;
                assert!(keeper.begin(&job, &token, fence, &labels).await);
            }
        }
        tokio::time::sleep(ms(1)).await;
        for node in engine.nodes.iter() {
            let reference = node.reference.lock();
            let leases = reference.leases_of(node.now_us(), &job);
            let is_shared = leases[0].0.mode == Mode::Shared;
            assert_eq!((is_shared, leases[0].0.labels().kept_until_ms > 0), (what == 1, what == 2), "{what}");
        }
        let tombstones = engine.extend(&extension("job", 1)).await;
        assert_eq!(tombstones.is_err(), what == 0, "{tombstones:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_joins_a_lease_asks_all_nodes_and_its_release_goes_to_all() {
    let engine = engine();
    acquire(&engine, "job", 1).await;
    acquire(&engine, "job", 1).await;
    assert_eq!(holding(&engine, "job"), NODES);
    release(&engine, "job", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(holding(&engine, "job"), 0);
    // At another instance, which does not know what the first one asked.
    let other = self::engine();
    let known = other.nodes.iter().zip(engine.nodes.iter());
    known.for_each(|(to, from)| std::mem::swap(&mut *to.reference.lock(), &mut *from.reference.lock()));
    acquire(&other, "job", 2).await;
    let known = other.nodes.iter().zip(engine.nodes.iter());
    known.for_each(|(to, from)| std::mem::swap(&mut *to.reference.lock(), &mut *from.reference.lock()));
    let before = engine.nodes.iter().map(|node| node.acquires().len()).sum::<usize>();
    acquire(&engine, "job", 2).await;
    assert_eq!(engine.nodes.iter().map(|node| node.acquires().len()).sum::<usize>(), before + NODES);
    assert_eq!(holding(&engine, "job"), NODES);
}

#[tokio::test(start_paused = true)]
async fn all_nodes_are_sent_a_release_where_one_may_have_been_filled() {
    for what in 0..3 {
        let engine = engine();
        acquire(&engine, "job", 1).await;
        match what {
            0 => {}
            1 => assert!(engine.views.take(&view_of(2))),
            _ => engine.ready.set(0b01111),
        }
        release(&engine, "job", 1).await;
        tokio::time::sleep(ms(1)).await;
        let sent = engine.nodes.iter().filter(|node| node.releases() > 0).count();
        assert_eq!(sent, if what == 0 { QUORUM } else { NODES });
    }
}

#[tokio::test(start_paused = true)]
async fn all_nodes_are_asked_at_once_for_what_is_shared_or_short_or_where_too_many_leases_are_to_be_spread() {
    let two = AcquireParams { resources: [name("a"), name("b")].into(), ..request("a", 1) };
    let shared = AcquireParams { mode: WantedMode::Shared, ..request("a", 1) };
    let limit = PermitLimit::new(2).expect("valid");
    let permit = AcquireParams { mode: WantedMode::Permit { limit }, ..request("a", 1) };
    let short = AcquireParams { ttl: Ttl::from_ms(299).expect("valid"), ..request("a", 1) };
    for params in [two, shared, permit, short] {
        let engine = engine();
        attempt(&engine, &params).await.map_err(|refusal| refusal.kind).expect("granted").keep().expect("in time");
        assert_eq!(asked(&engine).len(), NODES, "{params:?}");
    }
    let engine = engine();
    let mut slots: Vec<_> = std::iter::from_fn(|| engine.spread_slot()).collect();
    acquire(&engine, "job", 1).await;
    assert_eq!(asked(&engine).len(), NODES);
    slots.pop();
    acquire(&engine, "one", 1).await;
    assert_eq!(holding(&engine, "one"), QUORUM, "one more");
    release(&engine, "one", 1).await;
    acquire(&engine, "two", 1).await;
    assert_eq!(holding(&engine, "two"), QUORUM, "its place is free again");
}

#[tokio::test(start_paused = true)]
async fn the_rest_is_asked_before_one_of_different_fences_is_brought_to_a_quorum() {
    let engine = engine();
    let ahead = &engine.nodes[first(&engine, "job")[0]];
    let before = acquire_on(&engine, first(&engine, "job")[0], "job", 9, 400_000);
    ahead.reference.lock().foreign_delete(ahead.now_us(), &name("job"));
    let grant = attempt(&engine, &request("job", 1)).await.map_err(|refusal| refusal.kind).expect("granted");
    assert!(grant.fence() > before, "{} and {before}", grant.fence());
    grant.keep().expect("in time");
    assert_eq!(holding(&engine, "job"), NODES);
    release(&engine, "job", 1).await;
    tokio::time::sleep(ms(1)).await;
    assert_eq!(holding(&engine, "job"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_on_a_quorum_keeps_others_out_and_shows_as_held() {
    let (engine, started) = (engine(), std::time::Duration::ZERO);
    acquire(&engine, "job", 1).await;
    let refusal = attempt(&engine, &request("job", 2)).await.map(|_| ()).expect_err("held");
    assert_eq!((refusal.kind, refusal.holder_nodes), (RefusalKind::Held, QUORUM));
    let ends = params().lock_delay + ms(10_000);
    assert!(
        refusal.free_in.is_some_and(|free| free > ends - ms(10) + started),
        "when a quorum can be free: {refusal:?}"
    );
    let found = engine.inspect(&name("job")).await.expect("known");
    assert!(found.state.lease_of(&token(1)).is_some());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(engine.under_replicated(), 0);
    assert_eq!(holding(&engine, "job"), NODES, "what the second one took was cancelled before");
}

/// What must not be, in one run of each rule that a mutant breaks.
async fn violation() -> Option<&'static str> {
    let engine = self::engine();
    let refusing = first(&engine, "job")[1];
    acquire_on(&engine, refusing, "job", 9, 0);
    let began = engine.clock.now();
    let Ok(_grant) = attempt(&engine, &request("job", 1)).await else { return Some("the rest was not asked") };
    tokio::time::sleep(ms(1)).await;
    if engine.clock.now().since(began) > ms(1) {
        return Some("the rest was not asked at once where one refused");
    }
    if !is_one_request(&engine) {
        return Some("the rest was not sent the same request");
    }
    let engine = self::engine();
    acquire(&engine, "job", 1).await;
    if engine.extend(&extension("job", 1)).await.is_err()
        || engine.under_replicated() > 0
        || holding(&engine, "job") < NODES
    {
        return Some("a lease was extended before all were asked for it");
    }
    let engine = self::engine();
    acquire(&engine, "job", 1).await;
    release(&engine, "job", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    if holding(&engine, "job") > 0 {
        return Some("a lease that was released was spread");
    }
    let engine = self::engine();
    let slow = first(&engine, "job")[0];
    engine.ready.set(0b11111 & !(1 << slow));
    acquire(&engine, "job", 1).await;
    if asked(&engine).contains(&slow) {
        return Some("a node that is not ready was asked first");
    }
    let engine = self::engine();
    let node = &engine.nodes[first(&engine, "job")[0]];
    node.reference.lock().foreign_set(
        node.now_us(),
        &name("job"),
        &ForeignValue::Bytes(b"theirs".to_vec()),
        Some(1_000),
    );
    acquire(&engine, "job", 1).await;
    release(&engine, "job", 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = engine.nodes.iter().map(|node| node.acquires().len()).sum::<usize>();
    acquire(&engine, "job", 2).await;
    acquire(&engine, "other", 2).await;
    if engine.nodes.iter().map(|node| node.acquires().len()).sum::<usize>() != before + NODES + QUORUM {
        return Some("a quorum was asked first for the name of a foreign lock, or all for another name");
    }
    None
}

/// One node alone has a lease, whose request was `ahead_us` microseconds ahead.
fn acquire_on(engine: &TestEngine, node: usize, resource: &str, by: u8, ahead_us: u64) -> Fence {
    let (node, params) = (&engine.nodes[node], request(resource, by));
    let (attempt, sent_at) = (AttemptId::from_random(by.into()), RequestTime(node.now_us() + ahead_us));
    let request = request_for(&params, Mode::Exclusive, attempt, "{}".into(), TokenUse::Again);
    let stamp = RequestStamp::new(sent_at, view_of(1));
    let answer = node.reference.lock().apply(node.now_us(), "", stamp, &self::params(), &request);
    granted(&answer, 0).expect("granted").fence
}

#[tokio::test(start_paused = true)]
async fn each_mutant_is_found() {
    assert_eq!(violation().await, None);
    for mutant in FOUND_BY_FAN_OUT {
        let before = plant(Some(*mutant), false);
        let found = violation().await;
        restore(before);
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}
