//! What is known of a request besides its head: one entry among its extensions, as each takes a block of its own.

use std::sync::Arc;

use axum::http::{Request, header};

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
    /// Whether the request names its host as an earlier one on this connection that passed all checks of it.
    pub has_accepted_host: bool,
}

impl RequestContext {
    /// The context of a request on this connection.
    pub(crate) fn new<B>(connection: Arc<Connection>, request: &Request<B>) -> Self {
        let (mut has_common_headers, mut hosts, mut is_accepted) = (true, 0, false);
        for (name, value) in request.headers() {
            match *name == header::HOST {
                true => (hosts, is_accepted) = (hosts + 1, connection.has_accepted(value)),
                false => has_common_headers &= is_common(name.as_str()),
            }
        }
        // A host in the target comes before the header.
        let has_accepted_host = hosts == 1 && is_accepted && request.uri().authority().is_none();
        Self { connection: Some(connection), access: None, has_common_headers, has_accepted_host }
    }

    fn of<B>(request: &Request<B>) -> Option<&Self> {
        request.extensions().get()
    }

    /// The connection that a request came on; `None` in tests without one.
    pub(crate) fn connection<B>(request: &Request<B>) -> Option<&Arc<Connection>> {
        Self::of(request)?.connection.as_ref()
    }

    /// The permissions of a request's client; none if the request did not pass the authentication layer.
    pub(crate) fn access<B>(request: &Request<B>) -> Access {
        Self::of(request).and_then(|context| context.access.clone()).unwrap_or_else(Access::nothing)
    }

    /// Whether it is known that this request has no header but the common ones.
    pub(crate) fn has_common_headers<B>(request: &Request<B>) -> bool {
        Self::of(request).is_some_and(|context| context.has_common_headers)
    }

    /// Whether it is known that this request's host passes all checks.
    pub(crate) fn has_accepted_host<B>(request: &Request<B>) -> bool {
        Self::of(request).is_some_and(|context| context.has_accepted_host)
    }
}

/// Headers that programs send with each request. None of those that are looked for only without
/// [`RequestContext::has_common_headers`] may be here.
fn is_common(name: &str) -> bool {
    let names = ["user-agent", "accept", "accept-encoding", "connection", "content-type", "content-length"];
    names.contains(&name) || matches!(name, "authorization" | "lock-token")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Arc<Connection> {
        Connection::new(([127, 0, 0, 1], 1).into(), false)
    }

    fn context(connection: &Arc<Connection>, uri: &str, headers: &[(&str, &str)]) -> RequestContext {
        let request = Request::builder().uri(uri);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        RequestContext::new(Arc::clone(connection), &request.body(()).expect("a request"))
    }

    #[test]
    fn one_header_that_few_clients_send_is_not_common() {
        let of = |names: &[&str]| {
            let headers: Vec<_> = names.iter().map(|name| (*name, "x")).collect();
            context(&connection(), "/x", &headers).has_common_headers
        };
        assert!(of(&[]) && of(&["host", "accept", "content-type", "lock-token"]));
        for rare in ["origin", "sec-fetch-site", "x-request-id", "traceparent", "transfer-encoding"] {
            assert!(!of(&["host", rare]), "{rare}");
        }
    }

    #[test]
    fn a_host_that_the_connection_has_accepted_is_no_host_of_a_target_nor_of_two() {
        let connection = connection();
        let value = |text: &str| text.parse().expect("a value");
        connection.accept_host(&value("a"));
        connection.accept_host(&value("b"));
        for (uri, hosts, expected) in [
            ("/x", &[("host", "a")][..], true),
            ("/x", &[("host", "b")], false),
            ("/x", &[("host", "a"), ("host", "a")], false),
            ("/x", &[("host", "b"), ("host", "a")], false),
            ("http://a/x", &[("host", "a")], false),
            ("/x", &[], false),
        ] {
            assert_eq!(context(&connection, uri, hosts).has_accepted_host, expected, "{uri} {hosts:?}");
        }
    }
}
