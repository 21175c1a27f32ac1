//! The rule by which layers lie over each other: key by key, the later layer prevails, and a list
//! replaces a list. Knows no key's meaning.

use std::collections::BTreeMap;

use super::error::{ConfigError, Origin};
use super::keys::{KEYS, Key, nearest};
use super::nodes::NodeSpec;
use super::raw::Layer;
use super::value::{self, Value};

/// Checked values, each with its origin.
#[derive(Debug, Default)]
pub(super) struct Values {
    values: BTreeMap<&'static str, (Value, Origin)>,
}

/// Each accessor panics where the key is missing or of another form: the shipped defaults name
/// every key, and [`value::check`] gives the form of the table (both tested).
impl Values {
    /// Lays one layer over what is there. What is wrong with it goes to `errors`.
    pub(super) fn lay(&mut self, layer: Layer, errors: &mut Vec<ConfigError>) {
        for (name, raw) in layer.entries {
            let Some(key) = Key::find(&name) else {
                let nearest = nearest(&name, KEYS.iter().map(|k| k.name));
                errors.push(ConfigError::UnknownKey { key: name, origin: layer.origin, nearest });
                continue;
            };
            match value::check(key, layer.origin, raw) {
                Ok(value) => drop(self.values.insert(key.name, (value, layer.origin))),
                Err(error) => errors.push(error),
            }
        }
    }

    /// Where each value came from.
    pub(super) fn origins(&self) -> BTreeMap<&'static str, Origin> {
        self.values.iter().map(|(name, (_, origin))| (*name, *origin)).collect()
    }

    fn get(&self, name: &str) -> &Value {
        &self.values.get(name).expect("the shipped defaults name every key").0
    }

    pub(super) fn duration(&self, name: &str) -> std::time::Duration {
        match self.get(name) {
            Value::Duration(value) => *value,
            other => unreachable!("{name} is a duration in the table, not {other:?}"),
        }
    }

    /// A whole number; the range in the table must fit the target.
    pub(super) fn integer<T: TryFrom<u64>>(&self, name: &str) -> T {
        match self.get(name) {
            Value::Integer(value) => T::try_from(*value).ok().expect("the range in the table fits the type"),
            other => unreachable!("{name} is a number in the table, not {other:?}"),
        }
    }

    pub(super) fn text(&self, name: &str) -> &str {
        match self.get(name) {
            Value::Text(value) => value,
            other => unreachable!("{name} is a text in the table, not {other:?}"),
        }
    }

    /// What stands between commas.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        self.text(name).split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    pub(super) fn path(&self, name: &str) -> Option<std::path::PathBuf> {
        Some(self.text(name)).filter(|text| !text.is_empty()).map(std::path::PathBuf::from)
    }

    pub(super) fn address(&self, name: &str) -> std::net::SocketAddr {
        match self.get(name) {
            Value::Address(value) => *value,
            other => unreachable!("{name} is an address in the table, not {other:?}"),
        }
    }

    pub(super) fn networks(&self, name: &str) -> Vec<ipnet::IpNet> {
        match self.get(name) {
            Value::Networks(value) => value.clone(),
            other => unreachable!("{name} is a list of networks in the table, not {other:?}"),
        }
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        match self.get(name) {
            Value::Flag(value) => *value,
            other => unreachable!("{name} is a flag in the table, not {other:?}"),
        }
    }

    pub(super) fn nodes(&self, name: &str) -> Vec<NodeSpec> {
        match self.get(name) {
            Value::Nodes(value) => value.clone(),
            other => unreachable!("{name} is a list of nodes in the table, not {other:?}"),
        }
    }
}
