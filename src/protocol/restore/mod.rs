//! Restore: the repair that puts a lease back on a node where it is missing.

use super::record::LeaseRecord;
use crate::types::ResourceName;

/// Arguments of [`Request::Restore`](super::request::Request::Restore).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreArgs {
    /// The leased resource.
    pub resource: ResourceName,
    /// The lease as the other nodes hold it.
    pub record: LeaseRecord,
    /// Remaining lifetime of the lock's key, in milliseconds.
    pub left_ms: u64,
}
