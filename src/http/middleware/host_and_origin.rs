//! Checks of requests that a browser may send for another site: one of the origin and one of the host name. `docs/security.md`
//! explains why they suffice for forms.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Uri, header};

use crate::http::allowed_hosts::{AllowedHosts, host_of};
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::request_context::RequestContext;

/// The relation of the page that sends the request to this service. Source: W3C Fetch Metadata.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses a state-changing request that a browser sends for a page of another site, and also one for a stream, since only a few
/// streams are possible. A request without these headers comes from no browser. `is_https`: whether the client's connection is
/// encrypted.
///
/// Errors: `forbidden`. Source: the order of checks of Go's `net/http.CrossOriginProtection`.
pub(super) fn check_origin(request: &Request, is_stream: bool, is_https: impl FnOnce() -> bool) -> Result<(), Problem> {
    let is_safe = matches!(request.method().as_str(), "GET" | "HEAD" | "OPTIONS");
    if (is_safe && !is_stream) || is_same_origin(request.headers(), request.uri(), is_https) {
        return Ok(());
    }
    let detail = if is_safe {
        "a browser sent this for a page of another site, which may not follow events here"
    } else {
        "a browser sent this for a page of another site, which may not change anything here"
    };
    Err(Problem::new(ProblemKind::Forbidden, detail))
}

/// Refuses a request under a foreign host name. Browsers always name a host; `allow_missing` admits other clients.
///
/// Errors: `host-not-allowed`, without the name, which is the client's input.
pub(super) fn check_host(hosts: &AllowedHosts, request: &Request, allow_missing: bool) -> Result<(), Problem> {
    if RequestContext::has_accepted_host(request) {
        return Ok(());
    }
    if hosts.permit_request(request.headers(), request.uri(), allow_missing) {
        // The host of a target comes before the header.
        let host = request.headers().get(header::HOST).filter(|_| request.uri().authority().is_none());
        if let Some((connection, host)) = RequestContext::connection(request).zip(host) {
            connection.accept_host(host);
        }
        return Ok(());
    }
    let detail = "the service is not offered under this host name; add it to the setting `allowed_hosts`, or use the \
                  service's address";
    Err(Problem::new(ProblemKind::HostNotAllowed, detail))
}

/// Whether, by the browser's headers, the request comes from a page of this service, or from no browser.
fn is_same_origin(headers: &HeaderMap, uri: &Uri, is_https: impl FnOnce() -> bool) -> bool {
    let (site, origin) = (headers.get(SEC_FETCH_SITE), headers.get(header::ORIGIN));
    if site.or(origin).is_none() {
        return true;
    }
    // A browser sends each header once; of two values, a proxy may have checked either.
    let is_twice = |name: HeaderName| headers.get_all(name).iter().nth(1).is_some();
    if is_twice(SEC_FETCH_SITE) || is_twice(header::ORIGIN) {
        return false;
    }
    if let Some(site) = site {
        return matches!(site.as_bytes(), b"same-origin" | b"none");
    }
    let Some((scheme, origin)) = origin.and_then(|o| o.to_str().ok()?.split_once("://")) else { return false };
    // Another server may have the same name under the other scheme.
    let own = if is_https() { "https" } else { "http" };
    scheme.eq_ignore_ascii_case(own) && host_of(headers, uri).is_some_and(|host| host.eq_ignore_ascii_case(origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_page_may_read_no_stream_and_sends_other_reads() {
        let request = Request::builder().uri("/events").header(SEC_FETCH_SITE, "cross-site");
        let request = request.body(axum::body::Body::empty()).expect("a request");
        assert!(check_origin(&request, true, || false).is_err());
        assert!(check_origin(&request, false, || false).is_ok());
    }

    #[test]
    fn sec_fetch_site_decides_and_origin_is_the_fallback() {
        let uri = Uri::from_static("/ui/revoke/x");
        let same = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "127.0.0.1:5625".parse().expect("a value"));
            for (name, value) in pairs {
                headers.insert(*name, value.parse().expect("a value"));
            }
            is_same_origin(&headers, &uri, || false)
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
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "locks.example".parse().expect("a value"));
        headers.insert(header::ORIGIN, "https://locks.example".parse().expect("a value"));
        assert!(is_same_origin(&headers, &uri, || true) && !is_same_origin(&headers, &uri, || false));
        headers.append(header::ORIGIN, "https://evil.example".parse().expect("a value"));
        assert!(!is_same_origin(&headers, &uri, || true), "given twice");
        headers.remove(header::ORIGIN);
        for _ in 0..2 {
            assert!(is_same_origin(&headers, &uri, || true));
            headers.append(SEC_FETCH_SITE, "same-origin".parse().expect("a value"));
        }
        assert!(!is_same_origin(&headers, &uri, || true), "given twice");
    }
}
