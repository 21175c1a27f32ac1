//! The handler of `GET /locks`: held leases of the whole cluster, waiters of this instance.

use axum::extract::{Request, State};
use axum::response::Response;

use super::problem::Problem;
use super::state::DoorState;
use super::{answers, asks};

/// Answers from the manager's snapshot. Cancel: nothing is left behind.
pub async fn list(State(door): State<DoorState>, request: Request) -> Result<Response, Problem> {
    let query = asks::list(&request)?;
    drop(request);
    Ok(answers::listed(&Box::pin(door.manager.list(query)).await))
}
