//! A Redis node's address as operators write it. It may contain a password, which nothing here prints.

use std::fmt;

use deadpool_redis::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, parse_redis_url};

use crate::types::{Invalid, NodeId};

const SHAPE: &str = "a node's address looks like redis://[user:password@]host[:port][/db], rediss://… (TLS) or \
                     unix:///path/of/socket[?db=1&user=…&pass=…]";
/// Maximum length of an address.
const URL_MAX_BYTES: usize = 1_024;

/// An address with its credentials. `Debug` and `Display` leave the credentials out.
#[derive(Clone)]
pub struct NodeUrl {
    info: ConnectionInfo,
    scheme: &'static str,
    location: String,
}

impl NodeUrl {
    /// Checks an address: `redis://`, `rediss://` or `unix://`, with user, password and database.
    ///
    /// Errors: [`Invalid`], one sentence that never quotes the credentials.
    pub fn parse(raw: &str) -> Result<Self, Invalid> {
        let scheme = match raw.split_once("://").map(|(scheme, _)| scheme) {
            Some("redis") => "redis",
            Some("rediss") => "rediss",
            Some("unix" | "redis+unix") => "unix",
            Some(_) => return Err(Invalid(format!("the scheme is not one of redis, rediss and unix: {SHAPE}"))),
            None => return Err(Invalid(format!("there is no scheme: {SHAPE}"))),
        };
        if raw.len() > URL_MAX_BYTES {
            return Err(Invalid(format!("the address is over {URL_MAX_BYTES} bytes")));
        }
        let url = parse_redis_url(raw).ok_or_else(|| Invalid(format!("this is not a URL: {SHAPE}")))?;
        if url.fragment().is_some() {
            return Err(Invalid("a node's address has no `#` part; percent-encode a `#` in a password as %23".into()));
        }
        let allowed: &[&str] = if scheme == "unix" { &["db", "user", "pass"] } else { &[] };
        if let Some((key, _)) = url.query_pairs().find(|(key, _)| !allowed.contains(&&**key)) {
            // An unencoded `?` in a password leads here, so what follows it is not quoted.
            let known = key.len() <= 8 && matches!(&*key, "db" | "user" | "pass" | "protocol");
            let option = if known { format!("`{key}`") } else { "the part after the `?`".into() };
            return Err(Invalid(format!("{option} is not supported in this kind of address: {SHAPE}")));
        }
        let info = url.into_connection_info().map_err(|e| Invalid(format!("{}: {SHAPE}", sentence(&e))))?;
        if info.redis_settings().db() < 0 {
            return Err(Invalid("the database number is negative".into()));
        }
        let location = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false if host.is_empty() => return Err(Invalid(format!("there is no host: {SHAPE}"))),
                false => format!("{host}:{port}"),
            },
            ConnectionAddr::Unix(path) if path.parent().is_some() => path.display().to_string(),
            _ => return Err(Invalid(format!("there is no socket's path: {SHAPE}"))),
        };
        Ok(Self { info, scheme, location })
    }

    /// The name of the node where none is configured: `host:port` or the socket's path, without the
    /// characters that a name may not have; its last 64 characters where it is longer.
    pub fn default_name(&self) -> NodeId {
        let clean: String = self
            .location
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "._:@/-".contains(c) { c } else { '-' })
            .collect();
        let tail = clean.get(clean.len().saturating_sub(64)..).unwrap_or("node");
        NodeId::parse(tail).expect("1 to 64 characters of those that a name may have")
    }

    /// `host:port` or the socket's path, and the database; without credentials. Two equal ones are one
    /// node that was configured twice.
    pub fn place(&self) -> String {
        format!("{}/{}", self.location, self.info.redis_settings().db())
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.scheme == "rediss"
    }

    /// Contains the password: never print it.
    pub(super) fn info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

/// Describes the driver's error without quoting any part of the address.
fn sentence(error: &deadpool_redis::redis::RedisError) -> &'static str {
    let text = error.to_string();
    let known = [
        ("database number", "the database is not a number"),
        ("wildcard", "0.0.0.0 and :: are not addresses to connect to"),
        ("hostname", "there is no host"),
        ("path", "there is no socket's path"),
        ("UTF-8", "user or password is not UTF-8"),
    ];
    known.iter().find(|(sign, _)| text.contains(sign)).map_or("the address cannot be used", |(_, sentence)| sentence)
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme, self.location.trim_start_matches('/'), self.info.redis_settings().db())
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

    fn name(raw: &str) -> String {
        NodeUrl::parse(raw).expect(raw).default_name().as_str().to_owned()
    }

    #[test]
    fn default_names_are_the_location_of_the_node() {
        assert_eq!(name("redis://localhost"), "localhost:6379");
        assert_eq!(name("redis://u:p@10.0.0.1:7000/2"), "10.0.0.1:7000");
        assert_eq!(name("rediss://[::1]:7000"), "-::1-:7000");
        assert_eq!(name("unix:///run/redis/a.sock?db=1&user=u&pass=p"), "/run/redis/a.sock");
        assert_eq!(name(&format!("redis://{}.example:1", "x".repeat(100))).len(), 64);
    }

    #[test]
    fn credentials_and_database_are_parsed_and_never_printed() {
        for raw in
            ["redis://bob:s3cr%23t@h:1/7", "rediss://bob:s3cr%23t@h:1/7", "unix:///s?db=7&user=bob&pass=s3cr%23t"]
        {
            let url = NodeUrl::parse(raw).expect(raw);
            let (info, shown) = (url.info(), format!("{url} {url:?} {} {}", url.place(), url.default_name()));
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
            "redis://0.0.0.0",
            "redis://bob:s3cr?x@h",
            "redis://h?s3cr=1",
            "redis://h?protocol=resp3",
            "rediss://bob:s3cr@h#insecure",
            "unix://",
            "unix:///",
            "unix:///s?s3cr=2",
            &format!("redis://{}", "h".repeat(2_000)),
        ] {
            let error = NodeUrl::parse(bad).expect_err(bad).0;
            assert!(!error.is_empty() && !error.contains("s3cr") && !error.contains('\n'), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(rest in ".{0,60}", scheme in "(redis|rediss|unix)") {
            if let Ok(url) = NodeUrl::parse(&format!("{scheme}://{rest}")) {
                let _ = (url.default_name(), url.place(), url.to_string());
            }
        }
    }
}
