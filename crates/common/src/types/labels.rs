//! Information about a lease for people, and its bounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::types::invalid::Invalid;

/// The maximum length of the `owner` label, in bytes.
pub const OWNER_MAX_BYTES: usize = 128;
/// The maximum length of the `note` label, in bytes.
pub const NOTE_MAX_BYTES: usize = 512;
/// The maximum number of `metadata` pairs.
pub const METADATA_MAX_PAIRS: usize = 16;
/// The maximum size of all `metadata` keys and values together, in bytes.
pub const METADATA_MAX_BYTES: usize = 1024;

/// Information about a lease for people, stored in the lock's value. Never proof.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// The name that the holder gave itself.
    #[serde(rename = "o", default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The purpose of the lease.
    #[serde(rename = "n", default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Further labels, in pairs.
    #[serde(rename = "m", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Wall-clock time of the grant, for display only. Milliseconds since 1970.
    #[serde(rename = "t", default)]
    pub acquired_at_ms: u64,
    /// A hash of the principal, set by the service; empty without authentication. Never shown.
    #[serde(rename = "p", default, skip_serializing_if = "String::is_empty")]
    pub principal: String,
    /// Until when the service renews the lease, on the cluster clock; 0 if it does not. Milliseconds since 1970.
    #[serde(rename = "k", default, skip_serializing_if = "is_zero")]
    pub kept_until_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The length of a text within a JSON string. Nodes store labels as JSON, and the largest answer of a node is bounded.
fn json_len(text: &str) -> usize {
    text.chars().map(char_json_len).sum()
}

fn char_json_len(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\u{0}'..'\u{20}' => 6,
        other => other.len_utf8(),
    }
}

/// The beginning of a text, cut so that it takes at most `max` bytes within a JSON string.
pub fn cut_to_stored(text: &str, max: usize) -> &str {
    let mut stored = 0;
    let end = text.char_indices().find(|(_, c)| {
        stored += char_json_len(*c);
        stored > max
    });
    end.map_or(text, |(at, _)| &text[..at])
}

impl Labels {
    /// Checks the bounds in this file, of the texts and of their stored form.
    ///
    /// Errors: the field's name and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, Invalid)> {
        let within = |field, texts: &[&str], max: usize| {
            let (len, stored): (usize, usize) =
                texts.iter().fold((0, 0), |(len, stored), text| (len + text.len(), stored + json_len(text)));
            let invalid = |text| Err((field, Invalid(text)));
            match (len > max, stored > max) {
                (true, _) => invalid(format!("{len} bytes; at most {max} are allowed")),
                (false, true) => invalid(format!(
                    "{stored} bytes when quotes, backslashes and control characters are written as in JSON; at most {max} are allowed"
                )),
                (false, false) => Ok(()),
            }
        };
        within("owner", &[&self.owner], OWNER_MAX_BYTES)?;
        within("note", &[&self.note], NOTE_MAX_BYTES)?;
        if self.metadata.len() > METADATA_MAX_PAIRS {
            let text = format!("{} pairs; at most {METADATA_MAX_PAIRS} are allowed", self.metadata.len());
            return Err(("metadata", Invalid(text)));
        }
        let pairs: Vec<&str> = self.metadata.iter().flat_map(|(key, value)| [&**key, &**value]).collect();
        within("metadata", &pairs, METADATA_MAX_BYTES)
    }

    /// The JSON text in a lock's value.
    pub fn encode(&self) -> Arc<str> {
        serde_json::to_string(self).expect("labels are plain strings").into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_over_their_bounds_are_refused_with_the_field_name() {
        let labels = Labels { owner: "x".repeat(129), ..Labels::default() };
        assert_eq!(labels.check().map_err(|(field, _)| field), Err("owner"));
        for (stored, is_accepted) in [(128, true), (129, false)] {
            // Two bytes of each quote, six of a control character.
            let owner = "\"".repeat(61) + "\u{1}" + &"x".repeat(stored - 128);
            assert_eq!(json_len(&owner), stored);
            assert_eq!(serde_json::to_string(&owner).expect("text").len() - 2, stored);
            assert_eq!(Labels { owner, ..Labels::default() }.check().is_ok(), is_accepted);
        }
        let labels = Labels { note: "x".repeat(513), ..Labels::default() };
        assert_eq!(labels.check().map_err(|(field, _)| field), Err("note"));
        let pairs = (0..17).map(|i| (i.to_string(), String::new())).collect();
        let labels = Labels { metadata: pairs, ..Labels::default() };
        assert_eq!(labels.check().map_err(|(field, _)| field), Err("metadata"));
    }

    proptest! {
        #[test]
        fn encoded_labels_are_parsed_back(owner in ".{0,40}", note in ".{0,40}", k in ".{0,10}", v in ".{0,10}") {
            let metadata = [(k, v)].into();
            let labels = Labels { owner, note, metadata, acquired_at_ms: 7, principal: "0f".into(), kept_until_ms: 8 };
            let back: Labels = serde_json::from_str(&labels.encode()).expect("own encoding");
            prop_assert_eq!(back, labels);
        }
    }
}
