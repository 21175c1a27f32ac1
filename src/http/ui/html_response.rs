//! What browsers are told of everything under `/ui`, and problems as pages for people: whatever guards
//! and handlers refuse, and also paths that do not exist. Others get problems as everywhere else.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};

use crate::http::api::problem::Problem;
use crate::http::middleware::request_id::RequestId;
use crate::views::error_page;

/// Nothing but the service's own style, script, icon and addresses; no inline code; no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_FRAME_OPTIONS, "DENY"),
    // Not `no-referrer`: forms would be sent with `Origin: null`.
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// How the answer to a request below `/ui` is completed.
pub struct HtmlResponse {
    is_person: bool,
    is_open: bool,
}

impl HtmlResponse {
    /// `None` for requests elsewhere. `is_open`: see
    /// [`crate::http::state::HttpSettings::is_open_to_others`].
    pub fn of(request: &Request, is_open: bool) -> Option<Self> {
        let path = request.uri().path();
        let is_below = path == "/ui" || path.starts_with("/ui/");
        is_below.then(|| Self { is_person: accepts_html(request.headers()), is_open })
    }

    /// Dresses the answer.
    pub fn apply(&self, id: &RequestId, mut response: Response) -> Response {
        if self.is_person
            && let Some(problem) = response.extensions_mut().remove::<Arc<Problem>>()
        {
            response = page(&problem, id, self.is_open, response);
        }
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).any(|range| range.trim_start().starts_with("text/html"))
}

/// The problem as a page, with the status and the headers that it has.
fn page(problem: &Problem, id: &RequestId, is_open: bool, response: Response) -> Response {
    let body = problem.body(id.as_str());
    let Ok(html) = error_page::page(&body, is_open) else { return response };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    let mut dressed = (parts.status, parts.headers, Html(html)).into_response();
    *dressed.extensions_mut() = parts.extensions;
    dressed
}
