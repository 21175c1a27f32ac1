//! The lock manager: what `http` calls. It draws tokens, queues waiters, asks the Redlock core, and answers
//! with the types in `types`. The manager itself is in `service`.

mod acquire;
pub(crate) mod activity;
pub mod callbacks;
mod change;
mod cluster_waiters;
mod deadlocks;
pub mod derived;
mod event_buffer;
mod event_kind;
pub mod events;
pub mod fence;
mod granting;
pub(crate) mod history;
pub(crate) mod hold_renewal;
mod incidents;
pub mod keeping;
pub(crate) mod latency;
mod leases;
mod list_merge;
mod maintenance;
mod no_vote;
mod node_list;
mod node_state;
pub(crate) mod overview;
mod report;
mod service;
mod sets;
pub(crate) mod situation;
pub(crate) mod snapshots;
pub mod tickets;
pub mod types;

pub(crate) use acquire::tag_of;
pub use service::{Gauges, LeaseEndObserver, LockManager, PendingGrant};
pub use sets::PendingSet;
pub use snapshots::ClusterLeases;
