//! A Redis node: takes requests of the algorithm to one Redis master and back. Stands apart from the
//! algorithm, which knows no Redis, and from the protocol's commands and replies
//! ([`crate::protocol::scripts`], [`crate::protocol::replies`]), which know no connection.
//!
//! Connections are built, checked and replaced by deadpool-redis through a supervisor; requests wait for
//! the end of the runtime's turn in a lane's queue, from where its carrier sends them on a clone of the
//! lane's multiplexed connection. Nothing is queued for longer, nothing is repeated, save a script that
//! the node did not know and that therefore did not run.

mod batcher;
mod connect;
mod connection;
mod errors;
mod server_checks;
mod subscriber;
mod supervisor;
mod url;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

pub use self::connect::{ANSWER_BACKSTOP, NodeTls};
pub use self::server_checks::{OLDEST_VERSION, ServerFinding, ServerInfo, read as read_server_info};
pub use self::supervisor::{CHECK_EVERY, FITNESS_EVERY};
pub use self::url::NodeUrl;

use self::batcher::{Manner, answer_of, carry};
use self::connect::{Connector, Limits};
use self::connection::{Lanes, Refused};
use crate::protocol::keys::{KeyTemplate, LEASES_KEY, META_KEY};
use crate::protocol::{ClusterParams, NodeResult, Request, RequestTime, Unreachable, UnreachableKind};
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::entropy::Entropy;
use crate::redlock::node::Node;
use crate::redlock::notifications::NotificationSource;
use crate::redlock::subscriptions::Subscriptions;
use crate::types::{Invalid, NodeId};

/// One connection carries more than 100,000 requests a second; more lanes help only where one core of
/// the instance cannot keep up with its socket.
pub const DEFAULT_LANES: usize = 1;
/// More lanes than this are a mistake: each is a connection per instance and node.
pub const LANES_MAX: usize = 16;
/// Requests under way per node. A node answers some 50,000 a second, so this many are worth 80 ms of
/// its time: more could not be answered within the node timeout anyhow.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 4_096;
/// For TCP, TLS and authentication.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection that does not answer a `PING` within this many node timeouts, or one second if that
/// is longer, is replaced.
pub const CHECK_NODE_TIMEOUTS: u32 = 4;
const CHECK_LIMIT_MIN: Duration = Duration::from_secs(1);

/// How a node is known to be the process it was: see `docs/safety.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Identity {
    /// The hand-shake of each connection reads the `run_id`; requests carry it. A restart breaks
    /// connections, so none can outlive the process it was bound to.
    #[default]
    Handshake,
    /// Each script reads it, which triples the cost of an acquire: for proxies that hide restarts.
    Script,
}

/// Everything that a [`RedisNode`] is made of.
#[derive(Debug, Clone)]
pub struct RedisNodeConfig {
    /// Its name.
    pub id: NodeId,
    /// Where it is.
    pub url: NodeUrl,
    /// Certificates, for `rediss://` only.
    pub tls: Option<NodeTls>,
    /// What all instances agree on.
    pub params: Arc<ClusterParams>,
    /// Names of lock keys.
    pub key_template: KeyTemplate,
    /// How restarts are noticed.
    pub identity: Identity,
    /// The deadline that callers set for a request; health checks take it as their measure.
    pub node_timeout: Duration,
    /// For TCP, TLS and authentication, and again for the hand-shake.
    pub connect_timeout: Duration,
    /// Connections; at most [`LANES_MAX`].
    pub lanes: usize,
    /// Requests under way; beyond it they are refused.
    pub max_in_flight: usize,
}

impl RedisNodeConfig {
    /// A node with the defaults of this file.
    pub fn new(id: NodeId, url: NodeUrl, params: Arc<ClusterParams>, node_timeout: Duration) -> Self {
        Self {
            id,
            url,
            tls: None,
            params,
            key_template: KeyTemplate::default(),
            identity: Identity::default(),
            node_timeout,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            lanes: DEFAULT_LANES,
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
        }
    }
}

/// Hears of each call that was completed, or given up at the node timeout. A call whose future was
/// dropped before is not heard of.
pub trait NodeObserver: Send + Sync + 'static {
    /// `took` counts from the first poll of the call. Must return at once.
    fn call_completed(&self, node: &NodeId, verb: &'static str, took: Duration, outcome: Result<(), UnreachableKind>);
}

impl<F> NodeObserver for F
where
    F: Fn(&NodeId, &'static str, Duration, Result<(), UnreachableKind>) + Send + Sync + 'static,
{
    fn call_completed(&self, node: &NodeId, verb: &'static str, took: Duration, outcome: Result<(), UnreachableKind>) {
        self(node, verb, took, outcome);
    }
}

/// What is known of a node without asking it.
#[derive(Debug, Clone)]
pub struct NodeReport {
    /// Whether all lanes have a connection.
    pub connected: bool,
    /// Since when that is so.
    pub since: BootTime,
    /// The process at the other end, as of the last hand-shake; empty before the first.
    pub run_id: String,
    /// Redis' version; empty before the first hand-shake.
    pub version: String,
    /// `master` or `slave`; empty before the first hand-shake.
    pub role: String,
    /// What its operator should know.
    pub findings: Vec<ServerFinding>,
    /// Connections built beyond the first of each lane.
    pub reconnects: u64,
    /// Calls that got no answer, by kind. Calls that were dropped at their deadline are not among them.
    pub errors: [(UnreachableKind, u64); UnreachableKind::ALL.len()],
    /// Kind of the last error of a call or of an attempt to connect.
    pub last_error: Option<UnreachableKind>,
    /// Why there is no connection, if so. For the log and for operators: may name the address.
    pub refusal: Option<Unreachable>,
}

/// One Redis master.
pub struct RedisNode {
    id: NodeId,
    max_in_flight: usize,
    node_timeout: Duration,
    lanes: Arc<Lanes>,
    feed: Arc<Subscriptions>,
    clock: SystemClock,
    observer: Option<Arc<dyn NodeObserver>>,
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("id", &self.id).finish_non_exhaustive()
    }
}

impl RedisNode {
    /// The node, without a connection yet, and its supervisor, which connects once it is spawned and
    /// closes everything when it is dropped.
    ///
    /// Errors: [`Invalid`] for certificates that cannot be read, and for more lanes than [`LANES_MAX`].
    pub fn new<E: Entropy>(
        config: RedisNodeConfig,
        entropy: E,
        observer: Option<Arc<dyn NodeObserver>>,
    ) -> Result<(Arc<Self>, impl Future<Output = ()> + Send + use<E>), Invalid> {
        if !(1..=LANES_MAX).contains(&config.lanes) {
            return Err(Invalid(format!("a node has 1 to {LANES_MAX} lanes")));
        }
        let clock = SystemClock;
        let check = config.node_timeout.saturating_mul(CHECK_NODE_TIMEOUTS).max(CHECK_LIMIT_MIN);
        let limits = Limits { connect: config.connect_timeout, check };
        let bind_run = config.identity == Identity::Handshake;
        let connector = Connector::new(&config.url, config.tls.as_ref(), limits, Arc::clone(&config.params), bind_run)?;
        let lanes = Arc::new(Lanes::new(config.lanes, clock.now()));
        let pools = (0..config.lanes).map(|at| connector.pool(&lanes, at)).collect::<Result<Vec<_>, _>>()?;
        let feed = Arc::new(Subscriptions::default());
        let (id, patience, heard) = (config.id.clone(), config.connect_timeout, Arc::clone(&feed));
        let listener = subscriber::listen(id.clone(), connector, heard, patience, clock, entropy.clone());
        let keeper = supervisor::supervise(id, Arc::clone(&lanes), pools, patience, clock, entropy);
        let manner = Manner { params: config.params, template: config.key_template };
        let carried = Arc::clone(&lanes);
        let supervisor = async move {
            // Tasks of their own: what they do most must not wake the rest. They end with this future.
            let mut carriers = JoinSet::new();
            for at in 0..carried.all().len() {
                let carrier = carry(manner.clone(), Arc::clone(&carried), at, clock);
                // Unconstrained: tokio's budget could otherwise put off handing a command to the driver, and a
                // later one would overtake it.
                carriers.spawn(tokio::task::unconstrained(carrier));
            }
            futures_util::future::join(keeper, listener).await;
        };
        let node = Self {
            id: config.id,
            max_in_flight: config.max_in_flight,
            node_timeout: config.node_timeout,
            lanes,
            feed,
            clock,
            observer,
        };
        Ok((Arc::new(node), supervisor))
    }

    /// What is known of the node now; asks nobody.
    pub fn report(&self) -> NodeReport {
        let (health, connected) = self.lanes.health();
        NodeReport {
            connected,
            since: health.since,
            run_id: health.server.run_id,
            version: health.server.version,
            role: health.server.role,
            findings: health.server.findings,
            reconnects: health.reconnects,
            errors: self.lanes.errors(),
            last_error: health.last_error,
            refusal: health.refusal,
        }
    }

    async fn ask(&self, sent_at: RequestTime, request: &Arc<Request>) -> NodeResult {
        let Some(_place) = self.lanes.enter(self.max_in_flight) else {
            return Err(Unreachable::new(UnreachableKind::Overloaded, "too many requests are under way"));
        };
        if self.lanes.is_unfit() && matches!(**request, Request::Acquire(_)) {
            return Err(Unreachable::new(UnreachableKind::Unsuitable, "the server's findings take its vote away"));
        }
        let lane = self.lanes.of_key(lane_key(request));
        match lane.leave(sent_at, Arc::clone(request), self.max_in_flight) {
            Ok(waiting) => answer_of(waiting).await,
            Err(Refused::Closed) => Err(self.no_connection()),
            Err(Refused::Full) => {
                Err(Unreachable::new(UnreachableKind::Overloaded, "too many requests wait to be sent"))
            }
        }
    }

    /// Why nothing was sent. A refused password is said as such: waiting does not mend it.
    fn no_connection(&self) -> Unreachable {
        match self.lanes.health().0.refusal {
            Some(refusal) if refusal.kind == UnreachableKind::Auth => refusal,
            Some(refusal) => Unreachable::new(UnreachableKind::Disconnected, refusal.to_string()),
            None => Unreachable::new(UnreachableKind::Disconnected, "no connection yet, or none any more"),
        }
    }

    fn completed(&self, verb: &'static str, begun: BootTime, answer: &NodeResult) {
        let outcome = answer.as_ref().map(drop).map_err(|e| e.kind);
        if let Err(kind) = outcome {
            self.lanes.count(kind);
        }
        if let Some(observer) = &self.observer {
            observer.call_completed(&self.id, verb, self.clock.now().since(begun), outcome);
        }
    }
}

impl Node for RedisNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Subscriptions(&self.feed)
    }

    fn call(
        self: Arc<Self>,
        sent_at: RequestTime,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static {
        // The first poll leaves the request in its lane's queue, whose order is kept. Unconstrained: tokio's
        // budget is for sockets; a round has few answers to look at.
        tokio::task::unconstrained(async move {
            let mut watch = Watch { node: &self, verb: request.operation(), begun: self.clock.now(), answered: false };
            let answer = self.ask(sent_at, &request).await;
            watch.answered = true;
            self.completed(watch.verb, watch.begun, &answer);
            answer
        })
    }
}

/// A call under way. Dropped without an answer after the node timeout, it counts as a timeout: the
/// caller's round has given the node up. Dropped before, the caller went away, which says nothing
/// of the node.
struct Watch<'a> {
    node: &'a RedisNode,
    verb: &'static str,
    begun: BootTime,
    answered: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.answered && self.node.clock.now().since(self.begun) >= self.node.node_timeout {
            let late = Unreachable::new(UnreachableKind::Timeout, "given up at the node timeout");
            self.node.completed(self.verb, self.begun, &Err(late));
        }
    }
}

/// What decides the lane: the resource, or the key of the node's own that the request is about.
fn lane_key(request: &Request) -> &str {
    if let Some(resource) = request.resource() {
        return resource.as_str();
    }
    match request {
        Request::List(_) => LEASES_KEY,
        _ => META_KEY,
    }
}
