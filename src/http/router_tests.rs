//! The route table, the request layer and the answers without a handler. The handlers are the test's own, since the
//! real ones need a manager.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::routing::{MethodFilter, any, on};
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::*;
use crate::api;
use crate::audit::Audit;
use crate::metrics::Metrics;
use crate::types::NodeId;

fn metrics() -> Arc<Metrics> {
    Metrics::new(&[NodeId::parse("n1").expect("valid")], &crate::http::routes::labels())
}

fn layer(metrics: Arc<Metrics>) -> RequestLayer {
    RequestLayer::new(metrics, Audit::default(), Arc::new(crate::http::state::shipped_settings()))
}

/// Every route answers its pattern, except that `/openapi.yaml` panics.
fn echo(metrics: Arc<Metrics>) -> Router {
    let handlers = ROUTES.iter().map(|route| {
        let filter = MethodFilter::try_from(route.method.parse::<Method>().expect("a method"));
        let handler = async || match route.operation {
            Operation::OpenApi => panic!("a defect"),
            _ => route.pattern,
        };
        (route, filter.map_or_else(|_| any(handler), |filter| on(filter, handler)))
    });
    assemble(handlers, &layer(metrics))
}

async fn send(method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    let response = echo(metrics()).oneshot(request).await.expect("infallible");
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    (parts.status.as_u16(), parts.headers, String::from_utf8(bytes.to_vec()).expect("UTF-8"))
}

#[tokio::test]
async fn every_answer_has_request_id_and_cache_headers() {
    let long = format!("/no/{}", "x".repeat(5_000));
    for (method, path, status) in [
        ("GET", "/locks", 200),
        ("GET", "/no/such/path", 404),
        ("PUT", "/locks/a", 405),
        ("POST", "/locks/", 400),
        ("GET", long.as_str(), 414),
        ("GET", "/openapi.yaml", 500),
        ("HEAD", "/locks/a", 200),
        ("GET", "/ui/", 200),
        ("GET", "/ui/none", 404),
        ("GET", "/events", 200),
        ("LOCK", "/terraform/a/b", 200),
        ("UNLOCK", "/terraform/a", 200),
        ("POST", "/terraform/a/lock", 200),
        ("PUT", "/terraform/a", 405),
        ("LOCK", "/locks/a", 405),
    ] {
        let (seen, headers, _) = send(method, path, &[]).await;
        assert_eq!(seen, status, "{method} {path}");
        assert_eq!(headers[header::CACHE_CONTROL], "no-store", "{method} {path}");
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{method} {path}");
        assert_eq!(headers["cross-origin-resource-policy"], "same-origin", "{method} {path}");
        assert_eq!(headers[header::X_FRAME_OPTIONS], "DENY", "{method} {path}");
        assert!(headers.contains_key(header::CONTENT_SECURITY_POLICY), "{method} {path}");
        assert!(
            headers[crate::http::middleware::request_id::X_REQUEST_ID].as_bytes().starts_with(b"req_"),
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn a_valid_request_id_comes_back_in_header_and_problem() {
    let (_, headers, body) = send("GET", "/none", &[("x-request-id", "build-17")]).await;
    assert_eq!(headers[crate::http::middleware::request_id::X_REQUEST_ID], "build-17");
    let problem: api::ProblemDetails = serde_json::from_str(&body).expect("JSON");
    assert_eq!((problem.instance.as_str(), problem.kind.as_str()), ("build-17", "/problems/not-found"));
    let (_, headers, body) = send("GET", "/openapi.yaml", &[("x-request-id", "build 17")]).await;
    let drawn = headers[crate::http::middleware::request_id::X_REQUEST_ID].to_str().expect("ASCII");
    assert!(drawn.starts_with("req_") && body.contains(drawn), "{body}");
}

#[tokio::test]
async fn an_unknown_method_is_405_and_lists_the_known_ones() {
    let (status, headers, body) = send("PUT", "/locks/deploy/prod", &[]).await;
    assert_eq!(status, 405);
    let mut allowed: Vec<_> = headers[header::ALLOW].to_str().expect("ASCII").split(',').map(str::trim).collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["DELETE", "GET", "HEAD", "PATCH", "POST"]);
    assert!(body.contains("/problems/method-not-allowed"), "{body}");
    for (method, path) in [("POST", "/hooks"), ("DELETE", "/hooks"), ("OPTIONS", "/"), ("BREW", "/metrics")] {
        let (status, headers, _) = send(method, path, &[]).await;
        assert_eq!((status, &headers[header::ALLOW]), (405, &HeaderValue::from_static("GET,HEAD")), "{method} {path}");
    }
}

#[tokio::test]
async fn hostile_paths_reach_the_handler_which_refuses_them() {
    for path in [
        "/locks/a%2Fb",
        "/locks//a",
        "/locks/a/",
        "/locks/%00",
        "/locks/..",
        "/locks/a/../b",
        "/locks/%2e%2e",
        "/locks/%ff",
    ] {
        let (status, _, body) = send("POST", path, &[]).await;
        assert_eq!((status, body.as_str()), (200, "/locks/{*resource}"), "{path}");
    }
}

#[tokio::test]
async fn problems_are_negotiated_like_answers() {
    let (_, headers, body) = send("GET", "/none", &[("accept", "text/plain")]).await;
    assert_eq!(headers[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(body, "not-found: no such path; /openapi.yaml lists all paths\n");
}

#[tokio::test]
async fn requests_are_counted_by_route_and_unknown_paths_by_one_constant() {
    let metrics = metrics();
    for (method, path) in
        [("POST", "/locks/a/b"), ("POST", "/locks/c"), ("GET", "/x/1"), ("GET", "/x/2"), ("BREW", "/x/3")]
    {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
        echo(metrics.clone()).oneshot(request).await.expect("infallible");
    }
    let scrape = crate::metrics::Scrape::default();
    let text = metrics.scrape(&scrape).expect("encodes");
    for line in [
        "redlockd_http_requests_total{code=\"200\",method=\"POST\",route=\"/locks/{resource}\"} 2",
        "redlockd_http_requests_total{code=\"404\",method=\"other\",route=\"unmatched\"} 3",
        "redlockd_http_requests_in_flight{kind=\"normal\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
    assert!(!text.contains("/x/"), "raw paths are no labels");
}

#[tokio::test]
async fn a_request_of_a_disconnected_client_is_not_in_flight() {
    let metrics = metrics();
    let router = Router::new().route("/stuck", get(std::future::pending::<()>)).layer(layer(metrics.clone()));
    let request = Request::builder().uri("/stuck").body(Body::empty()).expect("a request");
    let mut call = Box::pin(router.oneshot(request));
    assert!(futures_util::poll!(&mut call).is_pending());
    let scrape = crate::metrics::Scrape::default();
    let in_flight = |n: u8| {
        let text = metrics.scrape(&scrape).expect("encodes");
        assert!(
            text.lines().any(|l| l == format!("redlockd_http_requests_in_flight{{kind=\"normal\"}} {n}")),
            "{text}"
        );
    };
    in_flight(1);
    drop(call);
    in_flight(0);
}

#[tokio::test]
async fn the_root_redirects_to_the_pages() {
    let response = root().await.into_response();
    assert_eq!(
        (response.status().as_u16(), &response.headers()[header::LOCATION]),
        (307, &HeaderValue::from_static("/ui/"))
    );
}
