//! Under which names the service may be asked. A stranger's name that suddenly leads to this address
//! makes the stranger's page our own in a browser's eyes (DNS rebinding), so where nothing else asks
//! who is there, the name is looked at. Costs a request no allocation. Knows headers; who is guarded
//! by it is said in `auth` and `ui::guard`.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

use crate::http::api::problem::Problem;
use crate::http::api::problem_kind::ProblemKind;

/// The names that are allowed, besides IP addresses, which no page of a stranger's can have for a
/// name, and `localhost`, which browsers themselves keep on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    listed: Vec<String>,
    any: bool,
}

impl AllowedHosts {
    /// These names, in small letters and without ports.
    pub fn of(listed: Vec<String>) -> Self {
        Self { listed, any: false }
    }

    /// All names.
    pub fn any() -> Self {
        Self { listed: Vec::new(), any: true }
    }

    /// Whether `name` or `name:port` may be asked for. What is no host may not.
    pub fn permit(&self, host: &str) -> bool {
        if self.any {
            return true;
        }
        let Some(name) = name_of(host) else { return false };
        let name = name.strip_suffix('.').unwrap_or(name);
        is_address(name) || is_localhost(name) || self.listed.iter().any(|listed| listed.eq_ignore_ascii_case(name))
    }

    /// The same of a request. One that names no host at all comes from no browser, and passes where
    /// `nameless` do.
    pub fn permit_request(&self, headers: &HeaderMap, uri: &Uri, nameless: bool) -> bool {
        if self.any {
            return true;
        }
        let names_none = uri.authority().is_none() && !headers.contains_key(header::HOST);
        if names_none { nameless } else { host_of(headers, uri).is_some_and(|host| self.permit(host)) }
    }
}

/// `name` or `name:port`, as the request has it.
pub fn host_of<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> Option<&'r str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST)?.to_str().ok(),
    }
}

/// What to say to the others. The name itself is theirs, and not repeated.
pub fn refused() -> Problem {
    let detail = "the service is not offered under this host name; add it to the setting `allowed_hosts`, or use the \
                  service's address";
    Problem::new(ProblemKind::HostNotAllowed, detail)
}

fn is_address(name: &str) -> bool {
    name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

fn is_localhost(name: &str) -> bool {
    const LOCALHOST: &str = "localhost";
    let at = name.len().saturating_sub(LOCALHOST.len());
    let (Some(head), Some(tail)) = (name.get(..at), name.get(at..)) else { return false };
    tail.eq_ignore_ascii_case(LOCALHOST) && (head.is_empty() || head.ends_with('.'))
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listed() -> AllowedHosts {
        AllowedHosts::of(vec!["locks.example.org".to_owned()])
    }

    #[test]
    fn addresses_loopback_names_and_listed_names_are_allowed() {
        for host in [
            "127.0.0.1:5625",
            "127.0.0.1",
            "[::1]:5625",
            "[::1]",
            "10.1.2.3:80",
            "localhost:5625",
            "LOCALHOST",
            "localhost.",
            "a.localhost:1",
            "locks.example.org",
            "Locks.Example.org.:443",
        ] {
            assert!(listed().permit(host), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "locks.example.org.evil.example",
            "xlocks.example.org",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evillocalhost",
            "[::1",
            "[::1]evil.example",
            "127.0.0.1:port",
            "localhost:99999",
            "a b",
            "user@localhost",
            "redlockd:5625",
        ] {
            assert!(!listed().permit(host), "{host}");
            assert!(AllowedHosts::any().permit(host), "{host}");
        }
    }

    #[test]
    fn a_request_names_its_host_in_its_target_or_in_a_header_or_not_at_all() {
        let (path, absolute) = (Uri::from_static("/locks"), Uri::from_static("http://evil.example/locks"));
        let with = |host: &'static [u8]| {
            let value = axum::http::HeaderValue::from_bytes(host).expect("a value");
            HeaderMap::from_iter([(header::HOST, value)])
        };
        let permits = |headers: &HeaderMap, uri: &Uri| [true, false].map(|n| listed().permit_request(headers, uri, n));
        assert_eq!(permits(&HeaderMap::new(), &path), [true, false]);
        assert_eq!(permits(&with(b"localhost"), &path), [true, true]);
        assert_eq!(permits(&with(b"evil.example"), &path), [false, false]);
        assert_eq!(permits(&with(b"\xff"), &path), [false, false], "what cannot be read is not nothing");
        assert_eq!(permits(&with(b""), &path), [false, false]);
        assert_eq!(permits(&with(b"localhost"), &absolute), [false, false]);
        assert!(AllowedHosts::any().permit_request(&with(b"\xff"), &path, false));
    }

    proptest! {
        /// Whatever is put around an allowed name, the name itself is what counts.
        #[test]
        fn a_strangers_name_is_never_taken_for_one_of_ours(
            host in "(localhost|locks\\.example\\.org|127\\.0\\.0\\.1|\\[::1\\]|[a-z:@\\[\\].%é]{0,8})\\.?[a-z0-9-]{1,8}\\.example(:[0-9]{1,5})?",
        ) {
            prop_assert!(!listed().permit(&host), "{}", host);
        }
    }
}
