//! Names each request: a sane `X-Request-Id` of the client is kept, else one is drawn, and a W3C
//! `traceparent` is continued into the log's span. Outermost of the layers that read a request, so
//! that everything below logs and answers under the same name. Knows nothing of locks.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use tracing::Span;

use crate::redlock::entropy::{Entropy, SystemEntropy};

/// Where the id travels.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where the caller's trace travels.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The longest id that is kept: it is repeated in the answer and in each log line.
pub const REQUEST_ID_MAX_BYTES: usize = 128;

/// The id of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The client's own, if it sent exactly one and that is sane: 1 to [`REQUEST_ID_MAX_BYTES`] of
    /// `[A-Za-z0-9._:/+=@-]`, which neither a log nor a header can be broken with.
    pub fn sent(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(X_REQUEST_ID).iter();
        let text = values.next()?.to_str().ok()?;
        let sane =
            |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'/' | b'+' | b'=' | b'@' | b'-');
        let keep = (1..=REQUEST_ID_MAX_BYTES).contains(&text.len()) && text.bytes().all(sane);
        (keep && values.next().is_none()).then(|| Self(text.into()))
    }

    /// A fresh one: `req_` and 64 random bits.
    pub fn drawn(entropy: &impl Entropy) -> Self {
        Self(format!("req_{:016x}", entropy.bits()).into())
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for RequestId {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

/// The caller's place in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceParent {
    /// 32 hex digits, not all zero.
    pub trace_id: String,
    /// 16 hex digits, not all zero.
    pub parent_id: String,
}

impl TraceParent {
    /// Reads `traceparent`; `None` where it is missing or not what the recommendation says.
    ///
    /// Source: W3C Trace Context, level 1, section 3.2.
    pub fn sent(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(TRACEPARENT)?.to_str().ok()?;
        let mut parts = text.split('-');
        let (version, trace_id, parent_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |s: &str, len| s.len() == len && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let some = |s: &str, len| hex(s, len) && s.bytes().any(|b| b != b'0');
        let sane = hex(version, 2) && version != "ff" && some(trace_id, 32) && some(parent_id, 16) && hex(flags, 2);
        // Version 00 ends here; later ones may go on.
        (sane && (version != "00" || parts.next().is_none()))
            .then(|| Self { trace_id: trace_id.to_owned(), parent_id: parent_id.to_owned() })
    }
}

/// Names the request; the span is for all that is done about it. It has the path, never the query: a token
/// may have been put there by mistake.
pub fn identify(request: &mut Request) -> (RequestId, Span) {
    let id = RequestId::sent(request.headers()).unwrap_or_else(|| RequestId::drawn(&SystemEntropy));
    // Of the highest level, so that whatever is logged below has it, however little is logged.
    let span = tracing::error_span!(
        "request",
        request_id = id.as_str(),
        method = %request.method(),
        path = request.uri().path(),
        trace_id = tracing::field::Empty,
        parent_id = tracing::field::Empty,
    );
    if let Some(parent) = TraceParent::sent(request.headers()) {
        span.record("trace_id", parent.trace_id);
        span.record("parent_id", parent.parent_id);
    }
    request.extensions_mut().insert(id.clone());
    (id, span)
}

impl RequestId {
    /// Puts the name on the answer.
    pub fn sign(&self, response: &mut Response) {
        if let Ok(value) = HeaderValue::from_str(self.as_str()) {
            response.headers_mut().insert(X_REQUEST_ID, value);
        }
    }
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
    fn a_sane_id_is_kept_and_others_are_not() {
        for sane in ["a", "01J9ZK-x", "build/17:3", &"x".repeat(128)] {
            let kept = RequestId::sent(&headers(X_REQUEST_ID, &[sane]));
            assert_eq!(kept.as_ref().map(RequestId::as_str), Some(sane));
        }
        for odd in ["", "a b", "a\"b", "a,b", "<x>", &"x".repeat(129)] {
            assert_eq!(RequestId::sent(&headers(X_REQUEST_ID, &[odd])), None, "{odd}");
        }
        assert_eq!(RequestId::sent(&headers(X_REQUEST_ID, &["a", "a"])), None);
        assert_eq!(RequestId::sent(&HeaderMap::new()), None);
    }

    #[test]
    fn drawn_ids_differ_and_are_sane() {
        let (a, b) = (RequestId::drawn(&SystemEntropy), RequestId::drawn(&SystemEntropy));
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
