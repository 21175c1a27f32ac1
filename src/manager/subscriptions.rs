//! The subscriptions to all nodes: they wake the head of a queue when another instance releases. Subscribes
//! to a resource for as long as somebody waits for it, and knows whether its notices can be relied on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, oneshot};

use super::events::EventHub;
use super::hold_renewal::HeldLeases;
use super::queue::{NeededNotices, SubscriptionGuard, WaitQueues};
use crate::mutant::{self, Mutant};
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::notifications::{Notice, NotificationHandler, NotificationSource, Topic};
use crate::redlock::quorum::quorum_of;
use crate::redlock::subscriptions::{SubscriptionState, Subscriptions};
use crate::types::ResourceName;

/// How this instance learns of the ends of leases on one node.
enum Source {
    PollOnly,
    Local,
    Subscriptions(Arc<Subscriptions>),
}

/// The subscriptions to all nodes.
pub(super) struct ClusterSubscriptions {
    sources: Vec<Source>,
    receiver: Arc<NoticeReceiver>,
}

/// Passes on what the nodes report.
struct NoticeReceiver {
    queues: WaitQueues,
    held_leases: Arc<HeldLeases>,
    events: Arc<EventHub>,
    nodes: usize,
    /// Nodes with a connection for notices, one bit each.
    connected: AtomicU64,
    /// How often the connected nodes became a quorum or ceased to be one. Even: they are none.
    changes: AtomicU64,
    changed: Notify,
}

/// Whether fewer than a quorum of nodes report the ends of leases. Those who wait for a change are woken in
/// the order in which they began to wait, so that one history follows from one seed; a `watch` channel
/// leaves that to chance.
pub(super) struct SubscriptionHealth {
    receiver: Arc<NoticeReceiver>,
    seen: u64,
}

impl SubscriptionHealth {
    /// As it is now.
    pub(super) fn is_below_quorum(&mut self) -> bool {
        self.seen = self.receiver.changes.load(Ordering::SeqCst);
        self.seen.is_multiple_of(2)
    }

    /// Resolves when it has changed since it was last asked for. Cancel: no change is lost.
    pub(super) async fn changed(&mut self) {
        loop {
            let mut changed = std::pin::pin!(self.receiver.changed.notified());
            changed.as_mut().enable();
            let changes = self.receiver.changes.load(Ordering::SeqCst);
            if changes != self.seen {
                self.seen = changes;
                return;
            }
            changed.await;
        }
    }
}

impl ClusterSubscriptions {
    /// Receives the notices of these nodes from now on.
    pub(super) fn new<N: Node>(
        nodes: &[Arc<N>],
        queues: WaitQueues,
        held_leases: Arc<HeldLeases>,
        events: Arc<EventHub>,
    ) -> Self {
        let source = |node: &Arc<N>| match node.notifications() {
            NotificationSource::PollOnly => Source::PollOnly,
            NotificationSource::Local => Source::Local,
            NotificationSource::Subscriptions(subscriptions) => Source::Subscriptions(Arc::clone(subscriptions)),
        };
        let sources: Vec<Source> = nodes.iter().map(source).collect();
        let receiver = Arc::new(NoticeReceiver {
            queues,
            held_leases,
            events,
            nodes: nodes.len(),
            connected: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            changed: Notify::new(),
        });
        for (index, source) in sources.iter().enumerate() {
            match source {
                Source::PollOnly => {}
                Source::Local => receiver.on_connection_changed(index, true),
                Source::Subscriptions(node) => {
                    node.set_handler(index, Arc::clone(&receiver) as Arc<dyn NotificationHandler>);
                    if node.is_connected() {
                        receiver.on_connection_changed(index, true);
                    }
                }
            }
        }
        Self { sources, receiver }
    }

    /// Whether the ends of leases can pass without a notice.
    pub(super) fn health(&self) -> SubscriptionHealth {
        let mut health = SubscriptionHealth { receiver: Arc::clone(&self.receiver), seen: 0 };
        health.is_below_quorum();
        health
    }

    /// Subscribes to the ends of this resource's leases until the guard is dropped.
    pub(super) fn subscribe(&self, resource: &ResourceName) -> SubscriptionGuard {
        let topic = Topic::LeaseEnded(resource.clone());
        let nodes: Vec<Arc<Subscriptions>> = self.channels().cloned().collect();
        for node in &nodes {
            node.subscribe(&topic);
        }
        Box::new(Guard { nodes, topic })
    }

    /// Whether this resource is subscribed to on a quorum of nodes now. Any quorum has a node in common with
    /// the one that held a lease, so its end is reported.
    pub(super) fn is_subscribed(&self, resource: &ResourceName) -> bool {
        self.states(resource).0 >= quorum_of(self.sources.len())
    }

    /// Waits until it is, for at most `limit`.
    ///
    /// Cancel: nothing is left behind.
    pub(super) async fn until_subscribed<C: Clock>(&self, resource: &ResourceName, limit: Duration, clock: &C) -> bool {
        let needed = quorum_of(self.sources.len());
        let (mut active, pending) = self.states(resource);
        let mut pending: FuturesUnordered<_> = pending.into_iter().collect();
        let mut timeout = std::pin::pin!(clock.sleep(limit));
        while active < needed {
            let next = tokio::select! {
                biased;
                next = pending.next() => next,
                () = &mut timeout => None,
            };
            match next {
                Some(Ok(())) => active += 1,
                Some(Err(_)) => {}
                None => return false,
            }
        }
        true
    }

    /// On how many nodes the subscription is active, and those on which it is pending.
    fn states(&self, resource: &ResourceName) -> (usize, Vec<oneshot::Receiver<()>>) {
        let topic = Topic::LeaseEnded(resource.clone());
        let (mut active, mut pending) = (0, Vec::new());
        for source in &self.sources {
            match source {
                Source::PollOnly => {}
                Source::Local => active += 1,
                Source::Subscriptions(node) => match node.state_of(&topic) {
                    SubscriptionState::Active => active += 1,
                    SubscriptionState::Pending(confirmed) => pending.push(confirmed),
                    SubscriptionState::Disconnected => {}
                },
            }
        }
        (active, pending)
    }

    /// Whether another instance subscribes to this resource, asked of the first connected node at the price of
    /// a round trip. Assumed where no node can answer.
    ///
    /// Cancel: nothing is left behind.
    pub(super) async fn has_other_subscribers<C: Clock>(
        &self,
        resource: &ResourceName,
        limit: Duration,
        clock: &C,
    ) -> bool {
        let topic = Topic::LeaseEnded(resource.clone());
        let Some(node) = self.channels().find(|node| node.is_connected()) else {
            return self.sources.iter().any(|source| !matches!(source, Source::Local));
        };
        let own = usize::from(matches!(node.state_of(&topic), SubscriptionState::Active));
        tokio::select! {
            biased;
            count = node.subscriber_count(&topic) => count.is_none_or(|n| n > own),
            () = clock.sleep(limit) => true,
        }
    }

    /// The channels of all nodes that have one.
    pub(super) fn channels(&self) -> impl Iterator<Item = &Arc<Subscriptions>> {
        self.sources.iter().filter_map(|source| match source {
            Source::Subscriptions(node) => Some(node),
            _ => None,
        })
    }
}

impl NotificationHandler for NoticeReceiver {
    fn on_lease_ended(&self, node: usize, resource: &ResourceName, notice: Notice) {
        if mutant::is(Mutant::NoticesIgnored) {
            return;
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let quorum = count(quorum_of(self.nodes));
        let silent = count(self.nodes).saturating_sub(self.connected.load(Ordering::Relaxed).count_ones());
        let needed = NeededNotices { ended: quorum.saturating_sub(silent).max(1), withdrawn: quorum };
        self.queues.notice(resource, node, notice, needed);
        if let Some(lease) = notice.lease {
            self.held_leases.lease_ended(lease);
        }
    }

    fn on_event(&self, _node: usize, text: &[u8]) {
        self.events.receive(text);
    }

    fn on_connection_changed(&self, node: usize, is_connected: bool) {
        let bit = 1_u64.checked_shl(u32::try_from(node).unwrap_or(u32::MAX)).unwrap_or(0);
        match is_connected {
            true => self.connected.fetch_or(bit, Ordering::SeqCst),
            false => self.connected.fetch_and(!bit, Ordering::SeqCst),
        };
        // Connections to several nodes may change at once: the last call sees all of them.
        let change = self.changes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |changes| {
            let connected = self.connected.load(Ordering::SeqCst).count_ones() as usize;
            let is_below_quorum = connected < quorum_of(self.nodes);
            (changes.is_multiple_of(2) != is_below_quorum).then(|| changes.wrapping_add(1))
        });
        if change.is_ok() {
            self.changed.notify_waiters();
        }
    }
}

/// The subscriptions of one queue or one held lease.
struct Guard {
    nodes: Vec<Arc<Subscriptions>>,
    topic: Topic,
}

impl Drop for Guard {
    fn drop(&mut self) {
        for node in &self.nodes {
            node.unsubscribe(&self.topic);
        }
    }
}
