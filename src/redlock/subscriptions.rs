//! The topics to which this instance is subscribed on one node. Waiters (the manager) add and remove topics; the
//! node's subscriber connection executes the resulting commands and passes notices on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot};

use super::notifications::{Notice, NotificationHandler, Topic};
use crate::types::ResourceName;

/// Maximum number of events that wait to be published on one node. Further events are dropped: nothing depends on them.
const OUTBOX_MAX: usize = 1_024;

/// The subscriptions on one node. Bounded by the number of waiters: one topic per resource that is waited for.
#[derive(Default)]
pub struct Subscriptions {
    state: Mutex<State>,
    changed: Notify,
    handlers: RwLock<Vec<(usize, Weak<dyn NotificationHandler>)>>,
    event_subscribers: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// Sorted by name, so that a simulation's seed determines the order of commands.
    topics: BTreeMap<Topic, Subscription>,
    /// Topics whose SUBSCRIBE has not been taken by the connection yet.
    to_subscribe: Vec<Topic>,
    counts: Vec<(Topic, oneshot::Sender<usize>)>,
    outbox: Vec<(Topic, Arc<str>)>,
    is_connected: bool,
}

#[derive(Default)]
struct Subscription {
    users: usize,
    /// Whether the node has confirmed the subscription.
    is_active: bool,
    /// Whether the subscription had no user at the last sweep.
    is_idle: bool,
}

impl std::fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        write!(f, "Subscriptions(topics: {}, connected: {})", state.topics.len(), state.is_connected)
    }
}

/// For waiters.
impl Subscriptions {
    /// Adds a receiver of notices, with the node index that it is given.
    pub fn add_handler(&self, node: usize, handler: Weak<dyn NotificationHandler>) {
        self.handlers.write().push((node, handler));
    }

    /// Adds a user of the topic; [`Self::unsubscribe`] undoes it. Returns whether the node has already confirmed the
    /// subscription.
    pub fn subscribe(&self, topic: &Topic) -> bool {
        let mut state = self.state.lock();
        if let Some(subscription) = state.topics.get_mut(topic) {
            subscription.users += 1;
            subscription.is_idle = false;
            return subscription.is_active;
        }
        state.topics.insert(topic.clone(), Subscription { users: 1, ..Subscription::default() });
        state.to_subscribe.push(topic.clone());
        drop(state);
        self.changed.notify_one();
        false
    }

    /// Removes a user. Without users the subscription stays for one to two sweeps, because resources are often waited
    /// for again.
    pub fn unsubscribe(&self, topic: &Topic) {
        if let Some(subscription) = self.state.lock().topics.get_mut(topic) {
            subscription.users = subscription.users.saturating_sub(1);
        }
    }

    /// Whether the node has confirmed the subscription to a topic: its notices arrive for as long as the connection
    /// lasts.
    pub fn is_active(&self, topic: &Topic) -> bool {
        let state = self.state.lock();
        state.is_connected && state.topics.get(topic).is_some_and(|subscription| subscription.is_active)
    }

    /// Whether the subscriber connection is open.
    pub fn is_connected(&self) -> bool {
        self.state.lock().is_connected
    }

    /// How many instances, including this one, are subscribed to a topic on this node. `None`: not known.
    ///
    /// Cancel: the answer is discarded.
    pub async fn subscriber_count(&self, topic: &Topic) -> Option<usize> {
        let (answer, count) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if !state.is_connected {
                return None;
            }
            state.counts.push((topic.clone(), answer));
        }
        self.changed.notify_one();
        count.await.ok()
    }

    /// How many instances were subscribed to [`Topic::Events`] when last counted, every second.
    pub fn event_subscribers(&self) -> usize {
        self.event_subscribers.load(Ordering::Relaxed)
    }

    /// Publishes an event to a topic through this node. Best effort: the event is dropped without a connection, and
    /// beyond [`OUTBOX_MAX`].
    pub fn publish(&self, topic: Topic, text: &Arc<str>) {
        {
            let mut state = self.state.lock();
            if !state.is_connected || state.outbox.len() >= OUTBOX_MAX {
                return;
            }
            state.outbox.push((topic, Arc::clone(text)));
        }
        self.changed.notify_one();
    }
}

/// The commands that the subscriber connection must execute.
#[derive(Debug, Default)]
pub struct PendingCommands {
    /// Topics to subscribe to; then call [`Subscriptions::confirm`].
    pub subscribe: Vec<Topic>,
    /// Topics to unsubscribe from.
    pub unsubscribe: Vec<Topic>,
    /// Topics whose subscribers to count.
    pub count: Vec<(Topic, oneshot::Sender<usize>)>,
    /// Events to publish.
    pub publish: Vec<(Topic, Arc<str>)>,
}

/// For the subscriber connection.
impl Subscriptions {
    /// Resolves when there may be commands to execute. Cancel: nothing is lost.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes the commands that were added since the last call.
    pub fn take_commands(&self) -> PendingCommands {
        let mut state = self.state.lock();
        let State { topics, to_subscribe, counts, outbox, .. } = &mut *state;
        let subscribe = std::mem::take(to_subscribe).into_iter().filter(|t| topics.contains_key(t)).collect();
        let (count, publish) = (std::mem::take(counts), std::mem::take(outbox));
        PendingCommands { subscribe, unsubscribe: Vec::new(), count, publish }
    }

    /// Removes topics that had no user since the previous sweep; returns them to be unsubscribed.
    pub fn sweep(&self) -> PendingCommands {
        let mut state = self.state.lock();
        let is_unused = |s: &Subscription| s.users == 0 && s.is_idle && s.is_active;
        let unsubscribe: Vec<Topic> =
            state.topics.iter().filter(|(_, s)| is_unused(s)).map(|(t, _)| t.clone()).collect();
        for topic in &unsubscribe {
            state.topics.remove(topic);
        }
        for subscription in state.topics.values_mut().filter(|s| s.users == 0) {
            subscription.is_idle = true;
        }
        if state.topics.is_empty() {
            state.to_subscribe.shrink_to_fit();
        }
        PendingCommands { unsubscribe, ..PendingCommands::default() }
    }

    /// The topics to subscribe to on a new connection before [`Self::connected`] is called.
    pub fn reconnect(&self) -> Vec<Topic> {
        let mut state = self.state.lock();
        state.topics.retain(|_, s| s.users > 0);
        state.to_subscribe.clear();
        state.topics.keys().cloned().collect()
    }

    /// Records that the node has confirmed the subscriptions to these topics.
    pub fn confirm(&self, topics: &[Topic]) {
        for topic in topics {
            if let Some(subscription) = self.state.lock().topics.get_mut(topic) {
                subscription.is_active = true;
            }
            self.notify(|handler, node| handler.on_subscribed(node, topic));
        }
    }

    /// Whether the node has confirmed that it reports the ends of any resource's leases here.
    pub fn has_active_resource(&self) -> bool {
        let is_resource = |(topic, of): (&Topic, &Subscription)| of.is_active && matches!(topic, Topic::LeaseEnded(_));
        self.state.lock().topics.iter().any(is_resource)
    }

    /// See [`Self::event_subscribers`].
    pub fn set_event_subscribers(&self, count: usize) {
        self.event_subscribers.store(count, Ordering::Relaxed);
    }

    /// Records that the connection is open, with the topics of [`Self::reconnect`] subscribed.
    pub fn connected(&self) {
        self.state.lock().is_connected = true;
        self.notify(|handler, node| handler.on_connection_changed(node, true));
    }

    /// Records that the connection is lost, and every subscription with it.
    pub fn disconnected(&self) {
        {
            let mut state = self.state.lock();
            state.is_connected = false;
            state.counts.clear();
            state.outbox.clear();
            for subscription in state.topics.values_mut() {
                subscription.is_active = false;
            }
        }
        self.set_event_subscribers(0);
        self.notify(|handler, node| handler.on_connection_changed(node, false));
    }

    /// Passes a notice to the handler.
    pub fn lease_ended(&self, resource: &ResourceName, notice: Notice) {
        self.notify(|handler, node| handler.on_lease_ended(node, resource, notice));
    }

    /// Passes an event to the handler.
    pub fn event_received(&self, text: &[u8]) {
        self.notify(|handler, node| handler.on_event(node, text));
    }

    fn notify(&self, call: impl Fn(&dyn NotificationHandler, usize)) {
        for (node, handler) in self.handlers.read().iter() {
            if let Some(handler) = handler.upgrade() {
                call(handler.as_ref(), *node);
            }
        }
    }
}

/// Subscriptions to a topic on several nodes, until it is dropped.
pub(crate) struct SubscriptionGuard {
    nodes: Vec<Arc<Subscriptions>>,
    topic: Topic,
}

impl SubscriptionGuard {
    /// Subscribes at every node; unsubscribes when it is dropped.
    pub(crate) fn new(nodes: Vec<Arc<Subscriptions>>, topic: Topic) -> Self {
        for node in &nodes {
            let _ = node.subscribe(&topic);
        }
        Self { nodes, topic }
    }
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| node.unsubscribe(&self.topic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> Topic {
        Topic::LeaseEnded(ResourceName::parse(name).expect("valid"))
    }

    fn is_active(subscriptions: &Subscriptions, name: &str) -> bool {
        subscriptions.is_active(&topic(name))
    }

    #[test]
    fn a_topic_is_active_once_confirmed_until_the_connection_is_lost() {
        let subscriptions = Subscriptions::default();
        assert!(!subscriptions.subscribe(&topic("a")) && !is_active(&subscriptions, "a"));
        subscriptions.confirm(&subscriptions.reconnect());
        subscriptions.connected();
        assert!(is_active(&subscriptions, "a") && subscriptions.subscribe(&topic("a")));
        assert!(!subscriptions.subscribe(&topic("b")) && !is_active(&subscriptions, "b"));
        let commands = subscriptions.take_commands();
        assert_eq!(commands.subscribe, [topic("b")]);
        subscriptions.confirm(&commands.subscribe);
        assert!(is_active(&subscriptions, "b"));
        subscriptions.disconnected();
        assert!(!is_active(&subscriptions, "a"));
        assert_eq!(subscriptions.reconnect().len(), 2, "the next connection subscribes to both again");
    }

    #[test]
    fn an_unused_topic_is_unsubscribed_after_a_whole_sweep() {
        let subscriptions = Subscriptions::default();
        subscriptions.connected();
        for name in ["a", "b"] {
            subscriptions.subscribe(&topic(name));
        }
        subscriptions.confirm(&subscriptions.take_commands().subscribe);
        subscriptions.unsubscribe(&topic("a"));
        subscriptions.unsubscribe(&topic("b"));
        assert_eq!(subscriptions.sweep().unsubscribe, []);
        subscriptions.subscribe(&topic("b"));
        assert_eq!(subscriptions.take_commands().subscribe, [], "still active: no command");
        assert_eq!(subscriptions.sweep().unsubscribe, [topic("a")]);
        assert!(is_active(&subscriptions, "b"));
        subscriptions.subscribe(&topic("a"));
        assert_eq!(subscriptions.take_commands().subscribe, [topic("a")], "removed, so it is subscribed again");
    }

    #[tokio::test]
    async fn subscribers_are_counted_only_while_connected() {
        let subscriptions = Subscriptions::default();
        assert_eq!(subscriptions.subscriber_count(&topic("a")).await, None);
        subscriptions.connected();
        let a = topic("a");
        let (count, ()) = tokio::join!(subscriptions.subscriber_count(&a), async {
            subscriptions.changed().await;
            for (_, answer) in subscriptions.take_commands().count {
                answer.send(2).expect("awaited");
            }
        });
        assert_eq!(count, Some(2));
    }
}
