//! Runs one seed from its first event to its outcome, and many seeds on all cores. The loop alternates
//! between the world and the processes in it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

use super::coverage::CoverageCounts;
use super::host::Host;
use super::operator::SaidOfLists;
use super::profile::Profile;
use super::world::{Event, MS, SEC, Shared, Todo, World, lock};
use crate::mutant::{self, Mutant};

/// More events than any run takes: beyond it the run is in an endless loop.
const EVENTS_MAX: u64 = 400_000;

thread_local! {
    /// Whether code panicked on this thread: the runtime keeps the panic of a task to itself.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

fn notice_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.set(true);
            report(panic);
        }));
    });
    PANICKED.set(false);
}

/// Result of one seed.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) seed: u64,
    /// The first violated invariant.
    pub(super) violation: Option<String>,
    /// Hash of the whole trace.
    pub(super) hash: u64,
    pub(super) coverage: CoverageCounts,
    pub(super) events: u64,
    pub(super) grants: u64,
    pub(super) extends: u64,
}

/// Runs one seed, with a mutant or without.
pub(super) fn run(seed: u64, bug: Option<Mutant>, tracing: bool) -> Outcome {
    notice_panics();
    let profile = Profile::of(seed);
    let counters_only = profile.counters_only;
    let before = mutant::plant(bug, counters_only);
    let world: Shared = Arc::new(Mutex::new(World::new(seed, profile, tracing)));
    let mut hosts: Vec<Option<Host>> = Vec::new();
    hosts.resize_with(lock(&world).insts.len(), || None);
    let mut busy = vec![false; hosts.len()];
    loop {
        let mut w = lock(&world);
        if w.violation.is_some() || w.done {
            break;
        }
        let Some(event) = w.next() else {
            w.fail("liveness: nothing is left to happen".into());
            break;
        };
        if w.events > EVENTS_MAX {
            w.fail(format!("liveness: more than {EVENTS_MAX} events"));
            break;
        }
        w.handle(event);
        let wakes = std::mem::take(&mut w.wakes);
        let todo = std::mem::take(&mut w.todo);
        drop(w);
        wakes.into_iter().for_each(std::task::Waker::wake);
        for act in todo {
            perform(&world, seed, &mut hosts, &mut busy, act);
        }
        if busy.contains(&true) && !lock(&world).joins_next() {
            run_busy(&mut hosts, &mut busy);
        }
    }
    close(&world, &mut hosts);
    mutant::restore(before);
    let mut w = lock(&world);
    if w.violation.is_none() && PANICKED.get() {
        w.fail("a task panicked".into());
    }
    let (grants, extends) = (w.checker.grants, w.checker.extends);
    Outcome {
        seed,
        violation: w.violation.clone(),
        hash: w.hash(),
        coverage: w.coverage,
        events: w.events,
        grants,
        extends,
    }
}

fn run_busy(hosts: &mut [Option<Host>], busy: &mut [bool]) {
    for (host, busy) in hosts.iter_mut().zip(busy) {
        if std::mem::take(busy)
            && let Some(host) = host
        {
            host.run();
        }
    }
}

fn perform(world: &Shared, seed: u64, hosts: &mut [Option<Host>], busy: &mut [bool], act: Todo) {
    match act {
        Todo::Run(inst) => busy[inst] = true,
        Todo::Spawn(inst, req) => {
            let request = lock(world).requests.get(&req).cloned();
            if let (Some(request), Some(host)) = (request, &mut hosts[inst]) {
                host.serve(request);
                busy[inst] = true;
            }
        }
        Todo::Abort(inst, req) => {
            if let Some(host) = &mut hosts[inst] {
                // What other tasks have to do at this instant comes first.
                if std::mem::take(&mut busy[inst]) {
                    host.run();
                }
                lock(world).note_attempts(inst, req, false);
                host.abort(req);
                let hung_up = mutant::during_hang_up(true);
                host.run();
                mutant::during_hang_up(hung_up);
            }
        }
        Todo::Notice(inst, channel, resource, notice) => {
            if hosts[inst].is_some() {
                channel.lease_ended(&resource, notice);
                busy[inst] = true;
            }
        }
        Todo::Kill(inst) => {
            busy[inst] = false;
            let wakers = lock(world).remove_process(inst);
            drop(hosts[inst].take());
            drop(wakers);
        }
        Todo::CorrectAgain => {
            let mut said = SaidOfLists::default();
            hosts.iter().flatten().map(Host::lists).for_each(|of_one| said.add(of_one));
            lock(world).correct_again(&said);
        }
        Todo::Forget(inst, node) => {
            let name = lock(world).profile.name_of(node);
            // Refused while the instance, or a node's note, still has the process for alive.
            if !hosts[inst].as_ref().is_some_and(|host| host.forget(&name)) {
                let mut w = lock(world);
                let again = w.now + 500 * MS;
                w.at(again, Event::Forget { inst, node });
            }
        }
        Todo::Relist { inst, server, is_added } => {
            if let Some(host) = &mut hosts[inst] {
                host.relist(server, is_added);
                busy[inst] = true;
            }
        }
        Todo::EndReplacement(inst) => {
            if let Some(host) = &mut hosts[inst] {
                host.end_replacement();
                busy[inst] = true;
            }
        }
        Todo::Replace { inst, server } => {
            if let Some(host) = &mut hosts[inst] {
                host.replace(server);
                busy[inst] = true;
            }
        }
        Todo::Reterm { inst, terms } => {
            if let Some(host) = &mut hosts[inst] {
                host.reterm(terms);
                busy[inst] = true;
            }
        }
        Todo::Boot(inst) => {
            let w = lock(world);
            if w.profile.other_is_stopped && inst + 1 == w.insts.len() {
                return;
            }
            let initialises = w.profile.initialised && inst == 0 && w.now < 100 * MS;
            drop(w);
            hosts[inst] = Some(Host::boot(world, inst, seed, initialises));
            busy[inst] = true;
        }
    }
}

/// Nothing may be left over in the processes that are alive at the end.
fn close(world: &Shared, hosts: &mut [Option<Host>]) {
    let mut w = lock(world);
    for (inst, host) in hosts.iter().enumerate() {
        let overdue = |req: &&u64| w.requests.get(req).is_some_and(|request| request.is_overdue(w.now));
        let overdue = w.insts[inst].serving.iter().find(overdue).copied();
        if let (None, Some(req)) = (&w.violation, overdue) {
            w.fail(format!("liveness: request {req} at i{inst} was never answered"));
        }
        let waiters = host.as_ref().map_or(0, Host::waiters);
        if w.violation.is_none() && waiters > w.insts[inst].serving.len() {
            w.fail(format!("{waiters} waiters are left in the queues of i{inst}"));
        }
        let cleanups = host.as_ref().map_or(0, Host::cleanups);
        if w.violation.is_none() && cleanups > 0 && w.now > w.closing_time() + 40 * SEC {
            w.fail(format!("{cleanups} clean-ups are in progress at the end"));
        }
    }
    let wakers: Vec<_> = (0..w.insts.len()).map(|inst| w.remove_process(inst)).collect();
    drop(w);
    hosts.iter_mut().for_each(|host| drop(host.take()));
    drop(wakers);
}

impl World {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Packet(packet) => self.deliver(packet),
            Event::Reply { .. } => self.receive(event),
            Event::Notice { .. } => self.receive_notice(event),
            Event::Fail { inst, life, call, kind } => self.fail_call(inst, life, call, kind),
            Event::Timer { inst, life, id } => {
                let local = self.insts[inst].local;
                if local > self.now {
                    self.at(local, event);
                } else if self.insts[inst].life == life {
                    self.fire(inst, id);
                }
            }
            Event::Connect { inst, life, node, connection, generation } => {
                self.connect(inst, life, node, connection, generation)
            }
            Event::Arrive { req } => self.arrive(req),
            Event::Gone { req } => self.hang_up(req),
            Event::Answered { req, answer } => self.answered(req, answer),
            Event::Client { client, generation } => self.client_acts(client, generation),
            Event::Write { client, token } => self.client_writes(client, token),
            Event::SetClient { client, generation } => self.set_client_acts(client, generation),
            Event::Fault => self.fault(),
            Event::Heal(heal) => self.heal(heal),
            Event::Fsync => self.fsync(),
            Event::CorrectOnceSettled => self.correct_once_settled(),
            Event::CorrectAgain => self.todo.push(Todo::CorrectAgain),
            Event::Calm => self.calm_down(),
            Event::Scan => self.scan(),
            Event::CheckLiveness { resource } => self.check_liveness(resource),
            Event::CheckQueue { resource } => self.check_queue(resource),
            Event::WatchQueue { resource } => self.watch_queue(resource),
            Event::BreakFeed { inst, node } => self.break_feed(inst, node),
            Event::Forget { inst, node } => self.todo.push(Todo::Forget(inst, node)),
            Event::Relist { inst } => self.relist(inst),
            Event::Replace { inst } => self.replace(inst),
            Event::Reterm { inst } => self.reterm(inst),
            Event::Done => self.done = true,
            Event::Start { inst } => self.todo.push(Todo::Boot(inst)),
        }
    }
}

/// Sums over many seeds.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) seeds: u64,
    pub(super) events: u64,
    pub(super) grants: u64,
    pub(super) extends: u64,
    pub(super) coverage: CoverageCounts,
    pub(super) failed: Vec<(u64, String)>,
}

/// Runs `count` seeds from `from` on all cores, until `most_failures` have failed. Each tenth seed
/// (or each one, if `twice`) runs a second time and must give the same history.
#[expect(clippy::print_stdout, reason = "a run of hours says at once which seed failed")]
pub(super) fn run_many(
    from: u64,
    count: u64,
    twice_every: u64,
    most_failures: usize,
    progress: fn(&Summary),
) -> Summary {
    let (next, summary) = (AtomicU64::new(from), Mutex::new(Summary::default()));
    let [only_relists, only_replaces, only_terms, only_durable, only_thrifty] =
        ["SIM_RELISTS", "SIM_REPLACES", "SIM_TERMS", "SIM_DURABLE", "SIM_THRIFTY"]
            .map(|name| std::env::var(name).is_ok());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count || summary.lock().expect("no panic").failed.len() >= most_failures {
                        return;
                    }
                    let profile = Profile::of(seed);
                    let is_left_out = only_relists && !profile.relists || only_terms && !profile.reterms;
                    let is_left_out = is_left_out || only_replaces && !profile.replaces;
                    if is_left_out || only_durable && !profile.durable || only_thrifty && profile.thrifty == 0 {
                        continue;
                    }
                    let mut outcome = run(seed, None, false);
                    if seed.is_multiple_of(twice_every) && run(seed, None, false).hash != outcome.hash {
                        outcome.violation = Some("two runs of this seed gave two histories".into());
                    }
                    if let Some(text) = &outcome.violation {
                        println!("seed {seed}: {text}");
                    }
                    let mut sum = summary.lock().expect("no panic");
                    sum.add(outcome);
                    progress(&sum);
                }
            });
        }
    });
    summary.into_inner().expect("no panic")
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.events += outcome.events;
        self.grants += outcome.grants;
        self.extends += outcome.extends;
        self.coverage.add(&outcome.coverage);
        self.failed.extend(outcome.violation.map(|text| (outcome.seed, text)));
    }
}
