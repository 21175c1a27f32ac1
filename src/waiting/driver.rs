//! Runs the queue on clocks, nodes and tasks. The task of a waiter's request takes from its place the steps that the queue decides
//! (`acquire`), so a caller that disconnects ends its attempt.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::deadlock::{Party, WaitEdge};
use super::event::{Action, AttemptOutcome, RefuseReason, SlotChoice, WaitEvent, WaitLimits, WaitRequest, WaiterId};
use super::intents::Standing;
use super::kept_places::{Permit, PlaceKey, PlaceRequest, Places};
use super::state_machine::{Queue, QueueSettings};
use crate::protocol::LeaseRecord;
use crate::redlock::acquire::{Grant, Refusal};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::node::Node;
use crate::redlock::notifications::{Notice, NotificationHandler, NotificationSource, Topic};
use crate::redlock::random::Entropy;
use crate::redlock::subscriptions::{SubscriptionGuard, Subscriptions};
use crate::types::{ResourceName, TokenHash};

/// The next step of a waiter's task.
pub(super) enum Step {
    /// Whether the attempt only joins a lease, and which permits it asks for.
    Attempt(bool, SlotChoice),
    CheckCycle(Vec<WaitEdge>),
    Grant,
    Refuse(RefuseReason),
    /// Another request has taken the waiter's place.
    Replaced,
}

/// How the queue reaches a waiter's task.
struct Slot {
    /// The token of the lease that the waiter asks for.
    token: TokenHash,
    /// The next step of the task, and when the task sends the timer's event.
    next: Mutex<(Option<Step>, BootTime)>,
    changed: Notify,
}

pub(super) struct State {
    pub(super) queue: Queue,
    slots: BTreeMap<WaiterId, Arc<Slot>>,
    places: Places,
    intents: Standing,
    next: WaiterId,
}

/// Called with each deadlock that is reported: at most once for each waiter that is the newest in one.
pub(crate) type DeadlockObserver = Box<dyn Fn(&[WaitEdge]) + Send + Sync>;

/// Returns the holder that a lease record names, for the search for deadlocks.
pub(crate) type PartyOf = Box<dyn Fn(&LeaseRecord) -> Option<Party> + Send + Sync>;

pub(super) struct Shared<N, C, E> {
    pub(super) engine: Redlock<N, C, E>,
    pub(super) state: Mutex<State>,
    /// By node; `None`: the node publishes nothing, or only this process ends leases there.
    pub(super) channels: RwLock<Vec<Option<Arc<Subscriptions>>>>,
    pub(super) party_of: PartyOf,
    on_deadlock: OnceLock<DeadlockObserver>,
}

pub(super) type AttemptResult<N, C, E> = Result<Grant<N, C, E>, Refusal>;

/// The waiters of one instance. Cheap to clone.
pub(crate) struct WaitDriver<N, C, E>(pub(super) Arc<Shared<N, C, E>>);

impl<N, C, E> Clone for WaitDriver<N, C, E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// Receives the notices of the engine's nodes from now on.
    pub(crate) fn new(engine: Redlock<N, C, E>, limits: WaitLimits, party_of: PartyOf) -> Self {
        let is_local = |node: &N| matches!(node.notifications(), NotificationSource::Local);
        let local = engine.nodes.iter().enumerate().filter(|(_, node)| is_local(node));
        let local_nodes = local.fold(0, |set, (i, _)| set | 1 << i);
        let (nodes, retry, poll) = (engine.size(), engine.settings.retry, engine.settings.poll);
        let queue = Queue::new(QueueSettings { limits, nodes, local_nodes, retry, poll });
        let state = Mutex::new(State {
            queue,
            slots: BTreeMap::new(),
            places: Places::default(),
            intents: Standing::new(),
            next: 0,
        });
        let (channels, on_deadlock) = (RwLock::default(), OnceLock::new());
        let shared = Arc::new(Shared { engine, state, channels, party_of, on_deadlock });
        shared.follow_list();
        let weak = Arc::downgrade(&shared);
        shared.engine.observe_list(Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.follow_list();
            }
        }));
        Self(shared)
    }

    /// Sets the observer of reported deadlocks; it is called under the lock of the queues. Only the first call counts.
    pub(crate) fn observe_deadlocks(&self, observer: DeadlockObserver) {
        let _ = self.0.on_deadlock.set(observer);
    }

    /// The place that the request names, or else a new one: at the end of its queues, or where its wait at another
    /// instance puts it. Errors: the field in which the request differs from the one that has the place.
    pub(super) fn enter(
        &self,
        request: WaitRequest,
        token: &TokenHash,
        keep: Option<Box<PlaceRequest>>,
    ) -> Result<Place<N, C, E>, &'static str> {
        let next = Mutex::new((None, BootTime::from_nanos(u64::MAX)));
        let (slot, key) = (
            Arc::new(Slot { token: token.clone(), next, changed: Notify::new() }),
            keep.as_ref().map(|keep| keep.key.clone()),
        );
        let state = &mut *self.0.state.lock();
        let State { queue, places, .. } = state;
        let kept = keep.as_ref().map(|keep| places.take(keep, |waiter| queue.is_queued(waiter)));
        let waiter = if let Some(waiter) = kept.transpose()?.flatten() {
            // The former connection may still seem open.
            state.step(waiter, Step::Replaced);
            state.slots.insert(waiter, Arc::clone(&slot));
            self.0.handle_in(state, WaitEvent::Returned(waiter, request.until));
            waiter
        } else {
            let now = self.0.engine.clock.now();
            let since = now.minus(keep.as_ref().map_or(Duration::ZERO, |keep| keep.waited));
            let waiter = state.number(since, now);
            state.slots.insert(waiter, Arc::clone(&slot));
            keep.into_iter().for_each(|keep| state.places.add(*keep, waiter));
            self.0.handle_in(state, WaitEvent::Enqueue(waiter, request, since));
            waiter
        };
        Ok(Place { driver: self.clone(), waiter, slot, key })
    }

    /// Gives up the places of the waiters that `which` returns.
    pub(crate) fn give_up_places(&self, which: impl FnOnce(&mut Places, BootTime) -> Vec<WaiterId>) {
        let (mut state, now) = (self.0.state.lock(), self.0.engine.clock.now());
        for waiter in which(&mut state.places, now) {
            self.0.handle_in(&mut state, WaitEvent::Cancel(waiter));
        }
    }

    /// Reads the kept places with the queues.
    pub(crate) fn places<T>(&self, read: impl FnOnce(&Places, &Queue) -> T) -> T {
        let state = self.0.state.lock();
        read(&state.places, &state.queue)
    }

    /// The permit that counts the waiter of a kept place in quotas.
    pub(crate) fn permit(&self, key: &PlaceKey) -> Option<Permit> {
        self.0.state.lock().places.permit(key)
    }

    /// Reads the queue under its lock: `read` must be short.
    pub(crate) fn queue<T>(&self, read: impl FnOnce(&Queue) -> T) -> T {
        read(&self.0.state.lock().queue)
    }

    /// Subscribes to the ends of this resource's leases until the guard is dropped.
    pub(crate) fn subscribe(&self, resource: &ResourceName) -> SubscriptionGuard {
        SubscriptionGuard::new(self.channels(), Topic::LeaseEnded(resource.clone()))
    }
}

impl<N: Node, C: Clock, E: Entropy> Shared<N, C, E> {
    pub(super) fn handle(&self, event: WaitEvent) {
        self.handle_in(&mut self.state.lock(), event);
    }

    /// Runs under the lock, so that actions take effect in the order of their events.
    pub(super) fn handle_in(&self, state: &mut State, event: WaitEvent) {
        let (mut event, mut more) = (Some(event), Vec::new());
        while let Some(next) = event.take().or_else(|| more.pop()) {
            let (now, random) = (self.engine.clock.now(), self.engine.entropy.bits());
            for action in state.queue.handle(now, random, next) {
                match action {
                    Action::Attempt { waiter, joins, slots } => state.step(waiter, Step::Attempt(joins, slots)),
                    Action::CheckCycle(waiter, cycle) => state.step(waiter, Step::CheckCycle(cycle)),
                    Action::Grant(waiter) => state.step(waiter, Step::Grant),
                    Action::Refuse(waiter, reason) => state.step(waiter, Step::Refuse(reason)),
                    Action::Arm(waiter, at) => state.arm(waiter, at),
                    Action::Intent { waiter, intent, is_withdrawn: true } => {
                        self.withdraw_intent(&mut state.intents, waiter, &intent);
                    }
                    Action::Intent { waiter, intent, .. } => {
                        let Some(token) = state.slots.get(&waiter).map(|slot| slot.token.clone()) else { continue };
                        self.leave_intent(&mut state.intents, waiter, token, &intent);
                    }
                    Action::ReportDeadlock(cycle) => {
                        self.on_deadlock.get().into_iter().for_each(|observer| observer(&cycle));
                    }
                    Action::Subscribe(resource) => {
                        let topic = Topic::LeaseEnded(resource.clone());
                        let channels = self.channels.read();
                        let nodes = channels.iter().enumerate();
                        let active = nodes.filter(|(_, node)| node.as_ref().is_some_and(|n| n.subscribe(&topic)));
                        more.extend(active.map(|(node, _)| WaitEvent::Subscribed(resource.clone(), node)));
                    }
                    Action::Unsubscribe(resource) => {
                        let topic = Topic::LeaseEnded(resource);
                        self.channels.read().iter().flatten().for_each(|node| node.unsubscribe(&topic));
                    }
                }
            }
        }
    }
}

impl State {
    /// The number of a waiter that waits since `since`: the microsecond, or the next number that is free.
    fn number(&mut self, since: BootTime, now: BootTime) -> WaiterId {
        let mut number = if since < now { since.as_micros() } else { self.next.max(now.as_micros()) };
        while self.queue.waiters.contains_key(&number) {
            number += 1;
        }
        self.next = self.next.max(number + 1);
        number
    }

    fn step(&mut self, waiter: WaiterId, step: Step) {
        if let Some(slot) = self.slots.get(&waiter) {
            slot.next.lock().0 = Some(step);
            slot.changed.notify_one();
        }
    }

    fn arm(&mut self, waiter: WaiterId, at: BootTime) {
        let Some(slot) = self.slots.get(&waiter) else { return };
        if std::mem::replace(&mut slot.next.lock().1, at) != at {
            slot.changed.notify_one();
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> NotificationHandler for Shared<N, C, E> {
    fn on_lease_ended(&self, node: usize, resource: &ResourceName, notice: Notice) {
        self.handle(WaitEvent::Notice(resource.clone(), node, notice));
    }

    fn on_subscribed(&self, node: usize, topic: &Topic) {
        if let Topic::LeaseEnded(resource) = topic {
            self.handle(WaitEvent::Subscribed(resource.clone(), node));
        }
    }

    fn on_connection_changed(&self, node: usize, is_up: bool) {
        self.handle(WaitEvent::Connection { node, is_up });
    }
}

/// A request's place in the queues, unless another request has taken it. Dropping it leaves the queues, or keeps the
/// place for the next request with its key.
pub(super) struct Place<N: Node, C: Clock, E: Entropy> {
    driver: WaitDriver<N, C, E>,
    pub(super) waiter: WaiterId,
    slot: Arc<Slot>,
    key: Option<PlaceKey>,
}

impl<N: Node, C: Clock, E: Entropy> Place<N, C, E> {
    /// Whether the place is still this request's.
    fn is_current(&self, state: &State) -> bool {
        state.slots.get(&self.waiter).is_some_and(|slot| Arc::ptr_eq(slot, &self.slot))
    }

    /// False if another request has the place, so that the event does not concern this one.
    pub(super) fn handle(&self, event: WaitEvent) -> bool {
        let mut state = self.driver.0.state.lock();
        let is_current = self.is_current(&state);
        if is_current {
            self.driver.0.handle_in(&mut state, event);
        }
        is_current
    }

    pub(super) fn report(&self, outcome: AttemptOutcome) -> bool {
        self.handle(WaitEvent::AttemptFinished(self.waiter, outcome))
    }

    pub(super) fn take_step(&self) -> Option<Step> {
        self.slot.next.lock().0.take()
    }

    /// Cancel: no step is lost.
    pub(super) async fn next_step(&self) -> Step {
        loop {
            let at = {
                let mut next = self.slot.next.lock();
                if let Some(step) = next.0.take() {
                    return step;
                }
                next.1
            };
            tokio::select! {
                biased;
                () = self.slot.changed.notified() => {}
                () = self.driver.0.engine.clock.sleep_until(at) => {
                    // The event arms the timer anew; it must not fire twice for this time.
                    self.slot.next.lock().1 = BootTime::from_nanos(u64::MAX);
                    self.handle(WaitEvent::Timer(self.waiter));
                }
            }
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> Drop for Place<N, C, E> {
    fn drop(&mut self) {
        let shared = &self.driver.0;
        let mut state = shared.state.lock();
        if !self.is_current(&state) {
            return;
        }
        state.slots.remove(&self.waiter);
        let (is_queued, now) = (state.queue.is_queued(self.waiter), shared.engine.clock.now());
        let is_kept = self.key.as_ref().is_some_and(|key| state.places.leave(key, self.waiter, is_queued, now));
        let event = if is_kept { WaitEvent::Absent(self.waiter) } else { WaitEvent::Cancel(self.waiter) };
        shared.handle_in(&mut state, event);
    }
}
