//! What wakes the head of a queue although nobody here gave anything back: notices of the nodes. Keeps
//! the lines to the nodes' feeds, subscribes for as long as somebody waits, and says whether what is
//! heard can be relied on. Knows no queue's order and no lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, oneshot};

use super::events::EventHub;
use super::queue::{Needed, SubscriptionGuard, WaitQueues};
use super::renewal::HeldLeases;
use crate::mutant::{self, Mutant};
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::notifications::{Notice, NotificationHandler, NotificationSource, Topic};
use crate::redlock::quorum::quorum_of;
use crate::redlock::subscriptions::{SubscriptionState, Subscriptions};
use crate::types::ResourceName;

/// How the end of a lease on one node comes here.
enum Source {
    Nothing,
    Local,
    Subscriptions(Arc<Subscriptions>),
}

/// The lines to all nodes.
pub struct Wakeups {
    sources: Vec<Source>,
    shared: Arc<Shared>,
}

struct Shared {
    room: WaitQueues,
    holds: Arc<HeldLeases>,
    events: Arc<EventHub>,
    nodes: usize,
    /// Nodes that are heard, a bit each.
    open: AtomicU64,
    /// How often it has changed whether a quorum is heard. Even: it is not.
    turns: AtomicU64,
    turned: Notify,
}

/// Whether fewer than a quorum of nodes are heard. Who waits for a change is called in the order in which the
/// waiting began, so that one history follows from one seed; a `watch` channel leaves that to chance.
pub struct SubscriptionHealth {
    shared: Arc<Shared>,
    seen: u64,
}

impl SubscriptionHealth {
    /// As it is now.
    pub fn is_below_quorum(&mut self) -> bool {
        self.seen = self.shared.turns.load(Ordering::SeqCst);
        self.seen.is_multiple_of(2)
    }

    /// Resolves when it has changed since this was last asked. Cancel: no change is lost.
    pub async fn changed(&mut self) {
        loop {
            let mut turned = std::pin::pin!(self.shared.turned.notified());
            turned.as_mut().enable();
            let turns = self.shared.turns.load(Ordering::SeqCst);
            if turns != self.seen {
                self.seen = turns;
                return;
            }
            turned.await;
        }
    }
}

impl Wakeups {
    /// Attaches itself to every node's feed.
    pub fn new<N: Node>(nodes: &[Arc<N>], room: WaitQueues, holds: Arc<HeldLeases>, events: Arc<EventHub>) -> Self {
        let sources: Vec<Source> = nodes
            .iter()
            .map(|node| match node.notifications() {
                NotificationSource::PollOnly => Source::Nothing,
                NotificationSource::Local => Source::Local,
                NotificationSource::Subscriptions(feed) => Source::Subscriptions(Arc::clone(feed)),
            })
            .collect();
        let shared = Arc::new(Shared {
            room,
            holds,
            events,
            nodes: nodes.len(),
            open: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            turned: Notify::new(),
        });
        for (index, source) in sources.iter().enumerate() {
            match source {
                Source::Nothing => {}
                Source::Local => shared.on_connection_changed(index, true),
                Source::Subscriptions(feed) => {
                    feed.set_handler(index, Arc::clone(&shared) as Arc<dyn NotificationHandler>);
                    if feed.is_connected() {
                        shared.on_connection_changed(index, true);
                    }
                }
            }
        }
        Self { sources, shared }
    }

    /// Whether ends of leases can pass unheard.
    pub fn subscription_health(&self) -> SubscriptionHealth {
        let mut subscription_health = SubscriptionHealth { shared: Arc::clone(&self.shared), seen: 0 };
        subscription_health.is_below_quorum();
        subscription_health
    }

    /// Subscribes to the ends of this resource's leases; undone when the keepsake is dropped.
    pub fn watch(&self, resource: &ResourceName) -> SubscriptionGuard {
        let topic = Topic::LeaseEnded(resource.clone());
        let feeds: Vec<Arc<Subscriptions>> = self.feeds().cloned().collect();
        for feed in &feeds {
            feed.subscribe(&topic);
        }
        Box::new(Watch { feeds, topic })
    }

    /// Whether this resource is listened to on a quorum of nodes now. Any quorum has a node in
    /// common with the one that held a lease, so its end is heard of.
    pub fn is_heard(&self, resource: &ResourceName) -> bool {
        self.lines(resource).0 >= quorum_of(self.sources.len())
    }

    /// Waits until it is, for at most `limit`.
    ///
    /// Cancel: nothing is left behind.
    pub async fn listen<C: Clock>(&self, resource: &ResourceName, limit: Duration, clock: &C) -> bool {
        let need = quorum_of(self.sources.len());
        let (mut live, soon) = self.lines(resource);
        let mut soon: FuturesUnordered<_> = soon.into_iter().collect();
        let mut over = std::pin::pin!(clock.sleep(limit));
        while live < need {
            let next = tokio::select! {
                biased;
                next = soon.next() => next,
                () = &mut over => None,
            };
            match next {
                Some(Ok(())) => live += 1,
                Some(Err(_)) => {}
                None => return false,
            }
        }
        true
    }

    /// How many nodes are listened to, and those that will be.
    fn lines(&self, resource: &ResourceName) -> (usize, Vec<oneshot::Receiver<()>>) {
        let topic = Topic::LeaseEnded(resource.clone());
        let (mut live, mut soon) = (0, Vec::new());
        for source in &self.sources {
            match source {
                Source::Nothing => {}
                Source::Local => live += 1,
                Source::Subscriptions(feed) => match feed.state_of(&topic) {
                    SubscriptionState::Active => live += 1,
                    SubscriptionState::Pending(when) => soon.push(when),
                    SubscriptionState::Disconnected => {}
                },
            }
        }
        (live, soon)
    }

    /// Whether another instance listens to this resource on the first node that can say, for which
    /// the question costs a round trip. Where none can say, one may.
    pub async fn is_wanted_elsewhere<C: Clock>(&self, resource: &ResourceName, limit: Duration, clock: &C) -> bool {
        let topic = Topic::LeaseEnded(resource.clone());
        let Some(feed) = self.feeds().find(|f| f.is_connected()) else {
            return self.sources.iter().any(|s| !matches!(s, Source::Local));
        };
        let own = usize::from(matches!(feed.state_of(&topic), SubscriptionState::Active));
        tokio::select! {
            biased;
            count = feed.subscriber_count(&topic) => count.is_none_or(|n| n > own),
            () = clock.sleep(limit) => true,
        }
    }

    /// The feeds, for events.
    pub fn feeds(&self) -> impl Iterator<Item = &Arc<Subscriptions>> {
        self.sources.iter().filter_map(|s| match s {
            Source::Subscriptions(feed) => Some(feed),
            _ => None,
        })
    }
}

impl NotificationHandler for Shared {
    fn on_lease_ended(&self, node: usize, resource: &ResourceName, notice: Notice) {
        if mutant::is(Mutant::NoticesIgnored) {
            return;
        }
        let bits = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let quorum = bits(quorum_of(self.nodes));
        let unheard = bits(self.nodes).saturating_sub(self.open.load(Ordering::Relaxed).count_ones());
        let needed = Needed { ended: quorum.saturating_sub(unheard).max(1), withdrawn: quorum };
        self.room.notice(resource, node, notice, needed);
        if let Some(lease) = notice.lease {
            self.holds.stir(lease);
        }
    }

    fn on_event(&self, _node: usize, text: &[u8]) {
        self.events.receive(text);
    }

    fn on_connection_changed(&self, node: usize, is_connected: bool) {
        let bit = 1_u64.checked_shl(u32::try_from(node).unwrap_or(u32::MAX)).unwrap_or(0);
        match is_connected {
            true => self.open.fetch_or(bit, Ordering::SeqCst),
            false => self.open.fetch_and(!bit, Ordering::SeqCst),
        };
        // The lines to several nodes may change at once: whoever is last sees them all.
        let turn = self.turns.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |turns| {
            let is_below_quorum = (self.open.load(Ordering::SeqCst).count_ones() as usize) < quorum_of(self.nodes);
            (turns.is_multiple_of(2) != is_below_quorum).then(|| turns.wrapping_add(1))
        });
        if turn.is_ok() {
            self.turned.notify_waiters();
        }
    }
}

/// The subscriptions of one queue.
struct Watch {
    feeds: Vec<Arc<Subscriptions>>,
    topic: Topic,
}

impl Drop for Watch {
    fn drop(&mut self) {
        for feed in &self.feeds {
            feed.unsubscribe(&self.topic);
        }
    }
}
