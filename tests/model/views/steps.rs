//! The steps: everything that may happen next, and what it does.

use stateright::{Model, Property};

use super::{
    Bug, Client, Deny, Entry, FIRST, Kind, MONITORS, Monitor, NAMES, PROCESSES, Phase, Process, ROUNDS, Round, Rules,
    Stage, State, VIEWS, View, has, names, of,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Begin(usize, u8),
    Request {
        client: usize,
        round: usize,
        process: usize,
    },
    Decide(usize),
    GiveUp(usize),
    FailExtend(usize),
    Release(usize),
    ReleaseAt(usize, usize),
    RepairAt(usize, usize),
    PromiseEnds {
        client: usize,
        round: usize,
    },
    KeyEnds(usize),
    BlockEnds(usize),
    BackUp(usize),
    Wipe(usize),
    Restart(usize),
    ClockAhead(usize),
    ClockBack(usize),
    /// A process is moved on to a view that others have installed.
    Follow(usize, u8),
    Replace {
        monitor: usize,
        process: usize,
        base: u8,
    },
    /// A view that admits nobody: processes that restarted are to count by their disks.
    Resume {
        monitor: usize,
        base: u8,
    },
    ChangeList {
        monitor: usize,
        list: u8,
        base: u8,
    },
    Promise(usize, usize),
    Derive(usize),
    Install(usize, usize),
    StopInstalling(usize),
    Read(usize, usize),
    Fill(usize, usize),
    Admit(usize, usize),
    MonitorStops(usize),
}

impl Rules {
    fn all(&self) -> std::ops::Range<usize> {
        0..self.processes
    }

    fn client_acts(&self, s: &State, c: usize, acts: &mut Vec<Act>) {
        let client = &s.clients[c];
        let next = self.kinds[c][(client.round as usize + 1).min(ROUNDS - 1)];
        let asked = matches!(client.phase, Phase::Acquiring | Phase::WritingBack | Phase::Extending);
        let enough = asked && self.confirmed_by_quorum(s, client);
        let settles = self.fences && client.phase == Phase::Acquiring && !self.one_fence(s, client);
        let begins = match client.phase {
            Phase::Idle => self.kinds[c][0] != Kind::None && (c == 0 || s.clients[0].phase != Phase::Idle),
            Phase::Acquiring => (enough && settles) || next == Kind::AskAgain,
            Phase::Held => next == Kind::Extend && (client.round as usize) < ROUNDS - 1,
            _ => false,
        };
        if begins {
            acts.extend(self.known(s).map(|view| Act::Begin(c, view)));
        }
        if enough && !settles && (self.fences || !has(client.over, client.round as usize)) {
            acts.push(Act::Decide(c));
        }
        if asked && self.gives_up {
            acts.push(if client.phase == Phase::Extending { Act::FailExtend(c) } else { Act::GiveUp(c) });
        }
        acts.extend((client.phase == Phase::Held && self.releases).then_some(Act::Release(c)));
        for p in self.all() {
            let x = self.name(p);
            let pending = (0..ROUNDS).filter(|r| has(client.rounds[*r].pending, x));
            acts.extend(pending.map(|round| Act::Request { client: c, round, process: p }));
            acts.extend(has(client.releases, x).then_some(Act::ReleaseAt(c, p)));
            acts.extend(has(client.repairs, x).then_some(Act::RepairAt(c, p)));
        }
        if !self.fences && self.ends && client.phase != Phase::Idle {
            let running = (0..=client.round as usize).filter(|r| !has(client.over, *r));
            acts.extend(running.map(|round| Act::PromiseEnds { client: c, round }));
        }
    }

    fn process_acts(&self, s: &State, p: usize, acts: &mut Vec<Act>) {
        let (process, over) = (&s.processes[p], s.over());
        let early = process.clock_off || self.fences;
        acts.extend((process.key > 0 && (early || process.covers(false) & !over == 0)).then_some(Act::KeyEnds(p)));
        // No key outlasts the block of its own lease, except copies and what was extended since.
        let is_covered = process.key > 0 && process.covers(false) & !process.block == 0;
        let may_end = !is_covered || self.copy || self.is(Bug::KeyOutlivesItsBlock);
        let block_ends = process.block > 0 && may_end && (early || process.block & !over == 0);
        acts.extend(block_ends.then_some(Act::BlockEnds(p)));
        let backs_up = self.is(Bug::CopyOfBackup) && process.key > 0;
        acts.extend((backs_up && process.backup != (process.key, process.key_rounds)).then_some(Act::BackUp(p)));
        let its_turn = process.run == 0 && s.clients[0].phase == Phase::Held;
        let its_turn = !self.rolling || (its_turn && self.all().all(|other| s.processes[other].sound));
        acts.extend((s.wipes > 0 && its_turn && (process.sound || process.filled > 0)).then_some(Act::Wipe(p)));
        acts.extend((s.restarts > 0 && process.sound && !process.clock_off).then_some(Act::Restart(p)));
        acts.extend((s.steps > 0 && !process.clock_off).then_some(Act::ClockAhead(p)));
        acts.extend(process.clock_off.then_some(Act::ClockBack(p)));
        let follows = |number: &u8| s.view(*number).is_some_and(|view| self.may_install(s, p, view));
        acts.extend(self.known(s).filter(follows).map(|number| Act::Follow(p, number)));
    }

    fn monitor_acts(&self, s: &State, m: usize, acts: &mut Vec<Act>) {
        let monitor = &s.monitors[m];
        match monitor.stage {
            Stage::Idle if monitor.left > 0 => self.starts(s, m, acts),
            Stage::Idle => {}
            Stage::Promising => {
                acts.extend(
                    self.all().filter(|p| monitor.reports[self.name(*p)].view == 0).map(|p| Act::Promise(m, p)),
                );
                acts.push(Act::Derive(m));
            }
            Stage::Installing => {
                acts.extend(self.all().map(|p| Act::Install(m, p)));
                let enough = !self.coarse && self.installed_by_quorum(s, monitor);
                acts.extend(enough.then_some(Act::StopInstalling(m)));
            }
            Stage::Reading => {
                let unread = |p: &usize| has(monitor.installed & !monitor.read, self.name(*p));
                acts.extend(self.all().filter(unread).map(|p| Act::Read(m, p)));
                let part = self.is(Bug::PartOfPages) && monitor.read > 0;
                let complete = monitor.read == monitor.installed || part;
                acts.extend(self.all().filter(|p| complete && has(monitor.targets, *p)).map(|p| Act::Fill(m, p)));
            }
            Stage::Filled => {
                let targets = self.all().filter(|p| has(monitor.targets, *p));
                acts.extend(targets.flat_map(|p| [Act::Fill(m, p), Act::Admit(m, p)]));
            }
        }
        let stops = monitor.stage != Stage::Idle && monitor.left > 0;
        let done = monitor.stage == Stage::Filled && self.all().all(|p| s.processes[p].sound);
        acts.extend((stops && (!self.rolling || done)).then_some(Act::MonitorStops(m)));
    }

    fn starts(&self, s: &State, m: usize, acts: &mut Vec<Act>) {
        // Monitors that are alike begin in order.
        let first = &s.monitors[0];
        if m > 0 && self.changes[0] == self.changes[m] && first.stage == Stage::Idle && first.left == self.changes[0] {
            return;
        }
        let promised = self.all().map(|p| s.processes[p].promised).max().filter(|n| self.promise && *n > 0);
        let above = promised.filter(|n| s.view(*n).is_none());
        // Who flushed a process may know what it had installed.
        let flushed = (self.flushes && self.all().any(|p| !s.processes[p].counts())).then_some(FIRST);
        for base in self.known(s).chain(above).chain(flushed) {
            let roster = s.view(base).map(|view| view.roster);
            for p in self.all() {
                let (process, x) = (&s.processes[p], self.name(p));
                let other = roster.is_none_or(|roster| roster[x].run != process.run);
                let replaces = has(self.replace, p) && other;
                let joins = (!process.sound && (self.lists.is_empty() || s.wipes < self.wipes)) || replaces;
                acts.extend((joins && !process.clock_off).then_some(Act::Replace { monitor: m, process: p, base }));
            }
            let waits = self.restarts > 0 && self.all().any(|p| s.processes[p].was > 0);
            acts.extend(waits.then_some(Act::Resume { monitor: m, base }));
            acts.extend(self.lists.iter().map(|list| Act::ChangeList { monitor: m, list: *list, base }));
        }
    }

    fn forget(&self, process: &mut Process) {
        let old = *process;
        *process = Process { run: old.run + u8::from(!self.flushes), ..Process::default() };
        process.backup = match self.bug {
            Bug::CopyOfBackup => old.backup,
            Bug::CopyOfFormerKey if old.block == 0 => (old.key, old.key_rounds),
            _ => (0, 0),
        };
    }

    /// A durable process ends, and another one loads its data.
    fn restart(&self, s: &mut State, p: usize) {
        let old = s.processes[p];
        let mut new = Process { run: old.run + 1, was: old.run + 1, sound: false, filled: 0, ..old };
        let nothing = Process::default();
        match self.bug {
            // The log has an earlier end: under the same view and admission.
            Bug::OldCopyCounted => {
                (new.key, new.key_rounds, new.block, new.ended) = (nothing.key, nothing.key_rounds, 0, 0);
                (new.fence, new.high_water) = (0, 0);
            }
            Bug::ClockAtStartIgnored => (new.key, new.key_rounds, new.block) = (0, 0, 0),
            _ => {}
        }
        s.processes[p] = new;
    }

    fn clock_back(&self, process: &mut Process) {
        (process.clock_off, process.was) = (false, 0);
        if process.sound {
            process.since = if self.is(Bug::SameViewAgain) { 0 } else { process.view };
        }
        process.sound = false;
        if !self.is(Bug::ClockAtAdmitIgnored) {
            process.filled = 0;
        }
    }

    fn admitted_knows(&self, s: &State) -> bool {
        let known = |c: usize, r: usize, p: usize| {
            let (process, round) = (&s.processes[p], &s.clients[c].rounds[r]);
            let counted = process.view >= round.view && has(round.votes, self.name(p));
            !counted || !self.votes(s, p, process.view) || process.covers(true) & of(c, 1 << r) > 0
        };
        (0..2).filter(|c| s.holds(*c)).all(|c| {
            let live = s.clients[c].confirmed & !s.clients[c].over;
            (0..ROUNDS).filter(|r| has(live, *r)).all(|r| self.all().all(|p| known(c, r, p)))
        })
    }

    fn reached(&self, s: &State) -> bool {
        let processes = &s.processes[..self.processes];
        match self.deny {
            Deny::Nothing => false,
            Deny::HealedVote => self.all().any(|p| {
                let (process, key) = (&processes[p], processes[p].key as usize);
                let counts = |c: &Client| has(c.rounds[c.round as usize].votes, self.name(p)) && c.phase == Phase::Held;
                process.since > FIRST && process.sound && key > 0 && counts(&s.clients[key - 1])
            }),
            Deny::ResumedVote => self.all().any(|p| {
                let (process, key) = (&processes[p], processes[p].key as usize);
                let counts = |c: &Client| {
                    c.rounds[0].view > FIRST && has(c.rounds[0].votes, self.name(p)) && c.phase == Phase::Held
                };
                process.run % FIRST > 0
                    && process.since == FIRST
                    && process.sound
                    && key > 0
                    && counts(&s.clients[key - 1])
            }),
            Deny::ExtendAfterAll => {
                let client = &s.clients[0];
                let view = client.rounds[client.round as usize].view;
                let held =
                    client.phase == Phase::Held && client.round > 0 && has(client.confirmed, client.round as usize);
                held && processes.iter().all(|p| p.sound && p.run == 1 && p.since <= view)
            }
            Deny::ListChanged => s.views.iter().any(|view| {
                let all = |x: usize| self.all().any(|p| self.name(p) == x && self.votes(s, p, view.number));
                Some(&view.list) == self.lists.last()
                    && view.number > FIRST
                    && names().filter(|x| has(view.list, *x)).all(all)
            }),
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let (mut processes, mut roster) = ([Process::default(); PROCESSES], [Entry::default(); NAMES]);
        for p in self.all() {
            let same_name = (0..p).filter(|other| self.name(*other) == self.name(p)).count() as u8;
            processes[p].run = 8 * same_name;
            if !has(self.blank, p) {
                processes[p] = Process { sound: true, view: FIRST, since: FIRST, ..processes[p] };
                roster[self.name(p)] = processes[p].entry();
            }
        }
        let mut clients = [Client::default(); 2];
        if self.lapsed {
            let round = |votes| Round { view: FIRST, pending: 0, votes };
            (clients[0].phase, clients[0].round) = (Phase::Held, 1);
            (clients[0].confirmed, clients[0].over) = (0b01, 0b01);
            (clients[0].rounds[0], clients[0].rounds[1]) = (round(self.list), round(1));
            (processes[0].key, processes[0].key_rounds) = (1, 0b11);
        }
        let mut views = [View::default(); VIEWS];
        views[0] = View { number: FIRST, list: self.list, old: self.list, roster, ..View::default() };
        let mut monitors = [Monitor::default(); MONITORS];
        for (m, monitor) in monitors.iter_mut().enumerate() {
            monitor.left = self.changes[m];
        }
        let (wipes, restarts, steps) = (self.wipes, self.restarts, self.steps);
        let was_granted = u8::from(self.kinds[1][0] == Kind::None); // the other client, if it does nothing any more
        let (best, last, fence_fell, revived) = (0, if self.lapsed { was_granted } else { u8::MAX }, false, false);
        let mut s =
            State { processes, clients, monitors, views, wipes, restarts, steps, best, last, fence_fell, revived };
        self.canonical(&mut s);
        vec![s]
    }

    fn actions(&self, s: &State, acts: &mut Vec<Act>) {
        (0..2).for_each(|c| self.client_acts(s, c, acts));
        self.all().for_each(|p| self.process_acts(s, p, acts));
        (0..MONITORS).for_each(|m| self.monitor_acts(s, m, acts));
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut s = *before;
        match act {
            Act::Begin(c, view) => self.begin(&mut s, c, view),
            Act::Request { client, round, process } => self.on_request(&mut s, client, round, process),
            Act::Decide(c) => self.decide(&mut s, c),
            Act::GiveUp(c) | Act::Release(c) => self.end(&mut s, c),
            Act::FailExtend(c) => s.clients[c].phase = Phase::Held,
            Act::ReleaseAt(c, p) => self.on_release(&mut s, c, p),
            Act::RepairAt(c, p) => self.on_repair(&mut s, c, p),
            Act::PromiseEnds { client, round } => s.clients[client].over |= 1 << round,
            Act::KeyEnds(p) => s.processes[p].key = 0,
            Act::BlockEnds(p) => s.processes[p].block = 0,
            Act::BackUp(p) => s.processes[p].backup = (s.processes[p].key, s.processes[p].key_rounds),
            Act::Wipe(p) => {
                s.wipes -= 1;
                self.forget(&mut s.processes[p]);
            }
            Act::Restart(p) => {
                s.restarts -= 1;
                self.restart(&mut s, p);
            }
            Act::ClockAhead(p) => {
                s.steps -= 1;
                s.processes[p].clock_off = true;
            }
            Act::ClockBack(p) => self.clock_back(&mut s.processes[p]),
            Act::Follow(p, view) => self.enter(&mut s, p, view),
            Act::Replace { monitor, process, base } => self.start(&mut s, monitor, (1 << process, 0), base)?,
            Act::Resume { monitor, base } => self.start(&mut s, monitor, (0, 0), base)?,
            Act::ChangeList { monitor, list, base } => self.start(&mut s, monitor, (0, list), base)?,
            Act::Promise(m, p) => self.on_promise(&mut s, m, p)?,
            Act::Derive(m) => self.derive(&mut s, m)?,
            Act::Install(m, p) => self.on_install(&mut s, m, p)?,
            Act::StopInstalling(m) => s.monitors[m].stage = Stage::Reading,
            Act::Read(m, p) => self.on_read(&mut s, m, p)?,
            Act::Fill(m, p) => self.on_fill(&mut s, m, p)?,
            Act::Admit(m, p) => self.on_admit(&mut s, m, p)?,
            Act::MonitorStops(m) => s.monitors[m] = Monitor { left: s.monitors[m].left, ..Monitor::default() },
        }
        self.canonical(&mut s);
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one client holds the lease", |rules: &Rules, s: &State| {
                rules.fences || !(s.holds(0) && s.holds(1))
            }),
            Property::always("who votes knows each lease with a vote of its name", |rules: &Rules, s: &State| {
                !rules.invariant || rules.fences || rules.admitted_knows(s)
            }),
            Property::always("an extend succeeds only where the lease was never lost", |_, s: &State| !s.revived),
            Property::always("fences rise", |_, s: &State| !s.fence_fell),
            Property::always("never reached", |rules: &Rules, s: &State| !rules.reached(s)),
        ]
    }
}
