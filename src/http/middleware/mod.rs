//! What every request passes before and after its handler.

pub mod audit;
pub mod auth;
pub mod client_address;
pub mod host;
pub mod metrics;
pub mod request_id;
pub mod request_layer;
