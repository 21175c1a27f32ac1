//! What an HTTP layer with the duties of the service's takes if it is built of the usual crates: routes and extractors of axum,
//! layers of tower-http, serde, prometheus. It answers like the service, with the same headers and fields, and holds no lock.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::extract::{Json, MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use jiff::Timestamp;
use prometheus::{HistogramOpts, HistogramVec};
use serde::{Deserialize, Serialize};
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::set_header::SetResponseHeaderLayer;

use crate::Failure;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// The headers that each answer has.
const HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-frame-options", "DENY"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    ttl: String,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    note: String,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Lease {
    resource: String,
    mode: &'static str,
    token: &'static str,
    token_id: &'static str,
    fence: u64,
    owner: String,
    note: String,
    metadata: BTreeMap<String, String>,
    acquired_at: Timestamp,
    expires_at: Timestamp,
    ttl_ms: u128,
    valid_for_ms: u128,
    waited_ms: u64,
    quorum: Quorum,
}

#[derive(Serialize)]
struct Quorum {
    granted: usize,
    needed: usize,
    nodes: usize,
}

/// Serves until the process is ended. Prints its address.
pub async fn serve() -> Result<(), Failure> {
    let times =
        HistogramOpts::new("request_seconds", "Requests").buckets(prometheus::exponential_buckets(0.0001, 2.0, 18)?);
    let times = HistogramVec::new(times, &["route", "method", "code"])?;
    let mut app = Router::new().route("/locks/{*resource}", post(acquire).delete(release));
    for (name, value) in HEADERS {
        let name = HeaderName::from_static(name);
        app = app.layer(SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value)));
    }
    let app = app
        .layer(from_fn(check_host))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .route_layer(from_fn_with_state(times, observe));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn acquire(Path(resource): Path<String>, Json(asked): Json<Asked>) -> Response {
    let Asked { ttl, owner, note, metadata } = asked;
    let Some(ttl) = humantime::parse_duration(&ttl).ok().filter(|_| is_name(&resource)) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let (now, fence, valid) = (Timestamp::now(), 1_795_936_552_101_350, ttl.saturating_sub(Duration::from_millis(315)));
    let mut headers = HeaderMap::new();
    headers.insert("fencing-token", HeaderValue::from(fence));
    let texts = [(header::ETAG, format!("\"{fence}\"")), (header::LOCATION, format!("/locks/{resource}"))];
    for (name, text) in texts {
        headers.insert(name, HeaderValue::try_from(text).expect("letters"));
    }
    headers.insert("lock-token", HeaderValue::from_static(TOKEN));
    let lease = Lease {
        resource,
        mode: "exclusive",
        token: TOKEN,
        token_id: "b23e13bc",
        fence,
        owner,
        note,
        metadata,
        acquired_at: now,
        expires_at: now + valid,
        ttl_ms: ttl.as_millis(),
        valid_for_ms: valid.as_millis(),
        waited_ms: 0,
        quorum: Quorum { granted: 5, needed: 3, nodes: 5 },
    };
    (StatusCode::CREATED, headers, Json(lease)).into_response()
}

async fn release(Path(resource): Path<String>, headers: HeaderMap) -> StatusCode {
    let is_token = headers.get("lock-token").is_some_and(|token| token.as_bytes() == TOKEN.as_bytes());
    if is_token && is_name(&resource) { StatusCode::NO_CONTENT } else { StatusCode::BAD_REQUEST }
}

fn is_name(text: &str) -> bool {
    text.len() <= 200 && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._/:".contains(c))
}

async fn check_host(request: Request, next: Next) -> Response {
    match request.headers().get(header::HOST).is_some_and(|host| host == "localhost") {
        true => next.run(request).await,
        false => StatusCode::MISDIRECTED_REQUEST.into_response(),
    }
}

async fn observe(State(times): State<HistogramVec>, route: MatchedPath, request: Request, next: Next) -> Response {
    let (method, begun) = (request.method().clone(), std::time::Instant::now());
    let response = next.run(request).await;
    let status = response.status();
    let labels = [route.as_str(), method.as_str(), status.as_str()];
    times.with_label_values(&labels).observe(begun.elapsed().as_secs_f64());
    response
}
