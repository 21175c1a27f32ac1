//! The dashboard's pages: pure functions from the manager's data to a template's data, so that every number and text can be
//! tested without a request. The templates in `templates/` escape every string, since callers choose names, owners and notes.

pub(crate) mod activity;
pub(crate) mod assets;
pub(crate) mod badges;
pub(crate) mod charts;
pub(crate) mod confirm;
pub(crate) mod error_page;
pub(crate) mod events;
pub(crate) mod format;
pub(crate) mod heat_map;
pub(crate) mod history;
pub(crate) mod hooks;
mod kept;
pub(crate) mod latency;
pub(crate) mod layout;
pub(crate) mod lock;
pub(crate) mod locks;
mod locks_query;
pub(crate) mod login;
pub(crate) mod name_tree;
pub(crate) mod nodes;
pub(crate) mod owners;
pub(crate) mod paging;
pub(crate) mod runbooks;
pub(crate) mod table_query;
pub(crate) mod take;
pub(crate) mod timeline;
pub(crate) mod wait_graph;
pub(crate) mod waiters;
