//! One seed from its first caller to its verdict: instances, callers that wait, disconnect, hold and nest, and
//! the watcher that finds waiters asleep beside a free lock.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::task::LocalSet;

use super::checker::Checker;
use super::clock::{Paused, SeededRandom};
use super::nodes::{Link, NetworkProfile, Server};
use crate::manager::types::{AcquireError, AcquireRequest};
use crate::manager::{LockManager, PendingGrant};
use crate::mutant::{self, Mutant};
use crate::protocol::{ClusterParams, quarantine_for};
use crate::redlock::backoff::BackoffRange;
use crate::redlock::clock::Clock;
use crate::redlock::engine::{Redlock, RedlockSettings};
use crate::redlock::monitor::NodeMonitor;
use crate::redlock::quorum::quorum_of;
use crate::types::{Labels, ResourceName, Token, Ttl};
use crate::waiting::event::WaitLimits;
use crate::waiting::wake::POLL_MAX;

pub(super) type Manager = LockManager<Link, Paused, SeededRandom>;

const POLL: Duration = POLL_MAX;
const LOCK_DELAY: Duration = Duration::from_millis(1_000);
const NODE_TIMEOUT: Duration = Duration::from_millis(50);
/// No waiter sleeps for longer beside a free lock: some rounds that were split or timed out with the pauses
/// between them, or the poll where no notice comes.
const SLEEP_MAX: Duration = Duration::from_millis(1_000);
/// No deadlock lasts longer where nothing is lost; some polls more where the nodes are slow to confirm it.
const CYCLE_MAX: Duration = Duration::from_secs(2);
/// How long most callers wait at most: far longer than they should have to.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same where notices are lost: each hand-over to another instance may take the TTL of a lease.
const PATIENCE_LOSSY: Duration = Duration::from_secs(300);
/// Acquires of each caller.
const ACQUIRES: u64 = 6;
/// Longer than any run: a lease that is left at the end was not cleaned up.
const LONG_MS: u64 = 240_000;
/// Where notices are lost, waiters are woken by the end of a lease as it was last seen.
const SHORT_MS: u64 = 4_000;

/// What one seed simulates.
#[derive(Debug, Clone, Copy)]
struct Profile {
    nodes: usize,
    instances: usize,
    callers: usize,
    resources: usize,
    network: NetworkProfile,
    /// Connections for notices break now and then.
    breaks: bool,
    /// One of several nodes dies.
    dies: bool,
    /// Percent.
    hang_ups: u64,
    /// Percent of callers that take a second lock under the first, and have names.
    nesting: u64,
}

impl Profile {
    fn of(random: &SeededRandom) -> Self {
        let latency_ms = [1, 2, 8][random.index(3)];
        Self {
            nodes: [1, 3, 3, 5][random.index(4)],
            instances: [1, 2, 3][random.index(3)],
            callers: [2, 4, 7][random.index(3)],
            resources: [1, 2, 3][random.index(3)],
            network: NetworkProfile {
                latency_ms,
                spikes: [0, 0, 5][random.index(3)],
                late_inspections: [0, 0, 20][random.index(3)],
                lost: [0, 0, 0, 40, 100][random.index(5)],
                notice_ms: [1, 3, 30][random.index(3)],
            },
            breaks: random.chance(30),
            dies: random.chance(30),
            hang_ups: [0, 10, 40][random.index(3)],
            nesting: [0, 0, 60][random.index(3)],
        }
    }
}

/// The result of a seed.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) violation: Option<String>,
    pub(super) grants: u64,
    pub(super) deadlocks: u64,
    /// A digest of the history.
    pub(super) history: u64,
}

/// Shared by the tasks of a run.
struct World {
    clock: Paused,
    random: SeededRandom,
    profile: Profile,
    servers: Vec<Arc<Server>>,
    managers: Vec<Manager>,
    resources: Vec<ResourceName>,
    checker: Mutex<Checker>,
}

impl World {
    fn checker(&self) -> MutexGuard<'_, Checker> {
        self.checker.lock().expect("no panic")
    }

    fn failed(&self) -> bool {
        self.checker().violation.is_some()
    }

    /// Whether a quorum of nodes has no lease of it.
    fn is_free(&self, resource: &ResourceName) -> bool {
        let free = self.servers.iter().filter(|s| !s.is_dead() && s.holder(resource).is_none()).count();
        free >= quorum_of(self.servers.len())
    }
}

/// Runs `seed`, with `bug` planted.
pub(super) fn run_seed(seed: u64, bug: Option<Mutant>) -> Outcome {
    let before = mutant::plant(bug, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let outcome = runtime.expect("a runtime").block_on(LocalSet::new().run_until(simulate(seed)));
    mutant::restore(before);
    outcome
}

/// The parameters of the cluster.
pub(super) fn params() -> Arc<ClusterParams> {
    let guard = Duration::from_millis(500);
    let quarantine = quarantine_for(Duration::from_millis(LONG_MS), LOCK_DELAY, guard);
    let fence_ttl = Duration::from_hours(1);
    Arc::new(ClusterParams { cluster: "waits".into(), guard, lock_delay: LOCK_DELAY, quarantine, fence_ttl })
}

/// An instance that may vote. The first one declares the cluster.
pub(super) async fn instance(
    own: Vec<Arc<Link>>,
    clock: Paused,
    random: &SeededRandom,
    params: &Arc<ClusterParams>,
    limits: WaitLimits,
    is_first: bool,
) -> Manager {
    let settings = RedlockSettings {
        params: Arc::clone(params),
        node_timeout: NODE_TIMEOUT,
        drift_ppm: 10_000,
        drift_floor: Duration::from_millis(2),
        min_validity_percent: 10,
        retry: BackoffRange { first: Duration::from_millis(2), max: Duration::from_millis(100) },
        poll: POLL,
        cleanup_limit: 512,
    };
    let engine = Redlock::new(own, clock, random.clone(), settings);
    let monitor = NodeMonitor::new(engine.clone());
    if is_first {
        clock.sleep(Duration::from_millis(50)).await;
        while monitor.init().await.is_err() {
            clock.sleep(Duration::from_millis(50)).await;
        }
    }
    monitor.probe_round().await;
    let manager = LockManager::new(engine, monitor.clone(), limits, Duration::from_secs(2));
    tokio::task::spawn_local(async move { monitor.watch().await });
    manager
}

async fn simulate(seed: u64) -> Outcome {
    let (clock, random) = (Paused::start(), SeededRandom::new(seed));
    let profile = Profile::of(&random);
    let servers: Vec<_> = (0..profile.nodes).map(|_| Server::new(clock, &random, profile.network)).collect();
    let params = params();
    let (mut managers, mut links) = (Vec::new(), Vec::new());
    for inst in 0..profile.instances {
        let own: Vec<_> = servers.iter().enumerate().map(|(i, s)| Link::open(i, s, &params)).collect();
        links.extend(own.iter().cloned());
        let limits = WaitLimits { per_resource: 100, total: 200, detects_deadlocks: true };
        managers.push(instance(own, clock, &random, &params, limits, inst == 0).await);
    }
    let resources = (0..profile.resources).map(|i| ResourceName::parse(&format!("r{i}")).expect("valid")).collect();
    let checker = Mutex::new(Checker::new(clock));
    let world = Rc::new(World { clock, random: random.clone(), profile, servers, managers, resources, checker });
    tokio::task::spawn_local(watch(Rc::clone(&world)));
    if profile.breaks {
        tokio::task::spawn_local(network(Rc::clone(&world), links));
    }
    if profile.dies && profile.nodes > 1 {
        let (clock, server, when) =
            (clock, Arc::clone(&world.servers[random.index(profile.nodes)]), random.ms(50, 1_000));
        tokio::task::spawn_local(async move {
            clock.sleep(when).await;
            server.die();
        });
    }
    let mut callers = Vec::new();
    for inst in 0..profile.instances {
        for i in 0..profile.callers {
            callers.push(tokio::task::spawn_local(caller(Rc::clone(&world), inst, format!("c{inst}-{i}"))));
        }
    }
    for caller in callers {
        caller.await.expect("no panic");
    }
    end(&world).await;
    let checker = world.checker();
    let violation = checker.violation.clone().map(|why| format!("{why} ({profile:?})"));
    Outcome { violation, grants: checker.grants, deadlocks: checker.deadlocks, history: checker.history() }
}

/// All callers have ended: no lease and no waiter is left.
async fn end(world: &World) {
    world.clock.sleep(Duration::from_secs(5)).await;
    let mut checker = world.checker();
    for resource in &world.resources {
        if let Some(token) = world.servers.iter().filter(|s| !s.is_dead()).find_map(|s| s.holder(resource)) {
            checker.fail(format!("{resource} is still held by {token:?} after all callers ended"));
        }
    }
    for (inst, manager) in world.managers.iter().enumerate() {
        let waiters = manager.gauges().waiters;
        if waiters > 0 {
            checker.fail(format!("{waiters} waiters are left on i{inst}"));
        }
    }
}

/// Finds waiters asleep beside free locks, and deadlocks that are not reported.
async fn watch(world: Rc<World>) {
    const EVERY: Duration = Duration::from_millis(20);
    // Where notices are lost, a waiter may sleep until the end of the lease that it knows of, but not for ever.
    let is_lossless = world.profile.network.lost == 0;
    let (mut free_for, mut cycle_for) = (vec![Duration::ZERO; world.resources.len()], Duration::ZERO);
    loop {
        world.clock.sleep(EVERY).await;
        let mut checker = world.checker();
        for (resource, free_for) in world.resources.iter().zip(&mut free_for) {
            let sleeper = checker.waiting(resource).filter(|_| is_lossless && world.is_free(resource)).map(|(n, _)| n);
            *free_for = if sleeper.is_some() { *free_for + EVERY } else { Duration::ZERO };
            if let Some(number) =
                sleeper.filter(|_| *free_for > SLEEP_MAX + if world.profile.breaks { POLL } else { Duration::ZERO })
            {
                checker.fail(format!("call {number} sleeps beside {resource}, which is free"));
            }
        }
        let cycle_max = CYCLE_MAX + POLL * if world.profile.network.late_inspections > 0 { 6 } else { 1 };
        let cycle = checker.cycle(CYCLE_MAX * 2).filter(|_| is_lossless);
        cycle_for = if cycle.is_some() { cycle_for + EVERY } else { Duration::ZERO };
        if let Some(cycle) = cycle.filter(|_| cycle_for > cycle_max) {
            checker.fail(format!("the deadlock of {cycle} is not reported"));
        }
    }
}

/// Breaks connections for notices, one or all of an instance's.
async fn network(world: Rc<World>, links: Vec<Arc<Link>>) {
    loop {
        world.clock.sleep(world.random.ms(50, 2_000)).await;
        let pause = world.random.ms(5, 800);
        let all = world.random.chance(40);
        let one = world.random.index(links.len());
        let inst = one / world.profile.nodes;
        let broken = links.iter().enumerate().filter(|(i, _)| *i == one || (all && i / world.profile.nodes == inst));
        let broken: Vec<_> = broken.map(|(_, link)| Arc::clone(link)).collect();
        futures_util::future::join_all(broken.iter().map(|link| link.break_connection(pause))).await;
    }
}

/// A lease as its holder knows it.
struct Mine {
    number: u64,
    resource: ResourceName,
    token: Token,
}

async fn caller(world: Rc<World>, inst: usize, name: String) {
    let random = world.random.clone();
    for _ in 0..ACQUIRES {
        world.clock.sleep(random.ms(0, 60)).await;
        if world.failed() {
            return;
        }
        let nests = random.chance(world.profile.nesting) && world.resources.len() > 1;
        let first = random.index(world.resources.len());
        // Owners only for callers that nest: an owner is one caller.
        let owner = if world.profile.nesting > 0 { name.as_str() } else { "" };
        let Some(mine) = acquire(&world, inst, first, owner, nests).await else { continue };
        world.clock.sleep(random.ms(0, 30)).await;
        if nests {
            let second = (first + 1 + random.index(world.resources.len() - 1)) % world.resources.len();
            if let Some(under) = acquire(&world, inst, second, owner, true).await {
                world.clock.sleep(random.ms(0, 10)).await;
                release(&world, under).await;
            }
        }
        release(&world, mine).await;
    }
}

async fn acquire(world: &World, inst: usize, which: usize, owner: &str, stays: bool) -> Option<Mine> {
    let (random, resource) = (&world.random, world.resources[which].clone());
    let hangs_up = !stays && random.chance(world.profile.hang_ups);
    let patience = if world.profile.network.lost > 0 { PATIENCE_LOSSY } else { PATIENCE };
    let wait = if random.chance(10) { random.ms(1, 300) } else { patience };
    let ttl = Ttl::from_ms(if world.profile.network.lost > 0 { SHORT_MS } else { LONG_MS }).expect("in range");
    let labels = Labels { owner: owner.to_owned(), ..Labels::default() };
    let request = AcquireRequest {
        resource: resource.clone(),
        ttl,
        wait,
        labels,
        token: None,
        refuses_deadlock: true,
        principal: None,
    };
    let number = world.checker().call(inst, &resource, owner, wait);
    let hangs_up_after = if hangs_up { random.ms(0, 80) } else { Duration::MAX };
    let acquiring = world.managers[inst].acquire(request);
    let outcome = tokio::select! {
        biased;
        outcome = acquiring => outcome,
        () = world.clock.sleep(hangs_up_after.min(Duration::from_secs(600))) => {
            world.checker().over(number);
            return None;
        }
    };
    // The caller disconnects before the answer is written.
    let outcome = if !stays && random.chance(world.profile.hang_ups / 4) {
        outcome.map(drop).map(|()| None)
    } else {
        outcome.map(Some)
    };
    match outcome.and_then(|granted| granted.map(PendingGrant::commit).transpose()) {
        Ok(Some(lease)) => {
            world.checker().granted(number, lease.deadline.since(world.clock.now()));
            Some(Mine { number, resource, token: lease.token })
        }
        Ok(None) => {
            world.checker().over(number);
            None
        }
        Err(error) => {
            let mut checker = world.checker();
            checker.over(number);
            match error {
                AcquireError::Deadlock { cycle, .. } => checker.deadlock_reported(number, &cycle),
                AcquireError::WaitTimeout { .. } if wait >= patience && world.profile.nesting == 0 => {
                    checker.fail(format!("call {number} waited {wait:?} in vain"));
                }
                _ => {}
            }
            None
        }
    }
}

/// Releases through any instance, repeatedly until it is confirmed.
async fn release(world: &World, mine: Mine) {
    world.checker().released(mine.number);
    for _ in 0..20 {
        let inst = world.random.index(world.managers.len());
        match world.managers[inst].release(&mine.resource, &mine.token).await {
            Ok(_) => return,
            Err(crate::manager::types::ReleaseError::Gone(_)) => return,
            Err(_) => world.clock.sleep(world.random.ms(5, 50)).await,
        }
    }
    world.checker().fail(format!("{} cannot be released", mine.resource));
}
