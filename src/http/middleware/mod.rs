//! What every request passes before and after its handler: `request_layer` outside, `auth` inside it.

pub mod access;
pub mod audit;
pub mod auth;
mod client_address;
pub mod credentials;
mod html_response;
pub mod metrics;
pub mod request_id;
pub mod request_layer;
mod site_checks;
