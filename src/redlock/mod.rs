//! The Redlock algorithm over N independent nodes. It starts no tasks except its own bounded clean-up.
//!
//! Guarantees (the arguments are in `docs/safety.md`):
//!
//! - **Exclusion.** From the answer until its validity ends, no other caller is granted the same
//!   resource.
//! - **Fencing.** Every lease has a fencing token that is unique for its resource, and larger than that
//!   of every lease that was granted before this one was requested.
//! - **An extend never creates, revives or releases.** If it succeeds, nobody else held the resource in
//!   between. If it fails, the old deadline remains.
//! - **A node that lost its memory does not vote** until no lease can depend on what it forgot.
//! - **Failed and dropped attempts are cancelled** on all nodes, also those that did not answer, in a
//!   task of its own.

pub(crate) mod acquire;
mod acquire_set;
mod acquire_shared;
pub mod answers;
mod blocker;
mod cleanup;
pub mod clock;
mod clock_adjustment;
pub(crate) mod cluster_clock;
mod deferred_index;
pub(crate) mod downgrade;
pub mod engine;
pub(crate) mod extend;
pub mod fan_out;
mod init_cluster;
pub(crate) mod inspect;
pub(crate) mod kept_lease;
pub(crate) mod kept_lease_renewal;
pub mod known_nodes;
pub(crate) mod list;
mod member_fences;
mod membership;
pub mod monitor;
pub mod node;
mod node_health;
pub mod notifications;
mod permit_slots;
pub(crate) mod quorum;
mod record_agreement;
pub(crate) mod release;
mod round;
pub(crate) mod round_trip;
mod seen_votes;
mod spread;
pub(crate) mod subscriptions;
pub(crate) mod tickets;
mod validity;
pub(crate) mod waiters;

pub(crate) use redlockd_common::renewal;
pub use redlockd_common::{backoff, random};
