//! One node of three forgets, is filled from the others, and knows what they know. On reference nodes, with a clock that
//! the test moves.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::mutant::{FOUND_BY_HEALING, plant, restore};
use crate::protocol::reference::ReferenceNode;
use crate::protocol::{
    AcquireArgs, AdmitArgs, ClusterParams, NoVote, RequestStamp, RequestTime, RosterEntry, TokenUse, Unreachable,
    UnreachableKind, ViewId, Vote,
};
use crate::redlock::clock::BootTime;
use crate::redlock::engine::RedlockSettings;
use crate::redlock::random::SystemEntropy;
use crate::types::{AttemptId, Mode, NodeId, ResourceName, Token, Ttl};

const START_US: u64 = 1_700_000_000_000_000;
/// More than one page of a read, and of a fill.
const LEASES: u64 = 700;
const QUARANTINE: Duration = Duration::from_secs(305);

#[derive(Debug, Clone, Default)]
struct TestClock(Arc<AtomicU64>);

impl Clock for TestClock {
    fn now(&self) -> BootTime {
        BootTime::from_nanos((START_US + self.0.load(Ordering::SeqCst)) * 1_000)
    }

    fn wall_ms(&self) -> u64 {
        self.now().as_micros() / 1_000
    }

    fn sleep_until(&self, _at: BootTime) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }
}

struct TestNode {
    id: NodeId,
    clock: TestClock,
    reference: Mutex<ReferenceNode>,
    /// Answers that are lost, after which it answers again.
    losses: AtomicU32,
    /// Answers after which it is silent.
    answers: AtomicU32,
    /// Reads of it have no end: what each page has, and how long it takes.
    endless: Mutex<Option<(Vec<ReadEntry>, Duration)>>,
}

impl TestNode {
    fn ask(&self, request: &Request) -> Reply {
        let now_us = self.clock.now().as_micros();
        let mut reference = self.reference.lock();
        let stamp = RequestStamp::new(RequestTime(now_us), reference.view());
        reference.apply(now_us, "", stamp, &params(), request).expect("an answer")
    }

    fn entry(&self, since: ViewId) -> (NodeId, RosterEntry) {
        (self.id.clone(), RosterEntry { run: self.reference.lock().run().into(), since, address: None })
    }

    fn forget(&self) {
        self.reference.lock().restart_empty("another run");
    }
}

impl Node for TestNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    async fn call(self: Arc<Self>, stamp: RequestStamp, request: Arc<Request>) -> NodeResult {
        let lost = || Unreachable::new(UnreachableKind::Timeout, "lost");
        let left = self.answers.load(Ordering::SeqCst);
        if left == 0 {
            return Err(lost());
        }
        self.answers.store(left - 1, Ordering::SeqCst);
        if let (Request::Read(args), Some((entries, takes))) = (&*request, &*self.endless.lock()) {
            self.clock.0.fetch_add(u64::try_from(takes.as_micros()).expect("short"), Ordering::SeqCst);
            let (next, now_us) = (Some(args.cursor + 1), self.clock.now().as_micros());
            return Ok(Reply::Knowledge { next, high_water: Fence(1), now_us, entries: entries.clone() });
        }
        let now_us = self.clock.now().as_micros();
        let stamp = RequestStamp::new(RequestTime(now_us), stamp.view);
        let reply = self.reference.lock().apply(now_us, "", stamp, &params(), &request)?;
        let losses = self.losses.load(Ordering::SeqCst);
        if losses > 0 {
            self.losses.store(losses - 1, Ordering::SeqCst);
            return Err(lost());
        }
        Ok(reply)
    }
}

fn params() -> ClusterParams {
    ClusterParams {
        cluster: "c".into(),
        guard: Duration::from_millis(500),
        lock_delay: Duration::ZERO,
        quarantine: QUARANTINE,
        fence_ttl: Duration::from_hours(1),
        template: Default::default(),
    }
}

type TestEngine = Redlock<TestNode, TestClock, SystemEntropy>;

fn engine() -> TestEngine {
    let clock = TestClock::default();
    let nodes = (0..3).map(|i| {
        let reference = Mutex::new(ReferenceNode::new(&format!("run {i}")));
        let id = NodeId::parse(&format!("n{i}")).expect("valid");
        let (losses, answers) = (AtomicU32::new(0), AtomicU32::new(u32::MAX));
        let node = TestNode { id, clock: clock.clone(), reference, losses, answers, endless: Mutex::default() };
        Arc::new(node)
    });
    let nodes: Vec<_> = nodes.collect();
    let id = ViewId::NONE.above(1);
    let view = Arc::new(View { id, list: None, roster: nodes.iter().map(|node| node.entry(id)).collect() });
    for node in &nodes {
        let now_us = node.clock.now().as_micros();
        let stamp = RequestStamp::new(RequestTime(now_us), Arc::clone(&view));
        let init = Request::Init { view: Arc::clone(&view) };
        node.reference.lock().apply(now_us, "", stamp, &params(), &init).expect("an answer");
    }
    let params = Arc::new(params());
    let settings = RedlockSettings { params, ..RedlockSettings::of_tests() };
    let engine = Redlock::new(nodes, clock, SystemEntropy, settings);
    engine.cluster_clock.anchor(0);
    engine
}

/// The next view: it names the target as it is now, and the others as they are.
fn next_view(engine: &TestEngine, target: usize) -> Arc<View> {
    let id = ViewId::NONE.above(1).above(2);
    let since = |i| if i == target { id } else { ViewId::NONE.above(1) };
    let roster = engine.nodes.iter().enumerate().map(|(i, node)| node.entry(since(i))).collect();
    Arc::new(View { id, roster, list: None })
}

/// Fills the target, which promises the view, from those that have installed it.
fn fill(engine: &TestEngine, readers: &[usize], target: usize, view: &Arc<View>) -> Option<Filled> {
    engine.nodes[target].ask(&Request::Promise { view: view.id });
    for reader in readers {
        engine.nodes[*reader].ask(&Request::Install { view: Arc::clone(view) });
    }
    run(async {
        let read = engine.read_all(readers, 2, view).await;
        engine.fill_with(&read, 2, target, view).await
    })
}

fn acquire(name: &str, by: u64) -> Request {
    Request::Acquire(AcquireArgs {
        resource: ResourceName::parse(name).expect("valid"),
        token: Token::parse(&format!("token-{by:016}")).expect("valid").hash(),
        attempt: AttemptId::from_random(by),
        ttl: Ttl::from_ms(1_000_000).expect("valid"),
        labels: "{}".into(),
        token_use: TokenUse::Again,
    })
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(work)
}

fn admit(engine: &TestEngine, node: usize, view: &Arc<View>, filled: Filled) {
    let Filled { nonce, pages, seed } = filled;
    let args = AdmitArgs { view: Arc::clone(view), nonce, pages, seed, by_clock: false };
    let reply = engine.nodes[node].ask(&Request::Admit(args));
    assert!(matches!(&reply, Reply::Member(m) if m.is_done && m.vote == Vote::Active), "{reply:?}");
}

#[test]
fn a_node_that_forgot_is_given_what_the_others_know() {
    let engine = engine();
    for i in 0..LEASES {
        for node in engine.nodes.iter() {
            node.ask(&acquire(&format!("all/{i}"), i));
        }
    }
    engine.nodes[0].ask(&acquire("one", 9_001));
    let x = &engine.nodes[2];
    x.forget();
    x.ask(&Request::probe());
    // Lost answers of both kinds of page are asked for again.
    for node in engine.nodes.iter() {
        node.losses.store(PAGE_TRIES - 1, Ordering::SeqCst);
    }
    let view = next_view(&engine, 2);
    let filled = fill(&engine, &[0, 1], 2, &view).expect("both were read");
    admit(&engine, 2, &view, filled);
    for i in 0..LEASES {
        let reply = x.ask(&acquire(&format!("all/{i}"), i + 10_000));
        assert!(matches!(reply, Reply::Held { record: Some(_), .. }), "{reply:?}");
    }
    assert!(matches!(x.ask(&acquire("one", 9_002)), Reply::NoVote(NoVote::Blocked { .. })), "a minority's is blocked");
    assert!(matches!(x.ask(&acquire("none", 9_003)), Reply::Granted { fence, .. } if fence > filled.seed));
}

#[test]
fn fewer_than_a_quorum_read_to_the_end_fill_nothing() {
    let silent_after = |answers| {
        let engine = engine();
        for i in 0..LEASES {
            engine.nodes[1].ask(&acquire(&format!("some/{i}"), i));
        }
        engine.nodes[2].forget();
        engine.nodes[2].ask(&Request::probe());
        engine.nodes[1].answers.store(answers, Ordering::SeqCst);
        fill(&engine, &[0, 1], 2, &next_view(&engine, 2))
    };
    assert_eq!(silent_after(1), None);
    for mutant in FOUND_BY_HEALING {
        let before = plant(Some(*mutant), false);
        let filled = silent_after(1);
        restore(before);
        assert!(filled.is_some(), "{mutant:?} is not found");
    }
    assert!(silent_after(10).is_some());
}

#[test]
fn a_process_is_filled_only_if_the_view_names_it_and_read_only_if_it_votes() {
    let engine = engine();
    let view = next_view(&engine, 2);
    engine.nodes[2].forget();
    engine.nodes[2].ask(&Request::probe());
    assert_eq!(fill(&engine, &[0, 1], 2, &view), None, "the view names its predecessor");
    engine.nodes[1].forget();
    engine.nodes[1].ask(&Request::probe());
    let view = next_view(&engine, 2);
    assert_eq!(fill(&engine, &[0, 1], 2, &view), None, "one of the others forgot too");
    assert_eq!(fill(&engine, &[0, 2], 2, &view), None, "what it shows itself does not count");
}

/// What one endless node of three gives: pages, and whether they count as all. `least` of them are needed.
fn read_endless(entries: Vec<ReadEntry>, takes: Duration, least: usize) -> (usize, bool) {
    let engine = engine();
    *engine.nodes[1].endless.lock() = Some((entries, takes));
    let view = next_view(&engine, usize::MAX);
    [0, 1, 2].iter().for_each(|node| drop(engine.nodes[*node].ask(&Request::Install { view: Arc::clone(&view) })));
    let read = run(engine.read_all(&[0, 2, 1], least, &view));
    assert!(read[0].is_complete && read[1].is_complete, "the honest ones");
    (read[2].pages.len(), read[2].is_complete)
}

/// N5: what is read of one node is bounded in bytes and in time, and then counts as not read.
#[test]
fn n5_a_node_without_an_end_fills_neither_the_memory_nor_the_time() {
    let resource = |i| ResourceName::parse(&format!("r/{i}")).expect("valid");
    // All pages share one text, so the test itself needs no such memory.
    let large: Arc<[u8]> = vec![b'x'; 1 << 20].into();
    let entry = ReadEntry::Foreign { resource: resource(0), value: Some(large), left_ms: None };
    assert_eq!(read_endless(vec![entry], Duration::ZERO, 3), (READ_BYTES_MAX >> 20, false));
    let (pages, is_complete) = read_endless(Vec::new(), Duration::from_secs(1), 3);
    assert!(!is_complete && pages <= QUARANTINE.as_secs() as usize + 1, "{pages} pages");
    // Where the others are enough, they do not wait for it: while the list changes, nobody votes before.
    let (pages, is_complete) = read_endless(Vec::new(), Duration::from_secs(1), 2);
    assert!(!is_complete && pages <= READ_GRACE.as_secs() as usize + 1, "{pages} pages");
}

#[test]
fn a_node_whose_fences_are_far_ahead_of_all_others_is_not_read() {
    let engine = engine();
    let shows = |node, fence| NodePages { node, pages: vec![(Fence(fence), START_US, vec![])], is_complete: true };
    let (now, far) = (START_US, START_US + FENCE_AHEAD_MAX_US + 1_000_000);
    let is_plausible = |fence, other| engine.is_plausible(&shows(0, fence), &[shows(0, fence), shows(1, other)]);
    assert!(is_plausible(now, now) && is_plausible(now + FENCE_AHEAD_MAX_US, now));
    assert!(!is_plausible(far, now), "nobody else knows of such fences");
    assert!(is_plausible(far, far), "another one has them too");
    let resource = ResourceName::parse("r").expect("valid");
    let (token, ttl) =
        (Token::parse("a-token-0123456789-abcdef").expect("valid").hash(), Ttl::from_ms(1_000).expect("valid"));
    let record = crate::protocol::LeaseRecord {
        mode: Mode::Exclusive,
        token,
        renewals: 0,
        ttl,
        fence: Fence(far),
        claims: "p,".into(),
        labels: "".into(),
    };
    let lease = ReadEntry::Lease { resource, record, left_ms: Some(1_000) };
    let pages = NodePages { node: 0, pages: vec![(Fence(now), now, vec![lease])], is_complete: true };
    assert!(!engine.is_plausible(&pages, &[]), "also where only one of its leases has it");
}
