//! The access file: what it may contain, that every mistake is reported, and that no message repeats a secret.

use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::auth::api_key::ApiKey;
use crate::redlock::random::SystemEntropy;

const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn wrong(text: &str) -> String {
    parse(text).expect_err(text).join("\n")
}

fn principal(body: &str) -> String {
    format!("[[principal]]\nname = \"ci\"\n{body}")
}

#[test]
fn a_complete_file_is_parsed() {
    let text = format!(
        "[[principal]]\nname = \"ci\"\nkeys = [{{ sha256 = \"{HASH}\", expires = \"2027-01-31\" }}]\n\
         allow = [\"acquire:deploy/*\", \"metrics\"]\nrequests_per_second = 50\nleases = 10\nwaiters = 3\n\
         [[principal]]\nname = \"web\"\ncertificates = [\"dns:web.example\"]\nallow = [\"read:**\"]\n"
    );
    let store = parse(&text).expect("good");
    let ci = &store.principals()[0];
    assert_eq!((ci.name.as_str(), ci.keys.len(), ci.rules.0.len()), ("ci", 1, 2));
    assert_eq!(ci.keys[0].expires_ms, Some(1_801_353_600_000));
    let limits = PrincipalLimits { requests_per_second: Some(50), leases: Some(10), waiters: Some(3) };
    assert_eq!(ci.limits, limits);
    assert_eq!(store.principals()[1].certificates.len(), 1);
    assert_eq!(parse("").expect("an empty file").principals().len(), 0);
}

#[test]
fn every_mistake_is_reported_with_its_place() {
    for (text, hint) in [
        ("principal = 1", "double brackets"),
        ("[principal]\nname = \"a\"", "double brackets"),
        ("[[principals]]\nname = \"a\"", "only [[principal]] tables"),
        ("[[principal]]\nkeys = []", "principal 1: it needs a `name`"),
        ("[[principal]]\nname = \"a b\"\nkeys = []", "principal 1: `name`"),
        (&principal(""), "`ci`: it needs `keys`, `certificates` or `tokens`"),
        (&principal("keys = 1"), "`keys` must be a list"),
        (&principal("keys = [\"x\"]"), "`keys` must be a list"),
        (&principal("keys = [{ sha256 = 1 }]"), "`keys` must be a list"),
        (&principal(&format!("keys = [{{ sha256 = \"{HASH}\", expire = 1 }}]")), "`keys` must be a list"),
        (&principal("keys = [{ sha256 = \"ab\" }]"), "64 hex digits"),
        (&principal(&format!("keys = [{{ sha256 = \"{}\" }}]", KeyHash::of(b"").hex())), "of an empty text"),
        (&principal(&format!("keys = [{{ sha256 = \"{HASH}\", expires = \"soon\" }}]")), "a time with its zone"),
        (
            &principal(&format!("keys = [{{ sha256 = \"{HASH}\", expires = 2027-01-31T12:00:00 }}]")),
            "a time with its zone",
        ),
        (&principal(&format!("keys = [{{ sha256 = \"{HASH}\" }}, {{ sha256 = \"{HASH}\" }}]")), "occurs twice"),
        (&principal("keys = []\nallow = \"read:**\""), "`allow` must be a list of texts"),
        (&principal("keys = []\nallow = [\"write:x\"]"), "`write` is not a right"),
        (&principal("keys = []\nallows = []"), "`allows` is unknown"),
        (&principal("keys = []\nleases = 0"), "`leases` must be a whole number"),
        (&principal("keys = []\nwaiters = \"3\""), "`waiters` must be a whole number"),
        (&principal("certificates = [\"ci\"]"), "dns:NAME"),
        (&format!("{0}keys = []\n{0}keys = []\n", principal("")), "the same name"),
        (&principal("certificates = [\"dns:a\", \"dns:a\"]"), "occurs twice"),
    ] {
        assert!(wrong(text).contains(hint), "{text}: {}", wrong(text));
    }
    assert_eq!(wrong(&principal("keys = 1\nleases = 0\nallow = [\"x\"]")).lines().count(), 3);
    assert!(wrong(&principal(&format!("keys = [{}]", "{ sha256 = \"\" },".repeat(9)))).contains("at most 8"));
}

#[test]
fn a_key_in_the_wrong_place_is_never_repeated() {
    let key = ApiKey::generate(&SystemEntropy);
    let key = key.reveal();
    for text in [
        format!("[[principal]]\nname = \"ci\"\nkeys = [{{ sha256 = \"{key}\" }}]"),
        format!("[[principal]]\nname = \"ci\"\nkeys = [\"{key}\"]"),
        format!("[[principal]]\nname = \"ci\"\nkeys = \"{key}\""),
        format!("[[principal]]\nname = \"{key}/\"\nkeys = []"),
        format!("[[principal]]\nname = \"{key}\"\nkeys = []\nleases = 0"),
        format!("[[principal]]\nname = \"ci\"\nkeys = []\nallow = [\"{key}\"]"),
        format!("[[principal]]\nname = \"ci\"\nkeys = []\nallow = [\"acquire:é{key}é\"]"),
        format!("[[principal]]\nname = \"ci\"\ncertificates = [\"dns:{key}\", \"{key}\"]"),
        format!("[[principal]]\nname = \"ci\"\n{key} = 1\nkeys = []"),
        format!("{key} = 1"),
        format!("[[principal]]\nname = \"ci\"\nkeys = [\"{key}\" \"{key}\"]"),
    ] {
        assert!(!wrong(&text).contains(&key[4..]) && !wrong(&text).contains("rlk_"), "{}", wrong(&text));
    }
}

#[test]
fn messages_name_the_file() {
    let error = read(Path::new("/nowhere/access.toml")).expect_err("not there").to_string();
    assert!(error.starts_with("the access file /nowhere/access.toml cannot be read"), "{error}");
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(b"x = ").expect("writable");
    let error = read(file.path()).expect_err("not TOML").to_string();
    assert!(error.contains("is not TOML: see line 1"), "{error}");
    file.write_all(&vec![b' '; 1 << 20]).expect("writable");
    assert!(read(file.path()).expect_err("too large").to_string().contains("at most 1048576"));
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,60}|\\[\\[principal\\]\\]\n(name|keys|allow|leases) = \\PC{0,30}") {
        let _ = parse(&text);
    }
}
