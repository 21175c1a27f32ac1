//! The API's handlers: parse the request, call the manager, write the answer.

pub mod convert;
pub mod documents;
pub mod events;
pub mod extract;
pub mod fields;
pub mod force;
pub mod health;
pub mod hold;
pub mod list;
pub mod locks;
pub mod metrics;
pub mod nodes;
pub mod refusals;
pub mod requests;
pub mod responses;

#[cfg(test)]
mod openapi_tests;
