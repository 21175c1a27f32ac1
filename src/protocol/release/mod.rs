//! Release and cancel: end a lease for good, or withdraw one attempt's claim to it.

use super::request::EndReason;
use crate::types::{AttemptId, ResourceName, TokenHash};

/// Arguments of [`Request::Release`](super::request::Request::Release).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseArgs {
    /// The leased resource.
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
    /// Why the lease ends; stored in the tombstone.
    pub reason: EndReason,
}

/// Arguments of [`Request::Cancel`](super::request::Request::Cancel).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelArgs {
    /// The resource that the attempt asked for.
    pub resource: ResourceName,
    /// Hash of the attempt's token.
    pub token: TokenHash,
    /// The attempt to withdraw.
    pub attempt: AttemptId,
}
