//! The types of values: how each is read from what was written, which values it allows, and how it is written as TOML.

use std::fmt::Display;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

use super::raw::RawValue;
use crate::duration::{format_duration, parse_duration};
use crate::nodes::redis::Identity;
use crate::protocol::keys::{KeyTemplate, TEMPLATE_MAX_BYTES};
use crate::types::RESERVED_PREFIX;

/// Maximum number of trusted networks: proxies are usually in a few.
const NETWORKS_MAX: usize = 64;
/// Maximum number of names in `allowed_hosts`, and the maximum length of one (RFC 1035).
const HOSTS_MAX: usize = 32;
const HOST_MAX_BYTES: usize = 253;
/// Why a value was refused.
pub(super) enum Refusal {
    /// Continues the sentence "NAME is VALUE, but must be REQUIREMENT"; may be empty.
    Hint(String),
    /// Continues "NAME in ORIGIN", for values that must not be shown.
    Sentence(String),
}

impl Refusal {
    fn hint(text: impl Into<String>) -> Self {
        Self::Hint(text.into())
    }
}

/// A type of values, with its bounds.
pub(super) trait ValueType {
    /// What a value is once it is checked.
    type Value;
    /// Completes "must be …".
    fn requirement(&self) -> String;
    /// The same for documents.
    fn range(&self) -> String {
        self.requirement()
    }
    /// Checks a value.
    fn read(&self, raw: RawValue) -> Result<Self::Value, Refusal>;
    /// Writes a value, without passwords.
    fn to_toml(&self, value: &Self::Value) -> toml::Value;
}

/// IP address and port.
pub(super) struct Address;

impl ValueType for Address {
    type Value = SocketAddr;

    fn requirement(&self) -> String {
        "an IP address and a port, such as 127.0.0.1:5625".into()
    }

    fn read(&self, raw: RawValue) -> Result<SocketAddr, Refusal> {
        raw.text().and_then(|text| text.parse().ok()).ok_or_else(|| Refusal::hint(""))
    }

    fn to_toml(&self, value: &SocketAddr) -> toml::Value {
        value.to_string().into()
    }
}

/// A path; empty is none.
pub(super) struct Path;

impl ValueType for Path {
    type Value = Option<PathBuf>;

    fn requirement(&self) -> String {
        "a path".into()
    }

    fn read(&self, raw: RawValue) -> Result<Option<PathBuf>, Refusal> {
        let path = Directory.read(raw)?;
        Ok(Some(path).filter(|path| !path.as_os_str().is_empty()))
    }

    fn to_toml(&self, value: &Option<PathBuf>) -> toml::Value {
        Directory.to_toml(value.as_ref().unwrap_or(&PathBuf::new()))
    }
}

/// A path; empty where the environment decides.
pub(super) struct Directory;

impl ValueType for Directory {
    type Value = PathBuf;

    fn requirement(&self) -> String {
        Path.requirement()
    }

    fn read(&self, raw: RawValue) -> Result<PathBuf, Refusal> {
        raw.text().filter(|text| !text.contains('\0')).map(PathBuf::from).ok_or_else(|| Refusal::hint(""))
    }

    fn to_toml(&self, value: &PathBuf) -> toml::Value {
        value.display().to_string().into()
    }
}

/// true or false.
pub(super) struct Flag;

impl ValueType for Flag {
    type Value = bool;

    fn requirement(&self) -> String {
        "true or false".into()
    }

    fn read(&self, raw: RawValue) -> Result<bool, Refusal> {
        let present = match raw.text() {
            Some("on") => ": write true (\"on\" until 0.1.0)",
            Some("off") => ": write false (\"off\" until 0.1.0)",
            _ => "",
        };
        raw.bare().and_then(|text| text.parse().ok()).ok_or_else(|| Refusal::hint(present))
    }

    fn to_toml(&self, value: &bool) -> toml::Value {
        (*value).into()
    }
}

/// A whole number within these bounds.
pub(super) struct Integer<T>(pub(super) RangeInclusive<T>);

impl<T: FromStr + PartialOrd + Display + Copy> ValueType for Integer<T> {
    type Value = T;

    fn requirement(&self) -> String {
        format!("a whole number from {}", self.range())
    }

    fn range(&self) -> String {
        format!("{} to {}", self.0.start(), self.0.end())
    }

    fn read(&self, raw: RawValue) -> Result<T, Refusal> {
        let Some(text) = raw.bare() else { return Err(Refusal::hint(", without quotation marks")) };
        let number =
            Some(text).filter(|text| text.bytes().all(|b| b.is_ascii_digit())).and_then(|text| text.parse().ok());
        number.filter(|number| self.0.contains(number)).ok_or_else(|| Refusal::hint(""))
    }

    fn to_toml(&self, value: &T) -> toml::Value {
        value.to_string().parse().map_or_else(|_| value.to_string().into(), toml::Value::Integer)
    }
}

/// An odd whole number within these bounds.
pub(super) struct OddInteger(pub(super) RangeInclusive<usize>);

impl ValueType for OddInteger {
    type Value = usize;

    fn requirement(&self) -> String {
        format!("an odd whole number from {} to {}", self.0.start(), self.0.end())
    }

    fn range(&self) -> String {
        format!("odd, {} to {}", self.0.start(), self.0.end())
    }

    fn read(&self, raw: RawValue) -> Result<usize, Refusal> {
        let number = Integer(self.0.clone()).read(raw)?;
        Some(number).filter(|number| number % 2 == 1).ok_or_else(|| Refusal::hint(""))
    }

    fn to_toml(&self, value: &usize) -> toml::Value {
        Integer(self.0.clone()).to_toml(value)
    }
}

/// A duration within these bounds, in milliseconds.
pub(super) struct Period(pub(super) RangeInclusive<u64>);

impl ValueType for Period {
    type Value = Duration;

    fn requirement(&self) -> String {
        format!("a duration from {}", self.range())
    }

    fn range(&self) -> String {
        let [min, max] = [self.0.start(), self.0.end()].map(|ms| format_duration(Duration::from_millis(*ms)));
        format!("{min} to {max}")
    }

    fn read(&self, raw: RawValue) -> Result<Duration, Refusal> {
        let range = Duration::from_millis(*self.0.start())..=Duration::from_millis(*self.0.end());
        let in_range = |text: &str| parse_duration(text).ok().filter(|d| range.contains(d));
        let text = raw.text().map(str::to_owned).or_else(|| raw.bare()).unwrap_or_default();
        in_range(&text).ok_or_else(|| {
            // A bare number: offer the first unit that brings it into the range.
            let bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let meant = ["s", "ms", "m", "h"].map(|unit| format!("{text}{unit}"));
            let meant = meant.iter().filter(|_| bare).find_map(|text| in_range(text));
            Refusal::hint(meant.map_or(String::new(), |d| format!(": did you mean \"{}\"?", format_duration(d))))
        })
    }

    fn to_toml(&self, value: &Duration) -> toml::Value {
        format_duration(*value).into()
    }
}

/// One of the words of an enumeration.
pub(super) struct OneOf<T>(PhantomData<T>);

impl<T> OneOf<T> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

/// An enumeration, each variant with its word.
pub(super) trait Words: Sized + Copy + PartialEq + 'static {
    const WORDS: &'static [(Self, &'static str)];
}

impl<T: Words> ValueType for OneOf<T> {
    type Value = T;

    fn requirement(&self) -> String {
        format!("one of {}", self.range())
    }

    fn range(&self) -> String {
        T::WORDS.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(", ")
    }

    fn read(&self, raw: RawValue) -> Result<T, Refusal> {
        let found = T::WORDS.iter().find(|(_, word)| raw.text() == Some(word));
        found.map(|(value, _)| *value).ok_or_else(|| Refusal::hint(""))
    }

    fn to_toml(&self, value: &T) -> toml::Value {
        T::WORDS.iter().find(|(variant, _)| variant == value).map_or("", |(_, word)| word).into()
    }
}

macro_rules! words {
    ($($(#[$doc:meta])+ $name:ident { $($(#[$variant_doc:meta])+ $variant:ident = $word:literal,)+ })+) => {$(
        $(#[$doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])+ $variant,)+ }

        impl Words for $name {
            const WORDS: &'static [(Self, &'static str)] = &[$((Self::$variant, $word)),+];
        }
    )+};
}

words! {
    /// The format of the log.
    LogFormat {
        /// For a terminal.
        Text = "text",
        /// For a log collector.
        Json = "json",
    }

    /// The lowest level that is logged.
    LogLevel {
        /// An operator must act.
        Error = "error",
        /// An operator should check.
        Warn = "warn",
        /// Start, stop, changes of nodes.
        Info = "info",
        /// Requests.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

impl Words for Identity {
    const WORDS: &'static [(Self, &'static str)] = &[(Self::Handshake, "handshake"), (Self::Script, "script")];
}

impl LogLevel {
    /// The word, as in the file.
    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(level, _)| *level == self).map_or("", |(_, word)| word)
    }
}

/// Networks; an address alone is a network of one.
pub(super) struct Networks;

impl ValueType for Networks {
    type Value = Vec<IpNet>;

    fn requirement(&self) -> String {
        format!("a list of networks, such as [\"10.0.0.0/8\"], at most {NETWORKS_MAX}")
    }

    fn range(&self) -> String {
        format!("a list of at most {NETWORKS_MAX} networks or addresses, such as [\"10.0.0.0/8\"]")
    }

    fn read(&self, raw: RawValue) -> Result<Vec<IpNet>, Refusal> {
        let read = |text: &String| text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        let texts = raw.list().filter(|texts| texts.len() <= NETWORKS_MAX);
        texts.and_then(|texts| texts.iter().map(read).collect()).ok_or_else(|| Refusal::hint(""))
    }

    fn to_toml(&self, value: &Vec<IpNet>) -> toml::Value {
        value.iter().map(ToString::to_string).collect::<Vec<_>>().into()
    }
}

/// Host names in lower case, without ports.
pub(super) struct HostNames;

impl ValueType for HostNames {
    type Value = Vec<String>;

    fn requirement(&self) -> String {
        format!("a list of host names without ports, such as [\"locks.example.org\"], at most {HOSTS_MAX}")
    }

    fn range(&self) -> String {
        format!("a list of at most {HOSTS_MAX} names without ports, such as [\"locks.example.org\"]")
    }

    fn read(&self, raw: RawValue) -> Result<Vec<String>, Refusal> {
        let Some(names) = raw.list() else {
            let former = raw.text().map(|text| RawValue::Text(text.to_owned()).list().unwrap_or_default());
            let present = former.map(|names| format!(": write {} (a list since 0.1.0)", self.to_toml(&names)));
            return Err(Refusal::hint(present.unwrap_or_default()));
        };
        let is_name = |name: &String| {
            !name.is_empty()
                && name.len() <= HOST_MAX_BYTES
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        let names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let good = names.iter().all(is_name) && names.len() <= HOSTS_MAX;
        if good { Ok(names) } else { Err(Refusal::hint("")) }
    }

    fn to_toml(&self, value: &Vec<String>) -> toml::Value {
        value.clone().into()
    }
}

/// The template of a lock's key.
pub(super) struct Template;

impl ValueType for Template {
    type Value = KeyTemplate;

    fn requirement(&self) -> String {
        "a text with {resource} in it".into()
    }

    fn range(&self) -> String {
        format!(
            "`{{resource}}` once, at most {TEMPLATE_MAX_BYTES} characters in all, of A-Z a-z 0-9 . _ ~ : @ / -; no key may \
             begin with `{RESERVED_PREFIX}`"
        )
    }

    fn read(&self, raw: RawValue) -> Result<KeyTemplate, Refusal> {
        let text = raw.text().ok_or_else(|| Refusal::hint(""))?;
        KeyTemplate::parse(text).map_err(|why| Refusal::hint(format!(": {why}")))
    }

    fn to_toml(&self, value: &KeyTemplate) -> toml::Value {
        value.to_string().into()
    }
}

#[cfg(test)]
#[path = "value_types_tests.rs"]
mod tests;
