//! The protocol between an instance and a node: requests, replies, the scripts that carry them out on
//! Redis, and a reference implementation of the same scripts in Rust.

pub mod commands;
pub mod keys;
pub mod reference;
pub mod replies;

mod params;
mod record;
mod reply;
mod request;

pub use params::{ClusterParams, quarantine_for};
pub use record::{LeaseRecord, MAX_RENEWALS};
pub use reply::*;
pub use request::{EndReason, MAX_CLAIMS, OPERATIONS, Request, RequestTime, TOKEN_TOMBSTONE};
