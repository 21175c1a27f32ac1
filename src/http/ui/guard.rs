//! Who may ask for pages, as far as a browser's own words tell: the name under which it asks, and
//! the page from which a form was sent. Rights of persons are not decided here.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::http::api::problem::Problem;
use crate::http::api::problem_kind::ProblemKind;
use crate::http::middleware::host::{self, host_of};
use crate::http::state::HttpSettings;

/// Where browsers say from where a request comes. Source: W3C Fetch Metadata.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The layer that asks for a name that is allowed: see [`crate::http::middleware::host`]. Browsers name one, always.
///
/// Errors: `host-not-allowed`.
pub async fn host(
    State(settings): State<Arc<HttpSettings>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if settings.hosts.permit_request(request.headers(), request.uri(), false) {
        return Ok(next.run(request).await);
    }
    Err(host::refused())
}

/// The layer that refuses what another site's page sends: what changes something must come from a
/// page of this service, and a browser says so. What says nothing is no browser; it still needs the
/// form's token.
///
/// Errors: `forbidden`. Source: the order of questions is that of Go's `net/http.CrossOriginProtection`.
pub async fn same_origin(request: Request, next: Next) -> Result<Response, Problem> {
    if matches!(*request.method(), Method::GET | Method::HEAD) || is_same_origin(request.headers(), request.uri()) {
        return Ok(next.run(request).await);
    }
    Err(Problem::new(ProblemKind::Forbidden, "this form was not sent from a page of this service; nothing was done"))
}

/// Whether a browser says that this comes from a page of this service, or is none.
pub fn is_same_origin(headers: &HeaderMap, uri: &Uri) -> bool {
    if let Some(site) = headers.get(SEC_FETCH_SITE) {
        return matches!(site.as_bytes(), b"same-origin" | b"none");
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|o| o.split_once("://")).map(|(_, host)| host);
    origin.is_some_and(|origin| host_of(headers, uri).is_some_and(|host| host.eq_ignore_ascii_case(origin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_says_from_where_a_form_comes() {
        let uri = Uri::from_static("/ui/revoke/x");
        let same = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "127.0.0.1:5625".parse().expect("a value"));
            for (name, value) in pairs {
                headers.insert(*name, value.parse().expect("a value"));
            }
            is_same_origin(&headers, &uri)
        };
        assert!(same(&[]) && same(&[("sec-fetch-site", "same-origin")]));
        assert!(same(&[("origin", "http://127.0.0.1:5625")]));
        for foreign in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "cross-site"), ("origin", "http://127.0.0.1:5625")],
            &[("origin", "http://127.0.0.1:80")],
            &[("origin", "http://evil.example")],
            &[("origin", "null")],
        ] {
            assert!(!same(foreign), "{foreign:?}");
        }
    }
}
