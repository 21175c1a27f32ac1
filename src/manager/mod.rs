//! The lock manager, which `http` calls. It draws tokens, queues waiters, asks the Redlock core, and answers with the
//! types in `types`. The manager itself is in `service`.

mod acquire;
pub(crate) mod activity;
pub mod callbacks;
pub(crate) mod cluster_state;
mod cluster_waiters;
mod deadlock_reports;
pub mod derived_tokens;
mod distant_ends;
mod event_buffer;
mod event_fields;
mod event_kind;
pub mod events;
pub mod fence_check;
pub(crate) mod gaps;
mod granted_lease;
mod held_refusals;
mod history_exchange;
pub(crate) mod hold_renewal;
pub mod incident_file;
mod incident_history;
mod incidents;
pub mod kept_leases;
pub(crate) mod latency;
mod lease_changes;
pub(crate) mod lease_snapshot;
mod list_merge;
mod maintenance;
mod moved_places;
mod no_vote_reasons;
mod node_list;
mod node_state;
pub(crate) mod overview;
mod own_leases;
mod published_waiters;
mod queries;
mod service;
mod sets;
pub(crate) mod standstills;
pub(crate) mod tenures;
pub mod tickets;
pub mod types;

pub(crate) use acquire::tag_of;
pub use lease_snapshot::ClusterLeases;
pub use service::{Gauges, LeaseEndObserver, LockManager, PendingGrant};
pub use sets::PendingSet;
