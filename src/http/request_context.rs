//! What is known of a request besides its head: one entry among its extensions, as each takes a block of its own.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::HeaderMap;

use super::access::Access;
use super::connection::Connection;

/// Left by the server, and completed by the authentication layer. Tests may call the router without it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestContext {
    /// The connection that the request came on.
    pub connection: Option<Arc<Connection>>,
    /// The permissions of the client; `None` before it is identified.
    pub access: Option<Access>,
    /// Whether all headers are among those that most clients send, so that no other one has to be looked for.
    pub has_common_headers: bool,
}

impl RequestContext {
    /// The context of a request on this connection.
    pub(crate) fn new(connection: Arc<Connection>, headers: &HeaderMap) -> Self {
        let has_common_headers = headers.keys().all(|name| is_common(name.as_str()));
        Self { connection: Some(connection), access: None, has_common_headers }
    }

    fn of(request: &Request) -> Option<&Self> {
        request.extensions().get()
    }

    /// The connection that a request came on; `None` in tests without one.
    pub(crate) fn connection(request: &Request) -> Option<&Arc<Connection>> {
        Self::of(request)?.connection.as_ref()
    }

    /// The permissions of a request's client; none if the request did not pass the authentication layer.
    pub(crate) fn access(request: &Request) -> Access {
        Self::of(request).and_then(|context| context.access.clone()).unwrap_or_else(Access::nothing)
    }

    /// Whether it is known that this request has no header but the common ones.
    pub(crate) fn has_common_headers(request: &Request) -> bool {
        Self::of(request).is_some_and(|context| context.has_common_headers)
    }
}

/// Headers that programs send with each request.
fn is_common(name: &str) -> bool {
    let names = ["host", "user-agent", "accept", "accept-encoding", "connection", "content-type", "content-length"];
    names.contains(&name) || matches!(name, "authorization" | "lock-token")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn one_header_that_few_clients_send_is_not_common() {
        let of = |names: &[&'static str]| {
            let names = names.iter().map(|name| (HeaderName::from_static(name), "x".parse().expect("a value")));
            RequestContext::new(Connection::new(([127, 0, 0, 1], 1).into(), false), &names.collect()).has_common_headers
        };
        assert!(of(&[]) && of(&["host", "accept", "content-type", "lock-token"]));
        for rare in ["origin", "sec-fetch-site", "x-request-id", "traceparent", "transfer-encoding"] {
            assert!(!of(&["host", rare]), "{rare}");
        }
    }
}
