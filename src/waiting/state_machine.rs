//! The wait queues of one instance as one state machine: [`Queue::handle`] takes an event and returns actions. It has no clock,
//! no tasks and no randomness of its own, so production, the simulation and the model run the same code.
//!
//! First come, first served: a waiter asks the nodes only when it is *first* in the queue of each of its resources,
//! alone or with compatible waiters. It asks when it becomes first, and then whenever its resources may have become
//! free. Numbers rise with time, so the oldest waiter of all is first in each of its queues: waiters for several
//! resources cannot block each other for ever.

use std::collections::{BTreeMap, VecDeque};

use super::deadlock::PartyWaiters;
use super::event::{Action, AttemptOutcome, Blocker, RefuseReason, SlotChoice, WaitEvent, WaitRequest, WaiterId};
use super::queue_state::{NEVER, QueuedWaiter, WaiterActivity};
pub use super::queue_state::{Queue, QueueSettings};
use super::wake::{SETTLE_PAUSE, WAKE_JITTER};
use crate::keyed_maps::KeyedMap;
use crate::mutant::{Mutant, is};
use crate::redlock::clock::BootTime;
use crate::types::ResourceName;

/// Maximum number of waiters that ask the nodes at a time; the others follow in order. Otherwise thousands that
/// arrive or are woken at once would fill the queues to the nodes, and no caller could acquire, extend or release
/// until all of them had tried. 64 keep the nodes busy.
pub const CONCURRENT_ATTEMPTS_MAX: usize = 64;

/// Attempts in a row, with growing pauses, against a lease that fewer than a quorum of nodes confirm. After them the
/// waiter polls.
const UNCONFIRMED_TRIES: u32 = 10;

/// Attempts of a request that does not wait, as long as votes are split: a split vote does not show whether the
/// resource is free.
pub const SPLIT_ATTEMPTS: u32 = 6;

impl Queue {
    /// No waiters, no connections for notices.
    pub fn new(settings: QueueSettings) -> Self {
        Self {
            settings,
            waiters: BTreeMap::new(),
            resources: KeyedMap::default(),
            parties: PartyWaiters::default(),
            tokens: KeyedMap::default(),
            due: VecDeque::new(),
            asking: 0,
            queued: 0,
            connected: settings.local_nodes,
            members: crate::redlock::known_nodes::first(settings.nodes),
            now: BootTime::default(),
            random: 0,
            actions: Vec::new(),
        }
    }

    /// Handles an event; returns the actions that follow from it. `random`: 64 random bits, from which pauses are derived.
    pub fn handle(&mut self, now: BootTime, random: u64, event: WaitEvent) -> Vec<Action> {
        (self.now, self.random) = (now, random);
        match event {
            WaitEvent::Enqueue(waiter, request, since) => self.enqueue(waiter, request, since),
            WaitEvent::Cancel(_) if is(Mutant::LeaverStays) => {}
            WaitEvent::Cancel(waiter) => self.cancel(waiter),
            WaitEvent::Absent(waiter) => self.absent(waiter),
            WaitEvent::Returned(waiter, until) => self.returned(waiter, until),
            WaitEvent::AttemptFinished(waiter, outcome) => self.attempt_finished(waiter, outcome),
            WaitEvent::GrantedBeside(request, lease, slot, until) => {
                self.note_grant(&QueuedWaiter::new(request, now, false), (&lease, slot), until);
            }
            WaitEvent::CycleChecked { waiter, cycle, is_confirmed, may_refuse } => {
                self.cycle_checked(waiter, cycle, is_confirmed, may_refuse);
            }
            WaitEvent::Timer(_) if is(Mutant::TimerIgnored) => {}
            WaitEvent::Timer(waiter) => self.proceed(waiter),
            WaitEvent::ReleaseSent { resource, lease, others_wait } => self.release_sent(&resource, lease, others_wait),
            WaitEvent::LeaseEnded(resource, lease) => {
                let after = self.resources.get_mut(&resource).and_then(|r| r.filter.on_certain_end(lease));
                self.wake(&resource, after, lease);
            }
            WaitEvent::LeaseMayHaveEnded(resource) => {
                self.resources.get_mut(&resource).into_iter().for_each(|known| known.slots.forget());
                self.wake(&resource, Some(SETTLE_PAUSE), None);
            }
            WaitEvent::Notice(resource, node, notice) => self.notice(&resource, node, notice),
            WaitEvent::Subscribed(resource, node) => self.subscribed(&resource, node),
            WaitEvent::Connection { node, is_up } => self.connection(node, is_up),
            WaitEvent::List { members } => self.list(members),
            WaitEvent::HeldUntil(resource, until, mode) => self.set_held(&resource, until, mode),
        }
        self.start_due();
        std::mem::take(&mut self.actions)
    }

    fn enqueue(&mut self, id: WaiterId, request: WaitRequest, since: BootTime) {
        if let Some(reason) = self.refusal_at_once(&request) {
            return self.actions.push(Action::Refuse(id, reason));
        }
        let is_behind = request.resources.iter().any(|resource| self.waiter_count(resource) > 0);
        let waiter = QueuedWaiter { since, ..QueuedWaiter::new(request, self.now, is_behind) };
        let (waits, resources) = (waiter.waits(), waiter.request.resources.clone());
        let token = waiter.request.token.clone();
        let party = waiter.request.party.clone().filter(|_| waits && self.settings.limits.detects_deadlocks);
        self.waiters.insert(id, Box::new(waiter));
        if waits {
            self.queued += 1;
            self.token_entered(token);
            let is_ahead = self.enter_queues(id, &resources);
            if let Some(party) = party {
                self.parties.add(&party, id);
                let is_suspect = self.cycle_through(id).is_some();
                self.update(id, |waiter| waiter.is_suspect = is_suspect);
            }
            if is_ahead {
                self.step_back(&resources);
            }
            self.find_first(&resources);
        }
        self.proceed(id);
    }

    pub(super) fn cancel(&mut self, id: WaiterId) {
        let was_woken = self.takes_wake_along(id);
        let asked = self.stop(id);
        if let Some(waiter) = self.remove(id) {
            self.left(&waiter.request.resources, asked);
            self.pass_wake_on(&waiter.request.resources, was_woken);
        }
    }

    /// Lets the next waiters proceed. `asked`: the waiter that left may still hold the resources for a moment, so the
    /// next one asks now and, if refused, soon again.
    pub(super) fn left(&mut self, resources: &[ResourceName], asked: bool) {
        if asked || !is(Mutant::LeaverCallsNobody) {
            self.find_first(resources);
        }
        if asked {
            self.start_due();
            let soon = self.now.plus(SETTLE_PAUSE);
            resources.iter().for_each(|resource| self.wake_first_at(resource, soon, true));
        }
    }

    /// Removes a waiter and answers that it has no lease.
    pub(super) fn refuse(&mut self, id: WaiterId, reason: RefuseReason) {
        let was_woken = self.takes_wake_along(id);
        let Some(waiter) = self.remove(id) else { return };
        self.actions.push(Action::Refuse(id, reason));
        self.find_first(&waiter.request.resources);
        self.pass_wake_on(&waiter.request.resources, was_woken);
    }

    /// Removes a waiter; those behind it are not woken yet.
    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Box<QueuedWaiter>> {
        self.withdraw_intent(id);
        self.leave_queues(id);
        self.stop(id);
        self.waiters.remove(&id)
    }

    /// Ends what a waiter is doing. Returns whether it was making an attempt while it was in its queues.
    pub(super) fn stop(&mut self, id: WaiterId) -> bool {
        let Some(waiter) = self.waiters.get_mut(&id) else { return false };
        match std::mem::replace(&mut waiter.activity, WaiterActivity::Idle) {
            WaiterActivity::Asking { is_counted, has_left } => {
                self.asking -= usize::from(is_counted);
                return waiter.waits() && !has_left;
            }
            WaiterActivity::Due { .. } => self.due.retain(|due| *due != id),
            WaiterActivity::Idle | WaiterActivity::CheckingCycle => {}
        }
        false
    }

    fn leave_queues(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let mut stood = false;
        for resource in waiter.request.resources.iter() {
            let Some(known) = self.resources.get_mut(resource) else { continue };
            let Ok(index) = known.order.binary_search(&id) else { continue };
            known.order.remove(index);
            stood = true;
            if known.order.is_empty() {
                let wanted = self.resources.remove(resource).is_some_and(|known| known.wants_subscription);
                let resource = resource.clone();
                self.actions.extend(wanted.then_some(Action::Unsubscribe(resource)));
            }
        }
        self.queued -= usize::from(stood);
        let token = waiter.request.token.clone().filter(|_| stood);
        if let Some(party) = &waiter.request.party {
            self.parties.remove(party, id);
        }
        self.token_left(token);
    }

    // Which waiters are first, and what they do.

    /// Finds the waiters that have become first, after these queues changed.
    pub(super) fn find_first(&mut self, resources: &[ResourceName]) {
        for id in resources.iter().flat_map(|resource| self.head(resource)).collect::<Vec<_>>() {
            let Some(waiter) = self.waiters.get(&id).filter(|waiter| !waiter.is_first) else { continue };
            let others = &waiter.request.resources;
            if others.len() > 1 && !others.iter().all(|resource| self.head(resource).contains(&id)) {
                continue;
            }
            let jitter = self.draw(WAKE_JITTER);
            let at = self.held_until(id).map_or(self.now, |until| until.plus(jitter));
            let at = self.follows(id, true).or_else(|| self.no_slot_until(id)).map_or(at, |other| at.max(other));
            self.update(id, |waiter| (waiter.is_first, waiter.attempt_at) = (true, at));
            self.proceed(id);
        }
    }

    /// Starts the next step of a waiter that is idle: join, ask, give up, check for a deadlock, or sleep.
    pub(super) fn proceed(&mut self, id: WaiterId) {
        let (now, poll) = (self.now, self.settings.poll);
        let jitter = self.draw(WAKE_JITTER);
        self.sleep_without_slot(id);
        let (held_until, follows) = (self.held_until(id), self.follows(id, false));
        let Some(waiter) = self.waiters.get_mut(&id).filter(|waiter| !waiter.is_absent) else { return };
        let waits = waiter.waits();
        let is_over = waits && now >= waiter.request.until;
        match waiter.activity {
            WaiterActivity::Due { .. } if now >= waiter.request.until.plus(poll) => {
                return self.refuse(id, RefuseReason::NotAsked);
            }
            WaiterActivity::Idle => {}
            _ => return,
        }
        if std::mem::take(&mut waiter.may_join) {
            waiter.activity = WaiterActivity::Asking { is_counted: false, has_left: false };
            let slots = SlotChoice::default();
            return self.actions.push(Action::Attempt { waiter: id, joins: true, slots });
        }
        if waits && waiter.is_first && waiter.attempt_at <= now && !waiter.is_woken && !is_over {
            // The holder extended the lease through this instance meanwhile: the nodes need not be asked.
            let extended = held_until.filter(|until| *until > now);
            let follows = follows.filter(|_| waiter.has_slept);
            waiter.defers = follows.is_some();
            waiter.attempt_at = follows.or(extended.map(|until| until.plus(jitter))).unwrap_or(waiter.attempt_at);
        }
        let at = if waiter.is_first { waiter.attempt_at } else { NEVER };
        if at <= now || is_over {
            if !waits {
                return self.ask(id);
            }
            let left_from = (!waiter.is_first).then(|| self.position(id));
            let at = self.become_due(id, left_from);
            return self.actions.push(Action::Arm(id, at));
        }
        let is_suspect = std::mem::take(&mut waiter.is_suspect) || waiter.recheck_at <= now;
        if is_suspect {
            waiter.recheck_at = NEVER;
            if let Some(cycle) = self.cycle_through(id) {
                self.update(id, |waiter| waiter.activity = WaiterActivity::CheckingCycle);
                return self.actions.push(Action::CheckCycle(id, cycle));
            }
        }
        let intent_at = self.leave_intent(id);
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        waiter.has_slept |= waiter.is_first;
        let until = if waits { waiter.request.until } else { NEVER };
        self.actions.push(Action::Arm(id, at.min(until).min(waiter.recheck_at).min(intent_at)));
    }

    /// Queues the waiter to ask. Returns the latest time until which it waits for that.
    fn become_due(&mut self, id: WaiterId, left_from: Option<usize>) -> BootTime {
        if left_from.is_some() {
            self.leave_queues(id);
        }
        self.due.push_back(id);
        let mut until = self.now;
        self.update(id, |waiter| (waiter.activity, until) = (WaiterActivity::Due { left_from }, waiter.request.until));
        if let Some(waiter) = self.waiters.get(&id).filter(|_| left_from.is_some()) {
            let resources = waiter.request.resources.clone();
            self.find_first(&resources);
        }
        until.plus(self.settings.poll)
    }

    fn start_due(&mut self) {
        while self.asking < CONCURRENT_ATTEMPTS_MAX
            && let Some(id) = self.due.pop_front()
        {
            match self.waiters.get(&id).map(|waiter| waiter.activity) {
                Some(WaiterActivity::Due { left_from: None }) => self.ask(id),
                Some(WaiterActivity::Due { left_from: Some(position) }) => {
                    self.asking += 1;
                    let activity = WaiterActivity::Asking { is_counted: true, has_left: true };
                    self.update(id, |waiter| waiter.activity = activity);
                    self.actions.push(Action::Refuse(id, RefuseReason::TimedOut { position }));
                }
                _ => {}
            }
        }
    }

    fn ask(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let (waits, resources) = (waiter.waits(), waiter.request.resources.clone());
        let was_subscribed = resources.iter().all(|resource| self.is_subscribed(resource));
        if waits {
            self.asking += 1;
            for resource in resources.iter() {
                self.resources.get_mut(resource).into_iter().for_each(|known| known.filter.on_attempt_started());
            }
        }
        self.update(id, |waiter| {
            waiter.activity = WaiterActivity::Asking { is_counted: waits, has_left: false };
            (waiter.was_woken, waiter.defers) = (waiter.is_woken, false);
            (waiter.attempt_at, waiter.is_woken) = (NEVER, false);
            (waiter.was_subscribed, waiter.awaits_subscription) = (was_subscribed, false);
        });
        let slots = self.choose_slot(id);
        self.actions.push(Action::Attempt { waiter: id, joins: false, slots });
    }

    // Results of attempts.

    fn attempt_finished(&mut self, id: WaiterId, outcome: AttemptOutcome) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        let WaiterActivity::Asking { is_counted, has_left: false } = waiter.activity else { return };
        waiter.activity = WaiterActivity::Idle;
        if is(Mutant::WakeWhileAskingLost) {
            (waiter.attempt_at, waiter.is_woken) = (NEVER, false);
        }
        waiter.tries = waiter.tries.saturating_add(u32::from(is_counted || !waiter.waits()));
        self.asking -= usize::from(is_counted);
        let is_last = match outcome {
            AttemptOutcome::Final => true,
            AttemptOutcome::NotJoined => false,
            AttemptOutcome::Split if !waiter.waits() => waiter.tries >= SPLIT_ATTEMPTS,
            _ => !waiter.waits() || self.now >= waiter.request.until,
        };
        match outcome {
            AttemptOutcome::Granted { lease, slot, until } => return self.granted(id, (&lease, slot), until),
            _ if is_last => return self.refuse(id, RefuseReason::LastAttempt),
            AttemptOutcome::Held(blockers) => self.held(id, &blockers),
            AttemptOutcome::NotJoined => {}
            _ => {
                let at = self.now.plus(self.pause(id));
                self.update(id, |waiter| waiter.attempt_at = waiter.attempt_at.min(at));
            }
        }
        self.proceed(id);
    }

    /// Others hold the resources of a waiter: decides when it asks again.
    fn held(&mut self, id: WaiterId, blockers: &[Blocker]) {
        let Some((was_subscribed, resources)) =
            self.waiters.get(&id).map(|waiter| (waiter.was_subscribed, waiter.request.resources.clone()))
        else {
            return;
        };
        let (now, poll) = (self.now, self.settings.poll);
        let relies = was_subscribed || is(Mutant::ListensTooLate);
        let mut free_at = now;
        self.holders_seen(blockers);
        for blocker in blockers {
            self.subscribe(&blocker.resource);
            // A lease of this service ends with a notice or at its time. A lock of another client may end without a
            // notice, and nobody subscribes to resources that the waiter's token held when it entered.
            let stands_there = resources.contains(&blocker.resource);
            let free_in = match (blocker.free_in, &blocker.lease) {
                (Some(free_in), Some(_)) if relies && stands_there => free_in,
                (free_in, _) => free_in.unwrap_or(poll).min(poll),
            };
            free_at = free_at.max(now.plus(free_in));
        }
        let is_subscribed = resources.iter().all(|resource| self.is_subscribed(resource));
        // A lease that ended between the attempt and the subscription was not reported.
        let missed = !relies && is_subscribed;
        let mut at = if missed { now } else { free_at.plus(self.draw(WAKE_JITTER)) }.min(self.met(id, blockers));
        let is_confirmed = blockers.iter().all(|blocker| blocker.is_confirmed) || is(Mutant::HolderUnconfirmed);
        let tries = self.waiters.get(&id).map_or(0, |waiter| waiter.unconfirmed).saturating_add(1);
        if !is_confirmed {
            // The attempt may have met others in a vote that nobody wins. Nodes that do not answer will not report
            // its end.
            let pause = if tries > UNCONFIRMED_TRIES { self.draw(poll) } else { self.pause(id) };
            at = at.min(now.plus(pause));
        }
        self.update(id, |waiter| {
            waiter.attempt_at = waiter.attempt_at.min(at);
            waiter.awaits_subscription = !relies && !is_subscribed;
            match is_confirmed {
                true => (waiter.unconfirmed, waiter.pauses) = (0, 0),
                false => waiter.unconfirmed = tries,
            }
        });
    }
}

#[cfg(test)]
#[path = "state_machine_tests.rs"]
mod tests;
