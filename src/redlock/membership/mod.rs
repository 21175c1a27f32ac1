//! Which process votes under each name, and what is filled into a process that forgot (`docs/views.md`).

mod by_disk;
mod change;
pub(crate) mod current_view;
mod fill_members;
mod fill_node;
mod fill_pages;
mod fill_plan;
mod learn_cluster;
pub(super) mod member;
mod next_view;
pub(super) mod relist;
mod rename_leases;
pub(super) mod replace_node;
mod shown_views;
pub(super) mod silent_nodes;
pub(super) mod view_monitor;
