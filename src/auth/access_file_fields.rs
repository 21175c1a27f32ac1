//! Reads single fields of the access file's tables, and collects the mistakes in them. No message repeats a value that may be a
//! misplaced secret.

use super::api_key::KEY_PREFIX;
use crate::types::Invalid;

/// A text of the file for a message; hidden if it looks like a key.
pub(super) fn shown(text: &str) -> String {
    const SHOWN_MAX_CHARS: usize = 40;
    if text.contains(KEY_PREFIX) || text.chars().count() > SHOWN_MAX_CHARS {
        return "(not shown)".to_owned();
    }
    format!("`{}`", text.escape_debug())
}

/// Hides everything in a message that looks like a key: keys are easily misplaced where hashes, names or rules belong, and
/// messages are logged.
fn without_keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(KEY_PREFIX) {
        out.push_str(before);
        out.push_str("(a key, not shown)");
        let end = behind.find(|c: char| c.is_whitespace() || c == '`').unwrap_or(behind.len());
        rest = &behind[end..];
    }
    out.push_str(rest);
    out
}

/// Parses one table and collects the mistakes in it.
pub(super) struct Reader<'a> {
    /// The table, as messages name it.
    pub(super) place: String,
    /// The mistakes of the whole file.
    pub(super) mistakes: &'a mut Vec<String>,
}

impl Reader<'_> {
    /// Adds a mistake at the present place; keys in it are hidden.
    pub(super) fn report(&mut self, mistake: impl std::fmt::Display) {
        self.mistakes.push(without_keys(&format!("has a mistake in {}: {mistake}", self.place)));
    }

    /// The value of a check; a mistake is added to the others.
    pub(super) fn check<T>(&mut self, field: &str, parsed: Result<T, Invalid>) -> Option<T> {
        parsed.map_err(|why| self.report(format_args!("{field}: {why}"))).ok()
    }

    /// Reports the fields of a table that are not in `known`.
    pub(super) fn check_fields(&mut self, table: &toml::Table, known: &[&str]) {
        for key in table.keys().filter(|key| !known.contains(&key.as_str())) {
            self.report(format_args!("{} is unknown; the fields are {}", shown(key), known.join(", ")));
        }
    }

    /// A list of texts; empty if it is missing or wrong.
    pub(super) fn texts(&mut self, field: &str, value: Option<&toml::Value>, maximum: usize) -> Vec<String> {
        let Some(value) = value else { return Vec::new() };
        let texts: Option<Vec<String>> =
            value.as_array().and_then(|items| items.iter().map(|item| item.as_str().map(str::to_owned)).collect());
        match texts {
            Some(texts) if texts.len() <= maximum => texts,
            Some(texts) => {
                self.report(format_args!("`{field}` has {} entries, but must have at most {maximum}", texts.len()));
                Vec::new()
            }
            None => {
                self.report(format_args!("`{field}` must be a list of texts"));
                Vec::new()
            }
        }
    }

    /// A whole number of at least 1.
    pub(super) fn number(&mut self, field: &str, table: &toml::Table, maximum: usize) -> Option<usize> {
        let value = table.get(field)?;
        let number = value.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=maximum).contains(n));
        if number.is_none() {
            self.report(format_args!("`{field}` must be a whole number from 1 to {maximum}"));
        }
        number
    }
}
