//! The handlers of `/nodes`: each node's state, votes, latency and findings; and an operator's word that a node has ended.

use axum::extract::{Request, State};
use axum::response::Response;

use super::{requests, responses};
use crate::http::middleware::access::Access;
use crate::http::middleware::audit::AuditScope;
use crate::http::negotiation::ResponseFormat;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::state::AppState;
use crate::redlock::monitor::ForgetError;

/// Answers from the manager's view; calls no node.
pub(crate) async fn nodes(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let format = requests::nodes(&request)?;
    Ok(responses::nodes(&state.manager.nodes(), format))
}

/// `POST /nodes/{node}`: answers as `GET /nodes`. Cancel: the word may or may not have been noted.
pub(crate) async fn change(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let audit_scope = AuditScope::of(&request);
    audit_scope.note(|record| record.action = "forget-node".to_owned());
    let principal = Access::of(&request).principal().map(|p| p.name.to_string());
    let (node, reason) = requests::forget(request, &state.settings).await?;
    audit_scope.note(|record| {
        record.node = Some(node.to_string());
        record.reason = Some(reason.clone());
    });
    state.manager.forget_node(&node).map_err(|error| match error {
        ForgetError::Unknown => Problem::new(ProblemKind::NotFound, error.to_string()),
        ForgetError::Answers | ForgetError::AnswersOthers => Problem::invalid_field("node", error.to_string()),
    })?;
    tracing::warn!(%node, principal, reason, "a node is not waited for any more");
    audit_scope.note(|record| record.outcome = "forgotten".to_owned());
    Ok(responses::nodes(&state.manager.nodes(), ResponseFormat::Json))
}
