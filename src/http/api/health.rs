//! The handlers of `/health/live` and `/health/ready`. Neither touches a node: a probe that did
//! would have the service restarted for a fault of the nodes. Fields are not looked at, since
//! probes like to add some.

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;

use super::problem::Problem;
use super::{negotiation, responses};
use crate::auth::rule::Right;
use crate::http::middleware::auth::Access;
use crate::http::state::AppState;

/// The process answers.
pub async fn live(headers: HeaderMap) -> Response {
    responses::health("live", negotiation::for_problem(&headers))
}

/// The service can grant locks. Which node is not well is for those who may see the nodes; everybody
/// learns how many are. Errors: `draining`, `quorum-unavailable`.
pub async fn ready(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let format = negotiation::for_problem(request.headers());
    let in_full = Access::of(&request).may_somewhere(Right::Metrics);
    responses::ready(state.manager.readiness(), &state.manager.nodes(), format, in_full)
}
