//! Who may do what: API keys as hashes, principals with their rules, and how much each of them may
//! ask for. Pure: no HTTP, no task, no file but the one that [`mod@access_file`] is told to read; time comes
//! in as a parameter. Denied unless a rule allows it.

pub mod access_file;
pub mod authenticator;
pub mod key;
pub mod principal;
pub mod principals;
pub mod quota;
pub mod rate_limit;
pub mod rule;
pub mod session;
