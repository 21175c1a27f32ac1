//! Where a request comes from: the other end of its connection, or, behind proxies that are
//! configured as trusted, what they say in `X-Forwarded-For`. Knows addresses and one header.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

/// Where proxies say whom they speak for.
const FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The most hops that are looked at: nobody has so many proxies.
const HOPS_MAX: usize = 16;

/// The other end of a connection. In the extensions of each of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

/// Who sent the request, as far as that is known. For the log; nothing is decided by it.
pub fn of(request: &Request, trusted: &[IpNet]) -> Option<IpAddr> {
    let PeerAddress(peer) = request.extensions().get::<PeerAddress>()?;
    Some(resolve(peer.to_canonical(), request.headers(), trusted))
}

/// From the nearest hop outwards, the first address that is no trusted proxy: everything further out
/// was written by somebody whom nobody vouches for.
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
            assert_eq!(resolved(peer, forwarded, &[]), peer, "nobody is trusted");
        }
    }

    proptest! {
        /// Whatever a stranger writes in front, the address that a trusted proxy has added stands.
        #[test]
        fn nothing_written_by_a_stranger_hides_it(forged in "[0-9a-f:., ]{0,60}") {
            let seen = resolved("10.0.0.1", &[&format!("{forged}, 198.51.100.7")], &["10.0.0.0/8"]);
            prop_assert_eq!(seen, "198.51.100.7");
        }
    }
}
