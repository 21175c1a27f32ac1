//! Who may ask for pages, as far as a browser's own words tell: the name under which it asks, and
//! the page from which a form was sent. Rights of persons are not decided here.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::http::problem::Problem;
use crate::http::slug::Slug;
use crate::http::state::UiState;

/// Where browsers say from where a request comes. Source: W3C Fetch Metadata.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The layer that asks for a name that is allowed: a stranger's name that suddenly leads to this
/// address makes the stranger's page our own in the browser's eyes (DNS rebinding). An IP address
/// cannot be such a name.
///
/// Errors: `host-not-allowed`.
pub async fn host(State(ui): State<Arc<UiState>>, request: Request, next: Next) -> Result<Response, Problem> {
    let host = host_of(request.headers(), request.uri()).unwrap_or_default();
    if is_allowed(host, &ui.allowed_hosts) {
        return Ok(next.run(request).await);
    }
    let detail = "the pages are not offered under this host name; add it to the setting `allowed_hosts`, or use the \
                  service's address";
    Err(Problem::new(Slug::HostNotAllowed, detail))
}

/// `name` or `name:port`, as the request has it.
pub fn host_of<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> Option<&'r str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST)?.to_str().ok(),
    }
}

fn is_allowed(host: &str, allowed: &[String]) -> bool {
    let Some(name) = name_of(host) else { return false };
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    let is_address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    is_address(name) || name == "localhost" || name.ends_with(".localhost") || allowed.iter().any(|a| a == name)
}

/// Without the port; `None` for what is no host.
fn name_of(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(end) => host.split_at(end + 2),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |text: &str| text.is_empty() || text.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok());
    (!name.is_empty() && is_port(port)).then_some(name)
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
    Err(Problem::new(Slug::Forbidden, "this form was not sent from a page of this service; nothing was done"))
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
    fn addresses_loopback_names_and_listed_names_are_allowed() {
        let listed = ["locks.example.org".to_owned()];
        for host in [
            "127.0.0.1:5625",
            "127.0.0.1",
            "[::1]:5625",
            "[::1]",
            "10.1.2.3:80",
            "localhost:5625",
            "LOCALHOST",
            "a.localhost:1",
            "locks.example.org",
            "Locks.Example.org.:443",
        ] {
            assert!(is_allowed(host, &listed), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "locks.example.org.evil.example",
            "xlocks.example.org",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[::1",
            "[::1]evil.example",
            "127.0.0.1:port",
            "localhost:99999",
            "a b",
            "user@localhost",
        ] {
            assert!(!is_allowed(host, &listed), "{host}");
        }
    }

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
