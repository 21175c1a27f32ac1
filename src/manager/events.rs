//! What happens in the whole cluster, told to those who listen: a bounded ring to resume from, a
//! bounded number of listeners, and nobody is waited for. Apart from the verbs, which only say what
//! they did. Knows no HTTP, and never a token.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;

use crate::api::Event;
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::Topic;
use crate::redlock::subscriptions::Subscriptions;
use crate::types::{ResourceName, TokenHash};

/// Events to resume from, and how far a listener may lag: some seconds of a busy cluster, a few
/// hundred KiB.
pub const EVENTS_MAX: usize = 1_024;
/// The most listeners of one instance: pages and log collectors, not every caller.
pub const LISTENERS_MAX: usize = 256;
/// Events that are remembered for pages, whoever listens: renewals are not among them.
pub const PAST_MAX: usize = 1_024;
/// Names of events that were heard, so that those of other nodes are told once.
const HEARD_MAX: usize = 4 * EVENTS_MAX;
/// The longest text that is taken from a channel: anybody who may publish could write there.
const TEXT_MAX: usize = 4_096;
/// EventSubscription goes on for so long after the last listener, so that one who comes back misses nothing.
const LINGER: Duration = Duration::from_secs(60);

/// What can happen to a lease or a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A lease was granted.
    Acquired,
    /// It was renewed, or its labels edited.
    Extended,
    /// Its holder gave it back.
    Released,
    /// It ran out. Best effort: told by the instance that gave it, where that still runs.
    Expired,
    /// An operator ended it, or forbade its renewal.
    Forced,
    /// A connection that held it lost it.
    Lost,
    /// A node no longer answers.
    NodeDown,
    /// It answers again.
    NodeUp,
    /// It answers and has no vote.
    Quarantined,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Acquired,
        Self::Extended,
        Self::Released,
        Self::Expired,
        Self::Forced,
        Self::Lost,
        Self::NodeDown,
        Self::NodeUp,
        Self::Quarantined,
    ];

    /// The name of the event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Extended => "extended",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Forced => "forced",
            Self::Lost => "lost",
            Self::NodeDown => "node_down",
            Self::NodeUp => "node_up",
            Self::Quarantined => "quarantined",
        }
    }
}

/// An event as listeners of this instance get it.
#[derive(Debug, Clone)]
pub struct NumberedEvent {
    /// Its place in this instance's ring.
    pub number: u64,
    /// What happened.
    pub event: Arc<Event>,
}

/// Listeners, ring and lines of one instance.
pub struct EventHub {
    /// Names this instance for as long as it runs.
    name: String,
    feeds: OnceLock<Vec<Arc<Subscriptions>>>,
    listeners: AtomicUsize,
    sent: AtomicU64,
    live: broadcast::Sender<NumberedEvent>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ring: VecDeque<NumberedEvent>,
    past: VecDeque<Arc<Event>>,
    next: u64,
    heard: HashSet<String>,
    heard_order: VecDeque<String>,
    /// The nodes' channels are listened to.
    is_wanted: bool,
    idle_since: Option<BootTime>,
}

impl State {
    fn remember(&mut self, event: Arc<Event>) {
        if self.past.len() == PAST_MAX {
            self.past.pop_front();
        }
        self.past.push_back(event);
    }
}

/// A listener's start.
pub struct EventSubscription {
    /// What it missed.
    pub backlog: Vec<NumberedEvent>,
    /// Something between its last event and the backlog is no longer known.
    pub has_gap: bool,
    /// What follows.
    pub live: broadcast::Receiver<NumberedEvent>,
    /// Counts it while it lives.
    pub seat: ListenerPermit,
}

/// A listener's place.
pub struct ListenerPermit(Arc<EventHub>);

impl Drop for ListenerPermit {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EventHub {
    /// A hub; `random` tells this run from any other.
    pub fn new(random: u64) -> Self {
        Self {
            name: format!("{random:016x}"),
            feeds: OnceLock::new(),
            listeners: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            live: broadcast::Sender::new(EVENTS_MAX),
            state: Mutex::default(),
        }
    }

    /// The lines on which the cluster is told and heard. Only the first call counts.
    pub fn attach(&self, feeds: Vec<Arc<Subscriptions>>) {
        let _ = self.feeds.set(feeds);
    }

    /// Whether anybody listens, here or elsewhere: a few loads, on the path of every request.
    pub fn is_heard(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) > 0 || self.is_heard_elsewhere() || self.live.receiver_count() > 0
    }

    fn is_heard_elsewhere(&self) -> bool {
        self.feeds.get().is_some_and(|feeds| feeds.iter().any(|f| f.event_subscribers() > 0))
    }

    /// Tells the cluster, where anybody listens, and remembers it. Best effort; never waits.
    pub fn tell(&self, kind: EventKind, wall_ms: u64, describe: impl FnOnce(&mut Event)) {
        if self.is_heard() {
            let event = self.event(kind, wall_ms, describe);
            if self.is_heard_elsewhere()
                && let Ok(text) = serde_json::to_string(&event)
            {
                let text: Arc<str> = text.into();
                for feed in self.feeds.get().into_iter().flatten() {
                    feed.publish(&text);
                }
            }
            self.deliver(event);
        } else if kind != EventKind::Extended {
            self.remember(kind, wall_ms, describe);
        }
    }

    /// Tells listeners of this instance only, and remembers: what every instance sees for itself.
    pub fn tell_here(&self, kind: EventKind, wall_ms: u64, describe: impl FnOnce(&mut Event)) {
        if self.listeners.load(Ordering::Relaxed) > 0 {
            self.deliver(self.event(kind, wall_ms, describe));
        } else {
            self.remember(kind, wall_ms, describe);
        }
    }

    fn remember(&self, kind: EventKind, wall_ms: u64, describe: impl FnOnce(&mut Event)) {
        let mut event = Event { event: kind.as_str().to_owned(), at_ms: wall_ms, ..Event::default() };
        describe(&mut event);
        self.lock().remember(Arc::new(event));
    }

    /// What is remembered, the newest first: what this instance did since it started, and what the
    /// whole cluster did while somebody listened or looked.
    pub fn recent(&self) -> Vec<Arc<Event>> {
        self.lock().past.iter().rev().cloned().collect()
    }

    /// Somebody looks at the past: for a while, what the whole cluster does is heard.
    pub fn follow_cluster(&self) {
        self.want(&mut self.lock());
    }

    /// Whether the whole cluster is heard, not this instance alone.
    pub fn is_wanted(&self) -> bool {
        self.lock().is_wanted
    }

    fn want(&self, state: &mut State) {
        if !state.is_wanted {
            state.is_wanted = true;
            for feed in self.feeds.get().into_iter().flatten() {
                feed.subscribe(&Topic::Events);
            }
        }
        state.idle_since = None;
    }

    fn event(&self, kind: EventKind, wall_ms: u64, describe: impl FnOnce(&mut Event)) -> Event {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let name = Some(format!("{}.{number}", self.name));
        let mut event = Event { event: kind.as_str().to_owned(), at_ms: wall_ms, name, ..Event::default() };
        describe(&mut event);
        event
    }

    /// A node passed on what an instance told.
    pub fn told(&self, text: &[u8]) {
        if text.len() > TEXT_MAX {
            return;
        }
        let Ok(event) = serde_json::from_slice::<Event>(text) else { return };
        let is_known = EventKind::ALL.iter().any(|kind| kind.as_str() == event.event);
        let is_named = event.resource.as_deref().is_none_or(|name| ResourceName::parse(name).is_ok());
        if is_known && is_named {
            self.deliver(event);
        }
    }

    fn deliver(&self, mut event: Event) {
        let mut state = self.lock();
        if let Some(name) = event.name.take() {
            if !state.heard.insert(name.clone()) {
                return;
            }
            state.heard_order.push_back(name);
            if state.heard_order.len() > HEARD_MAX
                && let Some(oldest) = state.heard_order.pop_front()
            {
                state.heard.remove(&oldest);
            }
        }
        let told = NumberedEvent { number: state.next, event: Arc::new(event) };
        state.next += 1;
        if state.ring.len() == EVENTS_MAX {
            state.ring.pop_front();
        }
        state.ring.push_back(told.clone());
        if told.event.event != EventKind::Extended.as_str() {
            state.remember(Arc::clone(&told.event));
        }
        // Under the lock, so that who begins to listen misses nothing and hears nothing twice.
        let _ = self.live.send(told);
    }

    /// Begins to listen, behind the event that `last` names (`Last-Event-ID`).
    ///
    /// Errors: `None` where [`LISTENERS_MAX`] listen already.
    pub fn subscribe(self: &Arc<Self>, last: Option<&str>) -> Option<EventSubscription> {
        let before = self.listeners.fetch_add(1, Ordering::Relaxed);
        let seat = ListenerPermit(Arc::clone(self));
        if before >= LISTENERS_MAX {
            return None;
        }
        let mut state = self.lock();
        self.want(&mut state);
        let live = self.live.subscribe();
        let Some(last) = last else {
            return Some(EventSubscription { backlog: Vec::new(), has_gap: false, live, seat });
        };
        let number = last.strip_prefix(&self.name).and_then(|n| n.strip_prefix('.')?.parse::<u64>().ok());
        let known = number.filter(|n| *n < state.next);
        let oldest = state.ring.front().map_or(state.next, |t| t.number);
        let has_gap = known.is_none_or(|n| n + 1 < oldest);
        let from = known.map_or(u64::MAX, |n| n + 1);
        let backlog = state.ring.iter().filter(|t| t.number >= from).cloned().collect();
        Some(EventSubscription { backlog, has_gap, live, seat })
    }

    /// What a listener is to send as `Last-Event-ID` to resume behind this event.
    pub fn id(&self, told: &NumberedEvent) -> String {
        format!("{}.{}", self.name, told.number)
    }

    /// How many listen here.
    pub fn listeners(&self) -> usize {
        self.listeners.load(Ordering::Relaxed)
    }

    /// Stops listening to the nodes, and forgets, when nobody has listened here for a while.
    pub fn sweep(&self, now: BootTime) {
        let mut state = self.lock();
        if !state.is_wanted || self.listeners() > 0 {
            return;
        }
        let since = *state.idle_since.get_or_insert(now);
        if now.since(since) < LINGER {
            return;
        }
        for feed in self.feeds.get().into_iter().flatten() {
            feed.unsubscribe(&Topic::Events);
        }
        let past = std::mem::take(&mut state.past);
        *state = State { next: state.next, past, ..State::default() };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names a lease in an event: its resource and the id of its token.
pub fn of_lease(event: &mut Event, resource: &ResourceName, token: &TokenHash) {
    event.resource = Some(resource.to_string());
    event.token_id = Some(token.id().to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> Arc<EventHub> {
        Arc::new(EventHub::new(7))
    }

    fn happen(hub: &EventHub, name: &str) {
        hub.tell(EventKind::Acquired, 1, |e| e.resource = Some(name.into()));
    }

    fn names(told: &[NumberedEvent]) -> Vec<&str> {
        told.iter().filter_map(|t| t.event.resource.as_deref()).collect()
    }

    #[test]
    fn without_listeners_nothing_is_told_renewals_are_not_made_and_the_past_has_a_bound() {
        let hub = hub();
        hub.tell(EventKind::Extended, 1, |_| panic!("nobody listens"));
        for i in 0..=PAST_MAX {
            hub.tell(EventKind::Released, 1, |e| e.resource = Some(i.to_string()));
        }
        hub.tell_here(EventKind::NodeDown, 2, |e| e.node = Some("n1".into()));
        assert!(!hub.is_heard() && hub.lock().ring.is_empty());
        let past = hub.recent();
        assert_eq!((past.len(), past[0].event.as_str(), past[1].at_ms), (PAST_MAX, "node_down", 1));
        assert_eq!(past.last().and_then(|e| e.resource.as_deref()), Some("2"));
    }

    #[test]
    fn the_past_outlives_its_listeners_and_has_each_event_once() {
        let (hub, teller) = (hub(), EventHub::new(9));
        drop(hub.subscribe(None).expect("room"));
        let event = teller.event(EventKind::Acquired, 5, |e| e.resource = Some("a".into()));
        let text = serde_json::to_vec(&event).expect("plain data");
        hub.told(&text);
        hub.told(&text);
        let at = |s| BootTime::default().plus(Duration::from_secs(s));
        hub.sweep(at(1));
        hub.sweep(at(62));
        assert!(!hub.is_wanted());
        assert_eq!(hub.recent().len(), 1);
        hub.follow_cluster();
        assert!(hub.is_wanted());
    }

    #[test]
    fn one_who_comes_back_gets_what_it_missed_and_is_told_of_a_gap() {
        let hub = hub();
        let mut first = hub.subscribe(None).expect("room");
        happen(&hub, "a");
        happen(&hub, "b");
        let seen = first.live.try_recv().expect("heard");
        let again = hub.subscribe(Some(&hub.id(&seen))).expect("room");
        assert_eq!((names(&again.backlog), again.has_gap), (vec!["b"], false));
        for _ in 0..EVENTS_MAX {
            happen(&hub, "c");
        }
        let late = hub.subscribe(Some(&hub.id(&seen))).expect("room");
        assert!(late.has_gap && late.backlog.len() == EVENTS_MAX);
        for unknown in ["", "other.3", "0000000000000007.99999999", "0000000000000007.x"] {
            let stranger = hub.subscribe(Some(unknown)).expect("room");
            assert!(stranger.has_gap && stranger.backlog.is_empty(), "{unknown}");
        }
    }

    #[test]
    fn what_several_nodes_pass_on_is_told_once_and_nonsense_never() {
        let (hub, teller) = (hub(), EventHub::new(9));
        let mut listening = hub.subscribe(None).expect("room");
        let event = teller.event(EventKind::Released, 5, |e| e.resource = Some("a/b".into()));
        let text = serde_json::to_vec(&event).expect("plain data");
        for _ in 0..5 {
            hub.told(&text);
        }
        let heard = listening.live.try_recv().expect("heard").event;
        assert_eq!((heard.event.as_str(), heard.resource.as_deref(), &heard.name), ("released", Some("a/b"), &None));
        let long = format!(r#"{{"event":"released","at_ms":1,"resource":"{}"}}"#, "x".repeat(TEXT_MAX));
        for nonsense in
            ["", "{}", "[]", r#"{"event":"own3d","at_ms":1}"#, r#"{"event":"lost","at_ms":1,"resource":"a//b"}"#, &long]
        {
            hub.told(nonsense.as_bytes());
        }
        assert!(listening.live.try_recv().is_err());
    }

    #[test]
    fn listeners_are_bounded_and_their_seats_come_back() {
        let hub = hub();
        let seats: Vec<_> = (0..LISTENERS_MAX).map_while(|_| hub.subscribe(None)).collect();
        assert_eq!(seats.len(), LISTENERS_MAX);
        assert!(hub.subscribe(None).is_none());
        drop(seats);
        assert_eq!(hub.listeners(), 0);
        assert!(hub.subscribe(None).is_some());
    }

    #[test]
    fn a_hub_that_nobody_listens_to_forgets_after_a_while() {
        let hub = hub();
        drop(hub.subscribe(None).expect("room"));
        let at = |s| BootTime::default().plus(Duration::from_secs(s));
        hub.sweep(at(1));
        hub.sweep(at(30));
        assert!(hub.lock().is_wanted);
        hub.sweep(at(62));
        assert!(!hub.lock().is_wanted);
    }
}
