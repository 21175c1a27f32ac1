//! Counts and times each request by its route.

use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::response::Response;

use crate::http::routes::MatchedRoute;
use crate::metrics::Metrics;
use crate::metrics::requests::{OTHER_METHOD, RequestWatch, UNMATCHED};

/// The part of a request's duration spent waiting for a lock. Handlers leave it in the answer's extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitTime(pub Duration);

/// A measured request. If dropped, it counts as abandoned and is no longer in flight.
pub(crate) struct MeasuredRequest {
    route: &'static str,
    watch: RequestWatch,
}

impl MeasuredRequest {
    /// Starts the timer. Requests without a route share one label: raw paths are unbounded.
    pub(crate) fn begin(metrics: &Metrics, request: &Request, route: Option<MatchedRoute>) -> Self {
        let route = route.map_or(UNMATCHED, |r| r.path);
        Self { route, watch: metrics.watch_request(route, method_label(request.method())) }
    }

    /// Records status and duration.
    pub(crate) fn answered(self, response: &Response) {
        let waited = response.extensions().get::<WaitTime>().map(|w| w.0).unwrap_or_default();
        let status = response.status().as_u16();
        self.watch.answered(status, waited);
        tracing::debug!(status, route = self.route, "a request was answered");
    }
}

/// A closed set of labels, since a client can send any token as method.
pub(super) fn method_label(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "LOCK", "UNLOCK"];
    known.into_iter().find(|name| *name == method.as_str()).unwrap_or(OTHER_METHOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_a_closed_set_of_labels() {
        assert_eq!(method_label(&Method::PATCH), "PATCH");
        assert_eq!(method_label(&Method::from_bytes(b"BREW").expect("a token")), OTHER_METHOD);
    }
}
