//! Who may do what: API keys as hashes, principals with their rules, and how much each of them may
//! ask for. Pure: no HTTP, no task, no file but the one that [`mod@file`] is told to read; time comes
//! in as a parameter. Denied unless a rule allows it.

pub mod book;
pub mod bucket;
pub mod file;
pub mod gate;
pub mod key;
pub mod ledger;
pub mod principal;
pub mod rule;
pub mod session;
