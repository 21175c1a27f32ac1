//! Waiting for locks. `state_machine` decides for all queues of an instance; `driver` runs it on clocks, nodes and tasks.
//! Parts of the state machine: `lease_notices` (ends of leases), `wake` (what a notice means), `compatible_waiters`,
//! `free_slots`, `grants`, `deadlock` (search for cycles), `kept_places`, `backoff` (random pauses), `queue_queries`. Parts of the
//! driver: `acquire`, `lease_reports`, `deadlock_confirmation`, `already_held`, `handover`, `intents`.

mod acquire;
mod already_held;
mod backoff;
mod channels;
mod compatible_waiters;
pub mod deadlock;
mod deadlock_confirmation;
pub(crate) mod driver;
pub mod event;
mod free_slots;
mod grants;
mod handover;
mod intents;
pub(crate) mod kept_places;
mod lease_notices;
mod lease_reports;
mod queue_queries;
mod queue_state;
pub mod state_machine;
pub mod wake;

#[cfg(test)]
#[path = "../../tests/model/queue.rs"]
mod queue_model;
