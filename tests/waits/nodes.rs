//! Nodes of a simulated run: real node machines behind ordered links with latency, and the notices of
//! their releases on lines of their own, which may be late, lost or cut off. Knows no manager.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::clock::{Dice, Paused};
use crate::protocol::reference::ReferenceNode;
use crate::protocol::{
    CancelArgs, ClusterParams, NodeResult, ReleaseArgs, Request, RequestTime, Unreachable, UnreachableKind,
};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::notifications::{LeaseTag, Notice, NotificationSource, Topic};
use crate::redlock::subscriptions::{SubscriptionState, Subscriptions};
use crate::types::{NodeId, ResourceName, TokenHash};

const RUN: &str = "0000000000000000000000000000000000000001";

/// Longer than anybody waits for a node.
const TOO_LATE: Duration = Duration::from_millis(100);

/// How the network is. Percent and milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    /// The longest way of a request or an answer.
    pub(super) latency_ms: u64,
    /// Share of requests and answers that take up to a node's time-out more.
    pub(super) spikes: u64,
    /// Looks at a lease that come too late: what is known by them only is not known for a while.
    pub(super) blind: u64,
    /// Notices that are lost.
    pub(super) lost: u64,
    /// The longest way of a notice.
    pub(super) notice_ms: u64,
}

/// A node's server.
pub(super) struct Server {
    machine: Mutex<ReferenceNode>,
    feeds: Mutex<Vec<Arc<Subscriptions>>>,
    clock: Paused,
    dice: Dice,
    weather: Weather,
    is_dead: AtomicBool,
    acquires: Acquires,
}

/// Acquires under way to a node: now, and the most that there were.
#[derive(Default)]
struct Acquires {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Server {
    pub(super) fn new(clock: Paused, dice: &Dice, weather: Weather) -> Arc<Self> {
        let (machine, feeds) = (Mutex::new(ReferenceNode::new(RUN)), Mutex::default());
        Arc::new(Self {
            machine,
            feeds,
            clock,
            dice: dice.clone(),
            weather,
            is_dead: AtomicBool::new(false),
            acquires: Acquires::default(),
        })
    }

    /// It ends for good: nothing is answered any more, and the lines for notices break.
    pub(super) fn die(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.feeds.lock().expect("no panic").iter().for_each(|feed| feed.disconnected());
    }

    /// The most acquires that were under way to it at a time.
    pub(super) fn most_acquires(&self) -> usize {
        self.acquires.most.load(Ordering::Relaxed)
    }

    /// Whether it has ended.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Whose lease stands at the resource's key.
    pub(super) fn holder(&self, resource: &ResourceName) -> Option<TokenHash> {
        let machine = self.machine.lock().expect("no panic");
        machine.lease_of(self.clock.node_us(), resource).map(|(record, _)| record.token.clone())
    }

    fn apply(&self, sent_at: RequestTime, params: &ClusterParams, request: &Request) -> NodeResult {
        let about = match request {
            Request::Release(ReleaseArgs { resource, token, .. }) => Some((resource, token, false)),
            Request::Cancel(CancelArgs { resource, token, .. }) => Some((resource, token, true)),
            _ => None,
        };
        let had = about.is_some_and(|(resource, token, _)| self.holder(resource).as_ref() == Some(token));
        let now = self.clock.node_us();
        let answer = self.machine.lock().expect("no panic").apply(now, RUN, sent_at, params, request);
        if let Some((resource, token, withdrawn)) = about
            && had
            && self.holder(resource).is_none()
        {
            self.publish(resource, Notice { lease: Some(LeaseTag::of(token)), withdrawn });
        }
        answer
    }

    /// As the release script does; each instance is told on its own line.
    fn publish(&self, resource: &ResourceName, notice: Notice) {
        let topic = Topic::LeaseEnded(resource.clone());
        for feed in self.feeds.lock().expect("no panic").iter() {
            if !matches!(feed.state_of(&topic), SubscriptionState::Active) || self.dice.chance(self.weather.lost) {
                continue;
            }
            let (feed, resource, clock) = (Arc::clone(feed), resource.clone(), self.clock);
            let way = self.dice.ms(1, self.weather.notice_ms);
            tokio::spawn(async move {
                clock.sleep(way).await;
                if feed.is_connected() {
                    feed.lease_ended(&resource, notice);
                }
            });
        }
    }

    /// Instances that listen to this.
    fn subscriber_count(&self, topic: &Topic) -> usize {
        let feeds = self.feeds.lock().expect("no panic");
        feeds.iter().filter(|f| matches!(f.state_of(topic), SubscriptionState::Active)).count()
    }

    fn way(&self) -> Duration {
        let spike = if self.dice.chance(self.weather.spikes) { self.dice.ms(0, 60) } else { Duration::ZERO };
        self.dice.ms(1, self.weather.latency_ms) + spike
    }
}

struct Parcel {
    arrives: BootTime,
    sent_at: RequestTime,
    request: Arc<Request>,
    answer: oneshot::Sender<NodeResult>,
}

/// A node as one instance sees it.
pub(super) struct Link {
    id: NodeId,
    feed: Arc<Subscriptions>,
    server: Arc<Server>,
    last: Mutex<BootTime>,
    out: mpsc::UnboundedSender<Parcel>,
}

impl Link {
    /// Connects, and listens. Its tasks end with the runtime.
    pub(super) fn open(number: usize, server: &Arc<Server>, params: &Arc<ClusterParams>) -> Arc<Self> {
        let (out, mut parcels) = mpsc::unbounded_channel::<Parcel>();
        let (feed, clock) = (Arc::new(Subscriptions::default()), server.clock);
        server.feeds.lock().expect("no panic").push(Arc::clone(&feed));
        let (far, params) = (Arc::clone(server), Arc::clone(params));
        tokio::spawn(async move {
            while let Some(Parcel { arrives, sent_at, request, answer }) = parcels.recv().await {
                clock.sleep_until(arrives).await;
                if far.is_dead() {
                    continue; // the sender finds its answer's way closed
                }
                let said = far.apply(sent_at, &params, &request);
                let looks = matches!(&*request, Request::Inspect { .. });
                let is_late = looks && far.dice.chance(far.weather.blind);
                let back = far.way() + if is_late { TOO_LATE } else { Duration::ZERO };
                tokio::spawn(async move {
                    clock.sleep(back).await;
                    let _ = answer.send(said);
                });
            }
        });
        tokio::spawn(listen(Arc::clone(&feed), Arc::clone(server)));
        let id = NodeId::parse(&format!("n{number}")).expect("valid");
        Arc::new(Self { id, feed, server: Arc::clone(server), last: Mutex::default(), out })
    }

    /// Its line for notices breaks, and is opened again after `pause`.
    pub(super) async fn break_line(&self, pause: Duration) {
        self.feed.disconnected();
        self.server.clock.sleep(pause).await;
        if self.server.is_dead() {
            return;
        }
        self.feed.confirm(&self.feed.reconnect());
        self.feed.connected();
    }
}

/// What a node's subscriber does.
async fn listen(feed: Arc<Subscriptions>, server: Arc<Server>) {
    feed.confirm(&feed.reconnect());
    feed.connected();
    loop {
        feed.changed().await;
        let errands = feed.take_commands();
        // Slower than requests: a release may fall between a refusal and the subscription.
        server.clock.sleep(server.way() + server.dice.ms(0, 30)).await;
        if feed.is_connected() {
            feed.confirm(&errands.subscribe);
        }
        for (topic, answer) in errands.count {
            let _ = answer.send(server.subscriber_count(&topic));
        }
    }
}

impl Node for Link {
    fn id(&self) -> &NodeId {
        &self.id
    }

    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Subscriptions(&self.feed)
    }

    async fn call(self: Arc<Self>, sent_at: RequestTime, request: Arc<Request>) -> NodeResult {
        let (answer, said) = oneshot::channel();
        let is_acquire = matches!(&*request, Request::Acquire(_));
        let acquires = &self.server.acquires;
        if is_acquire {
            acquires.most.fetch_max(acquires.now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        {
            // In the order of their first poll, as one connection does.
            let mut last = self.last.lock().expect("no panic");
            let arrives = self.server.clock.now().plus(self.server.way()).max(*last);
            *last = arrives;
            let _ = self.out.send(Parcel { arrives, sent_at, request, answer });
        }
        let said = said.await;
        if is_acquire {
            acquires.now.fetch_sub(1, Ordering::Relaxed);
        }
        said.unwrap_or_else(|_| Err(Unreachable::new(UnreachableKind::Disconnected, "simulated")))
    }
}
