//! How the request layer writes problems out.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::*;
use crate::audit::Audit;
use crate::http::middleware::stack::RequestLayer;
use crate::metrics::Metrics;

/// The answer of a router with the request layer.
async fn rendered(method: &str, accept: Option<&str>, path: &str) -> (axum::http::Response<()>, String) {
    let forged = || async { Problem::new(ProblemKind::Locked, "held by a\nHTTP/1.1 200 OK\u{2028}b") };
    let router = Router::new()
        .route("/problem", get(forged))
        .route("/panic", get(panics))
        .route("/fine", get(|| async { "fine" }))
        .layer(RequestLayer::new(
            Metrics::new(&[], &[]),
            Audit::default(),
            Arc::new(crate::http::state::shipped_settings()),
        ));
    let mut request = Request::builder().method(method).uri(path);
    if let Some(accept) = accept {
        request = request.header(header::ACCEPT, accept);
    }
    let response = router.oneshot(request.body(Body::empty()).expect("a request")).await.expect("infallible");
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    (axum::http::Response::from_parts(parts, ()), String::from_utf8(bytes.to_vec()).expect("UTF-8"))
}

async fn panics() -> &'static str {
    panic!("some-detail")
}

#[tokio::test]
async fn problems_are_json_unless_text_is_preferred() {
    for accept in [None, Some("*/*"), Some("application/json"), Some("image/png")] {
        let (response, body) = rendered("GET", accept, "/problem").await;
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let body: api::ProblemDetails = serde_json::from_str(&body).expect("JSON");
        assert_eq!((body.status, body.kind.as_str()), (423, "/problems/locked"));
    }
}

#[tokio::test]
async fn a_text_problem_is_one_line_whatever_its_detail_contains() {
    let (response, body) = rendered("GET", Some("text/plain"), "/problem").await;
    assert_eq!(response.status(), StatusCode::LOCKED);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(body, "locked: held by a\\nHTTP/1.1 200 OK\\u{2028}b\n");
    assert_eq!(response.headers()[header::CONTENT_LENGTH], body.len().to_string());
}

#[tokio::test]
async fn a_head_request_gets_the_length_and_no_body() {
    let (get, body) = rendered("GET", None, "/problem").await;
    let (head, nothing) = rendered("HEAD", None, "/problem").await;
    assert_eq!((head.status(), nothing.as_str()), (get.status(), ""));
    assert_eq!(head.headers()[header::CONTENT_LENGTH], body.len().to_string());
}

#[tokio::test]
async fn a_panic_is_a_500_without_details() {
    let (response, body) = rendered("GET", None, "/panic").await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(body.contains("/problems/internal") && !body.contains("some-detail"), "{body}");
    assert_eq!(rendered("GET", None, "/fine").await.1, "fine");
}
