//! Authentication, authorization and quotas: API keys (stored as hashes), client certificates, tokens of issuers (OIDC),
//! principals with their access rules, rate limits, quotas and sessions. Denied unless a rule allows it. Pure: no HTTP
//! and no tasks; the time is a parameter.

pub mod access_file;
pub(crate) mod authenticator;
mod file_reader;
pub mod issuer;
pub mod key;
pub mod key_set;
pub(crate) mod principal;
pub(crate) mod principals;
pub(crate) mod quota;
pub(crate) mod rate_limit;
pub mod rule;
pub mod session;
pub mod token;
