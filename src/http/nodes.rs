//! The handler of `GET /nodes`: each node's state, votes, latency and findings.

use axum::extract::{Request, State};
use axum::response::Response;

use super::problem::Problem;
use super::state::DoorState;
use super::{answers, asks};

/// Answers from what the manager knows; asks no node.
pub async fn nodes(State(door): State<DoorState>, request: Request) -> Result<Response, Problem> {
    asks::nodes(&request)?;
    Ok(answers::nodes(&door.manager.nodes()))
}
