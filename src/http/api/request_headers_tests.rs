//! Headers, mostly hostile ones.

use axum::http::HeaderValue;

use super::*;

fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(name.clone(), HeaderValue::from_str(value).expect("a header value"));
    }
    headers
}

fn field(problem: &Problem) -> String {
    assert_eq!(problem.kind(), ProblemKind::Invalid);
    problem.body("r").members.errors.expect("fields are named")[0].field.clone()
}

#[test]
fn the_token_is_read_from_its_header_and_never_repeated() {
    let good = "abcdefghijklmnopqrstuv";
    for text in [good.to_owned(), format!("<{good}>"), format!(" {good}")] {
        let token = lock_token(&headers(&[(LOCK_TOKEN, &text)])).expect("sane").expect("there");
        assert_eq!(token.reveal(), good);
    }
    assert!(lock_token(&HeaderMap::new()).expect("none").is_none());
    let twice = headers(&[(LOCK_TOKEN, good), (LOCK_TOKEN, good)]);
    let listed = headers(&[(LOCK_TOKEN, &format!("{good}, {good}"))]);
    for bad in [twice, listed, headers(&[(LOCK_TOKEN, "")]), headers(&[(LOCK_TOKEN, "<abc")])] {
        let problem = lock_token(&bad).expect_err("malformed");
        assert_eq!(field(&problem), "Lock-Token");
        assert!(!format!("{:?}", problem.body("r")).contains("abcdef"));
    }
    assert_eq!(field(&required_lock_token(&HeaderMap::new()).expect_err("missing")), "Lock-Token");
}

#[test]
fn prefer_wait_is_found_among_others() {
    let wait = |texts: &[&str]| preferred_wait(&headers(&texts.iter().map(|t| (PREFER, *t)).collect::<Vec<_>>()));
    assert_eq!(wait(&["wait=10"]), Some(Duration::from_secs(10)));
    assert_eq!(wait(&["respond-async, Wait = \"7\"; foo"]), Some(Duration::from_secs(7)));
    assert_eq!(wait(&["return=minimal", "wait=3"]), Some(Duration::from_secs(3)));
    assert_eq!(wait(&["wait=99999999999999999999999"]), Some(Duration::from_secs(u64::MAX)));
    for ignored in ["wait", "wait=", "wait=-1", "wait=1s", "waits=1", ""] {
        assert_eq!(wait(&[ignored]), None, "{ignored}");
    }
}

#[test]
fn if_match_takes_lists_and_the_star() {
    let read = |texts: &[&str]| if_match(&headers(&texts.iter().map(|t| (header::IF_MATCH, *t)).collect::<Vec<_>>()));
    let one_of = |tags: &[&str]| IfMatch::OneOf(tags.iter().map(ToString::to_string).collect());
    assert_eq!(if_match(&HeaderMap::new()).expect("none"), IfMatch::Any);
    assert_eq!(read(&["*"]).expect("star"), IfMatch::Any);
    assert_eq!(read(&["\"17\""]).expect("one"), one_of(&["17"]));
    assert_eq!(read(&["\"17\" , W/\"18\",\"a,b\"", "\"19\""]).expect("list"), one_of(&["17", "a,b", "19"]));
    assert_eq!(read(&["W/\"17\""]).expect("weak"), one_of(&[]), "a weak tag never matches");
    let many = vec!["\"1\""; IF_MATCH_MAX + 1].join(",");
    for bad in ["17", "\"17", "\"17\" \"18\"", "", " , ", "W/17", &many] {
        assert_eq!(field(&read(&[bad]).expect_err(bad)), "If-Match", "{bad}");
    }
}

#[test]
fn accept_is_held_against_what_is_offered() {
    let text = headers(&[(header::ACCEPT, "text/plain")]);
    assert_eq!(accepted(&text, &[ResponseFormat::Json, ResponseFormat::Text]).ok(), Some(ResponseFormat::Text));
    let problem = accepted(&text, &[ResponseFormat::Json]).expect_err("only JSON");
    assert_eq!(problem.kind(), ProblemKind::NotAcceptable);
    assert!(problem.body("r").detail.contains("application/json"));
}

mod any_header {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_header_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let Ok(value) = HeaderValue::from_bytes(&bytes) else { return Ok(()) };
            let mut headers = HeaderMap::new();
            for name in [header::ACCEPT, header::IF_MATCH, LOCK_TOKEN, PREFER] {
                headers.insert(name, value.clone());
            }
            let _ = accepted(&headers, &[ResponseFormat::Json, ResponseFormat::Text]);
            let _ = (if_match(&headers), lock_token(&headers), preferred_wait(&headers));
        }

        #[test]
        fn tags_come_back_from_their_list(tags in proptest::collection::vec("[!#-~]{0,8}", 1..=IF_MATCH_MAX)) {
            let list = tags.iter().map(|t| format!("\"{t}\"")).collect::<Vec<_>>().join(" ,");
            let read = if_match(&headers(&[(header::IF_MATCH, &list)])).expect("a list of tags");
            prop_assert_eq!(read, IfMatch::OneOf(tags));
        }
    }
}
