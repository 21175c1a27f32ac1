//! Tickets: requests for a kept lease that wait without a connection. The nodes store each ticket; this instance
//! serves tickets that were made here, and tickets of instances that ended. docs/tickets.md has the argument,
//! [`crate::redlock::tickets`] the nodes' part.

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
