//! The table of settings: name, form and range of each. The file, the environment, the flags, the
//! shipped defaults and the README are all held against it. Knows no value.

use std::time::Duration;

use super::nodes::MAX_NODES;
use crate::duration::format_duration;

/// What our environment variables begin with.
pub const VARIABLE_PREFIX: &str = "REDLOCKD_";

/// What a value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// IP address and port.
    Address,
    /// Node URLs.
    Nodes,
    /// `key_template`.
    Template,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A duration within these bounds, both included.
    Duration {
        /// Least, milliseconds.
        min_ms: u64,
        /// Most, milliseconds.
        max_ms: u64,
    },
    /// A whole number within these bounds, both included.
    Integer {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// An odd whole number within these bounds, both included.
    Odd {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A path; empty is none.
    Path,
    /// true or false.
    Flag,
    /// Networks.
    Networks,
    /// Names of hosts, with commas between them; empty is none.
    Hosts,
}

impl Form {
    /// What a value must be, to stand after "must be".
    pub fn describe(&self) -> String {
        match self {
            Self::Address => "an IP address and a port, such as 127.0.0.1:5625".into(),
            Self::Nodes => "a list of node URLs, such as [\"redis://10.0.0.1:6379\"]".into(),
            Self::Template => "a text with {resource} in it".into(),
            Self::Choice(words) => format!("one of {}", words.join(", ")),
            Self::Duration { min_ms, max_ms } => format!("a duration from {} to {}", spell(*min_ms), spell(*max_ms)),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Odd { min, max } => format!("an odd whole number from {min} to {max}"),
            Self::Path => "a path".into(),
            Self::Flag => "true or false".into(),
            Self::Networks => "a list of networks, such as [\"10.0.0.0/8\"]".into(),
            Self::Hosts => "names of hosts without ports, with commas between them".into(),
        }
    }
}

fn spell(ms: u64) -> String {
    format_duration(Duration::from_millis(ms))
}

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// As in the file.
    pub name: &'static str,
    /// What its value looks like.
    pub form: Form,
}

impl Key {
    /// The key of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("{}{}", VARIABLE_PREFIX, self.name.to_ascii_uppercase())
    }
}

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

const fn key(name: &'static str, form: Form) -> Key {
    Key { name, form }
}

const fn duration(name: &'static str, min_ms: u64, max_ms: u64) -> Key {
    key(name, Form::Duration { min_ms, max_ms })
}

const fn integer(name: &'static str, min: u64, max: u64) -> Key {
    key(name, Form::Integer { min, max })
}

/// Every setting, in the order of `config/redlockd.toml`, which says what each is for.
pub const KEYS: &[Key] = &[
    key("listen", Form::Address),
    key("access_file", Form::Path),
    key("insecure_no_auth", Form::Flag),
    integer("requests_per_second", 1, 1_000_000),
    integer("leases_per_principal", 1, 1_000_000),
    integer("waiters_per_principal", 1, 1_000_000),
    key("listen_tls_cert", Form::Path),
    key("listen_tls_key", Form::Path),
    key("listen_tls_client_ca", Form::Path),
    key("trusted_proxies", Form::Networks),
    integer("max_connections", 16, 1_000_000),
    duration("idle_timeout", SECOND, HOUR),
    duration("header_timeout", 100, 5 * MINUTE),
    integer("head_limit", 8192, 1 << 20),
    integer("uri_limit", 1024, 65_535),
    duration("body_timeout", 100, 5 * MINUTE),
    integer("body_limit", 1024, 1 << 20),
    duration("max_wait", 0, HOUR),
    duration("max_hold", SECOND, 720 * HOUR),
    integer("waiters_per_resource", 1, 100_000),
    integer("waiters_total", 1, 1_000_000),
    key("deadlock_detection", Form::Choice(&["on", "off"])),
    duration("drain_timeout", 0, 10 * MINUTE),
    key("ui", Form::Choice(&["on", "off"])),
    key("allowed_hosts", Form::Hosts),
    key("nodes", Form::Nodes),
    key("node_password_file", Form::Path),
    key("embedded_nodes", Form::Odd { min: 1, max: MAX_NODES as u64 }),
    key("data_dir", Form::Path),
    key("key_template", Form::Template),
    key("identity", Form::Choice(&["handshake", "script"])),
    duration("node_timeout", 1, 10 * SECOND),
    duration("connect_timeout", 10, 30 * SECOND),
    integer("lanes", 1, 16),
    integer("max_in_flight", 16, 1_000_000),
    integer("cleanup_limit", 16, 1_000_000),
    duration("list_refresh", 100, 5 * MINUTE),
    key("tls_ca", Form::Path),
    key("tls_cert", Form::Path),
    key("tls_key", Form::Path),
    duration("default_ttl", 10, 24 * HOUR),
    duration("min_ttl", 10, HOUR),
    duration("max_ttl", SECOND, 24 * HOUR),
    integer("drift_ppm", 1_000, 200_000),
    duration("drift_floor", 1, SECOND),
    duration("guard", 10, 30 * SECOND),
    duration("lock_delay", 20, 2 * MINUTE),
    integer("min_validity_percent", 1, 90),
    duration("retry_min", 1, 10 * SECOND),
    duration("retry_max", 1, MINUTE),
    duration("fence_ttl", MINUTE, 720 * HOUR),
    key("log_format", Form::Choice(&["text", "json"])),
    key("log_level", Form::Choice(&["error", "warn", "info", "debug", "trace"])),
    key("audit_log", Form::Path),
    integer("worker_threads", 0, 256),
];

/// The candidate that `word` was most likely meant to be: the one with the fewest letters to
/// change, if those are at most two, or a third of the word.
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    /// A longer word is no slip of the pen, and comparing costs its length.
    const WORD_MAX_CHARS: usize = 64;
    let word: Vec<char> = word.chars().take(WORD_MAX_CHARS + 1).map(|c| c.to_ascii_lowercase()).collect();
    if word.len() > WORD_MAX_CHARS {
        return None;
    }
    let allowed = (word.len() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .min_by_key(|(d, _)| *d)
        .filter(|(d, candidate)| *d <= allowed && *d < candidate.len())
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance: letters to insert, delete or replace. `-` counts as `_`.
fn distance(word: &[char], candidate: &str) -> usize {
    let mut row: Vec<usize> = (0..=word.len()).collect();
    for (i, c) in candidate.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, w) in word.iter().enumerate() {
            let same = *w == c || (*w == '-' && c == '_');
            let replaced = diagonal + usize::from(!same);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[word.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names() -> impl Iterator<Item = &'static str> {
        KEYS.iter().map(|k| k.name)
    }

    #[test]
    fn names_are_unique() {
        let unique: std::collections::BTreeSet<_> = names().collect();
        assert_eq!(unique.len(), KEYS.len());
    }

    #[test]
    fn slips_of_the_pen_are_understood() {
        for (slip, meant) in [
            ("lisen", Some("listen")),
            ("node-timeout", Some("node_timeout")),
            ("Node_Timeout", Some("node_timeout")),
            ("nodetimeout", Some("node_timeout")),
            ("max_tll", Some("max_ttl")),
            ("node", Some("nodes")),
            ("frobnicate", None),
            ("", None),
        ] {
            assert_eq!(nearest(slip, names()), meant, "{slip}");
        }
    }

    proptest! {
        #[test]
        fn distance_is_a_distance(a in "[a-c_]{0,8}", b in "[a-c_]{0,8}") {
            let chars = |s: &str| s.chars().collect::<Vec<_>>();
            let d = distance(&chars(&a), &b);
            prop_assert_eq!(d, distance(&chars(&b), &a));
            prop_assert_eq!(d == 0, a == b);
            prop_assert!(d <= a.len().max(b.len()) && d >= a.len().abs_diff(b.len()));
        }
    }
}
