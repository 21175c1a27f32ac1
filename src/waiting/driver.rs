//! Runs the queue on clocks, nodes and tasks: the only asynchronous file of waiting, but for releases (`handover`). What the queue says is to be done
//! for a waiter is done by the task of its request, so a caller that hangs up takes its attempt with it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::deadlock::{Party, WaitEdge};
use super::event::{
    Action, AttemptOutcome, Blocker, Event, RefuseReason, WaitError, WaitLimits, WaitRequest, WaiterId,
};
use super::queue::{Queue, QueueSettings};
use crate::mutant::{Mutant, is};
use crate::protocol::LeaseRecord;
use crate::redlock::acquire::{AcquireParams, Grant, Refusal, RefusalKind};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::entropy::Entropy;
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;
use crate::redlock::notifications::{LeaseTag, Notice, NotificationHandler, NotificationSource, Topic};
use crate::redlock::subscriptions::{SubscriptionGuard, Subscriptions};
use crate::types::{ResourceName, TokenHash};

/// What a waiter's task is to do.
enum Step {
    Attempt { joins: bool },
    CheckCycle(Vec<WaitEdge>),
    Grant,
    Refuse(RefuseReason),
}

/// How the queue reaches a waiter's task.
struct Slot {
    /// What it has to do, and when it sends the timer's event.
    next: Mutex<(Option<Step>, BootTime)>,
    changed: Notify,
}

struct State {
    queue: Queue,
    slots: BTreeMap<WaiterId, Arc<Slot>>,
    next: WaiterId,
}

/// Called with each deadlock that is reported: at most once for each waiter that is the newest in one.
pub(crate) type DeadlockObserver = Box<dyn Fn(&[WaitEdge]) + Send + Sync>;

/// Who an attempt finds in the way, for the search for deadlocks.
pub(crate) type PartyOf = Box<dyn Fn(&LeaseRecord) -> Option<Party> + Send + Sync>;

pub(super) struct Shared<N, C, E> {
    pub(super) engine: Redlock<N, C, E>,
    state: Mutex<State>,
    /// By node; `None`: it publishes nothing, or only this process ends leases there.
    channels: Vec<Option<Arc<Subscriptions>>>,
    party_of: PartyOf,
    on_deadlock: OnceLock<DeadlockObserver>,
}

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
        let mut local_nodes = 0;
        let channel = |(i, node): (usize, &Arc<N>)| match node.notifications() {
            NotificationSource::PollOnly => None,
            NotificationSource::Local => {
                local_nodes |= 1_u64.checked_shl(u32::try_from(i).unwrap_or(u32::MAX)).unwrap_or(0);
                None
            }
            NotificationSource::Subscriptions(channel) => Some(Arc::clone(channel)),
        };
        let channels: Vec<_> = engine.nodes.iter().enumerate().map(channel).collect();
        let (nodes, retry, poll) = (channels.len(), engine.settings.retry, engine.settings.poll);
        let queue = Queue::new(QueueSettings { limits, nodes, local_nodes, retry, poll });
        let state = Mutex::new(State { queue, slots: BTreeMap::new(), next: 0 });
        let shared = Arc::new(Shared { engine, state, channels, party_of, on_deadlock: OnceLock::new() });
        let handler = Arc::downgrade(&shared) as Weak<dyn NotificationHandler>;
        for (node, channel) in shared.channels.iter().enumerate() {
            let Some(channel) = channel else { continue };
            channel.add_handler(node, Weak::clone(&handler));
            if channel.is_connected() {
                shared.handle(Event::Connection { node, is_up: true });
            }
        }
        Self(shared)
    }

    /// Sets who is called with deadlocks that are reported, under the lock of the queues. Only the first call counts.
    pub(crate) fn observe_deadlocks(&self, observer: DeadlockObserver) {
        let _ = self.0.on_deadlock.set(observer);
    }

    /// Acquires, waiting as `request` says; its only resource is that of `params`. It is refused only for a
    /// deadlock of which it `may_know` each resource. `on_round` is called after each attempt, with when it began.
    ///
    /// Cancel: the request leaves the queue at once, and an attempt under way is cancelled on all nodes.
    pub(crate) async fn acquire(
        &self,
        params: &AcquireParams,
        request: WaitRequest,
        may_know: impl Fn(&ResourceName) -> bool,
        on_round: impl Fn(BootTime, &Result<Grant<N, C, E>, Refusal>),
    ) -> Result<Grant<N, C, E>, WaitError> {
        let engine = &self.0.engine;
        let place = self.enqueue(request);
        let (mut granted, mut last, mut tries) = (None, None::<Refusal>, 0_u32);
        let entered = engine.clock.now();
        loop {
            let step = match place.take_step() {
                Some(step) => step,
                None => {
                    // Many waiters sleep here: they keep no answers of nodes, and no times that pass.
                    last = last.map(|refusal| Refusal { nodes: Vec::new(), free_in: None, ..refusal });
                    place.next_step().await
                }
            };
            match step {
                Step::Attempt { joins: true } if !Box::pin(self.holds(&params.resource, &params.token)).await => {
                    place.report(AttemptOutcome::NotJoined);
                }
                Step::Attempt { joins } => {
                    let begun = engine.clock.now();
                    let started = if is(Mutant::RetryKeepsStart) { entered } else { begun };
                    let outcome = Box::pin(engine.attempt(params, started)).await;
                    on_round(begun, &outcome);
                    place.report(self.summary(params, &outcome, joins));
                    match outcome {
                        Ok(mut grant) => {
                            grant.joined &= joins || tries == 0;
                            granted = Some(grant);
                        }
                        Err(refusal) => last = Some(refusal),
                    }
                    tries += u32::from(!joins);
                }
                Step::CheckCycle(cycle) => {
                    let is_confirmed = Box::pin(self.is_confirmed(&cycle)).await;
                    let may_refuse = cycle.iter().all(|edge| may_know(&edge.resource));
                    place.handle(Event::CycleChecked { waiter: place.waiter, cycle, is_confirmed, may_refuse });
                }
                Step::Grant => return granted.ok_or(WaitError::NotAsked(None)),
                Step::Refuse(reason) => return Err(self.error(params, reason, last).await),
            }
        }
    }

    async fn error(&self, params: &AcquireParams, reason: RefuseReason, last: Option<Refusal>) -> WaitError {
        match (reason, last) {
            (RefuseReason::LastAttempt, Some(refusal)) => WaitError::Refused(refusal),
            (RefuseReason::LastAttempt | RefuseReason::NotAsked, last) => WaitError::NotAsked(last),
            (RefuseReason::OthersWait, _) => WaitError::OthersWait,
            (RefuseReason::QueueFull(full), _) => WaitError::QueueFull(full),
            (RefuseReason::Deadlock(cycle), _) => WaitError::Deadlock(cycle),
            (RefuseReason::TimedOut { position }, _) => {
                let inspected = Box::pin(self.0.engine.inspect(&params.resource)).await;
                WaitError::TimedOut { position, inspected }
            }
        }
    }

    fn enqueue(&self, request: WaitRequest) -> Place<N, C, E> {
        let next = Mutex::new((None, BootTime::from_nanos(u64::MAX)));
        let slot = Arc::new(Slot { next, changed: Notify::new() });
        let mut state = self.0.state.lock();
        let waiter = state.next;
        state.next += 1;
        state.slots.insert(waiter, Arc::clone(&slot));
        self.0.handle_in(&mut state, Event::Enqueue(waiter, request));
        drop(state);
        Place { driver: self.clone(), waiter, slot }
    }

    /// What an attempt means for the queue.
    fn summary(
        &self,
        params: &AcquireParams,
        outcome: &Result<Grant<N, C, E>, Refusal>,
        joins: bool,
    ) -> AttemptOutcome {
        let refusal = match outcome {
            Ok(grant) => {
                let until = self.keys_gone(grant.deadline);
                return AttemptOutcome::Granted { lease: params.token.clone(), until };
            }
            Err(refusal) => refusal,
        };
        match refusal.kind {
            kind if kind.is_final() => AttemptOutcome::Final,
            _ if joins => AttemptOutcome::NotJoined,
            RefusalKind::Held => AttemptOutcome::Held(vec![Blocker {
                resource: params.resource.clone(),
                lease: refusal.holder.as_ref().map(|record| record.token.clone()),
                party: refusal.holder.as_ref().and_then(|record| (self.0.party_of)(record)),
                is_confirmed: refusal.holder_nodes >= self.0.engine.quorum(),
                free_in: refusal.free_in,
            }]),
            RefusalKind::Split => AttemptOutcome::Split,
            _ => AttemptOutcome::NoQuorum,
        }
    }

    /// Whether a quorum has this token's lease.
    pub(crate) async fn holds(&self, resource: &ResourceName, token: &TokenHash) -> bool {
        let state = self.0.engine.inspect(resource).await.map(|inspected| inspected.state);
        matches!(state, Ok(ResourceState::Lease { record, .. }) if record.token == *token)
    }

    /// Whether a quorum has each lease of the cycle. False also where too few nodes answer.
    ///
    /// Why nobody is refused by mistake: each lease in the cycle was known before the first inspection and is
    /// still there after the last one, and each waiter entered its queue before the first inspection and is still
    /// in it after the last one, which the queue checks. So there was an instant, that of the first inspection, at
    /// which the whole cycle existed.
    async fn is_confirmed(&self, cycle: &[WaitEdge]) -> bool {
        let lock_delay = self.0.engine.settings.params.lock_delay;
        for edge in cycle.iter().filter(|_| !is(Mutant::DeadlockUnverified)) {
            let inspected = self.0.engine.inspect(&edge.resource).await;
            let is_held = inspected.is_ok_and(|inspected| match inspected.state {
                // A lease that has run out ends the cycle by itself.
                ResourceState::Lease { record, left } => record.token == edge.holder.token && left > lock_delay,
                _ => false,
            });
            if !is_held {
                return false;
            }
        }
        true
    }

    /// See [`Event::LeaseEnded`].
    pub(crate) fn lease_ended(&self, resource: &ResourceName, lease: Option<LeaseTag>) {
        self.0.handle(Event::LeaseEnded(resource.clone(), lease));
    }

    /// See [`Event::LeaseMayHaveEnded`].
    pub(crate) fn lease_may_have_ended(&self, resource: &ResourceName) {
        self.0.handle(Event::LeaseMayHaveEnded(resource.clone()));
    }

    /// A lease was extended here to this deadline.
    pub(crate) fn extended(&self, resource: &ResourceName, deadline: BootTime) {
        self.0.handle(Event::HeldUntil(resource.clone(), self.keys_gone(deadline)));
    }

    /// When the keys of a lease with this deadline are gone from the nodes.
    fn keys_gone(&self, deadline: BootTime) -> BootTime {
        deadline.plus(self.0.engine.settings.params.lock_delay)
    }

    /// Reads the queue.
    pub(crate) fn queue<T>(&self, read: impl FnOnce(&Queue) -> T) -> T {
        read(&self.0.state.lock().queue)
    }

    /// The channels of all nodes that have one.
    pub(crate) fn channels(&self) -> impl Iterator<Item = &Arc<Subscriptions>> {
        self.0.channels.iter().flatten()
    }

    /// Subscribes to the ends of this resource's leases until the guard is dropped.
    pub(crate) fn subscribe(&self, resource: &ResourceName) -> SubscriptionGuard {
        SubscriptionGuard::new(self.channels().cloned().collect(), Topic::LeaseEnded(resource.clone()))
    }
}

impl<N: Node, C: Clock, E: Entropy> Shared<N, C, E> {
    pub(super) fn handle(&self, event: Event) {
        self.handle_in(&mut self.state.lock(), event);
    }

    /// Under the lock, so that actions take effect in the order of their events.
    fn handle_in(&self, state: &mut State, event: Event) {
        let (mut event, mut more) = (Some(event), Vec::new());
        while let Some(next) = event.take().or_else(|| more.pop()) {
            let (now, random) = (self.engine.clock.now(), self.engine.entropy.bits());
            for action in state.queue.handle(now, random, next) {
                match action {
                    Action::Attempt { waiter, joins } => state.step(waiter, Step::Attempt { joins }),
                    Action::CheckCycle(waiter, cycle) => state.step(waiter, Step::CheckCycle(cycle)),
                    Action::Grant(waiter) => state.step(waiter, Step::Grant),
                    Action::Refuse(waiter, reason) => state.step(waiter, Step::Refuse(reason)),
                    Action::Arm(waiter, at) => state.arm(waiter, at),
                    Action::ReportDeadlock(cycle) => {
                        self.on_deadlock.get().into_iter().for_each(|observer| observer(&cycle));
                    }
                    Action::Subscribe(resource) => {
                        let topic = Topic::LeaseEnded(resource.clone());
                        let nodes = self.channels.iter().enumerate();
                        let active = nodes.filter(|(_, node)| node.as_ref().is_some_and(|n| n.subscribe(&topic)));
                        more.extend(active.map(|(node, _)| Event::Subscribed(resource.clone(), node)));
                    }
                    Action::Unsubscribe(resource) => {
                        let topic = Topic::LeaseEnded(resource);
                        self.channels.iter().flatten().for_each(|node| node.unsubscribe(&topic));
                    }
                }
            }
        }
    }
}

impl State {
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
        self.handle(Event::Notice(resource.clone(), node, notice));
    }

    fn on_subscribed(&self, node: usize, topic: &Topic) {
        if let Topic::LeaseEnded(resource) = topic {
            self.handle(Event::Subscribed(resource.clone(), node));
        }
    }

    fn on_connection_changed(&self, node: usize, is_up: bool) {
        self.handle(Event::Connection { node, is_up });
    }
}

/// A request's place in the queues. Dropping it leaves them.
struct Place<N: Node, C: Clock, E: Entropy> {
    driver: WaitDriver<N, C, E>,
    waiter: WaiterId,
    slot: Arc<Slot>,
}

impl<N: Node, C: Clock, E: Entropy> Place<N, C, E> {
    fn handle(&self, event: Event) {
        self.driver.0.handle(event);
    }

    fn report(&self, outcome: AttemptOutcome) {
        self.handle(Event::AttemptFinished(self.waiter, outcome));
    }

    fn take_step(&self) -> Option<Step> {
        self.slot.next.lock().0.take()
    }

    /// Cancel: no step is lost.
    async fn next_step(&self) -> Step {
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
                    // Armed anew by the event; no second one for this time.
                    self.slot.next.lock().1 = BootTime::from_nanos(u64::MAX);
                    self.handle(Event::Timer(self.waiter));
                }
            }
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> Drop for Place<N, C, E> {
    fn drop(&mut self) {
        let mut state = self.driver.0.state.lock();
        state.slots.remove(&self.waiter);
        self.driver.0.handle_in(&mut state, Event::Cancel(self.waiter));
    }
}
