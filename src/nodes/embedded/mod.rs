//! Nodes without Redis, for one machine: the machine of `nodes/machine/` behind a lock, on the boot
//! clock, with a state file that makes a restart as safe as that of a Redis node. Knows no Redis.

mod node;
mod state;
mod write_bound;

pub use node::{EmbeddedConfig, EmbeddedNode, EmbeddedReport};
pub use state::{BootId, OpenError};

#[cfg(test)]
mod tests;
