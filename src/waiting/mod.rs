//! Waiting for locks: one state machine for the queues of an instance (`queue`, with what a notice means in
//! `wake`, runs of compatible waiters in `compatible_waiters`, the search for deadlocks in `deadlock`, and places of callers who are away
//! in `absent_callers`), and what runs it on clocks, nodes and tasks (`driver`, with `learned_leases`, `handover` for releases and `intents`).

pub(crate) mod absent_callers;
mod already_held;
mod compatible_waiters;
pub mod deadlock;
pub(crate) mod driver;
pub mod event;
mod handover;
mod intents;
mod learned_leases;
mod lease_ends;
pub mod queue;
mod queue_state;
mod slots;
pub mod wake;

#[cfg(test)]
#[path = "../../tests/model/queue.rs"]
mod queue_model;
