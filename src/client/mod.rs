//! The service's own client: one request over HTTP to the first of several instances that answers,
//! and what a holder makes of such requests (an acquire that waits, a lease that is kept). The
//! command line stands on it. Knows the contract in [`crate::api`] and the algorithm's clock, nothing
//! of the service's inside, and prints nothing.

pub mod acquire;
pub mod base_url;
pub mod error;
pub mod events;
pub mod key;
pub mod renewal;
pub mod requests;
pub mod transport;
