//! The API: what each endpoint reads, asks the manager, and answers.

pub mod convert;
pub mod events;
pub mod extract;
pub mod fields;
pub mod health;
pub mod hold;
pub mod list;
pub mod locks;
pub mod negotiation;
pub mod nodes;
pub mod problem;
pub mod problem_kind;
pub mod requests;
pub mod responses;

#[cfg(test)]
mod openapi_tests;
