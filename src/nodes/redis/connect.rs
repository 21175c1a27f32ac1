//! Builds connections to a Redis node: driver options, the pools, and the hand-shake that each connection must pass before
//! requests are sent on it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool::managed;
use deadpool_redis::redis::aio::{AsyncPushSender, MultiplexedConnection};
use deadpool_redis::redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError, cmd};
use parking_lot::RwLock;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{ActiveConnection, DriverTask, NodeConnections};
use super::errors;
use super::server_checks::{self, ServerInfo};
use super::stream::Target;
use super::url::{NodeTls, NodeUrl};
use crate::protocol::{Unreachable, UnreachableKind, commands};
use crate::redlock::clock::{Clock, SystemClock};
use crate::types::Invalid;

/// The driver's own limit for an answer, for callers without a deadline. Far above the node timeout, so
/// that the answer to a slow release is still received.
const ANSWER_BACKSTOP: Duration = Duration::from_secs(5);
/// Requests handed to a connection and not yet written: enough that a burst never waits here, few enough
/// that a frozen node does not collect requests whose callers are gone.
const PIPELINE_BUFFER: usize = 1_024;

/// Timeouts of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// For TCP, TLS and authentication together, and again for the hand-shake.
    pub connect: Duration,
    /// For the `PING` of a health check.
    pub check: Duration,
}

/// A connection whose hand-shake is to come.
pub(super) struct OpenConnection {
    /// The connection.
    pub connection: MultiplexedConnection,
    /// Reads and writes for it until dropped.
    pub driver: DriverTask,
}

/// The pool of one connection: builds it, checks it whenever it is asked for, and replaces it where the check fails.
pub(super) type Pool = managed::Pool<ConnectionManager>;

/// What a pool builds and checks its connection with. Not the driver's own manager, whose sockets cannot be metered.
#[derive(Debug)]
pub(super) struct ConnectionManager {
    connector: Connector,
    connections: Arc<NodeConnections>,
    slot: usize,
    clock: SystemClock,
}

impl managed::Manager for ConnectionManager {
    type Type = ActiveConnection;
    type Error = Unreachable;

    async fn create(&self) -> Result<ActiveConnection, Unreachable> {
        self.connector.connect(&self.connections).await
    }

    async fn recycle(
        &self,
        active: &mut ActiveConnection,
        _: &managed::Metrics,
    ) -> managed::RecycleResult<Unreachable> {
        let checked = self.connector.check(active).await;
        if let (Err(error), Some(slot)) = (&checked, self.connections.slots().get(self.slot)) {
            // Before a new one is built: until then, calls learn at once that there is none.
            self.connections.record_connect_error(error.clone());
            self.connections.close(slot, Some(active.generation), self.clock.now());
        }
        Ok(checked?)
    }
}

/// Where a node is now.
struct Place {
    target: RwLock<Target>,
    /// How often that changed.
    moves: AtomicU64,
}

/// Builds a node's connections, and its subscriber connection.
#[derive(Clone)]
pub(super) struct Connector {
    /// Shared by all clones.
    place: Arc<Place>,
    /// User, password, database.
    settings: RedisConnectionInfo,
    limits: Limits,
    bind_run: bool,
    allow_replicas: bool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector({:?}, bind_run: {})", self.limits, self.bind_run)
    }
}

impl Connector {
    /// `bind_run`: whether requests carry the `run_id` that the hand-shake read. `allow_replicas`: whether the
    /// node votes while replicas follow it.
    ///
    /// Errors: [`Invalid`] where certificates cannot be read, or are given for an address without TLS.
    pub(super) fn new(
        url: &NodeUrl,
        tls: Option<&NodeTls>,
        limits: Limits,
        bind_run: bool,
        allow_replicas: bool,
    ) -> Result<Self, Invalid> {
        let client = url.client(tls)?;
        let info = client.get_connection_info();
        let (target, settings) = (Target::new(info, tls)?, info.redis_settings().clone());
        let place = Arc::new(Place { target: RwLock::new(target), moves: AtomicU64::new(0) });
        Ok(Self { place, settings, limits, bind_run, allow_replicas })
    }

    /// Builds connections to this address from now on. `false`: it is none.
    pub(super) fn move_to(&self, address: &str) -> bool {
        let mut target = self.place.target.write();
        let Some(moved) = target.at(address) else { return false };
        *target = moved;
        self.place.moves.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// How often the address changed: a connection that is older leads elsewhere.
    pub(super) fn moves(&self) -> u64 {
        self.place.moves.load(Ordering::SeqCst)
    }

    /// The pool of a slot's connection, still empty.
    ///
    /// Errors: [`Invalid`] where the pool's options are refused.
    pub(super) fn pool(
        &self,
        connections: &Arc<NodeConnections>,
        slot: usize,
        clock: SystemClock,
    ) -> Result<Pool, Invalid> {
        let (connector, connections) = (self.clone(), Arc::clone(connections));
        let manager = ConnectionManager { connector, connections, slot, clock };
        let pool = Pool::builder(manager).max_size(1).build();
        pool.map_err(|e| Invalid(format!("the connections cannot be pooled: {e}")))
    }

    /// A connection that has passed its hand-shake.
    ///
    /// Errors: why there is none. Cancel: it is closed.
    async fn connect(&self, connections: &NodeConnections) -> Result<ActiveConnection, Unreachable> {
        let (options, moves) = (AsyncConnectionConfig::new().set_pipeline_buffer_size(PIPELINE_BUFFER), self.moves());
        let opened = within(self.limits.connect, self.open(options, ProtocolVersion::RESP2)).await;
        let OpenConnection { mut connection, driver } = opened.map_err(|e| errors::of_connecting(&e))?;
        let prepared = within(self.limits.connect, prepare(&mut connection, self.allow_replicas)).await;
        let server = prepared.map_err(|e| errors::of_connecting(&e))?;
        if self.bind_run && server.run_id.is_empty() {
            let why = "INFO does not say the run_id; identity = \"script\" may do";
            return Err(Unreachable::new(UnreachableKind::Protocol, why));
        }
        let run_id = if self.bind_run { &server.run_id } else { "" };
        let run = run_id.into();
        let refusal = (!server.is_master()).then(|| errors::of_call(&errors::not_master(&server.role)));
        connections.record_server(server);
        let refusal = refusal.or_else(|| {
            let why = "the node was moved to another address";
            (self.moves() != moves).then(|| Unreachable::new(UnreachableKind::Disconnected, why))
        });
        // A replica may be promoted on this connection, without what it was never sent (F2).
        match refusal {
            Some(refusal) => Err(refusal),
            None => {
                let generation = connections.next_generation();
                Ok(ActiveConnection { connection, run, generation, _driver: driver })
            }
        }
    }

    /// Checks a connection. Errors: it must be replaced.
    async fn check(&self, active: &mut ActiveConnection) -> Result<(), Unreachable> {
        let pong = within(self.limits.check, cmd("PING").query_async::<String>(&mut active.connection)).await;
        match pong {
            Ok(pong) if pong == "PONG" => Ok(()),
            Ok(_) => Err(Unreachable::new(UnreachableKind::Protocol, "the answer to PING is another one")),
            Err(error) => Err(errors::of_connecting(&error)),
        }
    }

    /// Reads the server checks. Errors: those of `INFO`, and a timeout.
    pub(super) async fn read_server(&self, active: &mut ActiveConnection) -> Result<ServerInfo, RedisError> {
        within(self.limits.connect, read_server(&mut active.connection, self.allow_replicas)).await
    }

    /// A connection for subscriptions: `on_push` is called with each message that the server pushes.
    ///
    /// Errors: those of the driver, also for a server without RESP3 (before Redis 6).
    pub(super) async fn subscriber(&self, on_push: impl AsyncPushSender) -> Result<OpenConnection, RedisError> {
        self.open(AsyncConnectionConfig::new().set_push_sender(on_push), ProtocolVersion::RESP3).await
    }

    async fn open(
        &self,
        options: AsyncConnectionConfig,
        protocol: ProtocolVersion,
    ) -> Result<OpenConnection, RedisError> {
        let options = options.set_response_timeout(Some(ANSWER_BACKSTOP));
        let settings = self.settings.clone().set_skip_set_lib_name().set_protocol(protocol);
        let target = self.place.target.read().clone();
        let socket = target.connect().await?;
        let (connection, driver) = MultiplexedConnection::new_with_config(&settings, socket, options).await?;
        // A task of its own, so that it reads and writes while callers wait; it ends with the last clone of the set.
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        Ok(OpenConnection { connection, driver: Arc::new(tasks) })
    }
}

/// The hand-shake: reads what the server is, and loads the scripts. A restart breaks the connection, so
/// what is read here is true for as long as it lasts.
async fn prepare(connection: &mut MultiplexedConnection, allow_replicas: bool) -> Result<ServerInfo, RedisError> {
    let server = read_server(connection, allow_replicas).await?;
    for script in commands::all_scripts() {
        let _: String = script.load().query_async(connection).await?;
    }
    Ok(server)
}

/// Reads the server's version, role and settings. `CONFIG` may be forbidden: then persistence is not checked.
///
/// Errors: those of `INFO`.
async fn read_server(connection: &mut MultiplexedConnection, allow_replicas: bool) -> Result<ServerInfo, RedisError> {
    let info: String = cmd("INFO").query_async(connection).await?;
    let saves: Result<Vec<String>, RedisError> = cmd("CONFIG").arg("GET").arg("save").query_async(connection).await;
    let saves = saves.ok().and_then(|pair| pair.into_iter().nth(1));
    Ok(server_checks::read(&info, saves.as_deref(), allow_replicas))
}

/// The work, or a timeout.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(errors::timed_out()))
}
