//! Deterministic simulation of waiting: real managers of several instances with the real Redlock core, over
//! simulated nodes whose answers and notices are late, lost or cut off, in tokio's paused time. `tests/sim`
//! runs the same queue under every fault; here late and lost notices and deadlocks are tested closely, with planted
//! bugs of their own.
//!
//! A failing seed: `WAITS_SEED=7 WAITS_TRACE=1 cargo test --lib waits::suite -- --nocapture`.

mod checker;
mod clock;
mod many_waiters;
mod nodes;
mod scenario;
mod suite;
