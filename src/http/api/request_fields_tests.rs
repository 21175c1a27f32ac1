//! What one set of fields from three sources accepts and refuses.

use super::*;

fn query(text: &str) -> Fields {
    let mut fields = Fields::default();
    fields.add_query(text).expect("a sane query");
    fields
}

fn json(text: &str) -> Fields {
    let mut fields = Fields::default();
    fields.add_json(text.as_bytes()).expect("a JSON object");
    fields
}

/// The fields that are complained about, with the first detail.
fn refused(result: Result<(), Problem>) -> Vec<(String, String)> {
    let problem = result.expect_err("something is wrong");
    assert_eq!(problem.kind(), ProblemKind::Invalid);
    let errors = problem.body("r").members.errors.expect("fields are named");
    errors.into_iter().map(|e| (e.field, e.detail)).collect()
}

#[test]
fn json_that_was_sent_as_a_form_is_recognised() {
    let mut fields = Fields::default();
    fields.add_form(br#"{"ttl":"30s"}"#).expect("one field with an odd name");
    let problem = fields.finish(&["ttl"]).expect_err("refused").body("r");
    assert!(problem.detail.contains("`curl --json`"), "{problem:?}");
}

#[test]
fn the_same_name_may_come_from_several_places_with_one_value() {
    let mut fields = query("ttl=30s&ttl=30s");
    fields.add_form(b"ttl=30s&owner=a+b%2Bc").expect("a form");
    assert_eq!(fields.text("owner").as_deref(), Some("a b+c"));
    assert_eq!(fields.duration("ttl"), Some(Duration::from_secs(30)));
    assert!(fields.finish(&["ttl", "owner"]).is_ok());
}

/// Generated clients put a default into the query as well as into the body.
#[test]
fn a_field_may_be_in_query_and_body_when_both_say_the_same() {
    for (query, body, is_same) in [
        ("hold=false", r#"{"hold":false}"#, true),
        ("limit=3", r#"{"limit":3}"#, true),
        ("hold=true", r#"{"hold":false}"#, false),
        ("limit=3", r#"{"limit":[3]}"#, false),
        ("note=null", r#"{"note":null}"#, false),
    ] {
        let mut fields = Fields::default();
        fields.add_form(query.as_bytes()).expect("a form");
        fields.add_json(body.as_bytes()).expect("a JSON object");
        assert_eq!(fields.errors.is_empty(), is_same, "{query} {body}");
    }
}

#[test]
fn different_values_for_one_name_are_refused() {
    let mut fields = query("ttl=30s");
    fields.add_json(br#"{"ttl":"31s"}"#).expect("a JSON object");
    fields.duration("ttl");
    assert_eq!(refused(fields.finish(&["ttl"]))[0].0, "ttl");

    let mut fields = json(r#"{"note":"a","note":"b","note":"c"}"#);
    fields.text("note");
    assert_eq!(refused(fields.finish(&["note"])).len(), 1, "one line for one name");
}

#[test]
fn an_unknown_field_is_not_ignored() {
    let errors = refused(query("tll=30s").finish(&["ttl", "wait"]));
    assert_eq!(errors, [("tll".to_owned(), "is unknown: the fields here are ttl, wait".to_owned())]);
}

#[test]
fn a_token_in_the_query_is_refused_however_it_is_spelt() {
    for text in [
        "token=x",
        "ttl=1s&token=",
        "token",
        "%74oken=x",
        "Token=x",
        "lock-token=x",
        "Lock%2DToken=x",
        "lock_token=x",
        "+token=x",
    ] {
        let problem = Fields::default().add_query(text).expect_err(text);
        assert_eq!(problem.kind(), ProblemKind::TokenInUrl, "{text}");
        assert!(problem.body("r").members.errors.is_none());
    }
    assert!(Fields::default().add_query("prefix=token").is_ok());
}

#[test]
fn wrong_types_name_the_field_and_the_type() {
    let mut fields = json(r#"{"owner":7,"note":["a"],"ttl":true,"metadata":"x"}"#);
    fields.text("owner");
    fields.text("note");
    fields.duration("ttl");
    fields.pairs("metadata");
    let errors = refused(fields.finish(&[]));
    let names: Vec<_> = errors.iter().map(|(f, _)| f.as_str()).collect();
    assert_eq!(names, ["owner", "note", "ttl", "metadata"]);
    assert_eq!(errors[0].1, "must be a string, not a number");
}

#[test]
fn a_bare_number_is_answered_with_a_hint() {
    for (mut fields, hint) in [(json(r#"{"ttl":30}"#), "30s"), (json(r#"{"ttl":"30"}"#), "30s"), (query("ttl=5"), "5s")]
    {
        assert_eq!(fields.duration("ttl"), None);
        let errors = refused(fields.finish(&[]));
        assert!(errors[0].1.contains(&format!("did you mean \"{hint}\"?")), "{errors:?}");
    }
    let mut fields = json(r#"{"ttl":1.5}"#);
    assert_eq!(fields.duration("ttl"), None);
    assert!(fields.finish(&[]).is_err());
}

#[test]
fn null_is_as_good_as_not_given() {
    let mut fields = json(r#"{"ttl":null,"owner":null,"metadata":null}"#);
    assert_eq!((fields.duration("ttl"), fields.text("owner"), fields.pairs("metadata")), (None, None, vec![]));
    assert!(fields.finish(&[]).is_ok());
    let mut fields = json(r#"{"note":null}"#);
    assert!(fields.take_null("note") && !fields.take_null("note"));
}

#[test]
fn pairs_come_from_json_and_from_a_form_alike() {
    let expected = vec![("a".to_owned(), Some("1".to_owned())), ("b".to_owned(), None)];
    assert_eq!(json(r#"{"metadata":{"b":null,"a":"1"}}"#).pairs("metadata"), expected);
    assert_eq!(query("metadata=%7B%22a%22:%221%22,%22b%22:null%7D").pairs("metadata"), expected);
    for bad in [r#"{"metadata":{"a":1}}"#, r#"{"metadata":{"a":"1","a":"2"}}"#, r#"{"metadata":{"a":{"b":"c"}}}"#] {
        let mut fields = json(bad);
        assert_eq!(fields.pairs("metadata"), vec![], "{bad}");
        assert_eq!(refused(fields.finish(&[]))[0].0, "metadata", "{bad}");
    }
}

#[test]
fn null_is_a_body_without_fields() {
    assert!(json("null").finish(&[]).is_ok());
}

#[test]
fn bodies_that_are_no_json_object_are_refused_without_being_quoted() {
    for bad in
        ["", "[]", "\"secret\"", "nul", "{\"a\":\"secret\"", "{} {}", "{a:1}", "\u{feff}{}", "{\"a\":\"\\ud800\"}"]
    {
        let problem = Fields::default().add_json(bad.as_bytes()).expect_err(bad);
        let body = problem.body("r");
        assert!(!body.detail.contains("secret") && body.detail.starts_with("body: "), "{}", body.detail);
    }
    let deep = "[".repeat(60_000);
    assert!(Fields::default().add_json(format!("{{\"a\":{deep}").as_bytes()).is_err());
    assert!(Fields::default().add_form(b"a=\xff").is_err());
    assert!(Fields::default().add_form(b"a=%ff").is_err());
}

#[test]
fn floods_of_fields_get_short_answers() {
    let many: Vec<_> = (0..10_000).map(|i| format!("f{i}=x")).collect();
    let problem = Fields::default().add_form(many.join("&").as_bytes()).expect_err("too many");
    assert!(problem.body("r").detail.len() < 200);
    let errors = refused(query(&format!("{}=1", "x".repeat(5_000))).finish(&[]));
    assert!(errors[0].0.chars().count() <= NAME_SHOWN_MAX_CHARS + 1);
}

#[test]
fn numbers_are_whole() {
    assert_eq!(query("limit=10").number("limit"), Some(10));
    assert_eq!(json(r#"{"limit":10}"#).number("limit"), Some(10));
    for bad in ["limit=-1", "limit=1.5", "limit=x", "limit="] {
        let mut fields = query(bad);
        assert_eq!(fields.number("limit"), None);
        assert!(fields.finish(&[]).is_err(), "{bad}");
    }
}

mod any_input {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_body_panics(bytes: Vec<u8>, text: String) {
            let _ = Fields::default().add_json(&bytes);
            let _ = Fields::default().add_form(&bytes);
            let _ = Fields::default().add_query(&text);
        }

        #[test]
        fn a_form_comes_back_as_it_was_encoded(value: String) {
            let encoded = percent_encoding::utf8_percent_encode(&value, percent_encoding::NON_ALPHANUMERIC);
            let mut fields = Fields::default();
            fields.add_form(format!("note={encoded}").as_bytes()).expect("a form");
            prop_assert_eq!(fields.text("note"), Some(value));
        }
    }
}
