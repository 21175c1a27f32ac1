//! Tickets and kept leases over two instances, of which one is killed at any step of a ticket, or cut off for a time, while a node is
//! silent or forgets: each ticket has one lease, at least one call-back, which follows its grant on a majority, and nothing is left. On
//! reference nodes and paused time; what the nodes receive, lose and answer late is drawn from a seed.
#![expect(clippy::print_stdout, reason = "the seeds that find the mutants are the output of the run")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::table::Served;
use super::types::{AskedTerms, FoundTicket, TicketError, TicketRequest};
use super::{TicketLimits, TicketSender};
use crate::auth::principal::PrincipalName;
use crate::manager::callbacks::{
    Callback, CallbackEvent, CallbackKind, CallbackRefused, CallbackSender, DeliveryOutcome,
};
use crate::manager::distant_ends::message;
use crate::manager::kept_leases::KeepLimits;
use crate::manager::service::{LockManager, PendingGrant};
use crate::manager::types::AcquireRequest;
use crate::mutant::{
    FOUND_BY_CRASHES, FOUND_BY_TOMBSTONES, FOUND_WITH_A_LYING_NODE, FOUND_WITH_TWO_SERVERS, Mutant, plant, restore,
};
use crate::protocol::reference::ReferenceNode;
use crate::protocol::{
    ClusterParams, EndReason, InstanceName, NodeResult, Reply, Request, RequestStamp, TICKET_SERVED, Ticket,
    TicketCallback, TicketEnd, TicketHead, TicketId, TicketOrder, TicketPhase, TicketTerms, Unreachable,
    UnreachableKind, UpdateKind, quarantine_for,
};
use crate::redlock::backoff::BackoffRange;
use crate::redlock::clock::{BootTime, Clock, PausedClock};
use crate::redlock::engine::{Redlock, RedlockSettings};
use crate::redlock::monitor::NodeMonitor;
use crate::redlock::node::Node;
use crate::redlock::notifications::NotificationSource;
use crate::redlock::random::Entropy;
use crate::redlock::tickets::{TicketFound, TicketRaised, TicketWriter};
use crate::types::{AttemptId, Fence, Labels, NodeId, PermitLimit, ResourceName, Token, TokenHash, Ttl, WantedMode};
use crate::waiting::event::WaitLimits;

const NODES: usize = 3;
const MAJORITY: usize = 2;
const LOCK_DELAY: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(20);
const KEEP: Duration = Duration::from_secs(30);
/// What is looked for, how often, and what may be late: a look of the keeper, a round, a request under way.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LATE: Duration = Duration::from_secs(3);
/// By then everything is over: a wait, a take-over, a lease and its time.
const LASTS: Duration = Duration::from_secs(240);

/// What happens to the first instance. Times from the request for the ticket on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// With this request to a node, which may still arrive, its process ends.
    KilledAt(u64),
    /// With this [`Step`], its process ends; whether that step arrives.
    KilledAtStep(u64, bool),
    /// Nothing that it sends arrives from the first time to the second. Milliseconds.
    CutOff(u64, u64),
    /// So many of a thousand requests are lost, or their answers, for a minute.
    Loses(u64),
}

/// What happens to a node, for both instances, at these times. Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeFault {
    Nothing,
    /// It answers nobody from the first time to the second.
    Silent(usize, u64, u64),
    /// It is another process without memory, as soon as both others have the ticket: where one of them has missed it, a majority forgets.
    Wiped(usize, u64),
}

/// What the ticket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    /// A set of two locks.
    Set,
    Shared,
    /// One of two permits.
    Permit,
}

impl Shape {
    const ALL: [Self; 4] = [Self::One, Self::Set, Self::Shared, Self::Permit];

    fn others(self) -> Vec<ResourceName> {
        if self == Self::Set { vec![ResourceName::parse("y").expect("valid")] } else { Vec::new() }
    }

    fn resources(self) -> Vec<ResourceName> {
        [vec![resource()], self.others()].concat()
    }

    fn mode(self) -> WantedMode {
        match self {
            Self::One | Self::Set => WantedMode::Exclusive,
            Self::Shared => WantedMode::Shared,
            Self::Permit => WantedMode::Permit { limit: PermitLimit::new(2).expect("in range") },
        }
    }

    /// What the second instance holds at first, and how much of that it releases.
    fn held(self) -> (Vec<(ResourceName, WantedMode)>, usize) {
        match self {
            Self::Permit => (vec![(resource(), self.mode()); 2], 1),
            _ => (self.resources().into_iter().map(|name| (name, WantedMode::Exclusive)).collect(), usize::MAX),
        }
    }
}

/// A step of a ticket: a request to a node, or a call-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Put,
    /// An attempt while others have the lock.
    Refused,
    Acquire,
    Granted,
    /// The lease has an end from then on, or is renewed.
    Keep,
    CallBack,
    Accepted,
    Ended,
    Release,
    Done,
}

impl Step {
    const ALL: [Self; 10] = [
        Self::Put,
        Self::Refused,
        Self::Acquire,
        Self::Granted,
        Self::Keep,
        Self::CallBack,
        Self::Accepted,
        Self::Ended,
        Self::Release,
        Self::Done,
    ];
}

/// What one run is about.
#[derive(Debug, Clone, Copy)]
struct Case {
    fault: Fault,
    node: NodeFault,
    shape: Shape,
    /// One node shows a state that nobody wrote.
    has_liar: bool,
    /// The workflow gives its lock back at the first instance, after a short time.
    gives_back: bool,
}

impl Case {
    fn of(fault: Fault) -> Self {
        Self { fault, node: NodeFault::Nothing, shape: Shape::One, has_liar: false, gives_back: false }
    }

    fn drawn(seed: u64) -> Self {
        let mut draws = Draws::of(seed.wrapping_add(1_447));
        let shape = Shape::ALL[usize::try_from(draws.below(4)).expect("small")];
        let node = if draws.below(2) == 0 { NodeFault::Nothing } else { NodeFault::drawn(&mut draws) };
        Self { shape, node, ..Self::of(fault_of(seed)) }
    }
}

impl NodeFault {
    fn drawn(draws: &mut Draws) -> Self {
        let node = usize::try_from(draws.below(3)).expect("small");
        let from = draws.below(4_000);
        if draws.below(2) == 0 { Self::Wiped(node, from) } else { Self::silent(node, from, draws) }
    }

    fn silent(node: usize, from: u64, draws: &mut Draws) -> Self {
        Self::Silent(node, from, from + 1_000 + draws.below(60_000))
    }
}

struct Draws(u64);

impl Draws {
    fn of(seed: u64) -> Self {
        Self((seed ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// What an instance draws: from the seed, so that a run can be repeated.
#[derive(Clone)]
struct TestEntropy(Arc<Mutex<Draws>>);

impl Entropy for TestEntropy {
    fn fill(&self, into: &mut [u8]) {
        let mut draws = self.0.lock();
        into.fill_with(|| u8::try_from(draws.below(256)).expect("a byte"));
    }
}

/// The way from one instance to the nodes.
struct Link {
    clock: PausedClock,
    draws: Mutex<Draws>,
    /// Since when requests, or steps, count, and how many there were.
    armed: Mutex<Option<(BootTime, u64)>>,
    fault: Option<Fault>,
    /// Nodes that it does not reach.
    silent: Mutex<&'static [usize]>,
    /// A node that shows a later state than it has.
    liar: Mutex<Option<(usize, TicketPhase, TicketEnd)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passes,
    Lost,
    AnswerLost,
    /// The process has ended; whether the request arrives.
    Dead(bool),
}

impl Link {
    /// With this step the process ends, or before it has: whether the step still arrives.
    fn ends_with(&self, step: Option<Step>) -> Option<bool> {
        let mut armed = self.armed.lock();
        let (Some((_, count)), Some(Fault::KilledAtStep(at, arrives))) = (armed.as_mut(), self.fault) else {
            return None;
        };
        if *count >= at {
            return Some(false);
        }
        *count += u64::from(step.is_some());
        (*count >= at).then_some(arrives)
    }

    fn fate(&self, step: Option<Step>) -> Fate {
        if matches!(self.fault, Some(Fault::KilledAtStep(..))) {
            return self.ends_with(step).map_or(Fate::Passes, Fate::Dead);
        }
        let mut armed = self.armed.lock();
        let (Some((since, count)), Some(fault)) = (armed.as_mut(), self.fault) else { return Fate::Passes };
        *count += 1;
        let after = self.clock.now().since(*since);
        let chance = self.draws.lock().below(1_000);
        match fault {
            Fault::KilledAt(at) if *count >= at => Fate::Dead(*count == at && chance < 500),
            Fault::CutOff(from, until) if (u128::from(from)..u128::from(until)).contains(&after.as_millis()) => {
                Fate::Lost
            }
            Fault::Loses(part) if after < Duration::from_mins(1) && chance < part => {
                if chance.is_multiple_of(2) {
                    Fate::Lost
                } else {
                    Fate::AnswerLost
                }
            }
            _ => Fate::Passes,
        }
    }

    fn is_dead(&self) -> bool {
        let armed = self.armed.lock();
        let (Some(Fault::KilledAt(at) | Fault::KilledAtStep(at, _)), Some((_, count))) = (self.fault, *armed) else {
            return false;
        };
        count >= at
    }

    async fn delay(&self) {
        let ms = self.draws.lock().below(4);
        self.clock.sleep(Duration::from_millis(ms)).await;
    }
}

/// The service took the lock for one that nobody works under.
const TAKEN_AWAY: &str = "the lock of a workflow that works under it was given up";

/// Nobody renewed the lock of a workflow that works under it.
const LOST_AT_WORK: &str = "a workflow works, and a lease of its ticket is over";

/// A majority of the nodes granted an attempt for a ticket that was over.
const LATE_GRANT: &str = "a late attempt of a ticket that is over was granted";

type Machines = Arc<[Mutex<ReferenceNode>; NODES]>;

/// A node as one instance reaches it.
struct TestNode {
    id: NodeId,
    index: usize,
    clock: PausedClock,
    params: ClusterParams,
    machines: Machines,
    link: Arc<Link>,
    seen: Arc<Mutex<Seen>>,
    ticket: TicketId,
    token: TokenHash,
    shape: Shape,
}

impl TestNode {
    /// The attempt of a request that acquires for the ticket.
    fn attempt_of<'a>(&self, request: &'a Request) -> Option<&'a AttemptId> {
        let (token, attempt) = match request {
            Request::Acquire(args) => (&args.token, &args.attempt),
            Request::AcquireShared(args) => (&args.token, &args.attempt),
            Request::AcquireSet(args) => (&args.token, &args.attempt),
            _ => return None,
        };
        (*token == self.token).then_some(attempt)
    }

    /// Counts the nodes that grant an attempt for the ticket after its end.
    fn note(&self, request: &Request, answer: &NodeResult) {
        if let Ok(Reply::Granted { .. } | Reply::Admitted { .. } | Reply::SetGranted { .. }) = answer
            && let Some(attempt) = self.attempt_of(request)
            && is_over(&self.machines, &self.ticket)
        {
            *self.seen.lock().late_grants.entry(attempt.clone()).or_default() += 1;
        }
    }

    /// Whether this node refuses what the ticket asks for.
    fn is_held_by_others(&self) -> bool {
        let (now_us, machine) = (self.clock.wall_ms() * 1_000, self.machines[self.index].lock());
        let may_have = if self.shape == Shape::Permit { 1 } else { 0 };
        let others = |name: &ResourceName| {
            machine.leases_of(now_us, name).iter().filter(|(record, _)| record.token != self.token).count()
        };
        self.shape.resources().iter().any(|name| others(name) > may_have)
    }

    fn step_of(&self, request: &Request) -> Option<Step> {
        if self.attempt_of(request).is_some() {
            return Some(if self.is_held_by_others() { Step::Refused } else { Step::Acquire });
        }
        match request {
            Request::Update(args) if args.token == self.token => {
                // What writes a fence back is a part of the attempt.
                Some(if args.kind == UpdateKind::Renewal || args.labels.is_some() { Step::Keep } else { Step::Acquire })
            }
            Request::Release(args) if args.token == self.token => Some(Step::Release),
            Request::Ticket(args) => match (args.order, args.head.phase) {
                (TicketOrder::Read, _) | (TicketOrder::Raise, TicketPhase::Waiting) => None,
                (TicketOrder::Put, _) => Some(Step::Put),
                (TicketOrder::Raise, TicketPhase::Granted) => Some(Step::Granted),
                (TicketOrder::Raise, TicketPhase::Accepted) => Some(Step::Accepted),
                (TicketOrder::Raise, TicketPhase::Ended) => Some(Step::Ended),
                (TicketOrder::Raise, TicketPhase::Done) => Some(Step::Done),
            },
            _ => None,
        }
    }
}

impl Node for TestNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Local
    }

    async fn call(self: Arc<Self>, stamp: RequestStamp, request: Arc<Request>) -> NodeResult {
        let (was_dead, step) = (self.link.is_dead(), self.step_of(&request));
        let fate = self.link.fate(step);
        if let (Fate::Dead(_), false) = (fate, was_dead) {
            self.seen.lock().killed = step;
        }
        let lost = || Err(Unreachable::new(UnreachableKind::Timeout, "lost"));
        if matches!(fate, Fate::Lost | Fate::Dead(false)) || self.link.silent.lock().contains(&self.index) {
            self.link.delay().await;
            return lost();
        }
        self.link.delay().await;
        // The second instance makes no ticket: it only stores again what a majority has.
        if self.link.fault.is_none()
            && matches!(&*request, Request::Ticket(args) if args.order == TicketOrder::Put)
            && heads(&self.machines, &self.ticket).len() < MAJORITY
        {
            self.seen.lock().fail("a ticket of a minority was spread");
        }
        let now_us = self.clock.wall_ms() * 1_000;
        // A connection is one to the process that runs now.
        let run = self.machines[self.index].lock().run().to_owned();
        let mut answer = self.machines[self.index].lock().apply(now_us, &run, stamp, &self.params, &request);
        self.note(&request, &answer);
        if let Some((liar, phase, end)) = *self.link.liar.lock()
            && liar == self.index
        {
            let lie = |head: &mut TicketHead| *head = (*head).max(head.ended(phase, end, head.since_ms + 1));
            match &mut answer {
                Ok(Reply::Ticket(Some(stored))) => lie(&mut stored.head),
                Ok(Reply::Tickets(page)) => page.named.iter_mut().filter_map(|named| named.head.as_mut()).for_each(lie),
                _ => {}
            }
        }
        self.link.delay().await;
        if fate == Fate::Passes { answer } else { lost() }
    }
}

type Manager = LockManager<TestNode, PausedClock, TestEntropy>;

/// What the receiver of call-backs, and whoever looks at the nodes, has seen.
#[derive(Default)]
struct Seen {
    violation: Option<String>,
    granted: usize,
    refused: usize,
    lost: usize,
    /// Of its leases, in the order of the resources.
    fences: BTreeSet<Vec<u64>>,
    accepted: bool,
    /// The receiver can be called once, and refuses what comes later.
    is_once: bool,
    /// A workflow works under the lock, which the service has confirmed.
    is_working: bool,
    /// Until when it had the lease kept. Milliseconds since 1970.
    kept_until_ms: u64,
    /// The step with which the first instance was killed.
    killed: Option<Step>,
    /// How many nodes granted each attempt that came after the end of the ticket.
    late_grants: BTreeMap<AttemptId, usize>,
}

impl Seen {
    fn fail(&mut self, why: impl Into<String>) {
        self.violation.get_or_insert(why.into());
    }

    /// A grant is reported that so many nodes know. Whether the receiver refuses it.
    fn is_refused(&mut self, known: usize, data: &Map<String, Value>) -> bool {
        self.granted += 1;
        let of_set = data.get("leases").and_then(Value::as_array).into_iter().flatten().map(|lease| &lease["fence"]);
        self.fences.insert(data.get("fence").into_iter().chain(of_set).filter_map(Value::as_u64).collect());
        if known < MAJORITY {
            self.fail("a call-back before `granted` is on a majority");
        }
        if self.fences.len() > 1 {
            self.fail("two leases for one ticket");
        }
        let is_refused = self.is_once && self.accepted;
        // Its workflow is resumed, whatever becomes of the answer.
        self.accepted |= self.is_once;
        is_refused
    }

    /// What else was seen counts before a late grant that was undone.
    fn verdict(&self) -> Option<String> {
        let is_late = self.late_grants.values().any(|nodes| *nodes >= MAJORITY);
        self.violation.clone().or_else(|| is_late.then(|| LATE_GRANT.to_owned()))
    }
}

struct TestSender {
    machines: Machines,
    id: TicketId,
    link: Arc<Link>,
    seen: Arc<Mutex<Seen>>,
}

fn heads(machines: &Machines, id: &TicketId) -> Vec<TicketHead> {
    machines.iter().filter_map(|machine| machine.lock().ticket_head(id)).collect()
}

fn is_over(machines: &Machines, id: &TicketId) -> bool {
    heads(machines, id).iter().filter(|head| head.phase == TicketPhase::Done).count() >= MAJORITY
}

impl CallbackSender for TestSender {
    fn resolve(&self, address: &str, _principal: Option<&PrincipalName>) -> Result<Callback, CallbackRefused> {
        Ok(Callback::new("t", address))
    }

    fn seal(&self, _callback: &Callback, _context: &str) -> Result<Option<String>, CallbackRefused> {
        Ok(None)
    }

    fn open(&self, target: &str, _sealed: Option<&str>, _context: &str) -> Callback {
        Callback::new(target, "target:t")
    }

    fn deliver(
        &self,
        _callback: Callback,
        event: CallbackEvent,
        until: BootTime,
        _cancel: CancellationToken,
    ) -> BoxFuture<'static, DeliveryOutcome> {
        let (machines, id) = (Arc::clone(&self.machines), self.id.clone());
        let (link, seen) = (Arc::clone(&self.link), Arc::clone(&self.seen));
        Box::pin(async move {
            if link.is_dead() {
                return std::future::pending().await;
            }
            // As with real deliveries: no try begins after the end.
            if link.clock.now() >= until {
                return DeliveryOutcome::Undelivered;
            }
            let killed = link.ends_with(Some(Step::CallBack));
            if let Some(arrives) = killed {
                seen.lock().killed = Some(Step::CallBack);
                if !arrives {
                    return std::future::pending().await;
                }
            }
            match event.kind {
                CallbackKind::Granted => {
                    let known = heads(&machines, &id).iter().filter(|head| head.phase >= TicketPhase::Granted).count();
                    let is_refused = seen.lock().is_refused(known, &event.data);
                    if is_refused {
                        link.clock.sleep_until(until).await;
                        return DeliveryOutcome::Undelivered;
                    }
                }
                CallbackKind::Refused => seen.lock().refused += 1,
                CallbackKind::Lost => seen.lock().lost += 1,
                CallbackKind::Ending => {}
            }
            let answers = link.draws.lock().below(3_000);
            link.clock.sleep(Duration::from_millis(answers)).await;
            if link.is_dead() {
                return std::future::pending().await;
            }
            if link.clock.now() > until {
                return DeliveryOutcome::Undelivered;
            }
            seen.lock().accepted |= event.kind == CallbackKind::Granted;
            DeliveryOutcome::Accepted
        })
    }
}

struct World {
    clock: PausedClock,
    machines: Machines,
    links: [Arc<Link>; 2],
    managers: [Manager; 2],
    seen: Arc<Mutex<Seen>>,
    id: TicketId,
    token: Token,
    case: Case,
}

/// The nodes that are not reached, where it is one.
const SILENT: [&[usize]; NODES] = [&[0], &[1], &[2]];

fn resource() -> ResourceName {
    ResourceName::parse("x").expect("valid")
}

fn run_of(index: usize) -> String {
    format!("{:040}", index + 1)
}

async fn world(seed: u64, case: Case) -> World {
    let clock = PausedClock::start();
    let guard = Duration::from_millis(500);
    let quarantine = quarantine_for(Duration::from_secs(60), LOCK_DELAY, guard);
    let fence_ttl = Duration::from_hours(1);
    let params = ClusterParams {
        cluster: "test".into(),
        guard,
        lock_delay: LOCK_DELAY,
        quarantine,
        fence_ttl,
        template: Default::default(),
    };
    let machines: Machines = Arc::new(std::array::from_fn(|index| Mutex::new(ReferenceNode::new(&run_of(index)))));
    let links = [Some(case.fault), None].map(|fault| {
        let draws = Mutex::new(Draws::of(seed * 2 + u64::from(fault.is_none())));
        Arc::new(Link {
            clock,
            draws,
            armed: Mutex::default(),
            fault,
            silent: Mutex::default(),
            liar: Mutex::default(),
        })
    });
    let settings = RedlockSettings {
        params: Arc::new(params.clone()),
        retry: BackoffRange { first: Duration::from_millis(2), max: Duration::from_millis(100) },
        ..RedlockSettings::of_tests()
    };
    let token = Token::from_random([7; 24]);
    let (ticket, shape) = (TicketId::of("test", &resource(), &token.hash()), case.shape);
    let seen = Arc::<Mutex<Seen>>::default();
    let managers = [0, 1].map(|instance: usize| {
        let node = |index: usize| {
            let id = NodeId::parse(&format!("n{index}")).expect("valid");
            let (machines, link, params) = (Arc::clone(&machines), Arc::clone(&links[instance]), params.clone());
            let (seen, ticket, token) = (Arc::clone(&seen), ticket.clone(), token.hash());
            Arc::new(TestNode { id, index, clock, params, machines, link, seen, ticket, token, shape })
        };
        let entropy = TestEntropy(Arc::new(Mutex::new(Draws::of(seed.wrapping_mul(31) + instance as u64))));
        let engine = Redlock::new((0..NODES).map(node).collect(), clock, entropy, settings.clone());
        let limits = WaitLimits { per_resource: 10, total: 10, detects_deadlocks: true };
        LockManager::new(engine.clone(), NodeMonitor::new(engine), limits, Duration::from_secs(2))
    });
    managers[0].shared.monitor.init().await.expect("a new cluster");
    for (manager, link) in managers.iter().zip(&links) {
        let hour = Duration::from_hours(1);
        manager.set_keeping(KeepLimits { max: hour, total: 100 }, Box::new(|_| {}));
        manager.set_tickets(TicketLimits { max_wait: hour, max_keep: hour, total: 100 }, Box::new(|_| {}));
        let (machines, id) = (Arc::clone(&machines), ticket.clone());
        let sender = TestSender { machines, id, link: Arc::clone(link), seen: Arc::clone(&seen) };
        manager.set_callbacks(Arc::new(sender) as TicketSender);
        manager.shared.monitor.probe_round().await;
        tokio::task::spawn_local(manager.shared.monitor.clone().watch());
        tokio::task::spawn_local(manager.clone().run_keeper());
        tokio::task::spawn_local(manager.clone().run_tickets());
    }
    World { clock, machines, links, managers, seen, id: ticket, token, case }
}

impl World {
    /// On how many nodes a lease of this token stands for each resource, apart from the lock delay.
    fn holds_each(&self, token: &TokenHash) -> Vec<usize> {
        let now_us = self.clock.wall_ms() * 1_000;
        let delay_ms = u64::try_from(LOCK_DELAY.as_millis()).expect("short");
        let is_its = |machine: &Mutex<ReferenceNode>, name: &ResourceName| {
            let machine = machine.lock();
            machine.leases_of(now_us, name).iter().any(|(record, left)| record.token == *token && *left > delay_ms)
        };
        let count = |name| self.machines.iter().filter(|machine| is_its(machine, &name)).count();
        self.case.shape.resources().into_iter().map(count).collect()
    }

    /// The same of the resource where it stands on most.
    fn holds(&self, token: &TokenHash) -> usize {
        self.holds_each(token).into_iter().max().unwrap_or(0)
    }

    fn holds_all(&self, token: &TokenHash) -> bool {
        self.holds_each(token).into_iter().all(|nodes| nodes >= MAJORITY)
    }

    /// Where a node has missed a lease and another one forgets it, nobody can keep it; where one is silent and requests are lost, a grant
    /// may stay without the receiver's acceptance until its end.
    fn may_lose(&self) -> bool {
        let is_unaccepted = matches!((self.case.node, self.case.fault), (NodeFault::Silent(..), Fault::Loses(_)));
        matches!(self.case.node, NodeFault::Wiped(..)) || is_unaccepted
    }

    /// A part of what it asks for is on a majority.
    fn holds_part(&self, token: &TokenHash) -> bool {
        let held = self.holds_each(token).into_iter().filter(|nodes| *nodes >= MAJORITY).count();
        held > 0 && held < self.case.shape.resources().len()
    }

    /// Two permits, each on a majority.
    fn holds_two_permits(&self, token: &TokenHash) -> bool {
        let mut slots = BTreeMap::<String, usize>::new();
        for machine in self.machines.iter() {
            let machine = machine.lock();
            for (record, _) in machine.leases_of(self.clock.wall_ms() * 1_000, &resource()) {
                *slots.entry(format!("{:?}", record.mode)).or_default() += usize::from(record.token == *token);
            }
        }
        slots.values().filter(|nodes| **nodes >= MAJORITY).count() > 1
    }

    async fn node_fault(&self) {
        let silence = |nodes: &'static [usize]| self.links.iter().for_each(|link| *link.silent.lock() = nodes);
        match self.case.node {
            NodeFault::Nothing => {}
            NodeFault::Silent(node, from, until) => {
                self.clock.sleep(Duration::from_millis(from)).await;
                silence(SILENT[node]);
                self.clock.sleep(Duration::from_millis(until - from)).await;
                silence(&[]);
            }
            NodeFault::Wiped(node, at) => {
                self.clock.sleep(Duration::from_millis(at)).await;
                let has = |(index, machine): (usize, &Mutex<ReferenceNode>)| {
                    index == node || machine.lock().ticket_head(&self.id).is_some()
                };
                while !self.machines.iter().enumerate().all(has) {
                    self.clock.sleep(LOOK_EVERY).await;
                }
                self.machines[node].lock().restart_empty(&run_of(node + NODES));
            }
        }
    }

    fn fail(&self, why: impl Into<String>) {
        self.seen.lock().fail(why);
    }

    /// Looks at the nodes until everything must be over.
    async fn watch(&self, begun: BootTime) {
        let (token, mut over_since, mut held_since) = (self.token.hash(), None::<BootTime>, None::<BootTime>);
        let (mut part_since, mut without_since) = (None::<BootTime>, None::<BootTime>);
        let (mut was_on_majority, mut end_ms) = (false, u64::MAX);
        loop {
            self.clock.sleep(LOOK_EVERY).await;
            let (now, now_ms) = (self.clock.now(), self.clock.wall_ms());
            let (heads, held) = (heads(&self.machines, &self.id), self.holds(&token) >= MAJORITY);
            was_on_majority |= heads.len() >= MAJORITY;
            if !was_on_majority && (held || self.seen.lock().granted > 0) {
                self.fail("a ticket of a minority was served");
            }
            if let Some(head) = heads.iter().max().filter(|head| head.phase >= TicketPhase::Granted && head.fence.0 > 0)
            {
                // A later grant may have overtaken one that only a minority knew.
                end_ms = head.kept_until_ms.max(self.seen.lock().kept_until_ms);
            }
            let undelivered = heads.iter().filter(|head| head.end == Some(TicketEnd::Undelivered)).count();
            if undelivered >= MAJORITY && self.seen.lock().is_working {
                self.fail(TAKEN_AWAY);
            }
            if is_over(&self.machines, &self.id) {
                over_since.get_or_insert(now);
            }
            held_since = if held { held_since.or(Some(now)) } else { None };
            if let (Some(over), Some(held)) = (over_since, held_since)
                && now.since(over.max(held)) > LATE
            {
                self.fail("a lease of a ticket that is over");
            }
            // One that is over is released by the next instance, name by name.
            let ended = heads.iter().filter(|head| head.phase >= TicketPhase::Ended).count();
            part_since = if ended < MAJORITY && self.holds_part(&token) { part_since.or(Some(now)) } else { None };
            if part_since.is_some_and(|part| now.since(part) > LATE) {
                self.fail("a part of its leases");
            }
            let is_without = self.seen.lock().is_working && now_ms < end_ms && !self.holds_all(&token);
            without_since = if is_without && !self.may_lose() { without_since.or(Some(now)) } else { None };
            if without_since.is_some_and(|without| now.since(without) > LATE) {
                self.fail(LOST_AT_WORK);
            }
            if self.holds_two_permits(&token) {
                self.fail("two permits for one ticket");
            }
            let late_ms = u64::try_from(LATE.as_millis()).expect("short");
            let is_kept = held_since.is_some_and(|held| now.since(held) > LATE);
            if is_kept && now_ms > end_ms.saturating_add(late_ms) {
                self.fail("a lease that is kept past its end");
            }
            // Nothing can happen any more, once what was cut off is back and has had time to do harm.
            let is_quiet = over_since.is_some_and(|over| now.since(over.max(self.whole_again(begun))) > 4 * LATE);
            if is_quiet || now.since(begun) > LASTS || self.seen.lock().violation.is_some() {
                return;
            }
        }
    }

    /// When the fault is over.
    fn whole_again(&self, begun: BootTime) -> BootTime {
        let of_instance = match self.case.fault {
            Fault::CutOff(_, until_ms) => Duration::from_millis(until_ms),
            Fault::Loses(_) => Duration::from_mins(1),
            Fault::KilledAt(_) | Fault::KilledAtStep(..) => Duration::ZERO,
        };
        let of_node = match self.case.node {
            NodeFault::Nothing => Duration::ZERO,
            NodeFault::Silent(_, _, until_ms) => Duration::from_millis(until_ms),
            NodeFault::Wiped(_, at_ms) => Duration::from_millis(at_ms),
        };
        begun.plus(of_instance.max(of_node))
    }

    /// When all is over.
    fn check_end(&self, is_answered: bool) {
        let (heads, seen) = (heads(&self.machines, &self.id), self.seen.lock());
        // Of three nodes one has a later state, which it alone shows, one an earlier one, and one has forgotten the ticket for good: nobody
        // can tell, and it runs out (docs/tickets.md, "One node's word is not enough").
        let has_forgotten = matches!(self.case.node, NodeFault::Wiped(..)) && heads.len() < NODES;
        let is_undecided = has_forgotten && matches!(heads.as_slice(), [a, b] if a != b);
        let (called, lost) = (seen.granted + seen.refused, seen.lost);
        // A lease that one node alone shows is never reported as granted, and is lost for its receiver.
        let is_unreported = self.case.node != NodeFault::Nothing && called == 0;
        drop(seen);
        if lost > 0 && !self.may_lose() && !is_unreported {
            self.fail("a kept lease was lost");
        }
        if is_answered && called == 0 && !(is_unreported && lost > 0) && !is_undecided {
            self.fail(format!("no call-back: {heads:?}"));
        }
        let open = heads.iter().filter(|head| head.phase != TicketPhase::Done).count();
        if heads.len() >= MAJORITY && open >= MAJORITY && !is_undecided {
            self.fail(format!("it is not over: {heads:?}"));
        }
        if self.holds(&self.token.hash()) > 0 {
            self.fail("a lease is left");
        }
        if self.managers[1].ticket_counts().iter().sum::<usize>() > 0 && !is_undecided {
            self.fail("it is served still");
        }
    }
}

fn asked(world: &World, accept: Duration) -> TicketRequest {
    TicketRequest {
        resource: resource(),
        others: world.case.shape.others(),
        terms: AskedTerms {
            ttl: Ttl::from_ms(u64::try_from(TTL.as_millis()).expect("short")).expect("valid"),
            wait: Duration::from_mins(2),
            keep: KEEP,
            mode: world.case.shape.mode(),
            refuses_deadlock: false,
        },
        labels: Labels::default(),
        token: world.token.clone(),
        principal: None,
        callback: Some((Callback::new("t", "target:t"), accept)),
        permit: None,
    }
}

fn holder(ttl: Duration, kept_for: Option<Duration>) -> AcquireRequest {
    AcquireRequest {
        resource: resource(),
        mode: WantedMode::Exclusive,
        ttl: Ttl::from_ms(u64::try_from(ttl.as_millis()).expect("short")).expect("in range"),
        wait: Duration::ZERO,
        kept_for,
        labels: Labels::default(),
        token: None,
        refuses_deadlock: false,
        principal: None,
        keep: None,
    }
}

/// Whether the ticket is over.
async fn give_back(manager: &Manager, id: &TicketId) -> bool {
    match manager.find_ticket(id).await {
        Ok(found) => found.is_over() || manager.end_ticket(&found, false).await.is_ok(),
        Err(_) => false,
    }
}

/// What a workflow does first when it is resumed. Whether the lock is its own.
async fn confirm(world: &World, manager: &Manager) -> bool {
    let kept_for_ms = u64::try_from(KEEP.as_millis()).expect("short");
    loop {
        let until_ms = world.clock.wall_ms() + kept_for_ms;
        world.seen.lock().kept_until_ms = until_ms;
        match manager.find_ticket(&world.id).await {
            Ok(found) if found.is_over() => return false,
            Ok(found) => match manager.keep_ticket(&found, KEEP, true).await {
                Ok(()) => return true,
                Err(TicketError::Over(_)) => return false,
                Err(_) => {}
            },
            Err(_) => {}
        }
        world.clock.sleep(LOOK_EVERY).await;
    }
}

/// The workflow: works for a time, and gives the lock back at an instance that runs; or its time runs out.
async fn workflow(world: &World, draws: &mut Draws) {
    let [first, second] = &world.managers;
    let gives_back = draws.below(3) > 0 || world.case.gives_back;
    let works = Duration::from_millis(1_000 + draws.below(if world.case.gives_back { 2_000 } else { 20_000 }));
    let by_first = draws.below(2) == 0 || world.case.gives_back;
    loop {
        world.clock.sleep(LOOK_EVERY).await;
        if world.seen.lock().accepted {
            break;
        }
    }
    if world.seen.lock().is_once && !confirm(world, second).await {
        return;
    }
    world.seen.lock().is_working = true;
    world.clock.sleep(works).await;
    world.seen.lock().is_working = false;
    let by = || if by_first && !world.links[0].is_dead() { first } else { second };
    while gives_back && !give_back(by(), &world.id).await {
        world.clock.sleep(LOOK_EVERY).await;
    }
}

/// One run. What must not be, if that was seen; and the step with which the first instance was killed.
async fn scenario(seed: u64, case: Case) -> (Option<String>, Option<Step>) {
    let world = world(seed, case).await;
    let mut draws = Draws::of(seed.wrapping_add(77));
    let mut receiver = Draws::of(seed.wrapping_add(313));
    let accept = Duration::from_millis(5_000 + receiver.below(36_000));
    world.seen.lock().is_once = receiver.below(2) == 0;
    if case.has_liar {
        let phases = [TicketPhase::Granted, TicketPhase::Accepted, TicketPhase::Ended, TicketPhase::Done];
        let ends = [TicketEnd::Lost, TicketEnd::Cancelled, TicketEnd::Released, TicketEnd::Forced];
        let mut one_of_four = || usize::try_from(draws.below(4)).expect("small");
        let lie = (one_of_four() % NODES, phases[one_of_four()], ends[one_of_four()]);
        world.links.iter().for_each(|link| *link.liar.lock() = Some(lie));
    }
    let [first, second] = &world.managers;
    let (wanted, released) = case.shape.held();
    let mut held = Vec::new();
    for (resource, mode) in wanted {
        let request = AcquireRequest { resource, mode, ..holder(Duration::from_mins(1), None) };
        held.push(second.acquire(request).await.and_then(PendingGrant::commit).expect("it is free"));
    }
    let begun = world.clock.now();
    *world.links[0].armed.lock() = Some((begun, 0));
    let (own, request, link) = (first.clone(), asked(&world, accept), Arc::clone(&world.links[0]));
    // A process that has ended answers nobody.
    let making = tokio::task::spawn_local(async move { own.make_ticket(request).await.is_ok() && !link.is_dead() });
    let work = async {
        world.clock.sleep(Duration::from_millis(draws.below(400))).await;
        // The second instance reaches its nodes: the lock is free then, if not before.
        for held in held.iter().take(released) {
            let _ = second.release(&held.resource, &held.token).await;
        }
        workflow(&world, &mut draws).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = world.watch(begun) => {}
        ((), ()) = futures_util::future::join(work, world.node_fault()) => {}
    }
    let is_answered = making.is_finished() && making.await.unwrap_or(false);
    world.check_end(is_answered);
    let seen = world.seen.lock();
    (seen.verdict(), seen.killed)
}

fn run(seed: u64, case: Case, bug: Option<Mutant>) -> (Option<String>, Option<Step>) {
    let before = plant(bug, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let work = scenario(seed, case);
    let outcome = runtime.expect("a runtime").block_on(tokio::task::LocalSet::new().run_until(work));
    restore(before);
    outcome
}

fn fault_of(seed: u64) -> Fault {
    let mut draws = Draws::of(seed.wrapping_add(991));
    match draws.below(4) {
        0 | 1 => Fault::KilledAtStep(1 + draws.below(STEPS), draws.below(2) == 0),
        2 => {
            let from = draws.below(8_000);
            Fault::CutOff(from, from + 500 + draws.below(110_000))
        }
        _ => Fault::Loses(50 + draws.below(400)),
    }
}

/// Steps, and requests, of the first instance in which everything happens that it has to do, roughly.
const STEPS: u64 = 45;
const REQUESTS: u64 = 160;

/// With which steps the instance was killed, and how often the step arrived, and did not.
type Killed = BTreeMap<Step, [usize; 2]>;

fn count(killed: &mut Killed, step: Step, arrives: bool) {
    killed.entry(step).or_default()[usize::from(arrives)] += 1;
}

fn assert_every_step(killed: &Killed, of: &str) {
    println!("{of}: killed with {killed:?}");
    for step in Step::ALL {
        let hit = killed.get(&step).copied().unwrap_or_default();
        assert!(hit.iter().all(|kills| *kills > 0), "{of}: no kill before or after {step:?}");
    }
}

/// By the step, so that none is left out; the last one is that after which the first instance has nothing more to do.
#[test]
fn a_kill_at_every_step_leaves_one_lease_and_at_least_one_call_back() {
    for shape in Shape::ALL {
        let mut killed = Killed::new();
        for at in 1.. {
            let mut is_hit = false;
            for arrives in [false, true] {
                let case = Case { shape, gives_back: true, ..Case::of(Fault::KilledAtStep(at, arrives)) };
                let (seen, step) = run(at, case, None);
                assert_eq!(seen, None, "killed at step {at}: {case:?}");
                step.into_iter().for_each(|step| count(&mut killed, step, arrives));
                is_hit |= step.is_some();
            }
            if !is_hit {
                break;
            }
        }
        assert_every_step(&killed, &format!("{shape:?}"));
    }
}

#[test]
fn a_kill_at_every_step_beside_a_node_that_is_silent_or_forgets_leaves_one_lease() {
    for is_wiped in [false, true] {
        let mut killed = Killed::new();
        for at in 1..=STEPS {
            let mut draws = Draws::of(at + 5_000);
            let (node, from, arrives) =
                (usize::try_from(at % 3).expect("small"), draws.below(3_000), at.is_multiple_of(2));
            let node = if is_wiped { NodeFault::Wiped(node, from) } else { NodeFault::silent(node, from, &mut draws) };
            let shape = Shape::ALL[usize::try_from(draws.below(4)).expect("small")];
            for arrives in [arrives, !arrives] {
                let case = Case { shape, node, gives_back: true, ..Case::of(Fault::KilledAtStep(at, arrives)) };
                let (seen, step) = run(at, case, None);
                assert_eq!(seen, None, "killed at step {at}: {case:?}");
                step.into_iter().for_each(|step| count(&mut killed, step, arrives));
            }
        }
        assert_every_step(&killed, if is_wiped { "wiped" } else { "silent" });
    }
}

/// `TICKET_SEEDS=20000 cargo test --lib crash_tests::no_seed`: more of them.
#[test]
fn no_seed_breaks_a_ticket() {
    let seeds = std::env::var("TICKET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    let from = std::env::var("TICKET_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in from..from + seeds {
        let case = Case::drawn(seed);
        assert_eq!(run(seed, case, None).0, None, "seed {seed}: {case:?}");
    }
}

/// In seed 253 the first instance is killed when the nodes have the end of one lease of two, and do not have it in their index: nobody
/// renews such a lease by itself. A single one is lost in the same way.
#[test]
fn a_lease_that_has_an_end_but_is_not_indexed_is_renewed_by_the_next_instance() {
    let set = Case::drawn(253);
    assert_eq!((set.shape, run(253, set, None).0), (Shape::Set, None));
    assert_eq!(run(253, set, Some(Mutant::KeptUnindexed)).0.as_deref(), Some("a part of its leases"));
    let single = |seed| Case::of(Fault::KilledAtStep(1 + seed % STEPS, true));
    let found = (0..3 * STEPS).find_map(|seed| Some((seed, run(seed, single(seed), Some(Mutant::KeptUnindexed)).0?)));
    let (seed, why) = found.expect("it is found");
    assert_eq!((why.as_str(), run(seed, single(seed), None).0), (LOST_AT_WORK, None), "seed {seed}");
}

/// In seed 2586 two nodes had the lease, of which one forgot it before its grant was reported; what was left was released, and the
/// answers to that were lost. Who looked again found a tombstone.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_lost_lease_is_not_released_before_its_ticket_says_so() {
    let ends = async {
        let [released_first, _] = FOUND_BY_TOMBSTONES else { panic!("both are found here") };
        for (bug, end) in [(None, TicketEnd::Lost), (Some(*released_first), TicketEnd::Released)] {
            let world = world(1, Case::of(Fault::KilledAt(u64::MAX))).await;
            let [first, second] = &world.managers;
            let granted = granted_now(&world);
            let ticket = stored(&world, granted).await;
            let before = plant(bug, false);
            assert!(first.ticket_lease_end(&world.id, &ticket, granted).await.is_some(), "all nodes answer");
            restore(before);
            // Before it can store what it saw, the first instance is killed.
            let found = FoundTicket { id: world.id.clone(), ticket, head: granted };
            let head = second.ticket_lease(found).await.expect("all nodes answer").0.head;
            assert_eq!(head.end, Some(end), "{bug:?}");
        }
    };
    tokio::task::LocalSet::new().run_until(ends).await;
}

/// The state of a ticket that was granted just now, and whose lease no node has any more.
fn granted_now(world: &World) -> TicketHead {
    let now_ms = world.clock.wall_ms();
    TicketHead {
        fence: Fence(now_ms * 1_000),
        kept_until_ms: now_ms + 30_000,
        accept_by_ms: now_ms + 40_000,
        ..TicketHead::waiting(now_ms).at(TicketPhase::Granted, now_ms)
    }
}

/// In seed 2743 one node missed the ticket, and one of the two others alone has the state that its server wrote. Nobody else can tell whether a
/// majority had that; the server knows.
#[test]
fn a_state_that_one_node_alone_has_is_written_again_by_the_server_that_wrote_it() {
    assert_eq!(run(2_743, Case::drawn(2_743), None).0, None);
}

/// An instance that has not seen yet that the ticket is over finds a tombstone: of another instance, or of somebody with the token.
#[tokio::test(start_paused = true)]
async fn a_tombstone_ends_a_ticket_as_released_only_where_its_state_says_nothing_else() {
    let ends = async {
        let [_, believed] = FOUND_BY_TOMBSTONES else { panic!("both are found here") };
        let cases = [(true, None), (false, None), (true, Some(*believed))].map(|(is_lost, bug)| (is_lost, false, bug));
        for (is_lost, is_asked, bug) in cases.into_iter().chain([(true, true, None), (false, true, None)]) {
            let world = world(1, Case::of(Fault::KilledAt(u64::MAX))).await;
            let [first, second] = &world.managers;
            let granted = granted_now(&world);
            let ticket = stored(&world, granted).await;
            let lost = granted.ended(TicketPhase::Ended, TicketEnd::Lost, world.clock.wall_ms());
            if is_lost {
                assert_eq!(second.raise_on_nodes(&world.id, &ticket, lost).await, TicketRaised::Done);
            }
            second.engine().release(&resource(), &ticket.token, EndReason::Released).await;
            let head = if is_asked {
                let found = FoundTicket { id: world.id.clone(), ticket, head: granted };
                first.ticket_lease(found).await.expect("all nodes answer").0.head
            } else {
                let served = Served::new(world.id.clone(), ticket, granted, first.seen_now(), true);
                let before = plant(bug, false);
                first.ticket_lease_is_over(&served, granted).await;
                restore(before);
                served.head()
            };
            let released = granted.ended(TicketPhase::Done, TicketEnd::Released, head.since_ms);
            let expected = if is_lost && bug.is_none() { lost } else { released };
            assert_eq!(head, expected, "{bug:?}, in an answer: {is_asked}");
            let shown = heads(&world.machines, &world.id);
            assert!(shown.iter().filter(|shown| **shown == head).count() >= MAJORITY, "{shown:?}");
        }
    };
    tokio::task::LocalSet::new().run_until(ends).await;
}

#[test]
fn every_mutant_of_tickets_under_faults_is_found() {
    let mut missed = Vec::new();
    for mutant in FOUND_BY_CRASHES.iter().chain(&[Mutant::KeptPastEnd]) {
        // First those seeds that detect mutants which few seeds detect.
        let found = [38, 135, 481]
            .into_iter()
            .chain(0..3_000)
            .find_map(|seed| Some((seed, run(seed, Case::drawn(seed), Some(*mutant)).0?)));
        println!("{mutant:?}: {found:?}, {:?}", found.as_ref().map(|(seed, _)| Case::drawn(*seed)));
        if found.is_none() {
            missed.push(mutant);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// A kill after the ticket was stored, and one node of three that shows a state which nobody wrote. `TICKET_SEEDS` as above.
#[test]
fn what_one_node_shows_neither_ends_a_ticket_nor_its_lease() {
    let seeds = std::env::var("TICKET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    let case = |seed: u64| {
        let killed = Fault::KilledAt(20 + Draws::of(seed).below(REQUESTS * 2));
        Case { has_liar: true, ..Case::of(killed) }
    };
    for seed in 0..seeds {
        assert_eq!(run(seed, case(seed), None).0, None, "seed {seed}: {:?}", case(seed));
    }
    for mutant in FOUND_WITH_A_LYING_NODE {
        let found = (0..20).find_map(|seed| Some((seed, run(seed, case(seed), Some(*mutant)).0?)));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?}");
    }
}

/// A ticket with a call-back that the nodes have in this state, and no instance serves.
async fn stored(world: &World, head: TicketHead) -> Ticket {
    let now_ms = world.clock.wall_ms();
    let terms = TicketTerms {
        labels: Labels::default(),
        keep_ms: 30_000,
        made_ms: now_ms,
        wait_until_ms: now_ms + 120_000,
        refuses_deadlock: false,
        mode: WantedMode::Exclusive,
        callback: Some(TicketCallback { target: "t".into(), sealed: None, accept_ms: 40_000 }),
    };
    let ticket = Ticket::new(resource(), world.token.hash(), Ttl::from_ms(20_000).expect("in range"), terms);
    let nobody = InstanceName::from_random(0);
    let writer = TicketWriter { id: &world.id, server: &nobody, ttl: LASTS * 2, due: Duration::ZERO };
    let put = world.managers[0].engine().put_ticket(&writer, &ticket, head).await;
    assert!(matches!(put, TicketFound::Known(..)), "all nodes answer");
    ticket
}

/// Two instances have just begun to serve one ticket, whose lock is free. The first one is its server on the nodes; or each is on
/// one of three, and nobody reaches the third one.
async fn served_twice(seed: u64, is_split: bool) -> World {
    let world = world(seed, Case::of(Fault::KilledAt(u64::MAX))).await;
    let head = TicketHead::waiting(world.clock.wall_ms());
    let ticket = stored(&world, head).await;
    let silent: [&[usize]; 2] = if is_split { [&[1, 2], &[0, 2]] } else { [&[], &[0, 1, 2]] };
    for ((manager, link), silent) in world.managers.iter().zip(&world.links).zip(silent) {
        let served = Served::new(world.id.clone(), ticket.clone(), head, manager.seen_now(), true);
        *link.silent.lock() = silent;
        manager.exchange(&[Arc::new(served)], TICKET_SERVED, false).await;
    }
    world.links.iter().for_each(|link| *link.silent.lock() = if is_split { &[2] } else { &[] });
    let [first, second] = world.managers.each_ref().map(|manager| manager.adopt_tickets(vec![world.id.clone()]));
    tokio::join!(first, second);
    assert!(world.managers.iter().all(|manager| manager.ticket_counts()[0] == 1), "both serve it");
    world
}

/// What must not be, if that was seen; and whether the grant was accepted within a minute, after which some seconds pass.
fn run_served_twice(seed: u64, is_split: bool, bug: Option<Mutant>) -> (Option<String>, bool) {
    let before = plant(bug, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let work = async {
        let world = served_twice(seed, is_split).await;
        let begun = world.clock.now();
        while world.clock.now().since(begun) < Duration::from_mins(1) && !world.seen.lock().accepted {
            world.clock.sleep(LOOK_EVERY).await;
        }
        world.clock.sleep(2 * LATE).await;
        let seen = world.seen.lock();
        (seen.violation.clone(), seen.accepted)
    };
    let outcome = runtime.expect("a runtime").block_on(tokio::task::LocalSet::new().run_until(work));
    restore(before);
    outcome
}

/// Two instances that join one lease have the nodes raise its fence after the first one has reported it. So did seed 17800 of all faults.
#[test]
fn a_ticket_is_acquired_for_by_one_instance_at_a_time() {
    let [served_twice, _] = FOUND_WITH_TWO_SERVERS else { panic!("both are found here") };
    let found = (0..1_000).find_map(|seed| Some((seed, run_served_twice(seed, false, Some(*served_twice)).0?)));
    println!("{found:?}");
    let (found, why) = found.expect("it is found");
    assert_eq!(why, "two leases for one ticket");
    for seed in (0..100).chain([found]) {
        assert_eq!(run_served_twice(seed, false, None), (None, true), "seed {seed}");
    }
    assert_eq!(run(17_800, Case::of(fault_of(17_800)), None).0, None);
}

#[test]
fn of_two_instances_that_serve_a_ticket_on_a_minority_one_gives_it_up() {
    let [_, never_yielded] = FOUND_WITH_TWO_SERVERS else { panic!("both are found here") };
    for seed in 0..20 {
        assert_eq!(run_served_twice(seed, true, None), (None, true), "seed {seed}");
    }
    assert_eq!(run_served_twice(0, true, Some(*never_yielded)), (None, false));
}

/// Killed while it stores the ticket: the other instance must not take what a minority has for a ticket.
#[test]
fn a_ticket_adopted_from_a_minority_is_found() {
    let early = |seed: u64| Case::of(Fault::KilledAtStep(1 + seed % 3, seed.is_multiple_of(2)));
    let found = (0..160).find_map(|seed| run(seed, early(seed), Some(Mutant::TicketByMinority)).0);
    assert_eq!(found.as_deref(), Some("a ticket of a minority was spread"));
}

/// What a process does that was stopped between its check and its request. The clean-ups are all taken by attempts that failed.
#[test]
fn a_late_attempt_that_is_granted_is_undone() {
    let cut_off = |seed: &u64| matches!(fault_of(*seed), Fault::CutOff(from, until) if until - from > 85_000);
    let late = (0..600).filter(cut_off).filter_map(|seed| {
        let seen = run(seed, Case::of(fault_of(seed)), Some(Mutant::TicketServedUnchecked)).0?;
        assert_eq!(seen, LATE_GRANT, "seed {seed}");
        Some(seed)
    });
    let late: Vec<u64> = late.collect();
    assert!(late.len() > 3, "{late:?}");
}

/// By the keeper, where nobody ends it.
#[tokio::test(start_paused = true)]
async fn a_kept_lease_ends_within_a_second_of_its_time_and_not_before() {
    let ends = async {
        for seed in 0..8 {
            let world = world(seed, Case::of(Fault::KilledAt(u64::MAX))).await;
            world.clock.sleep(Duration::from_millis(seed * 137)).await;
            let request = holder(TTL, Some(KEEP));
            let lease = world.managers[1].acquire(request).await.and_then(PendingGrant::commit).expect("it is free");
            let (token, now_us) = (lease.token.hash(), world.clock.wall_ms() * 1_000);
            let kept_until_ms = world.machines[0].lock().leases_of(now_us, &resource())[0].0.labels().kept_until_ms;
            while world.holds(&token) >= MAJORITY {
                world.clock.sleep(Duration::from_millis(10)).await;
            }
            let ended_ms = world.clock.wall_ms();
            assert!((kept_until_ms..=kept_until_ms + 1_000).contains(&ended_ms), "{seed}: {ended_ms}, {kept_until_ms}");
        }
    };
    tokio::task::LocalSet::new().run_until(ends).await;
}

/// With a TTL of minutes the granter looks at its lease again when the nodes have forgotten how it ended. Another instance publishes that
/// it ended one; a message without an end is not believed.
#[tokio::test(start_paused = true)]
async fn a_lease_that_another_instance_ends_has_one_end() {
    let ends = async {
        for kept_for in [None, Some(Duration::from_mins(15))] {
            for is_reported in [true, false] {
                let world = world(1, Case::of(Fault::KilledAt(u64::MAX))).await;
                let [granter, other] = &world.managers;
                tokio::task::spawn_local(granter.clone().run_maintenance());
                let request =
                    AcquireRequest { token: Some(world.token.clone()), ..holder(Duration::from_secs(200), kept_for) };
                granter.acquire(request).await.and_then(PendingGrant::commit).expect("it is free");
                let message = message("0123456789abcdef", &resource(), &world.token.hash()).expect("plain data");
                granter.shared.events.receive(message.as_bytes());
                world.clock.sleep(Duration::from_secs(2)).await;
                assert_eq!(world.holds(&world.token.hash()), NODES, "the nodes count");
                other.release(&resource(), &world.token).await.expect("it is held");
                if is_reported {
                    granter.shared.events.receive(message.as_bytes());
                }
                world.clock.sleep(Duration::from_secs(400)).await;
                let events = granter.shared.events.recent();
                let kinds = events.iter().map(|event| event.event.as_str()).filter(|kind| *kind != "acquired");
                let second = if kept_for.is_some() { "lost" } else { "expired" };
                let expected = if is_reported { vec![] } else { vec![second] };
                assert_eq!(kinds.collect::<Vec<_>>(), expected, "kept {kept_for:?}");
            }
        }
    };
    tokio::task::LocalSet::new().run_until(ends).await;
}
