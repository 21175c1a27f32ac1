//! The public keys of an issuer: a JWK set (RFC 7517), reduced to the keys that can verify signatures.

use std::fmt;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};

/// Maximum size of a set: GitHub's and GitLab's have some 10 KiB.
pub const KEY_SET_MAX_BYTES: usize = 256 * 1024;
/// Maximum number of keys of a set; further ones are ignored.
pub const KEY_SET_MAX: usize = 32;

/// A key that verifies signatures.
#[derive(Clone)]
struct VerifyingKey {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// The keys of an issuer.
#[derive(Clone, Default)]
pub struct KeySet(Vec<VerifyingKey>);

/// Shows which keys there are, without the keys.
impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| key.id.as_deref().unwrap_or("(no id)"))).finish()
    }
}

impl KeySet {
    /// Reads a set. Keys of unknown types, for encryption, and shared secrets are left out.
    ///
    /// Errors: what is wrong with the set; continues "the keys …".
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        struct Document {
            keys: Vec<serde_json::Value>,
        }
        if json.len() > KEY_SET_MAX_BYTES {
            return Err(format!("have more than {KEY_SET_MAX_BYTES} bytes"));
        }
        let Document { keys } = serde_json::from_slice(json).map_err(|_| "are no JWK set (RFC 7517)".to_owned())?;
        let keys: Vec<_> = keys.into_iter().take(KEY_SET_MAX).filter_map(verifying_key).collect();
        if keys.is_empty() { Err("include none that can verify a signature".to_owned()) } else { Ok(Self(keys)) }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set has no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key with this id that signs with this algorithm; without an id, the only such key.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let fits = |key: &&VerifyingKey| {
            key.algorithms.contains(&algorithm) && id.is_none_or(|id| key.id.as_deref() == Some(id))
        };
        let mut found = self.0.iter().filter(fits);
        let first = found.next()?;
        (id.is_some() || found.next().is_none()).then_some(&first.key)
    }
}

fn verifying_key(value: serde_json::Value) -> Option<VerifyingKey> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms().to_vec(),
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
        // A shared secret is no public key: everybody who can read it could sign.
        _ => return None,
    };
    let only = match jwk.common.key_algorithm {
        None => None,
        Some(algorithm) => Some(Algorithm::try_from(algorithm).ok()?),
    };
    let algorithms: Vec<_> = algorithms.into_iter().filter(|known| only.is_none_or(|only| only == *known)).collect();
    let key = DecodingKey::from_jwk(&jwk).ok().filter(|_| !algorithms.is_empty())?;
    Some(VerifyingKey { id: jwk.common.key_id, algorithms, key })
}
