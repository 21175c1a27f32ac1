//! The handlers of `/locks/{resource}`. Parsing is in [`super::lock_requests`], answers in [`super::lock_responses`], problems in
//! [`super::refusals`].

use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

use super::async_acquire::{self, AsyncAcquire};
use super::hold::{self, HoldFields};
use super::lock_requests::{self, AcquireFields, ExtendFields, ReleaseFields};
use super::request_headers::{self, IfMatch, IfNoneMatch};
use super::{force, lock_responses, refusals};
use crate::auth::access_rule::Right;
use crate::auth::quota::QuotaPermit;
use crate::http::access::Access;
use crate::http::format;
use crate::http::middleware::audit::AuditScope;
use crate::http::middleware::metrics::WaitTime;
use crate::http::problem::Problem;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;
use crate::manager::PendingGrant;
use crate::manager::types::{ForceMode, ForceRequest, Forced};
use crate::types::{Fence, ResourceName, Token, TokenId};

/// The future of an answer, in one box: layers move it several times.
pub(crate) type LockAnswer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// `POST`. While the request waits, the future has dropped it: thousands of such futures wait at a time.
///
/// Cancel (the client disconnected): the manager gives up the queue position and undoes a grant; there is no await
/// between committing the grant and the answer.
pub(crate) fn acquire(State(state): State<AppState>, request: Request) -> LockAnswer<Response> {
    // Outside the future, which would otherwise keep a copy of the borrowed request.
    let audit_scope = AuditScope::of(&request);
    Box::pin(acquire_in(state, request, audit_scope))
}

async fn acquire_in(state: AppState, request: Request, audit_scope: AuditScope) -> Response {
    // Destructured at once: a variable for the whole would live as long as the request waits.
    let (request, format, applied, access, permit) = match read_acquire(&state, request, &audit_scope).await {
        Ok(AcquireInput { params: AcquireFields { request, format, applied, .. }, access, permit }) => {
            (request, format, applied, access, permit)
        }
        Err(answer) => return *answer,
    };
    let resource = request.resource.clone();
    let owner = refusals::asked_owner(&request);
    let watch = state.metrics.watch_acquire_in(request.mode, !request.wait.is_zero());
    let outcome = state.manager.acquire(request).await.and_then(PendingGrant::commit);
    let waited = watch.ended(outcome.as_ref().map(|lease| state.measure(lease)));
    if let Ok(lease) = &outcome {
        audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
        audit_scope.mode(lease.mode.wanted());
        audit_scope.note(|record| record.waited_ms = Some(format::ms(lease.waited)));
        if let Some(permit) = permit {
            permit.granted(lease.counted(), lease.deadline);
        }
    }
    let mut response = match outcome {
        Ok(lease) => match refusals::other_owner(&lease, owner.as_deref()) {
            None => lock_responses::acquired(&lease, state.answer_time(), format),
            Some(problem) => problem.into_response(),
        },
        Err(error) => refusals::acquire(&resource, error, &access).into_response(),
    };
    lock_responses::put_preference(&mut response, applied);
    if !waited.is_zero() {
        response.extensions_mut().insert(WaitTime(waited));
    }
    response
}

/// A parsed acquire with its client, and its reservation in the principal's quota; `None` without authentication.
struct AcquireInput {
    params: AcquireFields,
    access: Access,
    permit: Option<Arc<QuotaPermit>>,
}

/// Parses an acquire. `Err`: the answer, either a problem or a stream that holds the lock.
async fn read_acquire(
    state: &AppState,
    request: Request,
    audit_scope: &AuditScope,
) -> Result<AcquireInput, Box<Response>> {
    let refused = |problem: Problem| Box::new(problem.into_response());
    let (access, connection) = (RequestContext::access(&request), RequestContext::connection(&request).cloned());
    let mut params = lock_requests::acquire(request, &state.settings).await.map_err(refused)?;
    params.request.principal = access.shared_principal();
    audit_scope.note(|record| {
        record.owner = Some(params.request.labels.owner.clone()).filter(|owner| !owner.is_empty());
        record.token_id = params.request.token.as_ref().map(|token| token.hash().id().to_string());
    });
    if let Some(fields) = params.asynchronous.take() {
        let AcquireFields { request, format, .. } = params;
        let (others, audit_scope) = (Vec::new(), audit_scope.clone());
        let asked = AsyncAcquire { request, others, fields, format, access, audit_scope };
        let answer = Box::pin(async_acquire::acquire(state.clone(), asked)).await;
        return Err(Box::new(answer.unwrap_or_else(IntoResponse::into_response)));
    }
    let (names, waits) = (std::slice::from_ref(&params.request.resource), !params.request.wait.is_zero());
    let kept = params.request.keep.as_ref();
    let kept = kept.and_then(|keep| state.manager.kept_permit(names, access.principal(), &keep.wait_id));
    let permit = match kept {
        Some(permit) => Some(permit),
        None => access.reserve(names, params.request.token.as_ref(), waits).map_err(refused)?.map(Arc::new),
    };
    if let Some(keep) = &mut params.request.keep {
        keep.permit.clone_from(&permit);
    }
    let Some(format) = params.hold else { return Ok(AcquireInput { params, access, permit }) };
    audit_scope.note(|record| record.action = "hold".to_owned());
    let AcquireFields { request, .. } = params;
    let params = HoldFields { request, format, connection, access, permit, audit_scope: audit_scope.clone() };
    Err(Box::new(Box::pin(hold::hold(state.clone(), params)).await))
}

/// `PATCH`. Cancel: the extend may or may not have taken effect.
pub(crate) async fn extend(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope) = (RequestContext::access(&request), AuditScope::of(&request));
    let none_match = request_headers::if_none_match(request.headers())?;
    let ExtendFields { mut request, if_match, format } =
        Box::pin(lock_requests::extend(request, &state.settings)).await?;
    let resource = request.resource.clone();
    let token_id = request.token.hash().id();
    audit_scope.note(|record| record.token_id = Some(token_id.to_string()));
    request.fence = expected_fence(&state, &resource, if_match).await?;
    check_none_match(&state, &resource, &none_match).await?;
    let outcome = Box::pin(state.manager.extend(request)).await;
    state.metrics.extended(&outcome);
    let extended = outcome.map_err(|error| refusals::extend(&resource, error))?;
    access.update_quota(|quotas| quotas.extended((&resource, token_id), extended.lease.deadline));
    audit_scope.note(|record| {
        record.outcome = "extended".to_owned();
        record.fence = Some(extended.lease.fence.0);
    });
    audit_scope.mode(extended.lease.mode.wanted());
    Ok(lock_responses::extended(&extended, state.answer_time(), format))
}

/// The fence that `If-Match` requires; the manager checks it together with the extend.
async fn expected_fence(
    state: &AppState,
    resource: &ResourceName,
    if_match: IfMatch,
) -> Result<Option<Fence>, Problem> {
    let IfMatch::OneOf(tags) = if_match else { return Ok(None) };
    if let Some(fence) = single_fence(&tags) {
        return Ok(Some(fence));
    }
    Ok(matching(state, resource, &tags).await?.and_then(|tag| tag.parse().ok()).map(Fence))
}

/// `DELETE`. Cancel: a release continues in the background.
pub(crate) fn release(State(state): State<AppState>, request: Request) -> LockAnswer<Result<Response, Problem>> {
    Box::pin(release_in(state, request))
}

async fn release_in(state: AppState, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope) = (RequestContext::access(&request), AuditScope::of(&request));
    let none_match = request_headers::if_none_match(request.headers())?;
    match lock_requests::release(request, &state.settings).await? {
        ReleaseFields::Release { resource, token, if_match } => {
            check_none_match(&state, &resource, &none_match).await?;
            release_own(&state, &access, &audit_scope, resource, token, if_match).await
        }
        ReleaseFields::Force { resource, holder, mode, reason, if_match } => {
            force::note(&audit_scope, mode, &reason);
            access.need(Right::Force, &resource)?;
            check_none_match(&state, &resource, &none_match).await?;
            release_forced(&state, &access, &audit_scope, (resource, holder, mode, reason), if_match).await
        }
    }
}

async fn release_own(
    state: &AppState,
    access: &Access,
    audit_scope: &AuditScope,
    resource: ResourceName,
    token: Token,
    if_match: IfMatch,
) -> Result<Response, Problem> {
    audit_scope.note(|record| record.token_id = Some(token.hash().id_text().to_owned()));
    access.need(Right::Acquire, &resource)?;
    if let IfMatch::OneOf(tags) = if_match {
        // The token identifies the lease; the tag only guards against a mistake, so it may be checked earlier.
        matching(state, &resource, &tags).await?;
    }
    let outcome = state.manager.release(&resource, &token).await;
    state.metrics.released(&outcome);
    let held = outcome.map_err(|error| refusals::release(&resource, error))?;
    access.update_quota(|quotas| quotas.ended((&resource, token.hash().id())));
    audit_scope.note(|record| {
        record.outcome = "released".to_owned();
        record.held_ms = held.map(format::ms);
    });
    Ok(lock_responses::released())
}

async fn release_forced(
    state: &AppState,
    access: &Access,
    audit_scope: &AuditScope,
    (resource, holder, mode, reason): (ResourceName, Option<TokenId>, ForceMode, String),
    if_match: IfMatch,
) -> Result<Response, Problem> {
    let if_match = match if_match {
        IfMatch::Any => None,
        IfMatch::OneOf(mut tags) if tags.len() == 1 => tags.pop(),
        IfMatch::OneOf(tags) => {
            let tag = matching(state, &resource, &tags).await?;
            Some(tag.ok_or_else(|| refusals::not_held(&resource))?)
        }
    };
    let principal = access.principal().map(|principal| principal.name.to_string());
    let request = ForceRequest { resource: resource.clone(), mode, reason, principal, holder, if_match };
    let outcome = force::end_lease(state, audit_scope, request).await;
    let (forced, ended) = outcome.map_err(|error| refusals::force(&resource, error))?;
    if matches!(forced, Forced::Freed) {
        access.update_quota(|quotas| match ended {
            Some(token_id) => quotas.ended((&resource, token_id)),
            None => quotas.ended(&resource),
        });
    }
    Ok(lock_responses::forced(&resource, &forced, state.manager.wall_ms()))
}

/// `GET` and `HEAD`. Cancel: nothing is left behind.
pub(crate) async fn inspect(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (resource, format, none_match) = lock_requests::inspect(&request)?;
    drop(request);
    let inspection = Box::pin(state.manager.inspect(&resource)).await;
    let inspection = inspection.map_err(|error| refusals::unknown(refusals::HOLDER_UNKNOWN, &error))?;
    match inspection.etag() {
        Some(tag) if none_match.excludes(Some(&tag)) => Ok(lock_responses::not_modified(&tag)),
        _ => lock_responses::inspected(&inspection, state.manager.wall_ms(), format),
    }
}

/// Refuses a change whose `If-None-Match` excludes the present lease, if there is one.
///
/// Errors: `changed`, `quorum-unavailable`. Cancel: nothing is left behind.
async fn check_none_match(state: &AppState, resource: &ResourceName, none_match: &IfNoneMatch) -> Result<(), Problem> {
    if *none_match == IfNoneMatch::Absent {
        return Ok(());
    }
    let inspection = Box::pin(state.manager.inspect(resource)).await;
    let inspection =
        inspection.map_err(|error| refusals::unknown("If-None-Match cannot be checked; nothing was done", &error))?;
    match inspection.etag() {
        Some(tag) if none_match.excludes(Some(&tag)) => Err(refusals::excluded(resource, &tag)),
        _ => Ok(()),
    }
}

/// The fence that a single tag names.
fn single_fence(tags: &[String]) -> Option<Fence> {
    let [tag] = tags else { return None };
    let fence: u64 = tag.parse().ok()?;
    (fence.to_string() == *tag).then_some(Fence(fence))
}

/// The present tag if `tags` contains it; `None` if nobody holds the resource. The tag may change right after; where that
/// matters, the manager checks it again.
///
/// Errors: `changed`, `quorum-unavailable`. Cancel: nothing is left behind.
async fn matching(state: &AppState, resource: &ResourceName, tags: &[String]) -> Result<Option<String>, Problem> {
    let inspection = Box::pin(state.manager.inspect(resource)).await;
    let inspection =
        inspection.map_err(|error| refusals::unknown("If-Match cannot be checked; nothing was done", &error))?;
    match (inspection.etag(), tags.iter().find(|tag| inspection.has_tag(tag))) {
        (_, Some(tag)) => Ok(Some(tag.clone())),
        (Some(current), None) => Err(refusals::changed(resource, &current)),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a function's future, without calling it.
    fn size_of_future<F: Future>(_: fn(AppState, Request, AuditScope) -> F) -> usize {
        size_of::<F>()
    }

    /// A waiter keeps it: ten thousand of them must fit into 64 MiB.
    #[test]
    fn a_parked_acquire_is_small() {
        let size = size_of_future(acquire_in);
        assert!(size <= 5_632, "{size} bytes");
    }

    #[test]
    fn only_canonical_decimal_is_a_fence() {
        let tags = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(single_fence(&tags(&["17"])), Some(Fence(17)));
        for other in [&["017"][..], &["+17"], &["abc"], &["17", "18"], &[]] {
            assert_eq!(single_fence(&tags(other)), None, "{other:?}");
        }
    }
}
