//! Code shared by redlockd and its client: the JSON types of the HTTP API ([`api`]), checked names and tokens ([`types`]),
//! durations as text, a clock that runs during suspend, randomness, and the time of a lease's renewal.

#![warn(unreachable_pub)]

#[cfg(not(target_os = "linux"))]
compile_error!("redlockd supports Linux only: it depends on CLOCK_BOOTTIME");

pub mod api;
pub mod backoff;
pub mod clock;
pub mod duration;
pub mod random;
pub mod renewal;
pub mod types;
