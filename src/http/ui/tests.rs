//! What applies to every page: browser headers, hosts, origins, and problems as pages. The handlers are the test's own,
//! except that of assets, since the real ones need a manager; those are tested with a browser.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method};
use axum::routing::{MethodFilter, any, on};
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::*;
use crate::audit::Audit;
use crate::auth::authenticator::Authenticator;
use crate::http::allowed_hosts::AllowedHosts;
use crate::http::middleware::auth::AuthLayer;
use crate::http::middleware::stack::RequestLayer;
use crate::http::router::assemble;
use crate::http::routes::{Operation, ROUTES};
use crate::http::state::{HttpSettings, shipped_settings};
use crate::metrics::Metrics;

fn app() -> Router {
    app_with(false)
}

fn app_with(is_open_to_others: bool) -> Router {
    let hosts = AllowedHosts::of(vec!["locks.example".into()]);
    let settings = Arc::new(HttpSettings { hosts, is_open_to_others, ..shipped_settings() });
    let authenticator = Arc::new(Authenticator::open());
    let handlers = ROUTES.iter().map(|route| {
        let filter = MethodFilter::try_from(route.method.parse::<Method>().expect("a method"));
        let handler = match route.operation {
            Operation::Ui(UiRoute::Asset) => get(pages::asset),
            _ => filter.map_or_else(|_| any(async || "page"), |filter| on(filter, async || "page")),
        };
        (route, handler.layer(AuthLayer::new(Arc::clone(&authenticator), Arc::clone(&settings), route)))
    });
    assemble(handlers, &RequestLayer::new(Metrics::new(&[], &[]), Audit::default(), Arc::clone(&settings)))
}

async fn send(method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    let (parts, body) = app().oneshot(request).await.expect("infallible").into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    (parts.status.as_u16(), parts.headers, String::from_utf8(bytes.to_vec()).expect("UTF-8"))
}

const HOST: (&str, &str) = ("host", "127.0.0.1:5625");
const HTML: (&str, &str) = ("accept", "text/html,*/*;q=0.8");

#[tokio::test]
async fn every_answer_below_ui_has_the_security_headers() {
    for (path, status) in [("/ui/", 200), ("/ui/none", 404), ("/ui/static/none.css", 404)] {
        let (seen, headers, _) = send("GET", path, &[HOST]).await;
        assert_eq!(seen, status, "{path}");
        let policy = headers["content-security-policy"].to_str().expect("ASCII");
        for part in ["default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains("data:"), "{policy}");
        assert_eq!(
            (&headers["x-frame-options"], &headers["referrer-policy"]),
            (&"DENY".into_value(), &"same-origin".into_value())
        );
    }
}

trait IntoValue {
    fn into_value(self) -> axum::http::HeaderValue;
}

impl IntoValue for &'static str {
    fn into_value(self) -> axum::http::HeaderValue {
        axum::http::HeaderValue::from_static(self)
    }
}

#[tokio::test]
async fn a_foreign_host_is_refused_with_a_page_or_a_problem() {
    let foreign = ("host", "evil.example:5625");
    let (status, headers, body) = send("GET", "/ui/", &[foreign]).await;
    assert_eq!((status, &headers["content-type"]), (421, &"application/problem+json".into_value()));
    assert!(body.contains("/problems/host-not-allowed") && !body.contains("evil"), "{body}");
    let (status, headers, body) = send("GET", "/ui/", &[foreign, HTML]).await;
    assert_eq!((status, &headers["content-type"]), (421, &"text/html; charset=utf-8".into_value()));
    assert!(body.contains("allowed_hosts") && body.contains("<h1>"), "{body}");
    assert_eq!(send("GET", "/ui/static/none.css", &[foreign]).await.0, 421);
    assert_eq!(send("GET", "/ui/", &[]).await.0, 421, "pages need a host");
    assert_eq!(send("GET", "/ui/", &[("host", "locks.example")]).await.0, 200);
}

#[tokio::test]
async fn an_error_page_shows_that_authentication_is_off() {
    for is_open in [true, false] {
        let request = Request::builder().uri("/ui/").header("host", "evil.example").header(HTML.0, HTML.1);
        let response = app_with(is_open).oneshot(request.body(Body::empty()).expect("a request")).await;
        let body = response.expect("infallible").into_body().collect().await.expect("a body").to_bytes();
        let page = String::from_utf8_lossy(&body);
        assert!(page.contains("<h1>") && page.contains("No authentication.") == is_open, "{page}");
    }
}

#[tokio::test]
async fn forms_are_accepted_from_own_pages_only() {
    let post = async |headers: &[(&str, &str)]| send("POST", "/ui/revoke/x", &[&[HOST], headers].concat()).await.0;
    for (headers, expected) in [
        (&[("sec-fetch-site", "same-origin")][..], 200),
        (&[("sec-fetch-site", "none")], 200),
        (&[("origin", "http://127.0.0.1:5625")], 200),
        // No browser: it has no cookies that a page of another site could use.
        (&[], 200),
        (&[("sec-fetch-site", "cross-site")], 403),
        (&[("sec-fetch-site", "same-site")], 403),
        (&[("sec-fetch-site", "cross-site"), ("origin", "http://127.0.0.1:5625")], 403),
        (&[("origin", "http://evil.example")], 403),
        (&[("origin", "null")], 403),
    ] {
        assert_eq!(post(headers).await, expected, "{headers:?}");
    }
    assert_eq!(
        send("GET", "/ui/", &[HOST, ("sec-fetch-site", "cross-site")]).await.0,
        200,
        "links from other sites work"
    );
}

#[tokio::test]
async fn assets_are_cacheable_under_their_hashed_names_only() {
    let style = &crate::pages::assets::all().style;
    let (status, headers, body) = send("GET", &format!("/ui/static/{}", style.name), &[HOST]).await;
    assert_eq!((status, body.as_bytes()), (200, style.bytes));
    assert_eq!(headers["cache-control"], "public, max-age=31536000, immutable");
    assert_eq!(headers["content-type"], "text/css; charset=utf-8");
    assert_eq!(send("GET", "/ui/static/style.css", &[HOST]).await.0, 404);
}
