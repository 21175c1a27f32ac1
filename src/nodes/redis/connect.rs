//! Builds connections to a Redis node: TLS, driver options, the pools, and the hand-shake that each
//! connection must pass before requests are sent on it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::{AsyncPushSender, MultiplexedConnection};
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{AsyncConnectionConfig, Client, ProtocolVersion, RedisError, cmd};
use deadpool_redis::{Hook, HookError, Manager, Pool, Runtime, Timeouts};
use tokio::time::timeout;

use super::connection::{ActiveConnection, NodeConnections};
use super::errors;
use super::server_checks::{self, ServerInfo};
use super::url::{NodeTls, NodeUrl};
use crate::protocol::ClusterParams;
use crate::protocol::commands;
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

/// Builds the pools of a node's connections, and its subscriber connection.
#[derive(Clone)]
pub(super) struct Connector {
    client: Client,
    limits: Limits,
    params: Arc<ClusterParams>,
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
        params: Arc<ClusterParams>,
        bind_run: bool,
        allow_replicas: bool,
    ) -> Result<Self, Invalid> {
        let client = url.client(tls)?;
        Ok(Self { client, limits, params, bind_run, allow_replicas })
    }

    /// The pool of one connection. The hand-shake of each new connection stages a clone of it in the
    /// slot, see [`super::connection::ConnectionSlot::stage`].
    ///
    /// Errors: [`Invalid`] where the driver refuses the options.
    pub(super) fn pool(&self, connections: &Arc<NodeConnections>, slot: usize) -> Result<Pool, Invalid> {
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.clone().set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limits.connect))
            .set_response_timeout(Some(ANSWER_BACKSTOP))
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let refused = |e: String| Invalid(format!("the driver refuses its options: {e}"));
        let manager = Manager::new_with_config(info, options).map_err(|e| refused(e.to_string()))?;
        let limits = Timeouts {
            wait: Some(self.limits.check),
            create: Some(self.limits.connect),
            recycle: Some(self.limits.check),
        };
        Pool::builder(manager)
            .max_size(1)
            .timeouts(limits)
            .runtime(Runtime::Tokio1)
            .post_create(self.hand_shake(Arc::clone(connections), slot))
            .build()
            .map_err(|e| refused(e.to_string()))
    }

    /// A connection for subscriptions: `on_push` is called with each message that the server pushes.
    ///
    /// Errors: those of the driver, also for a server without RESP3 (before Redis 6).
    pub(super) async fn subscriber(&self, on_push: impl AsyncPushSender) -> Result<MultiplexedConnection, RedisError> {
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_skip_set_lib_name().set_protocol(ProtocolVersion::RESP3);
        let info = info.clone().set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limits.connect))
            .set_response_timeout(Some(ANSWER_BACKSTOP))
            .set_push_sender(on_push);
        Client::open(info)?.get_multiplexed_async_connection_with_config(&options).await
    }

    fn hand_shake(&self, connections: Arc<NodeConnections>, slot: usize) -> Hook {
        let (limit, params, bind_run) = (self.limits.connect, Arc::clone(&self.params), self.bind_run);
        let allow_replicas = self.allow_replicas;
        Hook::async_fn(move |connection, _| {
            let (connections, params) = (Arc::clone(&connections), Arc::clone(&params));
            Box::pin(async move {
                let prepared = timeout(limit, prepare(connection, allow_replicas))
                    .await
                    .unwrap_or_else(|_| Err(errors::timed_out()));
                let server = prepared.map_err(HookError::Backend)?;
                if bind_run && server.run_id.is_empty() {
                    return Err(HookError::message("INFO does not say the run_id; identity = \"script\" may do"));
                }
                let marker_fingerprint =
                    commands::marker_fingerprint(&params, if bind_run { &server.run_id } else { "" }).into();
                let refusal = (!server.is_master()).then(|| errors::not_master(&server.role));
                connections.record_server(server);
                // A replica may be promoted on this connection, without what it was never sent (F2).
                if let Some(refusal) = refusal {
                    return Err(HookError::Backend(refusal));
                }
                let (connection, generation) = (connection.clone(), connections.next_generation());
                connections.slots()[slot].stage(ActiveConnection { connection, marker_fingerprint, generation });
                Ok(())
            })
        })
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
pub(super) async fn read_server(
    connection: &mut MultiplexedConnection,
    allow_replicas: bool,
) -> Result<ServerInfo, RedisError> {
    let info: String = cmd("INFO").query_async(connection).await?;
    let saves: Result<Vec<String>, RedisError> = cmd("CONFIG").arg("GET").arg("save").query_async(connection).await;
    let saves = saves.ok().and_then(|pair| pair.into_iter().nth(1));
    Ok(server_checks::read(&info, saves.as_deref(), allow_replicas))
}
