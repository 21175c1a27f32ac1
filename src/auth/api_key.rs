//! API keys and their hashes. A key is shown once, when it is generated; only its SHA-256 is stored. A fast hash is enough, since
//! a key has 256 random bits that cannot be guessed; a slow one would delay every request.

use std::fmt;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::redlock::random::Entropy;
use crate::types::Invalid;

/// Prefix of every key, so that people and secret scanners recognise it.
pub const KEY_PREFIX: &str = "rlk_";
/// Random bytes of a key: 256 bits.
pub const KEY_RANDOM_BYTES: usize = 32;
/// Maximum length of a text that is hashed as a key; generated keys have 47 characters.
pub const KEY_MAX_BYTES: usize = 256;
/// Bytes of a SHA-256.
const HASH_BYTES: usize = 32;
/// Hex digits of a hash that messages show, to distinguish keys.
const SHOWN_DIGITS: usize = 8;

/// Generates [`KEY_RANDOM_BYTES`] random bytes, encoded as `[A-Za-z0-9_-]`.
pub fn random_text(entropy: &impl Entropy) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = [0; KEY_RANDOM_BYTES];
    entropy.fill(&mut bytes);
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for i in 0..=chunk.len() {
            let sextet = usize::try_from(word >> (18 - 6 * i) & 63).unwrap_or(0);
            text.push(char::from(ALPHABET[sextet]));
        }
    }
    text
}

/// A key in plain text. `Debug` hides it and there is no `Display`.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// Generates a new key.
    pub fn generate(entropy: &impl Entropy) -> Self {
        Self(format!("{KEY_PREFIX}{}", random_text(entropy)))
    }

    /// The key itself, to show it once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash, for the access file.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(self.0.as_bytes())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// The SHA-256 of a key or of a certificate. Equality takes the same time whatever the values are.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; HASH_BYTES]);

impl KeyHash {
    /// The hash of a presented key or certificate.
    pub fn of(presented: &[u8]) -> Self {
        Self(Sha256::digest(presented).into())
    }

    /// Parses 64 hex digits.
    ///
    /// Errors: [`Invalid`], which never repeats the text: it may be a misplaced key.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.starts_with(KEY_PREFIX) {
            let why = "is a key itself: write its SHA-256 instead, and replace the key, which was stored in plain text";
            return Err(Invalid(why.to_owned()));
        }
        let wrong = || Invalid("must be the SHA-256 of a key, as 64 hex digits".to_owned());
        let mut bytes = [0; HASH_BYTES];
        if text.len() != 2 * HASH_BYTES || !text.is_ascii() {
            return Err(wrong());
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
            let (high, low) = digit(digits[0]).zip(digit(digits[1])).ok_or_else(wrong)?;
            *byte = high << 4 | low;
        }
        let hash = Self(bytes);
        if ["", "\n"].into_iter().any(|nothing| hash == Self::of(nothing.as_bytes())) {
            return Err(Invalid("is the SHA-256 of an empty text: the key was missing when it was made".to_owned()));
        }
        Ok(hash)
    }

    /// The hash as 64 hex digits.
    pub fn hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }
}

impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for KeyHash {}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({}…)", &self.hex()[..SHOWN_DIGITS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::random::SystemEntropy;
    use proptest::prelude::*;

    #[test]
    fn generated_keys_have_the_prefix_256_bits_and_differ() {
        let (a, b) = (ApiKey::generate(&SystemEntropy), ApiKey::generate(&SystemEntropy));
        // 43 characters of 6 bits hold 256 bits.
        assert!(a.reveal().starts_with("rlk_") && a.reveal().len() == 47 && a.reveal() != b.reveal());
        assert!(a.reveal().bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-')));
        assert_eq!(format!("{a:?}"), "ApiKey(…)");
        assert!(a.hash() == KeyHash::of(a.reveal().as_bytes()) && a.hash() != b.hash());
    }

    #[test]
    fn a_key_encodes_every_random_bit() {
        #[derive(Clone)]
        struct Bytes(u8);
        impl Entropy for Bytes {
            fn fill(&self, into: &mut [u8]) {
                into.fill(self.0);
            }
        }
        assert_eq!(ApiKey::generate(&Bytes(0)).reveal(), format!("rlk_{}", "A".repeat(43)));
        // The last character carries four bits and two of padding.
        assert_eq!(ApiKey::generate(&Bytes(255)).reveal(), format!("rlk_{}8", "_".repeat(42)));
    }

    #[test]
    fn a_hash_is_parsed_and_an_invalid_text_is_not_repeated() {
        let hash = KeyHash::of(b"abc");
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.hex(), hex);
        assert!(KeyHash::parse(hex) == Ok(hash) && KeyHash::parse(&hex.to_uppercase()) == Ok(hash));
        assert_eq!(format!("{hash:?}"), "KeyHash(ba7816bf…)");
        for bad in ["", "hunter2", &hex[1..], &format!("{hex}0"), &hex.replace('b', "g"), &"é".repeat(32)] {
            let why = KeyHash::parse(bad).expect_err("not a hash").0;
            assert!(why.contains("64 hex digits") && (bad.is_empty() || !why.contains(bad)), "{why}");
        }
        let why = KeyHash::parse("rlk_secret").expect_err("a key").0;
        assert!(why.contains("a key itself") && !why.contains("secret"), "{why}");
    }

    proptest! {
        #[test]
        fn hashes_are_equal_if_their_bytes_are(a: [u8; 32], b: [u8; 32]) {
            prop_assert_eq!(KeyHash(a) == KeyHash(b), a == b);
            prop_assert!(KeyHash(a) == KeyHash(a));
            prop_assert_eq!(KeyHash::parse(&KeyHash(a).hex()), Ok(KeyHash(a)));
        }
    }
}
