//! The protocol between an instance and a node: requests, replies, the scripts that carry them out on
//! Redis, and a reference implementation of the same scripts in Rust.

pub mod commands;
pub mod keys;
pub mod reference;
pub mod replies;

mod acquire;
mod delete_foreign;
mod list;
mod params;
mod record;
mod release;
mod reply;
mod request;
mod restore;
mod revoke;
mod update;

pub use acquire::AcquireArgs;
pub use delete_foreign::DeleteForeignArgs;
pub use list::ListArgs;
pub use params::{ClusterParams, quarantine_for};
pub use record::{LeaseRecord, MAX_RENEWALS};
pub use release::{CancelArgs, ReleaseArgs};
pub use reply::*;
pub use request::{EndReason, MAX_CLAIMS, OPERATIONS, Request, RequestTime, TOKEN_TOMBSTONE};
pub use restore::RestoreArgs;
pub use revoke::RevokeArgs;
pub use update::UpdateArgs;
