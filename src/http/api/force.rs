//! Ending another client's lease: shared by `DELETE /locks/{resource}?force=…` and the forms of the pages.

use crate::http::format::ms;
use crate::http::middleware::audit::AuditScope;
use crate::http::state::AppState;
use crate::manager::types::{ForceError, ForceMode, ForceRequest, Forced};
use crate::types::TokenId;

/// The action and the outcome as written to the log and the audit log.
fn action_and_outcome(mode: ForceMode) -> (&'static str, &'static str) {
    match mode {
        ForceMode::Revoke => ("revoke", "revoked"),
        ForceMode::Now => ("force-now", "forced"),
    }
}

/// Completes the audit record before the decision, so that refusals have action and reason too.
pub(crate) fn note(audit_scope: &AuditScope, mode: ForceMode, reason: &str) {
    audit_scope.note(|record| {
        record.action = action_and_outcome(mode).0.to_owned();
        record.reason = Some(reason.to_owned());
    });
}

/// Ends the lease, and records this in metrics, log and audit log. Also returns which lease ended; `None` for the lock of another
/// Redlock client.
///
/// Cancel: requests sent to the nodes stay in effect; a release continues in the background.
pub(crate) async fn end_lease(
    state: &AppState,
    audit_scope: &AuditScope,
    request: ForceRequest,
) -> Result<(Forced, Option<TokenId>), ForceError> {
    let (resource, mode) = (request.resource.clone(), request.mode);
    let (principal, reason) = (request.principal.clone(), request.reason.clone());
    let (action, outcome) = action_and_outcome(mode);
    let result = Box::pin(state.manager.force(request)).await;
    state.metrics.forced(mode, result.as_ref().map(|(forced, _)| forced));
    let (forced, ended) = result?;
    let (owner, held_ms) =
        (ended.as_ref().map(|lease| lease.owner.as_str()), ended.as_ref().and_then(|l| l.held).map(ms));
    tracing::warn!(%resource, action, owner, held_ms, principal, reason, "a lease was ended by force");
    let token_id = ended.as_ref().map(|lease| lease.token_id.clone());
    audit_scope.note(|record| {
        record.outcome = outcome.to_owned();
        record.token_id = ended.as_ref().map(|lease| lease.token_id.to_string());
        record.held_ms = held_ms;
        record.fence = ended.as_ref().map(|lease| lease.fence.0);
        record.ended_owner = ended.map(|lease| lease.owner).filter(|owner| !owner.is_empty());
    });
    Ok((forced, token_id))
}
