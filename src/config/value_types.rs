//! The types of values: how each is read from its written form, which values it allows, and how it is written as TOML.

use std::fmt::Display;
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
use crate::redlock::fan_out::FanOut;
use crate::types::{OWNER_PLACE, RESERVED_PREFIX};

/// Maximum number of trusted networks: proxies are usually in a few.
const NETWORKS_MAX: usize = 64;
/// Maximum number of names in `allowed_hosts`, and maximum length of each (RFC 1035).
const HOSTS_MAX: usize = 32;
const HOST_MAX_BYTES: usize = 253;

/// Maximum length of `owner_url`.
const OWNER_URL_MAX_BYTES: usize = 512;

/// Why a value was refused.
#[derive(Debug)]
pub(super) enum ValueError {
    /// Continues the sentence "NAME is VALUE, but must be REQUIREMENT"; may be empty.
    Hint(String),
    /// Continues "NAME in ORIGIN", for values that must not be shown.
    Sentence(String),
}

fn hint(text: impl Into<String>) -> ValueError {
    ValueError::Hint(text.into())
}

fn no_hint() -> ValueError {
    hint("")
}

/// Reads a written value.
type Read<T> = dyn Fn(&RawValue) -> Result<T, ValueError>;

/// A type of values, with its bounds.
pub(super) struct ValueType<T> {
    /// Completes "must be …".
    pub(super) requirement: String,
    /// The requirement in the form for documents.
    pub(super) range: String,
    /// Checks a written value and converts it.
    pub(super) read: Box<Read<T>>,
    /// Writes a value, without passwords.
    pub(super) to_toml: fn(&T) -> toml::Value,
}

impl<T> ValueType<T> {
    pub(super) fn new(
        requirement: impl Into<String>,
        read: impl Fn(&RawValue) -> Result<T, ValueError> + 'static,
        to_toml: fn(&T) -> toml::Value,
    ) -> Self {
        let requirement = requirement.into();
        Self { range: requirement.clone(), requirement, read: Box::new(read), to_toml }
    }

    pub(super) fn with_range(self, range: impl Into<String>) -> Self {
        Self { range: range.into(), ..self }
    }
}

/// IP address and port.
pub(super) fn address() -> ValueType<SocketAddr> {
    let read = |raw: &RawValue| raw.text().and_then(|text| text.parse().ok()).ok_or_else(no_hint);
    ValueType::new("an IP address and a port, such as 127.0.0.1:5625", read, |value| value.to_string().into())
}

/// A path; if empty, the environment decides.
pub(super) fn directory() -> ValueType<PathBuf> {
    let read = |raw: &RawValue| raw.text().filter(|text| !text.contains('\0')).map(PathBuf::from).ok_or_else(no_hint);
    ValueType::new("a path", read, |value| value.display().to_string().into())
}

/// A path; empty means none.
pub(super) fn path() -> ValueType<Option<PathBuf>> {
    let directory = directory();
    let read = move |raw: &RawValue| Ok(Some((directory.read)(raw)?).filter(|path| !path.as_os_str().is_empty()));
    ValueType::new("a path", read, |value| value.as_ref().map_or_else(String::new, |p| p.display().to_string()).into())
}

/// A boolean: true or false.
pub(super) fn flag() -> ValueType<bool> {
    let read = |raw: &RawValue| {
        let present = match raw.text() {
            Some("on") => ": write true (\"on\" until 0.1.0)",
            Some("off") => ": write false (\"off\" until 0.1.0)",
            _ => "",
        };
        raw.bare().and_then(|text| text.parse().ok()).ok_or_else(|| hint(present))
    };
    ValueType::new("true or false", read, |value| (*value).into())
}

/// A whole number within these bounds.
pub(super) fn integer<T>(range: RangeInclusive<T>) -> ValueType<T>
where
    T: FromStr + PartialOrd + Display + Copy + 'static,
{
    let bounds = format!("{} to {}", range.start(), range.end());
    let read = move |raw: &RawValue| {
        let text = raw.bare().ok_or_else(|| hint(", without quotation marks"))?;
        let is_number = text.bytes().all(|b| b.is_ascii_digit());
        let number = Some(text).filter(|_| is_number).and_then(|text| text.parse().ok());
        number.filter(|number| range.contains(number)).ok_or_else(no_hint)
    };
    let to_toml = |value: &T| value.to_string().parse().map_or_else(|_| value.to_string().into(), toml::Value::Integer);
    ValueType::new(format!("a whole number from {bounds}"), read, to_toml).with_range(bounds)
}

/// An odd whole number within these bounds.
pub(super) fn odd_integer(range: RangeInclusive<usize>) -> ValueType<usize> {
    let bounds = format!("{} to {}", range.start(), range.end());
    let any = integer(range);
    let to_toml = any.to_toml;
    let read = move |raw: &RawValue| Some((any.read)(raw)?).filter(|number| number % 2 == 1).ok_or_else(no_hint);
    ValueType::new(format!("an odd whole number from {bounds}"), read, to_toml).with_range(format!("odd, {bounds}"))
}

/// A duration within these bounds, in milliseconds.
pub(super) fn period(range: RangeInclusive<u64>) -> ValueType<Duration> {
    let (min, max) = (Duration::from_millis(*range.start()), Duration::from_millis(*range.end()));
    let bounds = format!("{} to {}", format_duration(min), format_duration(max));
    let read = move |raw: &RawValue| {
        let in_range = |text: &str| parse_duration(text).ok().filter(|d| (min..=max).contains(d));
        let text = raw.text().map(str::to_owned).or_else(|| raw.bare()).unwrap_or_default();
        in_range(&text).ok_or_else(|| {
            // A bare number: suggest the first unit that brings it into the range.
            let bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let meant = ["s", "ms", "m", "h"].map(|unit| format!("{text}{unit}"));
            let meant = meant.iter().filter(|_| bare).find_map(|text| in_range(text));
            hint(meant.map_or(String::new(), |d| format!(": did you mean \"{}\"?", format_duration(d))))
        })
    };
    ValueType::new(format!("a duration from {bounds}"), read, |value: &Duration| format_duration(*value).into())
        .with_range(bounds)
}

/// An enumeration, each variant with its word.
pub(super) trait Words: Sized + Copy + PartialEq + 'static {
    const WORDS: &'static [(Self, &'static str)];
}

/// One of the words of an enumeration.
pub(super) fn one_of<T: Words>() -> ValueType<T> {
    let words = T::WORDS.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(", ");
    let read = |raw: &RawValue| {
        let found = T::WORDS.iter().find(|(_, word)| raw.text() == Some(word));
        found.map(|(value, _)| *value).ok_or_else(no_hint)
    };
    let to_toml = |value: &T| T::WORDS.iter().find(|(variant, _)| variant == value).map_or("", |(_, word)| word).into();
    ValueType::new(format!("one of {words}"), read, to_toml).with_range(words)
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
        /// Lines for people at a terminal.
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
        /// Also requests, messages and connections.
        Debug = "debug",
        /// Everything that this code and its libraries log.
        Trace = "trace",
    }
}

impl Words for FanOut {
    const WORDS: &'static [(Self, &'static str)] = &[(Self::All, "all"), (Self::Quorum, "quorum")];
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
pub(super) fn networks() -> ValueType<Vec<IpNet>> {
    let read = |raw: &RawValue| {
        let network = |text: &String| text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        let texts = raw.list().filter(|texts| texts.len() <= NETWORKS_MAX);
        texts.and_then(|texts| texts.iter().map(network).collect()).ok_or_else(no_hint)
    };
    let requirement = format!("a list of networks, such as [\"10.0.0.0/8\"], at most {NETWORKS_MAX}");
    ValueType::new(requirement, read, |value: &Vec<IpNet>| {
        value.iter().map(ToString::to_string).collect::<Vec<_>>().into()
    })
    .with_range(format!("a list of at most {NETWORKS_MAX} networks or addresses, such as [\"10.0.0.0/8\"]"))
}

/// Host names in lower case, without ports.
pub(super) fn host_names() -> ValueType<Vec<String>> {
    let read = |raw: &RawValue| {
        let Some(names) = raw.list() else {
            let former = raw.text().map(|text| RawValue::Text(text.to_owned()).list().unwrap_or_default());
            let present = former.map(|names| format!(": write {} (a list since 0.1.0)", toml::Value::from(names)));
            return Err(hint(present.unwrap_or_default()));
        };
        let is_name = |name: &String| {
            !name.is_empty()
                && name.len() <= HOST_MAX_BYTES
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        let names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let is_good = names.iter().all(is_name) && names.len() <= HOSTS_MAX;
        if is_good { Ok(names) } else { Err(no_hint()) }
    };
    let such = "such as [\"locks.example.org\"]";
    let requirement = format!("a list of host names without ports, {such}, at most {HOSTS_MAX}");
    ValueType::new(requirement, read, |value: &Vec<String>| value.clone().into())
        .with_range(format!("a list of at most {HOSTS_MAX} names without ports, {such}"))
}

/// The template of an owner's address; empty means none.
pub(super) fn owner_url() -> ValueType<String> {
    let read = |raw: &RawValue| {
        let text = raw.text().ok_or_else(no_hint)?;
        if text.is_empty() || is_owner_url(text) { Ok(text.to_owned()) } else { Err(no_hint()) }
    };
    ValueType::new(
        format!(
            "an http or https URL with {OWNER_PLACE} once, after its host, at most {OWNER_URL_MAX_BYTES} characters"
        ),
        read,
        |value: &String| value.clone().into(),
    )
}

/// An owner's name is inserted after the host, so it cannot change the host.
fn is_owner_url(text: &str) -> bool {
    let Some((before, after)) = text.split_once(OWNER_PLACE) else { return false };
    let filled = format!("{before}x{after}").parse::<axum::http::Uri>();
    let is_web = filled.is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    });
    let has_host = before.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    is_web && has_host && !before.contains('#') && !after.contains(OWNER_PLACE) && text.len() <= OWNER_URL_MAX_BYTES
}

/// The template of a lock's key.
pub(super) fn template() -> ValueType<KeyTemplate> {
    let read = |raw: &RawValue| {
        let text = raw.text().ok_or_else(no_hint)?;
        KeyTemplate::parse(text).map_err(|why| hint(format!(": {why}")))
    };
    ValueType::new("a text with {resource} in it", read, |value: &KeyTemplate| value.to_string().into()).with_range(format!(
        "`{{resource}}` once, at most {TEMPLATE_MAX_BYTES} characters in all, of A-Z a-z 0-9 . _ ~ : @ / -; no key may \
         begin with `{RESERVED_PREFIX}`"
    ))
}

#[cfg(test)]
#[path = "value_types_tests.rs"]
mod tests;
