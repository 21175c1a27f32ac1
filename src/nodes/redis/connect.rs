//! Builds connections to a Redis node: driver options, the pools, and the hand-shake that each connection must pass before
//! requests are sent on it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deadpool::managed;
use deadpool_redis::redis::aio::{AsyncPushSender, MultiplexedConnection};
use deadpool_redis::redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, ProtocolVersion, RedisConnectionInfo, RedisError, Value,
    cmd, from_redis_value,
};
use parking_lot::RwLock;
use tokio::task::{JoinSet, unconstrained};
use tokio::time::timeout;

use super::connections::{ActiveConnection, DriverTask};
use super::errors;
use super::pipeline::{Pipeline, Place};
use super::reply_limit::Metered;
use super::resp_connection::Wire;
use super::server_checks::{self, ServerInfo};
use super::socket::NodeAddress;
use super::url::{NodeTls, NodeUrl};
use crate::protocol::{Unreachable, UnreachableKind, commands};
use crate::redlock::clock::Clock;
use crate::types::Invalid;
use crate::worker_threads::WorkerThreads;

/// The subscriber connection's own limit for an answer, above the limits of all its callers.
const ANSWER_BACKSTOP: Duration = Duration::from_secs(5);

/// Timeouts of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// For TCP, TLS and authentication together, and again for the hand-shake.
    pub connect: Duration,
    /// For the `PING` of a health check.
    pub check: Duration,
}

/// A connection for subscriptions.
pub(super) struct OpenConnection {
    pub connection: MultiplexedConnection,
    /// The task that reads and writes for the connection until dropped.
    pub driver: DriverTask,
}

/// The pool of one connection: builds it, checks it each time it is requested, and replaces it if the check fails.
pub(super) type Pool = managed::Pool<ConnectionManager>;

/// Builds and checks the connection of a pool.
#[derive(Debug)]
pub(super) struct ConnectionManager {
    connector: NodeConnector,
    place: Place,
    threads: WorkerThreads,
}

impl managed::Manager for ConnectionManager {
    type Type = ActiveConnection;
    type Error = Unreachable;

    async fn create(&self) -> Result<ActiveConnection, Unreachable> {
        // By the thread that uses the connection: socket and driver belong to its runtime.
        let (connector, place) = (self.connector.clone(), self.place.clone());
        let thread = place.connections.thread_of(place.slot);
        let connected = self.threads.run(thread, async move { connector.connect(&place).await }).await;
        connected.unwrap_or_else(|| Err(errors::of_connecting(&errors::closed())))
    }

    async fn recycle(
        &self,
        active: &mut ActiveConnection,
        _: &managed::Metrics,
    ) -> managed::RecycleResult<Unreachable> {
        let checked = self.connector.check(active).await;
        let Place { connections, slot, clock, .. } = &self.place;
        if let (Err(error), Some(slot)) = (&checked, connections.slots().get(*slot)) {
            // Before a new connection is built: until then, calls learn at once that there is none.
            connections.record_connect_error(error.clone());
            connections.close(slot, Some(active.pipeline.generation()), clock.now());
        }
        Ok(checked?)
    }
}

/// The present address of a node.
struct Location {
    target: RwLock<NodeAddress>,
    /// The node is not in the list: no connections are built.
    is_closed: AtomicBool,
    /// Number of changes of the address and of `is_closed`.
    moves: AtomicU64,
}

/// Builds a node's connections, and its subscriber connection.
#[derive(Clone)]
pub(super) struct NodeConnector {
    /// Shared by all clones.
    location: Arc<Location>,
    /// User, password, database.
    settings: RedisConnectionInfo,
    limits: Limits,
    bind_run: bool,
    allow_replicas: bool,
}

impl fmt::Debug for NodeConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeConnector({:?}, bind_run: {})", self.limits, self.bind_run)
    }
}

impl NodeConnector {
    /// `bind_run`: whether requests carry the `run_id` that the hand-shake read. `allow_replicas`: whether the node votes while
    /// replicas follow it.
    ///
    /// Errors: [`Invalid`] if certificates cannot be read, or are given for an address without TLS.
    pub(super) fn new(
        url: &NodeUrl,
        tls: Option<&NodeTls>,
        limits: Limits,
        bind_run: bool,
        allow_replicas: bool,
    ) -> Result<Self, Invalid> {
        let client = url.client(tls)?;
        let info = client.get_connection_info();
        let (target, settings) = (NodeAddress::new(info, tls)?, info.redis_settings().clone());
        let location = Arc::new(Location {
            target: RwLock::new(target),
            is_closed: AtomicBool::new(false),
            moves: AtomicU64::new(0),
        });
        Ok(Self { location, settings, limits, bind_run, allow_replicas })
    }

    /// From now on, builds connections to this address. `false`: the address is invalid.
    pub(super) fn move_to(&self, address: &str) -> bool {
        let mut target = self.location.target.write();
        let Some(moved) = target.at(address) else { return false };
        *target = moved;
        self.location.moves.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Sets whether connections are built from now on.
    pub(super) fn set_open(&self, is_open: bool) {
        if self.location.is_closed.swap(!is_open, Ordering::SeqCst) == is_open {
            self.location.moves.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether no connections are built.
    pub(super) fn is_closed(&self) -> bool {
        self.location.is_closed.load(Ordering::SeqCst)
    }

    /// Number of times that the address changed, or the node was closed or opened: an older connection leads elsewhere.
    pub(super) fn moves(&self) -> u64 {
        self.location.moves.load(Ordering::SeqCst)
    }

    /// The pool of a slot's connection, still empty.
    ///
    /// Errors: [`Invalid`] if the pool's options are refused.
    pub(super) fn pool(&self, place: Place, threads: &WorkerThreads) -> Result<Pool, Invalid> {
        let manager = ConnectionManager { connector: self.clone(), place, threads: threads.clone() };
        let pool = Pool::builder(manager).max_size(1).build();
        pool.map_err(|e| Invalid(format!("the connections cannot be pooled: {e}")))
    }

    /// A connection that has passed its hand-shake.
    ///
    /// Errors: why there is no connection. Cancel: the connection is closed.
    async fn connect(&self, place: &Place) -> Result<ActiveConnection, Unreachable> {
        let moves = self.moves();
        let opened = within(self.limits.connect, self.open()).await;
        let mut wire = opened.map_err(|e| errors::of_connecting(&e))?;
        let prepared = within(self.limits.connect, prepare(&mut wire, self.allow_replicas)).await;
        let server = prepared.map_err(|e| errors::of_connecting(&e))?;
        if self.bind_run && server.run_id.is_empty() {
            let why = "INFO does not say the run_id; identity = \"script\" may do";
            return Err(Unreachable::new(UnreachableKind::Protocol, why));
        }
        let run_id = if self.bind_run { &server.run_id } else { "" };
        let run: Arc<str> = run_id.into();
        let refusal = (!server.is_master()).then(|| errors::of_call(&errors::not_master(&server.role)));
        place.connections.record_server(server);
        let refusal = refusal.or_else(|| {
            let why = "the node was moved to another address";
            (self.moves() != moves).then(|| Unreachable::new(UnreachableKind::Disconnected, why))
        });
        // A replica may be promoted on this connection, without data that it never received (F2).
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let pipeline = Pipeline::new(wire, place.clone(), (run, place.connections.next_generation()));
        // A task of its own, so that it reads and writes while callers wait; it ends with the last clone of the set.
        // Unconstrained: it handles at most the requests that callers have enqueued.
        let mut tasks = JoinSet::new();
        tasks.spawn(unconstrained(Arc::clone(&pipeline).run()));
        Ok(ActiveConnection { pipeline, _driver: Arc::new(tasks) })
    }

    /// A socket, authenticated and in the right database.
    async fn open(&self) -> Result<Wire, RedisError> {
        if self.is_closed() {
            return Err(errors::closed());
        }
        let target = self.location.target.read().clone();
        let mut wire = Wire::new(target.connect().await?);
        if let Some(password) = self.settings.password() {
            authenticate(&mut wire, self.settings.username(), password).await?;
        }
        if self.settings.db() != 0 {
            wire.ask(cmd("SELECT").arg(self.settings.db())).await?;
        }
        Ok(wire)
    }

    /// Checks a connection. Errors: it must be replaced.
    async fn check(&self, active: &ActiveConnection) -> Result<(), Unreachable> {
        match within(self.limits.check, active.ask(&cmd("PING"))).await {
            Ok(Value::SimpleString(pong)) if pong == "PONG" => Ok(()),
            Ok(_) => Err(Unreachable::new(UnreachableKind::Protocol, "the answer to PING is another one")),
            Err(error) => Err(errors::of_connecting(&error)),
        }
    }

    /// Reads the server checks. Errors: those of `INFO`, and a timeout.
    pub(super) async fn read_server(&self, active: &ActiveConnection) -> Result<ServerInfo, RedisError> {
        within(self.limits.connect, read_server(active, self.allow_replicas)).await
    }

    /// A connection for subscriptions: `on_push` is called with each message that the server pushes.
    ///
    /// Errors: those of the driver, including one for a server without RESP3 (before Redis 6).
    pub(super) async fn subscriber(&self, on_push: impl AsyncPushSender) -> Result<OpenConnection, RedisError> {
        let options = AsyncConnectionConfig::new().set_push_sender(on_push);
        let options = options.set_response_timeout(Some(ANSWER_BACKSTOP));
        let settings = self.settings.clone().set_skip_set_lib_name().set_protocol(ProtocolVersion::RESP3);
        if self.is_closed() {
            return Err(errors::closed());
        }
        let target = self.location.target.read().clone();
        let socket = Metered::new(target.connect().await?);
        let (connection, driver) = MultiplexedConnection::new_with_config(&settings, socket, options).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        Ok(OpenConnection { connection, driver: Arc::new(tasks) })
    }
}

/// Errors: [`ErrorKind::AuthenticationFailed`] for a refused password.
async fn authenticate(wire: &mut Wire, user: Option<&str>, password: &str) -> Result<(), RedisError> {
    let refused = |error: RedisError| match error.is_io_error() {
        true => error,
        false => (ErrorKind::AuthenticationFailed, "Password authentication failed").into(),
    };
    let mut command = cmd("AUTH");
    if let Some(user) = user {
        command.arg(user);
    }
    match wire.ask(command.arg(password)).await {
        // Redis before version 6 has no users.
        Err(error) if user.is_some() && error.to_string().contains("wrong number of arguments") => {
            wire.ask(cmd("AUTH").arg(password)).await.map(drop).map_err(refused)
        }
        answer => answer.map(drop).map_err(refused),
    }
}

/// The hand-shake: reads the server's identity and settings, then loads the scripts. A restart breaks the connection, so this
/// data is correct as long as the connection lasts. Two round trips: a server resets an unauthenticated connection that sends it
/// more than 16 KiB at once, and the missing password would not be reported.
async fn prepare(wire: &mut Wire, allow_replicas: bool) -> Result<ServerInfo, RedisError> {
    let mut replies = wire.ask_all(server_questions()).await?.into_iter();
    let mut next = || replies.next().unwrap_or_else(|| Err(errors::lost()));
    let (info, saves) = (next()?, next());
    let loaded = wire.ask_all(commands::all_scripts().into_iter().map(|script| script.load())).await?;
    loaded.into_iter().collect::<Result<Vec<_>, _>>()?;
    server_info(info, saves, allow_replicas)
}

/// The commands that read a server's version, role and settings.
fn server_questions() -> [Cmd; 2] {
    [cmd("INFO"), cmd("CONFIG").arg("GET").arg("save").to_owned()]
}

/// Builds the server checks from the replies. `CONFIG` may be forbidden: persistence is then not checked.
///
/// Errors: an `INFO` reply that is no text.
fn server_info(info: Value, saves: Result<Value, RedisError>, allow_replicas: bool) -> Result<ServerInfo, RedisError> {
    let (info, saves) = (parsed::<String>(info)?, saves.and_then(parsed::<Vec<String>>));
    let saves = saves.ok().and_then(|pair| pair.into_iter().nth(1));
    Ok(server_checks::read(&info, saves.as_deref(), allow_replicas))
}

/// Reads the server's version, role and settings on an open connection.
///
/// Errors: those of `INFO`.
async fn read_server(active: &ActiveConnection, allow_replicas: bool) -> Result<ServerInfo, RedisError> {
    let [info, saves] = server_questions();
    let (info, saves) = futures_util::future::join(active.ask(&info), active.ask(&saves)).await;
    server_info(info?, saves, allow_replicas)
}

fn parsed<T: FromRedisValue>(value: Value) -> Result<T, RedisError> {
    Ok(from_redis_value(value)?)
}

/// The result of the work, or a timeout.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(errors::timed_out()))
}
