//! The URL of an instance, checked: `http://host[:port][/prefix]`. Whether a key may be sent to it is decided before any request.

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;

use redlockd_common::types::Invalid;

/// The URL of one instance.
#[derive(Clone, PartialEq, Eq)]
pub struct BaseUrl(Url);

impl BaseUrl {
    /// Checks a URL; without a scheme, `http://` is assumed.
    ///
    /// Errors: [`Invalid`] for anything but http and https, for credentials in it (they end up in
    /// process lists and logs), and for a query or a fragment. The text repeats no credentials.
    pub fn parse(raw: &str) -> Result<Self, Invalid> {
        let refused = |why: &str| Invalid(format!("the service's URL {why}, such as http://127.0.0.1:5625"));
        let assumed = if raw.contains("://") { raw.to_owned() } else { format!("http://{raw}") };
        let mut url = Url::parse(&assumed).map_err(|_| refused("must be a URL"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(refused("must begin with http:// or https:// and name a host"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("must not carry credentials: put the key into a file (--key-file)"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(refused("must have no query and no fragment"));
        }
        let prefix = url.path().trim_end_matches('/').to_owned();
        url.set_path(&prefix);
        Ok(Self(url))
    }

    /// The URL of `path`, which begins with `/` and needs no encoding (resource names do not).
    pub fn at(&self, path: &str) -> Url {
        let mut url = self.0.clone();
        url.set_path(&format!("{}{path}", self.0.path().trim_end_matches('/')));
        url
    }

    /// Whether the URL is not encrypted (`http://`).
    pub fn is_plain(&self) -> bool {
        self.0.scheme() == "http"
    }

    /// Whether the URL is on this machine, by a loopback address or the name `localhost`.
    pub fn is_loopback(&self) -> bool {
        let host = self.0.host_str().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_appended_to_the_prefix() {
        for (base, full) in [
            ("http://h:1", "http://h:1/locks/a:b/c@d"),
            ("https://h/", "https://h/locks/a:b/c@d"),
            ("http://h/x/y/", "http://h/x/y/locks/a:b/c@d"),
            ("h:5625", "http://h:5625/locks/a:b/c@d"),
            ("127.0.0.1:5625", "http://127.0.0.1:5625/locks/a:b/c@d"),
        ] {
            assert_eq!(BaseUrl::parse(base).expect(base).at("/locks/a:b/c@d").as_str(), full);
        }
        assert_eq!(BaseUrl::parse("http://h:1/").expect("good").to_string(), "http://h:1");
    }

    #[test]
    fn invalid_url_is_refused_without_repeating_secrets() {
        for bad in ["", "a b", "ftp://h", "http://", "http://u:hunter2@h", "http://h?x=1", "http://h#x"] {
            let text = BaseUrl::parse(bad).expect_err(bad).to_string();
            assert!(text.contains("http://127.0.0.1:5625") && !text.contains("hunter2"), "{bad}: {text}");
        }
    }

    #[test]
    fn loopback_urls_are_recognized() {
        for (url, here) in [
            ("http://127.0.0.1:1", true),
            ("http://127.9.9.9", true),
            ("http://[::1]:1", true),
            ("http://localhost:1", true),
            ("http://10.0.0.1", false),
            ("http://localhost.example.org", false),
        ] {
            assert_eq!(BaseUrl::parse(url).expect(url).is_loopback(), here, "{url}");
        }
    }
}
