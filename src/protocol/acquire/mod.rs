//! Acquire: takes a free resource, or joins the lease that the same token already has.

use std::sync::Arc;

use crate::types::{AttemptId, ResourceName, TokenHash, Ttl};

/// Arguments of [`Request::Acquire`](super::request::Request::Acquire).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireArgs {
    /// The resource to take.
    pub resource: ResourceName,
    /// Hash of the token that will prove the lease.
    pub token: TokenHash,
    /// The attempt that claims the lease.
    pub attempt: AttemptId,
    /// The lease's lifetime, without the lock delay.
    pub ttl: Ttl,
    /// Encoded [`Labels`](crate::types::Labels).
    pub labels: Arc<str>,
}
