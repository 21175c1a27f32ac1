//! The lock manager: what the doors call. It draws tokens, seats waiters, asks the algorithm, and
//! says in domain words what came of it. Knows no HTTP. This file lists the room's parts and passes on
//! what the doors name; the manager itself is in `service`.

mod change;
pub mod deadlock;
pub mod events;
mod forced;
pub mod glance;
pub mod history;
pub mod holds;
mod house;
pub mod leases;
mod merge;
mod news;
pub mod outcome;
mod report;
mod service;
mod turn;
pub mod waiters;
mod wakeups;

pub use service::{EndObserver, Gauges, Granted, LockManager};
