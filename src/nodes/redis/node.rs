//! The Redis node itself: builds its parts, and carries a request to the server and its answer back.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::batcher::{CommandContext, ordering_key};
use super::config::{CONNECTIONS_MAX, Identity, RedisNodeConfig};
use super::connect::{Limits, NodeConnector};
use super::connections::NodeConnections;
use super::pipeline::Place;
use super::request_queue::PendingRequest;
use super::server_checks::ServerFinding;
use super::{disk_policy, subscriber, supervisor};
use crate::nodes::call_observer::NodeObserver;
use crate::protocol::{NodeResult, Request, RequestStamp, Unreachable, UnreachableKind};
use crate::redlock::answers::{self, AnswerSlot};
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::node::Node;
use crate::redlock::notifications::NotificationSource;
use crate::redlock::random::Entropy;
use crate::redlock::subscriptions::Subscriptions;
use crate::types::{Invalid, NodeId};
use crate::worker_threads;

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
    /// Calls without an answer in time, by kind. A call that nobody waits for any more is counted when it ends, if it took longer
    /// than callers wait.
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
    connector: NodeConnector,
    address: RwLock<Address>,
    connections: Arc<NodeConnections>,
    subscriptions: Arc<Subscriptions>,
    clock: SystemClock,
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
        let observer = observer.map(|observer| (config.id.clone(), observer));
        let counts = (config.threads.count(), config.connections);
        let connections = Arc::new(NodeConnections::new(counts, observer, clock.now()));
        connections.set_timeout(config.node_timeout);
        let subscriptions = Arc::new(Subscriptions::default());
        let (id, subscribed, supervised) = (config.id.clone(), Arc::clone(&subscriptions), Arc::clone(&connections));
        let shared = (subscribed, Arc::clone(&connections));
        let subscriber = subscriber::run(id.clone(), connector.clone(), shared, limit, clock, entropy.clone());
        let (own, address) = (connector.clone(), Address { text: config.url.address().into(), is_moved: false });
        let context = Arc::new(CommandContext::new(config.id.clone(), config.params));
        let place = |slot| Place { context: Arc::clone(&context), connections: Arc::clone(&connections), slot, clock };
        let pool = |slot| connector.pool(place(slot), &config.threads);
        let pools = (0..connections.slots().len()).map(pool).collect::<Result<_, _>>()?;
        let supervisor = supervisor::supervise(id, supervised, (connector, pools), config.durable, clock, entropy);
        let tasks = async move {
            futures_util::future::join(supervisor, subscriber).await;
        };
        let node = Self {
            id: config.id,
            max_in_flight: config.max_in_flight,
            is_durable: config.durable,
            connector: own,
            address: RwLock::new(address),
            connections,
            subscriptions,
            clock,
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

    /// Why a request cannot be sent now.
    fn refusal(&self, request: &Request, now: BootTime) -> Option<Unreachable> {
        let acquires = matches!(request, Request::Acquire(_) | Request::AcquireSet(_) | Request::AcquireShared(_));
        if self.connections.is_unsuitable() && acquires {
            return Some(Unreachable::new(UnreachableKind::Unsuitable, "findings about the server remove its vote"));
        }
        let is_full = !self.connections.begin_call(self.max_in_flight, now);
        is_full.then(|| Unreachable::new(UnreachableKind::Overloaded, "too many requests are in flight"))
    }

    /// Why nothing was sent. Missing rights and a replica are reported as such, because retrying does not help.
    fn not_connected(&self) -> Unreachable {
        match self.connections.status().0.connect_error {
            Some(error) if matches!(error.kind, UnreachableKind::Auth | UnreachableKind::ReadOnly) => error,
            Some(error) => Unreachable::new(UnreachableKind::Disconnected, error.to_string()),
            None => Unreachable::new(UnreachableKind::Disconnected, "not connected"),
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
        self.connections.set_timeout(timeout);
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
        let clock = self.clock;
        answers::answer_of(stamp, request, move || clock.now(), move |slot| self.hand_over(slot))
    }

    fn hand_over(self: &Arc<Self>, slot: AnswerSlot) -> Result<(), AnswerSlot> {
        let now = slot.sent_at();
        if let Some(error) = self.refusal(slot.request(), now) {
            self.connections.count(&slot, Err(error.kind), now);
            slot.put(Err(error));
            return Ok(());
        }
        let connection = self.connections.slot_of(ordering_key(slot.request()), worker_threads::current());
        if let Err(pending) = connection.send(PendingRequest::new(slot, Arc::clone(&self.connections))) {
            pending.answer(Err(self.not_connected()), now);
        }
        Ok(())
    }
}
