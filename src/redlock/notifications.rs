//! What one instance wants to hear from one node, and who is told of it: the seam between those who
//! wait (the manager) and those who listen (a node's subscriber). Knows no queue and no connection.
//!
//! A notice is a hint, never a promise: whoever is woken asks the nodes. Losing one costs time only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::types::{ResourceName, TokenHash};

/// How the ends of leases on a node come to the ears of this instance.
#[derive(Debug, Clone, Copy)]
pub enum NotificationSource<'a> {
    /// They do not: its leases have to be looked at.
    Nothing,
    /// Nobody but this process can end a lease there.
    Local,
    /// By notices.
    Subscriptions(&'a Arc<Subscriptions>),
}

/// What can be listened to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// The ends of leases of one resource.
    Freed(ResourceName),
    /// What happens in the whole cluster.
    Events,
}

/// A lease as notices name it: the first eight hex digits of its token's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseTag(u32);

impl LeaseTag {
    /// Of a token.
    pub fn of(token: &TokenHash) -> Self {
        Self(u32::from_str_radix(token.id().as_str(), 16).unwrap_or(0))
    }
}

/// One node's word that a lease ended there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// Which; `None` for a foreigner's lock.
    pub lease: Option<LeaseTag>,
    /// It was an attempt that was given up: most of these never had a quorum.
    pub withdrawn: bool,
}

impl Notice {
    /// Reads what the scripts publish: nothing, `r` and the tag of a lease that was ended, or `c` and
    /// the tag of one whose last claim was withdrawn. `None` for anything else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let Some((kind, tag)) = text.split_first() else { return Some(Self { lease: None, withdrawn: false }) };
        let digits = std::str::from_utf8(tag).ok().filter(|t| t.len() == 8)?;
        let lease = Some(LeaseTag(u32::from_str_radix(digits, 16).ok()?));
        match kind {
            b'r' => Some(Self { lease, withdrawn: false }),
            b'c' => Some(Self { lease, withdrawn: true }),
            _ => None,
        }
    }
}

/// Hears what the nodes say. Called on the listener's thread: must return at once.
pub trait NotificationHandler: Send + Sync + 'static {
    /// A lease of this resource ended on this node.
    fn freed(&self, node: usize, resource: &ResourceName, notice: Notice);
    /// Somebody told the cluster something.
    fn told(&self, node: usize, text: &[u8]);
    /// The line to a node was opened, with everything that is wanted subscribed, or was lost.
    fn line(&self, node: usize, is_open: bool);
}

/// One node's feed. Everything in it is bounded by what is wanted, and that by the waiters.
#[derive(Default)]
pub struct Subscriptions {
    state: Mutex<State>,
    changed: Notify,
    ear: OnceLock<(usize, Arc<dyn NotificationHandler>)>,
    event_listeners: AtomicUsize,
}

/// Events that wait to be published on one node; more are dropped, since they tell and do not bind.
const OUTBOX_MAX: usize = 1_024;

#[derive(Default)]
struct State {
    /// In the order of their names, so that one history follows from one seed.
    topics: BTreeMap<Topic, Entry>,
    /// Topics that the listener has not yet been told of.
    fresh: Vec<Topic>,
    counts: Vec<(Topic, oneshot::Sender<usize>)>,
    outbox: Vec<Arc<str>>,
    is_open: bool,
}

#[derive(Default)]
struct Entry {
    wanted: usize,
    is_live: bool,
    /// Nobody has wanted it since the last sweep.
    is_idle: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

/// Whether a topic is listened to.
#[derive(Debug)]
pub enum SubscriptionState {
    /// It is: whatever happens from now on is heard, as long as the line is open.
    Live,
    /// It will be when this resolves; an error says that the line was lost.
    Soon(oneshot::Receiver<()>),
    /// There is no line.
    Closed,
}

impl std::fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        write!(f, "Subscriptions(topics: {}, open: {})", state.topics.len(), state.is_open)
    }
}

/// For those who wait.
impl Subscriptions {
    /// Says who is told, and as which node. Only the first call counts.
    pub fn attach(&self, node: usize, ear: Arc<dyn NotificationHandler>) {
        let _ = self.ear.set((node, ear));
    }

    /// One more wants to hear of it; undone by [`Self::unwant`].
    pub fn want(&self, topic: &Topic) {
        let mut state = self.lock();
        if let Some(entry) = state.topics.get_mut(topic) {
            entry.wanted += 1;
            entry.is_idle = false;
            return;
        }
        state.topics.insert(topic.clone(), Entry { wanted: 1, ..Entry::default() });
        state.fresh.push(topic.clone());
        drop(state);
        self.changed.notify_one();
    }

    /// One fewer. The subscription lingers for a sweep or two: who waited once often waits again.
    pub fn unwant(&self, topic: &Topic) {
        if let Some(entry) = self.lock().topics.get_mut(topic) {
            entry.wanted = entry.wanted.saturating_sub(1);
        }
    }

    /// Whether a wanted topic is listened to.
    pub fn liveness(&self, topic: &Topic) -> SubscriptionState {
        let mut state = self.lock();
        if !state.is_open {
            return SubscriptionState::Closed;
        }
        match state.topics.get_mut(topic) {
            None => SubscriptionState::Closed,
            Some(entry) if entry.is_live => SubscriptionState::Live,
            Some(entry) => {
                let (done, when) = oneshot::channel();
                entry.waiting.retain(|w| !w.is_closed());
                entry.waiting.push(done);
                SubscriptionState::Soon(when)
            }
        }
    }

    /// Whether there is a line.
    pub fn is_open(&self) -> bool {
        self.lock().is_open
    }

    /// How many instances listen to a topic on this node, this one included. `None`: not known.
    ///
    /// Cancel: the answer goes nowhere.
    pub async fn audience(&self, topic: &Topic) -> Option<usize> {
        let (answer, count) = oneshot::channel();
        {
            let mut state = self.lock();
            if !state.is_open {
                return None;
            }
            state.counts.push((topic.clone(), answer));
        }
        self.changed.notify_one();
        count.await.ok()
    }

    /// How many instances listened to [`Topic::Events`] there, as of a second ago.
    pub fn event_listeners(&self) -> usize {
        self.event_listeners.load(Ordering::Relaxed)
    }

    /// Tells the cluster, through this node. Best effort: dropped without a line, and beyond a bound.
    pub fn publish(&self, text: &Arc<str>) {
        {
            let mut state = self.lock();
            if !state.is_open || state.outbox.len() >= OUTBOX_MAX {
                return;
            }
            state.outbox.push(Arc::clone(text));
        }
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the listener has to do.
#[derive(Debug, Default)]
pub struct PendingCommands {
    /// Subscribe to these, then call [`Subscriptions::live`].
    pub subscribe: Vec<Topic>,
    /// Unsubscribe from these.
    pub unsubscribe: Vec<Topic>,
    /// Count the listeners of these.
    pub count: Vec<(Topic, oneshot::Sender<usize>)>,
    /// Publish these as events.
    pub publish: Vec<Arc<str>>,
}

/// For the listener.
impl Subscriptions {
    /// Resolves when there may be errands. Cancel: nothing is lost.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What is to be done since the last call.
    pub fn errands(&self) -> PendingCommands {
        let mut state = self.lock();
        let State { topics, fresh, counts, outbox, .. } = &mut *state;
        let subscribe = std::mem::take(fresh).into_iter().filter(|t| topics.contains_key(t)).collect();
        let (count, publish) = (std::mem::take(counts), std::mem::take(outbox));
        PendingCommands { subscribe, unsubscribe: Vec::new(), count, publish }
    }

    /// What has not been wanted for a whole sweep is to be given up.
    pub fn sweep(&self) -> PendingCommands {
        let mut state = self.lock();
        let over = |e: &Entry| e.wanted == 0 && e.is_idle && e.is_live;
        let unsubscribe: Vec<Topic> = state.topics.iter().filter(|(_, e)| over(e)).map(|(t, _)| t.clone()).collect();
        for topic in &unsubscribe {
            state.topics.remove(topic);
        }
        for entry in state.topics.values_mut().filter(|e| e.wanted == 0) {
            entry.is_idle = true;
        }
        if state.topics.is_empty() {
            state.fresh.shrink_to_fit();
        }
        PendingCommands { unsubscribe, ..PendingCommands::default() }
    }

    /// A line is being opened: everything that is wanted, to be subscribed before [`Self::opened`].
    pub fn begin(&self) -> Vec<Topic> {
        let mut state = self.lock();
        state.topics.retain(|_, e| e.wanted > 0);
        state.fresh.clear();
        state.topics.keys().cloned().collect()
    }

    /// The subscriptions to these were confirmed.
    pub fn live(&self, topics: &[Topic]) {
        let mut state = self.lock();
        for topic in topics {
            if let Some(entry) = state.topics.get_mut(topic) {
                entry.is_live = true;
                for waiter in entry.waiting.drain(..) {
                    let _ = waiter.send(());
                }
            }
        }
    }

    /// See [`Self::event_listeners`].
    pub fn set_event_listeners(&self, count: usize) {
        self.event_listeners.store(count, Ordering::Relaxed);
    }

    /// The line is open.
    pub fn opened(&self) {
        self.lock().is_open = true;
        self.tell(|ear, node| ear.line(node, true));
    }

    /// The line is lost, and every subscription with it.
    pub fn closed(&self) {
        {
            let mut state = self.lock();
            state.is_open = false;
            state.counts.clear();
            state.outbox.clear();
            for entry in state.topics.values_mut() {
                entry.is_live = false;
                entry.waiting.clear();
            }
        }
        self.set_event_listeners(0);
        self.tell(|ear, node| ear.line(node, false));
    }

    /// Passes a notice on.
    pub fn freed(&self, resource: &ResourceName, notice: Notice) {
        self.tell(|ear, node| ear.freed(node, resource, notice));
    }

    /// Passes on what the cluster was told.
    pub fn told(&self, text: &[u8]) {
        self.tell(|ear, node| ear.told(node, text));
    }

    fn tell(&self, say: impl FnOnce(&dyn NotificationHandler, usize)) {
        if let Some((node, ear)) = self.ear.get() {
            say(ear.as_ref(), *node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> Topic {
        Topic::Freed(ResourceName::parse(name).expect("valid"))
    }

    fn is_live(feed: &Subscriptions, name: &str) -> bool {
        matches!(feed.liveness(&topic(name)), SubscriptionState::Live)
    }

    #[test]
    fn notices_are_read_and_anything_else_is_not_one() {
        let tag = Some(LeaseTag(0x0a1b_2c3d));
        assert_eq!(Notice::parse(b""), Some(Notice { lease: None, withdrawn: false }));
        assert_eq!(Notice::parse(b"r0a1b2c3d"), Some(Notice { lease: tag, withdrawn: false }));
        assert_eq!(Notice::parse(b"c0a1b2c3d"), Some(Notice { lease: tag, withdrawn: true }));
        for other in [&b"0a1b2c3d"[..], b"r", b"rxxxxxxxx", b"r0a1b2c3d4", b"x0a1b2c3d", &[b'r', 0xff]] {
            assert_eq!(Notice::parse(other), None, "{other:?}");
        }
        let token = TokenHash::parse(&"0a1b2c3d".repeat(8)).expect("hex");
        assert_eq!(Some(LeaseTag::of(&token)), tag);
    }

    #[test]
    fn a_topic_is_live_once_confirmed_and_no_longer_when_the_line_is_lost() {
        let feed = Subscriptions::default();
        feed.want(&topic("a"));
        assert!(matches!(feed.liveness(&topic("a")), SubscriptionState::Closed));
        feed.live(&feed.begin());
        feed.opened();
        assert!(is_live(&feed, "a"));
        feed.want(&topic("b"));
        let SubscriptionState::Soon(mut soon) = feed.liveness(&topic("b")) else { panic!("not yet confirmed") };
        assert!(soon.try_recv().is_err());
        let errands = feed.errands();
        assert_eq!(errands.subscribe, [topic("b")]);
        feed.live(&errands.subscribe);
        assert!(soon.try_recv().is_ok() && is_live(&feed, "b"));
        feed.closed();
        assert!(matches!(feed.liveness(&topic("a")), SubscriptionState::Closed));
        assert_eq!(feed.begin().len(), 2, "both are subscribed anew with the next line");
    }

    #[test]
    fn what_nobody_wants_lingers_for_a_sweep_and_is_given_up_then() {
        let feed = Subscriptions::default();
        feed.opened();
        for name in ["a", "b"] {
            feed.want(&topic(name));
        }
        feed.live(&feed.errands().subscribe);
        feed.unwant(&topic("a"));
        feed.unwant(&topic("b"));
        assert_eq!(feed.sweep().unsubscribe, []);
        feed.want(&topic("b"));
        assert_eq!(feed.errands().subscribe, [], "still live: nothing to do");
        assert_eq!(feed.sweep().unsubscribe, [topic("a")]);
        assert!(is_live(&feed, "b"));
        feed.want(&topic("a"));
        assert_eq!(feed.errands().subscribe, [topic("a")], "given up, so it is subscribed again");
    }

    #[tokio::test]
    async fn nobody_can_be_counted_without_a_line() {
        let feed = Subscriptions::default();
        assert_eq!(feed.audience(&topic("a")).await, None);
        feed.opened();
        let a = topic("a");
        let (count, ()) = tokio::join!(feed.audience(&a), async {
            feed.changed().await;
            for (_, answer) in feed.errands().count {
                answer.send(2).expect("awaited");
            }
        });
        assert_eq!(count, Some(2));
    }
}
