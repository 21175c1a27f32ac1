//! What the queue does when a lease ends: at a release by this instance, and at notices about leases of others. Also
//! the resources and nodes from which it receives notices.

use std::time::Duration;

use super::compatible_waiters::is_permit;
use super::event::{Action, HandoverPlan, Mode, WaiterId};
use super::queue_state::Queue;
use super::wake::{NeededNotices, YIELD_PAUSE};
use crate::mutant::{Mutant, is};
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::{LeaseTag, Notice};
use crate::redlock::quorum::quorum_of;
use crate::types::ResourceName;

/// Maximum number of hand-overs in a row within this instance while another instance has waiters too. Then this
/// instance yields once, so that no other starves.
pub(super) const CONSECUTIVE_HANDOVERS_MAX: u32 = 8;

fn bit(node: usize) -> u64 {
    1_u64.checked_shl(u32::try_from(node).unwrap_or(u32::MAX)).unwrap_or(0)
}

impl Queue {
    /// What a release that is about to be sent means for the waiters here.
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
        let silent = nodes.saturating_sub((self.connected & self.members).count_ones());
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

    /// Whether a quorum of nodes has a subscription to this resource now. Any quorum has a node in common with the
    /// quorum that held a lease, so its end is reported.
    pub(super) fn is_subscribed(&self, resource: &ResourceName) -> bool {
        let own = self.resources.get(resource).map_or(0, |known| known.subscribed);
        let nodes = (own | self.settings.local_nodes) & self.connected & self.members;
        let needed = if is(Mutant::SubscribedByOne) { 1 } else { quorum_of(self.settings.nodes) };
        nodes.count_ones() as usize >= needed
    }

    /// The resources whose ends are subscribed to.
    pub(super) fn subscribed_to(&self) -> Vec<ResourceName> {
        let subscribed = self.resources.iter().filter(|(_, known)| known.wants_subscription);
        subscribed.map(|(resource, _)| resource.clone()).collect()
    }

    pub(super) fn list(&mut self, members: u64) {
        self.members = members;
        self.settings.nodes = usize::try_from(members.count_ones()).unwrap_or(usize::MAX);
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
        let has_quorum =
            |queue: &Self| (queue.connected & queue.members).count_ones() as usize >= quorum_of(queue.settings.nodes);
        let had_quorum = has_quorum(self);
        if is_up {
            self.connected |= bit(node);
        } else {
            self.connected &= !bit(node);
            self.resources.values_mut().for_each(|known| known.subscribed &= !bit(node));
        }
        // While a quorum stays subscribed, each node that is left out in turn may have missed its notice of the same
        // end (seed 139959), so each return counts.
        if !is_up && had_quorum == has_quorum(self) || is(Mutant::SubscriptionLossUnnoticed) {
            return;
        }
        self.resources.values_mut().for_each(|known| known.slots.forget());
        // The subscriptions may be complete again, but a notice may have been missed meanwhile.
        let first = self.waiters.iter().filter(|(_, waiter)| waiter.is_first && waiter.waits());
        for id in first.map(|(id, _)| *id).collect::<Vec<WaiterId>>() {
            // Times are spread, since this happens to every waiter of the instance at once.
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

    /// Until when leases that were granted here block this waiter, where that is known.
    pub(super) fn held_until(&self, id: WaiterId) -> Option<BootTime> {
        let waiter = self.waiters.get(&id)?;
        let held = waiter.request.resources.iter().filter(|resource| self.is_subscribed(resource)).filter_map(|r| {
            let (until, mode) = self.resources.get(r)?.held?;
            let wanted = waiter.request.mode;
            // A request with another number of permits must be refused, not wait.
            let asks = mode.is_compatible(wanted) || is_permit(mode) && is_permit(wanted);
            (!asks).then_some(until)
        });
        held.max()
    }
}
