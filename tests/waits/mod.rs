//! Deterministic simulation of the waiting room: real managers of several instances, with the real
//! engine under them, over node machines whose answers and notices are late, lost or cut off, in
//! tokio's paused time. Beside `tests/sim`, whose world tests the protocol under every fault and knows
//! no queue: here the queue is what is tested, and its own bugs are planted.
//!
//! A failing seed: `WAITS_SEED=7 WAITS_TRACE=1 cargo test --lib waits::suite -- --nocapture`.

mod burst;
mod clock;
mod ledger;
mod nodes;
mod play;
mod suite;
