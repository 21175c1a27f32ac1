//! What a seed draws: number of nodes, which faults and how often, clock errors. Each fault kind is in a
//! profile or not (swarm testing), so that common ones do not hide rare ones.

use std::collections::BTreeMap;

use super::rng::Rng;
use super::suite::{LATER_REGRESSIONS, REGRESSIONS};
use crate::types::{NodeId, PermitLimit, TokenHash, WantedMode};

/// Clock offset, or age of a request, beyond which a node does not vote: the shipped default.
pub(super) const GUARD_MS: u64 = 500;
/// The shipped default.
pub(super) const LOCK_DELAY_MS: u64 = 1_000;
/// Lifetime of unused fence counters: short, so that they do expire.
pub(super) const FENCE_TTL_MS: u64 = 9_000;
/// Terms that an operator puts in force: guard, lock delay and fence TTL in milliseconds. The first are the configured ones.
pub(super) const TERMS_MS: [[u64; 3]; 4] = [
    [GUARD_MS, LOCK_DELAY_MS, FENCE_TTL_MS],
    [600, 2_500, FENCE_TTL_MS],
    [600, 1_200, 3_000],
    [450, LOCK_DELAY_MS, 700],
];
/// Key templates that an operator puts in force. The first is the configured one.
pub(super) const TEMPLATES: [&str; 2] = ["{resource}", "lock:{resource}"];
/// By how much a quarantine with any of them is at most longer.
pub(super) const LONGER_MS: u64 = 2_000;
/// Faults begin when the cluster has been initialised.
pub(super) const FAULTS_BEGIN_MS: u64 = 600;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A node's process dies and comes back with nothing.
    RestartEmpty,
    /// A node's process dies and comes back with all it knew.
    RestartKept,
    /// A node's process dies and comes back with what it knew up to a second ago.
    RestartTail,
    /// All nodes die at once, and come back with or without memory.
    RestartAll,
    /// Of durable nodes: all die at once, and come back with their data.
    PowerCut,
    /// Of durable nodes: one dies, and comes back with an old copy of its disk; sometimes all do.
    OldCopy,
    /// Of durable nodes: one no longer syncs each write; later it dies, or syncs again.
    PolicyOff,
    /// `FLUSHALL` on a node.
    Flush,
    /// A node's clock is stepped by seconds or hours; it is corrected later.
    NodeStep,
    /// A node's clock is stepped by less than the guard.
    NodeJolt,
    /// All clocks of the one host are stepped together.
    JointStep,
    /// An instance's wall clock is stepped by up to hours.
    WallStep,
    /// A node is stopped for a while.
    Freeze,
    /// An instance is stopped for a while; its boot clock runs on, as in suspend.
    Pause,
    /// An instance is stopped for a while, and its boot clock with it, as a virtual machine is. While it serves nothing, since
    /// its callers' clocks run on.
    BootStops,
    /// A node becomes a replica of one that missed its last second, and a master again. Its process lives on, and everybody
    /// notices while it refuses writes.
    Failover,
    /// An instance dies and is started again.
    Crash,
    /// Nothing, or nothing one way, passes between an instance and some nodes.
    Cut,
    /// Connections to a node break; what was in flight is lost, or arrives late.
    Break,
    /// A node answers slowly.
    Slow,
    /// A node that runs out of memory evicts a key: its marker, a tombstone, or a lease that a quorum of others has. (An eviction that
    /// takes a lease from its quorum is outside of the guarantee until a probe notices it.)
    Evict,
}

impl Fault {
    /// The node has no vote for a whole quarantine.
    pub(super) fn costs_the_vote(self) -> bool {
        use Fault::{
            Evict, Failover, Flush, JointStep, NodeStep, OldCopy, RestartAll, RestartEmpty, RestartKept, RestartTail,
        };
        let restarts = matches!(self, OldCopy | RestartEmpty | RestartKept | RestartTail | RestartAll);
        restarts || matches!(self, Evict | Failover | Flush | NodeStep | JointStep)
    }
}

/// Every kind but [`Fault::JointStep`], which is for one-host worlds, and those that came later.
const KINDS: [Fault; 16] = [
    Fault::RestartEmpty,
    Fault::RestartKept,
    Fault::RestartTail,
    Fault::RestartAll,
    Fault::Flush,
    Fault::NodeStep,
    Fault::NodeJolt,
    Fault::WallStep,
    Fault::Freeze,
    Fault::Pause,
    Fault::BootStops,
    Fault::Failover,
    Fault::Crash,
    Fault::Cut,
    Fault::Break,
    Fault::Slow,
];

/// How the last instance differs from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    /// Not at all.
    No,
    /// Another node list, one node further, hence another cluster fingerprint: it must get no votes.
    OtherCluster,
    /// Twice the longest TTL, so a longer quarantine.
    LongerTtl,
    /// The name of the first node leads it to another server, which is blank.
    SecondServer,
}

/// How the clients of a seed share resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Not at all.
    None,
    /// Most leases are shared.
    Readers,
    /// Most are permits.
    Permits,
    /// All modes, and permits of two limits.
    Mixed,
}

/// The world of one seed.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    /// N.
    pub(super) nodes: usize,
    /// Instances, each with its own engine and monitor.
    pub(super) instances: usize,
    /// Clients.
    pub(super) clients: usize,
    /// Resources.
    pub(super) resources: usize,
    /// Connections per instance and node.
    pub(super) connections: usize,
    /// The longest TTL.
    pub(super) max_ttl_ms: u64,
    /// One node's answer.
    pub(super) node_timeout_ms: u64,
    /// Ordinary one-way latency.
    pub(super) latency_us: u64,
    /// Share of messages that take up to 80 ms more. Percent.
    pub(super) spikes: u64,
    /// Largest clock-rate error; below half a percent, so that two clocks differ by less than one.
    pub(super) rate_ppm: i64,
    /// Largest standing clock offset of a node.
    pub(super) skew_ms: i64,
    /// What goes wrong.
    pub(super) faults: Vec<Fault>,
    /// Longest time between two faults.
    pub(super) gap_ms: u64,
    /// The scripts read the run id themselves, instead of the hand-shake.
    pub(super) identity_script: bool,
    /// Fences come from the counters alone: their minimum, the request's time, hides faults of the fence protocol.
    pub(super) counters_only: bool,
    /// All share a machine, hence a clock.
    pub(super) one_host: bool,
    /// The cluster is initialised at the start; otherwise its nodes vote after their first quarantine.
    pub(super) initialised: bool,
    /// The last instance.
    pub(super) variant: Variant,
    /// Share of an instance's clock readings and sends at which it is stopped. Per million.
    pub(super) stall_ppm: u64,
    /// When the faults end and everything heals.
    pub(super) calm_ms: u64,
    /// Share of acquires that wait. Percent.
    pub(super) waits: u64,
    /// Share of notices that are lost before the calm. Percent.
    pub(super) lost_notices: u64,
    /// Quarantines outlast the run: only what the other nodes know lets a node vote again.
    pub(super) heals_only: bool,
    /// As the faults end, the first node ends for good, and an operator says so to the first instance.
    pub(super) one_ends: bool,
    /// Instances keep some of the leases.
    pub(super) keeps: bool,
    /// An operator adds nodes to the list and removes others, until the calm. There is a server more.
    pub(super) relists: bool,
    /// An operator replaces the first node's server by another one, there and back, until the calm. Both servers live.
    pub(super) replaces: bool,
    /// The last instance, which is of another cluster, does not start any more.
    pub(super) other_is_stopped: bool,
    /// An operator changes the terms, until the calm.
    pub(super) reterms: bool,
    /// The list with which instances start from now on.
    pub(super) corrected: Option<Vec<usize>>,
    /// Half of the instances that start again have the list that the last change left.
    pub(super) lists_follow: bool,
    /// The list with which an instance was started, if not with its first one.
    pub(super) configured: BTreeMap<usize, Vec<usize>>,
    /// How clients share resources.
    pub(super) sharing: Sharing,
    /// Some clients acquire several resources at once.
    pub(super) has_sets: bool,
    /// Sets are of the mode of their token, as other leases are.
    pub(super) shares_sets: bool,
    /// The instances that ask a quorum of the nodes first, one bit each.
    pub(super) thrifty: u64,
    /// The nodes are durable.
    pub(super) durable: bool,
}

impl Profile {
    /// How many servers there are: the nodes, and one more where an instance has another list.
    pub(super) fn servers(&self) -> usize {
        let has_more = self.relists || self.variant == Variant::OtherCluster;
        self.nodes + usize::from(has_more) + usize::from(self.has_second_server())
    }

    /// Two servers may answer under the first node's name.
    fn has_second_server(&self) -> bool {
        self.replaces || self.variant == Variant::SecondServer
    }

    /// The second server of the first node's name: the last one.
    pub(super) fn second_server(&self) -> Option<usize> {
        self.has_second_server().then(|| self.servers() - 1)
    }

    /// What the client with this token asks for.
    pub(super) fn mode_of(&self, token: &TokenHash) -> WantedMode {
        let drawn = token.as_str().as_bytes().get(2).map_or(0, |digit| char::from(*digit).to_digit(16).unwrap_or(0));
        let permit = |limit| WantedMode::Permit { limit: PermitLimit::new(limit).expect("in range") };
        match (self.sharing, drawn) {
            (Sharing::Readers, 4..) | (Sharing::Mixed, 4..9) => WantedMode::Shared,
            (Sharing::Permits, 3..) | (Sharing::Mixed, 9..14) => permit(2),
            (Sharing::Permits, 2) | (Sharing::Mixed, 14) => permit(3),
            _ => WantedMode::Exclusive,
        }
    }

    /// The servers on an instance's node list.
    pub(super) fn list_of(&self, inst: usize) -> Vec<usize> {
        if let Some(list) = &self.corrected {
            return list.clone();
        }
        if let Some(list) = self.configured.get(&inst) {
            return list.clone();
        }
        match self.variant {
            Variant::OtherCluster if inst + 1 == self.instances => (1..self.nodes + 1).collect(),
            Variant::SecondServer if inst + 1 == self.instances => {
                self.second_server().into_iter().chain(1..self.nodes).collect()
            }
            _ => (0..self.nodes).collect(),
        }
    }

    /// The servers that an instance may use: those of its configured list, and those that are added.
    pub(super) fn reach_of(&self, inst: usize) -> Vec<usize> {
        if self.relists || self.replaces { (0..self.servers()).collect() } else { self.list_of(inst) }
    }

    /// The length of the shortest list.
    pub(super) fn shortest_list(&self) -> usize {
        if self.relists { 1 } else { self.nodes }
    }

    /// What instances call a server.
    pub(super) fn name_of(&self, server: usize) -> NodeId {
        let named_as = if self.second_server() == Some(server) { 0 } else { server };
        NodeId::parse(&format!("n{named_as}")).expect("valid")
    }

    /// Draws the profile of `seed`.
    pub(super) fn of(seed: u64) -> Self {
        let mut r = Rng::new(seed, 1);
        let one_host = r.chance(20);
        let mut faults: Vec<Fault> = Vec::new();
        for kind in KINDS {
            if r.chance(45) {
                faults.push(kind);
            }
        }
        if one_host {
            faults.retain(|f| !matches!(f, Fault::NodeStep | Fault::NodeJolt | Fault::WallStep));
            faults.push(Fault::JointStep);
        }
        let mut profile = Self {
            nodes: r.pick(&[1, 3, 3, 3, 3, 3, 3, 5, 5, 5]),
            instances: r.pick(&[2, 3, 3]),
            clients: r.pick(&[2, 3, 4, 5]),
            resources: r.pick(&[1, 1, 2]),
            connections: r.pick(&[1, 1, 2]),
            max_ttl_ms: r.pick(&[700, 1_500, 3_000, 4_000, 8_000]),
            node_timeout_ms: r.pick(&[30, 50, 100]),
            latency_us: r.pick(&[300, 1_500, 6_000]),
            spikes: r.pick(&[0, 1, 5]),
            rate_ppm: r.pick(&[0, 200, 4_500]),
            skew_ms: r.pick(&[0, 20, 50, 200]),
            gap_ms: r.pick(&[400, 1_200, 2_500]),
            identity_script: r.chance(20),
            counters_only: r.chance(30),
            one_host,
            initialised: !r.chance(4),
            variant: r.pick(&[
                Variant::No,
                Variant::No,
                Variant::No,
                Variant::No,
                Variant::No,
                Variant::No,
                Variant::OtherCluster,
                Variant::LongerTtl,
            ]),
            stall_ppm: r.pick(&[0, 0, 300, 2_000]),
            calm_ms: r.range(6_000, 14_000),
            waits: r.pick(&[10, 50, 90]),
            lost_notices: r.pick(&[0, 0, 10, 50]),
            heals_only: false,
            one_ends: false,
            keeps: false,
            relists: false,
            replaces: false,
            other_is_stopped: false,
            reterms: false,
            corrected: Option::None,
            lists_follow: false,
            configured: BTreeMap::new(),
            sharing: Sharing::None,
            has_sets: false,
            shares_sets: false,
            thrifty: 0,
            durable: false,
            faults,
        };
        // One node has no others that could heal it.
        let can_heal = profile.nodes > 1 && profile.initialised && profile.variant != Variant::OtherCluster;
        profile.heals_only = r.chance(30) && can_heal;
        if profile.heals_only {
            // A majority that forgets waits, also one that an instance quarantines at its word alone.
            use Fault::{BootStops, JointStep, NodeStep, RestartAll};
            profile.faults.retain(|f| !matches!(f, RestartAll | JointStep | NodeStep | BootStops));
        }
        if profile.variant == Variant::No && profile.nodes > 1 && profile.initialised && r.chance(12) {
            profile.variant = Variant::SecondServer;
        }
        let is_plain = matches!(profile.variant, Variant::No | Variant::LongerTtl);
        profile.one_ends = r.chance(10) && profile.nodes > 1 && is_plain && !profile.heals_only;
        if profile.nodes == 1 && profile.variant == Variant::OtherCluster {
            profile.variant = Variant::No; // two lists of one node have none in common
        }
        profile.keeps = r.chance(25);
        // Of streams of their own, so that the rest of a seed stays as it was.
        use Sharing::{Mixed, None, Permits, Readers};
        profile.sharing = Rng::new(seed, 9).pick(&[None, None, None, Readers, Readers, Permits, Permits, Mixed]);
        let may_relist = is_plain && profile.initialised && !profile.heals_only && !profile.one_ends;
        profile.relists = may_relist && profile.variant != Variant::SecondServer && Rng::new(seed, 10).chance(25);
        profile.has_sets = r.chance(50);
        // Not drawn, so that other seeds stay as they are.
        profile.shares_sets = profile.has_sets && profile.sharing == Readers && seed % 4 == 3;
        if REGRESSIONS.contains(&seed) { profile } else { profile.with_later_faults(seed) }
    }

    /// The faults that came after the first findings, and the combinations that those seeds do not have.
    fn with_later_faults(mut self, seed: u64) -> Self {
        let mut r = Rng::new(seed, 20);
        if r.chance(20) && self.nodes > 1 {
            self.faults.push(Fault::Evict);
        }
        let is_plain = matches!(self.variant, Variant::No | Variant::LongerTtl);
        let may_change = self.initialised && !self.one_ends && !self.relists;
        let (relists, replaces) = (r.chance(8), r.chance(12));
        // Where only others heal, or where instances differ.
        self.relists |= relists && may_change && (self.heals_only || self.variant == Variant::SecondServer);
        self.replaces = replaces && may_change && !self.relists && is_plain && self.nodes > 1;
        self.lists_follow = self.relists && is_plain && !LATER_REGRESSIONS.contains(&seed);
        let may_reterm = is_plain && self.initialised && !self.one_ends && !self.heals_only && !self.replaces;
        self.reterms = may_reterm && Rng::new(seed, 21).chance(20);
        let mut r = Rng::new(seed, 16);
        if r.chance(25) && !LATER_REGRESSIONS.contains(&seed) {
            self.thrifty = r.range(1, (1 << self.instances) - 1);
        }
        // Where a majority forgot beside two servers of one name, only an operator ends the waiting (seed 1524).
        let may_be_cut = is_plain && self.initialised && !self.heals_only && !self.replaces;
        self.durable = may_be_cut && Rng::new(seed, 11).chance(25);
        if self.durable {
            // An eviction that no probe saw is outside of the guarantee, and the restarted process does not show it.
            self.faults.retain(|fault| *fault != Fault::Evict);
            self.faults.extend([Fault::PowerCut, Fault::OldCopy, Fault::PolicyOff, Fault::RestartKept]);
        }
        self
    }
}
