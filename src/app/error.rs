//! The errors with which the service cannot start, or ends.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::auth::access_file::AccessFileError;
use crate::config::PasswordFileError;
use crate::http::server::tls::TlsError;
use crate::nodes::embedded::OpenError;
use crate::redlock::monitor::InitError;
use crate::types::NodeId;
use crate::webhooks::file::WebhooksFileError;

/// Why the service could not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The listen address is in use, or not an address of this machine.
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The operating system provides no threads, timers or signals.
    #[error("cannot start the runtime: {0}")]
    Runtime(std::io::Error),
    /// A setting that could not be checked earlier is invalid.
    #[error("`{key}`: {why}")]
    Setting {
        key: &'static str,
        /// One sentence for the operator.
        why: String,
    },
    /// A file named in the configuration cannot be read.
    #[error("`{key}`: {path} cannot be read")]
    File {
        /// The setting that names it.
        key: &'static str,
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A node's password, or the secret of the sessions, cannot be read.
    #[error(transparent)]
    SecretFile(#[from] PasswordFileError),
    /// The access file cannot be read.
    #[error(transparent)]
    Access(#[from] AccessFileError),
    /// The file of targets and hooks cannot be used.
    #[error("`webhooks_file`: {0}")]
    Webhooks(#[source] WebhooksFileError),
    /// The server's certificate or key cannot be used.
    #[error("`listen_tls_cert`: {0}")]
    Tls(#[from] TlsError),
    /// The audit log cannot be opened. Starting without it would silently lose its records.
    #[error("`audit_log`: {path} cannot be opened for appending")]
    AuditLog {
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The state of an embedded node cannot be used.
    #[error("embedded nodes: {0}")]
    Embedded(#[from] OpenError),
    /// Two node names resolve to one server.
    #[error("`nodes`: {0} and {1} are one and the same server: its one vote would count twice")]
    SameServer(NodeId, NodeId),
    /// All nodes are already part of this cluster.
    #[error("nothing was initialised: all {0} nodes are part of this cluster already")]
    AlreadyInitialised(usize),
    /// A new cluster could not be initialised.
    #[error("nothing was initialised: {0}")]
    Init(#[from] InitError),
    /// A node refuses the service's user.
    #[error(
        "nothing was initialised: node {node} refuses this user ({why}): compare its rights with docs/redis-acl.md; `redlockd doctor` names the command"
    )]
    Refused {
        node: NodeId,
        /// The node's message.
        why: String,
    },
}
