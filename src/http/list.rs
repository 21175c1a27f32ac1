//! The handler of `GET /locks`: held leases of the whole cluster, waiters of this instance.

use axum::extract::{Request, State};
use axum::response::Response;

use super::auth::Access;
use super::problem::Problem;
use super::state::DoorState;
use super::{answers, asks};
use crate::auth::rule::Right;
use crate::redlock::types::ResourceName;

/// Answers from the manager's snapshot, with what the caller may read. Cancel: nothing is left behind.
pub async fn list(State(door): State<DoorState>, request: Request) -> Result<Response, Problem> {
    let (query, access) = (asks::list(&request)?, Access::of(&request));
    drop(request);
    let seen = |name: &ResourceName| access.may(Right::Read, name);
    let seen = (!access.may_all()).then_some(&seen as _);
    Ok(answers::listed(&Box::pin(door.manager.list_of(query, seen)).await))
}
