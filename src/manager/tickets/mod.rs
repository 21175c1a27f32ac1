//! Tickets: requests for a kept lease that wait without a connection. The nodes store each one; this instance serves those that
//! were made here, and those of instances that ended. docs/tickets.md has the argument, [`crate::redlock::tickets`] the nodes'
//! part.

mod callbacks;
#[cfg(test)]
mod crash_tests;
mod exchange;
mod grant;
mod lease;
pub mod listed;
pub mod requests;
mod serve;
pub(in crate::manager) mod table;
pub mod types;

pub use table::{TicketEvent, TicketLimits, TicketListener, TicketQuota, TicketSender};
