//! The parameters of a Redis node, and their defaults.

use std::sync::Arc;
use std::time::Duration;

use super::url::{NodeTls, NodeUrl};
use crate::protocol::ClusterParams;
use crate::types::NodeId;
use crate::worker_threads::WorkerThreads;

/// One connection carries more than 100,000 requests a second; more connections help only if one core of the instance cannot keep
/// up with its socket.
const DEFAULT_CONNECTIONS: usize = 1;
/// Maximum of [`RedisNodeConfig::connections`]: a node serves this many per thread of an instance.
pub const CONNECTIONS_MAX: usize = 16;
/// Requests in flight per node. A node answers some 50,000 a second, so this many take 80 ms: more could not be answered within
/// the node timeout.
const DEFAULT_MAX_IN_FLIGHT: usize = 4_096;
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How requests are bound to one run of the server: see `docs/safety.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Identity {
    /// The hand-shake of each connection reads the `run_id`, and requests carry it. A restart breaks
    /// connections, so a connection never outlives its server process.
    #[default]
    Handshake,
    /// Each script reads the `run_id`, which triples the cost of an acquire: for proxies that hide restarts.
    Script,
}

/// Configuration of a [`super::RedisNode`].
#[derive(Debug, Clone)]
pub struct RedisNodeConfig {
    pub id: NodeId,
    pub url: NodeUrl,
    /// Certificates, for `rediss://` only.
    pub tls: Option<NodeTls>,
    /// The parameters on which all instances agree.
    pub params: Arc<ClusterParams>,
    /// How restarts are detected.
    pub identity: Identity,
    /// The deadline that callers set for a request; health checks wait for a multiple of it.
    pub node_timeout: Duration,
    /// Timeout of TCP, TLS and authentication together, and again of the hand-shake.
    pub connect_timeout: Duration,
    /// Number of connections for commands, for each of the threads; 1 to [`CONNECTIONS_MAX`].
    pub connections: usize,
    /// The threads that use the node.
    pub threads: WorkerThreads,
    /// Maximum number of requests in flight; more are refused.
    pub max_in_flight: usize,
    /// Whether the node votes while replicas follow it.
    pub allow_replicas: bool,
    /// Whether the node may take its own place with its data after a restart.
    pub durable: bool,
}

impl RedisNodeConfig {
    /// A node with the defaults of this file.
    pub fn new(id: NodeId, url: NodeUrl, params: Arc<ClusterParams>, node_timeout: Duration) -> Self {
        Self {
            id,
            url,
            tls: None,
            params,
            identity: Identity::default(),
            node_timeout,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            connections: DEFAULT_CONNECTIONS,
            threads: WorkerThreads::default(),
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            allow_replicas: false,
            durable: false,
        }
    }
}
