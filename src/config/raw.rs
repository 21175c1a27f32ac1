//! Settings as they were written, before anything was checked: what the file, the environment and
//! the command line are turned into first. Knows no key.

use std::collections::BTreeMap;

use super::error::Origin;
use super::secret::Secret;

/// A node as it was written.
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

/// A value as it was written.
#[derive(Debug, Clone)]
pub(super) enum Raw {
    /// From the environment or the command line.
    Text(String),
    /// From a file.
    Toml(toml::Value),
    /// Nodes, from wherever there is more than a text for them.
    Nodes(Vec<NodeEntry>),
}

/// Settings from one origin. A key that is put twice has its later value.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) origin: Origin,
    pub(super) entries: BTreeMap<String, Raw>,
}

impl Layer {
    pub(super) fn new(origin: Origin) -> Self {
        Self { origin, entries: BTreeMap::new() }
    }

    pub(super) fn put(&mut self, key: impl Into<String>, raw: Raw) {
        self.entries.insert(key.into(), raw);
    }
}
