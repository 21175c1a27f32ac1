//! The simulated world: one virtual time, a heap of events, and the state of nodes, instances and
//! clients. The network, faults, clients and checks are further methods in files of their own.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::actors::{Inst, Server};
use super::clients::{Answer, Client, ClientRequest};
use super::coverage::{CoverageCounts, HardState};
use super::faults::Heal;
use super::invariants::InvariantChecker;
use super::liveness::LivenessCheck;
use super::network::Packet;
use super::profile::{FAULTS_BEGIN_MS, LONGER_MS, Profile, Variant};
use super::queue_check::QueueCheck;
use super::rng::Rng;
use super::sets::{self, Sets};
use crate::protocol::{NodeResult, Terms, UnreachableKind};
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::Notice;
use crate::redlock::subscriptions::Subscriptions;
use crate::types::{ResourceName, TokenHash};

/// Virtual time since the world began, in microseconds.
pub(super) type Us = u64;
/// Microseconds in a millisecond.
pub(super) const MS: Us = 1_000;
/// Microseconds in a second.
pub(super) const SEC: Us = 1_000_000;
/// What honest wall clocks read when the world begins, microseconds since 1970.
pub(super) const EPOCH_US: u64 = 1_700_000_000_000_000;
/// At most so long does a node wait that the others fill: its predecessor's notes run out, and changes displace each other.
const HEALING: Duration = Duration::from_secs(12);
/// What boot clocks read then.
const UPTIME_US: u64 = 1_000 * SEC;

/// The world, shared by the simulated processes.
pub(super) type Shared = Arc<Mutex<World>>;

/// An event.
#[derive(Debug)]
pub(super) enum Event {
    /// A request reaches a node.
    Packet(Box<Packet>),
    /// An answer reaches an instance over this connection.
    Reply {
        inst: usize,
        life: u32,
        node: usize,
        connection: usize,
        generation: u32,
        call: u64,
        answer: Box<NodeResult>,
    },
    /// A notice of an ended lease reaches an instance.
    Notice { inst: usize, life: u32, node: usize, generation: u32, resource: ResourceName, notice: Notice },
    /// A call finds its connection broken.
    Fail { inst: usize, life: u32, call: u64, kind: UnreachableKind },
    /// A sleep ends.
    Timer { inst: usize, life: u32, id: u64 },
    /// An instance tries to connect.
    Connect { inst: usize, life: u32, node: usize, connection: usize, generation: u32 },
    /// A client's request reaches an instance.
    Arrive { req: u64 },
    /// A client hangs up.
    Gone { req: u64 },
    /// An instance's answer reaches a client.
    Answered { req: u64, answer: Answer },
    /// A client acts.
    Client { client: usize, generation: u64 },
    /// A client with a present or past lease writes to the guarded store.
    Write { client: usize, token: u64 },
    /// A client of sets acts.
    SetClient { client: usize, generation: u64 },
    /// A fault happens.
    Fault,
    /// A fault heals.
    Heal(Heal),
    /// Every node's log is synced.
    Fsync,
    /// An operator corrects the configurations, if the last step of all clocks was handled.
    CorrectOnceSettled,
    /// See [`World::correct_configurations`].
    CorrectAgain,
    /// All faults heal.
    Calm,
    /// The nodes are scanned for leases that should be gone.
    Scan,
    /// The check of a resource acts.
    CheckLiveness { resource: usize },
    /// The check of a resource's queues acts.
    CheckQueue { resource: usize },
    /// It is looked at whether anybody sleeps beside a free resource.
    WatchQueue { resource: usize },
    /// The connection for notices of an instance to a node breaks.
    BreakFeed { inst: usize, node: usize },
    /// An operator says to an instance that a node has ended.
    Forget { inst: usize, node: usize },
    /// An operator changes the list of nodes at an instance.
    Relist { inst: usize },
    /// An operator replaces the first node's server at an instance.
    Replace { inst: usize },
    /// An operator changes the terms at an instance.
    Reterm { inst: usize },
    /// The run is over.
    Done,
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
    /// Pass a notice on to an instance.
    Notice(usize, Arc<Subscriptions>, ResourceName, Notice),
    /// Drop all tasks of an instance.
    Kill(usize),
    /// Start an instance.
    Boot(usize),
    /// See [`World::correct_again`].
    CorrectAgain,
    /// An operator says to an instance that a node has ended.
    Forget(usize, usize),
    /// An operator adds a server to the list at an instance, or removes it.
    Relist { inst: usize, server: usize, is_added: bool },
    /// The operator gives up a replacement at an instance.
    EndReplacement(usize),
    /// An operator lets this server take its name's place, at an instance.
    Replace { inst: usize, server: usize },
    /// An operator changes the terms at an instance.
    Reterm { inst: usize, terms: Terms },
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

/// The simulated world.
pub(super) struct World {
    pub(super) now: Us,
    order: u64,
    heap: BinaryHeap<Entry>,
    pub(super) profile: Profile,
    pub(super) servers: Vec<Server>,
    pub(super) insts: Vec<Inst>,
    pub(super) clients: Vec<Client>,
    pub(super) liveness: Vec<LivenessCheck>,
    pub(super) queue_checks: Vec<QueueCheck>,
    pub(super) requests: BTreeMap<u64, ClientRequest>,
    pub(super) resources: Vec<ResourceName>,
    pub(super) checker: InvariantChecker,
    pub(super) coverage: CoverageCounts,
    pub(super) net_rng: Rng,
    pub(super) fault_rng: Rng,
    pub(super) client_rng: Rng,
    pub(super) set_rng: Rng,
    pub(super) sets: Sets,
    stall_rng: Rng,
    pub(super) ids: u64,
    pub(super) wakes: Vec<Waker>,
    pub(super) todo: Vec<Todo>,
    /// The lists that changes left, as far as they were answered.
    pub(super) answered_lists: Vec<Vec<usize>>,
    /// Sum of the steps of all clocks of the one host. Microseconds.
    pub(super) joint_us: i64,
    /// No instance is stopped or dies before this time.
    pub(super) settled_until: Us,
    /// Nodes whose clocks were stepped together with all others, and that were not yet ordered into quarantine.
    pub(super) unnoticed: BTreeSet<usize>,
    /// Instances at which a replacement is under way.
    pub(super) replacing: BTreeSet<usize>,
    /// The instance of each change of the list or of terms that is under way.
    pub(super) changing: Vec<usize>,
    /// Tokens with which an acquire was asked for.
    pub(super) asked_with: BTreeSet<TokenHash>,
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
            liveness: (0..profile.resources).map(|_| LivenessCheck::default()).collect(),
            queue_checks: (0..profile.resources).map(|_| QueueCheck::default()).collect(),
            requests: BTreeMap::new(),
            resources: resources.collect(),
            checker: InvariantChecker::default(),
            coverage: CoverageCounts::default(),
            net_rng: Rng::new(seed, 3),
            fault_rng: Rng::new(seed, 4),
            client_rng: Rng::new(seed, 5),
            set_rng: sets::rng(seed),
            sets: Sets::default(),
            stall_rng: Rng::new(seed, 6),
            ids: 0,
            wakes: Vec::new(),
            todo: Vec::new(),
            answered_lists: Vec::new(),
            joint_us: 0,
            settled_until: 0,
            unnoticed: BTreeSet::new(),
            replacing: BTreeSet::new(),
            changing: Vec::new(),
            asked_with: BTreeSet::new(),
            calm: false,
            done: false,
            violation: None,
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            tracing,
            profile,
        };
        world.sets = Sets::new(world.profile.has_sets, &world.resources);
        world.begin();
        world
    }

    fn begin(&mut self) {
        for inst in 0..self.insts.len() {
            // An instance with another node list, or another server under a name, starts after the cluster was initialised.
            let is_variant = matches!(self.profile.variant, Variant::OtherCluster | Variant::SecondServer);
            let is_other = is_variant && inst + 1 == self.insts.len();
            let at = if is_other { FAULTS_BEGIN_MS * MS } else { 0 };
            self.at(at, Event::Start { inst });
        }
        let opens = if self.profile.initialised { FAULTS_BEGIN_MS } else { FAULTS_BEGIN_MS + self.quarantine_ms() };
        for client in 0..self.clients.len() {
            let at = (opens + self.client_rng.below(300)) * MS;
            self.at(at, Event::Client { client, generation: 0 });
        }
        self.begin_sets(opens);
        let first = FAULTS_BEGIN_MS + self.fault_rng.below(1_000);
        self.at(first * MS, Event::Fault);
        self.at(self.profile.calm_ms * MS, Event::Calm);
        self.at(SEC, Event::Fsync);
        if self.profile.relists {
            let at = FAULTS_BEGIN_MS + self.fault_rng.below(2_000);
            self.at(at * MS, Event::Relist { inst: 0 });
        }
        if self.profile.replaces {
            let at = FAULTS_BEGIN_MS + self.fault_rng.below(2_000);
            self.at(at * MS, Event::Replace { inst: 0 });
        }
        if self.profile.reterms {
            let at = FAULTS_BEGIN_MS + self.fault_rng.below(2_000);
            self.at(at * MS, Event::Reterm { inst: 0 });
        }
    }

    /// The longest quarantine of any instance; or how long a healing may take.
    pub(super) fn quarantine_ms(&self) -> u64 {
        let longest = self.insts.iter().map(|i| i.params.quarantine).max().unwrap_or_default();
        let longest = if self.profile.heals_only { HEALING } else { longest };
        let longer_ms = if self.profile.reterms { LONGER_MS } else { 0 };
        u64::try_from(longest.as_millis()).expect("short") + longer_ms
    }

    /// Schedules an event.
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

    /// Whether another event is due at the same time and drawn to be handled together with this one.
    pub(super) fn joins_next(&mut self) -> bool {
        self.heap.peek().is_some_and(|e| e.at == self.now) && self.net_rng.chance(50)
    }

    /// A unique number.
    pub(super) fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Ends the run with a violation; the first one counts.
    pub(super) fn fail(&mut self, text: String) {
        let at = self.now / MS;
        self.violation.get_or_insert_with(|| format!("at {at} ms: {text}"));
    }

    /// Prints a line of the trace, if tracing.
    #[expect(clippy::print_stdout, reason = "a trace is the output of a replay")]
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

    /// Hash of everything that happened.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// The time at which an instance continues: later than now while it is stopped.
    pub(super) fn local(&self, inst: usize) -> Us {
        self.insts[inst].local.max(self.now)
    }

    /// The instance may be stopped between a grant and its answer, more often than elsewhere.
    pub(super) fn stall_before_answer(&mut self, inst: usize) {
        if self.profile.stall_ppm > 0 && self.stall_rng.chance(1) {
            let usual = std::mem::replace(&mut self.profile.stall_ppm, 1_000_000);
            self.stall(inst);
            self.profile.stall_ppm = usual;
        }
    }

    /// The instance may be stopped here.
    pub(super) fn stall(&mut self, inst: usize) {
        let ppm = self.profile.stall_ppm;
        let is_stopped = self.insts[inst].local > self.now;
        let may_stop = !self.calm && !is_stopped && self.is_settled();
        if ppm > 0 && may_stop && self.now > FAULTS_BEGIN_MS * MS && self.stall_rng.below(1_000_000) < ppm {
            let stop = self.stall_rng.range(20, 3_500) * MS;
            self.insts[inst].local = self.local(inst) + stop;
            self.coverage.count(HardState::StalledMidway);
            self.trace(|| format!("i{inst} is stopped midway for {} ms", stop / MS));
        }
    }

    /// The instance's boot clock at `at`.
    pub(super) fn boot(&self, inst: usize, at: Us) -> BootTime {
        let inst = &self.insts[inst];
        BootTime::from_nanos((UPTIME_US + scaled(at, inst.ppm)).saturating_sub(inst.boot_lost) * 1_000)
    }

    /// When the instance's boot clock reads `reading`, rounded up.
    pub(super) fn when(&self, inst: usize, reading: BootTime) -> Us {
        let elapsed = i128::from((reading.as_micros() + self.insts[inst].boot_lost).saturating_sub(UPTIME_US));
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

    /// A timer is due: wakes its task.
    pub(super) fn fire(&mut self, inst: usize, id: u64) {
        if let Some(waker) = self.insts[inst].timers.remove(&id) {
            self.wakes.push(waker);
            self.todo.push(Todo::Run(inst));
        }
    }

    /// Removes an instance's process; its requests stay unanswered.
    pub(super) fn remove_process(&mut self, inst: usize) -> Vec<Waker> {
        let i = &mut self.insts[inst];
        i.alive = false;
        i.life += 1;
        i.asked = 0;
        i.serving.clear();
        i.waiting.clear();
        i.kept.clear();
        i.feeds.clear();
        let calls = std::mem::take(&mut i.calls).into_values().map(|c| c.waker);
        let timers = std::mem::take(&mut i.timers).into_values();
        self.replacing.remove(&inst);
        self.changing.retain(|of| *of != inst);
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
