//! Security headers for browsers; and below `/ui` and `/problems`, problems as HTML pages for clients that accept HTML.

use std::sync::{Arc, LazyLock};

use askama::Template;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};

use super::client_address;
use crate::http::path::is_page;
use crate::http::problem::Problem;
use crate::http::state::HttpSettings;
use crate::pages::error_page;
use crate::pages::login::LoginPage;

/// Only the service's own style, script, icon and addresses; no inline code; no framing.
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

/// Headers of answers that are no pages: no page of another site may show or embed them, and so learn from the browser's behaviour
/// whether a lock is held. With [`COMMON_HEADERS`].
static API_HEADERS: LazyLock<HeaderMap> = LazyLock::new(|| {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let headers = headers.into_iter().chain(COMMON_HEADERS);
    headers.map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
});

/// Headers of all answers. Nothing may be cached, except assets, whose names contain a hash.
const COMMON_HEADERS: [(HeaderName, &str); 2] =
    [(header::X_CONTENT_TYPE_OPTIONS, "nosniff"), (header::CACHE_CONTROL, "no-store")];

/// Adds the headers of all answers and, unless it is a page, those of other answers.
pub(super) fn add_headers(headers: &mut HeaderMap, is_page: bool) {
    if is_page {
        for (name, value) in COMMON_HEADERS {
            headers.entry(name).or_insert(HeaderValue::from_static(value));
        }
    } else if headers.is_empty() {
        // As of most releases.
        headers.clone_from(&API_HEADERS);
    } else {
        for (name, value) in &*API_HEADERS {
            headers.entry(name).or_insert_with(|| value.clone());
        }
    }
}

/// Browsers use only HTTPS for this name for half a year from the last answer. Only pages have this header, since no other client
/// heeds it; without `includeSubDomains`, since other names are other services.
const HSTS: HeaderValue = HeaderValue::from_static("max-age=15552000");

/// Completes the answer to a request for a page.
pub(super) struct HtmlResponse {
    accepts_html: bool,
    is_open: bool,
    is_https: bool,
    /// Path and query of the requested page.
    page: Option<String>,
}

impl HtmlResponse {
    /// `None` for requests that are not for pages.
    pub(super) fn of(request: &Request, settings: &HttpSettings) -> Option<Self> {
        let path = request.uri().path();
        let is_below = path == "/ui" || path.starts_with("/ui/") || path.starts_with("/problems/");
        is_below.then(|| Self {
            accepts_html: accepts_html(request.headers()),
            is_open: settings.is_open_to_others,
            is_https: client_address::is_https(request, &settings.trusted_proxies),
            page: page_of(request),
        })
    }

    /// Turns a problem into a page and adds the headers. `instance`: the request's id.
    pub(super) fn apply(&self, instance: &str, mut response: Response) -> Response {
        if self.accepts_html
            && let Some(problem) = response.extensions_mut().remove::<Arc<Problem>>()
        {
            response = self.page(&problem, instance, response);
        }
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        if self.is_https {
            response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, HSTS);
        }
        response
    }

    /// The problem as a page, with its status and headers. A user who has to log in gets the form at once, and afterwards the
    /// requested page.
    fn page(&self, problem: &Problem, instance: &str, response: Response) -> Response {
        let body = problem.body(instance);
        let html = match &self.page {
            Some(next) if response.status() == StatusCode::UNAUTHORIZED => {
                LoginPage { next: next.clone(), ..LoginPage::default() }.render()
            }
            _ => error_page::page(&body, self.is_open),
        };
        let Ok(html) = html else { return response };
        let (mut parts, _) = response.into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        let mut page = (parts.status, parts.headers, Html(html)).into_response();
        *page.extensions_mut() = parts.extensions;
        page
    }
}

/// Path and query, if the request is for a page to which a log-in can lead.
fn page_of(request: &Request) -> Option<String> {
    let path = request.uri().path_and_query().filter(|_| request.method() == Method::GET)?.as_str();
    is_page(path).then(|| path.to_owned())
}

pub(crate) fn accepts_html(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).any(|range| range.trim_start().starts_with("text/html"))
}
