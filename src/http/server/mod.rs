//! The connection server: accepting, TLS, timeouts, reloading of certificates, and draining.

mod answer_body;
mod early_bytes;
pub(crate) mod fd_limit;
pub(crate) mod idle_timeout;
pub(crate) mod issuer_keys;
mod malformed_request;
pub(crate) mod reload;
pub(crate) mod serve;
pub(crate) mod socket;
pub(crate) mod tls;
mod woken_future;
