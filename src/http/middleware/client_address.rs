//! The address of a client: the peer of the connection or, behind trusted proxies, what they report in
//! `X-Forwarded-For`.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::http::connection::Connection;

/// The header in which proxies report the client.
const FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The maximum number of hops that are read.
const HOPS_MAX: usize = 16;

/// The client's address, for the audit log only: no decision depends on it.
pub(super) fn of(request: &Request, trusted: &[IpNet]) -> Option<IpAddr> {
    let peer = Connection::of(request)?.peer().ip();
    Some(resolve(peer.to_canonical(), request.headers(), trusted))
}

/// The first address, from the nearest hop outwards, that is no trusted proxy: an untrusted client may have written
/// everything beyond it.
fn resolve(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    let mut nearest = peer;
    let values: Vec<&str> = headers.get_all(FORWARDED).iter().map(|v| v.to_str().unwrap_or("?")).collect();
    for hop in values.iter().rev().flat_map(|value| value.rsplit(',')).take(HOPS_MAX) {
        if !is_trusted(&nearest) {
            break;
        }
        let Ok(address) = hop.trim().parse::<IpAddr>() else { break };
        nearest = address.to_canonical();
    }
    nearest
}

#[cfg(test)]
mod tests {
    use super::*;
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
        ] {
            assert_eq!(resolved(peer, forwarded, PROXIES), expected, "{peer} {forwarded:?}");
            assert_eq!(resolved(peer, forwarded, &[]), peer, "no proxy is trusted");
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
