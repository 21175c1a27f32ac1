//! Defaults, bounds and combinations of fields, endpoint by endpoint.

use std::time::Duration;

use axum::body::Body;
use axum::http::header;

use super::*;
use crate::http::problem_kind::ProblemKind;
use crate::types::{PermitLimit, Ttl, WantedMode};

const TOKEN: &str = "abcdefghijklmnopqrstuv";

/// A request with a form (or JSON, if it begins with a brace) for a body.
fn request(path: &str, body: &str, headers: &[(&str, &str)]) -> Request {
    let mut builder = Request::builder().method("POST").uri(path);
    let kind = if body.starts_with('{') { "application/json" } else { "application/x-www-form-urlencoded" };
    if !body.is_empty() {
        builder = builder.header(header::CONTENT_TYPE, kind);
    }
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::from(body.to_owned())).expect("a request")
}

fn settings() -> HttpSettings {
    crate::http::state::shipped_settings()
}

async fn acquired(body: &str, headers: &[(&str, &str)]) -> Result<AcquireFields, Problem> {
    acquire(request("/locks/deploy/prod", body, headers), &settings()).await
}

async fn extended(body: &str, headers: &[(&str, &str)]) -> Result<ExtendFields, Problem> {
    let with_token: Vec<_> = [("Lock-Token", TOKEN)].into_iter().chain(headers.iter().copied()).collect();
    extend(request("/locks/deploy/prod", body, &with_token), &settings()).await
}

#[tokio::test]
async fn a_mode_or_a_limit_says_how_a_lease_is_shared_and_both_are_refused() {
    let asked = async |body: &str| acquired(body, &[]).await.map(|fields| fields.request.mode);
    assert_eq!(asked("").await.expect("valid"), WantedMode::Exclusive);
    assert_eq!(asked("mode=shared").await.expect("valid"), WantedMode::Shared);
    let limit = PermitLimit::new(3).expect("in range");
    assert_eq!(asked("limit=3").await.expect("valid"), WantedMode::Permit { limit });
    for (body, field) in [
        ("mode=read", "mode"),
        ("mode=permit", "mode"),
        ("limit=1", "limit"),
        ("limit=101", "limit"),
        ("limit=three", "limit"),
        ("limit=3&mode=shared", "limit"),
        ("limit=3&mode=exclusive", "limit"),
    ] {
        let problem = asked(body).await.expect_err(body);
        let errors = problem.body("").members.errors.expect("fields");
        assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), [field], "{body}");
    }
}

/// The field that is complained about first.
fn field<T: std::fmt::Debug>(result: Result<T, Problem>) -> String {
    let problem = result.expect_err("something is wrong");
    assert_eq!(problem.kind(), ProblemKind::Invalid, "{problem:?}");
    problem.body("r").members.errors.expect("fields are named")[0].field.clone()
}

#[tokio::test]
async fn an_acquire_without_a_body_takes_the_defaults() {
    let params = acquired("", &[]).await.expect("sane");
    assert_eq!(params.request.resource.as_str(), "deploy/prod");
    assert_eq!(params.request.ttl.as_ms(), 30_000);
    assert_eq!(params.request.wait, Duration::ZERO);
    assert_eq!((params.request.labels, params.request.refuses_deadlock), (Labels::default(), false));
    assert_eq!((params.request.token.is_none(), params.format, params.applied), (true, ResponseFormat::Json, None));
}

#[tokio::test]
async fn an_acquire_reads_every_field_from_form_json_and_query() {
    let form = "ttl=2m&wait=1m&owner=ann%40pc&note=release+1.9&metadata=%7B%22build%22:%2217%22%7D&token=abcdefghijklmnopqrstuv&on_deadlock=refuse&wait_id=0123456789abcdef";
    let json = r#"{"ttl":"2m","wait":"1m","owner":"ann@pc","note":"release 1.9","metadata":{"build":"17"},"token":"abcdefghijklmnopqrstuv","on_deadlock":"refuse","wait_id":"0123456789abcdef"}"#;
    for body in [form, json] {
        let params = acquired(body, &[("Accept", "text/plain")]).await.expect("sane");
        let AcquireRequest { ttl, wait, labels, token, refuses_deadlock, keep, .. } = params.request;
        assert_eq!(keep.expect("given").wait_id.as_str(), "0123456789abcdef");
        assert_eq!((ttl.as_ms(), wait), (120_000, Duration::from_secs(60)));
        assert_eq!((labels.owner.as_str(), labels.note.as_str()), ("ann@pc", "release 1.9"));
        assert_eq!((labels.metadata["build"].as_str(), refuses_deadlock), ("17", true));
        assert_eq!(token.expect("given").reveal(), TOKEN);
        assert_eq!(params.format, ResponseFormat::Text);
    }
    let mixed = acquire(request("/locks/x?ttl=2m&owner=a", r#"{"ttl":"2m","wait":"1s"}"#, &[]), &settings()).await;
    assert_eq!(mixed.expect("sane").request.ttl.as_ms(), 120_000);
}

#[tokio::test]
async fn an_acquire_out_of_bounds_names_its_field() {
    let long = "x".repeat(129);
    for (body, name) in [
        ("ttl=99ms".to_owned(), "ttl"),
        ("ttl=301s".to_owned(), "ttl"),
        ("ttl=18446744073709551615ms".to_owned(), "ttl"),
        ("ttl=30".to_owned(), "ttl"),
        ("ttl=".to_owned(), "ttl"),
        ("wait=301s".to_owned(), "wait"),
        ("wait=-1s".to_owned(), "wait"),
        (format!("owner={long}"), "owner"),
        ("token=short".to_owned(), "token"),
        ("hold=maybe".to_owned(), "hold"),
        ("on_deadlock=wait".to_owned(), "on_deadlock"),
        ("wait=1s&wait_id=short".to_owned(), "wait_id"),
        ("wait=1s&wait_id=0123456789abcde%2F".to_owned(), "wait_id"),
        ("wait_id=0123456789abcdef".to_owned(), "wait_id"),
        (r#"{"hold":1}"#.to_owned(), "hold"),
        ("mode=read".to_owned(), "mode"),
        (r#"{"metadata":{"k":null}}"#.to_owned(), "metadata"),
        (r#"{"wait":10}"#.to_owned(), "wait"),
    ] {
        assert_eq!(field(acquired(&body, &[]).await), name, "{body}");
    }
    let problem = acquired("ttl=1h&tll=1s&owner=a", &[]).await.expect_err("two errors");
    assert_eq!(problem.body("r").members.errors.map(|e| e.len()), Some(2), "all errors are reported at once");
    assert!(acquired("ttl=100ms&wait=5m", &[]).await.is_ok(), "the bounds themselves are allowed");
}

#[tokio::test]
async fn a_hold_is_asked_for_by_a_field_and_has_streams_for_answers() {
    assert_eq!(acquired("hold=true", &[]).await.expect("sane").hold, Some(StreamFormat::Lines));
    assert_eq!(acquired(r#"{"hold":true}"#, &[]).await.expect("sane").hold, Some(StreamFormat::Lines));
    assert_eq!(acquired("hold=false", &[]).await.expect("sane").hold, None);
    // L5: JSON has booleans.
    for (body, word) in [(r#"{"hold":"true"}"#, "quotation marks"), (r#"{"hold":1}"#, "true or false, not a number")] {
        let problem = acquired(body, &[]).await.expect_err("no boolean").body("r");
        assert!(problem.detail.contains(word), "{}", problem.detail);
    }
    let events = [("Accept", "text/event-stream")];
    assert_eq!(acquired("hold=true", &events).await.expect("sane").hold, Some(StreamFormat::Events));
    assert_eq!(acquired("", &events).await.expect_err("no stream").kind(), ProblemKind::NotAcceptable);
    // C6.
    let text = [("Accept", "text/plain")];
    assert_eq!(acquired("hold=true", &text).await.expect("sane").hold, Some(StreamFormat::Text));
    let image = [("Accept", "image/png")];
    assert_eq!(acquired("hold=true", &image).await.expect_err("a stream").kind(), ProblemKind::NotAcceptable);
}

#[tokio::test]
async fn prefer_wait_is_an_alias_that_the_field_overrides() {
    let prefer = |text| [("Prefer", text)];
    let params = acquired("", &prefer("wait=10")).await.expect("sane");
    assert_eq!((params.request.wait, params.applied), (Duration::from_secs(10), Some(10)));
    let params = acquired("", &prefer("wait=3600")).await.expect("a wish is cut to its bound");
    assert_eq!((params.request.wait, params.applied), (Duration::from_secs(300), Some(300)));
    let params = acquired("wait=5s", &prefer("wait=10")).await.expect("sane");
    assert_eq!((params.request.wait, params.applied), (Duration::from_secs(5), None));
    let params = acquired("wait=10s", &prefer("wait=10")).await.expect("sane");
    assert_eq!(params.applied, Some(10));
}

#[tokio::test]
async fn a_token_of_ones_own_may_come_in_the_header_but_not_as_two() {
    let params = acquired("", &[("Lock-Token", TOKEN)]).await.expect("sane");
    assert_eq!(params.request.token.expect("given").reveal(), TOKEN);
    assert!(acquired(&format!("token={TOKEN}"), &[("Lock-Token", TOKEN)]).await.is_ok());
    assert_eq!(field(acquired(&format!("token={TOKEN}x"), &[("Lock-Token", TOKEN)]).await), "token");
    let in_url = acquire(request(&format!("/locks/x?token={TOKEN}"), "", &[]), &settings()).await;
    assert_eq!(in_url.expect_err("in the URL").kind(), ProblemKind::TokenInUrl);
}

#[tokio::test]
async fn what_cannot_be_answered_is_refused_before_anything_is_done() {
    let problem = acquired("ttl=30s", &[("Accept", "image/png")]).await.expect_err("no such form");
    assert_eq!(problem.kind(), ProblemKind::NotAcceptable);
}

#[tokio::test]
async fn an_empty_extend_renews_by_the_leases_own_ttl() {
    let params = extended("", &[]).await.expect("sane");
    assert_eq!((params.request.ttl, params.request.fence, params.request.note), (None, None, None));
    assert!(params.request.metadata.is_empty());
    assert_eq!((params.request.token.reveal(), params.if_match), (TOKEN, IfMatch::Any));
}

#[tokio::test]
async fn an_extend_is_a_merge_patch() {
    let body = r#"{"ttl":"1m","note":null,"metadata":{"a":"1","b":null}}"#;
    let request = extended(body, &[("If-Match", "\"17\"")]).await.expect("sane");
    assert_eq!(request.if_match, IfMatch::OneOf(vec!["17".to_owned()]));
    let request = request.request;
    assert_eq!(request.ttl.map(Ttl::as_ms), Some(60_000));
    assert_eq!(request.note.as_deref(), Some(""), "null removes the note");
    assert_eq!(request.metadata, [("a".to_owned(), Some("1".to_owned())), ("b".to_owned(), None)]);
}

#[tokio::test]
async fn an_extend_refuses_what_it_cannot_change() {
    for (body, name) in [
        (r#"{"ttl":null}"#, "ttl"),
        (r#"{"metadata":null}"#, "metadata"),
        ("owner=x", "owner"),
        ("wait=1s", "wait"),
        ("token=abcdefghijklmnopqrstuv", "token"),
        ("ttl=1h", "ttl"),
    ] {
        assert_eq!(field(extended(body, &[]).await), name, "{body}");
    }
    let long = format!("note={}", "x".repeat(513));
    assert_eq!(field(extended(&long, &[]).await), "note");
    let without = extend(request("/locks/x", "", &[]), &settings()).await;
    assert_eq!(field(without), "Lock-Token");
}

#[tokio::test]
async fn a_release_needs_its_token_and_nothing_else() {
    let params = release(request("/locks/x", "", &[("Lock-Token", TOKEN), ("Accept", "image/png")]), &settings()).await;
    assert!(
        matches!(params, Ok(ReleaseFields::Release { token, if_match: IfMatch::Any, .. }) if token.reveal() == TOKEN)
    );
    assert_eq!(field(release(request("/locks/x", "", &[]), &settings()).await), "Lock-Token");
    let reason = request("/locks/x?reason=r", "", &[("Lock-Token", TOKEN)]);
    assert_eq!(field(release(reason, &settings()).await), "reason", "a reason alone would be ignored");
}

#[tokio::test]
async fn a_forced_end_needs_a_reason_from_query_or_body() {
    let by_query = request("/locks/x?force=revoke&reason=runner+died", "", &[("If-Match", "\"4711\"")]);
    let by_body = request("/locks/x?force=revoke", "reason=runner died", &[("If-Match", "\"4711\"")]);
    for asked in [by_query, by_body] {
        let params = release(asked, &settings()).await.expect("sane");
        let ReleaseFields::Force { mode, reason, if_match, .. } = params else { panic!("forced: {params:?}") };
        assert_eq!((mode, reason.as_str()), (ForceMode::Revoke, "runner died"));
        assert_eq!(if_match, IfMatch::OneOf(vec!["4711".to_owned()]));
    }
    for (path, name) in [
        ("/locks/x?force=now", "reason"),
        ("/locks/x?force=now&reason=+", "reason"),
        ("/locks/x?force=later&reason=r", "force"),
        ("/locks/x?force=&reason=r", "force"),
        ("/locks/x?force=now&reason=r&why=x", "why"),
    ] {
        assert_eq!(field(release(request(path, "", &[]), &settings()).await), name, "{path}");
    }
    let long = format!("reason={}", "x".repeat(REASON_MAX_BYTES + 1));
    assert_eq!(field(release(request("/locks/x?force=now", &long, &[]), &settings()).await), "reason");
}

#[test]
fn a_list_is_filtered_and_paged() {
    let query = list(&request("/locks?prefix=deploy/&owner=a%20b&state=lock-delay&cursor=deploy/a&limit=7", "", &[]));
    let (query, format) = query.expect("sane");
    assert_eq!(format, ResponseFormat::Json);
    assert_eq!((query.prefix.as_str(), query.owner.as_deref()), ("deploy/", Some("a b")));
    assert_eq!((query.state, query.after.as_deref(), query.limit), (Some(ListState::LockDelay), Some("deploy/a"), 7));
    assert_eq!(list(&request("/locks", "", &[])).expect("sane").0.limit, LIST_LIMIT_DEFAULT);
    for (path, name) in [
        ("/locks?limit=0", "limit"),
        ("/locks?limit=1001", "limit"),
        ("/locks?limit=18446744073709551616", "limit"),
        ("/locks?state=free", "state"),
        ("/locks?cursor=a//b", "cursor"),
        ("/locks?sort=name", "sort"),
        (&format!("/locks?prefix={}", "x".repeat(256)), "prefix"),
    ] {
        assert_eq!(field(list(&request(path, "", &[]))), name, "{path}");
    }
    // C5.
    let text = list(&request("/locks", "", &[("Accept", "text/plain")]));
    assert_eq!(text.expect("sane").1, ResponseFormat::Text);
    let image = list(&request("/locks", "", &[("Accept", "image/png")]));
    assert_eq!(image.expect_err("neither").kind(), ProblemKind::NotAcceptable);
}

#[test]
fn looking_takes_no_fields_and_no_token_in_the_url() {
    let (resource, format, _) = inspect(&request("/locks/a%2Fb", "", &[("Accept", "text/plain")])).expect("sane");
    assert_eq!((resource.as_str(), format), ("a/b", ResponseFormat::Text));
    assert_eq!(field(inspect(&request("/locks/a?wait=1s", "", &[]))), "wait");
    assert_eq!(inspect(&request("/locks/a?token=x", "", &[])).expect_err("token").kind(), ProblemKind::TokenInUrl);
    assert_eq!(field(nodes(&request("/nodes?x=1", "", &[]))), "x");
    assert!(nodes(&request("/nodes", "", &[])).is_ok());
}
