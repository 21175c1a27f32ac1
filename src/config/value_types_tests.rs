//! Values as they are written in a file, in the environment and on the command line.

use proptest::prelude::*;

use super::super::error::Origin;
use super::super::settings::{Config, SETTINGS};
use super::*;

fn set(key: &str, origin: Origin, raw: RawValue) -> Result<toml::Value, String> {
    let mut config = Config::default();
    config.set(key, origin, raw).map_err(|e| e.to_string())?;
    Ok(config.value_of(key).expect(key))
}

fn from_text(key: &str, text: &str) -> Result<toml::Value, String> {
    set(key, Origin::Flag, RawValue::Text(text.into()))
}

fn from_toml(key: &str, value: impl Into<toml::Value>) -> Result<toml::Value, String> {
    set(key, Origin::File, RawValue::Toml(value.into()))
}

#[test]
fn a_refusal_names_the_key_the_value_the_origin_and_the_range() {
    assert_eq!(
        from_text("node_timeout", "20s").unwrap_err(),
        "`node_timeout` on the command line is \"20s\", but must be a duration from 1ms to 10s"
    );
    assert_eq!(
        from_toml("connections_per_node", 17).unwrap_err(),
        "`connections_per_node` in the configuration file is 17, but must be a whole number from 1 to 16"
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
fn hosts_are_a_list_of_names_without_ports() {
    let both = Ok(vec!["locks.example.org", "b"].into());
    assert_eq!(from_toml("allowed_hosts", vec!["Locks.Example.org", "b"]), both);
    assert_eq!(from_text("allowed_hosts", " Locks.Example.org ,b"), both);
    assert_eq!(from_text("allowed_hosts", "[\"locks.example.org\", \"b\"]"), both);
    assert_eq!(from_text("allowed_hosts", ""), Ok(Vec::<String>::new().into()));
    for wrong in ["a:80", "http://a", "a b", "*", "a,,b", "[1]", "[\"a\"", &vec!["a"; 33].join(",")] {
        assert!(from_text("allowed_hosts", wrong).unwrap_err().contains("host names without ports"), "{wrong}");
    }
}

#[test]
fn an_owner_chooses_no_host() {
    for good in ["https://ci.example/job/{owner}", "http://ci.example:8080/?q={owner}&x=1", ""] {
        assert_eq!(from_toml("owner_url", good), Ok(good.into()), "{good}");
    }
    for wrong in [
        "https://{owner}.example/",
        "https://ci.example{owner}/",
        "https://ci.example?{owner}",
        "https://ci.example/",
        "https://ci.example/{owner}/{owner}",
        "javascript:alert({owner})",
        "/job/{owner}",
        "https:///{owner}",
        "https://ci.example/a b/{owner}",
        &format!("https://ci.example/{}{{owner}}", "a".repeat(500)),
    ] {
        assert!(from_toml("owner_url", wrong).unwrap_err().contains("{owner} once, after its host"), "{wrong}");
    }
}

#[test]
fn former_notations_are_refused_with_the_present_one() {
    assert_eq!(
        from_toml("ui", "off").unwrap_err(),
        "`ui` in the configuration file is \"off\", but must be true or false: write false (\"off\" until 0.1.0)"
    );
    assert!(from_text("deadlock_detection", "on").unwrap_err().ends_with(": write true (\"on\" until 0.1.0)"));
    assert!(from_toml("allowed_hosts", "a, b").unwrap_err().ends_with(": write [\"a\", \"b\"] (a list since 0.1.0)"));
    assert!(from_toml("allowed_hosts", "").unwrap_err().ends_with(": write [] (a list since 0.1.0)"));
    assert_eq!(
        from_toml("lanes", 2).unwrap_err(),
        "`lanes` in the configuration file is called `connections_per_node` since 0.1.0: write `connections_per_node`"
    );
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
    assert_eq!(from_toml("connections_per_node", 2), Ok(2.into()));
    assert_eq!(from_text("connections_per_node", "2"), Ok(2.into()));
    assert!(from_toml("connections_per_node", "2").unwrap_err().ends_with("without quotation marks"));
    for bad in ["-1", "+1", "1.0", " 1", "0x1", "", "99999999999999999999"] {
        assert!(from_text("connections_per_node", bad).is_err(), "{bad}");
    }
    assert!(from_toml("connections_per_node", true).is_err() && from_toml("listen", 5625).is_err());
}

#[test]
fn networks_are_a_list() {
    let both = Ok(vec!["10.0.0.0/8", "192.0.2.1/32"].into());
    assert_eq!(from_text("trusted_proxies", "10.0.0.0/8, 192.0.2.1"), both);
    assert_eq!(from_text("trusted_proxies", "[\"10.0.0.0/8\", \"192.0.2.1\"]"), both);
    assert_eq!(from_toml("trusted_proxies", vec!["10.0.0.0/8", "192.0.2.1"]), both);
    for bad in ["10.0.0.0/33", "proxy.example", "10.0.0.0/8,", "*", &vec!["::1"; 65].join(",")] {
        assert!(from_text("trusted_proxies", bad).is_err(), "{bad}");
    }
    assert!(from_toml("trusted_proxies", 1).is_err() && from_toml("trusted_proxies", "10.0.0.0/8").is_err());
}

#[test]
fn flags_are_bare_in_a_file_and_text_elsewhere() {
    assert_eq!(from_toml("ui", false), Ok(false.into()));
    assert_eq!(from_text("ui", "false"), Ok(false.into()));
    for bad in ["true", "yes", ""] {
        assert!(from_toml("ui", bad).is_err(), "{bad}");
    }
}

#[test]
fn embedded_nodes_are_odd() {
    assert_eq!(from_text("embedded_nodes", "3"), Ok(3.into()));
    assert!(from_text("embedded_nodes", "2").unwrap_err().contains("an odd whole number"));
}

#[test]
fn a_password_in_the_wrong_place_is_not_repeated() {
    let text = from_text("listen", "redis://:hunter2@h:6379").unwrap_err();
    assert!(!text.contains("hunter2") && text.contains("redis://…@h:6379"), "{text}");
}

#[test]
fn refused_key_template_is_explained() {
    assert_eq!(from_text("key_template", "app/{resource}"), Ok("app/{resource}".into()));
    let refused = from_text("key_template", "redlockd:{resource}").unwrap_err();
    assert!(
        refused.contains("a text with {resource} in it: no resource's key may begin with `redlockd:`"),
        "{refused}"
    );
}

proptest! {
    #[test]
    fn no_text_panics_and_what_passes_reads_back(index in 0..SETTINGS.len(), text in "\\PC{0,20}|[0-9]{1,8}(ms|s|m|h)?") {
        let name = SETTINGS[index].name;
        match from_text(name, &text) {
            Ok(value) => prop_assert_eq!(from_toml(name, value.clone()), Ok(value)),
            Err(error) => prop_assert!(error.contains(name)),
        }
    }

    #[test]
    fn numbers_and_durations_that_pass_are_in_their_range(n in 0_u64..20_000) {
        prop_assert_eq!(from_text("connections_per_node", &n.to_string()).is_ok(), (1..=16).contains(&n));
        prop_assert_eq!(from_text("node_timeout", &format!("{n}ms")).is_ok(), (1..=10_000).contains(&n));
    }
}
