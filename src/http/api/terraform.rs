//! The handlers of `/terraform/{resource}`: locks for the HTTP back end of Terraform and OpenTofu, on kept leases. A run unlocks
//! by the `ID` of its lock. The `ID` is no secret, so only the principal that locked may use it.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::lock_responses::FENCING_TOKEN;
use super::request_fields::Fields;
use super::terraform_info::{NAMING, SentLock, of_refusal};
use super::{force, lease_fields, refusals, request_body};
use crate::auth::access_rule::Right;
use crate::http::access::Access;
use crate::http::format;
use crate::http::middleware::audit::AuditScope;
use crate::http::middleware::metrics::WaitTime;
use crate::http::path;
use crate::http::problem::Problem;
use crate::http::request_context::RequestContext;
use crate::http::state::{AppState, HttpSettings};
use crate::manager::PendingGrant;
use crate::manager::derived_tokens::DerivedHolder;
use crate::manager::types::{
    AcquireError, AcquireRequest, ForceError, ForceMode, ForceRequest, GoneReason, ReleaseError,
};
use crate::types::{ResourceName, WantedMode};

/// The reason in the log when another run's lock is ended.
const FORCED: &str = "unlocked by force for Terraform";

/// `LOCK`, and `POST /terraform/{resource}/lock`.
///
/// Cancel (the client disconnected): as for an acquire.
pub(crate) async fn lock(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope) = (RequestContext::access(&request), AuditScope::of(&request));
    let mut request =
        parse_lock(request, &state.settings, |id| state.manager.derived_token(NAMING, access.principal(), id)).await?;
    request.principal = access.shared_principal();
    let resource = request.resource.clone();
    audit_scope.note(|record| {
        record.resource = Some(resource.to_string());
        record.owner = Some(request.labels.owner.clone()).filter(|owner| !owner.is_empty());
        record.token_id = request.token.as_ref().map(|token| token.hash().id().to_string());
    });
    let (names, waits) = (std::slice::from_ref(&resource), !request.wait.is_zero());
    let permit = access.reserve(names, request.token.as_ref(), waits)?;
    let watch = state.metrics.watch_acquire(!request.wait.is_zero());
    let outcome = Box::pin(state.manager.acquire(request)).await.and_then(PendingGrant::commit);
    let waited = watch.ended(outcome.as_ref().map(|lease| state.measure(lease)));
    let mut response = match outcome {
        Ok(lease) => {
            audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
            audit_scope.note(|record| record.waited_ms = Some(format::ms(lease.waited)));
            if let Some(permit) = permit {
                permit.granted(lease.counted(), lease.deadline);
            }
            (StatusCode::OK, [(FENCING_TOKEN, lease.fence.to_string())], Body::empty()).into_response()
        }
        Err(error) => {
            let holder = match &error {
                AcquireError::Held(held) | AcquireError::WaitTimeout { held, .. } => Some(of_refusal(&resource, held)),
                _ => None,
            };
            refusals::acquire(&resource, error, &access).with(|m| m.lock_info = holder.map(Box::new)).into_response()
        }
    };
    response.extensions_mut().insert(WaitTime(waited));
    Ok(response)
}

/// Errors: `invalid`, `token-in-url`, `keep-too-long`, those of the body.
async fn parse_lock(
    request: Request,
    settings: &HttpSettings,
    token: impl FnOnce(&str) -> crate::types::Token,
) -> Result<AcquireRequest, Problem> {
    let resource = path::terraform_resource(request.method(), request.uri())?;
    let mut fields = Fields::of_query(request.uri())?;
    let (parts, body) = request_body::json(request, settings).await?;
    let kept_for = lease_fields::kept_for(&mut fields, settings)?.unwrap_or(settings.terraform_keep);
    let ttl = lease_fields::kept_ttl(&mut fields, None, kept_for, settings);
    let (wait, _) = lease_fields::wait(&mut fields, &parts, settings);
    fields.finish(&["wait", "keep"])?;
    let sent =
        SentLock::parse(&body)?.ok_or_else(|| Problem::invalid_field("body", "is empty: the lock is missing"))?;
    Ok(AcquireRequest {
        resource,
        mode: WantedMode::Exclusive,
        ttl,
        wait,
        kept_for: Some(kept_for),
        labels: sent.labels(),
        token: Some(token(sent.id())),
        refuses_deadlock: false,
        principal: None,
        keep: None,
    })
}

/// `UNLOCK`, and `DELETE /terraform/{resource}/lock`. A request without a body is `terraform force-unlock`.
///
/// Cancel: a release continues in the background.
pub(crate) async fn unlock(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope) = (RequestContext::access(&request), AuditScope::of(&request));
    let resource = path::terraform_resource(request.method(), request.uri())?;
    audit_scope.note(|record| record.resource = Some(resource.to_string()));
    let mut fields = Fields::of_query(request.uri())?;
    // An address copied from LOCK includes its query, which must not prevent an unlock.
    for ignored in ["wait", "keep"] {
        fields.take(ignored);
    }
    fields.finish(&["wait", "keep"])?;
    let (_, body) = request_body::json(request, &state.settings).await?;
    let sent = SentLock::parse(&body)?;
    if sent.is_none() {
        access.need(Right::Force, &resource)?;
    }
    let holder = Box::pin(state.manager.derived_holder(&resource, NAMING, access.principal())).await;
    let holder = holder.map_err(|error| refusals::unknown(refusals::HOLDER_UNKNOWN, &error))?;
    let is_named = |name: &str| sent.as_ref().is_none_or(|sent| sent.id() == name);
    match holder {
        DerivedHolder::Lease { name, is_own: true, .. } if sent.is_some() && is_named(&name) => {
            release(&state, &access, &audit_scope, resource, &name).await
        }
        DerivedHolder::Lease { name, etag, .. } if is_named(&name) => {
            access.need(Right::Force, &resource)?;
            end(&state, &access, &audit_scope, resource, etag).await
        }
        DerivedHolder::Nobody => Err(refusals::release(&resource, ReleaseError::Gone(GoneReason::Unknown))),
        DerivedHolder::Lease { .. } | DerivedHolder::Other => {
            Err(refusals::release(&resource, ReleaseError::NotHolder))
        }
    }
}

async fn release(
    state: &AppState,
    access: &Access,
    audit_scope: &AuditScope,
    resource: ResourceName,
    id: &str,
) -> Result<Response, Problem> {
    let token = state.manager.derived_token(NAMING, access.principal(), id);
    let token_id = token.hash().id();
    audit_scope.note(|record| record.token_id = Some(token_id.to_string()));
    let outcome = Box::pin(state.manager.release(&resource, &token)).await;
    state.metrics.released(&outcome);
    let held = outcome.map_err(|error| refusals::release(&resource, error))?;
    access.update_quota(|quotas| quotas.ended((&resource, token_id)));
    audit_scope.note(|record| {
        record.outcome = "released".to_owned();
        record.held_ms = held.map(format::ms);
    });
    Ok(StatusCode::OK.into_response())
}

/// Ends the lock of another run if it is still the inspected one.
async fn end(
    state: &AppState,
    access: &Access,
    audit_scope: &AuditScope,
    resource: ResourceName,
    etag: String,
) -> Result<Response, Problem> {
    let (mode, reason) = (ForceMode::Now, FORCED.to_owned());
    force::note(audit_scope, mode, &reason);
    let principal = access.principal().map(|principal| principal.name.to_string());
    let request =
        ForceRequest { resource: resource.clone(), mode, reason, principal, holder: None, if_match: Some(etag) };
    let ended = force::end_lease(state, audit_scope, request).await;
    ended.map_err(|error| match error {
        ForceError::NotHeld => refusals::release(&resource, ReleaseError::Gone(GoneReason::Unknown)),
        ForceError::Changed { .. } => refusals::release(&resource, ReleaseError::NotHolder),
        error => refusals::force(&resource, error),
    })?;
    access.update_quota(|quotas| quotas.ended(&resource));
    Ok(StatusCode::OK.into_response())
}
