//! Delete a foreign client's lock, if its value is still the one that the operator saw.

use std::sync::Arc;

use crate::types::ResourceName;

/// Arguments of [`Request::DeleteForeign`](super::request::Request::DeleteForeign).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteForeignArgs {
    /// The resource whose lock key is deleted.
    pub resource: ResourceName,
    /// As in [`StoredLock::Foreign`](super::reply::StoredLock::Foreign).
    pub fingerprint: Arc<str>,
}
