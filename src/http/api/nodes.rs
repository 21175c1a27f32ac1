//! The handlers of `/nodes`: each node's state, votes, latency and findings; an operator's report that a node has ended, or is now
//! another server; and changes of the list and of the terms.

use axum::extract::{Request, State};
use axum::response::Response;

use super::lock_requests::NodeChange;
use super::{lock_requests, lock_responses};
use crate::http::middleware::audit::AuditScope;
use crate::http::negotiation::ResponseFormat;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;
use crate::protocol::Terms;
use crate::redlock::monitor::{ForgetError, ListError, ReplaceError};
use crate::types::NodeId;

/// Answers from the manager's view; calls no node.
pub(crate) async fn nodes(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let format = lock_requests::nodes(&request)?;
    Ok(lock_responses::nodes(&state.manager.nodes(), &state.manager.node_list(), state.manager.node_timeout(), format))
}

/// `POST /nodes/{node}`: answers as `GET /nodes`.
///
/// Cancel: the report may or may not have been noted; for a replacement, as [`crate::redlock::monitor::NodeMonitor::replace`].
pub(crate) async fn change(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let audit_scope = AuditScope::of(&request);
    let principal = RequestContext::access(&request).principal().map(|p| p.name.to_string());
    let (node, change, reason) = lock_requests::change_node(request, &state.settings).await?;
    let (action, outcome) = match &change {
        NodeChange::Forget => ("forget-node", "forgotten"),
        NodeChange::Replace { .. } => ("replace-node", "replaced"),
        NodeChange::Add { .. } => ("add-node", "added"),
        NodeChange::Remove => ("remove-node", "removed"),
    };
    audit_scope.note(|record| {
        record.action = action.to_owned();
        record.node = Some(node.to_string());
        record.reason = Some(reason.clone());
    });
    Box::pin(carry_out(&state, &node, &change)).await?;
    tracing::warn!(%node, action, principal, reason, "an operator changed what is known of a node");
    audit_scope.note(|record| record.outcome = outcome.to_owned());
    Ok(present(&state))
}

/// `POST /nodes`: answers as `GET /nodes`.
///
/// Cancel: the terms may or may not be changed.
pub(crate) async fn change_terms(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let audit_scope = AuditScope::of(&request);
    let principal = RequestContext::access(&request).principal().map(|p| p.name.to_string());
    let (terms, reason) = lock_requests::change_terms(request, &state.settings, state.manager.terms()).await?;
    audit_scope.note(|record| {
        record.action = "change-terms".to_owned();
        record.reason = Some(reason.clone());
    });
    Box::pin(state.manager.change_terms(terms.clone())).await.map_err(|error| match error {
        ListError::Timeout(_) => Problem::new(ProblemKind::QuorumUnavailable, error.to_string()),
        _ => Problem::invalid_field("guard", error.to_string()),
    })?;
    let Terms { guard, lock_delay, fence_ttl, template } = terms;
    let [guard_ms, lock_delay_ms, fence_ttl_ms] = [guard, lock_delay, fence_ttl].map(|period| period.as_millis());
    let key_template = template.map(|template| template.to_string());
    tracing::warn!(
        guard_ms,
        lock_delay_ms,
        fence_ttl_ms,
        key_template,
        principal,
        reason,
        "an operator changed the terms"
    );
    audit_scope.note(|record| record.outcome = "changed".to_owned());
    Ok(present(&state))
}

fn present(state: &AppState) -> Response {
    let (nodes, list) = (state.manager.nodes(), state.manager.node_list());
    lock_responses::nodes(&nodes, &list, state.manager.node_timeout(), ResponseFormat::Json)
}

async fn carry_out(state: &AppState, node: &NodeId, change: &NodeChange) -> Result<(), Problem> {
    // The input was right: the nodes did not do it in time.
    let of_list = |error: ListError| match error {
        ListError::Unknown => Problem::new(ProblemKind::NotFound, error.to_string()),
        ListError::Timeout(_) => Problem::new(ProblemKind::QuorumUnavailable, error.to_string()),
        ListError::Address => Problem::invalid_field("url", error.to_string()),
        _ => Problem::invalid_field("node", error.to_string()),
    };
    match change {
        NodeChange::Add { address } => state.manager.add_node(node, address).await.map_err(of_list)?,
        NodeChange::Remove => state.manager.remove_node(node).await.map_err(of_list)?,
        NodeChange::Forget => state.manager.forget_node(node).map_err(|error| match error {
            ForgetError::Unknown => Problem::new(ProblemKind::NotFound, error.to_string()),
            ForgetError::Answers | ForgetError::AnswersOthers => Problem::invalid_field("node", error.to_string()),
        })?,
        NodeChange::Replace { address } => {
            let replaced = state.manager.replace_node(node, address).await;
            replaced.map_err(|error| match error {
                ReplaceError::Unknown => Problem::new(ProblemKind::NotFound, error.to_string()),
                ReplaceError::Busy | ReplaceError::Only => Problem::invalid_field("node", error.to_string()),
                ReplaceError::Address | ReplaceError::SameServer | ReplaceError::OtherName => {
                    Problem::invalid_field("url", error.to_string())
                }
                ReplaceError::Timeout(_) => Problem::new(ProblemKind::QuorumUnavailable, error.to_string()),
            })?;
        }
    }
    Ok(())
}
