//! The token of a lease, its hash, which nodes store instead, and its public id, the beginning of the hash.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::invalid::Invalid;

/// The minimum length of a token that a client chooses (22 base64 characters hold 128 bits).
pub const TOKEN_MIN_CHARS: usize = 22;
/// The maximum length of a token that a client chooses.
pub const TOKEN_MAX_CHARS: usize = 64;
/// The number of hex digits of a token's hash in responses, pages and logs.
pub const TOKEN_ID_DIGITS: usize = 8;
/// Random bytes in a token that the service generates: 192 bits.
pub const TOKEN_RANDOM_BYTES: usize = 24;

/// The secret that proves a lease. Never printed: `Debug` shows the [`TokenId`] only.
#[derive(Clone)]
pub struct Token(Arc<Secret>);

struct Secret {
    text: Box<str>,
    /// Computed once: it is needed several times for each request.
    hash: OnceLock<TokenHash>,
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for Token {}

impl Token {
    /// Checks a token that a client sent: 22 to 64 characters of `[A-Za-z0-9._~-]`. Removes the angle brackets in which WebDAV
    /// writes lock tokens.
    ///
    /// Errors: [`Invalid`], which never quotes the token.
    pub fn parse(raw: &str) -> Result<Self, Invalid> {
        let bare = raw.strip_prefix('<').and_then(|r| r.strip_suffix('>')).unwrap_or(raw);
        if !(TOKEN_MIN_CHARS..=TOKEN_MAX_CHARS).contains(&bare.len()) {
            return Err(Invalid(format!(
                "a token has {TOKEN_MIN_CHARS} to {TOKEN_MAX_CHARS} characters, this one has {}",
                bare.chars().count()
            )));
        }
        if !bare.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'~' | b'-')) {
            return Err(Invalid::new("a token is made of A-Z a-z 0-9 . _ ~ -"));
        }
        Ok(Self::new(bare.into()))
    }

    fn new(text: Box<str>) -> Self {
        Self(Arc::new(Secret { text, hash: OnceLock::new() }))
    }

    /// Derives a token from another protocol's name for a lock and from the principal that the lock belongs to. No client can
    /// send such a token, even if it knows both: the token has a character that [`Self::parse`] refuses.
    pub fn derived(protocol: &str, belongs_to: &str, name: &str) -> Self {
        Self::new(format!("{protocol}:{belongs_to}:{name}").into())
    }

    /// Makes a token of random bytes.
    pub fn from_random(bytes: [u8; TOKEN_RANDOM_BYTES]) -> Self {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut text = [0; TOKEN_RANDOM_BYTES / 3 * 4];
        for (digits, c) in text.as_chunks_mut::<4>().0.iter_mut().zip(bytes.as_chunks::<3>().0) {
            let bits = u32::from(c[0]) << 16 | u32::from(c[1]) << 8 | u32::from(c[2]);
            *digits = [18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift & 63) as usize]);
        }
        Self::new(std::str::from_utf8(&text).expect("ASCII").into())
    }

    /// The secret itself, for the one response that returns it.
    pub fn reveal(&self) -> &str {
        &self.0.text
    }

    /// The hash that nodes store instead of the token.
    pub fn hash(&self) -> TokenHash {
        self.0.hash.get_or_init(|| Self::hash_of(&self.0.text)).clone()
    }

    fn hash_of(text: &str) -> TokenHash {
        let mut hex = [0; 64];
        write_hex(&Sha256::digest(text.as_bytes()), &mut hex);
        TokenHash(std::str::from_utf8(&hex).expect("ASCII").into())
    }
}

/// Writes two lower-case hex digits for each byte. With a table: formatting 32 numbers would take three times as long as a hash of
/// SHA-256 itself.
pub(super) fn write_hex(bytes: &[u8], hex: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (digits, byte) in hex.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *digits = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(id {})", self.hash().id())
    }
}

/// SHA-256 of a token in lower-case hex, the beginning of a lock's value: a client that can read a node cannot release through
/// the service.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenHash(Arc<str>);

impl TokenHash {
    /// Reads 64 lower-case hex digits from a lock's value.
    pub fn parse(hex: &str) -> Option<Self> {
        let ok = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        ok.then(|| Self(hex.into()))
    }

    /// All 64 digits, as nodes store them.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first digits, for responses, pages and logs.
    pub fn id(&self) -> TokenId {
        TokenId(self.id_text().into())
    }

    /// The text of [`Self::id`].
    pub fn id_text(&self) -> &str {
        &self.0[..TOKEN_ID_DIGITS]
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenHash({}…)", &self.0[..TOKEN_ID_DIGITS])
    }
}
/// The first eight hex digits of a token's hash: identifies a lease without proving it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct TokenId(Arc<str>);

impl TokenId {
    /// Reads the digits; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        TokenHash::parse(&text.repeat(8)).map(|hash| hash.id())
    }

    /// The eight hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn angle_brackets_around_tokens_are_removed_and_tokens_are_never_printed() {
        let token = Token::parse("<abcdefghijklmnopqrstuv>").expect("22 characters");
        assert_eq!(token.reveal(), "abcdefghijklmnopqrstuv");
        let shown = format!("{token:?} {:?}", token.hash());
        assert!(!shown.contains("abcdefghij"), "{shown}");
        assert!(Token::parse("short").is_err());
        assert!(Token::parse(&"x".repeat(65)).is_err());
        assert!(Token::parse("abcdefghijklmnopqrstu|").is_err());
    }

    #[test]
    fn the_token_hash_is_sha256_in_hex() {
        // `printf abcdefghijklmnopqrstuv | sha256sum`
        let hash = Token::parse("abcdefghijklmnopqrstuv").expect("valid").hash();
        assert_eq!(hash.as_str(), "f69f9b70d1c9a5442258ca76f8b0a7a45fcb4e31c36141b6357ec591328b0624");
        assert_eq!(hash.id().as_str(), &hash.as_str()[..8]);
    }

    proptest! {
        #[test]
        fn random_tokens_are_valid_tokens_and_keep_all_bits(a: [u8; TOKEN_RANDOM_BYTES], b: [u8; TOKEN_RANDOM_BYTES]) {
            let (ta, tb) = (Token::from_random(a), Token::from_random(b));
            prop_assert!(Token::parse(ta.reveal()).is_ok());
            prop_assert_eq!(a == b, ta == tb);
        }
    }
}
