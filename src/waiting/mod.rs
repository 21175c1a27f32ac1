//! Waiting for locks: one state machine for the queues of an instance (`queue`, with what a notice means in
//! `wake`, the search for deadlocks in `deadlock`, and places of callers who are away in `places`), and what runs it on
//! clocks, nodes and tasks (`driver`, and `handover` for releases).

mod channels;
pub mod deadlock;
pub(crate) mod driver;
mod ends;
mod entry;
pub mod event;
mod handover;
mod held;
pub(crate) mod places;
pub mod queue;
pub mod wake;

#[cfg(test)]
#[path = "../../tests/model/queue.rs"]
mod queue_model;
