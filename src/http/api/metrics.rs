//! The handler of `GET /metrics`.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::state::AppState;
use crate::manager::types::Readiness;
use crate::metrics::webhooks::WebhookTotals;
use crate::metrics::{AuditTotals, Scrape};

/// Answers in the Prometheus text format.
pub(crate) async fn metrics(State(state): State<AppState>) -> Result<Response, Problem> {
    let draining = state.manager.readiness() == Readiness::Draining;
    let counts = state.audit.counts();
    let audit =
        AuditTotals { written: counts.written, dropped: counts.dropped, failed: counts.failed, queued: counts.queued };
    let store = state.authenticator.store();
    let last_key = store.first_without_key(state.manager.wall_ms()).map(|(who, at_ms)| (who.name.to_string(), at_ms));
    let hooks = state.webhooks.totals();
    let webhooks = WebhookTotals { queued: hooks.queued, off: hooks.off, dropped: hooks.dropped };
    let (gauges, nodes) = (state.manager.gauges(), &state.manager.nodes());
    let scrape = Scrape { gauges, nodes, draining, audit, last_key, webhooks };
    let text = state.metrics.scrape(&scrape).map_err(|error| {
        tracing::error!(%error, "the metrics could not be written");
        Problem::new(ProblemKind::Internal, "the metrics could not be written")
    })?;
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}
