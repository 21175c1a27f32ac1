//! A principal: its name, credentials, access rules and limits.

use std::fmt;
use std::sync::Arc;

use super::access_rule::AccessRules;
use super::api_key::{KEY_PREFIX, KeyHash};
use super::oidc_issuer::TokenRule;
use crate::types::Invalid;

/// Maximum length of a principal's name: it is part of every line of the audit log.
pub(crate) const NAME_MAX_BYTES: usize = 64;

/// A principal's name, as shown in logs and on pages: 1 to 64 characters of `[A-Za-z0-9._~:@-]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrincipalName(Arc<str>);

impl PrincipalName {
    /// Checks and wraps a name. Errors: [`Invalid`].
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | ':' | '@' | '-');
        if text.is_empty() || text.len() > NAME_MAX_BYTES || !text.chars().all(plain) {
            return Err(Invalid(format!("a name has 1 to {NAME_MAX_BYTES} characters of A-Z a-z 0-9 . _ ~ : @ -")));
        }
        // Names are logged, but keys must not be.
        if text.contains(KEY_PREFIX) {
            return Err(Invalid("this is or contains an API key, which is not a name".to_owned()));
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
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
    /// SHA-256 of the key.
    pub hash: KeyHash,
    /// When the key stops being accepted. Units: milliseconds since 1970. `None`: never.
    pub expires_ms: Option<u64>,
}

impl KeyEntry {
    /// Whether the key is no longer accepted at this time.
    pub fn has_expired(&self, wall_ms: u64) -> bool {
        self.expires_ms.is_some_and(|end| wall_ms >= end)
    }
}

/// A property of a client certificate that identifies a principal. The configured authority's signature was verified before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateName {
    /// A subject alternative name of type DNS, in lower case.
    Dns(String),
    /// A subject alternative name of type URI, as SPIFFE uses.
    Uri(String),
    /// SHA-256 of the certificate.
    Fingerprint(KeyHash),
}

impl CertificateName {
    /// Parses `dns:ci.example.com`, `uri:spiffe://…` or `sha256:…`. Errors: [`Invalid`].
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let printable =
            |value: &str| (!value.is_empty() && value.chars().all(|c| c.is_ascii_graphic())).then(|| value.to_owned());
        match text.split_once(':') {
            Some(("dns", name)) if !name.contains('*') => {
                printable(name).map(|name| Self::Dns(name.to_ascii_lowercase()))
            }
            Some(("uri", uri)) => printable(uri).map(Self::Uri),
            Some(("sha256", digits)) => return KeyHash::parse(digits).map(Self::Fingerprint),
            _ => None,
        }
        .ok_or_else(|| {
            Invalid("must be dns:NAME (without `*`), uri:URI or sha256:64 hex digits of the certificate".to_owned())
        })
    }
}

/// A principal's limits at one instance. `None`: the limit in the settings for all principals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrincipalLimits {
    /// Requests per second, on average.
    pub requests_per_second: Option<u32>,
    /// Maximum number of leases.
    pub leases: Option<usize>,
    /// Maximum number of waiting requests.
    pub waiters: Option<usize>,
}

impl PrincipalLimits {
    /// These limits; `others` replace those that are `None`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            requests_per_second: self.requests_per_second.or(others.requests_per_second),
            leases: self.leases.or(others.leases),
            waiters: self.waiters.or(others.waiters),
        }
    }
}

/// A caller that can be identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Unique in the access file.
    pub name: PrincipalName,
    /// The keys; each identifies the principal.
    pub keys: Vec<KeyEntry>,
    /// A client certificate with any of these names identifies it.
    pub certificates: Vec<CertificateName>,
    /// A token that satisfies any of these identifies it.
    pub tokens: Vec<TokenRule>,
    /// The rules that allow its requests.
    pub rules: AccessRules,
    /// Its limits, which replace those of the settings.
    pub limits: PrincipalLimits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_contain_nothing_that_breaks_a_line_or_a_header() {
        for good in ["ci", "ann@pc", "svc:deploy.eu-1", &"x".repeat(64)] {
            assert_eq!(PrincipalName::parse(good).expect(good).as_str(), good);
        }
        for bad in ["", "a b", "a\nb", "a/b", "ä", "a\"b", &"x".repeat(65)] {
            assert!(PrincipalName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_expires_exactly_at_its_time() {
        let key = |expires_ms| KeyEntry { hash: KeyHash::of(b"k"), expires_ms };
        assert!(!key(None).has_expired(u64::MAX));
        assert!(!key(Some(10)).has_expired(9) && key(Some(10)).has_expired(10));
    }

    #[test]
    fn certificate_names_are_dns_uri_or_fingerprint() {
        assert_eq!(CertificateName::parse("dns:CI.example.com"), Ok(CertificateName::Dns("ci.example.com".into())));
        assert_eq!(CertificateName::parse("uri:spiffe://x/ci"), Ok(CertificateName::Uri("spiffe://x/ci".into())));
        let hash = KeyHash::of(b"c");
        assert_eq!(CertificateName::parse(&format!("sha256:{}", hash.hex())), Ok(CertificateName::Fingerprint(hash)));
        for bad in ["", "ci.example.com", "dns:", "dns:*.example.com", "uri:", "uri:a b", "sha256:ab", "cn:x"] {
            assert!(CertificateName::parse(bad).is_err(), "{bad}");
        }
    }
}
