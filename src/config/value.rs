//! One value as it was written becomes a checked one, or an error that names the key, the value
//! and the range. Knows forms and ranges, not what a setting is for.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::error::{ConfigError, Origin};
use super::keys::{Form, Key};
use super::nodes::{self, NodeSpec};
use super::raw::Raw;
use crate::duration::{format_duration, parse_duration};
use crate::protocol::keys::KeyTemplate;

/// The most networks: whoever has more proxies has them in few networks.
const NETWORKS_MAX: usize = 64;
/// The most names in `allowed_hosts`, and the longest of them (RFC 1035).
const HOSTS_MAX: usize = 32;
const HOST_MAX_BYTES: usize = 253;

/// A value of its key's form and within its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Address(SocketAddr),
    Nodes(Vec<NodeSpec>),
    /// Also a path, a template, or one of the words of a choice.
    Text(String),
    Duration(Duration),
    Integer(u64),
    Flag(bool),
    Networks(Vec<IpNet>),
}

/// Checks one value.
///
/// Errors: [`ConfigError::Value`].
pub(super) fn check(key: &Key, origin: Origin, raw: Raw) -> Result<Value, ConfigError> {
    if key.form == Form::Nodes {
        return nodes::read(key.name, origin, raw).map(Value::Nodes);
    }
    if let (Form::Flag, Raw::Toml(toml::Value::Boolean(flag))) = (key.form, &raw) {
        return Ok(Value::Flag(*flag));
    }
    if key.form == Form::Networks {
        return networks(raw).map(Value::Networks).ok_or_else(|| {
            ConfigError::hidden(key.name, origin, format!("must be {}, at most {NETWORKS_MAX}", key.form.describe()))
        });
    }
    let (written, text) = match raw {
        Raw::Text(text) => (format!("\"{text}\""), Some(text)),
        Raw::Toml(toml::Value::String(text)) => (format!("\"{text}\""), Some(text)),
        Raw::Toml(other) => (other.to_string(), None),
        Raw::Nodes(_) => (String::new(), None),
    };
    // Numbers are bare in a file and text elsewhere; everything else is text.
    let number = if origin <= Origin::File { text.is_none().then(|| written.clone()) } else { text.clone() };
    let value = match (&key.form, text) {
        (Form::Integer { .. } | Form::Odd { .. }, _) => integer(&key.form, number.as_deref()),
        (Form::Duration { min_ms, max_ms }, text) => duration(text.as_deref().unwrap_or(&written), *min_ms, *max_ms),
        // Quoted in a file it would be a text.
        (Form::Flag, Some(text)) if origin > Origin::File && text == "true" => Ok(Value::Flag(true)),
        (Form::Flag, Some(text)) if origin > Origin::File && text == "false" => Ok(Value::Flag(false)),
        (Form::Address, Some(text)) => text.parse().map(Value::Address).map_err(|_| String::new()),
        (Form::Choice(words), Some(text)) if words.contains(&text.as_str()) => Ok(Value::Text(text)),
        (Form::Template, Some(text)) => match KeyTemplate::parse(&text) {
            Ok(_) => Ok(Value::Text(text)),
            Err(why) => Err(format!(": {why}")),
        },
        (Form::Hosts, Some(text)) => hosts(&text),
        (Form::Path, Some(text)) if !text.contains('\0') => Ok(Value::Text(text)),
        _ => Err(String::new()),
    };
    value.map_err(|hint| {
        ConfigError::value(key.name, origin, &written, format!("must be {}{hint}", key.form.describe()))
    })
}

/// A list in a file, with commas elsewhere; an address alone is a network of one.
fn networks(raw: Raw) -> Option<Vec<IpNet>> {
    let texts: Vec<String> = match raw {
        Raw::Text(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
        Raw::Toml(toml::Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>()?
        }
        _ => return None,
    };
    let read = |text: &String| text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    (texts.len() <= NETWORKS_MAX).then(|| texts.iter().map(read).collect())?
}

fn integer(form: &Form, number: Option<&str>) -> Result<Value, String> {
    let read = number.filter(|n| n.bytes().all(|b| b.is_ascii_digit())).and_then(|n| n.parse::<u64>().ok());
    let fits = |n: &u64| match form {
        Form::Integer { min, max } => (min..=max).contains(&n),
        Form::Odd { min, max } => (min..=max).contains(&n) && n % 2 == 1,
        _ => false,
    };
    read.filter(fits).map(Value::Integer).ok_or_else(|| {
        let quoted = number.is_none();
        if quoted { ", without quotation marks".into() } else { String::new() }
    })
}

fn duration(text: &str, min_ms: u64, max_ms: u64) -> Result<Value, String> {
    let range = Duration::from_millis(min_ms)..=Duration::from_millis(max_ms);
    let in_range = |text: &str| parse_duration(text).ok().filter(|d| range.contains(d));
    in_range(text).map(Value::Duration).ok_or_else(|| {
        // A bare number: offer the first unit with which it makes sense.
        let bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let meant = ["s", "ms", "m", "h"].map(|unit| format!("{text}{unit}"));
        let meant = meant.iter().filter(|_| bare).find_map(|text| in_range(text));
        meant.map_or(String::new(), |d| format!(": did you mean \"{}\"?", format_duration(d)))
    })
}

/// In small letters, one comma between two.
fn hosts(text: &str) -> Result<Value, String> {
    let names: Vec<String> =
        text.split(',').map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty()).collect();
    let is_name = |name: &String| {
        name.len() <= HOST_MAX_BYTES
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    };
    match names.iter().all(is_name) && names.len() <= HOSTS_MAX {
        true => Ok(Value::Text(names.join(","))),
        false => Err(format!(", at most {HOSTS_MAX}, such as \"locks.example.org, locks\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::KEYS;
    use super::*;
    use proptest::prelude::*;

    fn from_text(key: &str, text: &str) -> Result<Value, String> {
        let key = Key::find(key).expect(key);
        check(key, Origin::Flag, Raw::Text(text.into())).map_err(|e| e.to_string())
    }

    fn from_toml(key: &str, value: impl Into<toml::Value>) -> Result<Value, String> {
        let key = Key::find(key).expect(key);
        check(key, Origin::File, Raw::Toml(value.into())).map_err(|e| e.to_string())
    }

    #[test]
    fn a_refusal_names_the_key_the_value_the_origin_and_the_range() {
        assert_eq!(
            from_text("node_timeout", "20s").unwrap_err(),
            "`node_timeout` on the command line is \"20s\", but must be a duration from 1ms to 10s"
        );
        assert_eq!(
            from_toml("lanes", 17).unwrap_err(),
            "`lanes` in the configuration file is 17, but must be a whole number from 1 to 16"
        );
        assert_eq!(
            from_text("identity", "inf").unwrap_err(),
            "`identity` on the command line is \"inf\", but must be one of handshake, script"
        );
        assert_eq!(
            from_text("listen", "localhost").unwrap_err(),
            "`listen` on the command line is \"localhost\", but must be an IP address and a port, such as 127.0.0.1:5625"
        );
    }

    #[test]
    fn hosts_are_names_without_ports() {
        assert_eq!(from_text("allowed_hosts", " Locks.Example.org ,,b"), Ok(Value::Text("locks.example.org,b".into())));
        assert_eq!(from_text("allowed_hosts", ""), Ok(Value::Text(String::new())));
        for wrong in ["a:80", "http://a", "a b", "*", &"a,".repeat(33)] {
            assert!(from_text("allowed_hosts", wrong).unwrap_err().contains("names of hosts"), "{wrong}");
        }
    }

    #[test]
    fn a_bare_number_gets_a_hint_within_the_range() {
        assert!(from_text("default_ttl", "30").unwrap_err().ends_with(": did you mean \"30s\"?"));
        assert!(from_toml("default_ttl", 30).unwrap_err().ends_with(": did you mean \"30s\"?"));
        assert!(from_toml("node_timeout", 50).unwrap_err().ends_with(": did you mean \"50ms\"?"));
        assert!(from_toml("node_timeout", 50_000).unwrap_err().ends_with("from 1ms to 10s"));
    }

    #[test]
    fn numbers_are_bare_in_a_file_and_text_elsewhere() {
        assert_eq!(from_toml("lanes", 2), Ok(Value::Integer(2)));
        assert_eq!(from_text("lanes", "2"), Ok(Value::Integer(2)));
        assert!(from_toml("lanes", "2").unwrap_err().ends_with("without quotation marks"));
        for bad in ["-1", "+1", "1.0", " 1", "0x1", "", "99999999999999999999"] {
            assert!(from_text("lanes", bad).is_err(), "{bad}");
        }
        assert!(from_toml("lanes", true).is_err() && from_toml("listen", 5625).is_err());
    }

    #[test]
    fn networks_are_a_list_or_have_commas() {
        let nets = |texts: &[&str]| Ok(Value::Networks(texts.iter().map(|t| t.parse().expect("a network")).collect()));
        assert_eq!(from_text("trusted_proxies", "10.0.0.0/8, 192.0.2.1"), nets(&["10.0.0.0/8", "192.0.2.1/32"]));
        let list = toml::Value::Array(vec!["fd00::/8".into()]);
        assert_eq!(from_toml("trusted_proxies", list), nets(&["fd00::/8"]));
        for bad in ["", "10.0.0.0/33", "proxy.example", "10.0.0.0/8,", "*"] {
            assert!(from_text("trusted_proxies", bad).is_err(), "{bad}");
        }
        assert!(
            from_text("trusted_proxies", &vec!["::1"; 65].join(",")).is_err()
                && from_toml("trusted_proxies", 1).is_err()
        );
    }

    #[test]
    fn embedded_nodes_are_odd() {
        assert_eq!(from_text("embedded_nodes", "3"), Ok(Value::Integer(3)));
        assert!(from_text("embedded_nodes", "2").unwrap_err().contains("an odd whole number"));
    }

    #[test]
    fn a_password_in_the_wrong_place_is_not_repeated() {
        let text = from_text("listen", "redis://:hunter2@h:6379").unwrap_err();
        assert!(!text.contains("hunter2") && text.contains("redis://…@h:6379"), "{text}");
    }

    #[test]
    fn a_refused_key_template_says_why() {
        assert_eq!(from_text("key_template", "app/{resource}"), Ok(Value::Text("app/{resource}".into())));
        let refused = from_text("key_template", "redlockd:{resource}").unwrap_err();
        assert!(
            refused.contains("a text with {resource} in it: no resource's key may begin with `redlockd:`"),
            "{refused}"
        );
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_passes_lies_in_its_range(index in 0..KEYS.len(), text in "\\PC{0,20}|[0-9]{1,8}(ms|s|m|h)?") {
            let key = &KEYS[index];
            match (key.form, check(key, Origin::Environment, Raw::Text(text))) {
                (Form::Integer { min, max } | Form::Odd { min, max }, Ok(Value::Integer(n))) => prop_assert!((min..=max).contains(&n)),
                (Form::Duration { min_ms, max_ms }, Ok(Value::Duration(d))) => {
                    prop_assert!((u128::from(min_ms)..=u128::from(max_ms)).contains(&d.as_millis()));
                }
                (_, Ok(_)) => {}
                (_, Err(error)) => prop_assert!(error.to_string().contains(key.name)),
            }
        }
    }
}
