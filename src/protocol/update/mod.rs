//! Update: extends a lease, edits its labels, or writes its fence back.

use std::sync::Arc;

use crate::types::{Fence, ResourceName, TokenHash, Ttl};

/// Arguments of [`Request::Update`](super::request::Request::Update).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateArgs {
    /// The leased resource.
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
    /// The new lifetime; `None`: the TTL that the lease was acquired with.
    pub ttl: Option<Ttl>,
    /// The fence that the lease must have, and to which a node with a lower one is raised; `None`: any.
    pub fence: Option<Fence>,
    /// Counts as a renewal, for display.
    pub renewal: bool,
    /// New labels, encoded; `None`: unchanged.
    pub labels: Option<Arc<str>>,
}
