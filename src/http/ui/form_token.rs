//! The token of forms: the same random word in a cookie, which another site's page can neither read
//! nor set, and in the form. Kept by the browser alone, so that any instance accepts it. Second to
//! what the browser says of the form's origin ([`super::guard`]). Knows no form.

use axum::http::{HeaderMap, HeaderValue, header};

use crate::redlock::entropy::{Entropy, SystemEntropy};

/// The cookie, and the field of a form.
pub const NAME: &str = "redlockd_form";
const HEX_DIGITS: usize = 32;

/// The browser's token, or a fresh one with the cookie that brings it there.
pub struct FormToken {
    /// For the form.
    pub text: String,
    /// To be set.
    pub cookie: Option<HeaderValue>,
}

/// For an answer with a form. `secure`: the cookie is for TLS only.
pub fn issue(headers: &HeaderMap, secure: bool) -> FormToken {
    if let Some(text) = kept(headers) {
        return FormToken { text, cookie: None };
    }
    let text = format!("{:016x}{:016x}", SystemEntropy.bits(), SystemEntropy.bits());
    let secure = if secure { "; Secure" } else { "" };
    let cookie = format!("{NAME}={text}; Path=/ui/; HttpOnly; SameSite=Strict{secure}");
    FormToken { cookie: HeaderValue::try_from(cookie).ok(), text }
}

/// Whether the form's token is the browser's.
pub fn matches(headers: &HeaderMap, sent: &str) -> bool {
    let Some(kept) = kept(headers) else { return false };
    // As long for a wrong first letter as for a wrong last one.
    let differs = kept.bytes().zip(sent.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    kept.len() == sent.len() && differs == 0
}

fn kept(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|v| v.to_str().ok());
    let mut pairs = values.flat_map(|v| v.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, text) = pairs.find(|(name, _)| *name == NAME)?;
    (text.len() == HEX_DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(cookie: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, cookie.parse().expect("a value"));
        headers
    }

    #[test]
    fn a_token_comes_back_in_cookie_and_form() {
        let issued = issue(&HeaderMap::new(), true);
        let cookie = issued.cookie.expect("a fresh one").to_str().expect("ASCII").to_owned();
        assert!(cookie.ends_with("; Path=/ui/; HttpOnly; SameSite=Strict; Secure"), "{cookie}");
        let headers = with(&format!("a=b; {NAME}={}; c=d", issued.text));
        assert!(matches(&headers, &issued.text));
        assert!(issue(&headers, true).cookie.is_none());
        let other = issue(&HeaderMap::new(), false);
        assert_ne!(other.text, issued.text);
        assert!(!matches(&headers, &other.text) && !matches(&headers, "") && !matches(&HeaderMap::new(), ""));
    }

    #[test]
    fn a_malformed_cookie_is_none() {
        for cookie in [format!("{NAME}="), format!("{NAME}=x"), format!("x{NAME}={}", "a".repeat(32))] {
            assert!(!matches(&with(&cookie), cookie.split_once('=').expect("a pair").1), "{cookie}");
        }
    }
}
