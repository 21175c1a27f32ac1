//! Requests, results and errors of the lock manager, for `http` and every other front end.

mod endings;
mod errors;
mod quarantine_counts;
mod requests;
mod results;

pub use endings::{GoneReason, HeldLeaseEvent, LeaseOutcome, LostReason};
pub use errors::{
    AcquireError, BlockingResource, CycleEdge, Deadlock, ExtendError, ForceError, HeldReason, HeldRefusal,
    HeldResources, NoQuorum, ReleaseError,
};
pub use quarantine_counts::QuarantineCounts;
pub use requests::{
    AcquireRequest, ExtendRequest, ForceMode, ForceRequest, KeepPlace, LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX, ListQuery,
    ListState,
};
pub use results::{
    EndedLease, ExtendedLease, Forced, GrantedLease, HolderInfo, Inspection, InstanceQueue, ListItem, ListPage,
    LockState, NodeFinding, NodeListState, NodeSummary, QuorumCount, QuorumLoss, Readiness, ResourceOnNode, WaiterInfo,
    mode_of, permits_free,
};
