//! A ticket's state never goes back, whichever nodes answer and forget, in random orders of what instances do. On reference nodes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::mutant::{FOUND_BY_TICKETS, FOUND_WITH_FIVE_NODES, plant, restore};
use crate::protocol::reference::ReferenceNode;
use crate::protocol::{
    ClusterParams, RequestStamp, RequestTime, RosterEntry, TicketEnd, TicketTerms, Unreachable, UnreachableKind, View,
    ViewId,
};
use crate::redlock::clock::BootTime;
use crate::redlock::engine::RedlockSettings;
use crate::redlock::random::SystemEntropy;
use crate::types::{Fence, Labels, NodeId, ResourceName, Token, Ttl};

const NODES: usize = 3;
const START_US: u64 = 1_700_000_000_000_000;

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
    is_silent: AtomicBool,
}

impl Node for TestNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    async fn call(self: Arc<Self>, stamp: RequestStamp, request: Arc<Request>) -> NodeResult {
        if self.is_silent.load(Ordering::SeqCst) {
            return Err(Unreachable::new(UnreachableKind::Timeout, "silent"));
        }
        self.reference.lock().apply(self.clock.now().as_micros(), "", stamp, &params(), &request)
    }
}

fn params() -> ClusterParams {
    ClusterParams {
        cluster: "c".into(),
        guard: Duration::from_millis(500),
        lock_delay: Duration::ZERO,
        quarantine: Duration::from_secs(60),
        fence_ttl: Duration::from_hours(1),
        template: Default::default(),
    }
}

type TestEngine = Redlock<TestNode, TestClock, SystemEntropy>;

fn engine() -> TestEngine {
    engine_of(NODES)
}

fn engine_of(nodes: usize) -> TestEngine {
    let clock = TestClock::default();
    let id = ViewId::NONE.above(1);
    let name = |i: usize| NodeId::parse(&format!("n{i}")).expect("valid");
    let entry = |i: usize| (name(i), RosterEntry { run: format!("run {i}").into(), since: id, address: None });
    let view = Arc::new(View { id, list: None, roster: (0..nodes).map(entry).collect() });
    let node = |i: usize| {
        let mut reference = ReferenceNode::new(&format!("run {i}"));
        let stamp = RequestStamp::new(RequestTime(START_US), Arc::clone(&view));
        let init = Request::Init { view: Arc::clone(&view) };
        reference.apply(START_US, "", stamp, &params(), &init).expect("an answer");
        let (reference, is_silent) = (Mutex::new(reference), AtomicBool::new(false));
        Arc::new(TestNode { id: name(i), clock: clock.clone(), reference, is_silent })
    };
    let params = Arc::new(params());
    let settings = RedlockSettings { params, ..RedlockSettings::of_tests() };
    let engine = Redlock::new((0..nodes).map(node).collect(), clock, SystemEntropy, settings);
    engine.cluster_clock.anchor(0);
    engine.views.take(&view);
    engine
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(work)
}

fn ticket() -> Ticket {
    let (resource, token) = (ResourceName::parse("x").expect("valid"), Token::from_random([7; 24]).hash());
    let terms = TicketTerms {
        labels: Labels::default(),
        keep_ms: 60_000,
        made_ms: 1,
        wait_until_ms: START_US / 1_000 + 600_000,
        refuses_deadlock: false,
        mode: crate::types::WantedMode::Exclusive,
        callback: None,
    };
    Ticket::new(resource, token, Ttl::from_ms(30_000).expect("valid"), terms)
}

/// Only these nodes answer.
fn only(engine: &TestEngine, answering: &[usize]) {
    for (i, node) in engine.nodes.iter().enumerate() {
        node.is_silent.store(!answering.contains(&i), Ordering::SeqCst);
    }
}

/// The ticket is gone there, as after a fill that does not have it.
fn forget(engine: &TestEngine, node: usize, id: &TicketId) {
    engine.nodes[node].reference.lock().forget_ticket(id);
}

fn granted(fence: u64) -> TicketHead {
    TicketHead { fence: Fence(fence), ..TicketHead::waiting(1).at(TicketPhase::Granted, 2) }
}

/// What one seed shows that must not be: `None` if nothing.
fn violation(seed: u64) -> Option<&'static str> {
    let (engine, ticket, server) = (engine(), ticket(), InstanceName::from_random(1));
    let id = TicketId::of("c", &ticket.resource, &ticket.token);
    let ttl = Duration::from_secs(600);
    let writer = TicketWriter { id: &id, server: &server, ttl, due: Duration::ZERO };
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let (mut known, mut granted_with) = (None::<TicketHead>, None::<Fence>);
    let mut is_made = false;
    for _ in 0..12 {
        let silent = usize::try_from(draw(4)).expect("small");
        only(&engine, &(0..NODES).filter(|i| *i != silent).collect::<Vec<_>>());
        match draw(6) {
            0 if !is_made && known.is_none() => {
                // A caller that is not answered: one node alone has it.
                only(&engine, &[silent % NODES]);
                let (body, now) = (ticket.encode().expect("text").into(), engine.clock.now());
                run(engine.write_ticket(
                    &writer,
                    TicketOrder::Put,
                    TicketHead::waiting(1),
                    body,
                    now,
                    Until::WonAndGrace,
                ));
            }
            0 | 1 => {
                if let TicketFound::Known(_, head) = run(engine.put_ticket(&writer, &ticket, TicketHead::waiting(1))) {
                    is_made = true;
                    known = known.max(Some(head));
                }
            }
            2 => {
                // A write that only one node gets, of an instance that ends then.
                only(&engine, &[silent % NODES]);
                let _ = run(engine.raise_ticket(&writer, granted(7 + draw(3))));
            }
            3 => {
                let head = granted(10 + draw(3));
                if run(engine.raise_ticket(&writer, head)) == TicketRaised::Done {
                    if granted_with.is_some_and(|fence| fence > head.fence) {
                        return Some("an earlier grant after a later one");
                    }
                    granted_with = Some(head.fence);
                    known = known.max(Some(head));
                }
            }
            4 if is_made && (0..NODES).all(|i| has(&engine, i, &id)) => {
                // One node forgets at a time, of those that all have it: a majority has it still.
                let node = usize::try_from(draw(NODES as u64)).expect("small");
                forget(&engine, node, &id);
            }
            _ => match run(engine.read_ticket(&id, ttl)) {
                TicketFound::Known(_, head) if !is_made && known.is_none() => {
                    let shown = (0..NODES).filter(|i| has(&engine, *i, &id)).count();
                    if shown < 2 {
                        return Some("a ticket that a minority has");
                    }
                    known = Some(head);
                }
                TicketFound::Known(_, head) => {
                    if known.is_some_and(|before| head < before) {
                        return Some("a state that goes back");
                    }
                    known = Some(head);
                }
                TicketFound::Absent | TicketFound::Unknown => {}
            },
        }
    }
    None
}

fn has(engine: &TestEngine, node: usize, id: &TicketId) -> bool {
    engine.nodes[node].reference.lock().has_ticket(id)
}

#[test]
fn a_tickets_state_never_goes_back() {
    for seed in 0..3_000 {
        assert_eq!(violation(seed), None, "seed {seed}");
    }
}

#[test]
fn every_mutant_of_tickets_is_found() {
    for mutant in FOUND_BY_TICKETS {
        let before = plant(Some(*mutant), false);
        let found = (0..3_000).any(|seed| violation(seed).is_some());
        restore(before);
        assert!(found, "{mutant:?}");
    }
}

#[test]
fn a_ticket_that_is_over_is_not_made_again_by_a_late_write() {
    let (engine, ticket, server) = (engine(), ticket(), InstanceName::from_random(1));
    let id = TicketId::of("c", &ticket.resource, &ticket.token);
    let writer = TicketWriter { id: &id, server: &server, ttl: Duration::from_secs(600), due: Duration::ZERO };
    let waiting = TicketHead::waiting(1);
    run(engine.put_ticket(&writer, &ticket, waiting));
    let over = waiting.ended(TicketPhase::Done, TicketEnd::Released, 9);
    assert_eq!(run(engine.raise_ticket(&writer, over)), TicketRaised::Done);
    assert_eq!(run(engine.raise_ticket(&writer, granted(7))), TicketRaised::Overtaken(over));
    // It is forgotten after a while, and a process that slept until then can do nothing.
    engine.clock.0.fetch_add(u64::try_from((TICKET_MEMORY * 2).as_micros()).expect("short"), Ordering::SeqCst);
    assert_eq!(run(engine.raise_ticket(&writer, granted(7))), TicketRaised::Unknown);
    assert!(matches!(run(engine.read_ticket(&id, Duration::ZERO)), TicketFound::Absent));
}

#[test]
fn who_reads_a_ticket_is_not_its_server_on_a_node_that_forgot_it() {
    let (engine, ticket) = (engine(), ticket());
    let [server, reader] = [1, 2].map(InstanceName::from_random);
    let id = TicketId::of("c", &ticket.resource, &ticket.token);
    let writer = TicketWriter { id: &id, server: &server, ttl: Duration::from_secs(600), due: TICKET_SERVED };
    run(engine.put_ticket(&writer, &ticket, TicketHead::waiting(1)));
    let own = |instance: &InstanceName| {
        let served = vec![(id.clone(), 0)];
        let instance = instance.clone();
        let args = TicketsArgs { instance, serve: TICKET_SERVED, served, asked: Vec::new(), takes_due: false };
        run(engine.exchange_tickets(args)).named[0].is_own
    };
    assert_eq!((own(&server), own(&reader)), (NODES, 0));
    forget(&engine, 0, &id);
    assert!(matches!(run(engine.read_ticket(&id, Duration::ZERO)), TicketFound::Known(..)));
    assert!(has(&engine, 0, &id), "it is stored there again");
    assert_eq!((own(&reader), own(&server)), (0, NODES - 1));
    // Whoever served it before must have stopped by then.
    engine.clock.0.fetch_add(u64::try_from(TICKET_SERVED.as_micros()).expect("short"), Ordering::SeqCst);
    assert_eq!(own(&reader), NODES);
}

#[test]
fn a_state_counts_that_a_majority_can_have_had() {
    let [waiting, granted] = [TicketHead::waiting(1), granted(7)];
    let done = waiting.ended(TicketPhase::Done, TicketEnd::Cancelled, 9);
    let highest = |heads: &[TicketHead], nodes| highest_possible(&mut heads.to_vec(), nodes);
    // All answer: what one of three, or two of five, show was never on a majority.
    assert_eq!(highest(&[waiting, done, waiting], 3), Some((waiting, 3)));
    assert_eq!(highest(&[waiting, done, granted], 3), Some((granted, 2)), "on one, and overtaken on another");
    assert_eq!(highest(&[done, done, waiting, waiting, waiting], 5), Some((waiting, 5)));
    assert_eq!(highest(&[done, granted, granted, granted, waiting], 5), Some((granted, 4)));
    // One or two may have it, too: too few show it for it to be acted on, or enough.
    assert_eq!(highest(&[waiting, done], 3), Some((done, 1)));
    assert_eq!(highest(&[waiting, done, waiting, waiting], 5), Some((waiting, 4)));
    assert_eq!(highest(&[done, done, waiting, waiting], 5), Some((done, 2)));
    assert_eq!(highest(&[waiting, done, waiting], 5), Some((done, 1)));
    assert_eq!((highest(&[], 3), highest(&[done], 1)), (None, Some((done, 1))));
}

#[test]
fn one_nodes_state_is_not_acted_on_and_one_in_no_time_of_the_service_does_not_count() {
    let (engine, ticket, server) = (engine(), ticket(), InstanceName::from_random(1));
    let id = TicketId::of("c", &ticket.resource, &ticket.token);
    let writer = TicketWriter { id: &id, server: &server, ttl: Duration::from_secs(600), due: Duration::ZERO };
    let waiting = TicketHead::waiting(1);
    run(engine.put_ticket(&writer, &ticket, waiting));
    let write_to_one = |head| {
        only(&engine, &[0]);
        assert_eq!(run(engine.raise_ticket(&writer, head)), TicketRaised::Unknown);
        only(&engine, &[0, 1, 2]);
    };
    let state = || match run(engine.read_ticket(&id, Duration::ZERO)) {
        TicketFound::Known(_, head) => Some(head),
        TicketFound::Absent | TicketFound::Unknown => None,
    };
    write_to_one(waiting.ended(TicketPhase::Ended, TicketEnd::Released, 9));
    assert_eq!(state(), Some(waiting));
    only(&engine, &[0, 1]);
    assert_eq!(state(), None, "the third one may have it, too");
    only(&engine, &[0, 1, 2]);
    assert_eq!(run(engine.raise_ticket(&writer, granted(7))), TicketRaised::Done, "two have it");
    assert_eq!(state(), Some(granted(7)));
    let named = |asked: Vec<(TicketId, u64)>| {
        let instance = server.clone();
        let args = TicketsArgs { instance, serve: TICKET_SERVED, served: Vec::new(), asked, takes_due: false };
        run(engine.exchange_tickets(args)).named[0]
    };
    only(&engine, &[1]);
    named(vec![(id.clone(), 99_999_999)]);
    only(&engine, &[0, 1, 2]);
    let shown = named(vec![(id.clone(), 5)]);
    assert_eq!((shown.head, shown.asked_ms), (Some(granted(7)), 5));
    let latest = TicketHead { kept_until_ms: 10_u64.pow(14) - 1, ..granted(8) };
    assert!(
        !can_be_written(&ticket, latest, START_US / 1_000) && can_be_written(&ticket, granted(8), START_US / 1_000)
    );
}

#[test]
fn of_five_nodes_what_a_minority_shows_is_written_to_a_majority_before_it_counts() {
    let read_twice = || {
        let (engine, ticket, server) = (engine_of(5), ticket(), InstanceName::from_random(1));
        let id = TicketId::of("c", &ticket.resource, &ticket.token);
        let writer = TicketWriter { id: &id, server: &server, ttl: Duration::from_secs(600), due: Duration::ZERO };
        run(engine.put_ticket(&writer, &ticket, TicketHead::waiting(1)));
        only(&engine, &[0, 1]);
        assert_eq!(run(engine.raise_ticket(&writer, granted(7))), TicketRaised::Unknown);
        [&[0, 1, 2], &[2, 3, 4]].map(|answering| {
            only(&engine, answering);
            match run(engine.read_ticket(&id, Duration::ZERO)) {
                TicketFound::Known(_, head) => Some(head),
                TicketFound::Absent | TicketFound::Unknown => None,
            }
        })
    };
    assert_eq!(read_twice(), [Some(granted(7)), None], "one of the three has it, and two others may");
    for mutant in FOUND_WITH_FIVE_NODES {
        let before = plant(Some(*mutant), false);
        let [first, second] = read_twice();
        restore(before);
        assert!(second < first && second.is_some(), "{mutant:?}: a state that goes back");
    }
}
