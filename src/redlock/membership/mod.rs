//! Which process votes under each name, and what a process that forgot is filled with (`docs/views.md`).

pub(super) mod absent;
mod change;
pub(crate) mod current;
mod derive;
mod fill_plan;
mod heal;
pub(super) mod relist;
pub(super) mod replace;
pub(super) mod watch;
