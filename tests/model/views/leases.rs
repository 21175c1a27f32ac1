//! Leases: what a client does, and what a process answers it.

use super::{Bug, Client, Kind, Phase, ROUNDS, Round, Rules, State, has, names, of, quorum};

impl Rules {
    /// Whether this view names this process under its name.
    pub fn rostered(&self, s: &State, p: usize, number: u8) -> bool {
        let (x, process) = (self.name(p), &s.processes[p]);
        let Some(view) = s.view(number) else { return false };
        let any_run = self.is(Bug::RunByHandshake) || self.is(Bug::RosterNotCompared);
        let run = any_run || view.roster[x].run == process.run;
        let since = any_run || self.is(Bug::NoSince) || view.roster[x].since == process.since;
        has(view.list, x) && run && since
    }

    /// Whether this process votes in a round of this view: the one comparison of each script.
    pub fn votes(&self, s: &State, p: usize, round_view: u8) -> bool {
        let process = &s.processes[p];
        if !process.sound || process.clock_off {
            return false;
        }
        self.is(Bug::ViewsMixed) || (process.view == round_view && self.rostered(s, p, round_view))
    }

    /// Views that an instance may know: any that a sound process has installed.
    pub fn known(&self, s: &State) -> impl Iterator<Item = u8> + use<> {
        let (processes, count) = (s.processes, self.processes);
        let installed =
            move |number: &u8| *number > 0 && processes[..count].iter().any(|p| p.counts() && p.view == *number);
        s.views.map(|view| view.number).into_iter().filter(installed)
    }

    pub fn begin(&self, s: &mut State, c: usize, view: u8) {
        let before = s.clients[c];
        let next = (before.round as usize + 1).min(ROUNDS - 1);
        let (phase, round) = match before.phase {
            Phase::Idle => (Phase::Acquiring, 0),
            Phase::Acquiring if self.kinds[c][next] == Kind::AskAgain => (Phase::Acquiring, next),
            Phase::Acquiring => (Phase::WritingBack, next),
            _ => (Phase::Extending, next),
        };
        let fence = Self::highest_fence(&before);
        let (list, best) = (s.view(view).map_or(0, |v| v.list), s.best);
        let client = &mut s.clients[c];
        if phase == Phase::WritingBack {
            (client.fence, client.fences) = (fence, [0; _]);
        }
        if before.phase == Phase::Idle {
            client.floor = best;
        }
        (client.phase, client.round) = (phase, round as u8);
        client.rounds[round] = Round { view, pending: list, votes: 0 };
        if self.fences {
            client.over = super::ALL_ROUNDS;
        }
    }

    /// Whether a quorum answered this client's round with one fence.
    pub fn one_fence(&self, s: &State, client: &Client) -> bool {
        let round = &client.rounds[client.round as usize];
        let top = Self::highest_fence(client);
        let same = names().filter(|x| has(round.votes, *x) && client.fences[*x] == top).count() as u32;
        s.view(round.view).is_some_and(|view| same >= quorum(view.list))
    }

    fn highest_fence(client: &Client) -> u8 {
        let round = &client.rounds[client.round as usize];
        names().filter(|x| has(round.votes, *x)).map(|x| client.fences[x]).max().unwrap_or(0)
    }

    pub fn confirmed_by_quorum(&self, s: &State, client: &Client) -> bool {
        let round = &client.rounds[client.round as usize];
        s.view(round.view).is_some_and(|view| (round.votes & view.list).count_ones() >= quorum(view.list))
    }

    pub fn decide(&self, s: &mut State, c: usize) {
        let client = s.clients[c];
        let round = client.rounds[client.round as usize];
        if client.phase == Phase::Extending {
            s.revived |= self.aged && s.last != c as u8;
            let list = s.view(round.view).map_or(0, |view| view.list);
            let client = &mut s.clients[c];
            client.phase = Phase::Held;
            client.confirmed |= 1 << client.round;
            if self.rolling {
                client.rounds[client.round as usize].pending = 0;
            }
            if self.repairs {
                client.repairs = list & !round.votes;
                (client.repair_round, client.repair_view) = (client.round, round.view);
            }
            return;
        }
        if self.fences {
            let fence = if client.phase == Phase::WritingBack { client.fence } else { Self::highest_fence(&client) };
            let other = &s.clients[1 - c];
            let twice = matches!(other.phase, Phase::Held | Phase::Done) && other.fence == fence;
            s.fence_fell |= fence <= client.floor || twice;
            s.clients[c].fence = fence;
            s.best = s.best.max(fence);
        }
        (s.clients[c].phase, s.last) = (Phase::Held, c as u8);
        s.clients[c].confirmed |= 1 << client.round;
    }

    pub fn end(&self, s: &mut State, c: usize) {
        let client = &mut s.clients[c];
        if client.phase != Phase::Held {
            client.fence = 0;
        }
        client.phase = Phase::Done;
        if self.releases {
            client.releases = ((1_u16 << self.names) - 1) as u8;
        }
    }

    /// A request of a round reaches a process.
    pub fn on_request(&self, s: &mut State, c: usize, round: usize, p: usize) {
        let x = self.name(p);
        s.clients[c].rounds[round].pending &= !(1 << x);
        let too_old = self.aged && has(s.clients[c].over, round);
        if s.processes[p].clock_off || too_old || has(s.processes[p].ended, c) {
            return;
        }
        match self.kinds[c][round] {
            Kind::Acquire | Kind::AskAgain => self.on_acquire(s, c, round, p),
            Kind::Extend | Kind::WriteBack => self.on_update(s, c, round, p),
            Kind::None => {}
        }
    }

    fn on_acquire(&self, s: &mut State, c: usize, round: usize, p: usize) {
        let (votes, me) = (self.votes(s, p, s.clients[c].rounds[round].view), c as u8 + 1);
        let process = &mut s.processes[p];
        if !votes || process.block > 0 || (process.key != 0 && process.key != me) {
            return;
        }
        if self.fences && process.key == 0 {
            process.high_water += 1;
            process.fence = process.high_water;
        }
        process.key = me;
        process.key_rounds |= 1 << round;
        let fence = process.fence;
        self.count(s, c, round, p, fence);
    }

    /// An extend or a write-back. A process that does not vote applies it to its own key all the same, unless a block stands
    /// for this token: the key must not outlast it.
    fn on_update(&self, s: &mut State, c: usize, round: usize, p: usize) {
        let (votes, me) = (self.votes(s, p, s.clients[c].rounds[round].view), c as u8 + 1);
        let (writes_back, fence) = (self.kinds[c][round] == Kind::WriteBack, s.clients[c].fence);
        let blocked_counts = self.is(Bug::BlockedExtendCounts);
        let process = &mut s.processes[p];
        if process.sound && !votes {
            return;
        }
        if process.block & of(c, super::ALL_ROUNDS) > 0 && !blocked_counts && !self.is(Bug::BlockedExtendApplied) {
            return;
        }
        if process.key == me && (!writes_back || process.fence <= fence) {
            process.key_rounds |= 1 << round;
            if writes_back {
                (process.fence, process.high_water) = (fence, process.high_water.max(fence));
            }
            if votes && (process.block == 0 || blocked_counts) {
                self.count(s, c, round, p, 0);
            }
        } else if blocked_counts && votes && process.block & of(c, super::ALL_ROUNDS) > 0 {
            process.block |= of(c, 1 << round);
            self.count(s, c, round, p, 0);
        }
    }

    fn count(&self, s: &mut State, c: usize, round: usize, p: usize, fence: u8) {
        let (x, client) = (self.name(p), &mut s.clients[c]);
        if client.round as usize != round || matches!(client.phase, Phase::Idle | Phase::Held | Phase::Done) {
            return;
        }
        client.rounds[round].votes |= 1 << x;
        if fence > 0 {
            client.fences[x] = fence;
        }
        if self.nothing_ends() && self.confirmed_by_quorum(s, &s.clients[c]) {
            self.decide(s, c);
        }
    }

    pub fn on_release(&self, s: &mut State, c: usize, p: usize) {
        s.clients[c].releases &= !(1 << self.name(p));
        let process = &mut s.processes[p];
        if process.key as usize == c + 1 {
            process.key = 0;
        }
        if self.tombstones {
            process.ended |= 1 << c;
            process.block &= !of(c, super::ALL_ROUNDS);
        }
    }

    /// A repair puts the key where a confirmed extend found none. It never votes.
    pub fn on_repair(&self, s: &mut State, c: usize, p: usize) {
        let client = &mut s.clients[c];
        client.repairs &= !(1 << self.name(p));
        let (round, view) = (client.repair_round, client.repair_view);
        let too_old = has(client.over, round as usize);
        if too_old || s.processes[p].clock_off || has(s.processes[p].ended, c) {
            return;
        }
        let any_view = self.is(Bug::RepairOfOlderView);
        let takes = any_view || !s.processes[p].sound || self.votes(s, p, view);
        let process = &mut s.processes[p];
        let known = if process.counts() { process.since } else { process.filled };
        let lifts = self.repairs_lift && (any_view || view >= known);
        if takes && (process.key == 0 || (lifts && process.key as usize == c + 1)) {
            process.key = c as u8 + 1;
            process.key_rounds |= 1 << round;
            if lifts {
                if !self.is(Bug::RepairShortensBlock) {
                    process.key_rounds |= process.block >> (c * ROUNDS) & super::ALL_ROUNDS;
                }
                process.block = 0;
            }
        }
    }
}
