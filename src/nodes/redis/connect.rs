//! How connections to a Redis node are built: TLS, options, the pool that makes and checks them, and
//! the hand-shake that each must pass before a lane may use it. Knows no request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::{AsyncPushSender, MultiplexedConnection};
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ProtocolVersion, RedisError, TlsCertificates, cmd,
};
use deadpool_redis::{Hook, HookError, Manager, Pool, Runtime, Timeouts};
use tokio::time::timeout;

use super::connection::{Bound, Lanes};
use super::errors;
use super::server_checks::{self, ServerInfo};
use super::url::NodeUrl;
use crate::protocol::ClusterParams;
use crate::protocol::commands;
use crate::types::Invalid;

/// The driver's own limit for an answer: a net below the caller's deadline, for a caller that has none.
/// Far above it, so that a slow release is still heard.
pub const ANSWER_BACKSTOP: Duration = Duration::from_secs(5);
/// Requests handed to a connection and not yet written: enough that a burst never waits here, little
/// enough that a frozen node does not collect what nobody waits for any more.
const PIPELINE_BUFFER: usize = 1_024;

/// Certificates for `rediss://`, each in PEM. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NodeTls {
    /// Trusted in the place of the machine's own authorities.
    pub ca: Option<Vec<u8>>,
    /// Certificate chain and key to show to the server.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeTls(ca: {}, client: {})", self.ca.is_some(), self.client.is_some())
    }
}

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For TCP, TLS and authentication together, and again for the hand-shake.
    pub connect: Duration,
    /// For the `PING` of a health check.
    pub check: Duration,
}

/// Makes the pools of a node's lanes.
#[derive(Clone)]
pub struct Connector {
    client: Client,
    limits: Limits,
    params: Arc<ClusterParams>,
    bind_run: bool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector({:?}, bind_run: {})", self.limits, self.bind_run)
    }
}

impl Connector {
    /// `bind_run`: whether requests carry the `run_id` that the hand-shake read.
    ///
    /// Errors: [`Invalid`] where certificates cannot be read, or are given for an address without TLS.
    pub fn new(
        url: &NodeUrl,
        tls: Option<&NodeTls>,
        limits: Limits,
        params: Arc<ClusterParams>,
        bind_run: bool,
    ) -> Result<Self, Invalid> {
        let info = url.info();
        let client = if url.is_tls() {
            // Whoever was first has chosen the provider; all of them serve.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let tls = tls.cloned().unwrap_or_default();
            let client_tls = tls.client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
            Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: tls.ca })
        } else if tls.is_some() {
            return Err(Invalid(format!("certificates are given, but {url} is not a rediss:// address")));
        } else {
            Client::open(info)
        };
        // The driver's own text is not shown: it may quote what it could not read.
        let client =
            client.map_err(|_| Invalid(format!("the certificates for {url} are not PEM of the right kind")))?;
        Ok(Self { client, limits, params, bind_run })
    }

    /// The pool of one lane: at most one connection, which has passed its hand-shake when it is handed
    /// out. What passed is left with the lane, see [`super::connection::Lane::prepare`].
    ///
    /// Errors: [`Invalid`], were the driver to refuse its own options.
    pub fn pool(&self, lanes: &Arc<Lanes>, lane: usize) -> Result<Pool, Invalid> {
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
            .post_create(self.hand_shake(Arc::clone(lanes), lane))
            .build()
            .map_err(|e| refused(e.to_string()))
    }

    /// A connection that listens: `hear` gets what the server sends unasked.
    ///
    /// Errors: those of the driver, also for a server that does not know RESP3 (before Redis 6).
    pub async fn listening(&self, hear: impl AsyncPushSender) -> Result<MultiplexedConnection, RedisError> {
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_skip_set_lib_name().set_protocol(ProtocolVersion::RESP3);
        let info = info.clone().set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limits.connect))
            .set_response_timeout(Some(ANSWER_BACKSTOP))
            .set_push_sender(hear);
        Client::open(info)?.get_multiplexed_async_connection_with_config(&options).await
    }

    fn hand_shake(&self, lanes: Arc<Lanes>, lane: usize) -> Hook {
        let (limit, params, bind_run) = (self.limits.connect, Arc::clone(&self.params), self.bind_run);
        Hook::async_fn(move |connection, _| {
            let (lanes, params) = (Arc::clone(&lanes), Arc::clone(&params));
            Box::pin(async move {
                let met = timeout(limit, meet(connection)).await.unwrap_or_else(|_| Err(errors::timed_out()));
                let server = met.map_err(HookError::Backend)?;
                if bind_run && server.run_id.is_empty() {
                    return Err(HookError::message("INFO does not say the run_id; identity = \"script\" may do"));
                }
                let marker_fingerprint =
                    commands::marker_fingerprint(&params, if bind_run { &server.run_id } else { "" }).into();
                lanes.learn(server);
                let bound =
                    Bound { connection: connection.clone(), marker_fingerprint, generation: lanes.next_generation() };
                lanes.all()[lane].prepare(bound);
                Ok(())
            })
        })
    }
}

/// The hand-shake: who is there, and the scripts. A restart breaks the connection, so what is read
/// here holds for as long as it lives.
async fn meet(connection: &mut MultiplexedConnection) -> Result<ServerInfo, RedisError> {
    let server = ask_server(connection).await?;
    for script in commands::all() {
        let _: String = script.load().query_async(connection).await?;
    }
    Ok(server)
}

/// Reads what the server says of itself. `CONFIG` may be forbidden: then persistence is not judged.
///
/// Errors: those of `INFO`.
pub async fn ask_server(connection: &mut MultiplexedConnection) -> Result<ServerInfo, RedisError> {
    let info: String = cmd("INFO").query_async(connection).await?;
    let saves: Result<Vec<String>, RedisError> = cmd("CONFIG").arg("GET").arg("save").query_async(connection).await;
    let saves = saves.ok().and_then(|pair| pair.into_iter().nth(1));
    Ok(server_checks::read(&info, saves.as_deref()))
}
