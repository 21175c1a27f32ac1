//! A request that waits in a queue: how it enters, what it waits for, and what happens when it leaves.

use std::sync::Arc;

use tokio::sync::Notify;

use super::deadlock::{QueuedWaiter, WaitEdge};
use super::queue::{QueueEntry, QueueFull, SubscriptionGuard, WaitQueues, WakeAfter};
use crate::mutant::{self, Mutant};
use crate::redlock::clock::BootTime;
use crate::types::{ResourceName, TokenHash};

/// What a parked waiter is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Ask the nodes: it is the head of its queue.
    AttemptAsHead,
    /// Join the lease of its own token, which another request was granted.
    JoinSameToken,
    /// Check for a deadlock, see [`WaiterHandle::cycle`].
    CheckDeadlock,
}

/// What the head of a queue is woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadWake {
    /// To ask the nodes.
    Attempt(WakeAfter),
    /// To check for a deadlock, see [`WaiterHandle::cycle`].
    CheckDeadlock,
}

/// A place in a queue. Dropping it leaves the queue at once; the next waiter is woken if it becomes the head.
pub struct WaiterHandle {
    queues: WaitQueues,
    resource: ResourceName,
    number: u64,
    notify: Arc<Notify>,
    is_attempting: bool,
    recheck_deadlock_at: Option<BootTime>,
}

impl WaitQueues {
    /// Enters the queue at its end. `token`: the client's own.
    ///
    /// Errors: [`QueueFull`], at once.
    pub fn enqueue(
        &self,
        resource: &ResourceName,
        owner: &str,
        token: Option<TokenHash>,
        now: BootTime,
    ) -> Result<WaiterHandle, QueueFull> {
        let limits = self.limits();
        let mut state = self.lock();
        if state.total >= limits.total {
            return Err(QueueFull { limit: limits.total, per_resource: false });
        }
        let queued = state.queues.get(resource).map_or(0, |q| q.waiters.len());
        if queued >= limits.per_resource {
            return Err(QueueFull { limit: limits.per_resource, per_resource: true });
        }
        let number = state.next_number;
        state.next_number += 1;
        state.total += 1;
        let (notify, owner) = (Arc::new(Notify::new()), Arc::<str>::from(owner));
        let mut is_suspect = false;
        if limits.detects_deadlocks && !owner.is_empty() {
            let waiter = QueuedWaiter { number, resource: resource.clone() };
            state.graph.add(&owner, waiter.clone());
            is_suspect = state.graph.cycle_through(&owner, &waiter, |r| state.holder_of(r)).is_some();
        }
        let queue = state.queues.entry(resource.clone()).or_default();
        queue.waiters.push_back(QueueEntry {
            number,
            owner,
            since: now,
            notify: Arc::clone(&notify),
            wake: None,
            token,
            may_join: false,
            is_suspect,
        });
        Ok(WaiterHandle {
            queues: self.clone(),
            resource: resource.clone(),
            number,
            notify,
            is_attempting: false,
            recheck_deadlock_at: None,
        })
    }
}

impl WaiterHandle {
    /// Resolves when this waiter has something to do. Cancel: its place is kept until the handle is dropped.
    pub async fn next_step(&self) -> NextStep {
        loop {
            let step = self.with(|index, waiter| match (index, std::mem::take(&mut waiter.may_join)) {
                (_, true) => Some(NextStep::JoinSameToken),
                _ if std::mem::take(&mut waiter.is_suspect) => Some(NextStep::CheckDeadlock),
                (0, false) => Some(NextStep::AttemptAsHead),
                _ if mutant::is(Mutant::EveryoneContends) => Some(NextStep::AttemptAsHead),
                _ => None,
            });
            match step.flatten() {
                Some(step) => return step,
                None => self.notify.notified().await,
            }
        }
    }

    /// 1 is the head.
    pub fn position(&self) -> usize {
        self.with(|index, _| index + 1).unwrap_or(1)
    }

    /// Resolves when the head is woken. Cancel: no wake-up is lost.
    pub async fn woken(&self) -> HeadWake {
        loop {
            let wake = self.with(|_, waiter| match waiter.wake.take() {
                Some(after) => Some(HeadWake::Attempt(after)),
                None => std::mem::take(&mut waiter.is_suspect).then_some(HeadWake::CheckDeadlock),
            });
            match wake.flatten() {
                Some(wake) => return wake,
                None => self.notify.notified().await,
            }
        }
    }

    /// The cycle in the wait-for graph that this waiter closes: no waiter in it is newer. It is only
    /// suspected; the nodes have to confirm it.
    pub fn cycle(&self) -> Option<Vec<WaitEdge>> {
        let state = self.queues.lock();
        let queue = state.queues.get(&self.resource)?;
        let owner = Arc::clone(&queue.waiters.get(queue.index_of(self.number)?)?.owner);
        let waiter = QueuedWaiter { number: self.number, resource: self.resource.clone() };
        state.graph.cycle_through(&owner, &waiter, |r| state.holder_of(r))
    }

    /// When to check again for a deadlock that the nodes could not confirm.
    pub fn recheck_deadlock_at(&self) -> Option<BootTime> {
        self.recheck_deadlock_at
    }

    /// See [`Self::recheck_deadlock_at`].
    pub fn set_recheck_deadlock_at(&mut self, at: Option<BootTime>) {
        self.recheck_deadlock_at = at;
    }

    /// Whether every waiter of the cycle is still in its queue.
    pub fn all_still_wait(&self, cycle: &[WaitEdge]) -> bool {
        let state = self.queues.lock();
        cycle.iter().all(|edge| {
            let queue = state.queues.get(&edge.waiter.resource);
            queue.is_some_and(|q| q.index_of(edge.waiter.number).is_some())
        })
    }

    /// Marks that an attempt is under way: it may hold the resource for a moment after the handle was
    /// dropped, so the next waiter is then woken once more.
    pub fn set_attempting(&mut self, is_attempting: bool) {
        self.is_attempting = is_attempting;
        if is_attempting {
            self.queues.update(&self.resource, |queue| queue.filter.on_attempt_started());
        }
    }

    /// Until when a lease that was granted here holds the resource, where that is known.
    pub fn held_until(&self) -> Option<BootTime> {
        self.queues.lock().queues.get(&self.resource).and_then(|q| q.held_until)
    }

    /// Whether the queue has its subscriptions.
    pub fn has_subscription(&self) -> bool {
        self.queues.lock().queues.get(&self.resource).is_some_and(|q| q.subscription.is_some())
    }

    /// Gives the queue its subscriptions, for as long as it lives.
    pub fn set_subscription(&self, subscription: SubscriptionGuard) {
        self.queues.update(&self.resource, |queue| queue.subscription = Some(subscription));
    }

    /// Leaves the queue with a lease that holds the resource until `until`: the next waiter need not ask
    /// before. Waiters with the same token are woken, since they want the same lease.
    pub fn granted(mut self, until: BootTime) {
        self.is_attempting = false;
        let own = self.with(|_, waiter| waiter.token.clone()).flatten();
        self.queues.update(&self.resource, |queue| {
            queue.set_held_until(until);
            queue.filter.on_granted();
            if let Some(head) = queue.waiters.front_mut() {
                head.wake = None;
            }
            for waiter in queue.waiters.iter_mut().filter(|w| own.is_some() && w.token == own) {
                waiter.may_join = true;
                waiter.notify.notify_one();
            }
        });
    }

    fn with<T>(&self, read: impl FnOnce(usize, &mut QueueEntry) -> T) -> Option<T> {
        let mut state = self.queues.lock();
        let queue = state.queues.get_mut(&self.resource)?;
        let index = queue.index_of(self.number)?;
        queue.waiters.get_mut(index).map(|waiter| read(index, waiter))
    }
}

impl Drop for WaiterHandle {
    fn drop(&mut self) {
        let mut guard = self.queues.lock();
        let state = &mut *guard;
        let Some(queue) = state.queues.get_mut(&self.resource) else { return };
        let Some(index) = queue.index_of(self.number) else { return };
        if let Some(waiter) = queue.waiters.remove(index) {
            state.graph.remove(&waiter.owner, self.number);
        }
        if self.is_attempting {
            queue.wake_head_again();
        } else if index == 0 && !mutant::is(Mutant::LeaverCallsNobody) {
            queue.waiters.front().into_iter().for_each(|head| head.notify.notify_one());
        }
        let emptied = queue.waiters.is_empty().then(|| state.queues.remove(&self.resource));
        state.total -= 1;
        drop(guard);
        // Its subscriptions are dropped outside of the lock.
        drop(emptied);
    }
}
