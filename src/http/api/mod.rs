//! The API's handlers: parse the request, call the manager, write the answer.

pub(crate) mod async_acquire;
pub(crate) mod documents;
pub mod event_filter;
pub(crate) mod events;
pub mod fences;
pub(crate) mod force;
pub(crate) mod health;
pub(crate) mod hold;
pub(crate) mod hooks;
mod lease_body;
mod lease_fields;
pub(crate) mod list;
pub mod lock_requests;
pub(crate) mod lock_responses;
pub(crate) mod locks;
pub(crate) mod metrics;
pub(crate) mod nodes;
mod received_value;
pub(crate) mod refusals;
pub mod request_body;
pub mod request_fields;
pub mod request_headers;
pub mod set_requests;
mod set_responses;
pub(crate) mod sets;
pub(crate) mod terraform;
pub mod terraform_info;
pub(crate) mod tickets;
pub(crate) mod to_wire;

#[cfg(test)]
mod openapi_tests;
