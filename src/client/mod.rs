//! The HTTP client, which the command line uses: one request to the first of several instances that answers, and what a
//! holder builds on it: an acquire that waits, a lease that is renewed, a lock as a value. It prints nothing.

pub mod acquire;
pub mod base_url;
pub mod error;
pub mod events;
pub mod key;
pub mod lock;
pub mod renewal;
pub mod requests;
pub mod transport;
