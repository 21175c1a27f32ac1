//! The handlers of `/health/live` and `/health/ready`. Neither calls a node: otherwise a fault of the nodes would get the service
//! restarted. Other query fields are ignored, since some probes add their own.

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;

use super::lock_responses;
use super::request_fields::Fields;
use crate::auth::access_rule::Right;
use crate::http::negotiation;
use crate::http::problem::Problem;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;

/// 200 as long as the process answers.
pub(crate) async fn live(headers: HeaderMap) -> Response {
    lock_responses::health("live", negotiation::for_problem(&headers), None)
}

/// 200 if locks can be granted. With `local=true`, 200 as long as this instance is not stopping: for balancers, since without a
/// quorum every instance gives the same precise answers. Only clients with the right `metrics` learn which node is unavailable,
/// since when, and what to do.
///
/// Errors: `invalid`, `draining`, `quorum-unavailable`.
pub(crate) async fn ready(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let format = negotiation::for_problem(request.headers());
    let mut fields = Fields::of_query(request.uri())?;
    let is_local = fields.flag("local");
    fields.finish_with_others()?;
    let in_full = RequestContext::access(&request).may_somewhere(Right::Metrics);
    let nodes = state.manager.nodes();
    let situation = in_full.then(|| state.manager.situation(&nodes));
    if is_local && !state.manager.is_stopping() {
        return Ok(lock_responses::health("ready", format, situation.as_ref()));
    }
    lock_responses::ready(state.manager.readiness(), &nodes, format, situation.as_ref())
}
