//! The JSON types of the HTTP contract, shared by the server and the client.
//!
//! Integers have their unit in the name (`ttl_ms`). Times are RFC 3339 in UTC, for display; a client relies on
//! `valid_for_ms`, counted from before it sent its request.

mod events;
mod hooks;
mod locks;
mod nodes;
mod problem;
mod sets;
mod tickets;

pub use events::{Event, EventGap, HoldEvent, PastEvents};
pub use hooks::{HookReplay, HookState, HookTarget, HookTry, Hooks};
pub use locks::{
    FenceCheck, Holder, Lease, List, ListEntry, LockDetails, NodeHold, Quorum, Revoked, TokenText, Waiter, WaitingAt,
};
pub use nodes::{Finding, Health, NodeListChange, NodeState, NodeTerms, NodeTermsChange, Nodes};
pub use problem::{DeadlockEdge, FieldError, LockInfo, Members, NodeVote, ProblemDetails};
pub use sets::{BlockedBy, LeaseOfSet, LeaseSet, SetResult, SetResults};
pub use tickets::{TicketFence, TicketStatus};
