//! Errors of the lock manager.

use std::time::Duration;

use super::endings::GoneReason;
use super::results::{HolderInfo, QuorumCount};
use crate::api::DeadlockEdge;
use crate::protocol::EndReason;
use crate::redlock::quorum::NodeOutcome;
use crate::types::{Fence, Mode, PermitLimit, ResourceName, TokenId, WaitId};

/// What holds a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldReason {
    /// A lease of this service.
    Lease,
    /// Another Redlock client.
    Foreign,
    /// The lock delay after a lease that expired.
    LockDelay,
}

/// The resource is held.
#[derive(Debug, Clone)]
pub struct HeldRefusal {
    /// The resources that are held.
    pub about: Box<HeldResources>,
    pub reason: HeldReason,
    /// The holders; empty for another Redlock client.
    pub holders: Vec<HolderInfo>,
    /// How many requests wait for the resource at this instance.
    pub waiting: usize,
    /// How many requests wait for the resource at other instances.
    pub waiting_elsewhere: usize,
    /// Earliest time at which a quorum can be free, where that is known.
    pub free_in: Option<Duration>,
    /// The answer of each node.
    pub nodes: Vec<NodeOutcome>,
}

/// The resources that a [`HeldRefusal`] describes.
#[derive(Debug, Clone)]
pub struct HeldResources {
    /// The resource; of several, the first that is held.
    pub resource: ResourceName,
    /// For a request for several resources, each resource that another holds, in their order; otherwise empty.
    pub blocked_by: Vec<BlockingResource>,
    /// Whether no node can have left out a holder.
    pub all_named: bool,
    /// Whether it is known until when each holder holds; otherwise their `valid_for` means nothing.
    pub ends_known: bool,
    /// Whether a node refused because of another caller that waits.
    pub is_behind: bool,
}

/// A resource that blocks a request for several resources.
#[derive(Debug, Clone)]
pub struct BlockingResource {
    /// The resource that another holds.
    pub resource: ResourceName,
    /// The holder; `None` for another Redlock client.
    pub holder: Option<HolderInfo>,
}

/// Too few nodes may vote, or the votes stayed split.
#[derive(Debug, Clone)]
pub struct NoQuorum {
    pub quorum: QuorumCount,
    /// The answer of each node.
    pub nodes: Vec<NodeOutcome>,
    /// Why nodes did not vote, for people; empty if unknown.
    pub reasons: String,
    /// When to ask again.
    pub retry_after: Duration,
}

/// Why there is no lease.
#[derive(Debug, Clone)]
pub enum AcquireError {
    /// The resource is held, and the request does not wait.
    Held(HeldRefusal),
    /// The resource is held, and the wait is over.
    WaitTimeout {
        /// The refusal of the last attempt.
        held: HeldRefusal,
        /// How long the request waited.
        waited: Duration,
        /// The request's last position in the queue; 1 is the head.
        position: usize,
    },
    /// See [`NoQuorum`].
    NoQuorum(NoQuorum),
    /// This token's lease was ended less than a minute ago.
    Ended(EndReason),
    /// The same token claims its lease too often.
    TooManyReplays,
    /// Permits of another limit, this one, are held.
    LimitDiffers(PermitLimit),
    /// This token holds the resource in this mode, which differs from the requested one.
    ModeDiffers(Mode),
    /// The owners in this cycle wait for each other, and this is the newest request in it.
    Deadlock {
        /// The cycle from this request's owner back to it.
        cycle: Vec<CycleEdge>,
        /// How long the request waited.
        waited: Duration,
    },
    /// The queue is full.
    TooManyWaiters {
        limit: usize,
        /// Whether the limit is for this resource's queue, not for all.
        per_resource: bool,
    },
    /// This instance keeps the maximum number of leases.
    TooManyKept(usize),
    /// The service is shutting down.
    Draining {
        /// The `wait_id` of the request, if it has one.
        wait_id: Option<WaitId>,
    },
    /// A later request with the same `wait_id` has taken the request's place.
    Replaced,
    /// The `wait_id` names the place of a request that differs in this field.
    OtherPlace(&'static str),
}

/// One owner waits for a resource that the next owner in the cycle holds, confirmed by a quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CycleEdge {
    /// The owner that waits.
    pub owner: String,
    /// The resource that the owner waits for.
    pub waits_for: ResourceName,
    /// The owner that holds the resource.
    pub held_by: String,
    /// The lease of the owner that holds it.
    pub token_id: TokenId,
}

impl From<&CycleEdge> for DeadlockEdge {
    fn from(edge: &CycleEdge) -> Self {
        Self {
            owner: edge.owner.clone(),
            waits_for: edge.waits_for.to_string(),
            held_by: edge.held_by.clone(),
            token_id: edge.token_id.to_string(),
        }
    }
}

/// A deadlock that a quorum confirmed, and whose waiters all continue to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// The cycle from the newest request's owner back to it.
    pub cycle: Vec<CycleEdge>,
    /// How long the deadlock has been known.
    pub age: Duration,
}

/// Why a lease was not extended.
#[derive(Debug, Clone)]
pub enum ExtendError {
    /// Another token holds the resource.
    NotHolder,
    /// This token's lease has ended.
    Gone(GoneReason),
    /// The fence differs from the requested one.
    Changed {
        /// The fence that the nodes have.
        current: Fence,
    },
    /// The labels would exceed their limits: field and reason.
    Invalid(&'static str, String),
    /// The lease would be kept for longer than is allowed.
    KeepTooLong {
        /// The maximum since the grant.
        max: Duration,
        /// For how long the lease may be kept from now on.
        left: Duration,
    },
    /// This instance keeps the maximum number of leases.
    TooManyKept(usize),
    /// It is not known whether the extend took effect; nothing was released, and the old deadline is still valid.
    NoQuorum {
        no_quorum: NoQuorum,
        /// Time left until the old deadline, if this instance knows it.
        valid_for: Option<Duration>,
    },
}

/// Why a lease was not released.
#[derive(Debug, Clone)]
pub enum ReleaseError {
    /// Another token holds the resource.
    NotHolder,
    /// This token's lease has already ended.
    Gone(GoneReason),
    /// Too few nodes answered. Those that answered have released the lease, the others are tried in the background,
    /// and the TTL ends it at the latest.
    NoQuorum(NoQuorum),
}

/// Why no lease was ended by an operator.
#[derive(Debug, Clone)]
pub enum ForceError {
    /// The resource is free.
    NotHeld,
    /// Another lease holds the resource now.
    Changed {
        /// The ETag of that lease, see [`super::Inspection::etag`].
        current: String,
    },
    /// A lock of another Redlock client cannot be revoked, only ended at once.
    ForeignRevoke,
    /// This many leases hold the resource, and the request does not name one.
    SeveralHolders(usize),
    /// See [`NoQuorum`].
    NoQuorum(NoQuorum),
}
