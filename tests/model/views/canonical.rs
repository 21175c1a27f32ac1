//! States that differ only in what can no longer matter, or in the naming of what is alike, are one state.

use super::{
    ALL_ROUNDS, Bug, Entry, FIRST, Kind, MONITORS, Monitor, NAMES, Phase, Process, ROUNDS, Report, Rules, Stage, State,
    VIEWS, View, has, names, of,
};

/// Everything of one name, where names are alike and each has one process.
type Column = (Process, [u8; 8], [Report; MONITORS], [[u8; 2]; ROUNDS], [u8; VIEWS], [[Entry; 2]; VIEWS]);

impl Rules {
    pub fn canonical(&self, s: &mut State) {
        self.forget_messages(s);
        (0..2).for_each(|c| self.forget_rounds(s, c));
        for process in &mut s.processes[..self.processes] {
            if process.key == 0 {
                (process.key_rounds, process.fence) = (0, 0);
            }
            if !process.counts() {
                process.view = 0;
            }
            if process.promised <= process.view || !self.promise {
                process.promised = 0;
            }
        }
        for m in 0..MONITORS {
            let monitor = s.monitors[m];
            let one = monitor.targets.count_ones() == 1 && !self.is(Bug::RunByHandshake);
            let lost = one && s.processes[monitor.targets.trailing_zeros() as usize].run != monitor.target_run;
            let admitted = |p: usize| s.processes[p].sound && s.processes[p].since >= monitor.view;
            let mut targets = (0..self.processes).filter(|p| has(monitor.targets, *p));
            let again = self.rolling || self.steps > 0 || self.is(Bug::RunByHandshake);
            let done = monitor.stage == Stage::Filled && !again && targets.all(admitted);
            if lost || done {
                s.monitors[m] = Monitor { left: monitor.left, ..Monitor::default() };
            }
        }
        self.forget_views(s);
        self.alike.iter().for_each(|group| self.sort(s, group));
    }

    /// Requests that no process would ever answer with a vote, or act on.
    fn forget_messages(&self, s: &mut State) {
        if matches!(self.bug, Bug::ViewsMixed | Bug::RosterNotCompared | Bug::RunByHandshake | Bug::NoSince) {
            return;
        }
        for c in 0..2 {
            for r in 0..ROUNDS {
                let round = s.clients[c].rounds[r];
                let updates = matches!(self.kinds[c][r], Kind::Extend | Kind::WriteBack);
                let roster = s.view(round.view).map(|view| view.roster);
                let acts = |p: usize| {
                    let process = &s.processes[p];
                    let beyond = process.sound && process.view > round.view;
                    let named = roster.is_some_and(|roster| roster[self.name(p)].run == process.run || process.was > 0);
                    // Where nothing ends, another's key and a block stay.
                    let refuses = process.block > 0 || (process.key > 0 && process.key as usize != c + 1);
                    (named && !beyond && !(self.nothing_ends() && refuses))
                        || (updates && (!process.sound || process.clock_off))
                };
                let useful = (0..self.processes).filter(|p| acts(*p)).fold(0, |all, p| all | 1 << self.name(p));
                let client = &mut s.clients[c];
                let needed = !(self.nothing_ends() && client.phase == Phase::Held);
                client.rounds[r].pending &= if needed { useful } else { 0 };
            }
        }
    }

    fn forget_rounds(&self, s: &mut State, c: usize) {
        let processes = &s.processes[..self.processes];
        let used = processes.iter().fold(0, |all, p| all | p.covers(true));
        let used = s.monitors.iter().fold(used, |all, m| all | m.block);
        let read = s.monitors.iter().any(|m| m.block & of(c, ALL_ROUNDS) > 0);
        let concerns = |p: &Process| p.key as usize == c + 1 || (self.tombstones && p.block & of(c, ALL_ROUNDS) > 0);
        let held = (0..self.processes).filter(|p| concerns(&processes[*p])).fold(0, |all, p| all | 1 << self.name(p));
        let client = &mut s.clients[c];
        if !self.tombstones
            || (held == 0 && !read && client.rounds.iter().all(|r| r.pending == 0) && client.repairs == 0)
        {
            client.releases &= held;
        }
        if client.phase == Phase::Done {
            (client.confirmed, client.floor, client.fences) = (0, 0, [0; NAMES]);
            client.repairs &= if self.late_repairs { u8::MAX } else { 0 };
        }
        if client.phase == Phase::Held {
            (client.floor, client.fences) = (0, [0; NAMES]);
        }
        if client.repairs == 0 || has(client.over, client.repair_round as usize) {
            (client.repairs, client.repair_round, client.repair_view) = (0, 0, 0);
        }
        client.confirmed &= !client.over;
        for r in 0..ROUNDS {
            let asked = matches!(client.phase, Phase::Acquiring | Phase::WritingBack | Phase::Extending);
            if (asked && r == client.round as usize) || has(client.confirmed, r) {
                continue;
            }
            client.rounds[r].votes = 0;
            if client.rounds[r].pending == 0 {
                client.rounds[r].view = 0;
                let begun = client.phase != Phase::Idle && r <= client.round as usize;
                if begun && used & of(c, 1 << r) == 0 && client.repairs == 0 {
                    client.over |= 1 << r;
                }
            }
        }
    }

    fn forget_views(&self, s: &mut State) {
        let used = |number: u8| {
            let by_process = s.processes.iter().any(|p| (p.counts() && p.view == number) || p.filled == number);
            let by_client = s
                .clients
                .iter()
                .any(|c| (c.repairs > 0 && c.repair_view == number) || c.rounds.iter().any(|r| r.view == number));
            by_process
                || by_client
                || self.flushes && number == FIRST
                || s.monitors
                    .iter()
                    .any(|m| m.stage != Stage::Idle && (m.view == number || m.reports.iter().any(|r| r.view == number)))
        };
        let views = s.views.map(|view| if used(view.number) { view } else { View::default() });
        s.views = views;
        s.views.sort_by_key(|view| std::cmp::Reverse(view.number));
    }

    fn column(s: &State, n: usize) -> Column {
        let bit = |set: u8| set >> n & 1;
        let [a, b] = &s.clients;
        let sets = [bit(a.releases), bit(b.releases), bit(a.repairs), bit(b.repairs), a.fences[n], b.fences[n]];
        let of_monitor = |m: &Monitor| {
            bit(m.installed) | bit(m.read) << 1 | bit(m.targets) << 2 | bit(m.shows[0]) << 3 | bit(m.shows[1]) << 4
        };
        let [x, y] = s.monitors.each_ref().map(of_monitor);
        let round = |r: usize| [a, b].map(|c| bit(c.rounds[r].pending) | bit(c.rounds[r].votes) << 1);
        (
            s.processes[n],
            [sets[0], sets[1], sets[2], sets[3], sets[4], sets[5], x, y],
            s.monitors.map(|m| m.reports[n]),
            std::array::from_fn(round),
            s.views.map(|v| bit(v.list) | bit(v.old) << 1),
            s.views.map(|v| [v.roster[n], v.before[n]]),
        )
    }

    fn sort(&self, s: &mut State, group: &[usize]) {
        let mut order: Vec<(Column, usize)> = group.iter().map(|n| (Self::column(s, *n), *n)).collect();
        if order.is_sorted() {
            return;
        }
        order.sort();
        let mut from: [usize; NAMES] = std::array::from_fn(|n| n);
        for (to, (_, n)) in group.iter().zip(&order) {
            from[*to] = *n;
        }
        let moved = |set: &mut u8| *set = names().fold(0, |all, n| all | (*set >> from[n] & 1) << n);
        s.processes = from.map(|n| s.processes[n]);
        for client in &mut s.clients {
            client.fences = from.map(|n| client.fences[n]);
            moved(&mut client.releases);
            moved(&mut client.repairs);
            for round in &mut client.rounds {
                moved(&mut round.pending);
                moved(&mut round.votes);
            }
        }
        for monitor in &mut s.monitors {
            monitor.reports = from.map(|n| monitor.reports[n]);
            moved(&mut monitor.installed);
            moved(&mut monitor.read);
            moved(&mut monitor.targets);
            monitor.shows.iter_mut().for_each(&moved);
        }
        for view in &mut s.views {
            (view.roster, view.before) = (from.map(|n| view.roster[n]), from.map(|n| view.before[n]));
            moved(&mut view.list);
            moved(&mut view.old);
        }
    }
}
