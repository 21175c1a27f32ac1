//! Waiting for locks: one state machine for the queues of an instance (`queue`, with what a notice means in
//! `wake` and the search for deadlocks in `deadlock`), and the one file that runs it on clocks, nodes and tasks
//! (`driver`).

pub mod deadlock;
pub(crate) mod driver;
mod ends;
mod entry;
pub mod event;
pub mod queue;
pub mod wake;
