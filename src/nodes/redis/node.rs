//! The Redis node itself: builds its parts, and carries a request to the server and its answer back.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::task::JoinSet;

use super::batcher::{CommandContext, answer_of, ordering_key, run_batcher};
use super::config::{CONNECTIONS_MAX, Identity, RedisNodeConfig};
use super::connect::{Connector, Limits};
use super::connection::{EnqueueError, NodeConnections};
use super::server_checks::ServerFinding;
use super::{subscriber, supervisor};
use crate::nodes::observer::NodeObserver;
use crate::protocol::{NodeResult, Request, RequestStamp, Unreachable, UnreachableKind};
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::entropy::Entropy;
use crate::redlock::node::Node;
use crate::redlock::notifications::NotificationSource;
use crate::redlock::subscriptions::Subscriptions;
use crate::types::{Invalid, NodeId};

/// A connection that does not answer a `PING` within this many node timeouts, or [`CHECK_TIMEOUT_MIN`]
/// if that is longer, is replaced.
const CHECK_NODE_TIMEOUTS: u32 = 4;
const CHECK_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// What is known of a node without asking it.
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
    /// What its operator should know.
    pub findings: Vec<ServerFinding>,
    /// Connections built beyond the configured number.
    pub reconnects: u64,
    /// Calls without an answer, by kind. Calls dropped before the node timeout are not counted.
    pub errors: [(UnreachableKind, u64); UnreachableKind::ALL.len()],
    /// Kind of the last error of a call or of an attempt to connect.
    pub last_error: Option<UnreachableKind>,
    /// Why there is no connection, if so. For the log and for operators: may name the address.
    pub connect_error: Option<Unreachable>,
}

/// Where the server is.
#[derive(Debug)]
struct Address {
    text: Arc<str>,
    /// It is not the configured one, or was not.
    is_moved: bool,
}

/// One Redis master.
pub struct RedisNode {
    id: NodeId,
    max_in_flight: usize,
    node_timeout: Duration,
    connector: Connector,
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
    /// The node, without a connection yet, and the future of its supervisor, which connects when it is
    /// spawned and closes everything when it is dropped.
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
        let connector = Connector::new(&config.url, tls, limits, bind_run, config.allow_replicas)?;
        let connections = Arc::new(NodeConnections::new(config.connections, clock.now()));
        let subscriptions = Arc::new(Subscriptions::default());
        let (id, subscribed, supervised) = (config.id.clone(), Arc::clone(&subscriptions), Arc::clone(&connections));
        let shared = (subscribed, Arc::clone(&connections));
        let subscriber = subscriber::run(id.clone(), connector.clone(), shared, limit, clock, entropy.clone());
        let pools =
            (0..config.connections).map(|slot| connector.pool(&connections, slot, clock)).collect::<Result<_, _>>()?;
        let (own, address) = (connector.clone(), Address { text: config.url.address().into(), is_moved: false });
        let supervisor = supervisor::supervise(id, Arc::clone(&connections), (connector, pools), clock, entropy);
        let context = CommandContext::new(config.id.clone(), config.params, config.key_template);
        let tasks = async move {
            // Tasks of their own, so that their frequent wake-ups do not poll the others. Dropping the
            // set ends them with this future.
            let mut batchers = JoinSet::new();
            for index in 0..supervised.slots().len() {
                let batcher = run_batcher(context.clone(), Arc::clone(&supervised), index, clock);
                // Unconstrained: tokio's budget could delay handing a command to the driver, and a later
                // one would overtake it.
                batchers.spawn(tokio::task::unconstrained(batcher));
            }
            futures_util::future::join(supervisor, subscriber).await;
        };
        let node = Self {
            id: config.id,
            max_in_flight: config.max_in_flight,
            node_timeout: config.node_timeout,
            connector: own,
            address: RwLock::new(address),
            connections,
            subscriptions,
            clock,
            observer,
        };
        Ok((Arc::new(node), tasks))
    }

    /// What is known of the node now, without a round trip.
    pub fn report(&self) -> RedisNodeReport {
        let (status, connected) = self.connections.status();
        let mut findings = status.server.findings;
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

    async fn send(&self, stamp: RequestStamp, request: &Arc<Request>) -> NodeResult {
        let Some(_permit) = self.connections.begin_call(self.max_in_flight) else {
            return Err(Unreachable::new(UnreachableKind::Overloaded, "too many requests are in flight"));
        };
        if self.connections.is_unsuitable() && matches!(**request, Request::Acquire(_)) {
            return Err(Unreachable::new(UnreachableKind::Unsuitable, "findings about the server remove its vote"));
        }
        let slot = self.connections.slot_of_key(ordering_key(request));
        match slot.enqueue(stamp, Arc::clone(request), self.max_in_flight) {
            Ok(answer) => answer_of(answer).await,
            Err(EnqueueError::NotConnected) => Err(self.not_connected()),
            Err(EnqueueError::QueueFull) => {
                Err(Unreachable::new(UnreachableKind::Overloaded, "too many requests wait to be sent"))
            }
        }
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
            observer.call_completed(&self.id, operation, self.clock.now().since(started), outcome);
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

    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Subscriptions(&self.subscriptions)
    }

    fn call(
        self: Arc<Self>,
        stamp: RequestStamp,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static {
        // The first poll enqueues the request, so requests keep the order of their first polls.
        // Unconstrained: tokio's budget is for sockets, and a round has few answers to look at.
        tokio::task::unconstrained(async move {
            let (operation, started) = (request.operation(), self.clock.now());
            let mut guard = CallGuard { node: &self, operation, started, is_answered: false };
            let answer = self.send(stamp, &request).await;
            guard.is_answered = true;
            self.completed(operation, started, &answer);
            answer
        })
    }
}

/// Counts a call that is dropped without an answer after the node timeout as a timeout. Dropped
/// earlier, the caller went away, which is no error of the node.
struct CallGuard<'a> {
    node: &'a RedisNode,
    operation: &'static str,
    started: BootTime,
    is_answered: bool,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if !self.is_answered && self.node.clock.now().since(self.started) >= self.node.node_timeout {
            let late = Unreachable::new(UnreachableKind::Timeout, "no answer within the node timeout");
            self.node.completed(self.operation, self.started, &Err(late));
        }
    }
}
