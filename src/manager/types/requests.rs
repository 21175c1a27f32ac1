//! Requests to the lock manager.

use std::sync::Arc;
use std::time::Duration;

use crate::auth::principal::Principal;
use crate::auth::quota::QuotaPermit;
use crate::types::{Fence, Labels, ResourceName, Token, TokenId, Ttl, WaitId, WantedMode};

/// Asks for a lease.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// The resource to protect.
    pub resource: ResourceName,
    /// How the lease may share the resource.
    pub mode: WantedMode,
    /// The lifetime of the lease, unless it is extended.
    pub ttl: Ttl,
    /// Maximum time to wait; zero asks once.
    pub wait: Duration,
    /// For how long after the grant the service renews the lease; `None`: it does not.
    pub kept_for: Option<Duration>,
    /// Labels that are shown to people. The manager sets `acquired_at_ms`.
    pub labels: Labels,
    /// The client's own token: a repeated request joins its lease. `None`: the service draws one.
    pub token: Option<Token>,
    /// Whether to refuse the request if it is the newest in a deadlock; otherwise the deadlock is reported, and it waits on.
    pub refuses_deadlock: bool,
    /// The principal that asks; `None` without authentication. It is not refused for a deadlock with a lock that it may not read.
    pub principal: Option<Arc<Principal>>,
    /// Keeps the place of a waiting request that is dropped.
    pub keep: Option<KeepPlace>,
}

/// A place in the queue that the next request with the same `wait_id` may take, by the same principal and for the
/// same resource. That request must ask for the same, except for `wait`.
#[derive(Debug, Clone)]
pub struct KeepPlace {
    /// The client's name for the place.
    pub wait_id: WaitId,
    /// Counts the waiter as long as the place is kept; `None` without authentication.
    pub permit: Option<Arc<QuotaPermit>>,
}

/// Asks for more time, or for other labels.
#[derive(Debug, Clone)]
pub struct ExtendRequest {
    /// The leased resource.
    pub resource: ResourceName,
    /// The proof of the lease.
    pub token: Token,
    /// Time left from now; `None`: the lease's own TTL.
    pub ttl: Option<Ttl>,
    /// For how long from now on the service renews the lease; `None`: as before.
    pub kept_for: Option<Duration>,
    /// Whether to make an exclusive lease a shared one. It counts as shared from the request on, whatever the answer.
    pub downgrade: bool,
    /// Extends only if the lease has this fence (`If-Match`).
    pub fence: Option<Fence>,
    /// `Some` replaces the note.
    pub note: Option<String>,
    /// Merge-patch of the metadata: `None` values remove keys.
    pub metadata: Vec<(String, Option<String>)>,
}

/// How an operator ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForceMode {
    /// No further renewals; the resource is free when the current lease ends. Safe.
    Revoke,
    /// At once. Unsafe: the holder may still be working.
    Now,
}

/// Ends another caller's lease.
#[derive(Debug, Clone)]
pub struct ForceRequest {
    /// The leased resource.
    pub resource: ResourceName,
    /// Whether the lease ends at once or by its end.
    pub mode: ForceMode,
    /// The reason, for the log.
    pub reason: String,
    /// The authenticated principal of the operator.
    pub principal: Option<String>,
    /// The lease, of several holders; `None`: the only one.
    pub holder: Option<TokenId>,
    /// Ends only a lease with this ETag, or only if that holder has this fence: what the operator saw.
    pub if_match: Option<String>,
}

/// Which leases to list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// Lists names that begin with this prefix.
    pub prefix: String,
    /// Lists leases of exactly this owner.
    pub owner: Option<String>,
    /// Only resources in this state.
    pub state: Option<ListState>,
    /// Lists names after this one.
    pub after: Option<String>,
    /// Maximum number of items, at most [`LIST_LIMIT_MAX`].
    pub limit: usize,
}

/// States to filter a list by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListState {
    /// A lease is running.
    Held,
    /// Requests wait for the resource.
    Waited,
    /// The last lease expired; its lock delay is passing.
    LockDelay,
    /// Fewer than a quorum of nodes confirm the resource's lease.
    Unknown,
}

/// Default page size.
pub const LIST_LIMIT_DEFAULT: usize = 100;
/// The largest page.
pub const LIST_LIMIT_MAX: usize = 1_000;
