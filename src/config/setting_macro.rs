//! The expansion of the declaration in `settings.rs`, and the record of each setting.

use super::error::{ConfigError, Origin};
use super::raw::RawValue;
use super::value_types::{ValueError, ValueType};

/// Prefix of the environment variables.
pub const VARIABLE_PREFIX: &str = "REDLOCKD_";

/// Former names of settings, with the present ones.
const RENAMED: &[(&str, &str)] = &[("lanes", "connections_per_node")];

/// The data of one setting for documents and lookups.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name in files and in `--set`.
    pub name: &'static str,
    /// The group that lists the setting.
    pub section: &'static str,
    /// Lines: the meaning, `Range:` (limits besides the type; optional), `Why:`.
    pub doc: &'static [&'static str],
    /// Its default, as TOML.
    pub default: &'static str,
    range: fn() -> String,
}

impl Setting {
    pub(super) const fn new(
        name: &'static str,
        section: &'static str,
        doc: &'static [&'static str],
        default: &'static str,
        range: fn() -> String,
    ) -> Self {
        Self { name, section, doc, default, range }
    }

    /// The allowed values of the setting's type.
    pub fn range(&self) -> String {
        (self.range)()
    }

    /// The environment variable of the setting.
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.to_ascii_uppercase())
    }
}

/// Declares the settings:
/// `"SECTION" { /// WHAT /// Range: NOTE /// Why: REASON  NAME: TYPE = DEFAULT in VALUE_TYPE; … } …`
macro_rules! settings {
    ($($section:literal {
        $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:tt in $values:expr;)+
    })+) => {
        /// Every setting, checked and typed. [`super::Inputs::load`] creates one.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config {
            $($($(#[doc = $doc])+ pub $name: $type,)+)+
            pub(super) origins: BTreeMap<&'static str, Origin>,
        }

        /// Every setting, in the order of `config/redlockd.toml`.
        pub const SETTINGS: &[$crate::config::setting_macro::Setting] = &[$($(
            $crate::config::setting_macro::Setting::new(
                stringify!($name), $section, &[$($doc),+], stringify!($default),
                || $crate::config::setting_macro::range::<$type>($values),
            ),
        )+)+];

        impl Config {
            /// The declared defaults.
            pub(super) fn declared() -> Self {
                Self {
                    $($($name: $crate::config::setting_macro::default(stringify!($name), $values, stringify!($default)),)+)+
                    origins: SETTINGS.iter().map(|setting| (setting.name, Origin::Default)).collect(),
                }
            }

            /// Sets one setting. Errors: [`ConfigError`]; the setting is then unchanged.
            pub(super) fn set(&mut self, name: &str, origin: Origin, raw: RawValue) -> Result<(), ConfigError> {
                let name = match name {
                    $($(stringify!($name) => {
                        self.$name = $crate::config::setting_macro::read(stringify!($name), $values, origin, raw)?;
                        stringify!($name)
                    })+)+
                    unknown => return Err($crate::config::setting_macro::unknown(unknown, origin)),
                };
                self.origins.insert(name, origin);
                Ok(())
            }

            /// A setting's value as TOML, without passwords; `None` if there is no such setting.
            pub fn value_of(&self, name: &str) -> Option<toml::Value> {
                match name {
                    $($(stringify!($name) => Some(($values.to_toml)(&self.$name)),)+)+
                    _ => None,
                }
            }

            /// The layer that set a setting; `None` if there is no such setting.
            pub fn origin_of(&self, name: &str) -> Option<Origin> {
                self.origins.get(name).copied()
            }
        }
    };
}
pub(super) use settings;

pub(super) fn range<T>(values: ValueType<T>) -> String {
    values.range
}

/// A declared default. Every default is within its range (tested).
pub(super) fn default<T>(name: &str, values: ValueType<T>, toml: &str) -> T {
    let mut table: toml::Table = format!("default = {toml}").parse().expect("a default is TOML");
    let raw = RawValue::Toml(table.remove("default").expect("it was just written"));
    read(name, values, Origin::Default, raw).unwrap_or_else(|error| panic!("{error}"))
}

/// Reads one value. Errors: [`ConfigError::Value`].
pub(super) fn read<T>(name: &str, values: ValueType<T>, origin: Origin, raw: RawValue) -> Result<T, ConfigError> {
    let written = raw.to_string();
    (values.read)(&raw).map_err(|refusal| match refusal {
        ValueError::Hint(hint) => {
            ConfigError::value(name, origin, &written, format!("must be {}{hint}", values.requirement))
        }
        ValueError::Sentence(sentence) => ConfigError::hidden(name, origin, sentence),
    })
}

pub(super) fn unknown(name: &str, origin: Origin) -> ConfigError {
    match renamed(name) {
        Some(present) => ConfigError::Renamed { key: name.to_owned(), origin, present },
        None => {
            let nearest = nearest(name, super::settings::SETTINGS.iter().map(|setting| setting.name));
            ConfigError::UnknownKey { key: name.to_owned(), origin, nearest }
        }
    }
}

/// The present name of a renamed setting.
pub(super) fn renamed(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(former, _)| *former == name).map(|(_, present)| *present)
}

/// The candidate that `word` probably means: the one with the fewest letters to change, if at most two or a third of the word
/// have to change.
pub(super) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    /// A longer word is not a typing error, and comparing costs its length.
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

/// Levenshtein distance: letters to insert, delete or replace. `-` counts as `_`.
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
    use super::super::SETTINGS;
    use super::*;
    use proptest::prelude::*;

    fn names() -> impl Iterator<Item = &'static str> {
        SETTINGS.iter().map(|setting| setting.name)
    }

    #[test]
    fn names_are_unique() {
        let unique: std::collections::BTreeSet<_> = names().collect();
        assert_eq!(unique.len(), SETTINGS.len());
    }

    #[test]
    fn former_names_are_free_and_present_names_exist() {
        for (former, present) in RENAMED {
            assert!(names().all(|name| name != *former) && names().any(|name| name == *present));
        }
    }

    #[test]
    fn every_setting_says_what_it_is_and_why() {
        for Setting { name, doc, .. } in SETTINGS {
            assert!(!doc[0].starts_with(" Range:") && !doc[0].starts_with(" Why:"), "{name}");
            assert_eq!(doc.iter().filter(|line| line.starts_with(" Why: ")).count(), 1, "{name}");
        }
    }

    #[test]
    fn typing_errors_are_matched_to_the_nearest_name() {
        for (typed, meant) in [
            ("lisen", Some("listen")),
            ("node-timeout", Some("node_timeout")),
            ("Node_Timeout", Some("node_timeout")),
            ("nodetimeout", Some("node_timeout")),
            ("max_tll", Some("max_ttl")),
            ("node", Some("nodes")),
            ("frobnicate", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names()), meant, "{typed}");
        }
    }

    proptest! {
        #[test]
        fn distance_is_a_metric(a in "[a-c_]{0,8}", b in "[a-c_]{0,8}") {
            let chars = |s: &str| s.chars().collect::<Vec<_>>();
            let d = distance(&chars(&a), &b);
            prop_assert_eq!(d, distance(&chars(&b), &a));
            prop_assert_eq!(d == 0, a == b);
            prop_assert!(d <= a.len().max(b.len()) && d >= a.len().abs_diff(b.len()));
        }
    }
}
