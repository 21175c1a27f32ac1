//! The handlers of `/locks/{resource}`: read what is asked, ask the manager, answer. Small, since
//! what is asked is [`super::requests`]' business and what is answered is [`super::responses`]'.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

use super::extract::IfMatch;
use super::hold::{self, HoldParams};
use super::problem::{self, Problem};
use super::requests::{self, AcquireParams, ExtendParams, ReleaseParams};
use super::responses::{self, AnswerTime};
use crate::auth::quota::QuotaPermit;
use crate::auth::rule::Right;
use crate::http::middleware::audit::AuditScope;
use crate::http::middleware::auth::Access;
use crate::http::server::socket::ConnectionHandle;
use crate::http::state::AppState;
use crate::manager::PendingGrant;
use crate::manager::types::{ForceError, ForceMode, ForceRequest, Forced, GrantedLease};
use crate::metrics::leases::GrantMeasure;
use crate::types::{Fence, ResourceName};

/// How much of a request's time went into waiting for a lock: left in the answer's extensions for
/// the layer that measures.
#[derive(Debug, Clone, Copy)]
pub struct WaitTime(pub Duration);

pub(super) fn moment(state: &AppState) -> AnswerTime {
    AnswerTime { now: state.manager.now(), wall_ms: state.manager.wall_ms() }
}

/// What metrics take of a grant that is about to be answered. The deadline says when its round began.
pub(super) fn measure(state: &AppState, lease: &GrantedLease) -> GrantMeasure {
    let now = state.manager.now();
    let whole = state.manager.engine().deadline(now, lease.ttl).since(now);
    GrantMeasure {
        is_replay: lease.replay,
        round: now.since(lease.deadline.minus(whole)),
        valid_for: lease.deadline.since(now),
        ttl: lease.ttl.as_duration(),
    }
}

/// `POST`. While it waits, the future has dropped the request and holds little more than two boxes:
/// thousands are parked at a time.
///
/// Cancel (the caller hung up): the manager gives up the place in the queue and undoes whatever was
/// granted; there is no point between taking the lease over and the answer at which the future can
/// be dropped.
pub fn acquire(State(state): State<AppState>, request: Request) -> impl Future<Output = Response> + Send {
    // Outside of the future, which would otherwise keep a second place for a request that it has lent.
    let audit_scope = AuditScope::of(&request);
    acquire_on(state, request, audit_scope)
}

async fn acquire_on(state: AppState, request: Request, audit_scope: AuditScope) -> Response {
    // Unpacked at once: a name for the whole would be kept while the request waits.
    let (request, format, applied, permit) = match Box::pin(read_acquire(&state, request, &audit_scope)).await {
        Ok(AcquireInput { params: AcquireParams { request, format, applied, .. }, permit }) => {
            (request, format, applied, permit)
        }
        Err(answer) => return *answer,
    };
    let resource = request.resource.clone();
    let watch = state.metrics.watch_acquire(!request.wait.is_zero());
    let outcome = Box::pin(state.manager.acquire(request)).await.and_then(PendingGrant::commit);
    let waited = watch.ended(outcome.as_ref().map(|lease| measure(&state, lease)));
    if let Ok(lease) = &outcome {
        audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
        if let Some(permit) = permit {
            permit.granted(&resource, lease.deadline);
        }
    }
    let mut response = match outcome {
        Ok(lease) => responses::acquired(&lease, moment(&state), format),
        Err(error) => problem::acquire_refused(&resource, error).into_response(),
    };
    responses::put_preference(&mut response, applied);
    response.extensions_mut().insert(WaitTime(waited));
    response
}

/// What is asked, and the caller's place for it where places are counted.
struct AcquireInput {
    params: AcquireParams,
    permit: Option<Box<QuotaPermit>>,
}

/// What is asked; or the answer, where it is a problem or a stream that holds the lock.
async fn read_acquire(
    state: &AppState,
    request: Request,
    audit_scope: &AuditScope,
) -> Result<AcquireInput, Box<Response>> {
    let access = Access::of(&request);
    let connection = request.extensions().get::<ConnectionHandle>().cloned();
    let params = requests::acquire(request, &state.settings).await;
    let params = params.map_err(|problem| Box::new(problem.into_response()))?;
    audit_scope.note(|record| {
        record.owner = Some(params.request.labels.owner.clone()).filter(|owner| !owner.is_empty());
        record.token_id = params.request.token.as_ref().map(|token| token.hash().id().to_string());
    });
    let permit = access.enter(!params.request.wait.is_zero());
    let permit = permit.map_err(|problem| Box::new(problem.into_response()))?.map(Box::new);
    let Some(form) = params.hold else { return Ok(AcquireInput { params, permit }) };
    audit_scope.note(|record| record.action = "hold".to_owned());
    let params = HoldParams { request: params.request, form, connection, permit, audit_scope: audit_scope.clone() };
    Err(Box::new(Box::pin(hold::hold(state.clone(), params)).await))
}

/// `PATCH`. Cancel: the extend may or may not have taken effect.
pub async fn extend(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope) = (Access::of(&request), AuditScope::of(&request));
    let ExtendParams { mut request, if_match, format } = Box::pin(requests::extend(request, &state.settings)).await?;
    let resource = request.resource.clone();
    audit_scope.note(|record| record.token_id = Some(request.token.hash().id().to_string()));
    request.fence = match if_match {
        IfMatch::Any => None,
        IfMatch::OneOf(tags) => match single_fence(&tags) {
            Some(fence) => Some(fence),
            None => matching(&state, &resource, &tags).await?.and_then(|tag| tag.parse().ok()).map(Fence),
        },
    };
    let outcome = Box::pin(state.manager.extend(request)).await;
    state.metrics.extended(&outcome);
    let extended = outcome.map_err(|error| problem::extend_refused(&resource, error))?;
    access.tell(|ledger| ledger.extended(&resource, extended.lease.deadline));
    audit_scope.note(|record| {
        record.outcome = "extended".to_owned();
        record.fence = Some(extended.lease.fence.0);
    });
    Ok(responses::extended(&extended, moment(&state), format))
}

/// `DELETE`. Cancel: a release goes on in the background.
pub async fn release(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope) = (Access::of(&request), AuditScope::of(&request));
    match Box::pin(requests::release(request, &state.settings)).await? {
        ReleaseParams::Release { resource, token, if_match } => {
            audit_scope.note(|record| record.token_id = Some(token.hash().id().to_string()));
            access.need(Right::Acquire, &resource)?;
            if let IfMatch::OneOf(tags) = if_match {
                // The token names the lease; the tag only guards against a mistake, so looking first will do.
                matching(&state, &resource, &tags).await?;
            }
            let outcome = Box::pin(state.manager.release(&resource, &token)).await;
            state.metrics.released(&outcome);
            outcome.map_err(|error| problem::release_refused(&resource, error))?;
            access.tell(|ledger| ledger.ended(&resource));
            audit_scope.note(|record| record.outcome = "released".to_owned());
            Ok(responses::released())
        }
        ReleaseParams::Force { resource, mode, reason, if_match } => {
            note_force(&audit_scope, mode, &reason);
            access.need(Right::Force, &resource)?;
            let if_match = match if_match {
                IfMatch::Any => None,
                IfMatch::OneOf(mut tags) if tags.len() == 1 => tags.pop(),
                IfMatch::OneOf(tags) => {
                    let tag = matching(&state, &resource, &tags).await?;
                    Some(tag.ok_or_else(|| problem::not_held(&resource))?)
                }
            };
            let request = ForceRequest { resource: resource.clone(), mode, reason, if_match };
            let outcome = end_by_force(&state, &audit_scope, request).await;
            let forced = outcome.map_err(|error| problem::force_refused(&resource, error))?;
            if matches!(forced, Forced::Freed) {
                access.tell(|ledger| ledger.ended(&resource));
            }
            Ok(responses::forced(&resource, &forced, state.manager.wall_ms()))
        }
    }
}

/// How a forced end is called, and what it is once it is done.
fn words(mode: ForceMode) -> (&'static str, &'static str) {
    match mode {
        ForceMode::Revoke => ("revoke", "revoked"),
        ForceMode::Now => ("force-now", "forced"),
    }
}

/// What the audit log is told before anything is decided.
pub fn note_force(audit_scope: &AuditScope, mode: ForceMode, reason: &str) {
    audit_scope.note(|record| {
        record.action = words(mode).0.to_owned();
        record.reason = Some(reason.to_owned());
    });
}

/// Ends somebody's lease, counts it and tells of it. For the API and for the pages.
///
/// Cancel: what was sent to the nodes stays; a release goes on in the background.
pub async fn end_by_force(
    state: &AppState,
    audit_scope: &AuditScope,
    request: ForceRequest,
) -> Result<Forced, ForceError> {
    let (resource, mode) = (request.resource.clone(), request.mode);
    let (action, done) = words(mode);
    let outcome = Box::pin(state.manager.force(request)).await;
    state.metrics.forced(mode, outcome.as_ref().map(|(forced, _)| forced));
    let (forced, ended) = outcome?;
    tracing::warn!(%resource, action, "a lease was ended by force");
    audit_scope.note(|record| {
        record.outcome = done.to_owned();
        record.token_id = ended.as_ref().map(|lease| lease.token_id.to_string());
        record.fence = ended.map(|lease| lease.fence.0);
    });
    Ok(forced)
}

/// `GET` and `HEAD`. Cancel: nothing is left behind.
pub async fn inspect(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (resource, format) = requests::inspect(&request)?;
    drop(request);
    let seen = Box::pin(state.manager.inspect(&resource)).await;
    let seen = seen.map_err(|error| problem::no_quorum("nobody can say who holds it", &error))?;
    responses::inspected(&seen, state.manager.wall_ms(), format)
}

/// The fence that a single tag names: the manager checks it together with the extend.
fn single_fence(tags: &[String]) -> Option<Fence> {
    let [tag] = tags else { return None };
    let fence: u64 = tag.parse().ok()?;
    (fence.to_string() == *tag).then_some(Fence(fence))
}

/// The present tag if it is one of `tags`; `None` if nobody holds the resource. It may change right
/// after, so where that matters the manager is given it to check once more.
///
/// Errors: `changed`, `quorum-unavailable`. Cancel: nothing is left behind.
async fn matching(state: &AppState, resource: &ResourceName, tags: &[String]) -> Result<Option<String>, Problem> {
    let seen = Box::pin(state.manager.inspect(resource)).await;
    let seen = seen.map_err(|error| problem::no_quorum("If-Match cannot be checked; nothing was done", &error))?;
    match seen.etag() {
        Some(current) if !tags.contains(&current) => Err(problem::changed(resource, &current)),
        present => Ok(present),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a future needs while it is parked, without calling its function.
    fn size_of_future<F: Future>(_: fn(State<AppState>, Request) -> F) -> usize {
        size_of::<F>()
    }

    /// 10,000 waiters are to fit into few megabytes of handlers: the manager's part is boxed and
    /// counted there.
    #[test]
    fn a_parked_acquire_is_small() {
        let size = size_of_future(acquire);
        assert!(size <= 608, "{size} bytes");
    }

    #[test]
    fn only_a_fence_as_it_is_printed_is_a_fence() {
        let tags = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(single_fence(&tags(&["17"])), Some(Fence(17)));
        for other in [&["017"][..], &["+17"], &["abc"], &["17", "18"], &[]] {
            assert_eq!(single_fence(&tags(other)), None, "{other:?}");
        }
    }
}
