//! Which slots of a resource's permits are free, as far as this instance knows. A waiter asks for a free slot that no other
//! waiter of this instance asks for, and sleeps if none is free. A wrong entry costs at most one round or one pause.

use std::collections::{BTreeMap, VecDeque};

use super::event::{Blocker, SlotChoice, WaiterId};
use super::queue_state::{Queue, QueuedWaiter, Resource, WaiterActivity};
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::LeaseTag;
use crate::types::{PERMITS_MAX, PermitLimit, ResourceName, SlotSet};

/// What is known of the slots of one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct FreeSlots {
    /// Slots that are not free on any quorum, each with its permit where that is known.
    taken: BTreeMap<u8, Option<LeaseTag>>,
    /// Slots whose permits have ended since, the earliest first: they are requested before others.
    freed: VecDeque<u8>,
}

impl FreeSlots {
    /// This permit was granted here, or its slot is known from a node.
    pub(super) fn take(&mut self, slot: u8, lease: Option<LeaseTag>) {
        if slot < PERMITS_MAX {
            self.freed.retain(|freed| *freed != slot);
            self.taken.insert(slot, lease);
        }
    }

    /// A node reported the end of this permit, which had that slot.
    pub(super) fn learn(&mut self, slot: u8, lease: LeaseTag) {
        if let Some(known) = self.taken.get_mut(&slot).filter(|known| known.is_none()) {
            *known = Some(lease);
        }
    }

    /// Records that this lease has ended, or may have.
    pub(super) fn free(&mut self, lease: LeaseTag) {
        match self.taken.iter().find(|(_, of)| **of == Some(lease)).map(|(slot, _)| *slot) {
            Some(slot) => {
                self.taken.remove(&slot);
                self.freed.push_back(slot);
            }
            // It may be any of the permits that are not known.
            None => self.taken.retain(|_, of| of.is_some()),
        }
    }

    /// A permit that is not known here may have ended.
    pub(super) fn forget(&mut self) {
        self.taken.clear();
    }

    /// An attempt was refused by these blockers, all of one resource. They may include a permit whose end was reported meanwhile.
    pub(super) fn see<'a>(
        &mut self,
        blockers: impl Iterator<Item = &'a Blocker>,
        has_ended: impl Fn(LeaseTag) -> bool,
    ) {
        let mut taken: BTreeMap<u8, Option<LeaseTag>> = BTreeMap::new();
        for blocker in blockers {
            for slot in blocker.taken.iter() {
                let known = self.taken.get(&slot).copied().flatten();
                taken.entry(slot).or_insert(known);
            }
            if let Some((slot, lease)) = blocker.slot.zip(blocker.lease.as_ref())
                && let Some(of) = taken.get_mut(&slot)
            {
                *of = Some(LeaseTag::of(lease));
            }
        }
        taken.retain(|_, of| !of.is_some_and(&has_ended));
        self.freed.retain(|slot| !taken.contains_key(slot));
        self.taken = taken;
    }

    fn is_free(&self, slot: u8) -> bool {
        !self.taken.contains_key(&slot)
    }
}

impl Resource {
    /// Records that this lease is a permit, as its notice says.
    pub(super) fn note_permit(&mut self, lease: LeaseTag) {
        if !self.permits.contains(&lease) && self.permits.len() < PERMITS_MAX.into() {
            self.permits.push(lease);
        }
    }
}

impl Queue {
    /// The slots that other waiters of this instance are asking for.
    fn asked_slots(&self, resource: &ResourceName, id: WaiterId) -> SlotSet {
        let others = self.head(resource).into_iter().filter(|other| *other != id);
        let asked = others.filter_map(|other| {
            let waiter = self.waiters.get(&other)?;
            waiter.asks_for.filter(|_| matches!(waiter.activity, WaiterActivity::Asking { .. }))
        });
        asked.collect()
    }

    fn free_slots(&self, known: &Resource, limit: PermitLimit, asked: SlotSet) -> Vec<u8> {
        (0..limit.get()).filter(|slot| known.slots.is_free(*slot) && !asked.contains(*slot)).collect()
    }

    /// The slot that a waiter for a permit asks for: one that was just freed, or else any slot that may be free.
    pub(super) fn choose_slot(&mut self, id: WaiterId) -> SlotChoice {
        let Some((resource, limit)) = self.waiters.get(&id).and_then(|waiter| {
            Some((waiter.request.resources.first()?.clone(), waiter.request.mode.limit().filter(|_| waiter.waits())?))
        }) else {
            return SlotChoice::default();
        };
        let avoid = self.asked_slots(&resource, id);
        let Some(known) = self.resources.get(&resource) else { return SlotChoice::default() };
        let free = self.free_slots(known, limit, avoid);
        let freed = known.slots.freed.iter().find(|slot| free.contains(slot)).copied();
        let drawn = || {
            let index = self.random % u64::try_from(free.len()).ok().filter(|len| *len > 0)?;
            free.get(usize::try_from(index).ok()?).copied()
        };
        let slot = freed.or_else(drawn);
        if let Some(known) = self.resources.get_mut(&resource) {
            known.slots.freed.retain(|freed| Some(*freed) != slot);
        }
        self.update(id, |waiter| waiter.asks_for = slot);
        SlotChoice { slot, avoid }
    }

    /// Lets a waiter that was woken sleep, instead of asking, if all known permits are held: others were faster.
    pub(super) fn sleep_without_slot(&mut self, id: WaiterId) {
        let now = self.now;
        let wakes = |waiter: &QueuedWaiter| {
            let is_idle = waiter.activity == WaiterActivity::Idle && waiter.is_first && waiter.waits();
            is_idle && waiter.is_woken && waiter.attempt_at <= now && waiter.request.until > now
        };
        if self.waiters.get(&id).is_some_and(|waiter| wakes(waiter))
            && let Some(until) = self.no_slot_until(id)
        {
            self.update(id, |waiter| (waiter.attempt_at, waiter.is_woken) = (until, false));
        }
    }

    /// Until when a waiter that has just become one of the first sends no request, because all permits are held as
    /// far as is known. The end of a permit wakes one sleeping waiter.
    pub(super) fn no_slot_until(&self, id: WaiterId) -> Option<BootTime> {
        let waiter = self.waiters.get(&id)?;
        let (resource, limit) = (waiter.request.resources.first()?, waiter.request.mode.limit()?);
        let known = self.resources.get(resource).filter(|_| self.is_subscribed(resource))?;
        let is_full = self.free_slots(known, limit, self.asked_slots(resource, id)).is_empty();
        is_full.then(|| self.now.plus(self.settings.poll))
    }
}
