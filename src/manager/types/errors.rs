//! Errors of the lock manager.

use std::time::Duration;

use super::endings::GoneReason;
use super::results::{HolderInfo, QuorumCount};
use crate::api::DeadlockEdge;
use crate::protocol::EndReason;
use crate::redlock::quorum::NodeOutcome;
use crate::types::{Fence, Mode, PermitLimit, ResourceName, TokenId, WaitId};

/// By what a resource is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldReason {
    /// A lease of this service.
    Lease,
    /// Another Redlock client.
    Foreign,
    /// The lock delay after a lease that ran out.
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
    /// How many requests wait for it in this instance.
    pub waiting: usize,
    /// How many wait for it at other instances.
    pub waiting_elsewhere: usize,
    /// Earliest time at which a quorum can be free, where that is known.
    pub free_in: Option<Duration>,
    /// The answer of each node.
    pub nodes: Vec<NodeOutcome>,
}

/// What a [`HeldRefusal`] is about.
#[derive(Debug, Clone)]
pub struct HeldResources {
    /// The resource; the first that is held of several.
    pub resource: ResourceName,
    /// Of a request for several resources, each that is held by another, in their order; otherwise empty.
    pub blocked_by: Vec<BlockingResource>,
    /// No node may have left out a holder.
    pub all_named: bool,
    /// It is known until when each of the holders holds; otherwise their `valid_for` means nothing.
    pub ends_known: bool,
    /// A node refused because of another caller that waits.
    pub is_behind: bool,
}

/// A resource that keeps a request for several from all of them.
#[derive(Debug, Clone)]
pub struct BlockingResource {
    /// The resource that another holds.
    pub resource: ResourceName,
    /// Who has it; `None` for another Redlock client.
    pub holder: Option<HolderInfo>,
}

/// Too few nodes that may vote, or votes split to the end.
#[derive(Debug, Clone)]
pub struct NoQuorum {
    pub quorum: QuorumCount,
    /// The answer of each node.
    pub nodes: Vec<NodeOutcome>,
    /// Why nodes did not vote, for people; empty if unknown.
    pub reasons: String,
    /// When asking again makes sense.
    pub retry_after: Duration,
}

/// Why there is no lease.
#[derive(Debug, Clone)]
pub enum AcquireError {
    /// Held, and the request does not wait.
    Held(HeldRefusal),
    /// Held, and the wait is over.
    WaitTimeout {
        /// As the last attempt found it.
        held: HeldRefusal,
        /// How long it waited.
        waited: Duration,
        /// Its last position in the queue; 1 is the head.
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
        /// From this request's owner back to it.
        cycle: Vec<CycleEdge>,
        /// How long it waited.
        waited: Duration,
    },
    /// The queue is full.
    TooManyWaiters {
        limit: usize,
        /// The limit is that of this resource's queue, not the total.
        per_resource: bool,
    },
    /// This instance keeps as many leases as it may.
    TooManyKept(usize),
    /// The service is shutting down.
    Draining {
        /// The `wait_id` of the request, if it has one.
        wait_id: Option<WaitId>,
    },
    /// A later request with its `wait_id` has taken its place.
    Replaced,
    /// Its `wait_id` names the place of a request that differs in this field.
    OtherPlace(&'static str),
}

/// One owner waits for what the next one in the cycle holds, confirmed by a quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CycleEdge {
    /// The owner that waits.
    pub owner: String,
    /// The resource that it waits for.
    pub waits_for: ResourceName,
    /// The owner that holds it.
    pub held_by: String,
    /// That owner's lease.
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

/// A deadlock that a quorum confirmed, and whose waiters all wait on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// From the newest request's owner back to it.
    pub cycle: Vec<CycleEdge>,
    /// How long it has been known.
    pub age: Duration,
}

/// Why a lease was not extended.
#[derive(Debug, Clone)]
pub enum ExtendError {
    /// Another token holds the resource.
    NotHolder,
    /// This token's lease has ended.
    Gone(GoneReason),
    /// The fence differs from the one asked for.
    Changed {
        /// The one that the nodes have.
        current: Fence,
    },
    /// The labels would exceed their limits: field and reason.
    Invalid(&'static str, String),
    /// It would be kept for longer than is allowed.
    KeepTooLong {
        /// The maximum since the grant.
        max: Duration,
        /// For how long it may be kept from now on.
        left: Duration,
    },
    /// This instance keeps as many leases as it may.
    TooManyKept(usize),
    /// Not known whether it took effect; nothing was released, and the old deadline is still valid.
    NoQuorum {
        no_quorum: NoQuorum,
        /// Time left until the old deadline, where this instance knows it.
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
    /// Too few nodes answered. Those that did have released it, the others are tried in the background,
    /// and the TTL ends it at the latest.
    NoQuorum(NoQuorum),
}

/// Why no lease was ended by an operator.
#[derive(Debug, Clone)]
pub enum ForceError {
    /// The resource is free.
    NotHeld,
    /// Another lease holds it now.
    Changed {
        /// Its ETag, see [`super::Inspection::etag`].
        current: String,
    },
    /// A lock of another Redlock client cannot be revoked, only ended at once.
    ForeignRevoke,
    /// So many leases hold the resource, and the request does not say which one it means.
    SeveralHolders(usize),
    /// See [`NoQuorum`].
    NoQuorum(NoQuorum),
}
