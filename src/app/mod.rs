//! The composition root: builds the nodes, the engine, the manager and the HTTP server from a checked
//! configuration, starts them, and stops them in order. Only this module spawns long-lived tasks.

mod background;
mod error;
mod init;
mod lifecycle;
mod nodes;
mod settings;
mod webhooks;

pub use error::AppError;
pub use init::init;
pub use lifecycle::App;
pub use nodes::{cluster_name, node_tls};
