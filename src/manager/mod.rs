//! The lock manager: what `http` calls. It draws tokens, queues waiters, asks the Redlock core, and answers
//! with the types in `types`. The manager itself is in `service`.

mod acquire_wait;
mod change;
pub mod deadlock;
mod deadlock_check;
mod event_buffer;
pub mod events;
mod handover;
pub mod latency;
pub mod leases;
mod list_merge;
mod maintenance;
pub mod overview;
pub mod queue;
pub mod renewal;
mod report;
mod service;
mod subscriptions;
pub mod types;
mod waiter;
mod wake_filter;
pub mod wake_timing;

pub use service::{Gauges, LeaseEndObserver, LockManager, PendingGrant};
