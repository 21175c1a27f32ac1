//! Authentication, authorization and quotas: API keys (stored as hashes), client certificates, principals
//! with their access rules, rate limits, quotas and sessions. Denied unless a rule allows it. Pure: no HTTP
//! and no tasks; the time is a parameter.

pub mod access_file;
pub mod authenticator;
pub mod key;
pub mod principal;
pub mod principals;
pub mod quota;
pub mod rate_limit;
pub mod rule;
pub mod session;
