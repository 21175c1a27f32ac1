//! The handlers of `/health/live` and `/health/ready`. Neither touches a node: a probe that did
//! would have the service restarted for a fault of the nodes. Fields are not looked at, since
//! probes like to add some.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use super::problem::Problem;
use super::state::DoorState;
use super::{accept, answers};

/// The process answers.
pub async fn live(headers: HeaderMap) -> Response {
    answers::health("live", accept::for_problem(&headers))
}

/// The service can grant locks. Errors: `draining`, `quorum-unavailable`.
pub async fn ready(State(door): State<DoorState>, headers: HeaderMap) -> Result<Response, Problem> {
    answers::ready(door.manager.readiness(), &door.manager.nodes(), accept::for_problem(&headers))
}
