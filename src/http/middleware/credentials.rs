//! Identifies the client of a request, by the API key or token in `Authorization`, the certificate, or the session cookie of
//! the pages.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::auth::authenticator::Authenticator;
use crate::auth::jwt::TokenError;
use crate::auth::principals::{Credential, IdentifyError, PeerCertificate};
use crate::http::access::Access;
use crate::http::path::{HOME, LOCKS_PREFIX, SETS, TICKETS_PREFIX};
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::redlock::clock::{Clock, SystemClock};

/// The header with the secret of a lease.
const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");
/// The session cookie of the pages. The API never reads it.
pub(crate) const SESSION_COOKIE: &str = "redlockd_session";
/// The maximum number of session cookies that are tried.
const SESSION_TOKENS_MAX: usize = 8;
/// The `WWW-Authenticate` header of a 401 without credentials. `Basic` works but is not offered: browsers would ask for a
/// password.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"redlockd\"");
/// As [`CHALLENGE`], with credentials. Source: RFC 6750, section 3.
const INVALID: HeaderValue = HeaderValue::from_static("Bearer realm=\"redlockd\", error=\"invalid_token\"");

/// The session tokens in the cookies that the browser sent: several if another service of the same host name sets one too.
pub fn session_tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|v| v.to_str().ok());
    let pairs = values.flat_map(|v| v.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == SESSION_COOKIE).map(|(_, token)| token).take(SESSION_TOKENS_MAX)
}

/// Identifies by the session cookie, unless the request has an `Authorization` header: for pages only.
///
/// Errors: `unauthenticated`.
pub(super) fn identify_page_user(authenticator: &Arc<Authenticator>, request: &Request) -> Result<Access, Problem> {
    let headers = request.headers();
    let mut tokens = session_tokens(headers).filter(|_| !headers.contains_key(header::AUTHORIZATION));
    match tokens.find_map(|token| authenticator.session(token, SystemClock.wall_ms())) {
        Some(principal) => Ok(Access::of_principal(authenticator, principal)),
        None => identify(authenticator, request),
    }
}

/// Identifies by the key, else by the certificate. A wrong key is refused even with a valid certificate.
///
/// Errors: `unauthenticated`.
pub(super) fn identify(authenticator: &Arc<Authenticator>, request: &Request) -> Result<Access, Problem> {
    let certificate = request.extensions().get::<Arc<PeerCertificate>>();
    let key = presented_key(request.headers())?;
    let credential = match (&key, certificate) {
        (Some(key), _) => Credential::Key(key),
        (None, Some(certificate)) => Credential::Certificate(certificate),
        (None, None) => return Err(unauthenticated("send an API key: `Authorization: Bearer rlk_…`", CHALLENGE)),
    };
    let wall_ms = SystemClock.wall_ms();
    match authenticator.identify(&credential, wall_ms) {
        Ok(principal) => Ok(Access::of_principal(authenticator, principal)),
        Err(unknown) => {
            if matches!(unknown, IdentifyError::Token(TokenError::Expired))
                && may_be_late(request)
                && let Ok(principal) = authenticator.identify_holder(&credential, wall_ms)
            {
                return Ok(Access::of_late_holder(authenticator, principal));
            }
            // The client does not learn whether a key has expired or never existed.
            match &unknown {
                IdentifyError::Expired(name) => {
                    tracing::info!(principal = name.as_str(), "an expired key was presented");
                }
                // Anybody can present a token, so not at `info`.
                IdentifyError::Token(why) => tracing::debug!(%why, "a token was refused"),
                IdentifyError::NotFound => {}
            }
            Err(unauthenticated("these credentials are unknown or have expired", INVALID))
        }
    }
}

/// Whether the credentials of this client's request are still accepted: its key may have been removed, its token or its session
/// may have ended. Compares all keys, or verifies a signature.
pub(crate) fn is_still_identified(access: &Access, request: &Request) -> bool {
    let (Some(authenticator), Some(principal)) = (access.authenticator(), access.principal()) else { return true };
    let identified = match request.uri().path().starts_with(HOME) {
        true => identify_page_user(authenticator, request),
        false => identify(authenticator, request),
    };
    identified.is_ok_and(|access| access.principal().is_some_and(|now| now.name == principal.name))
}

/// Whether a request changes or ends something whose secret it shows: only such requests may come with an expired token.
/// [`Access::of_late_holder`] has the permissions that remain.
fn may_be_late(request: &Request) -> bool {
    let path = request.uri().path();
    matches!(*request.method(), Method::PATCH | Method::DELETE)
        && request.headers().contains_key(LOCK_TOKEN)
        && (path == SETS || [LOCKS_PREFIX, TICKETS_PREFIX].iter().any(|prefix| path.starts_with(prefix)))
}

fn unauthenticated(detail: &str, challenge: HeaderValue) -> Problem {
    Problem::new(ProblemKind::Unauthenticated, detail).header(header::WWW_AUTHENTICATE, challenge)
}

/// The key in the `Authorization` header: `Bearer KEY`, or the password of `Basic`.
///
/// Errors: `unauthenticated` for another scheme, for malformed values, and for more than one header.
pub fn presented_key(headers: &HeaderMap) -> Result<Option<Vec<u8>>, Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let malformed = || {
        let detail = "the Authorization header must be `Bearer KEY`, or `Basic` with the key as password";
        unauthenticated(detail, INVALID)
    };
    if values.next().is_some() {
        return Err(unauthenticated("the Authorization header is given twice", INVALID));
    }
    let (scheme, rest) = value.to_str().ok().and_then(|text| text.trim().split_once(' ')).ok_or_else(malformed)?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Some(rest.as_bytes().to_vec()));
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let pair = STANDARD.decode(rest).map_err(|_| malformed())?;
        let colon = pair.iter().position(|b| *b == b':').ok_or_else(malformed)?;
        return Ok(Some(pair[colon + 1..].to_vec()));
    }
    Err(malformed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_have_run_out_only_where_the_secret_of_a_lease_is_shown() {
        for (method, uri, has_secret, expected) in [
            ("PATCH", "/locks/a", true, true),
            ("DELETE", "/locks/a", true, true),
            ("DELETE", "/locks?resource=a&resource=b", true, true),
            ("PATCH", "/tickets/tk_a", true, true),
            ("DELETE", "/locks/a", false, false),
            ("PATCH", "/locks/a", false, false),
            ("POST", "/locks/a", true, false),
            ("GET", "/tickets/tk_a", true, false),
            ("DELETE", "/terraform/a/lock", true, false),
            ("DELETE", "/locksmith", true, false),
        ] {
            let mut request = Request::builder().method(method).uri(uri);
            if has_secret {
                request = request.header(LOCK_TOKEN, "a-token-0123456789-abcdef");
            }
            let request = request.body(axum::body::Body::empty()).expect("a request");
            assert_eq!(may_be_late(&request), expected, "{method} {uri}");
        }
    }

    #[test]
    fn session_tokens_are_found_among_other_cookies() {
        let headers = |cookie: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, cookie.parse().expect("a value"));
            headers
        };
        let found = |headers: &HeaderMap| session_tokens(headers).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(found(&headers("a=b; redlockd_session=xyz; c=d")), ["xyz"]);
        assert_eq!(found(&headers("redlockd_session=; redlockd_session=xyz")), ["", "xyz"], "one is not ours");
        assert_eq!(found(&headers("xredlockd_session=xyz")), [""; 0]);
        assert_eq!(found(&HeaderMap::new()), [""; 0]);
    }
}
