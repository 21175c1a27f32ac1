//! The address of a client, and whether its connection is encrypted: as seen on the connection or, behind trusted proxies, as
//! these report it in `X-Forwarded-For` and `X-Forwarded-Proto`.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::http::request_context::RequestContext;

/// The header in which proxies report the client.
const FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The header in which proxies report the client's protocol.
const PROTOCOL: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The maximum number of hops that are read.
const HOPS_MAX: usize = 16;

/// The client's address, for the audit log only: no decision depends on it.
pub(super) fn of(request: &Request, trusted: &[IpNet]) -> Option<IpAddr> {
    let peer = RequestContext::connection(request)?.peer().ip();
    Some(resolve(peer.to_canonical(), request.headers(), trusted))
}

/// Whether the client's connection is encrypted: up to this service, or up to the trusted proxy in front of it.
pub(crate) fn is_https(request: &Request, trusted: &[IpNet]) -> bool {
    let Some(connection) = RequestContext::connection(request) else { return false };
    let peer = connection.peer().ip().to_canonical();
    let is_trusted = trusted.iter().any(|net| net.contains(&peer));
    // The nearest proxy wrote the last value; a client may have written everything before it.
    let last = request.headers().get_all(PROTOCOL).iter().next_back().and_then(|v| v.to_str().ok()?.rsplit(',').next());
    connection.is_tls() || (is_trusted && last.is_some_and(|word| word.trim().eq_ignore_ascii_case("https")))
}

/// An address, with or without the port that some proxies add; IPv6 also in brackets.
fn parse(hop: &str) -> Option<IpAddr> {
    let bare = hop.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(hop);
    bare.parse().ok().or_else(|| hop.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

/// The first address, from the nearest hop outwards, that is no trusted proxy: an untrusted client may have written everything
/// beyond it.
pub fn resolve(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    let mut nearest = peer;
    let values: Vec<&str> = headers.get_all(FORWARDED).iter().map(|v| v.to_str().unwrap_or("?")).collect();
    for hop in values.iter().rev().flat_map(|value| value.rsplit(',')).take(HOPS_MAX) {
        if !is_trusted(&nearest) {
            break;
        }
        let Some(address) = parse(hop.trim()) else { break };
        nearest = address.to_canonical();
    }
    nearest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::connection::Connection;
    use proptest::prelude::*;

    fn resolved(peer: &str, forwarded: &[&str], trusted: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED, value.parse().expect("a header value"));
        }
        let trusted: Vec<IpNet> = trusted.iter().map(|net| net.parse().expect("a network")).collect();
        resolve(peer.parse().expect("an address"), &headers, &trusted).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        const PROXIES: &[&str] = &["10.0.0.0/8", "fd00::/8"];
        for (peer, forwarded, expected) in [
            ("192.0.2.1", &["198.51.100.7"][..], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
            ("10.0.0.1", &["1.1.1.1, 198.51.100.7"], "198.51.100.7"),
            ("10.0.0.1", &["1.1.1.1, 198.51.100.7, 10.0.0.2"], "198.51.100.7"),
            ("10.0.0.1", &["1.1.1.1", "198.51.100.7, 10.0.0.2"], "198.51.100.7"),
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &["198.51.100.7, garbage"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.7, unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &[""], "10.0.0.1"),
            ("fd00::1", &["2001:db8::7"], "2001:db8::7"),
            ("10.0.0.1", &["::ffff:198.51.100.7"], "198.51.100.7"),
            // L9: some proxies add the port.
            ("10.0.0.1", &["198.51.100.7:80"], "198.51.100.7"),
            ("10.0.0.1", &["1.1.1.1:1, 198.51.100.7:80, 10.0.0.2:5"], "198.51.100.7"),
            ("fd00::1", &["[2001:db8::7]:99"], "2001:db8::7"),
            ("fd00::1", &["[2001:db8::7]"], "2001:db8::7"),
            ("10.0.0.1", &["198.51.100.7:port"], "10.0.0.1"),
        ] {
            assert_eq!(resolved(peer, forwarded, PROXIES), expected, "{peer} {forwarded:?}");
            assert_eq!(resolved(peer, forwarded, &[]), peer, "no proxy is trusted");
        }
    }

    #[test]
    fn l14_only_a_trusted_proxy_says_that_a_connection_is_encrypted() {
        let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().expect("a network")];
        for (peer, is_tls, protocols, expected) in [
            ([10, 0, 0, 1], false, &["https"][..], true),
            ([10, 0, 0, 1], false, &["http, HTTPS"], true),
            ([10, 0, 0, 1], false, &["https", "http"], false),
            ([10, 0, 0, 1], false, &["https, http"], false),
            ([10, 0, 0, 1], false, &[], false),
            ([192, 0, 2, 1], false, &["https"], false),
            ([192, 0, 2, 1], true, &[], true),
        ] {
            let mut request = Request::new(axum::body::Body::empty());
            for protocol in protocols {
                request.headers_mut().append(PROTOCOL, protocol.parse().expect("a value"));
            }
            let connection = Some(Connection::new((peer, 1).into(), is_tls));
            request.extensions_mut().insert(RequestContext { connection, ..RequestContext::default() });
            assert_eq!(is_https(&request, &trusted), expected, "{peer:?} {is_tls} {protocols:?}");
        }
    }

    proptest! {
        /// Whatever a client writes in front, the address that a trusted proxy has added is used.
        #[test]
        fn a_forged_header_does_not_hide_the_address(forged in "[0-9a-f:., ]{0,60}") {
            let seen = resolved("10.0.0.1", &[&format!("{forged}, 198.51.100.7")], &["10.0.0.0/8"]);
            prop_assert_eq!(seen, "198.51.100.7");
        }
    }
}
