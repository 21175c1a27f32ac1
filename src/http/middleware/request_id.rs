//! The id of each request: a valid `X-Request-Id` of the client is kept, otherwise one is generated. A W3C
//! `traceparent` is continued in the log.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use data_encoding::HEXLOWER;
use serde::Serialize;

use crate::http::log_request::LogRequest;
use crate::http::request_context::RequestContext;
use crate::redlock::random::{Entropy, SystemEntropy};

/// The header with the id.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header with the client's trace.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The maximum length of a client's id, which is repeated in the answer and in each log line.
pub const REQUEST_ID_MAX_BYTES: usize = 128;
/// The length of an id that was generated.
const GENERATED_BYTES: usize = 20;

/// The id of a request.
#[derive(Debug, Clone)]
pub struct RequestId(Id);

#[derive(Debug, Clone)]
enum Id {
    Sent(Arc<str>),
    /// ASCII. Needs no block of its own.
    Generated([u8; GENERATED_BYTES]),
}

impl RequestId {
    /// The client's own, if it sent exactly one that is valid: 1 to [`REQUEST_ID_MAX_BYTES`] of `[A-Za-z0-9._:/+=@-]`,
    /// which are harmless in logs and headers.
    pub fn sent(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(X_REQUEST_ID).iter();
        let text = values.next()?.to_str().ok()?;
        let is_valid =
            |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'/' | b'+' | b'=' | b'@' | b'-');
        let keep = (1..=REQUEST_ID_MAX_BYTES).contains(&text.len()) && text.bytes().all(is_valid);
        (keep && values.next().is_none()).then(|| Self(Id::Sent(text.into())))
    }

    /// A new id: `req_` and 64 random bits.
    pub fn generate(entropy: &impl Entropy) -> Self {
        let mut text = *b"req_0000000000000000";
        HEXLOWER.encode_mut(&entropy.bits().to_be_bytes(), &mut text[4..]);
        Self(Id::Generated(text))
    }

    /// The id as sent and logged.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Id::Sent(text) => text,
            Id::Generated(text) => std::str::from_utf8(text).expect("ASCII"),
        }
    }

    /// Sets the header of the answer.
    pub fn write(&self, response: &mut Response) {
        let bytes = match &self.0 {
            Id::Sent(text) => text.as_bytes(),
            Id::Generated(text) => text,
        };
        if let Ok(value) = HeaderValue::from_bytes(bytes) {
            response.headers_mut().insert(X_REQUEST_ID, value);
        }
    }
}

impl AsRef<str> for RequestId {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RequestId {}

/// The client's position in a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TraceParent {
    /// 32 hex digits, not all zero.
    pub trace_id: String,
    /// 16 hex digits, not all zero.
    pub parent_id: String,
}

impl TraceParent {
    /// Reads `traceparent`; `None` if it is missing or malformed.
    ///
    /// Source: W3C Trace Context, level 1, section 3.2.
    pub fn sent(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(TRACEPARENT)?.to_str().ok()?;
        let mut parts = text.split('-');
        let (version, trace_id, parent_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |s: &str, len| s.len() == len && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let non_zero = |s: &str, len| hex(s, len) && s.bytes().any(|b| b != b'0');
        let is_valid =
            hex(version, 2) && version != "ff" && non_zero(trace_id, 32) && non_zero(parent_id, 16) && hex(flags, 2);
        // Version 00 has exactly these parts; later versions may have more.
        (is_valid && (version != "00" || parts.next().is_none()))
            .then(|| Self { trace_id: trace_id.to_owned(), parent_id: parent_id.to_owned() })
    }
}

/// Gives the request its id, and what the log says of it.
pub(crate) fn identify(request: &Request) -> (RequestId, Arc<LogRequest>) {
    let headers = Some(request.headers()).filter(|_| !RequestContext::has_common_headers(request));
    let id = headers.and_then(RequestId::sent).unwrap_or_else(|| RequestId::generate(&SystemEntropy));
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let in_log = LogRequest { id: id.clone(), method, uri, trace: headers.and_then(TraceParent::sent) };
    (id, Arc::new(in_log))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name.clone(), value.parse().expect("a header value"));
        }
        headers
    }

    #[test]
    fn a_valid_id_is_kept_and_others_are_not() {
        for valid in ["a", "01J9ZK-x", "build/17:3", &"x".repeat(128)] {
            let kept = RequestId::sent(&headers(X_REQUEST_ID, &[valid]));
            assert_eq!(kept.as_ref().map(RequestId::as_str), Some(valid));
        }
        for invalid in ["", "a b", "a\"b", "a,b", "<x>", &"x".repeat(129)] {
            assert_eq!(RequestId::sent(&headers(X_REQUEST_ID, &[invalid])), None, "{invalid}");
        }
        assert_eq!(RequestId::sent(&headers(X_REQUEST_ID, &["a", "a"])), None);
        assert_eq!(RequestId::sent(&HeaderMap::new()), None);
    }

    #[test]
    fn generated_ids_differ_and_are_valid() {
        let (a, b) = (RequestId::generate(&SystemEntropy), RequestId::generate(&SystemEntropy));
        assert_ne!(a, b);
        assert_eq!(RequestId::sent(&headers(X_REQUEST_ID, &[a.as_str()])), Some(a));
    }

    #[test]
    fn traceparent_follows_the_recommendation() {
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let read = |text: &str| TraceParent::sent(&headers(TRACEPARENT, &[text]));
        let expected = Some(TraceParent { trace_id: trace.to_owned(), parent_id: parent.to_owned() });
        assert_eq!(read(&format!("00-{trace}-{parent}-01")), expected);
        assert_eq!(read(&format!("01-{trace}-{parent}-01-more")), expected);
        for bad in [
            format!("00-{trace}-{parent}-01-more"),
            format!("ff-{trace}-{parent}-01"),
            format!("00-{}-{parent}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{parent}-01", trace.to_uppercase()),
            format!("00-{trace}-{parent}"),
            String::new(),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }
}
