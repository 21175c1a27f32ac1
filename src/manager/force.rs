//! An operator ends somebody else's lease: what is asked, and what came of it. Domain words beside those
//! of [`super::types`], which passes them on. No HTTP.

use std::time::Duration;

use super::types::NoQuorum;
use crate::types::{Fence, ResourceName, TokenId};

/// How an operator ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForceMode {
    /// No further renewals; free when the current lease ends. Safe.
    Revoke,
    /// At once. Unsafe: the holder may still be working.
    Now,
}

/// End somebody else's lease.
#[derive(Debug, Clone)]
pub struct ForceRequest {
    /// Which.
    pub resource: ResourceName,
    /// How.
    pub mode: ForceMode,
    /// Why, for the log.
    pub reason: String,
    /// Only the lease that the operator saw.
    pub if_match: Option<String>,
}

/// Forced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forced {
    /// It is free.
    Freed,
    /// It will be free after this time.
    FreesIn(Duration),
}

/// The lease that an operator ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedLease {
    /// Names it.
    pub token_id: TokenId,
    /// Its fencing token.
    pub fence: Fence,
}

/// Why nothing was forced.
#[derive(Debug, Clone)]
pub enum ForceError {
    /// Nobody has it.
    NotHeld,
    /// Somebody else has it now; the current ETag.
    Changed {
        /// See [`super::types::Inspection::etag`].
        current: String,
    },
    /// A foreigner's lock cannot be revoked: only released now.
    ForeignRevoke,
    /// See [`NoQuorum`].
    NoQuorum(NoQuorum),
}
