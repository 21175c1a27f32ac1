//! The dashboard's pages: pure functions from the manager's data to what a template shows, so that every
//! number and text can be tested without a request. The templates in `templates/` escape every string, since
//! names, owners and notes are chosen by callers.

pub mod assets;
pub mod badges;
pub mod charts;
pub mod confirm;
pub mod error_page;
pub mod events;
pub mod format;
pub mod latency;
pub mod layout;
pub mod lock;
pub mod locks;
pub mod login;
pub mod nodes;
pub mod owners;
pub mod paging;
pub mod waiters;
