//! What goes wrong, and how it is set right. Faults fall at random instants until the calm; each
//! heals by itself, and the calm heals everything. Knows no protocol: which node has what memory is
//! all that it touches.

use super::beings::{Inst, run_id};
use super::profile::Fault;
use super::sometimes::Sometimes;
use super::world::{Event, MS, SEC, Todo, Us, World};
use crate::protocol::reference::ReferenceNode;
use crate::redlock::quorum::quorum_of;

/// How a node comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Nothing,
    All,
    /// What its log had when it was last synced.
    Tail,
}

/// Something is set right.
#[derive(Debug, Clone, Copy)]
pub(super) enum Heal {
    /// A node's process is started.
    NodeUp { node: usize, memory: Memory },
    /// A node's clock is set back.
    NodeClock { node: usize },
    /// An instance's wall clock is set back.
    Wall { inst: usize, by_us: i64 },
}

/// An instance's warden has learnt the nodes' clocks, or noticed that they were stepped.
const SETTLING: Us = 2_500 * MS;
/// Answers that must have shown a node's clock to be off before it goes back: an excursion that
/// nobody saw is beyond what can be promised.
const NOTICED: u32 = 1;

impl World {
    /// One fault, and the time of the next.
    pub(super) fn fault(&mut self) {
        if self.calm {
            return;
        }
        if !self.profile.faults.is_empty() {
            let kinds = self.profile.faults.clone();
            let fault = self.luck.pick(&kinds);
            let (node, inst) = (self.luck.index(self.servers.len()), self.luck.index(self.insts.len()));
            if fault.costs_the_vote() && !self.may_lose_another(node) {
                return self.next_fault();
            }
            self.mix(&[fault as u64, node as u64, inst as u64]);
            self.trace(|| format!("FAULT {fault:?} (n{node}, i{inst})"));
            self.strike(fault, node, inst);
        }
        self.next_fault();
    }

    /// Mostly a quorum keeps its vote, or nothing would ever be granted.
    fn may_lose_another(&mut self, node: usize) -> bool {
        let quarantine = self.quarantine_ms() * MS;
        let (now, least) = (self.now, self.profile.nodes / 2 + 1);
        let in_doubt = |at: Option<Us>| at.is_some_and(|at| at + quarantine + SEC > now);
        let others = self.servers.iter().enumerate().filter(|(i, s)| *i != node && s.up && !in_doubt(s.doubted));
        others.count() >= least || self.luck.chance(12)
    }

    fn next_fault(&mut self) {
        let gap = self.luck.range(60, self.profile.gap_ms) * MS;
        self.at(self.now + gap, Event::Fault);
    }

    fn strike(&mut self, fault: Fault, node: usize, inst: usize) {
        let now = self.now;
        match fault {
            Fault::RestartEmpty => self.kill_node(node, Memory::Nothing),
            Fault::RestartKept => self.kill_node(node, Memory::All),
            Fault::RestartTail => self.kill_node(node, Memory::Tail),
            Fault::RestartAll => {
                if self.luck.chance(30) {
                    let memory = self.luck.pick(&[Memory::Nothing, Memory::All, Memory::Tail]);
                    (0..self.servers.len()).for_each(|n| self.kill_node(n, memory));
                    self.seen.count(Sometimes::WholeClusterForgot);
                }
            }
            Fault::Flush => {
                self.servers[node].machine.flush_all();
                self.servers[node].shake(now);
                (self.servers[node].forgot, self.servers[node].doubted) = (Some(now), Some(now));
            }
            Fault::NodeStep => self.step_node(node),
            Fault::NodeJolt => self.jolt_node(node),
            Fault::JointStep => self.step_host(),
            Fault::WallStep => {
                let by_us = self.luck.pick(&[-3_600, -20, -2, 2, 20, 3_600]) * 1_000_000;
                self.insts[inst].wall_off_us += by_us;
                let back = now + self.luck.range(500, 6_000) * MS;
                self.at(back, Event::Heal(Heal::Wall { inst, by_us }));
            }
            Fault::Freeze => {
                let until = now + self.luck.range(50, 3_000) * MS;
                self.servers[node].frozen_until = until;
            }
            Fault::Pause | Fault::Crash if !self.is_settled() => {}
            Fault::Pause => {
                let until = now + self.luck.range(50, 4_500) * MS;
                let inst = &mut self.insts[inst];
                inst.local = until.max(inst.local);
                if now < inst.began + SETTLING {
                    // It may not have looked at the nodes yet.
                    inst.began = inst.local;
                }
            }
            Fault::Crash => self.crash(inst),
            Fault::Cut => self.cut(inst),
            Fault::Break => {
                for i in 0..self.insts.len() {
                    for lane in 0..self.profile.lanes {
                        if self.luck.chance(50) {
                            let back = self.luck.range(1, 200) * MS;
                            self.break_link(i, node, lane, back);
                        }
                    }
                }
            }
            Fault::Slow => self.servers[node].slow_until = now + self.luck.range(200, 2_500) * MS,
        }
    }

    fn kill_node(&mut self, node: usize, memory: Memory) {
        if !self.servers[node].up {
            return;
        }
        self.servers[node].up = false;
        for inst in 0..self.insts.len() {
            for lane in 0..self.profile.lanes {
                let back = self.luck.range(5, 100) * MS;
                self.break_link(inst, node, lane, back);
            }
        }
        let up = self.now + self.luck.range(20, 1_500) * MS;
        self.at(up, Event::Heal(Heal::NodeUp { node, memory }));
    }

    fn step_node(&mut self, node: usize) {
        if self.servers[node].stepped_us != 0 {
            return;
        }
        let by_s = self.luck.pick(&[-3_600, -20, -3, 1, 3, 20, 3_600]);
        let by_us = by_s * 1_000_000 + self.luck.either_way(400_000);
        let stepped = self.servers.iter().filter(|s| s.stepped_us != 0).count() + 1;
        if stepped > self.profile.nodes / 2 {
            // A majority: an instance that starts would take it for the time, as below.
            if !self.can_notice() {
                return;
            }
            self.settled_until = self.now + SETTLING;
        }
        self.step_clock(node, by_us);
        self.ledger.clocks_stepped = true;
        self.servers[node].doubted = Some(self.now);
        let back = self.now + self.luck.range(300, 6_000) * MS;
        self.at(back, Event::Heal(Heal::NodeClock { node }));
    }

    fn jolt_node(&mut self, node: usize) {
        // Standing skew and jolt together stay within the guard, as is assumed.
        let room =
            480_000 - self.profile.skew_ms * 1_000 - i64::try_from(self.now / 1_000_000).expect("short") * 10_000;
        if self.servers[node].stepped_us == 0 && room > 0 {
            let by_us = self.luck.either_way(room);
            self.step_clock(node, by_us);
            self.servers[node].noticed = NOTICED;
            let back = self.now + self.luck.range(300, 3_000) * MS;
            self.at(back, Event::Heal(Heal::NodeClock { node }));
        }
    }

    /// A step that no running instance can notice is beyond what can be promised: all must have taken the
    /// time, have been up for some looks at the nodes since the last one, and stay so for some more.
    fn can_notice(&self) -> bool {
        let now = self.now;
        let has_settled = |i: &Inst| i.alive && i.has_time && i.local <= now && now >= i.began + SETTLING;
        self.is_settled() && self.insts.iter().all(has_settled)
    }

    /// What all clocks were stepped by was acted upon.
    pub(super) fn is_settled(&self) -> bool {
        let told = self.servers.len() - self.unnoticed.len();
        self.now >= self.settled_until && told >= quorum_of(self.servers.len())
    }

    /// One host: all nodes and all instances, by the same.
    fn step_host(&mut self) {
        let now = self.now;
        if !self.can_notice() {
            return;
        }
        self.settled_until = now + SETTLING;
        self.unnoticed = (0..self.servers.len()).collect();
        let by_s = self.luck.pick(&[-20, -3, -1, 1, 3, 20]);
        let by_us = by_s * 1_000_000 + self.luck.either_way(300_000);
        self.trace(|| format!("all clocks are stepped by {by_us} us"));
        for node in 0..self.servers.len() {
            self.step_clock(node, by_us);
            self.servers[node].stepped_us = 0;
        }
        for inst in &mut self.insts {
            inst.wall_off_us += by_us;
        }
        self.joint_us += by_us;
        self.ledger.clocks_went_back |= by_us < 0;
        self.ledger.clocks_stepped = true;
    }

    fn step_clock(&mut self, node: usize, by_us: i64) {
        let (now, before) = (self.now, self.node_clock(node));
        let server = &mut self.servers[node];
        server.machine.expire(before);
        server.offset_us += by_us;
        server.stepped_us += by_us;
        server.noticed = 0;
        server.shake(now);
        // Redis drops what is over within a tenth of a second, whether or not anybody asks.
        let clock = self.node_clock(node);
        self.servers[node].machine.expire(clock);
    }

    fn crash(&mut self, inst: usize) {
        if !self.insts[inst].alive {
            return;
        }
        self.insts[inst].alive = false;
        for node in 0..self.servers.len() {
            for lane in 0..self.profile.lanes {
                self.break_link(inst, node, lane, SEC);
            }
        }
        self.todo.push(Todo::Kill(inst));
        let back = self.now + self.luck.range(30, 2_000) * MS;
        self.at(back, Event::Start { inst });
    }

    fn cut(&mut self, inst: usize) {
        let until = self.now + self.luck.range(50, 4_000) * MS;
        let (out, back) = self.luck.pick(&[(true, true), (true, false), (false, true)]);
        for node in 0..self.servers.len() {
            if !self.luck.chance(45) {
                continue;
            }
            for lane in 0..self.profile.lanes {
                let link = &mut self.insts[inst].links[node][lane];
                if out {
                    link.cut_out = until;
                }
                if back {
                    link.cut_in = until;
                }
                if self.luck.chance(50) {
                    self.break_link(inst, node, lane, 20 * MS);
                }
            }
        }
    }

    /// See [`Heal`].
    pub(super) fn heal(&mut self, heal: Heal) {
        match heal {
            Heal::NodeUp { node, memory } => self.start_node(node, memory),
            Heal::NodeClock { node } => {
                let server = &self.servers[node];
                if server.stepped_us > 0 && server.noticed < NOTICED {
                    return self.at(self.now + 100 * MS, Event::Heal(heal));
                }
                let by_us = -server.stepped_us;
                if by_us != 0 {
                    self.trace(|| format!("n{node}'s clock is set back by {by_us} us"));
                    self.step_clock(node, by_us);
                }
            }
            Heal::Wall { inst, by_us } => self.insts[inst].wall_off_us -= by_us,
        }
    }

    fn start_node(&mut self, node: usize, memory: Memory) {
        let (now, clock) = (self.now, self.node_clock(node));
        let server = &mut self.servers[node];
        if server.up {
            return;
        }
        server.epoch += 1;
        let run = run_id(node, server.epoch);
        match memory {
            Memory::Nothing => server.machine = ReferenceNode::new(&run),
            Memory::All => server.machine.restart_with_memory(&run),
            Memory::Tail => {
                self.ledger.lost_tail.insert(node);
                server.machine = server.disk.clone();
                server.machine.restart_with_memory(&run);
            }
        }
        server.doubted = Some(now);
        if memory != Memory::All {
            server.shake(now);
            server.forgot = Some(now);
        }
        server.machine.expire(clock);
        server.disk = server.machine.clone();
        (server.up, server.frozen_until) = (true, 0);
        self.trace(|| format!("n{node} is up again with {memory:?} as {run}"));
    }

    /// The logs of all nodes are synced.
    pub(super) fn fsync(&mut self) {
        if self.calm || !self.profile.faults.iter().any(|f| matches!(f, Fault::RestartTail | Fault::RestartAll)) {
            return;
        }
        for server in self.servers.iter_mut().filter(|s| s.up) {
            server.disk = server.machine.clone();
        }
        self.at(self.now + SEC, Event::Fsync);
    }

    /// Everything is set right, now and for good.
    pub(super) fn calm_down(&mut self) {
        let now: Us = self.now;
        self.calm = true;
        self.trace(|| "CALM".into());
        for node in 0..self.servers.len() {
            self.heal(Heal::NodeUp { node, memory: Memory::All });
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
        self.plan_audit();
    }
}
