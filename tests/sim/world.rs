//! The simulated world: one virtual time, a heap of events, nodes with their clocks and memories,
//! instances with theirs. Owns what happens when; the rules of the network, of faults, of clients
//! and of the checks are in files of their own, as further methods. Knows nothing of the engine.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::audit::Auditor;
use super::beings::{Inst, Server};
use super::clients::{Ask, Client, Resp};
use super::faults::Heal;
use super::ledger::Ledger;
use super::links::Parcel;
use super::profile::{FAULTS_BEGIN_MS, Odd, Profile};
use super::rng::Rng;
use super::sometimes::{Sometimes, Tally};
use crate::protocol::{NodeResult, UnreachableKind};
use crate::redlock::clock::BootTime;
use crate::types::ResourceName;

/// Virtual time since the world began, in microseconds.
pub(super) type Us = u64;
/// Microseconds in a millisecond.
pub(super) const MS: Us = 1_000;
/// Microseconds in a second.
pub(super) const SEC: Us = 1_000_000;
/// What honest wall clocks read when the world begins, microseconds since 1970.
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// What boot clocks read then.
const UPTIME_US: u64 = 1_000 * SEC;

/// The world, as its inhabitants share it.
pub(super) type Shared = Arc<Mutex<World>>;

/// Something due.
#[derive(Debug)]
pub(super) enum Event {
    /// A request reaches a node.
    Parcel(Box<Parcel>),
    /// An answer reaches an instance over this connection.
    Reply { inst: usize, life: u32, node: usize, lane: usize, generation: u32, call: u64, answer: Box<NodeResult> },
    /// A call finds its connection broken.
    Fail { inst: usize, life: u32, call: u64, kind: UnreachableKind },
    /// A sleep ends.
    Timer { inst: usize, life: u32, id: u64 },
    /// An instance tries to connect.
    Connect { inst: usize, life: u32, node: usize, lane: usize, generation: u32 },
    /// A client's request reaches an instance.
    Arrive { req: u64 },
    /// A client hangs up.
    Gone { req: u64 },
    /// An instance's answer reaches a client.
    Answered { req: u64, resp: Resp },
    /// A client acts.
    Client { client: usize, generation: u64 },
    /// A holder, or one who was, writes to the guarded store.
    Write { client: usize, token: u64 },
    /// Something goes wrong.
    Fault,
    /// Something is set right.
    Heal(Heal),
    /// Every node's log is synced.
    Fsync,
    /// Everything heals.
    Calm,
    /// The nodes are searched for what should be gone.
    Scan,
    /// The auditor of a resource acts.
    Audit { resource: usize },
    /// An instance starts.
    Start { inst: usize },
}

/// What the loop has to do outside of the world's lock.
#[derive(Debug)]
pub(super) enum Todo {
    /// Let an instance's tasks run.
    Run(usize),
    /// Serve a request.
    Spawn(usize, u64),
    /// Its caller is gone.
    Abort(usize, u64),
    /// Drop all tasks of an instance.
    Kill(usize),
    /// Start an instance.
    Boot(usize),
}

struct Entry {
    at: Us,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order)) // the heap gives its greatest
    }
}

/// See the module.
pub(super) struct World {
    pub(super) now: Us,
    order: u64,
    heap: BinaryHeap<Entry>,
    pub(super) profile: Profile,
    pub(super) servers: Vec<Server>,
    pub(super) insts: Vec<Inst>,
    pub(super) clients: Vec<Client>,
    pub(super) auditors: Vec<Auditor>,
    pub(super) asks: BTreeMap<u64, Ask>,
    pub(super) resources: Vec<ResourceName>,
    pub(super) ledger: Ledger,
    pub(super) seen: Tally,
    pub(super) net: Rng,
    pub(super) luck: Rng,
    pub(super) crowd: Rng,
    stalls: Rng,
    pub(super) ids: u64,
    pub(super) wakes: Vec<Waker>,
    pub(super) todo: Vec<Todo>,
    /// All clocks of the one host were stepped by so much. Microseconds.
    pub(super) joint_us: i64,
    /// No instance is stopped or dies before.
    pub(super) settled_until: Us,
    /// Nodes whose clocks were stepped together with all others, and that were not yet told to quarantine themselves.
    pub(super) unnoticed: BTreeSet<usize>,
    pub(super) calm: bool,
    pub(super) done: bool,
    pub(super) violation: Option<String>,
    hash: u64,
    pub(super) events: u64,
    tracing: bool,
}

impl World {
    /// The world of `profile`, before anything happened.
    pub(super) fn new(seed: u64, profile: Profile, tracing: bool) -> Self {
        let mut r = Rng::new(seed, 2);
        let servers = (0..profile.servers()).map(|i| Server::new(i, &profile, &mut r)).collect();
        let insts = (0..profile.instances).map(|i| Inst::new(i, &profile, &mut r)).collect();
        let resources = (0..profile.resources).map(|i| ResourceName::parse(&format!("r{i}")).expect("valid"));
        let mut world = Self {
            now: 0,
            order: 0,
            heap: BinaryHeap::new(),
            servers,
            insts,
            clients: (0..profile.clients).map(|_| Client::new(&mut r)).collect(),
            auditors: (0..profile.resources).map(|_| Auditor::default()).collect(),
            asks: BTreeMap::new(),
            resources: resources.collect(),
            ledger: Ledger::default(),
            seen: Tally::default(),
            net: Rng::new(seed, 3),
            luck: Rng::new(seed, 4),
            crowd: Rng::new(seed, 5),
            stalls: Rng::new(seed, 6),
            ids: 0,
            wakes: Vec::new(),
            todo: Vec::new(),
            joint_us: 0,
            settled_until: 0,
            unnoticed: BTreeSet::new(),
            calm: false,
            done: false,
            violation: None,
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            tracing,
            profile,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for inst in 0..self.insts.len() {
            // One over another node list comes to a cluster that has been declared.
            let is_other = self.profile.odd == Odd::OtherCluster && inst + 1 == self.insts.len();
            let at = if is_other { FAULTS_BEGIN_MS * MS } else { 0 };
            self.at(at, Event::Start { inst });
        }
        let opens = if self.profile.declared { FAULTS_BEGIN_MS } else { FAULTS_BEGIN_MS + self.quarantine_ms() };
        for client in 0..self.clients.len() {
            let at = (opens + self.crowd.below(300)) * MS;
            self.at(at, Event::Client { client, generation: 0 });
        }
        let first = FAULTS_BEGIN_MS + self.luck.below(1_000);
        self.at(first * MS, Event::Fault);
        self.at(self.profile.calm_ms * MS, Event::Calm);
        self.at(SEC, Event::Fsync);
    }

    /// The longest quarantine of any instance.
    pub(super) fn quarantine_ms(&self) -> u64 {
        let longest = self.insts.iter().map(|i| i.params.quarantine).max().unwrap_or_default();
        u64::try_from(longest.as_millis()).expect("short")
    }

    /// Puts an event in its place.
    pub(super) fn at(&mut self, at: Us, event: Event) {
        self.order += 1;
        self.heap.push(Entry { at: at.max(self.now), order: self.order, event });
    }

    /// The next event, with time moved to it.
    pub(super) fn next(&mut self) -> Option<Event> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        self.events += 1;
        Some(entry.event)
    }

    /// Whether something else is due at this very instant, and the draw says to take it together
    /// with what came before.
    pub(super) fn joins_next(&mut self) -> bool {
        self.heap.peek().is_some_and(|e| e.at == self.now) && self.net.chance(50)
    }

    /// A number that no other thing has.
    pub(super) fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Ends the run with a violation; the first one counts.
    pub(super) fn fail(&mut self, text: String) {
        let at = self.now / MS;
        self.violation.get_or_insert_with(|| format!("at {at} ms: {text}"));
    }

    /// A line of the trace, if somebody reads it.
    #[expect(clippy::print_stdout, reason = "a trace is for whoever replays a seed")]
    pub(super) fn trace(&self, line: impl FnOnce() -> String) {
        if self.tracing {
            let now = self.now;
            println!("{:>6}.{:03} {}", now / MS, now % MS, line());
        }
    }

    /// Adds to the hash of the history.
    pub(super) fn mix(&mut self, words: &[u64]) {
        for word in words.iter().chain([&self.now]) {
            self.hash = (self.hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
    }

    /// Of everything that happened.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// What an instance takes for the present instant: it may have been stopped in the midst of its work.
    pub(super) fn local(&self, inst: usize) -> Us {
        self.insts[inst].local.max(self.now)
    }

    /// The instance is stopped just here more often than elsewhere: between a grant and its answer.
    pub(super) fn stall_before_answer(&mut self, inst: usize) {
        if self.profile.stall_ppm > 0 && self.stalls.chance(1) {
            let usual = std::mem::replace(&mut self.profile.stall_ppm, 1_000_000);
            self.stall(inst);
            self.profile.stall_ppm = usual;
        }
    }

    /// The instance may be stopped just here.
    pub(super) fn stall(&mut self, inst: usize) {
        let ppm = self.profile.stall_ppm;
        let is_stopped = self.insts[inst].local > self.now;
        let may_stop = !self.calm && !is_stopped && self.is_settled();
        if ppm > 0 && may_stop && self.now > FAULTS_BEGIN_MS * MS && self.stalls.below(1_000_000) < ppm {
            let stop = self.stalls.range(20, 3_500) * MS;
            self.insts[inst].local = self.local(inst) + stop;
            self.seen.count(Sometimes::StalledMidway);
            self.trace(|| format!("i{inst} is stopped midway for {} ms", stop / MS));
        }
    }

    /// The instance's boot clock at `at`.
    pub(super) fn boot(&self, inst: usize, at: Us) -> BootTime {
        BootTime::from_nanos((UPTIME_US + scaled(at, self.insts[inst].ppm)) * 1_000)
    }

    /// When the instance's boot clock reads `reading`, rounded up.
    pub(super) fn when(&self, inst: usize, reading: BootTime) -> Us {
        let elapsed = i128::from(reading.as_micros().saturating_sub(UPTIME_US));
        let true_us = elapsed * 1_000_000 / i128::from(1_000_000 + self.insts[inst].ppm);
        u64::try_from(true_us).expect("not before the beginning") + 2
    }

    pub(super) fn wall_ms(&self, inst: usize) -> u64 {
        let boot_us = scaled(self.local(inst), self.insts[inst].ppm);
        (EPOCH_US + boot_us).saturating_add_signed(self.insts[inst].wall_off_us) / 1_000
    }

    /// The node's clock, microseconds since 1970.
    pub(super) fn node_clock(&self, node: usize) -> u64 {
        let server = &self.servers[node];
        (EPOCH_US + scaled(self.now, server.ppm)).saturating_add_signed(server.offset_us)
    }

    /// A due timer: its sleeper is to be woken.
    pub(super) fn fire(&mut self, inst: usize, id: u64) {
        if let Some(waker) = self.insts[inst].timers.remove(&id) {
            self.wakes.push(waker);
            self.todo.push(Todo::Run(inst));
        }
    }

    /// Forgets an instance's process; what it was asked stays unanswered.
    pub(super) fn bury(&mut self, inst: usize) -> Vec<Waker> {
        let i = &mut self.insts[inst];
        i.alive = false;
        i.life += 1;
        i.serving.clear();
        let calls = std::mem::take(&mut i.calls).into_values().map(|c| c.waker);
        let timers = std::mem::take(&mut i.timers).into_values();
        calls.chain(timers).collect()
    }
}

/// `t` as a clock with this rate error counts it.
fn scaled(t: Us, ppm: i64) -> u64 {
    let error = i64::try_from(t).expect("short") * ppm / 1_000_000;
    t.saturating_add_signed(error)
}

/// Locks the world; a panic elsewhere has already failed the test.
pub(super) fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}
