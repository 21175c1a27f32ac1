//! redlockd: a distributed lock service over HTTP on a Redlock core. `ARCHITECTURE.md` describes the
//! modules; a module imports only lower layers, which `tests/tidy.rs` checks.

// Code that only the crate uses is `pub(crate)`, so that the compiler reports unused code.
#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links, reason = "the documentation is built with private items")]

#[cfg(not(target_os = "linux"))]
compile_error!("redlockd supports Linux only: it depends on CLOCK_BOOTTIME, Linux signals and socket options");

pub mod app;
pub(crate) mod audit;
pub mod auth;
pub(crate) mod bounded_file;
pub mod cli;
pub mod config;
pub mod http;
pub(crate) mod keyed_maps;
pub mod manager;
pub mod metrics;
pub(crate) mod mutant;
pub mod nodes;
pub(crate) mod pages;
pub mod protocol;
pub mod redlock;
pub(crate) mod shutdown;
pub(crate) mod telemetry;
pub mod waiting;
pub mod webhooks;
pub mod worker_threads;

pub use redlockd_client as client;
pub use redlockd_common::{api, duration, types};

#[cfg(test)]
#[allow(unreachable_pub, reason = "written like a test crate of its own")]
#[path = "../tests/sim/mod.rs"]
mod sim;
