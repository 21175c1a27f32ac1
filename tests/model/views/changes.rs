//! Changes of the view: promise, install, read, fill, admit. A monitor may stop anywhere.

use super::{
    Bug, Client, Entry, FIRST, Monitor, NAMES, Phase, ROUNDS, Report, Rules, Stage, State, VIEWS, View, has, names, of,
    quorum,
};

impl Rules {
    /// Whether this process may install this view: where the list stays, its own entry is the new roster's; where it
    /// changes, the one of the roster before.
    pub fn may_install(&self, s: &State, p: usize, view: &View) -> bool {
        let process = &s.processes[p];
        let (x, entry, stays) = (self.name(p), process.entry(), !view.changes());
        let named = if stays { entry == view.roster[x] } else { entry.follows(view.before[x]) };
        let same_run = view.roster[x].run == process.run;
        let same = named || (same_run && self.is(Bug::NoSince)) || self.is(Bug::RosterNotCompared);
        let listed = has(view.old, x);
        let above = view.number > process.view && (!self.promise || view.number >= process.promised);
        let changes = !stays && process.was > 0;
        process.counts() && !changes && !process.clock_off && listed && same && above
    }

    /// The number of this monitor's next view: above the highest that it knows of.
    fn next_number(&self, s: &State, m: usize, above: u8) -> u8 {
        (above / FIRST + 1) * FIRST + m as u8 + 2 * (self.changes[m] - s.monitors[m].left)
    }

    /// Begins a change: processes to be admitted, and the list to change to (0: it stays). `base` is a view it knows.
    pub fn start(&self, s: &mut State, m: usize, (targets, list): (u8, u8), base: u8) -> Option<()> {
        let number = self.next_number(s, m, base);
        let left = s.monitors[m].left.checked_sub(1)?;
        let target_run = if targets > 0 { s.processes[targets.trailing_zeros() as usize].run } else { 0 };
        let mut monitor = Monitor { view: number, targets, target_run, list, left, ..Monitor::default() };
        if self.is(Bug::ReadBeforeEnter) {
            monitor.block = self.sound(s).fold(0, |all, p| all | s.processes[p].covers(true));
        }
        if self.is(Bug::FencesBeforeEnter) {
            monitor.high_water = self.sound(s).map(|p| s.processes[p].high_water).max().unwrap_or(0);
        }
        monitor.stage = Stage::Promising;
        s.monitors[m] = monitor;
        if !self.promise {
            self.make_view(s, m, base, false)?;
        }
        Some(())
    }

    fn sound(&self, s: &State) -> impl Iterator<Item = usize> + use<> {
        let (processes, count) = (s.processes, self.processes);
        (0..count).filter(move |p| processes[*p].sound)
    }

    /// A process promises to install nothing below this monitor's view, and reports what it has installed.
    pub fn on_promise(&self, s: &mut State, m: usize, p: usize) -> Option<()> {
        let (number, process) = (s.monitors[m].view, s.processes[p]);
        let counts = process.counts() || (self.cold && self.served_its_time(s, p));
        if !counts || process.clock_off || process.promised >= number || process.view >= number {
            return None;
        }
        s.processes[p].promised = number;
        let (entry, view) = if process.counts() {
            (process.entry(), process.view)
        } else {
            (Entry { run: process.run, since: 0 }, FIRST)
        };
        s.monitors[m].reports[self.name(p)] = Report { entry, view, was: process.was };
        Some(())
    }

    /// This process forgot, and no lease or attempt depends on a vote of its name.
    fn served_its_time(&self, s: &State, p: usize) -> bool {
        let depends = |c: &Client| {
            let voted = c.rounds.iter().any(|round| has(round.votes, self.name(p)));
            c.phase != Phase::Idle && (c.phase != Phase::Held || voted)
        };
        let forgot = self.flushes || !s.processes[p].run.is_multiple_of(FIRST);
        forgot && !s.clients.iter().any(depends)
    }

    /// Derives the new view from the highest one that was reported.
    pub fn derive(&self, s: &mut State, m: usize) -> Option<()> {
        let reports = s.monitors[m].reports;
        let highest = reports.iter().map(|r| r.view).max()?;
        let lowest = reports.iter().map(|r| r.view).filter(|v| *v > 0).min()?;
        let number = if self.is(Bug::BaseAsBelieved) { lowest } else { highest };
        let base = *s.view(number)?;
        let less = u32::from(self.is(Bug::PromiseOfMinority));
        let cold = |x: usize| reports[x].view > 0 && reports[x].entry.since == 0;
        let voting = |x: &usize| has(base.list, *x) && (Self::is_entry(&reports[*x], base.roster[*x]) || cold(*x));
        let settled = names().filter(voting).count() as u32 >= quorum(base.list) - less;
        let entered = |x: &usize| has(base.old, *x) && reports[*x].entry.follows(base.before[*x]);
        let unsettled = names().filter(entered).count() as u32 >= quorum(base.old) - less;
        if settled {
            self.make_view(s, m, number, false)
        } else if unsettled && base.changes() {
            self.make_view(s, m, number, true)
        } else {
            None
        }
    }

    /// Whether this process, or the durable one whose data it has, is the entry.
    fn is_entry(of: &Report, entry: Entry) -> bool {
        (of.entry.run == entry.run || of.was > 0 && of.was - 1 == entry.run) && of.entry.since == entry.since
    }

    /// The new view, as it is made from `base`: with the monitor's own change, or the base's change completed.
    fn make_view(&self, s: &mut State, m: usize, base: u8, complete: bool) -> Option<()> {
        let base = *s.view(base)?;
        if s.views[VIEWS - 1].number > 0 {
            return None;
        }
        let Monitor { view: number, targets, list, .. } = s.monitors[m];
        let mut view = View { number, old: base.list, before: base.roster, other_terms: false, ..base };
        let mut fill = targets;
        if complete {
            (view.old, view.before, view.other_terms) = (base.old, base.before, base.other_terms);
        } else if list > 0 {
            view.list = list;
            let names_changed = (list ^ base.list).count_ones();
            view.other_terms = names_changed == 0;
            if names_changed > 1 && !self.is(Bug::SeveralNames) {
                return None;
            }
        } else if targets > 0 {
            let target = targets.trailing_zeros() as usize;
            let x = self.name(target);
            let replaced = s.processes[target].sound && base.roster[x].run == s.processes[target].run;
            if replaced || !has(base.list, x) {
                return None;
            }
            view.roster[x] = Entry { run: s.processes[target].run, since: number };
        }
        if view.changes() {
            (view.roster, fill) = ([Entry::default(); NAMES], 0);
            for p in (0..self.processes).filter(|p| has(view.list, self.name(*p))) {
                let (x, process) = (self.name(p), &s.processes[p]);
                let common = has(view.old, x);
                if common && process.run != view.before[x].run {
                    continue;
                }
                let entry = Entry { run: process.run, since: number };
                let stays = common && self.is(Bug::CommonNotFilled);
                view.roster[x] = if stays { view.before[x] } else { entry };
                fill |= u8::from(!stays) << p;
            }
        } else {
            view.before = [Entry::default(); NAMES];
        }
        let kept = if view.changes() { 0 } else { view.list };
        for x in names().filter(|x| has(kept, *x)) {
            let report = s.monitors[m].reports[x];
            if report.was > 0 && Self::is_entry(&report, view.roster[x]) {
                view.roster[x] = report.entry;
            }
        }
        let target = (targets > 0).then(|| self.name(targets.trailing_zeros() as usize));
        let monitor = &mut s.monitors[m];
        let forgot = |x: &usize| monitor.reports[*x].view > 0 && monitor.reports[*x].entry.since == 0;
        let counted = target.filter(|x| forgot(x) || self.is(Bug::TargetCounts));
        (monitor.stage, monitor.targets, monitor.list) = (Stage::Installing, fill, 0);
        monitor.reports = [Report::default(); NAMES];
        if let Some(x) = counted {
            (monitor.installed, monitor.read) = (1 << x, 1 << x);
        }
        s.views[VIEWS - 1] = view;
        Some(())
    }

    /// A process installs the monitor's view, and counts for its quorum.
    pub fn on_install(&self, s: &mut State, m: usize, p: usize) -> Option<()> {
        let (monitor, x) = (s.monitors[m], self.name(p));
        let view = *s.view(monitor.view)?;
        let has_target = !view.changes() && monitor.targets > 0;
        let of_target = has_target && self.name(monitor.targets.trailing_zeros() as usize) == x;
        if of_target || has(monitor.installed, x) || !self.may_install(s, p, &view) {
            return None;
        }
        s.monitors[m].installed |= 1 << x;
        self.enter(s, p, monitor.view);
        if self.coarse {
            self.on_read(s, m, p)?;
            if self.installed_by_quorum(s, &s.monitors[m]) {
                s.monitors[m].stage = Stage::Reading;
            }
        }
        Some(())
    }

    pub fn enter(&self, s: &mut State, p: usize, view: u8) {
        let process = &mut s.processes[p];
        (process.view, process.promised) = (view, process.promised.max(view));
        (process.sound, process.was) = (true, 0);
    }

    pub fn installed_by_quorum(&self, s: &State, monitor: &Monitor) -> bool {
        let less = u32::from(self.is(Bug::OneLessThanQuorum));
        s.view(monitor.view).is_some_and(|view| (monitor.installed & view.old).count_ones() >= quorum(view.old) - less)
    }

    /// Reads keys, blocks, fences and tombstones of a process that has installed the view.
    pub fn on_read(&self, s: &mut State, m: usize, p: usize) -> Option<()> {
        let (process, view) = (s.processes[p], *s.view(s.monitors[m].view)?);
        if !process.sound || process.clock_off || process.view != view.number {
            return None;
        }
        let (monitor, x) = (&mut s.monitors[m], self.name(p));
        monitor.read |= 1 << x;
        monitor.ended |= process.ended;
        if !self.is(Bug::FencesBeforeEnter) {
            monitor.high_water = monitor.high_water.max(process.high_water);
        }
        let keeps_key = view.changes() && process.key > 0 && process.block == 0;
        if keeps_key {
            monitor.shows[process.key as usize - 1] |= 1 << x;
        }
        if self.copy && process.key > 0 && (process.block == 0 || self.is(Bug::CopyBesideBlock)) {
            let c = process.key as usize - 1;
            let rounds = of(c, process.key_rounds);
            monitor.copy_rounds |= rounds;
            let first = monitor.shows[c] == 0;
            monitor.copy_least =
                if first { monitor.copy_least | rounds } else { monitor.copy_least & (rounds | !of(c, 15)) };
            monitor.shows[c] |= 1 << x;
            monitor.copy_fence[c] = monitor.copy_fence[c].max(process.fence);
        }
        let shown = process.covers(!self.is(Bug::BlocksNotListed));
        let shorter = self.is(Bug::BlockSmallestTtl) && monitor.block != 0 && shown != 0;
        if shorter && monitor.block & !shown != 0 {
            monitor.block = shown;
        } else if !shorter && !self.is(Bug::ReadBeforeEnter) {
            monitor.block |= shown;
        }
        Some(())
    }

    /// Fills a process with what was read, for the last view that it promised. It stays without a vote.
    pub fn on_fill(&self, s: &mut State, m: usize, p: usize) -> Option<()> {
        let monitor = s.monitors[m];
        let view = *s.view(monitor.view)?;
        let (x, process) = (self.name(p), &s.processes[p]);
        if process.clock_off || view.roster[x].run != process.run || process.filled >= view.number {
            return None;
        }
        // A promise that this monitor has counted comes no second time; any other one may come just before the fill.
        let promised = process.promised.max(process.view);
        let is_promised = promised == view.number || (promised < view.number && !has(monitor.installed, x));
        if self.promise && !is_promised && !self.is(Bug::FillUnpromised) {
            return None;
        }
        if view.changes() && has(view.old, x) {
            self.fill_common(s, m, p)?;
        } else {
            let below = process.since < view.number && process.view < view.number;
            if !below || (process.sound && self.is(Bug::NoSince)) {
                return None;
            }
            self.fill_whole(s, &monitor, p, quorum(view.list));
        }
        let process = &mut s.processes[p];
        (process.filled, process.promised) = (view.number, process.promised.max(view.number));
        s.monitors[m].stage = Stage::Filled;
        if self.coarse { self.on_admit(s, m, p) } else { Some(()) }
    }

    /// A process of both lists keeps its keys, and takes a block for what they do not cover. A key that fewer than a quorum
    /// of the old list shows is not kept as a vote.
    fn fill_common(&self, s: &mut State, m: usize, p: usize) -> Option<()> {
        let (monitor, old) = (s.monitors[m], s.view(s.monitors[m].view)?.old);
        let process = &mut s.processes[p];
        if !process.sound || process.view != monitor.view {
            return None;
        }
        let shown = |c: usize| monitor.shows[c].count_ones() >= quorum(old) || self.is(Bug::KeptOfMinority);
        let keeps = process.key > 0 && shown(process.key as usize - 1);
        process.block |=
            if keeps { monitor.block & !process.covers(false) } else { monitor.block | process.covers(false) };
        process.high_water = process.high_water.max(monitor.high_water);
        Some(())
    }

    fn fill_whole(&self, s: &mut State, monitor: &Monitor, p: usize, quorum: u32) {
        let process = &mut s.processes[p];
        process.sound = false;
        process.ended |= monitor.ended;
        process.high_water = process.high_water.max(monitor.high_water);
        let mut block = monitor.block;
        for c in 0..2 {
            let (me, mut shown) = (c as u8 + 1, monitor.shows[c].count_ones());
            if has(process.ended, c) {
                block &= !of(c, super::ALL_ROUNDS);
            }
            if self.is(Bug::CopiesOfAny) && monitor.block & of(c, super::ALL_ROUNDS) > 0 {
                (process.key, process.key_rounds) = (me, monitor.block >> (c * ROUNDS) & super::ALL_ROUNDS);
                return;
            }
            let backup = process.backup.0 == me;
            shown += u32::from(backup) + u32::from(self.is(Bug::CopyOfPresentKey) && process.key == me);
            let enough = shown >= quorum - u32::from(self.is(Bug::CopiesOfMinority));
            let other = process.key != 0 && process.key != me;
            if self.copy && monitor.shows[c] > 0 && enough && !other && !has(process.ended, c) {
                let least = self.is(Bug::CopySmallestTtl);
                let rounds = if least { monitor.copy_least } else { monitor.copy_rounds };
                process.key = me;
                process.key_rounds |= rounds >> (c * ROUNDS) & super::ALL_ROUNDS;
                process.key_rounds |= if backup { process.backup.1 } else { 0 };
                process.fence = process.fence.max(monitor.copy_fence[c]);
                return;
            }
        }
        process.block |= block;
    }

    /// Gives a filled process its vote.
    pub fn on_admit(&self, s: &mut State, m: usize, p: usize) -> Option<()> {
        let view = *s.view(s.monitors[m].view)?;
        let (x, process) = (self.name(p), &mut s.processes[p]);
        let by_handshake = self.is(Bug::RunByHandshake);
        let not_filled = self.is(Bug::NewNotFilled) && view.changes();
        let run = view.roster[x].run == process.run || by_handshake;
        let filled = process.filled == view.number || self.is(Bug::AnyFillAdmits) || by_handshake || not_filled;
        let bound = self.promise && process.promised > view.number;
        if process.clock_off || !run || !filled || bound {
            return None;
        }
        if view.changes() && has(view.old, x) {
            if !process.sound || process.view != view.number {
                return None;
            }
        } else if process.sound {
            return None;
        }
        (process.sound, process.was) = (true, 0);
        (process.view, process.since, process.filled) = (view.number, view.number, 0);
        process.promised = process.promised.max(view.number);
        Some(())
    }
}
