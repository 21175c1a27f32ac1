//! Nodes without Redis, for one machine: the machine of `nodes/machine/` behind a lock, on the boot
//! clock, with a state file that makes a restart as safe as that of a Redis node. Knows no Redis.

mod ledger;
mod node;
mod state;

pub use node::{EmbeddedConfig, EmbeddedNode, EmbeddedReport};
pub use state::{BootId, OpenError};

#[cfg(test)]
mod tests;
