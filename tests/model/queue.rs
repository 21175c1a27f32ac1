//! The wait queue itself, explored exhaustively: two instances with the real [`Queue`], their waiters, the locks on the
//! nodes, and every order of answers, notices (which may be lost), confirmations of subscriptions, broken connections,
//! timers, and callers who hang up, go away and return, within small bounds. In difference to the other models this
//! is the code that is served, so the bugs of `src/mutant.rs` are planted in it; it is part of the library's tests.
//!
//! Time: an answer or notice may take any time, so only the order of timers matters. When the earliest one fires, all
//! times in the state move by as much, so that `now` never changes and equal situations are equal states.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::event::{Action, Admission, AttemptOutcome, Blocker, Mode, WaitEvent, WaitLimits, WaitRequest, WaiterId};
use super::queue_state::{NEVER, Queue, QueueSettings, WaiterActivity};
use super::wake::{POLL_MAX, SETTLE_PAUSE, WAKE_JITTER, YIELD_PAUSE};
use crate::mutant::{self, Mutant};
use crate::protocol::INTENT_TTL;
use crate::redlock::backoff::BackoffRange;
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::{LeaseTag, Notice};
use crate::types::{PermitLimit, ResourceName, SlotSet, TokenHash};

const INSTANCES: usize = 2;
const NODES: usize = 2;
const NAMES: [&str; 2] = ["a", "b"];
/// The time at which everything happens.
const NOW: BootTime = BootTime::from_nanos(1 << 60);
/// What a node answers of a lease's end. Holders release earlier.
const LEASE: Duration = Duration::from_secs(10);
/// The bit of another waiter's intent.
const INTENT: u16 = 1 << 15;
/// No wait ends before.
const END: BootTime = BootTime::from_nanos(1 << 62);
/// The environment variable of `make model`.
const IN_DEPTH: &str = "REDLOCKD_MODEL_IN_DEPTH";

fn name(resource: usize) -> ResourceName {
    ResourceName::parse(NAMES[resource]).expect("valid")
}

/// The waiters, and how often each kind of event may happen that nothing else bounds.
#[derive(Debug, Clone)]
struct Bounds {
    /// Of each waiter: its instance, and the resources that it wants.
    waiters: Vec<(usize, &'static [usize])>,
    /// How each wants them; those without a mode exclusively.
    modes: &'static [Mode],
    timers: u8,
    /// Notices that are lost.
    losses: u8,
    /// Connections for notices that break.
    breaks: u8,
    /// Votes that are split.
    splits: u8,
    /// Callers who hang up for good.
    leaves: u8,
    /// Callers who go away and may return.
    absences: u8,
    /// Waiters that enter before one that has waited longer, elsewhere.
    moves: u8,
    /// Notices name each lease; else all leases alike, as may happen to a few, which makes many situations one.
    has_tags: bool,
    bug: Option<Mutant>,
}

/// What a waiter does, as its caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Outside,
    /// With its timer.
    Waiting(BootTime),
    /// The nodes have answered: whose leases they had, by resource, one bit each, and [`INTENT`]. None: they granted. The answer
    /// is on its way.
    Asking([u16; NAMES.len()]),
    Absent,
    Holding,
    /// Released; the confirmation is on its way.
    Releasing,
    Done,
}

/// A notice: instance, node, resource, lease, whether an attempt was withdrawn.
type Report = (usize, usize, usize, usize, bool);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    queues: Vec<Instance>,
    phases: Vec<Phase>,
    /// By resource: several, where they share it.
    holders: [BTreeSet<usize>; NAMES.len()],
    /// By resource, whose intent stands on the nodes. It is there, or gone, as soon as the queue says so.
    intents: [Option<usize>; NAMES.len()],
    /// The waiters for several resources that were refused before this one came, one bit each.
    after: Vec<u16>,
    /// Those that were refused so far, and sleep.
    refused: u16,
    /// On their way: instance, node, resource, lease, whether an attempt was withdrawn.
    notices: BTreeSet<Report>,
    timers: u8,
    losses: u8,
    breaks: u8,
    splits: u8,
    leaves: u8,
    absences: u8,
    moves: u8,
    is_lossy: bool,
    violation: Option<&'static str>,
}

#[derive(Debug, Clone)]
struct Instance {
    queue: Queue,
    /// By node: open.
    connected: [bool; NODES],
    /// By node and resource: what a node was asked for, and what it confirmed.
    asked: BTreeSet<(usize, usize)>,
    confirmed: BTreeSet<(usize, usize)>,
}

impl PartialEq for Instance {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (&self.queue, &other.queue);
        own.waiters == others.waiters
            && own.resources == others.resources
            && (&own.due, own.asking, own.queued) == (&others.due, others.asking, others.queued)
            && (self.connected, &self.asked, &self.confirmed) == (other.connected, &other.asked, &other.confirmed)
    }
}

impl Eq for Instance {}

impl Hash for Instance {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let queue = &self.queue;
        queue.waiters.hash(state);
        NAMES.map(|name| queue.resources.get(name)).hash(state);
        (&queue.due, queue.asking, queue.queued, self.connected, &self.asked, &self.confirmed).hash(state);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Enter(usize),
    Answer(usize),
    Split(usize),
    Release(usize),
    ReleaseConfirmed(usize),
    Deliver(Report),
    Lose(Report),
    Confirm(usize, usize, usize),
    Break(usize, usize),
    Reconnect(usize, usize),
    Timer(usize),
    Leave(usize),
    GoAway(usize),
    Return(usize),
}

impl State {
    fn fail(&mut self, why: &'static str) {
        self.violation.get_or_insert(why);
    }

    /// Hands an event to a queue, and does what it says.
    fn on(&mut self, bounds: &Bounds, inst: usize, event: WaitEvent) {
        let actions = self.queues[inst].queue.handle(NOW, 7, event);
        for action in actions {
            match action {
                Action::Attempt { waiter, joins, .. } => self.attempt(bounds, inst, index(waiter), joins),
                Action::Arm(waiter, at) => {
                    if let Phase::Waiting(_) = self.phases[index(waiter)] {
                        self.phases[index(waiter)] = Phase::Waiting(at);
                    }
                }
                Action::Grant(waiter) => {
                    if self.phases[index(waiter)] != Phase::Holding {
                        self.fail("who holds nothing is granted");
                    }
                }
                Action::Refuse(..) => self.fail("nobody is to be refused"),
                Action::Subscribe(resource) => {
                    let resource = NAMES.iter().position(|name| *name == resource.as_str()).expect("known");
                    let Instance { connected, asked, .. } = &mut self.queues[inst];
                    asked.extend((0..NODES).filter(|node| connected[*node]).map(|node| (node, resource)));
                }
                Action::Unsubscribe(resource) => {
                    let instance = &mut self.queues[inst];
                    instance.asked.retain(|(_, r)| NAMES[*r] != resource.as_str());
                    instance.confirmed.retain(|(_, r)| NAMES[*r] != resource.as_str());
                }
                Action::Intent { waiter, is_withdrawn, .. } => self.intend(bounds, index(waiter), is_withdrawn),
                Action::CheckCycle(..) | Action::ReportDeadlock(_) => self.fail("there are no owners"),
            }
        }
    }

    fn attempt(&mut self, bounds: &Bounds, inst: usize, waiter: usize, joins: bool) {
        if joins || !matches!(self.phases[waiter], Phase::Waiting(_)) {
            return self.fail("who does not wait is to ask");
        }
        let waits = |other: usize| matches!(self.phases[other], Phase::Waiting(_) | Phase::Asking(_));
        let wants = bounds.waiters[waiter].1;
        let is_before = |other: &usize| {
            let (instance, others) = bounds.waiters[*other];
            let entered = (self.order(inst, *other), self.order(inst, waiter));
            let goes_along = bounds.mode(waiter).is_compatible(bounds.mode(*other));
            let is_other = instance == inst && !goes_along;
            is_other && entered.0 < entered.1 && waits(*other) && others.iter().any(|r| wants.contains(r))
        };
        if (0..bounds.waiters.len()).any(|other| other != waiter && is_before(&other)) {
            self.fail("a waiter asks before one that came earlier");
        }
        let mut held = [0; NAMES.len()];
        if self.is_free(bounds, waiter) {
            wants.iter().for_each(|resource| _ = self.holders[*resource].insert(waiter));
            let overtakes = |set: usize| {
                let is_behind = self.after[waiter] & 1 << set != 0 && matches!(self.phases[set], Phase::Waiting(_));
                is_behind && bounds.waiters[set].1.iter().any(|resource| wants.contains(resource))
            };
            if (0..bounds.waiters.len()).any(overtakes) {
                self.fail("a set that was refused is overtaken by one that came later");
            }
        } else {
            let bits = |resource: &usize| self.holders[*resource].iter().fold(0, |bits, holder| bits | 1 << holder);
            for resource in wants {
                let is_intended = self.is_intended(bounds, waiter, *resource);
                held[*resource] = bits(resource) | if is_intended { INTENT } else { 0 };
            }
        }
        self.phases[waiter] = Phase::Asking(held);
    }

    /// Of two, the intent of the one that came first stands.
    fn intend(&mut self, bounds: &Bounds, waiter: usize, is_withdrawn: bool) {
        for resource in bounds.waiters[waiter].1 {
            let intent = &mut self.intents[*resource];
            match is_withdrawn {
                true => *intent = intent.filter(|of| *of != waiter),
                false => *intent = Some(intent.map_or(waiter, |of| of.min(waiter))),
            }
        }
    }

    /// Whether the intent of another waiter keeps this one out.
    fn is_intended(&self, bounds: &Bounds, waiter: usize, resource: usize) -> bool {
        let is_other = |of: usize| of != waiter && !bounds.mode(of).is_compatible(bounds.mode(waiter));
        self.intents[resource].is_some_and(is_other)
    }

    /// The nodes free what the waiter holds, and report it to those who are subscribed.
    fn free(&mut self, wants: &[usize], waiter: usize, is_withdrawn: bool) {
        for resource in wants.iter().filter(|resource| self.holders[**resource].contains(&waiter)) {
            for (inst, instance) in self.queues.iter().enumerate() {
                let nodes = (0..NODES).filter(|node| instance.confirmed.contains(&(*node, *resource)));
                self.notices.extend(nodes.map(|node| (inst, node, *resource, waiter, is_withdrawn)));
            }
        }
        self.holders.iter_mut().for_each(|holders| _ = holders.remove(&waiter));
    }

    /// Numbers rise with arrival: those of the queue.
    fn order(&self, inst: usize, waiter: usize) -> usize {
        let queue = &self.queues[inst].queue;
        queue.waiters.keys().position(|id| index(*id) == waiter).unwrap_or(usize::MAX)
    }

    /// The earliest timer fires: all times come nearer by as much.
    fn pass(&mut self, by: Duration) {
        let sooner = |at: &mut BootTime| {
            if *at < END {
                *at = at.minus(by);
            }
        };
        for instance in &mut self.queues {
            for waiter in instance.queue.waiters.values_mut() {
                sooner(&mut waiter.attempt_at);
                sooner(&mut waiter.recheck_at);
                sooner(&mut waiter.intent_at);
            }
            for known in instance.queue.resources.values_mut() {
                known.held.iter_mut().for_each(|(until, _)| sooner(until));
            }
        }
        for phase in &mut self.phases {
            if let Phase::Waiting(at) = phase {
                sooner(at);
            }
        }
    }

    /// What no past changes is forgotten: times that are over are all the same.
    fn normalised(mut self) -> Self {
        for instance in &mut self.queues {
            (instance.queue.now, instance.queue.random) = (NOW, 0);
            for waiter in instance.queue.waiters.values_mut() {
                waiter.since = NOW;
                waiter.attempt_at = waiter.attempt_at.max(NOW);
                (waiter.tries, waiter.pauses) = (0, waiter.pauses.min(1));
            }
            for known in instance.queue.resources.values_mut() {
                known.held = known.held.filter(|(until, _)| *until > NOW);
            }
        }
        self
    }

    fn is_free(&self, bounds: &Bounds, waiter: usize) -> bool {
        let mode = bounds.mode(waiter);
        let most = mode.limit().map_or(usize::MAX, |limit| limit.get().into());
        bounds.waiters[waiter].1.iter().all(|resource| {
            let holders = &self.holders[*resource];
            let is_next = !self.is_intended(bounds, waiter, *resource);
            is_next && holders.len() < most && holders.iter().all(|of| bounds.mode(*of).is_compatible(mode))
        })
    }

    /// What must hold when nothing is on its way.
    fn check(&mut self, bounds: &Bounds) {
        for (waiter, (inst, wants)) in bounds.waiters.clone().into_iter().enumerate() {
            let Phase::Waiting(at) = self.phases[waiter] else { continue };
            let instance = &self.queues[inst];
            let Some(known) = instance.queue.waiters.values().find(|w| w.token_is(waiter)) else {
                return self.fail("who waits is not in the queue");
            };
            let confirmed = |r: &usize| (0..NODES).all(|node| instance.confirmed.contains(&(node, *r)));
            let is_subscribed = wants.iter().all(confirmed);
            let is_quiet = self.notices.is_empty() && !self.phases.contains(&Phase::Releasing);
            let rests = known.activity == WaiterActivity::Idle && known.is_first;
            let is_led = |other: usize| {
                let is_asking = matches!(self.phases[other], Phase::Asking(_)) && bounds.waiters[other].0 == inst;
                is_asking && bounds.mode(other).is_compatible(bounds.mode(waiter))
            };
            let is_led = (0..bounds.waiters.len()).any(is_led);
            let soon = NOW.plus(YIELD_PAUSE + SETTLE_PAUSE + WAKE_JITTER);
            // Who leaves it to another to ask sleeps a little longer than that one.
            let late = WAKE_JITTER + SETTLE_PAUSE;
            if rests && at > NOW.plus(LEASE + late) {
                return self.fail("a waiter sleeps beyond the lease that it knows of");
            }
            if rests && !is_subscribed && at > NOW.plus(POLL_MAX + late) {
                return self.fail("a waiter without subscriptions does not poll");
            }
            if rests
                && is_subscribed
                && is_quiet
                && !is_led
                && !self.is_lossy
                && self.is_free(bounds, waiter)
                && at > soon
            {
                return self.fail("a waiter sleeps beside a free lock");
            }
        }
        for (inst, instance) in self.queues.iter().enumerate() {
            let present = |waiter: &usize| {
                bounds.waiters[*waiter].0 == inst
                    && matches!(self.phases[*waiter], Phase::Waiting(_) | Phase::Asking(_))
            };
            let present: Vec<usize> = (0..bounds.waiters.len()).filter(present).collect();
            let queue = &instance.queue;
            let asking = present.iter().filter(|waiter| matches!(self.phases[**waiter], Phase::Asking(_))).count();
            let absent = |waiter: usize| bounds.waiters[waiter].0 == inst && self.phases[waiter] == Phase::Absent;
            let absent = (0..bounds.waiters.len()).filter(|waiter| absent(*waiter)).count();
            let is_first = |id: &WaiterId| queue.waiters.get(id).is_some_and(|waiter| waiter.is_first);
            let idle = queue.waiters.keys().filter(|id| is_first(id)).count() == 0;
            if (queue.queued, queue.waiters.len(), queue.asking)
                != (present.len() + absent, present.len() + absent, asking)
            {
                return self.fail("waiters are left over or lost");
            } else if !present.is_empty() && idle {
                return self.fail("of those who wait nobody is the first");
            }
        }
    }
}

fn index(waiter: WaiterId) -> usize {
    usize::try_from(waiter % 16).expect("small")
}

impl super::queue_state::QueuedWaiter {
    fn token_is(&self, waiter: usize) -> bool {
        self.request.token.is_none() && self.request.until == END.plus(Duration::from_nanos(waiter as u64))
    }
}

impl Model for Bounds {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let limits = WaitLimits { per_resource: 10, total: 10, detects_deadlocks: false };
        let retry = BackoffRange { first: Duration::from_millis(2), max: Duration::from_millis(4) };
        let settings = QueueSettings { limits, nodes: NODES, local_nodes: 0, retry, poll: POLL_MAX };
        let instance = || {
            let mut queue = Queue::new(settings);
            for node in 0..NODES {
                queue.handle(NOW, 7, WaitEvent::Connection { node, is_up: true });
            }
            let (asked, confirmed) = (BTreeSet::new(), BTreeSet::new());
            Instance { queue, connected: [true; NODES], asked, confirmed }
        };
        let state = State {
            queues: (0..INSTANCES).map(|_| instance()).collect(),
            phases: vec![Phase::Outside; self.waiters.len()],
            holders: [const { BTreeSet::new() }; NAMES.len()],
            intents: [None; NAMES.len()],
            after: vec![0; self.waiters.len()],
            refused: 0,
            notices: BTreeSet::new(),
            timers: self.timers,
            losses: self.losses,
            breaks: self.breaks,
            splits: self.splits,
            leaves: self.leaves,
            absences: self.absences,
            moves: self.moves,
            is_lossy: false,
            violation: None,
        };
        vec![state.normalised()]
    }

    fn actions(&self, s: &State, steps: &mut Vec<Step>) {
        let earliest =
            s.phases.iter().filter_map(|phase| if let Phase::Waiting(at) = phase { Some(*at) } else { None });
        let earliest = earliest.min();
        // Waiters are numbered in the order of their arrival, at whatever instance that was.
        let mut outside = (0..s.phases.len()).filter(|waiter| s.phases[*waiter] == Phase::Outside);
        steps.extend(outside.next().map(Step::Enter));
        steps.extend(outside.next().filter(|_| s.moves > 0).map(Step::Enter));
        for (waiter, phase) in s.phases.iter().enumerate() {
            match *phase {
                Phase::Outside | Phase::Done => {}
                Phase::Asking(held) => {
                    steps.push(Step::Answer(waiter));
                    let is_refused = held.iter().any(|holders| *holders != 0);
                    steps.extend((s.splits > 0 && is_refused).then_some(Step::Split(waiter)));
                }
                Phase::Waiting(at) => {
                    steps.extend((Some(at) == earliest && s.timers > 0 && at < END).then_some(Step::Timer(waiter)));
                }
                Phase::Absent => steps.extend([Step::Return(waiter), Step::Leave(waiter)]),
                Phase::Holding => steps.push(Step::Release(waiter)),
                Phase::Releasing => steps.push(Step::ReleaseConfirmed(waiter)),
            }
            if matches!(phase, Phase::Asking(_) | Phase::Waiting(_)) {
                steps.extend((s.leaves > 0).then_some(Step::Leave(waiter)));
                steps.extend((s.absences > 0).then_some(Step::GoAway(waiter)));
            }
        }
        for &report in &s.notices {
            steps.push(Step::Deliver(report));
            steps.extend((s.losses > 0).then_some(Step::Lose(report)));
        }
        for (inst, instance) in s.queues.iter().enumerate() {
            steps.extend(instance.asked.iter().map(|(node, resource)| Step::Confirm(inst, *node, *resource)));
            for node in 0..NODES {
                match instance.connected[node] {
                    true => steps.extend((s.breaks > 0).then_some(Step::Break(inst, node))),
                    false => steps.push(Step::Reconnect(inst, node)),
                }
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let before = mutant::plant(self.bug, false);
        let mut s = last.clone();
        self.take(&mut s, step);
        let mut s = s.normalised();
        s.check(self);
        mutant::restore(before);
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("the queue keeps its promises", |_, s: &State| s.violation.is_none())]
    }
}

impl Bounds {
    /// The lease of this waiter. Notices name it by its first digits.
    fn token(&self, waiter: usize) -> TokenHash {
        let tag = if self.has_tags { waiter } else { 0 };
        TokenHash::parse(&format!("{tag:08x}{waiter:056x}")).expect("hex")
    }

    fn mode(&self, waiter: usize) -> Mode {
        self.modes.get(waiter).copied().unwrap_or(Mode::Exclusive)
    }

    fn take(&self, s: &mut State, step: Step) {
        match step {
            Step::Enter(waiter) => {
                let (inst, wants) = self.waiters[waiter];
                let request = WaitRequest {
                    resources: wants.iter().map(|resource| name(*resource)).collect(),
                    mode: self.mode(waiter),
                    party: None,
                    token: None,
                    until: END.plus(Duration::from_nanos(waiter as u64)),
                    admission: Admission::Queued,
                    refuses_deadlock: false,
                    note: "".into(),
                    is_ticket: false,
                };
                s.moves -= u8::from(s.phases[..waiter].contains(&Phase::Outside));
                s.phases[waiter] = Phase::Waiting(NEVER);
                s.after[waiter] = s.refused;
                s.on(self, inst, WaitEvent::Enqueue(waiter as u64, request, NOW));
            }
            Step::Answer(waiter) => self.answer(s, waiter),
            Step::Split(waiter) => {
                s.splits -= 1;
                s.phases[waiter] = Phase::Waiting(NEVER);
                s.on(self, self.waiters[waiter].0, WaitEvent::AttemptFinished(waiter as u64, AttemptOutcome::Split));
            }
            Step::Release(waiter) => self.release(s, waiter),
            Step::ReleaseConfirmed(waiter) => {
                s.phases[waiter] = Phase::Done;
                for resource in self.waiters[waiter].1 {
                    let lease = Some(LeaseTag::of(&self.token(waiter)));
                    s.on(self, self.waiters[waiter].0, WaitEvent::LeaseEnded(name(*resource), lease));
                }
            }
            Step::Deliver(report) => {
                s.notices.remove(&report);
                let (inst, node, resource, lease, withdrawn) = report;
                let notice = Notice { lease: Some(LeaseTag::of(&self.token(lease))), withdrawn, slot: None };
                s.on(self, inst, WaitEvent::Notice(name(resource), node, notice));
            }
            Step::Lose(report) => {
                s.notices.remove(&report);
                (s.losses, s.is_lossy) = (s.losses - 1, true);
            }
            Step::Confirm(inst, node, resource) => {
                s.queues[inst].asked.remove(&(node, resource));
                s.queues[inst].confirmed.insert((node, resource));
                s.on(self, inst, WaitEvent::Subscribed(name(resource), node));
            }
            Step::Break(inst, node) => {
                s.breaks -= 1;
                // What was on its way there is lost; that the queue makes up for this is checked when it is open again.
                s.notices.retain(|(to, from, ..)| (*to, *from) != (inst, node));
                let instance = &mut s.queues[inst];
                instance.connected[node] = false;
                instance.asked.retain(|(from, _)| *from != node);
                instance.confirmed.retain(|(from, _)| *from != node);
                s.on(self, inst, WaitEvent::Connection { node, is_up: false });
            }
            Step::Reconnect(inst, node) => {
                let instance = &mut s.queues[inst];
                instance.connected[node] = true;
                let wants = |r: &usize| instance.queue.resources.get(NAMES[*r]).is_some_and(|r| r.wants_subscription);
                let wanted: Vec<usize> = (0..NAMES.len()).filter(wants).collect();
                instance.asked.extend(wanted.into_iter().map(|resource| (node, resource)));
                s.on(self, inst, WaitEvent::Connection { node, is_up: true });
            }
            Step::Timer(waiter) => {
                s.timers -= 1;
                let Phase::Waiting(at) = s.phases[waiter] else { return };
                s.pass(at.since(NOW));
                s.phases[waiter] = Phase::Waiting(NEVER);
                s.on(self, self.waiters[waiter].0, WaitEvent::Timer(waiter as u64));
            }
            Step::Leave(waiter) => {
                s.leaves -= u8::from(s.phases[waiter] != Phase::Absent);
                let (inst, wants) = self.waiters[waiter];
                s.phases[waiter] = Phase::Done;
                s.on(self, inst, WaitEvent::Cancel(waiter as u64));
                // Who asks at once may still meet what is withdrawn now.
                s.free(wants, waiter, true);
            }
            Step::GoAway(waiter) => {
                s.absences -= 1;
                let (inst, wants) = self.waiters[waiter];
                s.phases[waiter] = Phase::Absent;
                s.on(self, inst, WaitEvent::Absent(waiter as u64));
                s.free(wants, waiter, true);
            }
            Step::Return(waiter) => {
                s.phases[waiter] = Phase::Waiting(NEVER);
                let until = END.plus(Duration::from_nanos(waiter as u64));
                s.on(self, self.waiters[waiter].0, WaitEvent::Returned(waiter as u64, until));
            }
        }
    }

    fn answer(&self, s: &mut State, waiter: usize) {
        let Phase::Asking(held) = s.phases[waiter] else { return };
        let of_waiter = |(resource, waiter)| (held[resource] & 1_u16 << waiter != 0).then_some((resource, waiter));
        let all = (0..NAMES.len()).flat_map(|resource| (0..self.waiters.len()).map(move |waiter| (resource, waiter)));
        let blocked: Vec<_> = all.filter_map(of_waiter).collect();
        let outcome = if held == [0; NAMES.len()] {
            s.phases[waiter] = Phase::Holding;
            AttemptOutcome::Granted { lease: self.token(waiter), slot: None, until: NOW.plus(LEASE) }
        } else {
            s.phases[waiter] = Phase::Waiting(NEVER);
            let blocker = |resource, holder: Option<usize>, is_intent| Blocker {
                resource: name(resource),
                mode: holder.map_or(Mode::Exclusive, |holder| self.mode(holder)),
                lease: holder.map(|holder| self.token(holder)),
                party: None,
                slot: None,
                taken: SlotSet::default(),
                is_confirmed: true,
                is_intent,
                free_in: Some(if is_intent { INTENT_TTL } else { LEASE }),
            };
            let is_intent = |resource: usize| held[resource] & INTENT != 0;
            let held_by = blocked.into_iter().map(|(resource, of)| blocker(resource, Some(of), is_intent(resource)));
            let only_intended = (0..NAMES.len()).filter(|resource| held[*resource] == INTENT);
            AttemptOutcome::Held(held_by.chain(only_intended.map(|resource| blocker(resource, None, true))).collect())
        };
        let (inst, wants) = self.waiters[waiter];
        s.on(self, inst, WaitEvent::AttemptFinished(waiter as u64, outcome));
        if wants.len() > 1 && matches!(s.phases[waiter], Phase::Waiting(_)) {
            s.refused |= 1 << waiter;
        }
    }

    /// The nodes have freed what it held. Who asks from now on finds it free.
    fn release(&self, s: &mut State, waiter: usize) {
        let (own, wants) = self.waiters[waiter];
        s.phases[waiter] = Phase::Releasing;
        s.free(wants, waiter, false);
        for resource in wants {
            let lease = LeaseTag::of(&self.token(waiter));
            s.on(self, own, WaitEvent::ReleaseSent { resource: name(*resource), lease, others_wait: None });
        }
    }
}

/// All that is explored, and the first violation.
fn explore(bounds: Bounds) -> (usize, Option<(&'static str, Vec<Step>)>) {
    let checked = bounds.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checked.discoveries().into_values().next();
    let found = found.map(|path| {
        let why = path.last_state().violation.expect("a violation");
        (why, path.into_vec().into_iter().filter_map(|(_, step)| step).collect())
    });
    (checked.unique_state_count(), found)
}

/// One waiter of an instance, which is mostly the first holder, and two of another, for one resource or two.
const ONE: &[(usize, &[usize])] = &[(1, &[0]), (0, &[0]), (0, &[0])];
const TWO: &[(usize, &[usize])] = &[(1, &[1]), (0, &[0, 1]), (0, &[0])];

fn bounds(waiters: &[(usize, &'static [usize])]) -> Bounds {
    let waiters = waiters.to_vec();
    let modes = &[];
    Bounds {
        waiters,
        modes,
        timers: 1,
        losses: 0,
        breaks: 0,
        splits: 0,
        leaves: 0,
        absences: 0,
        moves: 0,
        has_tags: false,
        bug: None,
    }
}

fn lossy(waiters: &[(usize, &'static [usize])], more: u8) -> Bounds {
    Bounds { timers: 1 + more, losses: 1 + more, ..bounds(waiters) }
}

fn broken(more: u8) -> Bounds {
    Bounds { breaks: 1 + more, timers: 1 + more, ..bounds(&ONE[..2]) }
}

fn leaving(more: u8) -> Bounds {
    Bounds { splits: more, leaves: 1 + more, ..bounds(ONE) }
}

/// Two readers and a writer between them; two of three may hold at a time.
const SHARED: &[Mode] = &[Mode::Shared, Mode::Exclusive, Mode::Shared, Mode::Shared];

fn shared(more: u8) -> Bounds {
    let waiters = &[(0, &[0][..]), (1, &[0]), (1, &[0]), (0, &[0])][..3 + usize::from(more)];
    Bounds { modes: SHARED, leaves: more, ..bounds(waiters) }
}

fn permits(more: u8) -> Bounds {
    let limit = PermitLimit::new(2).expect("in range");
    let modes: &'static [Mode] = Box::leak(Box::new([Mode::Permit { limit }; 5]));
    let waiters = &[(1, &[0][..]), (0, &[0]), (0, &[0]), (0, &[0])];
    Bounds { modes, timers: more, ..bounds(waiters) }
}

/// A set behind a lease of another instance, where a caller that comes after its refusal wants what was held.
fn overtaking(more: u8) -> Bounds {
    let waiters = &[(1, &[0][..]), (0, &[0, 1]), (1, &[0]), (1, &[1])][..3 + usize::from(more)];
    Bounds { has_tags: true, ..bounds(waiters) }
}

fn absent(more: u8) -> Bounds {
    Bounds { absences: 1 + more, ..bounds(ONE) }
}

/// Two of one instance, of which one may come from elsewhere, and a holder.
fn moving(more: u8) -> Bounds {
    Bounds { moves: 1, leaves: more, ..bounds(ONE) }
}

#[test]
#[expect(clippy::print_stdout, reason = "the table, where it is asked for with --nocapture")]
fn the_queue_keeps_its_promises_in_every_order() {
    let more = u8::from(std::env::var_os(IN_DEPTH).is_some());
    for (what, bounds) in [
        ("one resource, lost notices", lossy(ONE, more)),
        ("two resources, lost notices", lossy(TWO, more)),
        ("callers who hang up", leaving(more)),
        ("callers who go away and return", absent(more)),
        ("callers who come from another instance", moving(more)),
        ("connections that break", broken(more)),
        ("readers and a writer", shared(more)),
        ("two permits", permits(more)),
        ("a set, and callers of another instance", overtaking(more)),
    ] {
        let (states, found) = explore(bounds);
        println!("| queue: {what} | {states} |");
        assert_eq!(found, None, "{what}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "what finds each bug is part of the output")]
fn planted_bugs_of_the_queue_are_found() {
    use Mutant::*;
    let planted = [
        (leaving(0), &[LeaverStays, LeaverCallsNobody][..]),
        (absent(0), &[AbsentForgotten, AbsentAsks, ReturnedIsSecond]),
        (moving(0), &[MovedIsLast]),
        (broken(0), &[SubscriptionLossUnnoticed]),
        (lossy(ONE, 0), &[GrantCallsNobody, TimerIgnored, EndWakesNobody, NewestFirst, EveryoneContends]),
        (lossy(ONE, 0), &[NoticesIgnored, ListensTooLate, SubscribedByOne]),
        (overtaking(0), &[SetLeavesNoIntent]),
    ];
    let mut missed: Vec<Mutant> = Vec::new();
    for (bounds, bugs) in planted {
        for bug in bugs {
            let (states, found) = explore(Bounds { bug: Some(*bug), ..bounds.clone() });
            println!("{bug:?}: {states} states, {:?}", found.as_ref().map(|(why, steps)| (why, steps.len())));
            missed.extend(found.is_none().then_some(*bug));
        }
    }
    assert!(missed.is_empty(), "{missed:?} were not found");
}
