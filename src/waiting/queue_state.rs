//! The data of the queue: each waiter and each resource.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::deadlock::{KnownHolder, PartyWaiters};
use super::event::{Action, Admission, Mode, QueueFull, RefuseReason, WaitLimits, WaitRequest, WaiterId};
use super::free_slots::FreeSlots;
use super::wake::WakeFilter;
use crate::keyed_maps::KeyedMap;
use crate::mutant::{Mutant, is};
use crate::redlock::backoff::BackoffRange;
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::LeaseTag;
use crate::types::{ResourceName, TokenHash};

/// The latest time.
pub(super) const NEVER: BootTime = BootTime::from_nanos(u64::MAX);

/// The settings that the queue needs from its instance.
#[derive(Debug, Clone, Copy)]
pub struct QueueSettings {
    /// The limits of waiters.
    pub limits: WaitLimits,
    /// N, until the first [`WaitEvent::List`](super::event::WaitEvent::List).
    pub nodes: usize,
    /// Nodes on which only this process ends leases, one bit each: no end is missed there.
    pub local_nodes: u64,
    /// Pauses after a split vote or without a quorum.
    pub retry: BackoffRange,
    /// Longest pause where no notice can be relied on.
    pub poll: Duration,
}

/// All queues of one instance.
#[derive(Debug, Clone)]
pub struct Queue {
    pub(super) settings: QueueSettings,
    pub(super) waiters: BTreeMap<WaiterId, Box<QueuedWaiter>>,
    pub(super) resources: KeyedMap<ResourceName, Resource>,
    pub(super) parties: PartyWaiters,
    /// How many waiters in queues have each client's own token: usually one.
    pub(super) tokens: KeyedMap<TokenHash, usize>,
    /// Waiters that want to ask the nodes, in order.
    pub(super) due: VecDeque<WaiterId>,
    /// How many waiters are asking, at most [`super::state_machine::CONCURRENT_ATTEMPTS_MAX`].
    pub(super) asking: usize,
    /// How many waiters are in queues.
    pub(super) queued: usize,
    /// Nodes whose notices arrive, one bit each.
    pub(super) connected: u64,
    /// Nodes that vote, one bit each.
    pub(super) members: u64,
    /// The time of the event that is being handled.
    pub(super) now: BootTime,
    pub(super) random: u64,
    pub(super) actions: Vec<Action>,
}

/// A resource with waiters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Resource {
    /// The waiters for this resource, in the order of their numbers.
    pub(super) order: VecDeque<WaiterId>,
    pub(super) filter: WakeFilter,
    /// A lease that was granted or extended here holds the resource until this time, unless its end is reported.
    pub(super) held: Option<(BootTime, Mode)>,
    /// Permits that were seen since the resource was last held in another way; at most the maximum number of permits.
    pub(super) permits: Vec<LeaseTag>,
    /// Which slots of permits are free, as far as is known.
    pub(super) slots: FreeSlots,
    /// How the resource was held when it was last seen.
    pub(super) seen: Option<Mode>,
    /// The holders seen then, if they have owners and deadlocks are searched for.
    pub(super) holders: Vec<KnownHolder>,
    pub(super) consecutive_handovers: u32,
    pub(super) wants_subscription: bool,
    /// Nodes that confirmed the subscription, one bit each.
    pub(super) subscribed: u64,
}

/// A request and what it is doing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QueuedWaiter {
    pub(super) request: WaitRequest,
    pub(super) since: BootTime,
    pub(super) activity: WaiterActivity,
    /// First in all its queues.
    pub(super) is_first: bool,
    /// The waiter's caller is absent: see [`super::kept_places`].
    pub(super) is_absent: bool,
    /// When the waiter asks, once it is first.
    pub(super) attempt_at: BootTime,
    /// The resource may have become free: the waiter asks although a lease seems to run on.
    pub(super) is_woken: bool,
    /// The value of `is_woken` when the waiter last asked.
    pub(super) was_woken: bool,
    /// The waiter did not ask, since the first of its compatible waiters was asking.
    pub(super) defers: bool,
    /// The slot that the waiter last asked for.
    pub(super) asks_for: Option<u8>,
    /// The waiter has slept while it was first.
    pub(super) has_slept: bool,
    /// The waiter's subscriptions were complete when it began to ask.
    pub(super) was_subscribed: bool,
    /// The waiter was refused before its subscriptions were complete: it asks when they are.
    pub(super) awaits_subscription: bool,
    /// A request with the same token was granted.
    pub(super) may_join: bool,
    /// The waiter may be the newest in a deadlock.
    pub(super) is_suspect: bool,
    /// When to check for a deadlock again.
    pub(super) recheck_at: BootTime,
    pub(super) has_reported: bool,
    pub(super) tries: u32,
    /// When to leave or renew the waiter's intent on the nodes.
    pub(super) intent_at: BootTime,
    /// The nodes may store the waiter's intent.
    pub(super) has_intent: bool,
    /// The intent of another caller, at another instance, has blocked the waiter.
    pub(super) met_intent: bool,
    /// Attempts in a row that met a lease which a quorum did not confirm.
    pub(super) unconfirmed: u32,
    /// Pauses so far since the last clear answer.
    pub(super) pauses: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum WaiterActivity {
    Idle,
    /// Waits until it may ask. `left_from`: the wait deadline has passed, and the waiter only asks for the holder.
    Due {
        left_from: Option<usize>,
    },
    Asking {
        is_counted: bool,
        has_left: bool,
    },
    CheckingCycle,
}

impl QueuedWaiter {
    pub(super) fn new(request: WaitRequest, now: BootTime, is_behind: bool) -> Self {
        let is_queued = request.admission == Admission::Queued;
        Self {
            since: now,
            activity: WaiterActivity::Idle,
            is_first: !is_queued,
            is_absent: false,
            attempt_at: now,
            is_woken: false,
            was_woken: false,
            has_slept: false,
            asks_for: None,
            defers: false,
            was_subscribed: false,
            awaits_subscription: false,
            // The waiter's token may be that of the present lease, which the waiter then joins.
            may_join: is_queued && is_behind && request.token.is_some(),
            is_suspect: false,
            recheck_at: NEVER,
            has_reported: false,
            tries: 0,
            intent_at: NEVER,
            has_intent: false,
            met_intent: false,
            unconfirmed: 0,
            pauses: 0,
            request,
        }
    }

    pub(super) fn waits(&self) -> bool {
        self.request.admission == Admission::Queued
    }

    pub(super) fn wake(&mut self, at: BootTime) {
        (self.attempt_at, self.is_woken, self.defers) = (self.attempt_at.min(at), true, false);
    }
}

impl Queue {
    /// Why a request cannot join its queues.
    pub(super) fn refusal_at_once(&self, request: &WaitRequest) -> Option<RefuseReason> {
        let limits = self.settings.limits;
        let longest = request.resources.iter().map(|resource| self.waiter_count(resource)).max().unwrap_or(0);
        match request.admission {
            Admission::Passing => None,
            Admission::Once => {
                let somebody = request.resources.iter().any(|resource| self.keeps_out(resource, request.mode));
                somebody.then_some(RefuseReason::OthersWait)
            }
            Admission::Queued if self.queued >= limits.total => {
                Some(RefuseReason::QueueFull(QueueFull { limit: limits.total, per_resource: false }))
            }
            Admission::Queued => (longest >= limits.per_resource)
                .then_some(RefuseReason::QueueFull(QueueFull { limit: limits.per_resource, per_resource: true })),
        }
    }

    /// Puts a waiter into its queues by its number. Returns whether it is ahead of another waiter.
    pub(super) fn enter_queues(&mut self, id: WaiterId, resources: &[ResourceName]) -> bool {
        let mut is_ahead = false;
        for resource in resources {
            let order = &mut self.resources.entry(resource.clone()).or_default().order;
            let at = if is(Mutant::MovedIsLast) { order.len() } else { order.partition_point(|other| *other < id) };
            is_ahead |= at < order.len();
            order.insert(at, id);
        }
        is_ahead
    }

    pub(super) fn token_entered(&mut self, token: Option<TokenHash>) {
        if let Some(token) = token {
            *self.tokens.entry(token).or_default() += 1;
        }
    }

    pub(super) fn token_left(&mut self, token: Option<TokenHash>) {
        let Some(token) = token else { return };
        if let Entry::Occupied(mut count) = self.tokens.entry(token) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    pub(super) fn update(&mut self, id: WaiterId, change: impl FnOnce(&mut QueuedWaiter)) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            change(waiter);
        }
    }
}
