//! The lock manager: what the doors call. It draws tokens, seats waiters, asks the algorithm, and
//! says in domain words what came of it. Knows no HTTP. This file lists the room's parts and passes on
//! what the doors name; the manager itself is in `service`.

mod acquire_wait;
mod change;
pub mod deadlock;
mod event_buffer;
pub mod events;
mod force;
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
mod wake_filter;

pub use service::{EndObserver, Gauges, LockManager, PendingGrant};
