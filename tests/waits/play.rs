//! One seed from its first caller to its verdict: instances, callers that wait, hang up, hold, forget
//! and nest, and the watchman who looks for sleepers. Knows the managers by what callers can do.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::task::LocalSet;

use super::clock::{Dice, Paused};
use super::ledger::Ledger;
use super::nodes::{Link, Server, Weather};
use crate::manager::queue::WaitLimits;
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

pub(super) type Manager = LockManager<Link, Paused, Dice>;

/// Longest time between two looks of a waiter who is told nothing.
const POLL: Duration = Duration::from_secs(1);
const LOCK_DELAY: Duration = Duration::from_millis(1_000);
const NODE_TIMEOUT: Duration = Duration::from_millis(50);
/// Nobody sleeps for longer beside a free lock: some rounds that were split or timed out with the
/// pauses between them, or the poll where nothing is heard.
const SLEEP_MOST: Duration = Duration::from_millis(1_000);
/// No deadlock stands for longer where nothing is lost; some polls more where the nodes are slow to confirm it.
const CIRCLE_MOST: Duration = Duration::from_secs(2);
/// How long most are willing to wait: far longer than anybody has to.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same where notices are lost: each hand-over to another instance may take a lease's time.
const PATIENCE_UNTOLD: Duration = Duration::from_secs(300);
/// Rounds of each caller.
const TURNS: u64 = 6;
/// Longer than any run: who still has a lease at the end should not.
const LONG_MS: u64 = 240_000;
/// Where notices are lost the end of a lease, as it was last heard of, is what wakes.
const SHORT_MS: u64 = 4_000;

/// The world of one seed.
#[derive(Debug, Clone, Copy)]
struct Profile {
    nodes: usize,
    instances: usize,
    callers: usize,
    resources: usize,
    weather: Weather,
    /// Lines for notices break now and then.
    breaks: bool,
    /// One of several nodes dies.
    dies: bool,
    /// Percent.
    hang_ups: u64,
    /// Percent of callers that take a second lock under the first, and have names.
    nesting: u64,
}

impl Profile {
    fn of(dice: &Dice) -> Self {
        let latency_ms = [1, 2, 8][dice.index(3)];
        Self {
            nodes: [1, 3, 3, 5][dice.index(4)],
            instances: [1, 2, 3][dice.index(3)],
            callers: [2, 4, 7][dice.index(3)],
            resources: [1, 2, 3][dice.index(3)],
            weather: Weather {
                latency_ms,
                spikes: [0, 0, 5][dice.index(3)],
                blind: [0, 0, 20][dice.index(3)],
                lost: [0, 0, 0, 40, 100][dice.index(5)],
                notice_ms: [1, 3, 30][dice.index(3)],
            },
            breaks: dice.chance(30),
            dies: dice.chance(30),
            hang_ups: [0, 10, 40][dice.index(3)],
            nesting: [0, 0, 60][dice.index(3)],
        }
    }
}

/// What came of a seed.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) violation: Option<String>,
    pub(super) grants: u64,
    pub(super) deadlocks: u64,
    /// A digest of all that happened, and when.
    pub(super) history: u64,
}

/// What all of a run share.
struct World {
    clock: Paused,
    dice: Dice,
    profile: Profile,
    servers: Vec<Arc<Server>>,
    managers: Vec<Manager>,
    resources: Vec<ResourceName>,
    ledger: Mutex<Ledger>,
}

impl World {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no panic")
    }

    fn failed(&self) -> bool {
        self.ledger().violation.is_some()
    }

    /// A quorum of the nodes has no lease of it.
    fn is_free(&self, resource: &ResourceName) -> bool {
        let free = self.servers.iter().filter(|s| !s.is_dead() && s.holder(resource).is_none()).count();
        free >= quorum_of(self.servers.len())
    }
}

/// Plays `seed`, with `bug` planted.
pub(super) fn play(seed: u64, bug: Option<Mutant>) -> Outcome {
    let before = mutant::plant(bug, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let outcome = runtime.expect("a runtime").block_on(LocalSet::new().run_until(run(seed)));
    mutant::restore(before);
    outcome
}

/// What all instances of a world agree on.
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
    dice: &Dice,
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
    let engine = Redlock::new(own, clock, dice.clone(), settings);
    let warden = NodeMonitor::new(engine.clone());
    if is_first {
        clock.sleep(Duration::from_millis(50)).await;
        while warden.init().await.is_err() {
            clock.sleep(Duration::from_millis(50)).await;
        }
    }
    warden.probe_round().await;
    let manager = LockManager::new(engine, warden.clone(), limits, Duration::from_secs(2));
    tokio::task::spawn_local(async move { warden.watch().await });
    manager
}

async fn run(seed: u64) -> Outcome {
    let (clock, dice) = (Paused::start(), Dice::new(seed));
    let profile = Profile::of(&dice);
    let servers: Vec<_> = (0..profile.nodes).map(|_| Server::new(clock, &dice, profile.weather)).collect();
    let params = params();
    let (mut managers, mut links) = (Vec::new(), Vec::new());
    for inst in 0..profile.instances {
        let own: Vec<_> = servers.iter().enumerate().map(|(i, s)| Link::open(i, s, &params)).collect();
        links.extend(own.iter().cloned());
        let limits = WaitLimits { per_resource: 100, total: 200, detects_deadlocks: true };
        managers.push(instance(own, clock, &dice, &params, limits, inst == 0).await);
    }
    let resources = (0..profile.resources).map(|i| ResourceName::parse(&format!("r{i}")).expect("valid")).collect();
    let ledger = Mutex::new(Ledger::new(clock));
    let world = Rc::new(World { clock, dice: dice.clone(), profile, servers, managers, resources, ledger });
    tokio::task::spawn_local(watch(Rc::clone(&world)));
    if profile.breaks {
        tokio::task::spawn_local(weather(Rc::clone(&world), links));
    }
    if profile.dies && profile.nodes > 1 {
        let (clock, server, when) = (clock, Arc::clone(&world.servers[dice.index(profile.nodes)]), dice.ms(50, 1_000));
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
    let ledger = world.ledger();
    let violation = ledger.violation.clone().map(|why| format!("{why} ({profile:?})"));
    Outcome { violation, grants: ledger.grants, deadlocks: ledger.deadlocks, history: ledger.history() }
}

/// Everybody has gone: nothing is left of anybody.
async fn end(world: &World) {
    world.clock.sleep(Duration::from_secs(5)).await;
    let mut ledger = world.ledger();
    for resource in &world.resources {
        if let Some(token) = world.servers.iter().filter(|s| !s.is_dead()).find_map(|s| s.holder(resource)) {
            ledger.fail(format!("{resource} is still held by {token:?}, and nobody is there"));
        }
    }
    for (inst, manager) in world.managers.iter().enumerate() {
        let waiters = manager.gauges().waiters;
        if waiters > 0 {
            ledger.fail(format!("{waiters} seats are still taken on i{inst}"));
        }
    }
}

/// Looks for sleepers beside free locks, and for circles that nobody tells.
async fn watch(world: Rc<World>) {
    const EVERY: Duration = Duration::from_millis(20);
    // Where notices are lost, a waiter may sleep until the end that it knows of: never for good.
    let hears = world.profile.weather.lost == 0;
    let (mut free_for, mut circle_for) = (vec![Duration::ZERO; world.resources.len()], Duration::ZERO);
    loop {
        world.clock.sleep(EVERY).await;
        let mut ledger = world.ledger();
        for (resource, free_for) in world.resources.iter().zip(&mut free_for) {
            let sleeper = ledger.waiting(resource).filter(|_| hears && world.is_free(resource)).map(|(n, _)| n);
            *free_for = if sleeper.is_some() { *free_for + EVERY } else { Duration::ZERO };
            if let Some(number) =
                sleeper.filter(|_| *free_for > SLEEP_MOST + if world.profile.breaks { POLL } else { Duration::ZERO })
            {
                ledger.fail(format!("call {number} sleeps beside {resource}, which is free"));
            }
        }
        let circle_most = CIRCLE_MOST + POLL * if world.profile.weather.blind > 0 { 6 } else { 1 };
        let circle = ledger.circle(CIRCLE_MOST * 2).filter(|_| hears);
        circle_for = if circle.is_some() { circle_for + EVERY } else { Duration::ZERO };
        if let Some(circle) = circle.filter(|_| circle_for > circle_most) {
            ledger.fail(format!("nobody tells the deadlock of {circle}"));
        }
    }
}

/// Lines for notices break, one or all of an instance's.
async fn weather(world: Rc<World>, links: Vec<Arc<Link>>) {
    loop {
        world.clock.sleep(world.dice.ms(50, 2_000)).await;
        let pause = world.dice.ms(5, 800);
        let all = world.dice.chance(40);
        let one = world.dice.index(links.len());
        let inst = one / world.profile.nodes;
        let broken = links.iter().enumerate().filter(|(i, _)| *i == one || (all && i / world.profile.nodes == inst));
        let broken: Vec<_> = broken.map(|(_, link)| Arc::clone(link)).collect();
        futures_util::future::join_all(broken.iter().map(|link| link.break_line(pause))).await;
    }
}

/// A lease as its holder knows it.
struct Mine {
    number: u64,
    resource: ResourceName,
    token: Token,
}

async fn caller(world: Rc<World>, inst: usize, name: String) {
    let dice = world.dice.clone();
    for _ in 0..TURNS {
        world.clock.sleep(dice.ms(0, 60)).await;
        if world.failed() {
            return;
        }
        let nests = dice.chance(world.profile.nesting) && world.resources.len() > 1;
        let first = dice.index(world.resources.len());
        // Names only for those who nest: an owner is one caller.
        let owner = if world.profile.nesting > 0 { name.as_str() } else { "" };
        let Some(mine) = acquire(&world, inst, first, owner, nests).await else { continue };
        world.clock.sleep(dice.ms(0, 30)).await;
        if nests {
            let second = (first + 1 + dice.index(world.resources.len() - 1)) % world.resources.len();
            if let Some(under) = acquire(&world, inst, second, owner, true).await {
                world.clock.sleep(dice.ms(0, 10)).await;
                release(&world, under).await;
            }
        }
        release(&world, mine).await;
    }
}

async fn acquire(world: &World, inst: usize, which: usize, owner: &str, stays: bool) -> Option<Mine> {
    let (dice, resource) = (&world.dice, world.resources[which].clone());
    let hangs_up = !stays && dice.chance(world.profile.hang_ups);
    let patience = if world.profile.weather.lost > 0 { PATIENCE_UNTOLD } else { PATIENCE };
    let wait = if dice.chance(10) { dice.ms(1, 300) } else { patience };
    let ttl = Ttl::from_ms(if world.profile.weather.lost > 0 { SHORT_MS } else { LONG_MS }).expect("in range");
    let labels = Labels { owner: owner.to_owned(), ..Labels::default() };
    let request = AcquireRequest { resource: resource.clone(), ttl, wait, labels, token: None };
    let number = world.ledger().call(inst, &resource, owner, wait);
    let hangs_up_after = if hangs_up { dice.ms(0, 80) } else { Duration::MAX };
    let acquiring = world.managers[inst].acquire(request);
    let outcome = tokio::select! {
        biased;
        outcome = acquiring => outcome,
        () = world.clock.sleep(hangs_up_after.min(Duration::from_secs(600))) => {
            world.ledger().over(number);
            return None;
        }
    };
    // Known to be gone before the answer is written.
    let outcome = if !stays && dice.chance(world.profile.hang_ups / 4) {
        outcome.map(drop).map(|()| None)
    } else {
        outcome.map(Some)
    };
    match outcome.and_then(|granted| granted.map(PendingGrant::commit).transpose()) {
        Ok(Some(lease)) => {
            world.ledger().granted(number, lease.deadline.since(world.clock.now()));
            Some(Mine { number, resource, token: lease.token })
        }
        Ok(None) => {
            world.ledger().over(number);
            None
        }
        Err(error) => {
            let mut ledger = world.ledger();
            ledger.over(number);
            match error {
                AcquireError::Deadlock { cycle, .. } => ledger.told_deadlock(number, &cycle),
                AcquireError::WaitTimeout { .. } if wait >= patience && world.profile.nesting == 0 => {
                    ledger.fail(format!("call {number} waited {wait:?} in vain"));
                }
                _ => {}
            }
            None
        }
    }
}

/// Through whichever instance, again and again until it is known to be done.
async fn release(world: &World, mine: Mine) {
    world.ledger().released(mine.number);
    for _ in 0..20 {
        let inst = world.dice.index(world.managers.len());
        match world.managers[inst].release(&mine.resource, &mine.token).await {
            Ok(()) => return,
            Err(crate::manager::types::ReleaseError::Gone(_)) => return,
            Err(_) => world.clock.sleep(world.dice.ms(5, 50)).await,
        }
    }
    world.ledger().fail(format!("{} cannot be released", mine.resource));
}
