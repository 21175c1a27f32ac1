//! The lock manager: what `http` calls. It draws tokens, queues waiters, asks the Redlock core, and answers
//! with the types in `types`. The manager itself is in `service`.

mod acquire_wait;
mod change;
mod cluster_waiters;
pub(crate) mod deadlock;
mod deadlock_check;
mod event_buffer;
pub(crate) mod events;
mod handover;
pub(crate) mod hold_renewal;
pub(crate) mod latency;
pub(crate) mod leases;
mod list_merge;
mod maintenance;
pub(crate) mod overview;
pub mod queue;
mod report;
mod service;
mod subscriptions;
pub mod types;
mod waiter;
mod wake_filter;
pub(crate) mod wake_timing;

pub use service::{Gauges, LeaseEndObserver, LockManager, PendingGrant};
