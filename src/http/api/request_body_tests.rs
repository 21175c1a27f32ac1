//! Bodies, mostly hostile ones.

use axum::body::Body;
use axum::http::HeaderValue;
use proptest::prelude::*;

use super::*;

fn field(problem: &Problem) -> String {
    assert_eq!(problem.kind(), ProblemKind::Invalid);
    problem.body("r").members.errors.expect("fields are named")[0].field.clone()
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
    fields(request, &settings(), patch).await.map(|(_, mut fields)| fields.text("ttl")).map_err(|p| p.kind())
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

proptest! {
    #[test]
    fn no_media_type_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let Ok(value) = HeaderValue::from_bytes(&bytes) else { return Ok(()) };
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, value)]);
        let _ = body_kind(&headers, MergePatch::Refused);
    }
}
