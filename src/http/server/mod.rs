//! Connections: accepting them, TLS, time limits, and draining at the end.

pub mod fd_limit;
pub mod idle_timeout;
pub mod reload;
pub mod serve;
pub mod socket;
pub mod tls;

pub use serve::*;
