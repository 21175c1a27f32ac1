//! The Redlock algorithm over N independent nodes: no HTTP, no Redis, and no task but its own
//! bounded clean-up.
//!
//! What it promises (the arguments are in `docs/safety.md`):
//!
//! - **Exclusive.** From the answer until its validity ends, no other caller is told that it holds
//!   the same resource.
//! - **Fenced.** Every lease has a fencing token: never given twice for a resource, and larger than
//!   that of every lease that was answered before this one was asked for.
//! - **An extend never creates, never revives, never releases.** If it succeeds, nobody else held
//!   the resource in between. If it fails, the old deadline stands.
//! - **Forgetful nodes do not vote**, until no lease can depend on what they forgot.
//! - **Nothing stays behind** of an attempt that failed or was dropped: it is cancelled on all
//!   nodes, also those that did not answer, in a task of its own.

pub mod acquire;
pub mod backoff;
mod cleanup;
pub mod clock;
pub mod cluster_clock;
pub mod engine;
pub mod entropy;
pub mod extend;
pub mod inspect;
pub mod list;
pub mod monitor;
pub mod node;
pub mod notifications;
pub mod quorum;
pub mod release;
mod round;
pub mod subscriptions;
