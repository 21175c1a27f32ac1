//! One instance's process: a runtime of its own, so that it can be stopped and killed like a process,
//! with the real engine and node monitor, and a task per request as the HTTP server has.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinHandle};

use super::clients::{ClientRequest, Operation, Requester, keeps_place, kept_for_ms};
use super::clock::SimClock;
use super::coverage::HardState;
use super::invariants::{Promise, now_serving};
use super::network::{SimNode, address_of};
use super::notices;
use super::operator::SaidOfLists;
use super::rng::{Rng, SimEntropy};
use super::sets;
use super::world::{Shared, lock};
use crate::protocol::{LeaseRecord, TokenUse};
use crate::redlock::acquire::{AcquireParams, RefusalKind};
use crate::redlock::backoff::BackoffRange;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::{Redlock, RedlockSettings};
use crate::redlock::extend::{ExtendParams, ExtendRefusal};
use crate::redlock::fan_out::FanOut;
use crate::redlock::kept_lease::{KeptBy, KeptEnd, KeptObserver, KeptView};
use crate::redlock::kept_lease_renewal::Keeper;
use crate::redlock::monitor::{InitError, NodeHealth, NodeMonitor, OtherList};
use crate::redlock::node::Node;
use crate::redlock::release::ReleaseOutcome;
use crate::types::{Labels, Mode as HeldMode, NodeId, ResourceName, TokenHash, Ttl, WaitId, WantedMode};
use crate::waiting::driver::WaitDriver;
use crate::waiting::event::{Admission, WaitError, WaitLimits, WaitRequest};
use crate::waiting::kept_places::{PlaceKey, PlaceRequest, Places, Terms};

/// What the algorithm runs on here.
pub(super) type Engine = Redlock<SimNode, SimClock, SimEntropy>;

/// Maximum time between two attempts of a waiter.
const POLL: Duration = Duration::from_millis(500);
/// Attempts to initialise the cluster, as its operator would make.
const INIT_TRIES: u32 = 5;
/// Concurrent clean-ups: the shipped default is larger, and no run reaches either.
const CLEANUP_LIMIT: usize = 512;

/// More than there are clients.
const LIMITS: WaitLimits = WaitLimits { per_resource: 100, total: 100, detects_deadlocks: false };

/// The queues of an instance.
pub(super) type Waiting = WaitDriver<SimNode, SimClock, SimEntropy>;
type KeeperOfHost = Keeper<SimNode, SimClock, SimEntropy>;

/// Reports when a runtime has nothing left to do.
#[derive(Default)]
struct Idle {
    is_idle: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// The process of one instance.
pub(super) struct Host {
    runtime: Runtime,
    idle: Arc<Idle>,
    engine: Engine,
    monitor: NodeMonitor<SimNode, SimClock, SimEntropy>,
    waiting: Waiting,
    keeper: KeeperOfHost,
    handlers: BTreeMap<u64, JoinHandle<()>>,
    replacements: Vec<AbortHandle>,
}

impl Host {
    /// Starts the process and its node monitor, which initialises the cluster if `initialises`.
    pub(super) fn boot(world: &Shared, inst: usize, seed: u64, initialises: bool) -> Self {
        let idle = Arc::new(Idle::default());
        let parked = Arc::clone(&idle);
        let runtime = Builder::new_current_thread()
            .on_thread_park(move || {
                parked.is_idle.store(true, Ordering::Relaxed);
                if let Some(waker) = parked.waker.lock().expect("no panic here").take() {
                    waker.wake();
                }
            })
            .build()
            .expect("a runtime without drivers");
        let engine = {
            let mut w = lock(world);
            w.configure_list(inst);
            w.connect_all(inst);
            w.configure_terms(inst);
            w.name_cluster(inst);
            let now = w.now;
            let i = &mut w.insts[inst];
            // A stopped instance starts later.
            (i.alive, i.began, i.has_time) = (true, now.max(i.local), false);
            let settings = RedlockSettings {
                params: Arc::clone(&i.params),
                node_timeout: Duration::from_millis(w.profile.node_timeout_ms),
                drift_ppm: 10_000,
                drift_floor: Duration::from_millis(2),
                min_validity_percent: 10,
                retry: BackoffRange { first: Duration::from_millis(2), max: Duration::from_millis(250) },
                poll: POLL,
                cleanup_limit: CLEANUP_LIMIT,
                fan_out: if w.profile.thrifty >> inst & 1 == 1 { FanOut::Quorum } else { FanOut::All },
            };
            let life = u64::from(w.insts[inst].life);
            let entropy = SimEntropy::new(Rng::new(seed, 1_000 + inst as u64 * 1_000 + life));
            let list = w.profile.list_of(inst);
            drop(w);
            let nodes: Vec<_> = list.into_iter().map(|node| Arc::new(SimNode::new(world, inst, node))).collect();
            let clock = SimClock { world: Arc::clone(world), inst };
            for node in &nodes {
                let (server, channel) = node.feed();
                runtime.spawn(notices::subscribe(clock.clone(), server, channel));
            }
            let (shared, subscriber, handle) = (Arc::clone(world), clock.clone(), runtime.handle().clone());
            let engine = Redlock::new(nodes, clock, entropy, settings);
            engine.set_opener(Box::new(move |_, address| {
                let server: usize = address.strip_prefix("server:")?.parse().ok()?;
                let node = Arc::new(SimNode::new(&shared, inst, server));
                lock(&shared).connect_to(inst, server);
                let (feed, channel) = node.feed();
                handle.spawn(notices::subscribe(subscriber.clone(), feed, channel));
                Some(node)
            }));
            engine
        };
        let monitor = NodeMonitor::new(engine.clone());
        let waiting = WaitDriver::new(engine.clone(), LIMITS, Box::new(|_| None));
        let own = monitor.clone();
        let keeper = Keeper::new(engine.clone());
        let (kept, observer) = (keeper.clone(), KeptLeases { engine: engine.clone(), waiting: waiting.clone() });
        if lock(world).profile.keeps {
            runtime.spawn(async move { kept.run(&observer).await });
        }
        let host = Self {
            runtime,
            idle,
            engine,
            monitor,
            waiting,
            keeper,
            handlers: BTreeMap::new(),
            replacements: Vec::new(),
        };
        let clock = host.engine.clock.clone();
        host.runtime.spawn(async move {
            clock.sleep(Duration::from_millis(20)).await;
            if initialises {
                // The only fault so early is that answers are too slow to measure a clock by.
                let mut outcome = own.init().await;
                for _ in 1..INIT_TRIES {
                    if outcome.is_ok() {
                        break;
                    }
                    clock.sleep(Duration::from_millis(20)).await;
                    // The former try reached the nodes, its answers were late, and other instances completed it.
                    outcome = match own.init().await {
                        Err(InitError::AlreadyInitialised(_)) => Ok(()),
                        other => other,
                    };
                }
                if let Err(error) = outcome {
                    lock(&clock.world).fail(format!("the new cluster could not be initialised: {error}"));
                }
            }
            own.watch().await;
        });
        host
    }

    /// An operator's word that a node has ended. Whether it was taken.
    pub(super) fn forget(&self, node: &NodeId) -> bool {
        self.monitor.forget(node).is_ok()
    }

    /// What it says of lists: the names that its own lacks, and the other lists that nodes show.
    pub(super) fn lists(&self) -> SaidOfLists {
        let health = self.monitor.health();
        let own = self.engine.nodes.iter().map(|node| node.id().clone()).collect();
        let other = |health: &NodeHealth| match health.other_list(&own, &self.engine.settings.params) {
            OtherList::Other(names) => Some(names),
            _ => None,
        };
        let others = health.iter().filter_map(other).collect();
        SaidOfLists { unlisted: self.monitor.waits_for().unlisted.into_iter().collect(), others }
    }

    /// An operator adds a server to the list, or removes it.
    pub(super) fn relist(&self, server: usize, is_added: bool) {
        let (monitor, world) = (self.monitor.clone(), Arc::clone(&self.engine.clock.world));
        let (inst, name) = (self.engine.clock.inst, lock(&world).profile.name_of(server));
        lock(&world).changing.push(inst);
        self.runtime.spawn(async move {
            let done = match is_added {
                true => monitor.add(&name, &address_of(server)).await,
                false => monitor.remove(&name).await,
            };
            if done.is_ok() {
                lock(&world).coverage.count(if is_added { HardState::NodeAdded } else { HardState::NodeRemoved });
            }
            let mut world = lock(&world);
            world.change_ends(inst);
            if done.is_ok() {
                world.note_list();
            }
            world.trace(|| format!("{name} added: {is_added}: {done:?}"));
        });
    }

    /// An operator replaces the server of a name.
    pub(super) fn replace(&mut self, server: usize) {
        let (monitor, world) = (self.monitor.clone(), Arc::clone(&self.engine.clock.world));
        let (inst, name) = (self.engine.clock.inst, lock(&world).profile.name_of(server));
        let task = self.runtime.spawn(async move {
            let done = monitor.replace(&name, &address_of(server)).await;
            if done.is_ok() {
                lock(&world).coverage.count(HardState::NodeReplaced);
            }
            let mut world = lock(&world);
            world.replacing.remove(&inst);
            world.trace(|| format!("{name} replaced by server {server}: {done:?}"));
        });
        self.replacements.push(task.abort_handle());
    }

    /// The operator gives up what is under way.
    pub(super) fn end_replacement(&mut self) {
        self.replacements.drain(..).for_each(|task| task.abort());
    }

    /// An operator puts these terms in force.
    pub(super) fn reterm(&self, terms: crate::protocol::Terms) {
        let (monitor, world) = (self.monitor.clone(), Arc::clone(&self.engine.clock.world));
        let inst = self.engine.clock.inst;
        lock(&world).changing.push(inst);
        self.runtime.spawn(async move {
            let done = monitor.change_terms(terms.clone()).await;
            if done.is_ok() {
                lock(&world).coverage.count(HardState::TermsChanged);
            }
            let mut world = lock(&world);
            world.change_ends(inst);
            world.trace(|| format!("terms {terms}: {done:?}"));
        });
    }

    /// Runs its tasks until all of them wait.
    pub(super) fn run(&mut self) {
        self.idle.is_idle.store(false, Ordering::Relaxed);
        let idle = Arc::clone(&self.idle);
        self.runtime.block_on(poll_fn(move |cx| {
            if idle.is_idle.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            *idle.waker.lock().expect("no panic here") = Some(cx.waker().clone());
            Poll::Pending
        }));
        let clock = &self.engine.clock;
        lock(&clock.world).insts[clock.inst].has_time = self.monitor.has_time();
    }

    /// Begins to serve a request.
    pub(super) fn serve(&mut self, request: ClientRequest) {
        self.waiting.give_up_places(Places::expire);
        self.handlers.retain(|_, task| !task.is_finished());
        let (engine, waiting, req) = (self.engine.clone(), self.waiting.clone(), request.req);
        let keeper = self.keeper.clone();
        let work = async move {
            let mut work = pin!(handle(engine, waiting, keeper, request));
            poll_fn(|cx| {
                let before = now_serving(req);
                let poll = work.as_mut().poll(cx);
                now_serving(before);
                poll
            })
            .await;
        };
        self.handlers.insert(req, self.runtime.spawn(work));
    }

    /// The caller has hung up.
    pub(super) fn abort(&mut self, req: u64) {
        if let Some(task) = self.handlers.remove(&req) {
            task.abort();
        }
    }

    /// Number of waiters whose callers are there.
    pub(super) fn waiters(&self) -> usize {
        self.waiting.queue(|queue| queue.total_waiters() - queue.absent_waiters())
    }

    /// Number of clean-ups in progress.
    pub(super) fn cleanups(&self) -> usize {
        self.engine.cleanups_in_flight()
    }
}

/// What the keeper of an instance reports and asks.
struct KeptLeases {
    engine: Engine,
    waiting: Waiting,
}

impl KeptObserver for KeptLeases {
    fn renewed(&self, lease: KeptView<'_>, by: KeptBy, deadline: BootTime) {
        self.waiting.extended(lease.resource, deadline, lease.record.mode.wanted());
        let (clock, mut world) = (&self.engine.clock, lock(&self.engine.clock.world));
        world.coverage.count(if by == KeptBy::Granter { HardState::KeptRenewed } else { HardState::KeptAdopted });
        let until = world.when(clock.inst, deadline);
        world.check_kept(clock.inst, (lease.resource, lease.token), lease.record, until);
    }

    fn not_renewed(&self, _by: KeptBy) {}

    fn ended(&self, _lease: KeptView<'_>, _end: KeptEnd) {}

    async fn release(&self, resource: &ResourceName, token: &TokenHash) -> bool {
        lock(&self.engine.clock.world).note_release(token);
        lock(&self.engine.clock.world).coverage.count(HardState::KeptOut);
        !matches!(self.waiting.release(resource, token, true).await, ReleaseOutcome::Unknown { .. })
    }
}

async fn handle(engine: Engine, waiting: Waiting, keeper: KeeperOfHost, request: ClientRequest) {
    let (world, inst) = (Arc::clone(&engine.clock.world), engine.clock.inst);
    let started = engine.clock.now();
    let is_of_set = matches!(request.by, Requester::Set(_));
    let promise = match &request.operation {
        Operation::AcquireSet { .. } => return sets::serve(&engine, &waiting, &request, started).await,
        Operation::Acquire { ttl_ms, wait_ms } => {
            acquire(&engine, &waiting, &keeper, &request, started, (*ttl_ms, *wait_ms)).await
        }
        Operation::Extend { ttl_ms, fence } => {
            let ttl = ttl_ms.map(|ms| Ttl::from_ms(ms).expect("in range"));
            let (resource, token) = (request.resource.clone(), request.token.clone());
            let extension = ExtendParams { resource, token, ttl, until_ms: 0, fence: *fence, labels: None };
            match engine.extend(&extension).await {
                Ok(extended) => {
                    waiting.extended(&request.resource, extended.deadline, extended.record.mode.wanted());
                    let at = engine.clock.now();
                    let extended = (extended.deadline > at).then_some(extended);
                    extended.map(|e| (e.record.fence, e.record.mode, e.deadline, false, Duration::ZERO))
                }
                Err(refusal) => {
                    let kind = match refusal {
                        ExtendRefusal::Unknown { .. } => HardState::ExtendUnknown,
                        _ => HardState::ExtendLost,
                    };
                    lock(&world).coverage.count(kind);
                    None
                }
            }
        }
        Operation::Downgrade => {
            let downgraded = engine.downgrade(&request.resource, &request.token).await.ok();
            let downgraded = downgraded.filter(|of| of.deadline > engine.clock.now());
            if downgraded.is_some() {
                lock(&world).coverage.count(HardState::Downgraded);
            }
            downgraded.map(|of| (of.record.fence, of.record.mode, of.deadline, false, Duration::ZERO))
        }
        Operation::Release => {
            let outcome = waiting.release(&request.resource, &request.token, true).await;
            keeper.forget(&request.resource, &request.token);
            let mut world = lock(&world);
            let at = world.local(inst);
            match outcome {
                // The token has other leases.
                ReleaseOutcome::Released if is_of_set => {}
                ReleaseOutcome::Released => world.note_released(inst, &request.token, at),
                ReleaseOutcome::NotHolder | ReleaseOutcome::Gone(None) => world.check_lost(&request, at),
                ReleaseOutcome::Gone(Some(_)) | ReleaseOutcome::Unknown { .. } => {}
            }
            None
        }
    };
    let mut world = lock(&world);
    let at = world.local(inst);
    let waited = promise.map_or(Duration::ZERO, |(.., waited)| waited);
    let promise = promise.map(|(fence, mode, deadline, joined, _)| {
        let until = world.when(inst, deadline).max(at);
        Promise { fence, mode, at, until, trusted: until, joined }
    });
    world.answer(inst, request.req, promise, u64::try_from(waited.as_micros()).unwrap_or(0));
}

/// As the nodes have it.
fn record_of(params: &AcquireParams, (fence, mode): (crate::types::Fence, HeldMode), labels: &Labels) -> LeaseRecord {
    let labels = labels.encode();
    LeaseRecord { mode, token: params.token.clone(), renewals: 0, ttl: params.ttl, fence, claims: "".into(), labels }
}

/// The place that a request keeps.
fn keep_place(request: &ClientRequest, params: &AcquireParams) -> PlaceRequest {
    let (resources, wait_id) = ([request.resource.clone()].into(), WaitId::parse(request.token.as_str()).expect("hex"));
    let token = Some(request.token.clone());
    let (mode, ttl, labels) = (params.mode, params.ttl, Labels::default());
    let terms = Terms { mode, ttl, labels, token, refuses_deadlock: false, kept_for: None };
    PlaceRequest {
        key: PlaceKey { resources, principal: "".into(), wait_id },
        terms,
        permit: None,
        waited: Duration::ZERO,
    }
}

/// As in the manager: the grant is kept last, just before the answer.
async fn acquire(
    engine: &Engine,
    waiting: &Waiting,
    keeper: &KeeperOfHost,
    request: &ClientRequest,
    started: BootTime,
    (ttl_ms, wait_ms): (u64, u64),
) -> Option<(crate::types::Fence, HeldMode, BootTime, bool, Duration)> {
    // The checks at the end are of exclusive leases.
    let is_client = matches!(request.by, Requester::Client(_));
    let sharing = lock(&engine.clock.world).profile.mode_of(&request.token);
    let mode = if is_client { sharing } else { WantedMode::Exclusive };
    // As a token that the service draws: nobody else has it before its first request is sent, which is now.
    let is_first = wait_ms == 0 && lock(&engine.clock.world).is_unused(&request.token);
    let params = AcquireParams {
        resources: [request.resource.clone()].into(),
        token: request.token.clone(),
        ttl: Ttl::from_ms(ttl_ms).expect("in range"),
        mode,
        labels: crate::types::Labels::default(),
        token_use: if is_first { TokenUse::First } else { TokenUse::Again },
    };
    let kept_for = kept_for_ms(&lock(&engine.clock.world), &request.token, ttl_ms);
    let (world, inst) = (&engine.clock.world, engine.clock.inst);
    let has_waiters = || waiting.queue(|queue| queue.waiter_count(&request.resource) > 0);
    let admission = if wait_ms > 0 {
        Admission::Queued
    } else if has_waiters() && waiting.holds(&request.resource, &params.token).await {
        Admission::Passing
    } else {
        Admission::Once
    };
    let until = started.plus(Duration::from_millis(wait_ms));
    let (resources, token) = ([request.resource.clone()].into(), Some(request.token.clone()));
    let (refuses_deadlock, note, is_ticket) = (false, "".into(), false);
    let wanted =
        WaitRequest { resources, mode, party: None, token, until, admission, refuses_deadlock, note, is_ticket };
    let keep = (wait_ms > 0 && keeps_place(&request.token)).then(|| Box::new(keep_place(request, &params)));
    let now = engine.clock.now();
    lock(world).begins_to_wait(inst, request, wait_ms, now);
    let began = Mutex::new(None);
    let outcome = waiting
        .acquire(&params, wanted, keep, |_| true, |begun, _| *began.lock().expect("no panic here") = Some(begun))
        .await;
    let is_new = outcome.as_ref().is_ok_and(|grant| !grant.leases[0].joined);
    let began = began.into_inner().expect("no panic here").filter(|_| is_new);
    lock(world).ends_to_wait(inst, request.req, began);
    match outcome {
        Ok(mut grant) => {
            let (fence, joined) = (grant.fence(), grant.leases[0].joined);
            let granted = (fence, grant.mode, grant.deadline, joined, engine.clock.now().since(started));
            if let Some(kept_for) = kept_for.filter(|_| is_new) {
                let labels = Labels { kept_until_ms: keeper.now_ms() + kept_for, ..params.labels.clone() };
                grant.spread().await;
                if !keeper.begin(&request.resource, &params.token, grant.fence(), &labels).await {
                    return None;
                }
                let record = record_of(&params, (grant.fence(), grant.mode), &labels);
                keeper.keep(&request.resource, &record, grant.deadline);
            }
            lock(world).stall_before_answer(inst);
            let kept = grant.keep().is_ok();
            if !kept && is_new {
                keeper.forget(&params.resources[0], &params.token);
            }
            if !kept {
                lock(world).coverage.count(HardState::TooLateToAnswer);
            }
            kept.then_some(granted)
        }
        Err(error) => {
            let kind = match error {
                WaitError::Refused(refusal) => match refusal.kind {
                    RefusalKind::Split => Some(HardState::SplitVote),
                    RefusalKind::TooSlow => Some(HardState::TooSlowRefused),
                    RefusalKind::Held if wait_ms > 0 => Some(HardState::WaiterGaveUp),
                    _ => None,
                },
                WaitError::TimedOut { .. } => Some(HardState::TimedOutBehindOthers),
                WaitError::OthersWait => Some(HardState::RefusedByQueue),
                _ => None,
            };
            if let Some(kind) = kind {
                lock(world).coverage.count(kind);
            }
            None
        }
    }
}
