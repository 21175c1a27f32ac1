//! The Redis node itself: builds its parts, and carries a request to the server and its answer back.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::oneshot;
use tokio::task::coop::Unconstrained;
use tokio::task::unconstrained;

use super::batcher::{CommandContext, ordering_key};
use super::config::{CONNECTIONS_MAX, Identity, RedisNodeConfig};
use super::connect::{Limits, NodeConnector};
use super::connections::{CallPermit, NodeConnections};
use super::pipeline::Place;
use super::request_queue::EnqueueError;
use super::server_checks::ServerFinding;
use super::{disk_policy, subscriber, supervisor};
use crate::nodes::call_observer::NodeObserver;
use crate::protocol::{NodeResult, Request, RequestStamp, Unreachable, UnreachableKind};
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::node::Node;
use crate::redlock::notifications::NotificationSource;
use crate::redlock::random::Entropy;
use crate::redlock::subscriptions::Subscriptions;
use crate::types::{Invalid, NodeId};

/// The timeout of a `PING`, in node timeouts; at least [`CHECK_TIMEOUT_MIN`]. A connection that does not answer within it is
/// replaced.
const CHECK_NODE_TIMEOUTS: u32 = 4;
const CHECK_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The last known state of a node, without a request to it.
#[derive(Debug, Clone)]
pub struct RedisNodeReport {
    /// Whether every connection is open.
    pub connected: bool,
    /// Time of the last change of `connected`.
    pub since: BootTime,
    /// The server process, as of the last hand-shake: `run_id` and `master_replid`; empty before the first.
    pub run_id: String,
    /// Redis' version; empty before the first hand-shake.
    pub version: String,
    /// `master` or `slave`; empty before the first hand-shake.
    pub role: String,
    /// The findings for the node's operator.
    pub findings: Vec<ServerFinding>,
    /// Connections built beyond the configured number.
    pub reconnects: u64,
    /// Calls without an answer, by kind. Calls dropped before the node timeout are not counted.
    pub errors: [(UnreachableKind, u64); UnreachableKind::ALL.len()],
    /// Kind of the last error of a call or of an attempt to connect.
    pub last_error: Option<UnreachableKind>,
    /// Why there is no connection, if there is none. For the log and for operators: may name the address.
    pub connect_error: Option<Unreachable>,
}

/// The address of the server.
#[derive(Debug)]
struct Address {
    text: Arc<str>,
    /// Whether the address is, or was, another one than the configured.
    is_moved: bool,
}

/// One Redis master.
pub struct RedisNode {
    id: NodeId,
    max_in_flight: usize,
    /// The node is to be durable.
    is_durable: bool,
    /// How long callers wait for an answer. Microseconds.
    timeout_us: AtomicU64,
    connector: NodeConnector,
    address: RwLock<Address>,
    connections: Arc<NodeConnections>,
    subscriptions: Arc<Subscriptions>,
    clock: SystemClock,
    observer: Option<Arc<dyn NodeObserver>>,
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("id", &self.id).finish_non_exhaustive()
    }
}

impl RedisNode {
    /// The node, without a connection yet, and the future of its supervisor. The supervisor connects when it is spawned and
    /// closes everything when it is dropped.
    ///
    /// Errors: [`Invalid`] for certificates that cannot be read, and for more connections than
    /// [`CONNECTIONS_MAX`].
    pub fn new<E: Entropy>(
        config: RedisNodeConfig,
        entropy: E,
        observer: Option<Arc<dyn NodeObserver>>,
    ) -> Result<(Arc<Self>, impl Future<Output = ()> + Send + use<E>), Invalid> {
        if !(1..=CONNECTIONS_MAX).contains(&config.connections) {
            return Err(Invalid(format!("a node has 1 to {CONNECTIONS_MAX} connections")));
        }
        let clock = SystemClock;
        let check = config.node_timeout.saturating_mul(CHECK_NODE_TIMEOUTS).max(CHECK_TIMEOUT_MIN);
        let (limit, limits) = (config.connect_timeout, Limits { connect: config.connect_timeout, check });
        let bind_run = config.identity == Identity::Handshake;
        let tls = config.tls.as_ref();
        let connector = NodeConnector::new(&config.url, tls, limits, bind_run, config.allow_replicas)?;
        let connections = Arc::new(NodeConnections::new(config.connections, clock.now()));
        let subscriptions = Arc::new(Subscriptions::default());
        let (id, subscribed, supervised) = (config.id.clone(), Arc::clone(&subscriptions), Arc::clone(&connections));
        let shared = (subscribed, Arc::clone(&connections));
        let subscriber = subscriber::run(id.clone(), connector.clone(), shared, limit, clock, entropy.clone());
        let (own, address) = (connector.clone(), Address { text: config.url.address().into(), is_moved: false });
        let context = Arc::new(CommandContext::new(config.id.clone(), config.params));
        let place = |slot| Place { context: Arc::clone(&context), connections: Arc::clone(&connections), slot, clock };
        let pools = (0..config.connections).map(|slot| connector.pool(place(slot))).collect::<Result<_, _>>()?;
        let supervisor = supervisor::supervise(id, supervised, (connector, pools), config.durable, clock, entropy);
        let tasks = async move {
            futures_util::future::join(supervisor, subscriber).await;
        };
        let node = Self {
            id: config.id,
            max_in_flight: config.max_in_flight,
            is_durable: config.durable,
            timeout_us: AtomicU64::new(micros(config.node_timeout)),
            connector: own,
            address: RwLock::new(address),
            connections,
            subscriptions,
            clock,
            observer,
        };
        Ok((Arc::new(node), tasks))
    }

    /// The last known state of the node, without a round trip.
    pub fn report(&self) -> RedisNodeReport {
        let (status, connected) = self.connections.status();
        let mut findings = status.server.findings;
        let problem = self.is_durable.then(|| disk_policy::problem(status.policy.as_ref())).flatten();
        findings.extend(problem.filter(|_| connected).map(|why| ServerFinding::NotDurable { why }));
        findings.extend(status.notices_error.map(|why| ServerFinding::NoNotices { why: why.detail.to_string() }));
        RedisNodeReport {
            connected,
            since: status.since,
            run_id: status.server.run_id,
            version: status.server.version,
            role: status.server.role,
            findings,
            reconnects: status.reconnects,
            errors: self.connections.errors(),
            last_error: status.last_error,
            connect_error: status.connect_error,
        }
    }

    /// Enqueues a request. The receiver is answered in any case, even if the connection ends.
    fn send(&self, stamp: RequestStamp, request: Arc<Request>) -> Result<oneshot::Receiver<NodeResult>, Unreachable> {
        let acquires = matches!(*request, Request::Acquire(_) | Request::AcquireSet(_) | Request::AcquireShared(_));
        if self.connections.is_unsuitable() && acquires {
            return Err(Unreachable::new(UnreachableKind::Unsuitable, "findings about the server remove its vote"));
        }
        let slot = self.connections.slot_of_key(ordering_key(&request));
        slot.enqueue(stamp, request, self.max_in_flight).map_err(|error| match error {
            EnqueueError::NotConnected => self.not_connected(),
            EnqueueError::QueueFull => {
                Unreachable::new(UnreachableKind::Overloaded, "too many requests wait to be sent")
            }
        })
    }

    /// Why nothing was sent. Missing rights and a replica are reported as such, because retrying does not help.
    fn not_connected(&self) -> Unreachable {
        match self.connections.status().0.connect_error {
            Some(error) if matches!(error.kind, UnreachableKind::Auth | UnreachableKind::ReadOnly) => error,
            Some(error) => Unreachable::new(UnreachableKind::Disconnected, error.to_string()),
            None => Unreachable::new(UnreachableKind::Disconnected, "not connected"),
        }
    }

    fn completed(&self, operation: &'static str, started: BootTime, answer: &NodeResult) {
        let outcome = answer.as_ref().map(drop).map_err(|e| e.kind);
        if let Err(kind) = outcome {
            self.connections.count_error(kind);
        }
        if let Some(observer) = &self.observer {
            let now = self.clock.now();
            observer.call_completed(&self.id, operation, (now, now.since(started)), outcome);
        }
    }
}

impl Node for RedisNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    fn is_connected(&self) -> bool {
        self.connections.slots().iter().any(|slot| slot.is_active())
    }

    fn reconnected(&self) -> impl Future<Output = ()> + Send {
        self.connections.reconnected()
    }

    fn syncs_each_write(&self) -> Option<bool> {
        disk_policy::syncs(self.connections.policy().as_ref(), self.clock.now())
    }

    fn expect_answers_within(&self, timeout: Duration) {
        self.timeout_us.store(micros(timeout), Ordering::Relaxed);
    }

    fn address(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.address.read().text))
    }

    fn moved_to(&self) -> Option<Arc<str>> {
        let address = self.address.read();
        address.is_moved.then(|| Arc::clone(&address.text))
    }

    fn move_to(&self, address: &str) -> bool {
        let is_address = self.connector.move_to(address);
        if is_address {
            *self.address.write() = Address { text: address.into(), is_moved: true };
            let why = Unreachable::new(UnreachableKind::Disconnected, "the node was moved to another address");
            self.connections.close_all(why, self.clock.now());
        }
        is_address
    }

    fn set_open(&self, is_open: bool) {
        self.connector.set_open(is_open);
        if !is_open {
            let why = Unreachable::new(UnreachableKind::Disconnected, "the node is not of the list");
            self.connections.close_all(why, self.clock.now());
        }
    }

    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Subscriptions(&self.subscriptions)
    }

    fn call(
        self: Arc<Self>,
        stamp: RequestStamp,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static {
        Call { operation: request.operation(), node: self, started: None, state: CallState::New(stamp, request) }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A call: the first poll enqueues the request, so requests keep the order of their first polls. Not an async block, which would
/// be several times as large; calls are moved for each node and round.
struct Call {
    node: Arc<RedisNode>,
    operation: &'static str,
    /// When the call was first polled.
    started: Option<BootTime>,
    state: CallState,
}

enum CallState {
    New(RequestStamp, Arc<Request>),
    /// Unconstrained: tokio's budget is for sockets, and a round has few answers to read.
    Sent {
        answer: Unconstrained<oneshot::Receiver<NodeResult>>,
        _permit: CallPermit,
    },
    Ended,
}

impl CallState {
    /// Takes the unsent request, if any; the state is then [`Self::Ended`] for now.
    fn take_new(&mut self) -> Option<(RequestStamp, Arc<Request>)> {
        if !matches!(self, Self::New(..)) {
            return None;
        }
        match std::mem::replace(self, Self::Ended) {
            Self::New(stamp, request) => Some((stamp, request)),
            Self::Sent { .. } | Self::Ended => None,
        }
    }
}

impl Future for Call {
    type Output = NodeResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NodeResult> {
        let this = &mut *self;
        if let Some((stamp, request)) = this.state.take_new() {
            this.started = Some(this.node.clock.now());
            let sent = match this.node.connections.begin_call(this.node.max_in_flight) {
                Some(permit) => this.node.send(stamp, request).map(|answer| (answer, permit)),
                None => Err(Unreachable::new(UnreachableKind::Overloaded, "too many requests are in flight")),
            };
            match sent {
                Ok((answer, _permit)) => this.state = CallState::Sent { answer: unconstrained(answer), _permit },
                Err(error) => {
                    let answer = Err(error);
                    this.end(&answer);
                    return Poll::Ready(answer);
                }
            }
        }
        let answer = match &mut this.state {
            // An answer is large: it is moved as rarely as possible.
            CallState::Sent { answer, .. } => match ready!(Pin::new(answer).poll(cx)) {
                Ok(answer) => answer,
                Err(_) => Err(this.node.not_connected()),
            },
            // The call was polled after its end.
            CallState::New(..) | CallState::Ended => return Poll::Pending,
        };
        this.end(&answer);
        Poll::Ready(answer)
    }
}

impl Call {
    fn end(&mut self, answer: &NodeResult) {
        self.state = CallState::Ended;
        self.node.completed(self.operation, self.started.unwrap_or_default(), answer);
    }
}

/// Counts a call that is dropped without an answer after the node timeout as a timeout. A call that is dropped earlier has lost
/// its caller, which is no error of the node.
impl Drop for Call {
    fn drop(&mut self) {
        let (CallState::Sent { .. }, Some(started)) = (&self.state, self.started) else { return };
        if micros(self.node.clock.now().since(started)) >= self.node.timeout_us.load(Ordering::Relaxed) {
            let late = Unreachable::new(UnreachableKind::Timeout, "no answer within the node timeout");
            self.node.completed(self.operation, started, &Err(late));
        }
    }
}
