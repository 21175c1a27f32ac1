//! A node that is a Redis master: connections to it, and the commands sent on them.
//!
//! deadpool-redis builds, checks (`PING`) and replaces each connection: one pool of size 1 per
//! connection. Commands do not take turns on the pooled object: its hand-shake hook stages a clone of
//! the multiplexed connection, and all commands are sent on that clone at the same time.
//!
//! A caller's request is queued until the runtime's turn ends, then `batcher` sends all that are
//! queued. Nothing is repeated, except a script that the server did not know and therefore did not run.

mod batcher;
mod config;
mod connect;
mod connection;
mod errors;
mod node;
mod retry;
mod server_checks;
mod subscriber;
mod supervisor;
mod url;

pub use config::{CONNECTIONS_MAX, Identity, RedisNodeConfig};
pub use node::{RedisNode, RedisNodeReport};
pub use server_checks::{ServerFinding, ServerInfo, read as read_server_info};
pub use url::{NodeTls, NodeUrl};
