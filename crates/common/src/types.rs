//! The domain's checked types: resource names, tokens, fences, TTLs, node names, labels. Raw input is parsed into one of these
//! types once, where it enters; all other modules use the checked type.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod invalid;
mod labels;
mod mode;
mod token;

pub use invalid::Invalid;
pub use labels::{Labels, METADATA_MAX_BYTES, METADATA_MAX_PAIRS, NOTE_MAX_BYTES, OWNER_MAX_BYTES, cut_to_stored};
pub use mode::{Mode, PERMITS_MAX, PERMITS_MIN, PermitLimit, SlotChoice, SlotSet, WantedMode};
pub use token::{TOKEN_ID_DIGITS, TOKEN_MAX_CHARS, TOKEN_MIN_CHARS, TOKEN_RANDOM_BYTES, Token, TokenHash, TokenId};

/// The maximum length of a resource name, in bytes: it is part of paths, keys, channel names and log lines.
pub const RESOURCE_MAX_BYTES: usize = 255;
/// The prefix of the service's own keys; no resource name can have it.
pub const RESERVED_PREFIX: &str = "redlockd:";
/// The placeholder of the owner in the setting `owner_url`.
pub const OWNER_PLACE: &str = "{owner}";
/// The minimum length of a client's name for its place in a queue: others should not guess it by chance.
pub const WAIT_ID_MIN_CHARS: usize = 16;
/// The maximum length of such a name.
pub const WAIT_ID_MAX_CHARS: usize = 64;

/// Whether a character is invisible or changes the direction of text: an untrusted text must not look like another one, or affect
/// the text around it. The pages, text answers, the command line and the audit log escape these characters.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{2800}' | '\u{fe00}'..='\u{fe0f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// The name of a resource: segments of `[A-Za-z0-9._~:@-]+` joined by `/`.
///
/// Errors: [`Invalid`] for an empty name, one over [`RESOURCE_MAX_BYTES`], an empty, `.` or `..`
/// segment, a character outside the set, or the reserved prefix `redlockd:`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceName(Arc<str>);

impl ResourceName {
    /// Checks a decoded name.
    pub fn parse(raw: &str) -> Result<Self, Invalid> {
        if raw.is_empty() {
            return Err(Invalid::new("the resource name is empty"));
        }
        if raw.len() > RESOURCE_MAX_BYTES {
            return Err(Invalid(format!(
                "the resource name has {} bytes; at most {RESOURCE_MAX_BYTES} are allowed",
                raw.len()
            )));
        }
        if raw.starts_with(RESERVED_PREFIX) {
            return Err(Invalid(format!(
                "resource names beginning with `{RESERVED_PREFIX}` are the service's own keys"
            )));
        }
        for segment in raw.split('/') {
            match segment {
                "" => return Err(Invalid::new("the resource name has an empty segment")),
                "." | ".." => {
                    return Err(Invalid(format!("the resource name has a `{segment}` segment")));
                }
                _ => {}
            }
            if let Some(bad) = segment.chars().find(|c| !is_segment_char(*c)) {
                return Err(Invalid(format!(
                    "the resource name contains {bad:?}; segments are made of A-Z a-z 0-9 . _ ~ : @ -"
                )));
            }
        }
        Ok(Self(raw.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_segment_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | ':' | '@' | '-')
}

impl std::borrow::Borrow<str> for ResourceName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A client's own name for its place in a queue: not a secret like a token, but everybody who knows it can take the place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WaitId(Arc<str>);

impl WaitId {
    /// Checks a name: 16 to 64 characters of `[A-Za-z0-9._~-]`. Errors: [`Invalid`].
    pub fn parse(raw: &str) -> Result<Self, Invalid> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'~' | b'-');
        if !(WAIT_ID_MIN_CHARS..=WAIT_ID_MAX_CHARS).contains(&raw.len()) || !raw.bytes().all(is_plain) {
            return Err(Invalid(format!(
                "must have {WAIT_ID_MIN_CHARS} to {WAIT_ID_MAX_CHARS} characters of A-Z a-z 0-9 . _ ~ -"
            )));
        }
        Ok(Self(raw.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A fencing token: strictly rising per resource, below 2^53, not secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lifetime in whole milliseconds, never zero. The bounds `min_ttl` and `max_ttl` are checked where the configuration is
/// known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ttl(u64);

impl Ttl {
    /// Errors: [`Invalid`] for zero, and above 2^40 ms (34 years), so that sums cannot overflow.
    pub fn from_ms(ms: u64) -> Result<Self, Invalid> {
        match ms {
            0 => Err(Invalid::new("a TTL is at least 1ms")),
            ms if ms > 1 << 40 => Err(Invalid::new("a TTL is at most 2^40 ms")),
            ms => Ok(Self(ms)),
        }
    }

    pub fn as_ms(self) -> u64 {
        self.0
    }

    pub fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// The configured name of a node: unique, shown instead of its address in pages, metrics and responses, and part of the cluster
/// fingerprint.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Checks a name: 1 to 64 characters of `[A-Za-z0-9._:@/-]`.
    pub fn parse(raw: &str) -> Result<Self, Invalid> {
        let ok = (1..=64).contains(&raw.len())
            && raw.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'@' | b'/' | b'-'));
        ok.then(|| Self(raw.into()))
            .ok_or_else(|| Invalid::new("a node name has 1 to 64 characters of A-Z a-z 0-9 . _ : @ / -"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// These names, separated by commas.
    pub fn list<'a>(names: impl IntoIterator<Item = &'a Self>) -> String {
        names.into_iter().map(Self::as_str).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies one acquire round with its clean-up, so that a late command of an abandoned round is distinguished from the round
/// that succeeded. A letter followed by 16 hex digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId(Arc<str>);

impl AttemptId {
    /// The id from 64 random bits.
    pub fn from_random(bits: u64) -> Self {
        let mut text = *b"a0000000000000000";
        token::write_hex(&bits.to_be_bytes(), &mut text[1..]);
        Self(std::str::from_utf8(&text).expect("ASCII").into())
    }

    /// Reads the text in a lock's value or a tombstone's key.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('a').filter(|digits| digits.len() == 16)?;
        digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).then(|| Self(text.into()))
    }

    /// The text in the lock's value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_with_slashes_and_every_allowed_character_are_accepted() {
        for good in ["a", "deploy/prod", "A-Z.a_z~0:9@x/y", "a:b/redlockd:x", "...", &"x".repeat(255)] {
            assert_eq!(ResourceName::parse(good).map(|n| n.as_str().to_owned()).as_deref(), Ok(good));
        }
    }

    #[test]
    fn invalid_names_are_refused_with_a_reason() {
        for bad in [
            "",
            "/",
            "a//b",
            "a/",
            "/a",
            ".",
            "..",
            "a/../b",
            "a/./b",
            "a b",
            "a\0b",
            "ä",
            "a%2Fb",
            "a{b}",
            "redlockd:meta",
            &"x".repeat(256),
        ] {
            let error = ResourceName::parse(bad).expect_err(bad);
            assert!(!error.0.is_empty());
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(raw in ".*") {
            let _ = (ResourceName::parse(&raw), Token::parse(&raw), NodeId::parse(&raw), TokenHash::parse(&raw));
        }
    }
}
