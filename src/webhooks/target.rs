//! A receiver that the administrator allows: its URL, the form of its messages, and who may use it. A call-back's URL must
//! lie below that of its target.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};

use super::connection::Connector;
use super::signing::SigningSecret;
use crate::auth::principal::PrincipalName;
use crate::manager::callbacks::CALLBACK_MAX_BYTES;
use crate::types::Invalid;

/// How a message is written for the receiver.
#[derive(Clone, PartialEq, Eq)]
pub enum Form {
    /// The JSON of Standard Webhooks.
    Standard,
    /// The `repository_dispatch` event of GitHub.
    GithubDispatch,
    /// A pipeline trigger of GitLab. `token` is a secret.
    GitlabTrigger {
        /// The trigger token.
        token: String,
        /// The branch or tag that the pipeline runs for.
        git_ref: String,
    },
}

impl Form {
    /// The word in the file.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::GithubDispatch => "github-dispatch",
            Self::GitlabTrigger { .. } => "gitlab-trigger",
        }
    }
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A receiver. `Debug` shows neither its URL beyond the host nor its secrets.
#[derive(Clone)]
pub struct Target {
    /// Unique among the targets.
    pub name: String,
    /// The URL for hooks and `target:NAME`. The URLs of call-backs must lie below it.
    pub url: Url,
    /// The method of the request.
    pub method: Method,
    /// The form of its messages.
    pub form: Form,
    /// The secrets; the first one is the newest. At most two.
    pub secrets: Vec<SigningSecret>,
    /// Headers that are sent with each message; their values are secrets.
    pub headers: HeaderMap,
    /// The principals that may name the target; `None`: everybody who may acquire.
    pub principals: Option<Vec<PrincipalName>>,
    /// Connects by the target's policy.
    pub connector: Connector,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({} at {})", self.name, self.origin())
    }
}

impl Target {
    /// Scheme, host and port: the parts of the URL that pages and logs show.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Whether this principal may name the target. `None`: no authentication is configured.
    pub fn is_open_to(&self, principal: Option<&PrincipalName>) -> bool {
        match (&self.principals, principal) {
            (Some(names), Some(principal)) => names.contains(principal),
            (None, _) | (_, None) => true,
        }
    }

    /// Whether the URL is this target's, or lies below it.
    pub fn covers(&self, url: &Url) -> bool {
        let is_same_place = self.url.origin() == url.origin();
        let (own, path) = (self.url.path(), url.path());
        let is_below = match own.strip_suffix('/') {
            Some(_) => path.starts_with(own),
            None => path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        };
        // A target with a query allows only that one address.
        let has_query = self.url.query().is_none() || (self.url.query() == url.query() && own == path);
        is_same_place && is_below && has_query && !climbs(path)
    }
}

/// Whether a receiver that decodes the path more often than we do might leave the target upwards. The parser has resolved
/// plain `..`. Control characters, text that is not UTF-8, and more than three encodings count too: nobody needs them.
fn climbs(path: &str) -> bool {
    const DECODED_MAX: usize = 3;
    let mut text = path.to_owned();
    for _ in 0..DECODED_MAX {
        let Ok(decoded) = percent_decode_str(&text).decode_utf8().map(Cow::into_owned) else { return true };
        let is_up = |segment: &str| segment.split(';').next().is_some_and(|name| name.trim() == "..");
        if decoded.chars().any(char::is_control) || decoded.split(['/', '\\']).any(is_up) {
            return true;
        }
        if decoded == text {
            return false;
        }
        text = decoded;
    }
    percent_decode_str(&text).ne(text.bytes())
}

/// The literal address in a URL, in any spelling: the parser has converted `2130706433` and `0x7f.1`.
pub fn literal_address(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// Parses the URL of a target or of a call-back.
///
/// Errors: [`Invalid`], which does not repeat the URL.
pub fn parse_url(text: &str) -> Result<Url, Invalid> {
    let invalid = |why: &str| Err(Invalid(why.to_owned()));
    let too_long = || Err(Invalid(format!("must have at most {CALLBACK_MAX_BYTES} bytes, percent-encoded")));
    if text.len() > CALLBACK_MAX_BYTES {
        return too_long();
    }
    // The parser would remove these characters.
    if text.chars().any(|c| c.is_control() || c == ' ') {
        return invalid("must not have spaces and control characters");
    }
    let Ok(url) = Url::parse(text) else { return invalid("must be a URL such as https://example.com/path") };
    match () {
        () if url.as_str().len() > CALLBACK_MAX_BYTES => too_long(),
        () if !matches!(url.scheme(), "https" | "http") => invalid("must begin with https:// or http://"),
        () if !url.username().is_empty() || url.password().is_some() || has_user(text) => {
            invalid("must not have a user name or a password before an @")
        }
        () if url.fragment().is_some() => invalid("must not have a fragment (#): it would never be sent"),
        () if url.host_str().is_none_or(str::is_empty) => invalid("must have a host"),
        () => Ok(url),
    }
}

/// Whether the authority has an `@`, even before an empty user name.
fn has_user(text: &str) -> bool {
    let behind = text.split_once(':').map_or(text, |(_, rest)| rest).trim_start_matches(['/', '\\']);
    behind.split(['/', '\\', '?', '#']).next().is_some_and(|authority| authority.contains('@'))
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::super::allowed_addresses::AddressPolicy;
    use super::super::connection::Authorities;
    use super::super::resolver::SystemLookup;
    use super::*;

    /// A target of the form `standard` with this URL.
    pub(in crate::webhooks) fn target(name: &str, url: &str) -> Target {
        Target {
            name: name.to_owned(),
            url: parse_url(url).expect(url),
            method: Method::POST,
            form: Form::Standard,
            secrets: Vec::new(),
            headers: HeaderMap::new(),
            principals: None,
            connector: Connector::new(AddressPolicy::default(), Arc::new(SystemLookup), Authorities::None)
                .expect("plain"),
        }
    }

    #[test]
    fn only_what_lies_below_a_target_is_covered() {
        let covers = |own: &str, url: &str| target("t", own).covers(&parse_url(url).expect(url));
        let n8n = "https://n8n.example.com/webhook-waiting/";
        for url in [
            "https://n8n.example.com/webhook-waiting/17",
            "https://n8n.example.com:443/webhook-waiting/17/resume?signature=a%2Fb&x=..",
            "https://N8N.example.com/webhook-waiting/",
            "https://n8n.example.com/webhook-waiting/r%C3%A9sum%C3%A9/50%25/a%2520b",
        ] {
            assert!(covers(n8n, url), "{url}");
        }
        for url in [
            "http://n8n.example.com/webhook-waiting/17",
            "https://n8n.example.com:8443/webhook-waiting/17",
            "https://n8n.example.com.evil.net/webhook-waiting/17",
            "https://n8n.example.com/webhook-waiting",
            "https://n8n.example.com/webhook-waitingx/17",
            "https://n8n.example.com/webhook-waiting/../rest/users",
            "https://n8n.example.com/webhook-waiting/%2e%2e/rest/users",
            "https://n8n.example.com/webhook-waiting/..%2frest",
            "https://n8n.example.com/webhook-waiting/a%5c..%5crest",
            "https://n8n.example.com/webhook-waiting/%252e%252e%252frest",
            "https://n8n.example.com/webhook-waiting/..;/rest",
            "https://n8n.example.com/webhook-waiting/..%20/rest",
            "https://n8n.example.com/webhook-waiting/..%09/rest",
            "https://n8n.example.com/webhook-waiting/..%00/rest",
            "https://n8n.example.com/webhook-waiting/%c0%ae%c0%ae/rest",
            "https://n8n.example.com/webhook-waiting/%252525252e%252525252e/rest",
            "https://n8n.example.com/",
        ] {
            assert!(!covers(n8n, url), "{url}");
        }
        assert!(covers("https://a/hook", "https://a/hook") && covers("https://a/hook", "https://a/hook/x?y"));
        assert!(!covers("https://a/hook", "https://a/hooks"));
        assert!(covers("https://a/hook?k=1", "https://a/hook?k=1"));
        assert!(
            !covers("https://a/hook?k=1", "https://a/hook?k=2")
                && !covers("https://a/hook?k=1", "https://a/hook/x?k=1")
        );
    }

    #[test]
    fn urls_with_users_fragments_and_other_schemes_are_refused_unrepeated() {
        for wrong in [
            "https://u@example.com/SECRET",
            "https://u:p@example.com/SECRET",
            "https://@example.com/SECRET",
            "https:example.com@evil.net/SECRET",
            "https://example.com/SECRET#part",
            "ftp://example.com/SECRET",
            "file:///SECRET",
            "javascript:SECRET",
            "SECRET",
            "",
            "https://",
            "https://exa mple.com/SECRET",
            "https://example.com/\nSECRET",
            "https://example.com/\tSECRET",
            &format!("https://example.com/{}SECRET", "x".repeat(CALLBACK_MAX_BYTES)),
            // Each takes nine bytes once it is percent-encoded (found by the fuzz target `tickets`).
            &format!("https://example.com/{}SECRET", "\u{fffd}".repeat(CALLBACK_MAX_BYTES / 4)),
        ] {
            let why = parse_url(wrong).expect_err(wrong).0;
            assert!(!why.contains("SECRET") && !why.contains('\n'), "{why}");
        }
        assert_eq!(parse_url("https://example.com/?signature=a%2fb").expect("good").query(), Some("signature=a%2fb"));
        assert!(parse_url("https://example.com/a@b").is_ok());
    }

    #[test]
    fn every_spelling_of_a_literal_address_is_found() {
        for url in
            ["http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://[::ffff:127.0.0.1]/", "http://[::1]/"]
        {
            let address = literal_address(&parse_url(url).expect(url)).expect(url);
            assert!(address.to_canonical().is_loopback(), "{url}");
        }
        assert_eq!(literal_address(&parse_url("http://localhost/").expect("good")), None);
    }

    #[test]
    fn a_target_is_open_to_its_principals() {
        let (ci, ann) = (PrincipalName::parse("ci").expect("good"), PrincipalName::parse("ann").expect("good"));
        let open = target("t", "https://a/");
        assert!(open.is_open_to(None) && open.is_open_to(Some(&ann)));
        let of_ci = Target { principals: Some(vec![ci.clone()]), ..open };
        assert!(of_ci.is_open_to(Some(&ci)) && !of_ci.is_open_to(Some(&ann)) && of_ci.is_open_to(None));
        assert_eq!(format!("{of_ci:?}"), "Target(t at https://a)");
    }
}
