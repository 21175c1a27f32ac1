//! Deterministic simulation of the real core and the real wait queue over simulated nodes, networks, clocks and processes.
//! One seed is one history: the same seed gives the same trace, so what failed once can be replayed,
//! and stays in the suite. It is part of the library's unit tests, so that the mutants of
//! `src/mutant.rs` can be switched on in it.
//!
//! A failing seed: `SIM_SEED=7 SIM_TRACE=1 cargo test --lib sim::suite::replay -- --nocapture`.
//! Many: `SIM_SEEDS=1000000 SIM_FROM=0 cargo test --release --lib sim::suite::many -- --ignored --nocapture`.
//! With `SIM_RELISTS=1` only those of these seeds in which the list of nodes is changed, with `SIM_REPLACES=1` those in which a node's
//! server is replaced, with `SIM_TERMS=1` those in which the terms are changed, with `SIM_THRIFTY=1` those in which an instance asks a
//! quorum of the nodes first, with `SIM_DURABLE=1` those with durable nodes.

mod actors;
mod clients;
mod clock;
mod coverage;
mod faults;
mod host;
mod invariants;
mod liveness;
mod mutants;
mod network;
mod notices;
mod observe;
mod operator;
mod profile;
mod queue_check;
mod rng;
mod run;
mod sets;
mod suite;
mod world;
