//! What the queue does when a lease ends: at a release of this instance, and at notices from the nodes. Also whether
//! notices can be relied on, and what lists show of the queues.

use std::sync::Arc;
use std::time::Duration;

use super::compatible_waiters::is_permit;
use super::event::{Action, HandoverPlan, Mode, WaitLimits, WaitRequest, WaiterEntry, WaiterId};
use super::queue_state::{Queue, Resource, Waiter};
use super::wake::{NeededNotices, YIELD_PAUSE};
use crate::mutant::{Mutant, is};
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::{LeaseTag, Notice};
use crate::redlock::quorum::quorum_of;
use crate::types::{ResourceName, TokenHash};

/// Hand-overs in a row within this instance while another instance has waiters too. After them this
/// instance yields once, so that no other starves.
pub(super) const CONSECUTIVE_HANDOVERS_MAX: u32 = 8;

fn bit(node: usize) -> u64 {
    1_u64.checked_shl(u32::try_from(node).unwrap_or(u32::MAX)).unwrap_or(0)
}

impl Queue {
    /// What a release that is about to be sent means here.
    pub fn handover_plan(&self, resource: &ResourceName) -> HandoverPlan {
        match self.resources.get(resource) {
            None => HandoverPlan::NoWaiters,
            Some(known) if known.consecutive_handovers < CONSECUTIVE_HANDOVERS_MAX => HandoverPlan::WakeFirst,
            Some(_) => HandoverPlan::AskForOthers,
        }
    }

    pub(super) fn release_sent(&mut self, resource: &ResourceName, lease: LeaseTag, others_wait: Option<bool>) {
        let Some(known) = self.resources.get_mut(resource) else { return };
        if others_wait == Some(true) {
            // Waiters of other instances go first: waiters here are woken after the pause, not by notices about this lease.
            known.consecutive_handovers = 0;
            known.filter.ignore(lease);
            return self.wake(resource, Some(YIELD_PAUSE), Some(lease));
        }
        let before = if others_wait.is_none() { known.consecutive_handovers } else { 0 };
        known.consecutive_handovers = before.saturating_add(1);
        known.filter.on_handover(lease);
        self.wake(resource, Some(Duration::ZERO), Some(lease));
    }

    pub(super) fn notice(&mut self, resource: &ResourceName, node: usize, notice: Notice) {
        if is(Mutant::NoticesIgnored) {
            return;
        }
        let count = |nodes: usize| u32::try_from(nodes).unwrap_or(u32::MAX);
        let (nodes, quorum) = (count(self.settings.nodes), count(quorum_of(self.settings.nodes)));
        let silent = nodes.saturating_sub(self.connected.count_ones());
        let needed = NeededNotices { ended: quorum.saturating_sub(silent).max(1), withdrawn: quorum };
        let known = self.resources.get_mut(resource);
        let after = known.and_then(|known| {
            if let Some((slot, lease)) = notice.slot.zip(notice.lease) {
                known.slots.learn(slot, lease);
                known.note_permit(lease);
            }
            known.filter.on_notice(node, notice, needed)
        });
        self.wake(resource, after, notice.lease);
    }

    /// A lease of this resource has ended, or may have: the first waiters ask after this time.
    pub(super) fn wake(&mut self, resource: &ResourceName, after: Option<Duration>, lease: Option<LeaseTag>) {
        let (Some(after), Some(known)) = (after, self.resources.get_mut(resource)) else { return };
        if is(Mutant::EndWakesNobody) {
            return;
        }
        known.held = None;
        let frees_one = lease.is_some_and(|lease| known.permits.contains(&lease));
        lease.into_iter().for_each(|lease| known.slots.free(lease));
        self.wake_first_at(resource, self.now.plus(after), frees_one);
    }

    /// Whether this resource is subscribed to on a quorum of nodes now. Any quorum has a node in common with
    /// the one that held a lease, so its end is reported.
    pub(super) fn is_subscribed(&self, resource: &ResourceName) -> bool {
        let own = self.resources.get(resource).map_or(0, |known| known.subscribed);
        let nodes = (own | self.settings.local_nodes) & self.connected;
        let needed = if is(Mutant::SubscribedByOne) { 1 } else { quorum_of(self.settings.nodes) };
        nodes.count_ones() as usize >= needed
    }

    pub(super) fn subscribe(&mut self, resource: &ResourceName) {
        let Some(known) = self.resources.get_mut(resource) else { return };
        if !std::mem::replace(&mut known.wants_subscription, true) {
            self.actions.push(Action::Subscribe(resource.clone()));
        }
    }

    pub(super) fn subscribed(&mut self, resource: &ResourceName, node: usize) {
        let Some(known) = self.resources.get_mut(resource) else { return };
        known.subscribed |= bit(node);
        for id in self.head(resource) {
            let awaits = self.waiters.get(&id).is_some_and(|waiter| {
                waiter.awaits_subscription && waiter.request.resources.iter().all(|r| self.is_subscribed(r))
            });
            if awaits && !is(Mutant::ListensTooLate) {
                let now = self.now;
                self.update(id, |waiter| {
                    waiter.awaits_subscription = false;
                    waiter.wake(now);
                });
                self.proceed(id);
            }
        }
    }

    pub(super) fn connection(&mut self, node: usize, is_up: bool) {
        let has_quorum = |queue: &Self| queue.connected.count_ones() as usize >= quorum_of(queue.settings.nodes);
        let had_quorum = has_quorum(self);
        if is_up {
            self.connected |= bit(node);
        } else {
            self.connected &= !bit(node);
            self.resources.values_mut().for_each(|known| known.subscribed &= !bit(node));
        }
        if had_quorum == has_quorum(self) || is(Mutant::SubscriptionLossUnnoticed) {
            return;
        }
        self.resources.values_mut().for_each(|known| known.slots.forget());
        // The subscriptions may be complete again, and a notice missed all the same.
        let first = self.waiters.iter().filter(|(_, waiter)| waiter.is_first && waiter.waits());
        for id in first.map(|(id, _)| *id).collect::<Vec<WaiterId>>() {
            // Spread, since this happens to every waiter of the instance at once.
            let at = self.now.plus(self.draw(self.settings.poll));
            self.update(id, |waiter| waiter.wake(at));
            self.proceed(id);
        }
    }

    pub(super) fn set_held(&mut self, resource: &ResourceName, until: BootTime, mode: Mode) {
        // Without a subscription the lease's end could pass without a notice.
        let is_subscribed = self.is_subscribed(resource);
        if let Some(known) = self.resources.get_mut(resource) {
            known.held = is_subscribed.then_some((until, mode));
        }
    }

    /// Until when leases that were granted here keep this waiter out, where that is known.
    pub(super) fn held_until(&self, id: WaiterId) -> Option<BootTime> {
        let waiter = self.waiters.get(&id)?;
        let held = waiter.request.resources.iter().filter(|resource| self.is_subscribed(resource)).filter_map(|r| {
            let (until, mode) = self.resources.get(r)?.held?;
            let wanted = waiter.request.mode;
            // Who wants another number of permits is not to wait, but to be refused.
            let asks = mode.is_compatible(wanted) || is_permit(mode) && is_permit(wanted);
            (!asks).then_some(until)
        });
        held.max()
    }
}

/// For lists and limits.
impl Queue {
    /// 1 is the head; for several resources the largest. 1 for a waiter that is in no queue.
    pub fn position(&self, id: WaiterId) -> usize {
        let resources = self.waiters.get(&id).into_iter().flat_map(|waiter| waiter.request.resources.iter());
        let index = |r: &ResourceName| self.resources.get(r)?.order.binary_search(&id).ok();
        resources.filter_map(index).max().unwrap_or(0) + 1
    }

    /// The position in the resource's queue of the waiter with this token of its own.
    pub fn position_of(&self, resource: &ResourceName, token: &TokenHash) -> Option<usize> {
        let order = &self.resources.get(resource)?.order;
        let has_token = |id| self.waiters.get(id).is_some_and(|waiter| waiter.request.token.as_ref() == Some(token));
        order.iter().position(has_token).map(|index| index + 1)
    }

    /// Whether this waiter still waits for the resource.
    pub fn waits(&self, resource: &ResourceName, id: WaiterId) -> bool {
        self.resources.get(resource).is_some_and(|known| known.order.binary_search(&id).is_ok())
    }

    /// How many wait for this resource.
    pub fn waiter_count(&self, resource: &ResourceName) -> usize {
        self.resources.get(resource).map_or(0, |known| known.order.len())
    }

    /// The limits.
    pub fn limits(&self) -> WaitLimits {
        self.settings.limits
    }

    /// How many wait in all.
    pub fn total_waiters(&self) -> usize {
        self.queued
    }

    /// When the oldest waiter began to wait.
    pub fn oldest_since(&self) -> Option<BootTime> {
        self.waiters.values().find(|waiter| waiter.waits()).map(|waiter| waiter.since)
    }

    /// Every resource with waiters, how many, and when the head began to wait.
    pub fn waiter_counts(&self) -> Vec<(ResourceName, usize, BootTime)> {
        let head = |known: &Resource| Some(self.waiters.get(known.order.front()?)?.since);
        let known = self.resources.iter().filter_map(|(resource, known)| Some((resource, known, head(known)?)));
        known.map(|(resource, known, since)| (resource.clone(), known.order.len(), since)).collect()
    }

    /// The waiters for a resource, head first.
    pub fn waiters_of(&self, resource: &ResourceName) -> Vec<WaiterEntry> {
        let order = self.resources.get(resource).into_iter().flat_map(|known| &known.order);
        order.filter_map(|id| self.waiters.get(id)).map(|waiter| entry(waiter)).collect()
    }

    /// All waiters with resource and position (1 is the head), the oldest first.
    pub fn all_waiters(&self) -> Vec<(ResourceName, usize, WaiterEntry)> {
        let mut all = Vec::with_capacity(self.queued);
        for (resource, known) in &self.resources {
            let waiters = known.order.iter().enumerate().filter_map(|(i, id)| Some((i, self.waiters.get(id)?)));
            all.extend(waiters.map(|(i, waiter)| (resource.clone(), i + 1, entry(waiter))));
        }
        all.sort_by(|a, b| (a.2.since, a.1, &a.0).cmp(&(b.2.since, b.1, &b.0)));
        all
    }
}

fn entry(waiter: &Waiter) -> WaiterEntry {
    let owner = waiter.request.party.as_ref().map_or("", |party| party.owner());
    let WaitRequest { mode, until, note, .. } = &waiter.request;
    WaiterEntry { owner: Arc::from(owner), mode: *mode, since: waiter.since, until: *until, note: Arc::clone(note) }
}
