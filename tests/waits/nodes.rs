//! Nodes of a simulated run: the reference node behind ordered links with latency, and notices on connections
//! of their own, which may be late, lost or cut off.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::clock::{Paused, SeededRandom};
use crate::protocol::reference::ReferenceNode;
use crate::protocol::{
    CancelArgs, ClusterParams, NodeResult, ReleaseArgs, Request, RequestTime, Unreachable, UnreachableKind,
};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::notifications::{LeaseTag, Notice, NotificationSource, Topic};
use crate::redlock::subscriptions::Subscriptions;
use crate::types::{NodeId, ResourceName, TokenHash};

const RUN: &str = "0000000000000000000000000000000000000001";

/// Longer than any request waits for a node.
const TOO_LATE: Duration = Duration::from_millis(100);

/// How the network is. Percent and milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetworkProfile {
    /// Longest time that a request or an answer takes.
    pub(super) latency_ms: u64,
    /// Share of requests and answers that take up to a node's time-out more.
    pub(super) spikes: u64,
    /// Share of inspections whose answers come too late.
    pub(super) late_inspections: u64,
    /// Share of notices that are lost.
    pub(super) lost: u64,
    /// Longest time that a notice takes.
    pub(super) notice_ms: u64,
}

/// A node's server.
pub(super) struct Server {
    machine: Mutex<ReferenceNode>,
    subscribers: Mutex<Vec<Arc<Subscriptions>>>,
    clock: Paused,
    random: SeededRandom,
    network: NetworkProfile,
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
    pub(super) fn new(clock: Paused, random: &SeededRandom, network: NetworkProfile) -> Arc<Self> {
        let (machine, subscribers) = (Mutex::new(ReferenceNode::new(RUN)), Mutex::default());
        Arc::new(Self {
            machine,
            subscribers,
            clock,
            random: random.clone(),
            network,
            is_dead: AtomicBool::new(false),
            acquires: Acquires::default(),
        })
    }

    /// Ends the node for good: it answers nothing any more, and the connections for notices break.
    pub(super) fn die(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.subscribers.lock().expect("no panic").iter().for_each(|subscriptions| subscriptions.disconnected());
    }

    /// Maximum of acquires that were under way to it at a time.
    pub(super) fn most_acquires(&self) -> usize {
        self.acquires.most.load(Ordering::Relaxed)
    }

    /// Whether it has ended.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// The lease that the resource's key has.
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

    /// As the release script does; each instance has its own connection.
    fn publish(&self, resource: &ResourceName, notice: Notice) {
        let topic = Topic::LeaseEnded(resource.clone());
        for subscriptions in self.subscribers.lock().expect("no panic").iter() {
            if !subscriptions.is_active(&topic) || self.random.chance(self.network.lost) {
                continue;
            }
            let (subscriptions, resource, clock) = (Arc::clone(subscriptions), resource.clone(), self.clock);
            let way = self.random.ms(1, self.network.notice_ms);
            tokio::spawn(async move {
                clock.sleep(way).await;
                if subscriptions.is_connected() {
                    subscriptions.lease_ended(&resource, notice);
                }
            });
        }
    }

    /// Instances that are subscribed to this.
    fn subscriber_count(&self, topic: &Topic) -> usize {
        let subscribers = self.subscribers.lock().expect("no panic");
        subscribers.iter().filter(|f| f.is_active(topic)).count()
    }

    fn way(&self) -> Duration {
        let spike = if self.random.chance(self.network.spikes) { self.random.ms(0, 60) } else { Duration::ZERO };
        self.random.ms(1, self.network.latency_ms) + spike
    }
}

struct Packet {
    arrives: BootTime,
    sent_at: RequestTime,
    request: Arc<Request>,
    answer: oneshot::Sender<NodeResult>,
}

/// A node as one instance sees it.
pub(super) struct Link {
    id: NodeId,
    subscriptions: Arc<Subscriptions>,
    server: Arc<Server>,
    last: Mutex<BootTime>,
    out: mpsc::UnboundedSender<Packet>,
}

impl Link {
    /// Connects and subscribes. Its tasks end with the runtime.
    pub(super) fn open(number: usize, server: &Arc<Server>, params: &Arc<ClusterParams>) -> Arc<Self> {
        let (out, mut packets) = mpsc::unbounded_channel::<Packet>();
        let (subscriptions, clock) = (Arc::new(Subscriptions::default()), server.clock);
        server.subscribers.lock().expect("no panic").push(Arc::clone(&subscriptions));
        let (far, params) = (Arc::clone(server), Arc::clone(params));
        tokio::spawn(async move {
            while let Some(Packet { arrives, sent_at, request, answer }) = packets.recv().await {
                clock.sleep_until(arrives).await;
                if far.is_dead() {
                    continue; // dropping the channel fails the request
                }
                let said = far.apply(sent_at, &params, &request);
                let looks = matches!(&*request, Request::Inspect { .. });
                let is_late = looks && far.random.chance(far.network.late_inspections);
                let back = far.way() + if is_late { TOO_LATE } else { Duration::ZERO };
                tokio::spawn(async move {
                    clock.sleep(back).await;
                    let _ = answer.send(said);
                });
            }
        });
        tokio::spawn(listen(Arc::clone(&subscriptions), Arc::clone(server)));
        let id = NodeId::parse(&format!("n{number}")).expect("valid");
        Arc::new(Self { id, subscriptions, server: Arc::clone(server), last: Mutex::default(), out })
    }

    /// Breaks the connection for notices, and opens it again after `pause`.
    pub(super) async fn break_connection(&self, pause: Duration) {
        self.subscriptions.disconnected();
        self.server.clock.sleep(pause).await;
        if self.server.is_dead() {
            return;
        }
        self.subscriptions.confirm(&self.subscriptions.reconnect());
        self.subscriptions.connected();
    }
}

/// What a node's subscriber does.
async fn listen(subscriptions: Arc<Subscriptions>, server: Arc<Server>) {
    subscriptions.confirm(&subscriptions.reconnect());
    subscriptions.connected();
    loop {
        subscriptions.changed().await;
        let commands = subscriptions.take_commands();
        // Slower than requests: a release may fall between a refusal and the subscription.
        server.clock.sleep(server.way() + server.random.ms(0, 30)).await;
        if subscriptions.is_connected() {
            subscriptions.confirm(&commands.subscribe);
        }
        for (topic, answer) in commands.count {
            let _ = answer.send(server.subscriber_count(&topic));
        }
    }
}

impl Node for Link {
    fn id(&self) -> &NodeId {
        &self.id
    }

    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Subscriptions(&self.subscriptions)
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
            let _ = self.out.send(Packet { arrives, sent_at, request, answer });
        }
        let said = said.await;
        if is_acquire {
            acquires.now.fetch_sub(1, Ordering::Relaxed);
        }
        said.unwrap_or_else(|_| Err(Unreachable::new(UnreachableKind::Disconnected, "simulated")))
    }
}
