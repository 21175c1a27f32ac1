//! Requests to the lock manager.

use std::sync::Arc;
use std::time::Duration;

use crate::auth::principal::Principal;
use crate::auth::quota::QuotaPermit;
use crate::types::{Fence, Labels, ResourceName, Token, TokenId, Ttl, WaitId, WantedMode};

/// Asks for a lease.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// What is to be protected.
    pub resource: ResourceName,
    /// How the lease shares it.
    pub mode: WantedMode,
    /// The lifetime of the lease, unless it is extended.
    pub ttl: Ttl,
    /// For how long to wait at most; zero asks once.
    pub wait: Duration,
    /// For how long after the grant the service renews the lease; `None`: it does not.
    pub kept_for: Option<Duration>,
    /// Shown to people. The manager sets `acquired_at_ms`.
    pub labels: Labels,
    /// The client's own token: a repeated request joins its lease. `None`: the service draws one.
    pub token: Option<Token>,
    /// Refuse it if it is the newest request in a deadlock; otherwise the deadlock is reported, and it waits on.
    pub refuses_deadlock: bool,
    /// Who asks; `None` without authentication. It is not refused for a deadlock of which it may not read each lock.
    pub principal: Option<Arc<Principal>>,
    /// Keeps the place of a request that waits, when it is dropped.
    pub keep: Option<KeepPlace>,
}

/// A place in the queue that the next request with the same `wait_id` may take, by the same principal and for the same
/// resource. It has to ask for the same, but for `wait`.
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
    /// For how long from now on the service renews it; `None`: as before.
    pub kept_for: Option<Duration>,
    /// Make an exclusive lease a shared one. It counts as shared from the request on, whatever its answer is.
    pub downgrade: bool,
    /// Only if the lease has this fence (`If-Match`).
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

/// Ends somebody else's lease.
#[derive(Debug, Clone)]
pub struct ForceRequest {
    /// The leased resource.
    pub resource: ResourceName,
    /// At once or by its end.
    pub mode: ForceMode,
    /// Why, for the log.
    pub reason: String,
    /// The authenticated principal of the operator.
    pub principal: Option<String>,
    /// Which of several holders; `None`: the only one.
    pub holder: Option<TokenId>,
    /// Only with this ETag, or if that holder has this fence: what the operator saw.
    pub if_match: Option<String>,
}

/// Which leases to list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// Names that begin with this.
    pub prefix: String,
    /// Exactly this owner.
    pub owner: Option<String>,
    /// Only resources in this state.
    pub state: Option<ListState>,
    /// Names after this one.
    pub after: Option<String>,
    /// At most so many, [`LIST_LIMIT_MAX`] at most.
    pub limit: usize,
}

/// States to filter a list by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListState {
    /// A lease is running.
    Held,
    /// Requests wait for it.
    Waited,
    /// The last lease ran out; its lock delay is passing.
    LockDelay,
    /// Fewer than a quorum of nodes confirm its lease.
    Unknown,
}

/// Default page size.
pub const LIST_LIMIT_DEFAULT: usize = 100;
/// The largest page.
pub const LIST_LIMIT_MAX: usize = 1_000;
