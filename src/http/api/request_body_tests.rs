//! Headers and bodies, mostly hostile ones.

use axum::body::Body;
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
    assert_eq!(problem.slug(), ProblemKind::Invalid);
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

fn settings() -> HttpSettings {
    HttpSettings { body_limit: 64, ..crate::http::state::shipped_settings() }
}

fn request(kind: Option<&str>, body: impl Into<Body>) -> Request {
    let mut request = Request::new(body.into());
    if let Some(kind) = kind {
        request.headers_mut().insert(header::CONTENT_TYPE, kind.parse().expect("a header value"));
    }
    request
}

/// The slug that a body is refused with, or the `ttl` that was read.
async fn read_ttl(request: Request, patch: MergePatch) -> Result<Option<String>, ProblemKind> {
    fields(request, &settings(), patch).await.map(|(_, mut fields)| fields.text("ttl")).map_err(|p| p.slug())
}

#[tokio::test]
async fn forms_and_json_are_read_by_their_media_type() {
    let some = Ok(Some("1s".to_owned()));
    for kind in ["application/json", "Application/JSON; charset=utf-8"] {
        assert_eq!(read_ttl(request(Some(kind), r#"{"ttl":"1s"}"#), MergePatch::Refused).await, some);
    }
    assert_eq!(read_ttl(request(Some("application/x-www-form-urlencoded"), "ttl=1s"), MergePatch::Refused).await, some);
    let merge = || request(Some("application/merge-patch+json"), r#"{"ttl":"1s"}"#);
    assert_eq!(read_ttl(merge(), MergePatch::Accepted).await, some);
    assert_eq!(read_ttl(merge(), MergePatch::Refused).await, Err(ProblemKind::UnsupportedMediaType));
}

#[tokio::test]
async fn other_media_types_and_codings_are_415_unless_the_body_is_empty() {
    for kind in [None, Some("text/plain"), Some("application/xml"), Some("multipart/form-data; boundary=x"), Some("")] {
        assert_eq!(
            read_ttl(request(kind, "ttl=1s"), MergePatch::Refused).await,
            Err(ProblemKind::UnsupportedMediaType),
            "{kind:?}"
        );
        assert_eq!(read_ttl(request(kind, ""), MergePatch::Refused).await, Ok(None), "{kind:?}");
    }
    let mut packed = request(Some("application/json"), "{}");
    packed.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    assert_eq!(read_ttl(packed, MergePatch::Refused).await, Err(ProblemKind::UnsupportedMediaType));
}

#[tokio::test]
async fn a_body_over_its_bound_is_413_announced_or_not() {
    let form = Some("application/x-www-form-urlencoded");
    let at = |n: usize| format!("note={}", "x".repeat(n - 5));
    assert_eq!(read_ttl(request(form, at(64)), MergePatch::Refused).await, Ok(None));
    assert_eq!(read_ttl(request(form, at(65)), MergePatch::Refused).await, Err(ProblemKind::BodyTooLarge), "chunked");
    let mut announced = request(form, Body::empty());
    announced.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("65"));
    assert_eq!(
        read_ttl(announced, MergePatch::Refused).await,
        Err(ProblemKind::BodyTooLarge),
        "refused before it is read"
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_given_up() {
    let silent = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
    let stuck = request(Some("application/json"), silent);
    let problem = fields(stuck, &settings(), MergePatch::Refused).await.expect_err("it never comes");
    assert_eq!(field(&problem), "body");
    assert_eq!(problem.into_response_headers().get(header::CONNECTION).map(HeaderValue::as_bytes), Some(&b"close"[..]));
}

#[tokio::test]
async fn a_body_that_breaks_off_is_400() {
    let broken = futures_util::stream::iter([Ok(Bytes::from_static(b"{")), Err(std::io::Error::other("reset"))]);
    let request = request(Some("application/json"), Body::from_stream(broken));
    let problem = fields(request, &settings(), MergePatch::Refused).await.expect_err("broken");
    assert_eq!(field(&problem), "body");
}

impl Problem {
    /// The headers that its answer has.
    fn into_response_headers(self) -> HeaderMap {
        axum::response::IntoResponse::into_response(self).headers().clone()
    }
}

#[test]
fn accept_is_held_against_what_is_offered() {
    let text = headers(&[(header::ACCEPT, "text/plain")]);
    assert_eq!(accepted(&text, &[ResponseFormat::Json, ResponseFormat::Text]).ok(), Some(ResponseFormat::Text));
    let problem = accepted(&text, &[ResponseFormat::Json]).expect_err("only JSON");
    assert_eq!(problem.slug(), ProblemKind::NotAcceptable);
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
            for name in [header::ACCEPT, header::IF_MATCH, LOCK_TOKEN, PREFER, header::CONTENT_TYPE] {
                headers.insert(name, value.clone());
            }
            let _ = accepted(&headers, &[ResponseFormat::Json, ResponseFormat::Text]);
            let _ = (if_match(&headers), lock_token(&headers), preferred_wait(&headers), body_kind(&headers, MergePatch::Refused));
        }

        #[test]
        fn tags_come_back_from_their_list(tags in proptest::collection::vec("[!#-~]{0,8}", 1..=IF_MATCH_MAX)) {
            let list = tags.iter().map(|t| format!("\"{t}\"")).collect::<Vec<_>>().join(" ,");
            let read = if_match(&headers(&[(header::IF_MATCH, &list)])).expect("a list of tags");
            prop_assert_eq!(read, IfMatch::OneOf(tags));
        }
    }
}
