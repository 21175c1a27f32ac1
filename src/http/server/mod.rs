//! The connection server: accepting, TLS, timeouts, reloading of certificates, and draining.

pub mod fd_limit;
pub mod idle_timeout;
pub mod reload;
pub mod serve;
pub mod socket;
pub mod tls;
