//! The handler of `GET /locks`: held leases of the whole cluster, and waiters of this instance.

use axum::extract::{Request, State};
use axum::response::Response;

use super::{lock_requests, lock_responses};
use crate::auth::access_rule::Right;
use crate::http::problem::Problem;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;
use crate::types::ResourceName;

/// Answers from the manager's snapshot with the locks that the client may read. Cancel: nothing is left behind.
pub(crate) async fn list(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let ((query, format), access) = (lock_requests::list(&request)?, RequestContext::access(&request));
    drop(request);
    let may_read = |name: &ResourceName| access.may(Right::Read, name);
    let filter = (!access.may_all()).then_some(&may_read as _);
    Ok(lock_responses::listed(&Box::pin(state.manager.list_visible(query, filter)).await, format))
}
