//! The connection server: accepting, TLS, timeouts, reloading of certificates, and draining.

pub(crate) mod fd_limit;
pub(crate) mod idle_timeout;
pub(crate) mod issuer_keys;
mod refused_head;
pub(crate) mod reload;
pub(crate) mod serve;
pub(crate) mod socket;
pub(crate) mod tls;
