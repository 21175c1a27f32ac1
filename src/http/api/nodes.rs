//! The handler of `GET /nodes`: each node's state, votes, latency and findings.

use axum::extract::{Request, State};
use axum::response::Response;

use super::{requests, responses};
use crate::http::problem::Problem;
use crate::http::state::AppState;

/// Answers from the manager's view; calls no node.
pub(crate) async fn nodes(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    requests::nodes(&request)?;
    Ok(responses::nodes(&state.manager.nodes()))
}
