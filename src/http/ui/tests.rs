//! What stands before and around the pages: headers, hosts, origins, and problems as pages. With
//! handlers of the test's own, since the real ones need a manager; those are tested with a browser.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::*;
use crate::audit::Audit;
use crate::http::middleware::host::AllowedHosts;
use crate::http::middleware::request_layer::RequestLayer;
use crate::metrics::Metrics;

fn app() -> Router {
    app_that(false)
}

fn app_that(is_open: bool) -> Router {
    let hosts = AllowedHosts::of(vec!["locks.example".into()]);
    let settings = HttpSettings { hosts, ..HttpSettings::default() };
    let pages = Router::new().route("/ui/x", get(|| async { "page" }).post(|| async { "done" }));
    let assets = Router::new().route("/ui/static/{file}", get(pages::asset));
    let host = from_fn_with_state(Arc::new(settings), guard::host);
    guarded(pages).merge(assets).layer(host).layer(RequestLayer::new(Metrics::new(&[], &[]), Audit::default(), is_open))
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
async fn every_answer_below_ui_tells_browsers_what_they_may_do() {
    for (path, status) in [("/ui/x", 200), ("/ui/none", 404), ("/ui/static/none.css", 404)] {
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
async fn a_strangers_name_is_refused_as_a_page_or_a_problem() {
    let stranger = ("host", "evil.example:5625");
    let (status, headers, body) = send("GET", "/ui/x", &[stranger]).await;
    assert_eq!((status, &headers["content-type"]), (421, &"application/problem+json".into_value()));
    assert!(body.contains("/problems/host-not-allowed") && !body.contains("evil"), "{body}");
    let (status, headers, body) = send("GET", "/ui/x", &[stranger, HTML]).await;
    assert_eq!((status, &headers["content-type"]), (421, &"text/html; charset=utf-8".into_value()));
    assert!(body.contains("allowed_hosts") && body.contains("<h1>"), "{body}");
    assert_eq!(send("GET", "/ui/static/none.css", &[stranger]).await.0, 421);
    assert_eq!(send("GET", "/ui/x", &[]).await.0, 421, "without a name there is no page");
    assert_eq!(send("GET", "/ui/x", &[("host", "locks.example")]).await.0, 200);
}

#[tokio::test]
async fn a_page_about_trouble_says_too_that_everybody_gets_in() {
    for is_open in [true, false] {
        let request = Request::builder().uri("/ui/x").header("host", "evil.example").header(HTML.0, HTML.1);
        let response = app_that(is_open).oneshot(request.body(Body::empty()).expect("a request")).await;
        let body = response.expect("infallible").into_body().collect().await.expect("a body").to_bytes();
        let page = String::from_utf8_lossy(&body);
        assert!(page.contains("<h1>") && page.contains("No authentication.") == is_open, "{page}");
    }
}

#[tokio::test]
async fn what_changes_something_comes_from_our_own_pages() {
    let post = async |site| send("POST", "/ui/x", &[HOST, ("sec-fetch-site", site)]).await.0;
    assert_eq!((post("same-origin").await, post("cross-site").await, post("same-site").await), (200, 403, 403));
    assert_eq!(send("POST", "/ui/x", &[HOST, ("origin", "http://evil.example")]).await.0, 403);
    assert_eq!(send("GET", "/ui/x", &[HOST, ("sec-fetch-site", "cross-site")]).await.0, 200, "links may lead here");
}

#[tokio::test]
async fn assets_are_kept_for_ever_under_their_hashed_names_only() {
    let style = &crate::views::assets::all().style;
    let (status, headers, body) = send("GET", &format!("/ui/static/{}", style.name), &[HOST]).await;
    assert_eq!((status, body.as_bytes()), (200, style.bytes));
    assert_eq!(headers["cache-control"], "public, max-age=31536000, immutable");
    assert_eq!(headers["content-type"], "text/css; charset=utf-8");
    assert_eq!(send("GET", "/ui/static/style.css", &[HOST]).await.0, 404);
}
