//! The address of this machine's service, from the settings in the environment. The health check of a container uses it,
//! since it has the service's environment.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::{Config, Environment, Inputs};

/// The URL of the service, with an address of this machine. From `REDLOCKD_CONFIG`, `REDLOCKD_LISTEN` and the other variables;
/// `None` if the settings are invalid, and if the port is chosen at the start.
pub(super) fn own_service(env: &impl Environment) -> Option<String> {
    let Config { listen, listen_tls_cert, .. } = Inputs::default().load(env).ok()?.config;
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    let scheme = if listen_tls_cert.is_some() { "https" } else { "http" };
    (listen.port() != 0).then(|| format!("{scheme}://{}", SocketAddr::new(ip, listen.port())))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn m5_the_address_follows_the_settings() {
        let of = |pairs: &[(&str, &str)]| {
            let env: BTreeMap<String, String> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
            own_service(&env)
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "listen = \"127.0.0.1:7000\"\n").expect("writable");
        let open = ("REDLOCKD_INSECURE_NO_AUTH", "true");
        let tls = [("REDLOCKD_LISTEN_TLS_CERT", "/cert"), ("REDLOCKD_LISTEN_TLS_KEY", "/key")];
        for (pairs, expected) in [
            (&[][..], Some("http://127.0.0.1:5625")),
            (&[open, ("REDLOCKD_LISTEN", "0.0.0.0:21001")], Some("http://127.0.0.1:21001")),
            (&[open, ("REDLOCKD_LISTEN", "[::]:21001")], Some("http://[::1]:21001")),
            (&[open, ("REDLOCKD_LISTEN", "192.0.2.1:1")], Some("http://192.0.2.1:1")),
            (&[("REDLOCKD_CONFIG", file.path().to_str().expect("ASCII"))], Some("http://127.0.0.1:7000")),
            (&[tls[0], tls[1]], Some("https://127.0.0.1:5625")),
            (&[("REDLOCKD_LISTEN", "127.0.0.1:0")], None),
            (&[("REDLOCKD_LISTEN", "nonsense")], None),
        ] {
            assert_eq!(of(pairs).as_deref(), expected, "{pairs:?}");
        }
    }
}
