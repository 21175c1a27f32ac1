//! Tokens of an issuer (JSON Web Tokens, RFC 7519) as credentials: signature, issuer, audience and times. The access file, never
//! the token, decides the algorithm, and the key is one of the issuer's, never one from the token (`jwk`, `jku`, `x5c` and `x5u`
//! are not read). Source: RFC 8725.

use std::sync::Once;
use std::time::Duration;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, new_error};
use jsonwebtoken::signature::{Error as SignatureError, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey, Validation};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde_json::{Map, Value};

use super::jwks::KeySet;
use super::oidc_issuer::Issuer;

/// Maximum length of a token: those of GitHub and GitLab have some 2 KiB.
pub const TOKEN_MAX_BYTES: usize = 8 * 1024;
/// The prefix of every token: `{"` in base64.
const TOKEN_PREFIX: &[u8] = b"eyJ";

/// Why a token is not accepted. For the log: the answer does not contain it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is no token, or has a header that must be understood but is not.
    #[error("it is malformed")]
    Malformed,
    /// No issuer of the access file has this `iss`.
    #[error("its issuer is not in the access file")]
    UnknownIssuer,
    /// The issuer does not sign with this algorithm.
    #[error("its algorithm is not one that the access file names for its issuer")]
    Algorithm,
    /// The issuer's keys have not been read yet, or not for too long.
    #[error("the keys of its issuer are not known")]
    NoKeys,
    /// No key of the issuer has this id.
    #[error("its key is none of its issuer's")]
    UnknownKey,
    /// Signature, audience, or a claim that is missing or of a wrong type.
    #[error("it was not accepted: {0}")]
    Refused(String),
    /// The time in `exp` has passed.
    #[error("it has expired")]
    Expired,
    /// `nbf` or `iat` is in the future.
    #[error("it is not valid yet")]
    NotYet,
    /// The token is valid, but identifies no principal.
    #[error("no principal has a rule for its claims")]
    NoPrincipal,
}

/// Whether a credential looks like a token rather than an API key.
pub(super) fn is_token(presented: &[u8]) -> bool {
    presented.starts_with(TOKEN_PREFIX) && presented.iter().filter(|byte| **byte == b'.').count() == 2
}

/// The issuer that a token names. Nothing is verified: this only selects whose keys and rules apply.
pub(super) fn claimed_issuer<'i>(token: &[u8], issuers: &'i [Issuer]) -> Result<&'i Issuer, TokenError> {
    if token.len() > TOKEN_MAX_BYTES {
        return Err(TokenError::Malformed);
    }
    let claims: Map<String, Value> =
        jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(|_| TokenError::Malformed)?;
    let url = claims.get("iss").and_then(Value::as_str).ok_or(TokenError::Malformed)?;
    issuers.iter().find(|issuer| issuer.url == url).ok_or(TokenError::UnknownIssuer)
}

/// The claims of a token of this issuer. The token may have expired up to `late` ago.
///
/// Units: milliseconds since 1970. Errors: [`TokenError`].
pub fn verify(
    token: &[u8],
    issuer: &Issuer,
    keys: &KeySet,
    wall_ms: u64,
    late: Duration,
) -> Result<Map<String, Value>, TokenError> {
    install_provider();
    if token.len() > TOKEN_MAX_BYTES {
        return Err(TokenError::Malformed);
    }
    let header = jsonwebtoken::decode_header(token).map_err(|_| TokenError::Malformed)?;
    if header.crit.is_some() || header.zip.is_some() || header.enc.is_some() {
        return Err(TokenError::Malformed);
    }
    if !issuer.algorithms.contains(&header.alg) {
        return Err(TokenError::Algorithm);
    }
    let key = keys.find(header.kid.as_deref(), header.alg).ok_or(TokenError::UnknownKey)?;
    let mut validation = Validation::new(header.alg);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    validation.set_issuer(&[&issuer.url]);
    validation.set_audience(&issuer.audiences);
    // Checked below, with the given clock.
    (validation.validate_exp, validation.validate_nbf) = (false, false);
    let claims = jsonwebtoken::decode::<Map<String, Value>>(token, key, &validation);
    let claims = claims.map_err(|error| TokenError::Refused(error.to_string()))?.claims;
    // The library would also accept a list of issuers.
    if claims.get("iss").and_then(Value::as_str) != Some(issuer.url.as_str()) {
        return Err(TokenError::Refused("`iss` is not a text".to_owned()));
    }
    check_times(&claims, issuer, wall_ms, late)?;
    Ok(claims)
}

fn check_times(claims: &Map<String, Value>, issuer: &Issuer, wall_ms: u64, late: Duration) -> Result<(), TokenError> {
    let (now_s, skew_s) = (wall_ms as f64 / 1_000.0, issuer.clock_skew.as_secs_f64());
    let time = |name: &str| match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or_else(|| TokenError::Refused(format!("`{name}` is not a number"))),
    };
    let end = time("exp")?.ok_or_else(|| TokenError::Refused("`exp` is missing".to_owned()))?;
    if now_s >= end + skew_s + late.as_secs_f64() {
        return Err(TokenError::Expired);
    }
    for begin in [time("nbf")?, time("iat")?].into_iter().flatten() {
        if begin > now_s + skew_s {
            return Err(TokenError::NotYet);
        }
    }
    Ok(())
}

/// Verifies with `ring`, as TLS does.
struct SignatureVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for SignatureVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        let verified = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let parameters = rsa(self.algorithm).ok_or_else(SignatureError::new)?;
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            DecodingKeyKind::SecretOrDer(point) => {
                let algorithm = curve(self.algorithm).ok_or_else(SignatureError::new)?;
                UnparsedPublicKey::new(algorithm, point).verify(message, signature)
            }
        };
        verified.map_err(|_| SignatureError::new())
    }
}

impl JwtVerifier for SignatureVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// Keys of at least 2,048 bits.
fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

fn curve(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    match algorithm {
        Algorithm::ES256 => Some(&ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Some(&ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Some(&ED25519),
        _ => None,
    }
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> jsonwebtoken::errors::Result<Box<dyn JwtVerifier>> {
    if key.family().algorithms().contains(algorithm) && (rsa(*algorithm).is_some() || curve(*algorithm).is_some()) {
        return Ok(Box::new(SignatureVerifier { algorithm: *algorithm, key: key.clone() }));
    }
    Err(new_error(ErrorKind::InvalidAlgorithm))
}

/// This service creates no tokens.
fn no_signer(_: &Algorithm, _: &EncodingKey) -> jsonwebtoken::errors::Result<Box<dyn JwtSigner>> {
    Err(new_error(ErrorKind::UnsupportedAlgorithm))
}

/// Installs the provider for the whole process. It fails if another part of the process was first; that provider then serves.
fn install_provider() {
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory: no_signer,
        verifier_factory: verifier,
        key_utils: KeyUtils::new_unimplemented(),
    };
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = PROVIDER.install_default();
    });
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
