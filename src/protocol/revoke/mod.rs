//! Revoke: the lease keeps its present end and can no longer be renewed.

use crate::types::{ResourceName, TokenHash};

/// Arguments of [`Request::Revoke`](super::request::Request::Revoke).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevokeArgs {
    /// The leased resource.
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
}
