//! Faults, and how they heal. They happen at random times until the calm; each heals by itself, and the
//! calm heals all.

use std::sync::Arc;

use super::actors::{Inst, Server, run_id};
use super::coverage::HardState;
use super::operator::{FOLLOWS, SETTLES};
use super::profile::{Fault, GUARD_MS, Variant};
use super::world::{Event, MS, SEC, Todo, Us, World};
use crate::protocol::View;
use crate::protocol::reference::{EvictedKey, ReferenceNode};
use crate::redlock::quorum::quorum_of;

/// What a restarted node remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Nothing,
    All,
    /// What its log had when it was last synced.
    Tail,
    /// An old copy of its disk.
    Copy,
}

/// A fault heals.
#[derive(Debug, Clone, Copy)]
pub(super) enum Heal {
    /// A node's process is started.
    NodeUp { node: usize, memory: Memory },
    /// A node's clock is set back.
    NodeClock { node: usize },
    /// An instance's wall clock is set back.
    Wall { inst: usize, by_us: i64 },
    /// A connection's health check has failed because nothing passes: it is replaced.
    Connection { inst: usize, node: usize, connection: usize },
}

/// From the beginning of a cut until a health check has failed: at least the interval of the checks and a timeout.
const CHECK_FAILS: Us = 1_500 * MS;

/// Time for an instance's node monitor to measure the nodes' clocks, or to detect that they were stepped.
const SETTLING: Us = 2_500 * MS;
/// Time for an instance that is alone in its opinion of the time to take the nodes', after the faults.
const FOLLOWED: Us = 5_000 * MS;
/// Number of answers that must have reported a node's clock as wrong before it is set back: a step that
/// no instance detects is excluded from the guarantee.
const NOTICED: u32 = 1;

impl World {
    /// One fault, and the time of the next.
    pub(super) fn fault(&mut self) {
        if self.calm {
            return;
        }
        if !self.profile.faults.is_empty() {
            let kinds = self.profile.faults.clone();
            let fault = self.fault_rng.pick(&kinds);
            let (node, inst) = (self.fault_rng.index(self.servers.len()), self.fault_rng.index(self.insts.len()));
            let is_beside_replacement = self.profile.heals_only && !self.replacing.is_empty();
            let is_kept = is_beside_replacement || self.is_stopped(node) || self.is_needed_for_terms(node);
            if fault.costs_the_vote() && (!self.may_lose_another(node) || is_kept) {
                return self.next_fault();
            }
            self.mix(&[fault as u64, node as u64, inst as u64]);
            self.trace(|| format!("FAULT {fault:?} (n{node}, i{inst})"));
            self.strike(fault, node, inst);
        }
        self.next_fault();
    }

    /// An operator has stopped it: no node of the configured list is left in the present one. An instance that did not follow would take
    /// such a node, once it forgot, for its cluster (docs/safety.md; seed 82974).
    fn is_stopped(&self, node: usize) -> bool {
        self.profile.relists
            && node < self.profile.nodes
            && !(0..self.profile.nodes).any(|server| self.is_listed(server))
    }

    /// Without it, no more than a minority of the nodes would show the latest terms: an instance that is started then, with others,
    /// would not take them (docs/views.md, *Changing the terms*; seed 23950).
    fn is_needed_for_terms(&self, node: usize) -> bool {
        self.are_terms_of_few(Some(node))
    }

    /// Whether no more than a minority of the nodes, without this one, shows the latest terms.
    pub(super) fn are_terms_of_few(&self, without: Option<usize>) -> bool {
        let views: Vec<_> = self.servers.iter().map(|s| s.machine.view()).collect();
        let highest = views.iter().max_by_key(|view| view.id).expect("a server");
        let Some(terms) = highest.terms() else { return false };
        let size = highest.list.as_ref().map_or(self.profile.nodes, |list| list.names.len());
        let has_them = |i: usize| !self.servers[i].is_to_forget && views[i].terms() == Some(terms);
        let others = (0..views.len()).filter(|other| Some(*other) != without && has_them(*other)).count();
        others <= size - quorum_of(size)
    }

    pub(super) fn highest_view(&self) -> Arc<View> {
        self.servers.iter().map(|s| s.machine.view()).max_by_key(|view| view.id).expect("a server")
    }

    /// Whether it is of the list of the highest view.
    pub(super) fn is_listed(&self, server: usize) -> bool {
        let highest = self.highest_view();
        match &highest.list {
            Some(list) => list.names.contains(&self.profile.name_of(server)),
            None => server < self.profile.nodes || self.profile.second_server() == Some(server),
        }
    }

    /// Usually a quorum keeps its vote, so that leases are granted at all.
    fn may_lose_another(&mut self, node: usize) -> bool {
        let quarantine = self.quarantine_ms() * MS;
        let now = self.now;
        let is_listed = |server: usize| !self.profile.relists || self.is_listed(server);
        let listed = (0..self.servers.len())
            .filter(|server| Some(*server) != self.profile.second_server() && is_listed(*server));
        let least = quorum_of(if self.profile.heals_only { listed.count() } else { self.profile.nodes });
        let in_doubt = |at: Option<Us>| at.is_some_and(|at| at + quarantine + SEC > now);
        // One that votes in a lower view may not be named by the highest.
        let highest = self.servers.iter().map(|s| s.machine.view().id).max();
        let votes = |s: &Server| {
            s.machine.is_active() && !s.machine.has_unseen_eviction() && Some(s.machine.view().id) == highest
        };
        let must_vote = self.profile.heals_only || self.profile.replaces;
        let is_sure = |s: &Server| if must_vote { votes(s) } else { !in_doubt(s.doubted) };
        let others = self.servers.iter().enumerate().filter(|(i, s)| *i != node && s.up && is_sure(s)).count();
        others >= least || !self.profile.heals_only && self.fault_rng.chance(12)
    }

    fn next_fault(&mut self) {
        let gap = self.fault_rng.range(60, self.profile.gap_ms) * MS;
        self.at(self.now + gap, Event::Fault);
    }

    fn strike(&mut self, fault: Fault, node: usize, inst: usize) {
        let now = self.now;
        match fault {
            Fault::RestartEmpty => self.kill_node(node, Memory::Nothing),
            Fault::RestartKept => self.kill_node(node, Memory::All),
            Fault::RestartTail => self.kill_node(node, Memory::Tail),
            Fault::RestartAll => {
                if self.fault_rng.chance(30) {
                    let memory = self.fault_rng.pick(&[Memory::Nothing, Memory::All, Memory::Tail]);
                    (0..self.servers.len()).for_each(|n| self.kill_node(n, memory));
                    self.coverage.count(HardState::WholeClusterForgot);
                }
            }
            Fault::PowerCut => {
                (0..self.servers.len()).for_each(|n| self.kill_node(n, Memory::All));
                self.coverage.count(HardState::WholeClusterForgot);
            }
            Fault::OldCopy if self.fault_rng.chance(25) => {
                (0..self.servers.len()).for_each(|n| self.kill_node(n, Memory::Copy));
            }
            Fault::OldCopy => self.kill_node(node, Memory::Copy),
            Fault::PolicyOff if self.servers[node].syncs => self.servers[node].syncs = false,
            Fault::PolicyOff if self.fault_rng.chance(70) => self.kill_node(node, Memory::Tail),
            Fault::PolicyOff => self.servers[node].syncs = true,
            Fault::Flush => {
                self.servers[node].machine.flush_all();
                self.servers[node].disturb(now);
                (self.servers[node].forgot, self.servers[node].doubted) = (Some(now), Some(now));
            }
            Fault::Evict => self.evict(node),
            Fault::NodeStep => self.step_node(node),
            Fault::NodeJolt => self.jolt_node(node),
            Fault::JointStep => self.step_host(),
            Fault::WallStep => {
                let by_us = self.fault_rng.pick(&[-3_600, -20, -2, 2, 20, 3_600]) * 1_000_000;
                self.insts[inst].wall_off_us += by_us;
                let back = now + self.fault_rng.range(500, 6_000) * MS;
                self.at(back, Event::Heal(Heal::Wall { inst, by_us }));
            }
            Fault::Freeze => {
                let until = now + self.fault_rng.range(50, 3_000) * MS;
                self.servers[node].frozen_until = until;
            }
            Fault::Pause | Fault::BootStops | Fault::Crash if !self.is_settled() => {}
            Fault::Pause => {
                let until = now + self.fault_rng.range(50, 4_500) * MS;
                let inst = &mut self.insts[inst];
                inst.local = until.max(inst.local);
                if now < inst.began + SETTLING {
                    // It may not have probed the nodes yet.
                    inst.began = inst.local;
                }
            }
            Fault::BootStops => self.stop_boot_clock(inst),
            Fault::Failover => self.fail_over(node),
            Fault::Crash => self.crash(inst),
            Fault::Cut => self.cut(inst),
            Fault::Break => {
                for i in 0..self.insts.len() {
                    for connection in 0..self.profile.connections {
                        if self.fault_rng.chance(50) {
                            let back = self.fault_rng.range(1, 200) * MS;
                            self.break_link(i, node, connection, back);
                        }
                    }
                }
            }
            Fault::Slow => self.servers[node].slow_until = now + self.fault_rng.range(200, 2_500) * MS,
        }
    }

    fn stop_boot_clock(&mut self, inst: usize) {
        let now = self.now;
        let span = self.fault_rng.range(600, 4_500) * MS;
        let inst = &mut self.insts[inst];
        if inst.alive && inst.serving.is_empty() && inst.local <= now && !self.profile.keeps {
            inst.local = now + span;
            inst.boot_lost += span;
            self.coverage.count(HardState::BootClockStopped);
        }
    }

    fn fail_over(&mut self, node: usize) {
        let (now, clock) = (self.now, self.node_clock(node));
        if !self.servers[node].up {
            return;
        }
        for inst in 0..self.insts.len() {
            for connection in 0..self.profile.connections {
                let back = self.fault_rng.range(5, 100) * MS;
                self.break_link(inst, node, connection, back);
            }
        }
        let server = &mut self.servers[node];
        server.failovers += 1;
        let run = run_id(node, server.epoch, server.failovers);
        let earlier = server.disk.clone();
        server.machine.fail_over(&earlier, &run);
        server.machine.expire(clock);
        server.disturb(now);
        (server.forgot, server.doubted) = (Some(now), Some(now));
        self.checker.lost_tail.insert(node);
        self.coverage.count(HardState::FailedOver);
    }

    fn kill_node(&mut self, node: usize, memory: Memory) {
        if !self.servers[node].up {
            return;
        }
        self.servers[node].up = false;
        self.servers[node].is_to_forget = matches!(memory, Memory::Nothing);
        for inst in 0..self.insts.len() {
            for connection in 0..self.profile.connections {
                let back = self.fault_rng.range(5, 100) * MS;
                self.break_link(inst, node, connection, back);
            }
        }
        let up = self.now + self.fault_rng.range(20, 1_500) * MS;
        self.at(up, Event::Heal(Heal::NodeUp { node, memory }));
    }

    /// One key. Not a lease that fewer than a quorum of others have with as much time.
    fn evict(&mut self, node: usize) {
        if !self.servers[node].up {
            return;
        }
        let quorum = quorum_of(self.servers.len());
        let others: Vec<usize> = (0..self.servers.len()).filter(|other| *other != node).collect();
        let mut keys: Vec<_> =
            self.servers[node].ended.iter().map(|(of, by)| EvictedKey::Ended(of.clone(), by.clone())).collect();
        for resource in self.resources.iter().cloned().chain(self.sets.own_name()) {
            let leases = self.leases_on(node, &resource);
            let have_it =
                |token| others.iter().filter(|other| self.lease_on(**other, &resource, token).is_some()).count();
            if !leases.is_empty() && leases.iter().all(|(record, _)| have_it(&record.token) >= quorum) {
                keys.push(EvictedKey::Lock(resource));
            }
        }
        keys.push(EvictedKey::Marker);
        let (now, clock, drawn) = (self.now, self.node_clock(node), self.fault_rng.index(keys.len()));
        let key = keys.swap_remove(drawn);
        self.trace(|| format!("n{node} evicts {key:?}"));
        let server = &mut self.servers[node];
        server.machine.evict(clock, &key);
        server.disturb(now);
        server.doubted = Some(now);
        match key {
            EvictedKey::Marker => server.forgot = Some(now),
            EvictedKey::Lock(_) => self.coverage.count(HardState::LeaseEvicted),
            EvictedKey::Counter(_) | EvictedKey::Ended(..) => {}
        }
        self.checker.lost_tail.insert(node);
    }

    fn step_node(&mut self, node: usize) {
        if self.servers[node].stepped_us != 0 {
            return;
        }
        let by_s = self.fault_rng.pick(&[-3_600, -20, -3, 1, 3, 20, 3_600]);
        let by_us = by_s * 1_000_000 + self.fault_rng.either_way(400_000);
        let stepped = self.servers.iter().filter(|s| s.stepped_us != 0).count() + 1;
        if stepped > self.profile.nodes / 2 {
            // A majority: an instance that starts would take it as the time, as below.
            if !self.can_notice() {
                return;
            }
            self.settled_until = self.now + SETTLING;
        }
        self.step_clock(node, by_us);
        self.checker.clocks_stepped = true;
        self.servers[node].doubted = Some(self.now);
        let back = self.now + self.fault_rng.range(300, 6_000) * MS;
        self.at(back, Event::Heal(Heal::NodeClock { node }));
    }

    fn jolt_node(&mut self, node: usize) {
        // Standing skew and jolt together stay within the guard, as is assumed.
        let max_us =
            480_000 - self.profile.skew_ms * 1_000 - i64::try_from(self.now / 1_000_000).expect("short") * 10_000;
        // Two of them at a time, one ahead and one back later, are a jump of the median: where only others heal, a majority
        // that is quarantined for it waits.
        let is_other_off = self.servers.iter().any(|server| server.stepped_us != 0) && self.profile.heals_only;
        if self.servers[node].stepped_us == 0 && max_us > 0 && !is_other_off {
            let by_us = self.fault_rng.either_way(max_us);
            self.step_clock(node, by_us);
            self.servers[node].noticed = NOTICED;
            let back = self.now + self.fault_rng.range(300, 3_000) * MS;
            self.at(back, Event::Heal(Heal::NodeClock { node }));
        }
    }

    /// Whether a step of all clocks would be detected, as the guarantee requires: all instances have
    /// measured the nodes' clocks, have been up for some probe rounds since the last step, and stay up.
    fn can_notice(&self) -> bool {
        let now = self.now;
        let has_settled = |i: &Inst| i.alive && i.has_time && i.local <= now && now >= i.began + SETTLING;
        self.is_settled() && self.insts.iter().all(has_settled)
    }

    /// Some instances have taken this node's stepped clock for the nodes' time. Until all have, and can notice when it changes
    /// again, its return is a step that one of them would not see.
    fn is_followed_by_some(&self, node: usize) -> bool {
        let follows = self.who_follow(node);
        follows.contains(&true) && (follows.contains(&false) || !self.can_notice())
    }

    /// By instance that uses the node: whether it has taken the node's clock for the nodes' time.
    fn who_follow(&self, node: usize) -> Vec<bool> {
        let ahead_us = self.node_clock(node).cast_signed() - self.now.cast_signed();
        let follows = |inst: &Inst| inst.reckoned_us.map(|us| (us - ahead_us).unsigned_abs() <= GUARD_MS * 1_000);
        let insts = self.insts.iter().enumerate().filter(|(i, _)| self.profile.reach_of(*i).contains(&node));
        insts.filter_map(|(_, inst)| follows(inst)).collect()
    }

    /// The last step of all clocks has been handled.
    pub(super) fn is_settled(&self) -> bool {
        let handled = self.servers.len() - self.unnoticed.len();
        self.now >= self.settled_until && handled >= quorum_of(self.servers.len())
    }

    /// One host: all nodes and all instances, by the same.
    fn step_host(&mut self) {
        let now = self.now;
        if !self.can_notice() {
            return;
        }
        self.settled_until = now + SETTLING;
        self.unnoticed = (0..self.servers.len()).collect();
        let by_s = self.fault_rng.pick(&[-20, -3, -1, 1, 3, 20]);
        let by_us = by_s * 1_000_000 + self.fault_rng.either_way(300_000);
        self.trace(|| format!("all clocks are stepped by {by_us} us"));
        for node in 0..self.servers.len() {
            self.step_clock(node, by_us);
            self.servers[node].stepped_us = 0;
        }
        for inst in &mut self.insts {
            inst.wall_off_us += by_us;
        }
        self.joint_us += by_us;
        self.checker.clocks_back_us += by_us.min(0).unsigned_abs();
        self.checker.clocks_stepped = true;
    }

    fn step_clock(&mut self, node: usize, by_us: i64) {
        let (now, before) = (self.now, self.node_clock(node));
        let server = &mut self.servers[node];
        server.machine.expire(before);
        server.offset_us += by_us;
        server.stepped_us += by_us;
        server.noticed = 0;
        server.disturb(now);
        // Redis drops what is over within a tenth of a second, whether or not anybody requests.
        let clock = self.node_clock(node);
        self.servers[node].machine.expire(clock);
    }

    pub(super) fn crash(&mut self, inst: usize) {
        if self.insts[inst].alive {
            self.end(inst);
            let back = self.now + self.fault_rng.range(30, 2_000) * MS;
            self.at(back, Event::Start { inst });
        }
    }

    pub(super) fn end(&mut self, inst: usize) {
        self.insts[inst].alive = false;
        for node in 0..self.servers.len() {
            for connection in 0..self.profile.connections {
                self.break_link(inst, node, connection, SEC);
            }
        }
        self.todo.push(Todo::Kill(inst));
    }

    fn cut(&mut self, inst: usize) {
        let until = self.now + self.fault_rng.range(50, 4_000) * MS;
        let (out, back) = self.fault_rng.pick(&[(true, true), (true, false), (false, true)]);
        for node in 0..self.servers.len() {
            if !self.fault_rng.chance(45) {
                continue;
            }
            for connection in 0..self.profile.connections {
                let link = &mut self.insts[inst].links[node][connection];
                if out {
                    link.cut_out = until;
                }
                if back {
                    link.cut_in = until;
                }
                if self.fault_rng.chance(50) {
                    self.break_link(inst, node, connection, 20 * MS);
                } else if until > self.now + CHECK_FAILS {
                    self.at(self.now + CHECK_FAILS, Event::Heal(Heal::Connection { inst, node, connection }));
                }
            }
        }
    }

    /// See [`Heal`].
    pub(super) fn heal(&mut self, heal: Heal) {
        match heal {
            Heal::NodeUp { node, .. } if self.has_ended(node) => {}
            Heal::NodeUp { node, memory } => self.start_node(node, memory),
            Heal::NodeClock { node } => {
                let server = &self.servers[node];
                let is_unseen = server.stepped_us > 0 && server.noticed < NOTICED;
                // An instance whose own clock is off, too, may never follow.
                let may_wait = self.now < self.profile.calm_ms * MS + FOLLOWED;
                if is_unseen || may_wait && server.is_far_off() && self.is_followed_by_some(node) {
                    return self.at(self.now + 100 * MS, Event::Heal(heal));
                }
                let by_us = -server.stepped_us;
                if by_us < 0 && self.who_follow(node).contains(&true) {
                    self.checker.followed_back_us += by_us.unsigned_abs();
                }
                if by_us != 0 {
                    self.trace(|| format!("n{node}'s clock is set back by {by_us} us"));
                    self.step_clock(node, by_us);
                }
            }
            Heal::Wall { inst, by_us } => self.insts[inst].wall_off_us -= by_us,
            Heal::Connection { inst, node, connection } => {
                let link = &self.insts[inst].links[node][connection];
                if link.cut_out.max(link.cut_in) > self.now {
                    self.break_link(inst, node, connection, 20 * MS);
                }
            }
        }
    }

    /// Its process ends and does not come back; two seconds later an operator says so.
    fn end_for_good(&mut self, node: usize) {
        self.kill_node(node, Memory::Nothing);
        self.servers[node].machine = ReferenceNode::new("ended");
        self.servers[node].disturb(self.now);
        // What it knew is lost (seed 227642).
        self.servers[node].forgot = Some(self.now);
        self.at(self.now + 2 * SEC, Event::Forget { inst: 0, node });
    }

    /// Whether the node has ended for good.
    fn has_ended(&self, node: usize) -> bool {
        self.calm && self.profile.one_ends && node == 0
    }

    fn start_node(&mut self, node: usize, memory: Memory) {
        let (now, clock) = (self.now, self.node_clock(node));
        let server = &mut self.servers[node];
        if server.up {
            return;
        }
        server.epoch += 1;
        server.is_to_forget = false;
        let run = run_id(node, server.epoch, server.failovers);
        let memory = self.remembered(node, memory);
        let ahead_us = self.clock_at_start();
        let server = &mut self.servers[node];
        server.syncs = true;
        match memory {
            Memory::Nothing => server.machine = ReferenceNode::new(&run),
            Memory::All => server.machine.restart_with_memory(&run),
            Memory::Tail => {
                self.checker.lost_tail.insert(node);
                server.machine = server.disk.clone();
                server.machine.restart_with_memory(&run);
            }
            Memory::Copy => {
                self.checker.lost_tail.insert(node);
                server.machine = server.copy.clone();
                server.machine.restart_with_memory(&run);
            }
        }
        server.doubted = Some(now);
        server.machine.expire(clock + ahead_us);
        if memory != Memory::All || ahead_us > 0 {
            server.disturb(now);
            server.forgot = Some(now);
        }
        server.machine.expire(clock);
        server.disk = server.machine.clone();
        (server.up, server.frozen_until) = (true, 0);
        self.trace(|| format!("n{node} is up again with {memory:?} as {run}"));
    }

    /// What a node is started with. A durable one never loses the end of its log; a copy, or a log that was not synced, that no
    /// instance could distinguish from the latest is excluded from the guarantee: each that lives must have had a later answer.
    fn remembered(&self, node: usize, memory: Memory) -> Memory {
        let server = &self.servers[node];
        let data = match memory {
            Memory::Tail => &server.disk,
            Memory::Copy => &server.copy,
            other => return other,
        };
        let has_later = |(inst, i): (usize, &Inst)| {
            !i.alive || server.received.get(&(inst, i.life)).is_none_or(|received| *received > data.last_beat_us())
        };
        let is_distinct = self.insts.iter().enumerate().all(has_later);
        if self.profile.durable && !is_distinct { Memory::All } else { memory }
    }

    /// By how much a durable node's clock is ahead while it loads its data.
    fn clock_at_start(&mut self) -> u64 {
        if self.profile.durable && !self.calm && self.fault_rng.chance(20) {
            self.coverage.count(HardState::StartedAhead);
            self.fault_rng.range(200, 20_000) * MS
        } else {
            0
        }
    }

    /// The logs of all nodes are synced.
    pub(super) fn fsync(&mut self) {
        let loses_the_last = |f: &Fault| {
            matches!(f, Fault::RestartTail | Fault::RestartAll | Fault::Failover | Fault::OldCopy | Fault::PolicyOff)
        };
        if self.calm || !self.profile.faults.iter().any(loses_the_last) {
            return;
        }
        for server in self.servers.iter_mut().filter(|s| s.up) {
            server.disk = server.machine.clone();
        }
        if self.profile.durable && (self.now / SEC).is_multiple_of(3) {
            self.servers.iter_mut().filter(|s| s.up).for_each(|server| server.copy = server.machine.clone());
        }
        self.at(self.now + SEC, Event::Fsync);
    }

    /// Everything is set right, now and for good.
    pub(super) fn calm_down(&mut self) {
        let now: Us = self.now;
        self.calm = true;
        self.trace(|| "CALM".into());
        if self.profile.one_ends {
            self.end_for_good(0);
        }
        for node in 0..self.servers.len() {
            // What it was to forget it forgets: else a majority may forget a changed list, and one node know it (seed 399628).
            let memory = if self.servers[node].is_to_forget { Memory::Nothing } else { Memory::All };
            self.heal(Heal::NodeUp { node, memory });
            let server = &mut self.servers[node];
            (server.frozen_until, server.slow_until) = (now, now);
            // Clocks are kept by now: those that go on apart would leave the guard in the end.
            server.offset_us += i64::try_from(now).expect("short") * server.ppm / 1_000_000;
            server.ppm = 0;
            self.heal(Heal::NodeClock { node });
        }
        for inst in 0..self.insts.len() {
            for link in self.insts[inst].links.iter_mut().flatten() {
                (link.cut_in, link.cut_out) = (link.cut_in.min(now), link.cut_out.min(now));
            }
        }
        if self.profile.variant == Variant::SecondServer {
            // The name leads all instances to the server that the last view names.
            let named = self.named_server();
            self.profile.corrected = Some(std::iter::once(named).chain(1..self.profile.nodes).collect());
            for inst in (0..self.insts.len()).filter(|inst| self.insts[*inst].first_server != named).collect::<Vec<_>>()
            {
                self.crash(inst);
            }
        }
        if self.profile.relists || self.profile.reterms {
            self.correct_once_settled();
            self.at(now + SETTLES, Event::CorrectAgain);
        }
        self.todo.extend((0..self.insts.len()).map(Todo::EndReplacement));
        if self.profile.replaces {
            self.at(now + FOLLOWS, Event::CorrectAgain);
        }
        self.plan_liveness_checks();
    }
}
