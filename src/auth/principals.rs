//! All principals, and how one is found by what it presents. Replaced as a whole when its file
//! changes; nothing in it changes otherwise.

use std::sync::Arc;

use super::key::{KEY_MAX_BYTES, KeyHash};
use super::principal::{CertificateName, Principal, PrincipalName};

/// What somebody presents. Borrowed from the request, and never kept.
pub enum Credential<'a> {
    /// A key in the clear.
    Key(&'a [u8]),
    /// A client certificate whose signature was checked.
    Certificate(&'a PeerCertificate),
}

/// What matters of a client's certificate.
#[derive(Debug, Clone)]
pub struct PeerCertificate {
    /// Its DNS names, in lower case.
    pub dns: Vec<String>,
    /// Its URIs.
    pub uris: Vec<String>,
    /// The SHA-256 of its bytes.
    pub fingerprint: KeyHash,
}

/// Why nobody was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentifyError {
    /// Nobody has this.
    NotFound,
    /// Somebody had it.
    Expired(PrincipalName),
}

/// All principals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrincipalStore {
    principals: Vec<Arc<Principal>>,
}

impl PrincipalStore {
    /// Of these; their names, keys and certificates must be unique, which [`super::access_file`] checks.
    pub fn new(principals: Vec<Principal>) -> Self {
        Self { principals: principals.into_iter().map(Arc::new).collect() }
    }

    /// Every principal, in the file's order.
    pub fn principals(&self) -> &[Arc<Principal>] {
        &self.principals
    }

    /// The principal of this name.
    pub fn find(&self, name: &PrincipalName) -> Option<&Arc<Principal>> {
        self.principals.iter().find(|principal| principal.name == *name)
    }

    /// Who presents this. A key is hashed and its hash compared with every hash that there is, each
    /// in constant time and none left out: the time says how many keys there are, and nothing of
    /// which of them is nearly right.
    ///
    /// Errors: [`IdentifyError`].
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
            Credential::Certificate(peer) => {
                let stands_for = |principal: &&Arc<Principal>| principal.certificates.iter().any(|name| peer.has(name));
                self.principals.iter().find(stands_for).cloned().ok_or(IdentifyError::NotFound)
            }
        }
    }
}

impl PeerCertificate {
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
    use super::super::rule::Right;
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

    fn who(key: &str, wall_ms: u64) -> Result<String, IdentifyError> {
        store().identify(&Credential::Key(key.as_bytes()), wall_ms).map(|p| p.name.to_string())
    }

    #[test]
    fn each_live_key_of_a_principal_is_its_key() {
        assert_eq!(who("old", 999).as_deref(), Ok("ci"));
        assert_eq!(who("new", 999).as_deref(), Ok("ci"));
        assert_eq!(who("ann's", 999).as_deref(), Ok("ann"));
        assert_eq!(who("old", 1_000), Err(IdentifyError::Expired(PrincipalName::parse("ci").expect("valid"))));
        assert_eq!(who("new", u64::MAX).as_deref(), Ok("ci"));
        for other in ["", "ne", "new ", "New", &"n".repeat(10_000), &KeyHash::of(b"new").hex()] {
            assert_eq!(who(other, 0), Err(IdentifyError::NotFound), "{other}");
        }
    }

    #[test]
    fn a_certificate_stands_for_whom_its_names_stand_for() {
        let peer = |dns: &str| PeerCertificate { dns: vec![dns.into()], uris: vec![], fingerprint: KeyHash::of(b"c") };
        let who =
            |peer: PeerCertificate| store().identify(&Credential::Certificate(&peer), 0).map(|p| p.name.to_string());
        assert_eq!(who(peer("ci.example")).as_deref(), Ok("ci"));
        assert_eq!(who(peer("x.ci.example")), Err(IdentifyError::NotFound));
    }

    #[test]
    fn who_is_found_by_name_is_who_was_written_down() {
        let book = store();
        let ci = book.find(&PrincipalName::parse("ci").expect("valid")).expect("there");
        let name = |text| ResourceName::parse(text).expect("valid");
        assert!(ci.rules.allow(Right::Acquire, &name("deploy/x")) && !ci.rules.allow(Right::Force, &name("deploy/x")));
        assert!(book.find(&PrincipalName::parse("bob").expect("valid")).is_none());
    }

    proptest! {
        #[test]
        fn nobody_gets_in_with_anything_else(key in "\\PC{0,60}") {
            prop_assume!(!["old", "new", "ann's"].contains(&key.as_str()));
            prop_assert_eq!(who(&key, 0), Err(IdentifyError::NotFound));
        }
    }
}
