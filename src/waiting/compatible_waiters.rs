//! Compatible waiters at the head of a queue are served together. Each end of a lease wakes all of them that wait for
//! shared leases. The end of a permit frees one permit, so it wakes only one waiter: otherwise a hundred waiters
//! would ask the nodes for each permit that ends.

use std::time::Duration;

use super::event::{Action, Blocker, Intent, Mode, WaiterId};
use super::queue_state::{NEVER, Queue, QueuedWaiter, WaiterActivity};
use super::wake::SETTLE_PAUSE;
use crate::mutant::{Mutant, is};
use crate::redlock::clock::BootTime;
use crate::types::ResourceName;

/// An intent is renewed after this time, which is half of its TTL on the nodes.
pub(crate) const INTENT_RENEWED: Duration = Duration::from_secs(1);

/// Whether the mode is a permit, with any limit.
pub(super) fn is_permit(mode: Mode) -> bool {
    mode.limit().is_some()
}

/// Maximum number of leases of this mode at a time.
fn at_a_time(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => 1,
        Mode::Shared => usize::MAX,
        Mode::Permit { limit } => limit.get().into(),
    }
}

fn intent(id: WaiterId, waiter: &QueuedWaiter, is_withdrawn: bool) -> Action {
    let (resources, mode) = (waiter.request.resources.clone(), waiter.request.mode);
    Action::Intent { waiter: id, intent: Intent { resources, mode, since: waiter.since }, is_withdrawn }
}

impl Queue {
    /// The waiters at the head of a queue that are compatible with each other: one waiter, several for shared leases,
    /// or as many as there are permits. Waiters with absent callers are skipped.
    pub(super) fn head(&self, resource: &ResourceName) -> Vec<WaiterId> {
        let order = self.resources.get(resource).into_iter().flat_map(|known| &known.order);
        let mut present = order.filter(|id| self.waiters.get(id).is_some_and(|waiter| !waiter.is_absent));
        let mode = |id: &WaiterId| self.waiters.get(id).map_or(Mode::Exclusive, |waiter| waiter.request.mode);
        if is(Mutant::NewestFirst) {
            return present.next_back().copied().into_iter().collect();
        }
        let first = present.clone().next().map(mode);
        let at_a_time = first.map_or(1, at_a_time);
        let is_head = |(index, id): &(usize, &WaiterId)| {
            let is_compatible = first.is_some_and(|first| first.is_compatible(mode(id)) && *index < at_a_time);
            *index == 0 || is_compatible || is(Mutant::EveryoneContends)
        };
        present.by_ref().enumerate().take_while(is_head).map(|(_, id)| *id).collect()
    }

    /// Whether a request of this mode that does not wait would overtake a waiter. A shared request does not overtake shared
    /// waiters: it is granted together with them.
    pub(super) fn keeps_out(&self, resource: &ResourceName, mode: Mode) -> bool {
        let order = self.resources.get(resource).into_iter().flat_map(|known| &known.order);
        let mut present = order.filter_map(|id| self.waiters.get(id)).filter(|waiter| !waiter.is_absent);
        present.any(|waiter| mode != Mode::Shared || waiter.request.mode != Mode::Shared)
    }

    /// Lets the first waiters of a resource ask at this time. If only one permit becomes free (`frees_one`), one of
    /// the waiters for permits asks, not all.
    pub(super) fn wake_first_at(&mut self, resource: &ResourceName, at: BootTime, frees_one: bool) {
        let mut has_one = false;
        for id in self.head(resource) {
            let Some(waiter) = self.waiters.get(&id).filter(|waiter| waiter.is_first) else { continue };
            // A waiter that is already asking may be asking for another permit that ended: it asks again if refused.
            let is_busy = matches!(waiter.activity, WaiterActivity::Asking { .. } | WaiterActivity::Due { .. });
            if frees_one && is_permit(waiter.request.mode) && !is_busy {
                if has_one || waiter.attempt_at <= at && waiter.is_woken {
                    continue;
                }
                has_one = true;
            }
            self.update(id, |waiter| waiter.wake(at));
            self.proceed(id);
        }
    }

    /// Whether the end of a permit has woken this waiter. If it then leaves, another waiter must be woken.
    pub(super) fn takes_wake_along(&self, id: WaiterId) -> bool {
        self.waiters.get(&id).is_some_and(|waiter| {
            let is_woken = waiter.is_woken || matches!(waiter.activity, WaiterActivity::Due { left_from: None });
            is_permit(waiter.request.mode) && waiter.is_first && is_woken
        })
    }

    /// Wakes another waiter in place of one that left.
    pub(super) fn pass_wake_on(&mut self, resources: &[ResourceName], was_woken: bool) {
        let now = self.now;
        for resource in resources.iter().filter(|_| was_woken) {
            self.wake_first_at(resource, now, true);
        }
    }

    /// Handles what blocked a waiter's last attempt. A waiter leaves its intent where others could be admitted again
    /// and again before it: an exclusive waiter that met leases which are held together; a set, as all its resources
    /// must be free at once; and a waiter that met another caller's intent, so that the longest wait comes first. Of
    /// compatible waiters, the oldest does it for all. Returns the latest time to ask again: soon, if this intent may
    /// now replace the other one.
    pub(super) fn met(&mut self, id: WaiterId, blockers: &[Blocker]) -> BootTime {
        let Some(waiter) = self.waiters.get(&id).filter(|waiter| waiter.waits()) else { return NEVER };
        let is_intent = blockers.iter().any(|blocker| blocker.is_intent);
        let is_set = waiter.request.resources.len() > 1 && !is(Mutant::SetLeavesNoIntent);
        let waits_alone = waiter.request.mode == Mode::Exclusive;
        let is_together = blockers.iter().any(|blocker| blocker.mode != Mode::Exclusive);
        let is_oldest = waiter.request.resources.iter().all(|resource| self.oldest(resource) == Some(id));
        let is_needed = waits_alone && is_together || is_oldest && (is_set || waiter.met_intent || is_intent);
        let (now, is_new) = (self.now, !waiter.has_intent);
        self.update(id, |waiter| {
            waiter.met_intent |= is_intent;
            waiter.intent_at = match is_needed {
                true if is_new => now,
                true => waiter.intent_at.min(now.plus(INTENT_RENEWED)),
                false => NEVER,
            };
        });
        if is_intent && is_needed && is_new { now.plus(SETTLE_PAUSE) } else { NEVER }
    }

    /// The oldest waiter whose caller is present.
    fn oldest(&self, resource: &ResourceName) -> Option<WaiterId> {
        let order = self.resources.get(resource).into_iter().flat_map(|known| &known.order);
        order.copied().find(|id| self.waiters.get(id).is_some_and(|waiter| !waiter.is_absent))
    }

    /// Leaves or renews the intent of the first waiter. Returns when it must be renewed.
    pub(super) fn leave_intent(&mut self, id: WaiterId) -> BootTime {
        let now = self.now;
        let Some(waiter) = self.waiters.get_mut(&id) else { return NEVER };
        if !waiter.is_first {
            return NEVER;
        }
        if waiter.intent_at <= now {
            (waiter.intent_at, waiter.has_intent) = (now.plus(INTENT_RENEWED), true);
            let action = intent(id, waiter, false);
            self.actions.push(action);
        }
        self.waiters.get(&id).map_or(NEVER, |waiter| waiter.intent_at)
    }

    /// Withdraws the intent of a waiter that is no longer the first, or has what it waited for.
    pub(super) fn withdraw_intent(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        waiter.intent_at = NEVER;
        if std::mem::take(&mut waiter.has_intent) {
            let action = intent(id, waiter, true);
            self.actions.push(action);
        }
    }

    /// Until when a waiter that was not woken leaves asking to the first compatible waiter, which is asking or knows
    /// what it waits for. `is_new`: the waiter has not asked yet, so it sleeps only if the first one sleeps.
    pub(super) fn follows(&self, id: WaiterId, is_new: bool) -> Option<BootTime> {
        let is_alone =
            |waiter: &QueuedWaiter| waiter.request.mode != Mode::Exclusive && waiter.request.resources.len() == 1;
        let waiter = self.waiters.get(&id).filter(|waiter| is_alone(waiter))?;
        let order = self.resources.get(waiter.request.resources.first()?).into_iter().flat_map(|known| &known.order);
        let mut present = order.filter_map(|other| Some((other, self.waiters.get(other)?)));
        let (_, leader) = present.find(|(_, other)| !other.is_absent).filter(|(other, _)| **other != id)?;
        // A waiter for several resources may wait for any of them.
        if !is_alone(leader)
            || !leader.is_first
            || leader.is_woken
            || !leader.request.mode.is_compatible(waiter.request.mode)
        {
            return None;
        }
        match leader.activity {
            WaiterActivity::Idle if leader.attempt_at > self.now => Some(leader.attempt_at.plus(SETTLE_PAUSE)),
            WaiterActivity::Asking { .. } | WaiterActivity::Due { .. } if !is_new => {
                Some(self.now.plus(self.settings.poll))
            }
            _ => None,
        }
    }

    /// After this waiter was granted, wakes the waiters that did not ask because it was asking. Waiters that the same
    /// end has woken ask anyway.
    pub(super) fn lead(&mut self, resource: &ResourceName, waiter: &QueuedWaiter) {
        if waiter.request.mode == Mode::Exclusive || !waiter.waits() {
            return;
        }
        if !waiter.was_woken {
            return self.wake_first_at(resource, self.now, true);
        }
        let now = self.now;
        for id in self.head(resource) {
            if self.waiters.get(&id).is_some_and(|other| other.is_first && other.defers) {
                self.update(id, |other| other.wake(now));
                self.proceed(id);
            }
        }
    }
}
