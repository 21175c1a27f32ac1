//! A Redis node's address as operators write it. It may contain a password, which nothing here prints.

use std::fmt;

use deadpool_redis::redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates,
    parse_redis_url,
};

use crate::types::Invalid;

const FORM: &str = "must be redis://[user:password@]host[:port][/db], rediss://… (TLS) or \
                    unix:///path[?db=1&user=…&pass=…]";
const ENCODING: &str = "in a user name or password, write / as %2F, : as %3A, @ as %40, # as %23, ? as %3F";
/// Maximum length of an address.
const URL_MAX_BYTES: usize = 1_024;
/// Maximum length of a host: that of a DNS name. An address is stored on every node, and read again there.
const HOST_MAX_BYTES: usize = 253;

/// Certificates for `rediss://`, each in PEM. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NodeTls {
    /// The certificate authorities that are trusted instead of the machine's.
    pub ca: Option<Vec<u8>>,
    /// The certificate chain and key that are presented to the server.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeTls(ca: {}, client: {})", self.ca.is_some(), self.client.is_some())
    }
}

/// An address with its credentials. `Debug` and `Display` leave the credentials out.
#[derive(Clone)]
pub struct NodeUrl {
    info: ConnectionInfo,
    address: String,
}

impl NodeUrl {
    /// Checks an address: `redis://`, `rediss://`, `unix://` or `redis+unix://`, with user, password and database.
    ///
    /// Errors: [`Invalid`], which continues a sentence about the node and never quotes the credentials.
    pub fn parse(raw: &str) -> Result<Self, Invalid> {
        let invalid = |why: &str| Err(Invalid(why.to_owned()));
        let (is_unix, rest) = match raw.split_once("://") {
            Some(("redis" | "rediss", rest)) => (false, rest),
            Some(("unix" | "redis+unix", rest)) => (true, rest),
            _ => return invalid(FORM),
        };
        if raw.len() > URL_MAX_BYTES {
            return Err(Invalid(format!("has an address of over {URL_MAX_BYTES} bytes")));
        }
        if raw.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return invalid(FORM);
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if !is_unix && rest[authority.len()..].contains('@') {
            return Err(Invalid(format!("has an @ after its address ({ENCODING})")));
        }
        let Some(url) = parse_redis_url(raw) else {
            return Err(Invalid(format!("has an invalid host or port, or {FORM} ({ENCODING})")));
        };
        if url.fragment().is_some() {
            return Err(Invalid(format!("has a `#` in its address ({ENCODING})")));
        }
        // `config show` prints "…" in the place of a password.
        let allowed: &[&str] = if is_unix { &["db", "user", "pass", "…"] } else { &[] };
        if let Some((key, _)) = url.query_pairs().find(|(key, _)| !allowed.contains(&&**key)) {
            // An unencoded `?` in a password leads here, so the text after it is not quoted.
            let known = matches!(&*key, "db" | "user" | "pass" | "protocol");
            let option = if known { format!("`{key}`") } else { "something".into() };
            return Err(Invalid(format!("has {option} after a `?`, which this kind of address may not have")));
        }
        let info = url.into_connection_info().map_err(|e| Invalid(reason(&e).to_owned()))?;
        if info.redis_settings().db() < 0 {
            return invalid("has a negative database number");
        }
        let address = match info.addr() {
            ConnectionAddr::Tcp(_, 0) | ConnectionAddr::TcpTls { port: 0, .. } => return invalid("has the port 0"),
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                match host.to_ascii_lowercase().as_str() {
                    host if host.is_empty() || host.len() > HOST_MAX_BYTES || host.contains('%') => {
                        return invalid(FORM);
                    }
                    "localhost" => format!("127.0.0.1:{port}"),
                    host if host.contains(':') => format!("[{host}]:{port}"),
                    host => format!("{host}:{port}"),
                }
            }
            ConnectionAddr::Unix(path) if path.is_absolute() && path.parent().is_some() => path.display().to_string(),
            _ => return invalid(FORM),
        };
        Ok(Self { info, address })
    }

    /// `host:port` in lower case, or the path of its socket, without user, password and database number: two nodes with
    /// the same address are the same server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Whether the URL contains a password.
    pub fn has_password(&self) -> bool {
        self.info.redis_settings().password().is_some_and(|password| !password.is_empty())
    }

    /// The same node with this password.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        let settings = self.info.redis_settings().clone().set_password(password);
        self.info = self.info.set_redis_settings(settings);
        self
    }

    /// The driver's client, not yet connected.
    ///
    /// Errors: [`Invalid`] if certificates cannot be read, or are given for an address without TLS.
    pub fn client(&self, tls: Option<&NodeTls>) -> Result<Client, Invalid> {
        if !self.is_tls() {
            return match tls {
                Some(_) => Err(Invalid(format!("certificates are given, but {self} is not a rediss:// address"))),
                None => Client::open(self.info.clone()).map_err(|e| Invalid(reason(&e).to_owned())),
            };
        }
        // Fails if a provider was installed before, which is equally good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tls = tls.cloned().unwrap_or_default();
        let client_tls = tls.client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        // The driver's own message is left out, because it may quote the certificate.
        Client::build_with_tls(self.info.clone(), TlsCertificates { client_tls, root_cert: tls.ca })
            .map_err(|_| Invalid(format!("the certificates for {self} are not PEM of the right kind")))
    }
}

/// The driver's error, without any part of the address.
fn reason(error: &RedisError) -> &'static str {
    let text = error.to_string();
    let known = [
        ("database number", "has a database that is not a number"),
        ("wildcard", "has a wildcard address (0.0.0.0 or ::), to which nothing can connect"),
        ("UTF-8", "has a user or password that is not UTF-8"),
    ];
    known.iter().find(|(sign, _)| text.contains(sign)).map_or(FORM, |(_, sentence)| sentence)
}

impl PartialEq for NodeUrl {
    fn eq(&self, other: &Self) -> bool {
        let parts = |url: &Self| {
            let settings = url.info.redis_settings();
            (settings.db(), settings.username().map(str::to_owned), settings.password().map(str::to_owned))
        };
        self.address == other.address && self.is_tls() == other.is_tls() && parts(self) == parts(other)
    }
}

impl Eq for NodeUrl {}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } => "rediss",
            ConnectionAddr::Unix(_) => "unix",
            _ => "redis",
        };
        write!(f, "{scheme}://{}/{}", self.address.trim_start_matches('/'), self.info.redis_settings().db())
    }
}

impl fmt::Debug for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_distinguish_nodes() {
        for (url, address) in [
            ("redis://h", "h:6379"),
            ("redis://User:p%40ss@Host.Example:7000/3", "host.example:7000"),
            ("rediss://:pass@10.0.0.1/1", "10.0.0.1:6379"),
            ("redis://[::1]:7001", "[::1]:7001"),
            ("redis://[::1]", "[::1]:6379"),
            ("redis://localhost:7001", "127.0.0.1:7001"),
            ("redis://u:p@ss@h:1", "h:1"),
            ("unix:///run/redis/a.sock?db=1&pass=x", "/run/redis/a.sock"),
            ("redis+unix:///run/redis/a.sock", "/run/redis/a.sock"),
        ] {
            assert_eq!(NodeUrl::parse(url).expect(url).address(), address, "{url}");
        }
    }

    #[test]
    fn a_password_is_found_and_added() {
        for url in
            ["redis://:p@h", "rediss://u:p@h:1/2", "redis://u:p:q@h", "unix:///s?pass=p", "unix:///s?db=1&pass=p"]
        {
            assert!(NodeUrl::parse(url).expect(url).has_password(), "{url}");
        }
        for url in ["redis://h", "redis://u@h:1", "redis://u:@h", "redis://:@h", "unix:///s", "unix:///s?user=pass"] {
            let plain = NodeUrl::parse(url).expect(url);
            assert!(!plain.has_password(), "{url}");
            let (user, full) = (plain.info.redis_settings().username().map(str::to_owned), plain.with_password("p@/?"));
            assert_eq!(full.info.redis_settings().password(), Some("p@/?"));
            assert_eq!(full.info.redis_settings().username().map(str::to_owned), user);
        }
    }

    #[test]
    fn credentials_and_database_are_parsed_and_never_printed() {
        for raw in
            ["redis://bob:s3cr%23t@h:1/7", "rediss://bob:s3cr%23t@h:1/7", "unix:///s?db=7&user=bob&pass=s3cr%23t"]
        {
            let url = NodeUrl::parse(raw).expect(raw);
            let (info, shown) = (&url.info, format!("{url} {url:?} {}", url.address()));
            assert_eq!(info.redis_settings().password(), Some("s3cr#t"));
            assert_eq!(info.redis_settings().username(), Some("bob"));
            assert_eq!(info.redis_settings().db(), 7);
            assert!(!shown.contains("s3cr") && !shown.contains("bob"), "{shown}");
        }
    }

    #[test]
    fn the_error_of_a_bad_address_is_one_line_without_secrets() {
        for bad in [
            "",
            "localhost:6379",
            "http://bob:s3cr@h",
            "redis://",
            "redis://bob:s3cr@/1",
            "redis://bob:s3cr@h:99999",
            "redis://bob:s3cr@h/x",
            "redis://bob:s3cr@h/-1",
            "redis://bob:s3cr@h:0",
            "redis://bob:s3/cr@h:1",
            "redis://bob:s3cr@h h",
            "redis://s3cr/x@h",
            "unix://run/s3cr",
            "redis://0.0.0.0",
            "redis://bob:s3cr?x@h",
            "redis://h?s3cr=1",
            "redis://h?protocol=resp3",
            "rediss://bob:s3cr@h#insecure",
            "unix://",
            "unix:///",
            "unix:///s?s3cr=2",
            &format!("redis://{}", "h".repeat(2_000)),
            &format!("redis://{}", "h".repeat(HOST_MAX_BYTES + 1)),
            "redis://é",
        ] {
            let error = NodeUrl::parse(bad).expect_err(bad).0;
            assert!(!error.is_empty() && !error.contains("s3cr") && !error.contains('\n'), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(rest in ".{0,60}", scheme in "(redis|rediss|unix)") {
            if let Ok(url) = NodeUrl::parse(&format!("{scheme}://{rest}")) {
                let _ = (url.address().len(), url.to_string());
            }
        }
    }
}
