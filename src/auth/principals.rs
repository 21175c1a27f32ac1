//! All principals, and the lookup of a principal by its credential. Immutable: a reload of the access file
//! replaces the whole store.

use std::sync::Arc;

use super::api_key::{KEY_MAX_BYTES, KeyHash};
use super::jwt::TokenError;
use super::oidc_issuer::Issuer;
use super::principal::{CertificateName, Principal, PrincipalName};

/// A credential as presented. Borrowed from the request; never stored.
pub enum Credential<'a> {
    /// An API key in plain text, or a token.
    Key(&'a [u8]),
    /// A client certificate whose signature has been verified.
    Certificate(&'a PeerCertificate),
}

/// The fields of a client certificate that can identify a principal.
#[derive(Debug, Clone)]
pub struct PeerCertificate {
    /// DNS names, in lower case.
    pub dns: Vec<String>,
    /// URIs, as SPIFFE uses them.
    pub uris: Vec<String>,
    /// SHA-256 of the DER encoding.
    pub fingerprint: KeyHash,
    /// The last second in which it is valid, since 1970. Checked at each request: a connection may outlast it.
    pub not_after_s: i64,
}

/// Why a credential identifies no principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentifyError {
    /// No principal has this credential.
    NotFound,
    /// The key of this principal has expired.
    Expired(PrincipalName),
    /// A token that is not accepted.
    Token(TokenError),
}

/// All principals of the access file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrincipalStore {
    principals: Vec<Arc<Principal>>,
    issuers: Vec<Issuer>,
}

impl PrincipalStore {
    /// Names, keys and certificates must be unique, and token rules must name one of `issuers`; [`super::access_file`] checks
    /// this.
    pub fn new(principals: Vec<Principal>, issuers: Vec<Issuer>) -> Self {
        Self { principals: principals.into_iter().map(Arc::new).collect(), issuers }
    }

    /// All principals, in the order of the file.
    pub fn principals(&self) -> &[Arc<Principal>] {
        &self.principals
    }

    /// The issuers of tokens.
    pub fn issuers(&self) -> &[Issuer] {
        &self.issuers
    }

    /// The first principal, in the order of the file, with a rule that these verified claims satisfy.
    pub fn find_by_claims(
        &self,
        issuer: &Issuer,
        claims: &serde_json::Map<String, serde_json::Value>,
    ) -> Option<&Arc<Principal>> {
        let matches = |principal: &&Arc<Principal>| principal.tokens.iter().any(|rule| rule.matches(issuer, claims));
        self.principals.iter().find(matches)
    }

    /// The principal with this name.
    pub fn find(&self, name: &PrincipalName) -> Option<&Arc<Principal>> {
        self.principals.iter().find(|principal| principal.name == *name)
    }

    /// The first principal to have no valid key left, and the time: milliseconds since 1970. Leaves out principals with a key
    /// that does not expire, with a certificate or a token rule, and those whose last key has expired already.
    pub fn first_without_key(&self, wall_ms: u64) -> Option<(&Arc<Principal>, u64)> {
        let last_key = |principal: &Principal| {
            let stays = !principal.certificates.is_empty() || !principal.tokens.is_empty();
            let expiries = principal.keys.iter().map(|key| key.expires_ms.unwrap_or(u64::MAX));
            expiries.max().filter(|last_ms| !stays && *last_ms != u64::MAX && *last_ms > wall_ms)
        };
        let ends = self.principals.iter().filter_map(|principal| Some((principal, last_key(principal)?)));
        ends.min_by_key(|(_, last_ms)| *last_ms)
    }

    /// The principal of this credential. The hash of a key is compared with every stored hash, each in constant time: the
    /// duration depends only on the number of keys, and reveals nothing of their values.
    ///
    /// Units: milliseconds since 1970. Errors: [`IdentifyError`].
    pub fn identify(&self, credential: &Credential<'_>, wall_ms: u64) -> Result<Arc<Principal>, IdentifyError> {
        match credential {
            Credential::Key(presented) if presented.len() > KEY_MAX_BYTES => Err(IdentifyError::NotFound),
            Credential::Key(presented) => {
                let hash = KeyHash::of(presented);
                let mut found = None;
                for principal in &self.principals {
                    for key in &principal.keys {
                        if key.hash == hash {
                            found = Some((principal, key));
                        }
                    }
                }
                match found {
                    None => Err(IdentifyError::NotFound),
                    Some((principal, key)) if key.has_expired(wall_ms) => {
                        Err(IdentifyError::Expired(principal.name.clone()))
                    }
                    Some((principal, _)) => Ok(Arc::clone(principal)),
                }
            }
            Credential::Certificate(peer) if peer.has_expired(wall_ms) => Err(IdentifyError::NotFound),
            Credential::Certificate(peer) => {
                let matches = |principal: &&Arc<Principal>| principal.certificates.iter().any(|name| peer.has(name));
                self.principals.iter().find(matches).cloned().ok_or(IdentifyError::NotFound)
            }
        }
    }
}

impl PeerCertificate {
    fn has_expired(&self, wall_ms: u64) -> bool {
        i64::try_from(wall_ms / 1_000).is_ok_and(|now_s| now_s > self.not_after_s)
    }

    fn has(&self, name: &CertificateName) -> bool {
        match name {
            CertificateName::Dns(name) => self.dns.contains(name),
            CertificateName::Uri(uri) => self.uris.contains(uri),
            CertificateName::Fingerprint(hash) => self.fingerprint == *hash,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::access_file;
    use super::super::access_rule::Right;
    use super::*;
    use crate::types::ResourceName;
    use proptest::prelude::*;

    fn store() -> PrincipalStore {
        let hash = |key: &str| KeyHash::of(key.as_bytes()).hex();
        access_file::parse(&format!(
            "[[principal]]\nname = \"ci\"\nallow = [\"acquire:deploy/*\"]\ncertificates = [\"dns:ci.example\"]\n\
             keys = [{{ sha256 = \"{}\", expires = 1970-01-01T00:00:01Z }}, {{ sha256 = \"{}\" }}]\n\
             [[principal]]\nname = \"ann\"\nallow = [\"admin\"]\nkeys = [{{ sha256 = \"{}\" }}]\n",
            hash("old"),
            hash("new"),
            hash("ann's"),
        ))
        .expect("a good file")
    }

    fn name_of(key: &str, wall_ms: u64) -> Result<String, IdentifyError> {
        store().identify(&Credential::Key(key.as_bytes()), wall_ms).map(|p| p.name.to_string())
    }

    #[test]
    fn every_key_that_has_not_expired_identifies_its_principal() {
        assert_eq!(name_of("old", 999).as_deref(), Ok("ci"));
        assert_eq!(name_of("new", 999).as_deref(), Ok("ci"));
        assert_eq!(name_of("ann's", 999).as_deref(), Ok("ann"));
        assert_eq!(name_of("old", 1_000), Err(IdentifyError::Expired(PrincipalName::parse("ci").expect("valid"))));
        assert_eq!(name_of("new", u64::MAX).as_deref(), Ok("ci"));
        for other in ["", "ne", "new ", "New", &"n".repeat(10_000), &KeyHash::of(b"new").hex()] {
            assert_eq!(name_of(other, 0), Err(IdentifyError::NotFound), "{other}");
        }
    }

    #[test]
    fn a_certificate_is_identified_by_its_exact_names() {
        let peer = |dns: &str| PeerCertificate {
            dns: vec![dns.into()],
            uris: vec![],
            fingerprint: KeyHash::of(b"c"),
            not_after_s: 100,
        };
        let identify = |peer: PeerCertificate, wall_ms| {
            store().identify(&Credential::Certificate(&peer), wall_ms).map(|p| p.name.to_string())
        };
        assert_eq!(identify(peer("ci.example"), 0).as_deref(), Ok("ci"));
        assert_eq!(identify(peer("x.ci.example"), 0), Err(IdentifyError::NotFound));
        assert_eq!(identify(peer("ci.example"), 100_999).as_deref(), Ok("ci"));
        assert_eq!(identify(peer("ci.example"), 101_000), Err(IdentifyError::NotFound), "it has ended");
    }

    #[test]
    fn a_principal_is_found_by_its_name_and_has_the_rules_of_the_file() {
        let store = store();
        let ci = store.find(&PrincipalName::parse("ci").expect("valid")).expect("there");
        let name = |text| ResourceName::parse(text).expect("valid");
        assert!(ci.rules.allow(Right::Acquire, &name("deploy/x")) && !ci.rules.allow(Right::Force, &name("deploy/x")));
        assert!(store.find(&PrincipalName::parse("bob").expect("valid")).is_none());
    }

    #[test]
    fn who_loses_the_last_key_first_is_known_unless_another_way_in_is_left() {
        let key =
            |name: &str, expires: &str| format!("{{ sha256 = \"{}\"{expires} }}", KeyHash::of(name.as_bytes()).hex());
        let (at_1, at_2, at_3) = (
            ", expires = 1970-01-01T00:00:01Z",
            ", expires = 1970-01-01T00:00:02Z",
            ", expires = 1970-01-01T00:00:03Z",
        );
        let file = format!(
            "[[principal]]\nname = \"a\"\nkeys = [{}, {}]\n[[principal]]\nname = \"b\"\nkeys = [{}]\n\
             [[principal]]\nname = \"c\"\nkeys = [{}]\ncertificates = [\"dns:c.example\"]\n\
             [[principal]]\nname = \"d\"\nkeys = [{}, {}]\n",
            key("1", at_1),
            key("2", at_3),
            key("3", at_2),
            key("4", at_1),
            key("5", at_1),
            key("6", ""),
        );
        let store = access_file::parse(&file).expect("a good file");
        let first = |wall_ms| store.first_without_key(wall_ms).map(|(who, at_ms)| (who.name.to_string(), at_ms));
        assert_eq!(first(0), Some(("b".to_owned(), 2_000)));
        assert_eq!(first(2_000), Some(("a".to_owned(), 3_000)), "b has none left already");
        assert_eq!(first(3_000), None);
    }

    proptest! {
        #[test]
        fn no_other_key_is_accepted(key in "\\PC{0,60}") {
            prop_assume!(!["old", "new", "ann's"].contains(&key.as_str()));
            prop_assert_eq!(name_of(&key, 0), Err(IdentifyError::NotFound));
        }
    }
}
