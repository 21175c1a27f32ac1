//! State of the simulated servers (memory, clock) and instances (connections, clocks, parameters). Their
//! behaviour is in the other files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::network::Link;
use super::notices::Feed;
use super::profile::{GUARD_MS, Profile, TEMPLATES, TERMS_MS, Variant};
use super::rng::Rng;
use super::world::Us;
use crate::protocol::keys::KeyTemplate;
use crate::protocol::reference::ReferenceNode;
use crate::protocol::{ClusterName, ClusterParams, NodeResult, Terms, View, quarantine_for};
use crate::redlock::clock::BootTime;
use crate::types::{AttemptId, ResourceName, TokenHash};

/// One simulated server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) machine: ReferenceNode,
    /// What its log had when it was last synced.
    pub(super) disk: ReferenceNode,
    /// A copy of its disk from some seconds ago.
    pub(super) copy: ReferenceNode,
    /// Each write is synced before its reply.
    pub(super) syncs: bool,
    /// The latest clock of this node that each instance's process has received in answers to its probes.
    pub(super) received: BTreeMap<(usize, u32), u64>,
    pub(super) up: bool,
    /// It is down, and starts without its data.
    pub(super) is_to_forget: bool,
    /// Number of its processes so far.
    pub(super) epoch: u32,
    /// Number of its failovers so far.
    pub(super) failovers: u32,
    /// When each instance's probe last witnessed here that its clock is right.
    pub(super) witnessed: BTreeMap<usize, Us>,
    pub(super) ppm: i64,
    /// Its clock minus an honest one, microseconds.
    pub(super) offset_us: i64,
    /// The part of `offset_us` that a fault added.
    pub(super) stepped_us: i64,
    pub(super) frozen_until: Us,
    pub(super) slow_until: Us,
    /// When it last lost memory, or its clock was last stepped.
    pub(super) disturbed: Option<Us>,
    /// When it last lost memory.
    pub(super) forgot: Option<Us>,
    /// Start of its last process without a vote, or the last large step of its clock.
    pub(super) doubted: Option<Us>,
    /// Answers since its clock was stepped that reported the step to an instance.
    pub(super) noticed: u32,
    /// Attempts that were cancelled and tokens that were released here; forgotten when it is disturbed.
    pub(super) cancelled: BTreeSet<(ResourceName, String)>,
    pub(super) ended: BTreeSet<(ResourceName, TokenHash)>,
}

/// A call of an instance that waits for its answer.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) node: usize,
    pub(super) connection: usize,
    pub(super) waker: Waker,
    pub(super) answer: Option<NodeResult>,
}

/// One simulated instance, as the world sees it.
#[derive(Debug)]
pub(super) struct Inst {
    /// Number of its processes so far.
    pub(super) life: u32,
    pub(super) alive: bool,
    /// When its process began.
    pub(super) began: Us,
    /// Its cluster clock follows the nodes.
    pub(super) has_time: bool,
    /// It is stopped until then.
    pub(super) local: Us,
    /// The time of its last request, minus the world's: what it takes for the nodes' time. Microseconds.
    pub(super) reckoned_us: Option<i64>,
    /// The server to which it connects under the first node's name.
    pub(super) first_server: usize,
    /// The view of its last request.
    pub(super) asks_in: Arc<View>,
    /// The servers that its process has asked, one bit each.
    pub(super) asked: u64,
    /// For how long its boot clock stood still.
    pub(super) boot_lost: Us,
    pub(super) ppm: i64,
    /// Its wall clock minus an honest one, microseconds.
    pub(super) wall_off_us: i64,
    pub(super) links: Vec<Vec<Link>>,
    /// Connections for notices, by node.
    pub(super) feeds: BTreeMap<usize, Feed>,
    pub(super) calls: BTreeMap<u64, Call>,
    pub(super) timers: BTreeMap<u64, Waker>,
    pub(super) params: Arc<ClusterParams>,
    pub(super) max_ttl_ms: u64,
    /// Client requests in progress.
    pub(super) serving: BTreeSet<u64>,
    /// Those that wait in queues, in the order in which they entered, with the end of the wait.
    pub(super) waiting: BTreeMap<u64, Waiting>,
    /// Places in queues that are kept for callers who hung up.
    pub(super) kept: BTreeMap<TokenHash, u64>,
}

/// A request in a queue.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) req: u64,
    pub(super) resource: ResourceName,
    /// Of a set: the other resources.
    pub(super) others: Vec<ResourceName>,
    pub(super) token: TokenHash,
    /// When it took its place, for the first time or again.
    pub(super) entered: BootTime,
    /// When its wait is over.
    pub(super) until: Us,
    /// Its token was asked with before: it may have a lease, which it gets again regardless of who waits.
    pub(super) is_replay: bool,
}

impl Waiting {
    /// Whether both stand in the queue of a resource.
    pub(super) fn meets(&self, other: &Self) -> bool {
        let all = |w: &Self| std::iter::once(w.resource.clone()).chain(w.others.clone()).collect::<Vec<_>>();
        let names = all(other);
        all(self).iter().any(|name| names.contains(name))
    }
}

impl Server {
    pub(super) fn new(index: usize, profile: &Profile, r: &mut Rng) -> Self {
        let machine = ReferenceNode::new(&run_id(index, 0, 0));
        Self {
            disk: machine.clone(),
            copy: machine.clone(),
            syncs: true,
            received: BTreeMap::new(),
            machine,
            up: true,
            is_to_forget: false,
            epoch: 0,
            failovers: 0,
            witnessed: BTreeMap::new(),
            ppm: r.either_way(profile.rate_ppm),
            offset_us: r.either_way(profile.skew_ms) * 1_000,
            stepped_us: 0,
            frozen_until: 0,
            slow_until: 0,
            disturbed: None,
            forgot: None,
            doubted: None,
            noticed: 0,
            cancelled: BTreeSet::new(),
            ended: BTreeSet::new(),
        }
    }

    /// Forgets what would prove that a late command was accepted wrongly: it may be accepted now.
    pub(super) fn disturb(&mut self, now: Us) {
        self.disturbed = Some(now);
        self.cancelled.clear();
        self.ended.clear();
    }

    /// An operator empties it.
    pub(super) fn empty(&mut self, now: Us) {
        self.machine.flush_all();
        self.disturb(now);
        (self.forgot, self.doubted) = (Some(now), Some(now));
    }

    /// Its clock was stepped by more than the guard.
    pub(super) fn is_far_off(&self) -> bool {
        self.stepped_us.unsigned_abs() > GUARD_MS * 1_000
    }

    /// An attempt was cancelled here.
    pub(super) fn was_cancelled(&self, resource: &ResourceName, attempt: &AttemptId) -> bool {
        self.cancelled.contains(&(resource.clone(), attempt.as_str().to_owned()))
    }
}

/// The run of a node's `epoch`-th process after so many failovers.
pub(super) fn run_id(node: usize, epoch: u32, failovers: u32) -> String {
    format!("{node:020x}{epoch:020x}{failovers:08x}")
}

/// The terms from milliseconds.
pub(super) fn terms_of(ms: [u64; 3]) -> Terms {
    let [guard, lock_delay, fence_ttl] = ms.map(Duration::from_millis);
    Terms { guard, lock_delay, fence_ttl, template: None }
}

/// All terms that an instance may be configured with.
pub(super) fn all_terms() -> impl Iterator<Item = Terms> {
    let of = |template: &'static str| {
        TERMS_MS.map(|ms| Terms { template: KeyTemplate::parse(template).ok(), ..terms_of(ms) })
    };
    TEMPLATES.into_iter().flat_map(of)
}

/// The name of the cluster that an instance with these servers and terms declares.
pub(super) fn declared(profile: &Profile, servers: &[usize], terms: &Terms) -> ClusterName {
    let names: Vec<String> = servers.iter().map(|server| profile.name_of(*server).to_string()).collect();
    ClusterName::declared(&names.iter().map(String::as_str).collect::<Vec<_>>(), terms, TEMPLATES[0])
}

impl Inst {
    pub(super) fn new(index: usize, profile: &Profile, r: &mut Rng) -> Self {
        let is_variant = index + 1 == profile.instances;
        let cluster = if is_variant && profile.variant == Variant::OtherCluster { "other" } else { "ours" };
        let longer = is_variant && profile.variant == Variant::LongerTtl;
        let max_ttl_ms = profile.max_ttl_ms * if longer { 2 } else { 1 };
        let terms = terms_of(TERMS_MS[0]);
        let Terms { guard, lock_delay, fence_ttl, .. } = terms;
        let params = ClusterParams {
            cluster: if profile.reterms {
                declared(profile, &(0..profile.nodes).collect::<Vec<_>>(), &terms)
            } else {
                cluster.into()
            },
            guard,
            lock_delay,
            quarantine: if profile.heals_only {
                Duration::from_hours(1)
            } else {
                quarantine_for(Duration::from_millis(max_ttl_ms), lock_delay, guard)
            },
            fence_ttl,
            template: KeyTemplate::default(),
        };
        let hours = if profile.one_host { 0 } else { r.pick(&[0, 0, 1, -5]) };
        Self {
            life: 0,
            alive: false,
            began: 0,
            has_time: false,
            local: 0,
            boot_lost: 0,
            reckoned_us: None,
            first_server: 0,
            asks_in: Arc::default(),
            asked: 0,
            ppm: r.either_way(profile.rate_ppm),
            wall_off_us: hours * 3_600_000_000 + r.either_way(profile.skew_ms) * 1_000,
            links: (0..profile.servers())
                .map(|_| (0..profile.connections).map(|_| Link::default()).collect())
                .collect(),
            feeds: BTreeMap::new(),
            calls: BTreeMap::new(),
            timers: BTreeMap::new(),
            params: Arc::new(params),
            max_ttl_ms,
            serving: BTreeSet::new(),
            waiting: BTreeMap::new(),
            kept: BTreeMap::new(),
        }
    }
}
