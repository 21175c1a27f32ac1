//! Authentication, authorization and quotas: API keys (stored as hashes), client certificates, tokens of issuers (OIDC),
//! principals with their access rules, rate limits, quotas and sessions. Everything that no rule allows is denied. Pure: no HTTP
//! and no tasks; the time is a parameter.

pub mod access_file;
mod access_file_fields;
pub mod access_rule;
pub mod api_key;
pub(crate) mod authenticator;
pub mod jwks;
pub mod jwt;
pub mod oidc_issuer;
pub(crate) mod principal;
pub(crate) mod principals;
pub(crate) mod quota;
pub(crate) mod rate_limit;
pub mod session;
