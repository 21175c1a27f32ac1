//! The connection server: accepting, TLS, timeouts, reloading of certificates, and draining.

pub(crate) mod fd_limit;
pub(crate) mod idle_timeout;
pub(crate) mod issuer_keys;
mod malformed_request;
pub(crate) mod reload;
pub(crate) mod serve;
pub(crate) mod socket;
pub(crate) mod tls;
