//! The wait queues: one bounded queue for each resource, first come first served within this instance.
//! Only the head of a queue asks the nodes; the others are parked. `wake_filter` decides which notices wake
//! the head, `waiter` is what a waiting request holds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::deadlock::{KnownHolder, WaitForGraph};
use super::wake_filter::WakeFilter;
pub use super::wake_filter::{NeededNotices, WakeAfter};
use super::wake_timing::YIELD_PAUSE;
use crate::mutant::{self, Mutant};
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::{LeaseTag, Notice};
use crate::types::{ResourceName, TokenHash};

/// Hand-overs in a row within this instance while another instance has waiters too. After them this
/// instance yields once, so that no other starves.
pub const CONSECUTIVE_HANDOVERS_MAX: u32 = 8;

/// Waiters that may ask the nodes at a time, each for another resource; the others follow in order. Thousands
/// that arrive or are woken at once would otherwise fill the queues to the nodes, and nobody could acquire,
/// extend or release until all of them had tried. 64 keep the nodes busy.
pub const CONCURRENT_ATTEMPTS_MAX: usize = 64;

/// How many may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitLimits {
    /// For one resource.
    pub per_resource: usize,
    /// In all.
    pub total: usize,
    /// Whether deadlocks are searched for.
    pub detects_deadlocks: bool,
}

/// A limit of waiters is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull {
    /// The limit.
    pub limit: usize,
    /// It is that of the resource, not the total.
    pub per_resource: bool,
}

/// All queues of one instance. Cheap to clone.
#[derive(Clone)]
pub struct WaitQueues {
    state: Arc<Mutex<QueuesState>>,
    limits: WaitLimits,
}

#[derive(Default)]
pub(super) struct QueuesState {
    pub(super) queues: HashMap<ResourceName, Queue>,
    pub(super) total: usize,
    pub(super) next_number: u64,
    /// Empty where deadlocks are not searched for.
    pub(super) graph: WaitForGraph,
}

/// The waiters for one resource.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) waiters: VecDeque<QueueEntry>,
    /// A lease that was granted or extended here holds the resource until then, unless its end is reported.
    pub(super) held_until: Option<BootTime>,
    pub(super) filter: WakeFilter,
    /// Who holds it, where that one has an owner and deadlocks are searched for.
    holder: Option<KnownHolder>,
    consecutive_handovers: u32,
    /// Lives as long as the queue.
    pub(super) subscription: Option<SubscriptionGuard>,
}

/// Keeps subscriptions to the ends of a resource's leases until it is dropped.
pub type SubscriptionGuard = Box<dyn Send>;

/// A waiting request.
pub(super) struct QueueEntry {
    /// Rises with time, over all queues.
    pub(super) number: u64,
    pub(super) owner: Arc<str>,
    pub(super) since: BootTime,
    pub(super) notify: Arc<Notify>,
    pub(super) wake: Option<WakeAfter>,
    /// The client's own token.
    pub(super) token: Option<TokenHash>,
    /// A request with the same token was granted.
    pub(super) may_join: bool,
    /// It may be the newest in a deadlock.
    pub(super) is_suspect: bool,
}

impl QueueEntry {
    fn wake(&mut self, after: WakeAfter) {
        // The earlier one prevails.
        self.wake = Some(self.wake.map_or(after, |before| before.min(after)));
        self.notify.notify_one();
    }
}

/// What a release means for the waiters of this instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoverPlan {
    /// Nobody waits here.
    NoWaiters,
    /// The head may ask the nodes right after the release.
    WakeHead,
    /// It may unless another instance has waiters: this one had its turn often enough.
    CheckOtherInstances,
}

/// A waiter as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterEntry {
    /// The owner that it names.
    pub owner: Arc<str>,
    /// When it began to wait.
    pub since: BootTime,
}

impl From<&QueueEntry> for WaiterEntry {
    fn from(waiter: &QueueEntry) -> Self {
        Self { owner: Arc::clone(&waiter.owner), since: waiter.since }
    }
}

impl WaitQueues {
    /// No queues yet.
    pub fn new(limits: WaitLimits) -> Self {
        Self { state: Arc::default(), limits }
    }

    /// A lease of this resource has certainly ended: its oldest waiter is woken, once for each lease.
    /// `None`: a lock of another client.
    pub fn lease_ended(&self, resource: &ResourceName, lease: Option<LeaseTag>) {
        self.update(resource, |queue| {
            let wake = queue.filter.on_certain_end(lease);
            queue.wake_head(wake);
        });
    }

    /// A node reported the end of a lease. The head is woken once as many nodes have as are needed, and
    /// after a pause where fewer have.
    pub fn notice(&self, resource: &ResourceName, node: usize, notice: Notice, needed: NeededNotices) {
        self.update(resource, |queue| {
            let wake = queue.filter.on_notice(node, notice, needed);
            queue.wake_head(wake);
        });
    }

    /// A lease may have ended, and no notice will follow.
    pub fn lease_may_have_ended(&self, resource: &ResourceName) {
        self.update(resource, |queue| queue.wake_head(Some(WakeAfter::SETTLED)));
    }

    /// What a release that is about to be sent means here.
    pub fn plan_handover(&self, resource: &ResourceName) -> HandoverPlan {
        match self.lock().queues.get(resource) {
            None => HandoverPlan::NoWaiters,
            Some(queue) if queue.consecutive_handovers < CONSECUTIVE_HANDOVERS_MAX => HandoverPlan::WakeHead,
            Some(_) => HandoverPlan::CheckOtherInstances,
        }
    }

    /// The release of this lease is on its way to every node, so what the head sends now arrives after
    /// it. `restarts_count`: no other instance has waiters.
    pub fn on_handover(&self, resource: &ResourceName, lease: LeaseTag, restarts_count: bool) {
        self.update(resource, |queue| {
            queue.consecutive_handovers =
                if restarts_count { 1 } else { queue.consecutive_handovers.saturating_add(1) };
            queue.filter.on_handover(lease);
            queue.wake_head(Some(WakeAfter::NOW));
        });
    }

    /// The release of this lease is about to be sent, and waiters of other instances go first: only
    /// [`YIELD_PAUSE`] wakes the head, no notice about this lease.
    pub fn yield_to_others(&self, resource: &ResourceName, lease: LeaseTag) {
        self.update(resource, |queue| {
            queue.consecutive_handovers = 0;
            queue.filter.ignore(lease);
            queue.wake_head(Some(WakeAfter(YIELD_PAUSE)));
        });
    }

    /// A lease of this resource was granted or extended here, to a request that did not queue: the head
    /// need not ask before `until` or the lease's end.
    pub fn set_held_until(&self, resource: &ResourceName, until: BootTime) {
        self.update(resource, |queue| queue.set_held_until(until));
    }

    /// This lease was seen on nodes, whatever was reported of its end before. If its owner closes a cycle
    /// in the wait-for graph, the newest waiter in it is woken to check. `is_confirmed`: a quorum has it.
    pub fn set_holder(&self, resource: &ResourceName, owner: &str, token: &TokenHash, is_confirmed: bool) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(queue) = state.queues.get_mut(resource) else { return };
        let wake = queue.filter.on_seen_held(LeaseTag::of(token), is_confirmed);
        queue.wake_head(wake);
        if !self.limits.detects_deadlocks || queue.holder.as_ref().is_some_and(|h| h.token == *token) {
            return;
        }
        queue.holder = (!owner.is_empty()).then(|| KnownHolder { owner: owner.into(), token: token.clone() });
        let Some(owner) = queue.holder.as_ref().map(|h| Arc::clone(&h.owner)) else { return };
        if !state.graph.is_waiting(&owner) {
            return;
        }
        let cycle = state.graph.cycle_of_owner(&owner, |r| state.holder_of(r));
        let Some(newest) = cycle.into_iter().flatten().max_by_key(|edge| edge.waiter.number) else { return };
        let queue = state.queues.get_mut(&newest.waiter.resource);
        let waiter = queue.and_then(|q| q.waiter_mut(newest.waiter.number));
        if let Some(waiter) = waiter.filter(|_| !mutant::is(Mutant::DeadlockUnnoticed)) {
            waiter.is_suspect = true;
            waiter.notify.notify_one();
        }
    }

    /// How many wait for this resource.
    pub fn waiter_count(&self, resource: &ResourceName) -> usize {
        self.lock().queues.get(resource).map_or(0, |q| q.waiters.len())
    }

    /// How many wait in all.
    pub fn total_waiters(&self) -> usize {
        self.lock().total
    }

    /// When the oldest waiter of all began to wait. Visits every queue.
    pub fn oldest_since(&self) -> Option<BootTime> {
        self.lock().queues.values().filter_map(|q| q.waiters.front().map(|w| w.since)).min()
    }

    /// The limits.
    pub fn limits(&self) -> WaitLimits {
        self.limits
    }

    /// The waiters for a resource, head first.
    pub fn waiters_of(&self, resource: &ResourceName) -> Vec<WaiterEntry> {
        let state = self.lock();
        state.queues.get(resource).into_iter().flat_map(|q| &q.waiters).map(WaiterEntry::from).collect()
    }

    /// Every resource with waiters, how many, and when the head began to wait.
    pub fn waiter_counts(&self) -> Vec<(ResourceName, usize, BootTime)> {
        let state = self.lock();
        let heads = state.queues.iter().filter_map(|(resource, q)| Some((resource, q, q.waiters.front()?)));
        heads.map(|(resource, q, head)| (resource.clone(), q.waiters.len(), head.since)).collect()
    }

    /// All waiters with resource and position (1 is the head), the oldest first.
    pub fn all_waiters(&self) -> Vec<(ResourceName, usize, WaiterEntry)> {
        let state = self.lock();
        let mut all = Vec::with_capacity(state.total);
        for (resource, queue) in &state.queues {
            let waiters = queue.waiters.iter().enumerate();
            all.extend(waiters.map(|(i, waiter)| (resource.clone(), i + 1, WaiterEntry::from(waiter))));
        }
        drop(state);
        all.sort_by(|a, b| (a.2.since, a.1, &a.0).cmp(&(b.2.since, b.1, &b.0)));
        all
    }

    pub(super) fn update(&self, resource: &ResourceName, change: impl FnOnce(&mut Queue)) {
        if let Some(queue) = self.lock().queues.get_mut(resource) {
            change(queue);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueuesState> {
        self.state.lock()
    }
}

impl QueuesState {
    pub(super) fn holder_of(&self, resource: &ResourceName) -> Option<&KnownHolder> {
        self.queues.get(resource).and_then(|queue| queue.holder.as_ref())
    }
}

impl Queue {
    /// Waiters are in the order of their numbers.
    pub(super) fn index_of(&self, number: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&number, |w| w.number).ok()
    }

    pub(super) fn waiter_mut(&mut self, number: u64) -> Option<&mut QueueEntry> {
        let index = self.index_of(number)?;
        self.waiters.get_mut(index)
    }

    pub(super) fn wake_head(&mut self, after: Option<WakeAfter>) {
        let Some(after) = after else { return };
        self.held_until = None;
        if let Some(head) = self.waiters.front_mut() {
            head.wake(after);
        }
    }

    /// As [`Self::wake_head`], where no lease is known to have ended: `held_until` stays.
    pub(super) fn wake_head_again(&mut self) {
        if let Some(head) = self.waiters.front_mut() {
            head.wake(WakeAfter::SETTLED);
        }
    }

    pub(super) fn set_held_until(&mut self, until: BootTime) {
        // Without a subscription the lease's end could pass without a notice.
        self.held_until = self.subscription.is_some().then_some(until);
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
