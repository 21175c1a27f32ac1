//! Settings as written, before any check: the common form of file, environment and command line.

use std::collections::BTreeMap;
use std::fmt;

use super::error::Origin;
use super::secret::Secret;

/// A node as written.
#[derive(Debug, Clone)]
pub(super) struct NodeEntry {
    pub(super) name: Option<String>,
    pub(super) url: Secret,
    pub(super) password_file: Option<String>,
}

impl NodeEntry {
    /// Reads `URL` or `NAME=URL`.
    pub(super) fn split(text: &str) -> Self {
        let scheme_end = text.find("://").unwrap_or(text.len());
        match text[..scheme_end].split_once('=') {
            Some((name, _)) => {
                Self { name: Some(name.into()), url: Secret::new(&text[name.len() + 1..]), password_file: None }
            }
            None => Self { name: None, url: Secret::new(text), password_file: None },
        }
    }
}

/// A value as written.
#[derive(Debug, Clone)]
pub(super) enum RawValue {
    /// From the environment or the command line.
    Text(String),
    /// A value of the settings file.
    Toml(toml::Value),
    /// Nodes from `--node` or `[[node]]`.
    Nodes(Vec<NodeEntry>),
}

impl RawValue {
    /// A text; quoted in a file.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Toml(toml::Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// A number, true or false: not quoted in a file, a text elsewhere.
    pub(super) fn bare(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Toml(toml::Value::String(_)) | Self::Nodes(_) => None,
            Self::Toml(other) => Some(other.to_string()),
        }
    }

    /// A list of texts: an array in a file; elsewhere an array or text with commas. Empty text is an empty list.
    pub(super) fn list(&self) -> Option<Vec<String>> {
        let texts = |items: &[toml::Value]| items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
        match self {
            Self::Toml(toml::Value::Array(items)) => texts(items),
            Self::Text(text) if text.trim_start().starts_with('[') => {
                let table: toml::Table = format!("list = {text}").parse().ok()?;
                texts(table.get("list")?.as_array()?)
            }
            Self::Text(text) if text.trim().is_empty() => Some(Vec::new()),
            Self::Text(text) => Some(text.split(',').map(|part| part.trim().to_owned()).collect()),
            _ => None,
        }
    }
}

/// The form in which messages repeat it, before passwords are removed.
impl fmt::Display for RawValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Toml(toml::Value::String(text)) => write!(f, "\"{text}\""),
            Self::Toml(other) => other.fmt(f),
            Self::Nodes(_) => Ok(()),
        }
    }
}

/// Settings from one origin. If a key is put twice, the later value counts.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) origin: Origin,
    pub(super) entries: BTreeMap<String, RawValue>,
}

impl Layer {
    pub(super) fn new(origin: Origin) -> Self {
        Self { origin, entries: BTreeMap::new() }
    }

    pub(super) fn put(&mut self, key: impl Into<String>, raw: RawValue) {
        self.entries.insert(key.into(), raw);
    }
}
