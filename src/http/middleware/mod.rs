//! The layers around every handler: `stack` outside, `auth` inside it.

pub(crate) mod audit;
pub(crate) mod auth;
pub mod client_address;
pub mod credentials;
mod host_and_origin;
pub(crate) mod html_response;
pub(crate) mod metrics;
pub mod request_id;
pub(crate) mod stack;
