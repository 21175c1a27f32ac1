//! Pages as data: from what the manager says to what a template shows, pure functions of values and
//! the time at which they were asked for. Apart from `http`, so that every number and word of a page
//! can be tested without a request. Templates are in `templates/`, and escape every string: names,
//! owners and notes are strangers' words.

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
