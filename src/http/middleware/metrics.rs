//! Measuring requests: what counts each of them by its matched route, and the handler of
//! `GET /metrics`. Knows which labels a request may carry; what is counted is
//! [`crate::metrics`]' business.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::http::api::locks::WaitTime;
use crate::http::api::problem::Problem;
use crate::http::api::problem_kind::ProblemKind;
use crate::http::routes;
use crate::http::state::AppState;
use crate::manager::types::Readiness;
use crate::metrics::requests::{OTHER_METHOD, RequestWatch, UNMATCHED};
use crate::metrics::{AuditTotals, Metrics, Scrape};

/// A request that is counted. Dropped, it counts as abandoned and is no longer in flight.
pub struct MeasuredRequest {
    route: &'static str,
    watch: RequestWatch,
}

impl MeasuredRequest {
    /// From now on.
    pub fn begin(metrics: &Metrics, request: &Request) -> Self {
        let pattern = request.extensions().get::<MatchedPath>();
        let route = pattern.and_then(|p| routes::label(p.as_str())).unwrap_or(UNMATCHED);
        Self { route, watch: metrics.watch_request(route, method_label(request.method())) }
    }

    /// Counts what came of it.
    pub fn answered(self, response: &Response) {
        let waited = response.extensions().get::<WaitTime>().map(|w| w.0).unwrap_or_default();
        let status = response.status().as_u16();
        self.watch.answered(status, waited);
        tracing::debug!(status, route = self.route, "a request was answered");
    }
}

/// A constant for each method that some client sends in earnest: any word can be a method.
fn method_label(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    known.into_iter().find(|name| *name == method.as_str()).unwrap_or(OTHER_METHOD)
}

/// `GET /metrics`, in the text exposition format.
pub async fn metrics(State(state): State<AppState>) -> Result<Response, Problem> {
    let draining = state.manager.readiness() == Readiness::Draining;
    let counts = state.audit.counts();
    let audit =
        AuditTotals { written: counts.written, dropped: counts.dropped, failed: counts.failed, queued: counts.queued };
    let scrape = Scrape { gauges: state.manager.gauges(), nodes: &state.manager.nodes(), draining, audit };
    let text = state.metrics.scrape(&scrape).map_err(|error| {
        tracing::error!(%error, "the metrics could not be written");
        Problem::new(ProblemKind::Internal, "the metrics could not be written")
    })?;
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
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
