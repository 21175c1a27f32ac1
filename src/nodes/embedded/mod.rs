//! Nodes in this process, for one instance without Redis: the reference implementation of the protocol
//! ([`crate::protocol::reference`]), with a state file that makes restarts as safe as those of Redis.

mod node;
mod state;
mod write_ahead;

pub use node::{EmbeddedConfig, EmbeddedNode, EmbeddedReport};
pub use state::{BootId, OpenError};

#[cfg(test)]
mod tests;
