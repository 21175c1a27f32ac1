//! A node that is a Redis master: connections to it, and the commands sent on them.
//!
//! Each connection is multiplexed: all commands are sent on it at the same time. `supervisor` builds, checks
//! (`PING`) and replaces it; `reply_limit` bounds what the node sends on it.
//!
//! A caller's request is queued until the runtime's turn ends; then `pipeline` sends all queued requests. Nothing is repeated,
//! except a script that the server did not know and therefore did not run.

mod batcher;
mod config;
mod connect;
mod connections;
mod disk_policy;
mod ended_calls;
mod errors;
mod node;
mod pipeline;
pub mod reply_limit;
mod request_queue;
mod resp_connection;
mod retry;
mod server_checks;
mod socket;
mod subscriber;
mod supervisor;
mod url;

pub use config::{CONNECTIONS_MAX, Identity, RedisNodeConfig};
pub use disk_policy::{not_durable, settings_question};
pub use node::{RedisNode, RedisNodeReport};
pub use server_checks::{ServerFinding, ServerInfo, read as read_server_info};
pub use url::{NodeTls, NodeUrl};
