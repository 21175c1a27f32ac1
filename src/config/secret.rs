//! Text that must not be printed, such as node URLs with passwords.

use std::fmt;

/// A secret text. `Debug` hides it and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for connecting.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// `text` with user and password of each URL replaced by `…`, for messages that repeat input. It removes everything from
/// `://` to the last `@` before the next space, and everything after a `?`, where a socket's URL has its password.
pub fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let word_end = after.find(char::is_whitespace).unwrap_or(after.len());
        let (word, tail) = after.split_at(word_end);
        let (host, query) = (word.rfind('@'), word.find('?'));
        match (host.unwrap_or(0), query.unwrap_or(word.len())) {
            // Either sign may be part of a password.
            (host, query) if query < host => out.push('…'),
            (from, to) => {
                out.push_str(if host.is_some() { "…" } else { "" });
                out.push_str(&word[from..to]);
                out.push_str(if query.is_some() { "?…" } else { "" });
            }
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }

    #[test]
    fn users_and_passwords_are_removed_from_urls() {
        for (raw, shown) in [
            ("redis://u:p@h:1/2", "redis://…@h:1/2"),
            ("a=redis://:p@ss@h b=rediss://q@i x", "a=redis://…@h b=rediss://…@i x"),
            ("redis://:p@h,redis://:q@i", "redis://…@i"),
            ("redis://h:1", "redis://h:1"),
            ("mail@example", "mail@example"),
            ("unix:///run/a.sock?db=1&pass=p x", "unix:///run/a.sock?… x"),
            ("unix:///run/a.sock?pass=p@q", "unix://…"),
            ("redis://u:p?q@h:1", "redis://…"),
            ("redis://u:p@h:1/2?protocol=resp3", "redis://…@h:1/2?…"),
        ] {
            assert_eq!(redact(raw), shown);
        }
    }

    proptest! {
        #[test]
        fn no_password_survives(before in "\\PC{0,10}", password in "[a-z@/:#?]{0,12}SECRET[a-z@/:#?]{0,12}") {
            for url in [format!("redis://user:{password}@host"), format!("unix:///run/a.sock?pass={password}")] {
                let shown = redact(&format!("{before}{url}"));
                prop_assert!(!shown.contains("SECRET"), "{}", shown);
            }
        }
    }
}
