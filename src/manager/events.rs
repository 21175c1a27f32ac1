//! What happens in the whole cluster, for event streams and pages: this instance publishes its events through the
//! nodes, and receives those of other instances from them. Best effort; publishing never waits.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::Notify;

use super::activity::{self, AcquireSeen, Activity, Hour};
use super::distant_ends::{self, DistantEnds};
pub(crate) use super::event_buffer::{EVENTS_MAX, NumberedEvent};
use super::event_buffer::{EventBuffer, KeptEvent, SeenNames};
pub(crate) use super::event_fields::{LeaseEvent, set_end, set_lease, set_mode};
use super::event_fields::{is_message_of, is_valid};
pub(crate) use super::event_kind::EventKind;
use super::gaps::Gap;
use super::history_exchange;
use super::incident_file::HistoryFile;
use super::incident_history::IncidentHistory;
use super::tenures::{self, KnownTenures, TenureEnd, Tenures};
use crate::api::Event;
use crate::protocol::InstanceName;
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::{NotificationHandler, Topic};
use crate::redlock::subscriptions::Subscriptions;
use crate::types::{ResourceName, TokenHash};

/// Maximum number of streams of one instance: for dashboards and log collectors, not for each client.
pub(crate) const LISTENERS_MAX: usize = 256;
/// Maximum length of a text that is accepted from a node's channel, in bytes: any client of Redis may publish there.
/// The longest deadlock, of 16 owners with the longest names, takes less.
const TEXT_MAX: usize = 16_384;
/// For this long after the last stream ended, events of other instances are still received, so that a resumed stream
/// misses nothing.
const FOLLOW_LINGER: Duration = Duration::from_secs(60);

/// The events of one instance, their streams, and the nodes' channels to other instances.
pub struct EventHub {
    /// The name of this run of the instance.
    name: String,
    channels: RwLock<Vec<Arc<Subscriptions>>>,
    listeners: AtomicUsize,
    published: AtomicU64,
    added: Notify,
    state: Mutex<State>,
    activity: Activity,
    tenures: Tenures,
    pub(super) distant_ends: DistantEnds,
    observer: OnceLock<Arc<dyn EventObserver>>,
}

/// Receives the events that this instance saw itself. Must return at once.
pub(crate) trait EventObserver: Send + Sync {
    /// Whether [`Self::receive`] does anything with events of this kind.
    fn wants(&self, kind: EventKind) -> bool;

    /// Receives an event.
    fn receive(&self, kind: EventKind, event: &Event);
}

#[derive(Default)]
struct State {
    buffer: EventBuffer,
    history: IncidentHistory,
    seen: SeenNames,
    /// Whether the nodes' channels are subscribed to.
    follows_cluster: bool,
    idle_since: Option<BootTime>,
}

/// One stream: a cursor into the buffer. Counted as a listener until it is dropped.
pub struct EventSubscription {
    hub: Arc<EventHub>,
    next: u64,
    /// Whether events after the one from which the stream resumes are no longer known.
    pub has_gap: bool,
}

/// A stream lagged so far behind that this many of its events have been removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventsMissed(pub u64);

impl EventSubscription {
    /// The known events since the event from which the stream resumes.
    pub fn take_backlog(&mut self) -> Vec<NumberedEvent> {
        let state = self.hub.state.lock();
        let backlog = state.buffer.from(self.next).collect();
        self.next = state.buffer.next_number();
        backlog
    }

    /// The next event, as soon as there is one.
    ///
    /// Errors: [`EventsMissed`], once; the stream then continues with the events that are left. Cancel: no event is lost.
    pub async fn next(&mut self) -> Result<NumberedEvent, EventsMissed> {
        loop {
            let mut added = std::pin::pin!(self.hub.added.notified());
            added.as_mut().enable();
            if let Some(event) = Self::poll(&self.hub, &mut self.next) {
                return event;
            }
            added.await;
        }
    }

    fn poll(hub: &EventHub, next: &mut u64) -> Option<Result<NumberedEvent, EventsMissed>> {
        let state = hub.state.lock();
        let missed = state.buffer.missed_from(*next);
        if missed > 0 {
            *next = state.buffer.next_number();
            return Some(Err(EventsMissed(missed)));
        }
        let event = state.buffer.from(*next).next()?;
        *next = event.number + 1;
        Some(Ok(event))
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        self.hub.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

impl NotificationHandler for EventHub {
    fn on_event(&self, _node: usize, text: &[u8]) {
        self.receive(text);
    }
}

impl EventHub {
    /// A hub. `instance` distinguishes this run from any other in event ids.
    pub fn new(instance: &InstanceName) -> Self {
        Self {
            name: instance.to_string(),
            channels: RwLock::default(),
            listeners: AtomicUsize::new(0),
            published: AtomicU64::new(0),
            added: Notify::new(),
            state: Mutex::default(),
            activity: Activity::default(),
            tenures: Tenures::default(),
            distant_ends: DistantEnds::default(),
            observer: OnceLock::new(),
        }
    }

    /// Sets the observer of this instance's events. Only the first call counts.
    pub(crate) fn observe(&self, observer: Arc<dyn EventObserver>) {
        let _ = self.observer.set(observer);
    }

    /// Adds a node's channel to other instances.
    pub fn attach(&self, channel: &Arc<Subscriptions>) {
        let state = self.state.lock();
        self.channels.write().push(Arc::clone(channel));
        let _ = channel.subscribe(&Topic::Incidents);
        if state.follows_cluster {
            let _ = channel.subscribe(&Topic::Events);
        }
    }

    /// Takes over the incidents of former runs, and writes the incidents of this run until it is dropped.
    pub async fn run_history(self: Arc<Self>, file: HistoryFile) {
        let unwritten = self.state.lock().history.load(&file);
        file.write(unwritten).await;
    }

    fn channels(&self) -> RwLockReadGuard<'_, Vec<Arc<Subscriptions>>> {
        self.channels.read()
    }

    /// Whether a stream is open, here or elsewhere. Costs a few loads, since every request asks.
    pub fn has_listeners(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) > 0 || self.has_remote_listeners()
    }

    fn has_remote_listeners(&self) -> bool {
        self.channels().iter().any(|channel| channel.event_subscribers() > 0)
    }

    /// Publishes an event of this instance to the whole cluster, and keeps it: incidents always, other events if
    /// there is a listener. Renewals without a listener are not even made.
    pub fn publish(&self, kind: EventKind, wall_ms: u64, describe: impl FnOnce(&mut Event)) {
        if kind.is_incident() || self.has_listeners() {
            let event = self.named_event(kind, wall_ms, describe);
            let topics = [(Topic::Incidents, kind.is_incident()), (Topic::Events, self.has_remote_listeners())];
            let topics = || topics.iter().filter(|(_, is_wanted)| *is_wanted).map(|(topic, _)| topic);
            if topics().next().is_some()
                && let Ok(text) = serde_json::to_string(&event)
            {
                let text: Arc<str> = text.into();
                let publish = |channel: &Arc<Subscriptions>| topics().for_each(|t| channel.publish(t.clone(), &text));
                self.channels().iter().for_each(publish);
            }
            self.add(event);
        } else if kind != EventKind::Extended {
            self.publish_local(kind, wall_ms, describe);
        }
    }

    /// As [`Self::publish`], for the grant or the end of a lease.
    pub(super) fn publish_lease(&self, lease: LeaseEvent) {
        let is_wanted = self.observer.get().is_some_and(|observer| observer.wants(lease.kind));
        if is_wanted || lease.kind.is_incident() || self.has_listeners() {
            return self.publish(lease.kind, lease.at_ms, |event| lease.describe(event));
        }
        self.activity.record_lease(&lease);
        self.tenures.record_lease(&lease);
        self.state.lock().buffer.push(KeptEvent::Lease(lease));
        // A stream may have been opened meanwhile.
        self.added.notify_waiters();
    }

    /// Publishes an event of this instance to its own streams only.
    fn publish_local(&self, kind: EventKind, wall_ms: u64, describe: impl FnOnce(&mut Event)) {
        let mut event = Event { event: kind.as_str().to_owned(), at_ms: wall_ms, ..Event::default() };
        describe(&mut event);
        self.record(kind, &event);
        self.add(event);
    }

    fn record(&self, kind: EventKind, event: &Event) {
        self.activity.record_event(kind, event);
        self.tenures.record_event(kind, event);
        if let Some(observer) = self.observer.get() {
            observer.receive(kind, event);
        }
    }

    /// Records that an acquire of this instance, for this owner, was decided.
    pub(super) fn record_acquire(&self, resource: &ResourceName, owner: &str, seen: AcquireSeen, wall_ms: u64) {
        self.activity.record_acquire(resource, seen, wall_ms);
        if let Some(waited) = seen.waited.filter(|_| seen.is_contended) {
            let end = if seen.is_granted { TenureEnd::Granted } else { TenureEnd::GaveUp };
            self.tenures.record_wait(resource, owner, waited, end, wall_ms);
        }
    }

    /// Publishes the activity of this instance to the others when it is due, repeats ends of leases, and requests
    /// what it missed. Must be called every second.
    pub(super) fn publish_activity(&self, wall_ms: u64) {
        let is_listening = {
            let channels = self.channels();
            channels.is_empty() || channels.iter().any(|channel| channel.is_active(&Topic::Incidents))
        };
        let request = self.state.lock().history.tick(&self.name, is_listening, wall_ms);
        let tenures = self.tenures.due(&self.name, wall_ms, TEXT_MAX);
        let texts = self.activity.due(&self.name, wall_ms, TEXT_MAX).into_iter().chain(tenures).chain(request);
        texts.chain(self.distant_ends.repeats()).for_each(|text| self.publish_to_instances(text));
    }

    /// Publishes that this instance has ended a lease that another may have granted.
    pub(super) fn publish_end(&self, resource: &ResourceName, token: &TokenHash) {
        let Some(text) = distant_ends::message(&self.name, resource, token) else { return };
        self.distant_ends.published(text.clone());
        self.publish_to_instances(text);
    }

    fn publish_to_instances(&self, text: String) {
        let text: Arc<str> = text.into();
        self.channels().iter().for_each(|channel| channel.publish(Topic::Incidents, &text));
    }

    /// The activity of the last hour.
    pub(super) fn hour(&self, wall_ms: u64) -> Hour {
        self.activity.hour(wall_ms)
    }

    /// The owners that held, or waited for, these names at any instance since then (milliseconds since 1970; at most an hour).
    pub(super) fn tenures(&self, from_ms: u64, now_ms: u64, is_wanted: impl Fn(&str) -> bool) -> KnownTenures {
        let (mut known, gaps) = (self.tenures.since(from_ms, is_wanted), self.state.lock().history.gaps_of_run(now_ms));
        for gap in gaps {
            // The gap before the start ends when messages of other instances arrive.
            if gap.from_ms <= known.since_ms {
                known.since_ms = known.since_ms.max(gap.to_ms);
            } else {
                known.gaps.push(gap);
            }
        }
        known
    }

    /// The times in which [`Self::past`] may lack incidents of other instances, the oldest first. Units: milliseconds since 1970.
    pub(crate) fn gaps(&self, now_ms: u64) -> Vec<Gap> {
        self.state.lock().history.gaps(now_ms)
    }

    /// The known recent events, newest first: those of this instance since it started, and those of the whole cluster
    /// while it was followed.
    pub fn recent(&self) -> Vec<Arc<Event>> {
        let kept: Vec<KeptEvent> = self.state.lock().buffer.recent().cloned().collect();
        kept.iter().map(KeptEvent::event).collect()
    }

    /// The recent events with the incidents that are kept, of this and former runs, and of all instances. Newest first.
    pub fn past(&self) -> Vec<Arc<Event>> {
        let state = self.state.lock();
        let locks: Vec<KeptEvent> = state.buffer.recent().filter(|event| !event.is_incident()).cloned().collect();
        let incidents: Vec<Arc<Event>> = state.history.incidents.iter().rev().cloned().collect();
        drop(state);
        let mut all: Vec<Arc<Event>> = locks.iter().map(KeptEvent::event).chain(incidents).collect();
        all.sort_by_key(|event| std::cmp::Reverse(event.at_ms));
        all
    }

    /// The latest incidents of this kind, newest first.
    pub(super) fn incidents(&self, kind: EventKind, limit: usize) -> Vec<Arc<Event>> {
        let state = self.state.lock();
        state.history.of_kind(kind).take(limit).cloned().collect()
    }

    /// Receives the events of all instances from now on, until there has been no reader for a minute.
    pub fn follow_cluster(&self) {
        self.follow(&mut self.state.lock());
    }

    /// Whether events of other instances are received.
    pub fn follows_cluster(&self) -> bool {
        self.state.lock().follows_cluster
    }

    fn follow(&self, state: &mut State) {
        if !state.follows_cluster {
            state.follows_cluster = true;
            for channel in self.channels().iter() {
                let _ = channel.subscribe(&Topic::Events);
            }
        }
        state.idle_since = None;
    }

    fn named_event(&self, kind: EventKind, wall_ms: u64, describe: impl FnOnce(&mut Event)) -> Event {
        let number = self.published.fetch_add(1, Ordering::Relaxed);
        let name = Some(format!("{}.{number}", self.name));
        let mut event = Event { event: kind.as_str().to_owned(), at_ms: wall_ms, name, ..Event::default() };
        event.instance = kind.is_incident().then(|| self.name.clone());
        describe(&mut event);
        self.record(kind, &event);
        event
    }

    /// Receives an event that an instance published through a node. Malformed events are dropped.
    pub fn receive(&self, text: &[u8]) {
        if text.len() > TEXT_MAX || is_message_of(text, &self.name) {
            return;
        }
        let Ok(event) = serde_json::from_slice::<Event>(text) else { return };
        match event.event.as_str() {
            activity::MESSAGE => return self.activity.receive(text, &self.name),
            tenures::MESSAGE => return self.tenures.receive(text, &self.name),
            distant_ends::MESSAGE => return self.distant_ends.receive(text, &self.name),
            _ => {}
        }
        if event.event == history_exchange::REQUEST {
            let answer = self.state.lock().history.answer(text, &self.name, TEXT_MAX);
            answer.into_iter().for_each(|answer| self.publish_to_instances(answer));
            return;
        }
        if event.event == history_exchange::ANSWER {
            let is_incident = |event: &Event| EventKind::parse(&event.event).is_some_and(EventKind::is_incident);
            let is_valid = |event: &Event| is_incident(event) && is_valid(event);
            self.state.lock().history.receive(text, &self.name, is_valid);
            return;
        }
        if is_valid(&event) {
            self.add(event);
        }
    }

    fn add(&self, mut event: Event) {
        let mut state = self.state.lock();
        if let Some(name) = event.name.take()
            && !state.seen.add(name)
        {
            return;
        }
        if state.history.incidents.has_of_another_instance(&event) {
            return;
        }
        let event = Arc::new(event);
        state.buffer.push(KeptEvent::Made(Arc::clone(&event)));
        if EventKind::parse(&event.event).is_some_and(EventKind::is_incident) {
            state.history.add(event);
        }
        drop(state);
        self.added.notify_waiters();
    }

    /// Opens a stream, resumed after the event that `last` names (`Last-Event-ID`).
    ///
    /// Errors: `None` if [`LISTENERS_MAX`] streams are open already.
    pub fn subscribe(self: &Arc<Self>, last: Option<&str>) -> Option<EventSubscription> {
        let before = self.listeners.fetch_add(1, Ordering::Relaxed);
        let mut subscription = EventSubscription { hub: Arc::clone(self), next: 0, has_gap: false };
        if before >= LISTENERS_MAX {
            return None;
        }
        let mut state = self.state.lock();
        self.follow(&mut state);
        let end = state.buffer.next_number();
        let number = last.map(|id| id.strip_prefix(&self.name)?.strip_prefix('.')?.parse::<u64>().ok());
        (subscription.next, subscription.has_gap) = match number {
            None => (end, false),
            Some(Some(number)) if number < end => (number + 1, state.buffer.has_gap_from(number + 1)),
            Some(_) => (end, true),
        };
        Some(subscription)
    }

    /// The `Last-Event-ID` with which a stream resumes after this event.
    pub fn event_id(&self, event: &NumberedEvent) -> String {
        format!("{}.{}", self.name, event.number)
    }

    /// How many streams are open here.
    pub fn listeners(&self) -> usize {
        self.listeners.load(Ordering::Relaxed)
    }

    /// Stops following the cluster if no stream has been open here for [`FOLLOW_LINGER`].
    pub fn sweep(&self, now: BootTime) {
        let mut state = self.state.lock();
        if !state.follows_cluster || self.listeners() > 0 {
            return;
        }
        let since = *state.idle_since.get_or_insert(now);
        if now.since(since) < FOLLOW_LINGER {
            return;
        }
        self.channels().iter().for_each(|channel| channel.unsubscribe(&Topic::Events));
        state.buffer.interrupt();
        (state.follows_cluster, state.idle_since) = (false, None);
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
