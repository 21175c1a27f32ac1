//! The host names under which the service answers. A browser treats a foreign page as same-origin if its host name resolves to
//! this address (DNS rebinding). So requests without other authentication have their host name checked. Allocates nothing.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

/// The allowed names. IP addresses are always allowed, since no foreign page has one as its name. So is `localhost`, which
/// browsers resolve to this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    listed: Vec<String>,
    any: bool,
}

impl AllowedHosts {
    /// These names, in lower case and without ports.
    pub fn of(listed: Vec<String>) -> Self {
        Self { listed, any: false }
    }

    /// Every name: for services that authenticate all clients.
    pub fn any() -> Self {
        Self { listed: Vec::new(), any: true }
    }

    /// Whether `name` or `name:port` is allowed. Text that is no host is not.
    pub fn permit(&self, host: &str) -> bool {
        let Some(name) = name_of(host) else { return false };
        if self.any {
            return true;
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        is_localhost(name) || self.listed.iter().any(|listed| listed.eq_ignore_ascii_case(name)) || is_address(name)
    }

    /// As [`Self::permit`], for a request. A request without a host comes from no browser; `allow_missing` decides.
    pub fn permit_request(&self, headers: &HeaderMap, uri: &Uri, allow_missing: bool) -> bool {
        match (uri.authority(), headers.get(header::HOST)) {
            (Some(authority), _) => self.permit(authority.as_str()),
            (None, Some(host)) => host.to_str().is_ok_and(|host| self.permit(host)),
            (None, None) => self.any || allow_missing,
        }
    }
}

/// `name` or `name:port` of the request's target or `Host` header.
pub(crate) fn host_of<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> Option<&'r str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST)?.to_str().ok(),
    }
}

fn is_address(name: &str) -> bool {
    name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

fn is_localhost(name: &str) -> bool {
    const LOCALHOST: &str = "localhost";
    let split = name.len().saturating_sub(LOCALHOST.len());
    let (Some(head), Some(tail)) = (name.get(..split), name.get(split..)) else { return false };
    tail.eq_ignore_ascii_case(LOCALHOST) && (head.is_empty() || head.ends_with('.'))
}

/// The name without its port; `None` for text that is no host. Pages show it in commands for a shell.
fn name_of(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(end) => host.split_at(end + 2),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |text: &str| text.is_empty() || text.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok());
    let is_name =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
    (is_port(port) && (is_name(name) || is_address(name))).then_some(name)
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
            "$(id).localhost",
            "`id`.localhost:80",
            "a;b.localhost",
        ] {
            assert!(!listed().permit(host), "{host}");
        }
        for (host, is_name) in [("evil.example", true), ("redlockd:5625", true), ("[::1]:1", true), ("$(id)", false)] {
            assert_eq!(AllowedHosts::any().permit(host), is_name, "{host}");
        }
    }

    #[test]
    fn the_host_is_in_the_target_or_the_header_or_missing() {
        let (path, absolute) = (Uri::from_static("/locks"), Uri::from_static("http://evil.example/locks"));
        let with = |host: &'static [u8]| {
            let value = axum::http::HeaderValue::from_bytes(host).expect("a value");
            HeaderMap::from_iter([(header::HOST, value)])
        };
        let permits = |headers: &HeaderMap, uri: &Uri| [true, false].map(|n| listed().permit_request(headers, uri, n));
        assert_eq!(permits(&HeaderMap::new(), &path), [true, false]);
        assert_eq!(permits(&with(b"localhost"), &path), [true, true]);
        assert_eq!(permits(&with(b"evil.example"), &path), [false, false]);
        assert_eq!(permits(&with(b"\xff"), &path), [false, false], "an unreadable host is not a missing one");
        assert_eq!(permits(&with(b""), &path), [false, false]);
        assert_eq!(permits(&with(b"localhost"), &absolute), [false, false]);
        assert!(AllowedHosts::any().permit_request(&HeaderMap::new(), &path, false));
        assert!(!AllowedHosts::any().permit_request(&with(b"\xff"), &path, false));
    }

    proptest! {
        /// A foreign name that contains an allowed one stays foreign.
        #[test]
        fn a_foreign_name_is_never_allowed(
            host in "(localhost|locks\\.example\\.org|127\\.0\\.0\\.1|\\[::1\\]|[a-z:@\\[\\].%é]{0,8})\\.?[a-z0-9-]{1,8}\\.example(:[0-9]{1,5})?",
        ) {
            prop_assert!(!listed().permit(&host), "{}", host);
        }
    }
}
