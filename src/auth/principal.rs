//! A principal: a name, what proves it, what it may do, and how much of it. Knows no request.

use std::fmt;
use std::sync::Arc;

use super::key::{KEY_PREFIX, KeyHash};
use super::rule::AccessRules;
use crate::types::Invalid;

/// The longest name of a principal: it stands in each line of the audit log.
pub const NAME_MAX_BYTES: usize = 64;

/// What a principal is called, in the log and on pages: `[A-Za-z0-9._~:@-]`, at most 64 of them.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrincipalName(Arc<str>);

impl PrincipalName {
    /// Reads one. Errors: [`Invalid`].
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | ':' | '@' | '-');
        if text.is_empty() || text.len() > NAME_MAX_BYTES || !text.chars().all(plain) {
            return Err(Invalid(format!("a name has 1 to {NAME_MAX_BYTES} characters of A-Z a-z 0-9 . _ ~ : @ -")));
        }
        // Names are logged; keys are not.
        if text.contains(KEY_PREFIX) {
            return Err(Invalid("this is, or has in it, a key, which is no name".to_owned()));
        }
        Ok(Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// One of a principal's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// Its hash.
    pub hash: KeyHash,
    /// From when on it is not accepted any more. Milliseconds since 1970.
    pub expires_ms: Option<u64>,
}

impl KeyEntry {
    /// Whether it is over at this time.
    pub fn has_expired(&self, wall_ms: u64) -> bool {
        self.expires_ms.is_some_and(|end| wall_ms >= end)
    }
}

/// What a client certificate must carry to stand for a principal. That it was signed by the
/// configured authority was checked before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateName {
    /// A subject alternative name of type DNS, in lower case.
    Dns(String),
    /// A subject alternative name of type URI, as SPIFFE uses.
    Uri(String),
    /// The SHA-256 of the certificate itself.
    Fingerprint(KeyHash),
}

impl CertificateName {
    /// Reads `dns:ci.example.com`, `uri:spiffe://…` or `sha256:…`. Errors: [`Invalid`].
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let filled =
            |value: &str| (!value.is_empty() && value.chars().all(|c| c.is_ascii_graphic())).then(|| value.to_owned());
        match text.split_once(':') {
            Some(("dns", name)) if !name.contains('*') => filled(name).map(|name| Self::Dns(name.to_ascii_lowercase())),
            Some(("uri", uri)) => filled(uri).map(Self::Uri),
            Some(("sha256", digits)) => return KeyHash::parse(digits).map(Self::Fingerprint),
            _ => None,
        }
        .ok_or_else(|| {
            Invalid("must be dns:NAME (without `*`), uri:URI or sha256:64 hex digits of the certificate".to_owned())
        })
    }
}

/// How much a principal may ask of one instance. `None`: as much as the service has for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrincipalLimits {
    /// Requests per second, on average.
    pub requests_per_second: Option<u32>,
    /// Leases at a time.
    pub leases: Option<usize>,
    /// Requests that wait, at a time.
    pub waiters: Option<usize>,
}

impl PrincipalLimits {
    /// These, and `others` where these say nothing.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            requests_per_second: self.requests_per_second.or(others.requests_per_second),
            leases: self.leases.or(others.leases),
            waiters: self.waiters.or(others.waiters),
        }
    }
}

/// Somebody who is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// What it is called.
    pub name: PrincipalName,
    /// Any of these proves it.
    pub keys: Vec<KeyEntry>,
    /// So does a client certificate with any of these.
    pub certificates: Vec<CertificateName>,
    /// What it may do.
    pub rules: AccessRules,
    /// How much of it.
    pub limits: PrincipalLimits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_a_line_or_a_header() {
        for good in ["ci", "ann@pc", "svc:deploy.eu-1", &"x".repeat(64)] {
            assert_eq!(PrincipalName::parse(good).expect(good).as_str(), good);
        }
        for bad in ["", "a b", "a\nb", "a/b", "ä", "a\"b", &"x".repeat(65)] {
            assert!(PrincipalName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_is_over_at_its_very_time() {
        let key = |expires_ms| KeyEntry { hash: KeyHash::of(b"k"), expires_ms };
        assert!(!key(None).has_expired(u64::MAX));
        assert!(!key(Some(10)).has_expired(9) && key(Some(10)).has_expired(10));
    }

    #[test]
    fn certificates_are_named_in_three_ways() {
        assert_eq!(CertificateName::parse("dns:CI.example.com"), Ok(CertificateName::Dns("ci.example.com".into())));
        assert_eq!(CertificateName::parse("uri:spiffe://x/ci"), Ok(CertificateName::Uri("spiffe://x/ci".into())));
        let hash = KeyHash::of(b"c");
        assert_eq!(CertificateName::parse(&format!("sha256:{}", hash.hex())), Ok(CertificateName::Fingerprint(hash)));
        for bad in ["", "ci.example.com", "dns:", "dns:*.example.com", "uri:", "uri:a b", "sha256:ab", "cn:x"] {
            assert!(CertificateName::parse(bad).is_err(), "{bad}");
        }
    }
}
