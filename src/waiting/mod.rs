//! Waiting for locks: one state machine for the queues of an instance (`queue`, with what a notice means in
//! `wake`, runs of compatible waiters in `runs`, the search for deadlocks in `deadlock`, and places of callers who are away
//! in `places`), and what runs it on clocks, nodes and tasks (`driver`, with `known`, and `handover` for releases).

mod channels;
pub mod deadlock;
pub(crate) mod driver;
mod ends;
mod entry;
pub mod event;
mod handover;
mod held;
mod known;
pub(crate) mod places;
pub mod queue;
mod runs;
pub mod wake;

#[cfg(test)]
#[path = "../../tests/model/queue.rs"]
mod queue_model;
