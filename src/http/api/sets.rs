//! The handlers of `POST`, `PATCH` and `DELETE /locks`: several resources at once. Parsing is in [`super::set_requests`].

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::async_acquire::{self, AsyncAcquire};
use super::set_requests::{self, AcquireSetFields, ExtendSetFields};
use super::{lock_responses, refusals, set_responses};
use crate::api;
use crate::auth::access_rule::Right;
use crate::auth::quota::QuotaPermit;
use crate::http::access::Access;
use crate::http::format;
use crate::http::middleware::audit::{AuditPart, AuditScope, mode_word};
use crate::http::middleware::metrics::WaitTime;
use crate::http::negotiation::ResponseFormat;
use crate::http::problem::Problem;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;
use crate::manager::PendingSet;
use crate::types::ResourceName;

/// `POST`.
///
/// Cancel (the client disconnected): the manager gives up the queue positions and undoes a grant; there is no await between
/// committing the grant and the answer.
pub(crate) fn acquire(State(state): State<AppState>, request: Request) -> impl Future<Output = Response> + Send {
    let audit_scope = AuditScope::of(&request);
    acquire_in(state, request, audit_scope)
}

async fn acquire_in(state: AppState, request: Request, audit_scope: AuditScope) -> Response {
    // Destructured at once, as for one lock: a variable for the whole would live as long as the request waits.
    let (request, others, format, applied, access, permit) =
        match Box::pin(begin_acquire(&state, request, &audit_scope)).await {
            Ok((AcquireSetFields { request, others, format, applied, .. }, access, permit)) => {
                (request, others, format, applied, access, permit)
            }
            Err(answer) => return *answer,
        };
    let first = request.resource.clone();
    let owner = refusals::asked_owner(&request);
    let watch = state.metrics.watch_acquire_in(request.mode, !request.wait.is_zero());
    let outcome = Box::pin(state.manager.acquire_set(request, &others)).await;
    // Checked before the grant is kept: a grant that joined another owner's lease is undone.
    let other = outcome.as_ref().ok().and_then(|pending| {
        pending.leases().iter().find_map(|lease| Some((lease, refusals::other_owner(lease, owner.as_deref())?)))
    });
    if let Some((lease, problem)) = other {
        watch.ended(Ok(state.measure(lease)));
        return problem.into_response();
    }
    let outcome = outcome.and_then(PendingSet::commit);
    let waited = watch.ended(outcome.as_ref().map(|leases| state.measure_set(leases)));
    let mut response = match outcome {
        Ok(leases) => {
            for lease in &leases {
                if let Some(permit) = &permit {
                    permit.granted(lease.counted(), lease.deadline);
                }
            }
            let waited = leases.first().map(|lease| format::ms(lease.waited));
            audit_scope.split(leases.iter().map(|lease| {
                audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
                let outcome = Some(if lease.replay { "replayed" } else { "granted" }.to_owned());
                AuditPart { outcome, fence: Some(lease.fence.0), ..AuditPart::of(&lease.resource) }
            }));
            leases.first().into_iter().for_each(|lease| audit_scope.mode(lease.mode.wanted()));
            audit_scope.note(|record| record.waited_ms = waited);
            set_responses::acquired(&leases, state.answer_time(), format)
        }
        Err(error) => refusals::acquire(&first, error, &access).into_response(),
    };
    lock_responses::put_preference(&mut response, applied);
    response.extensions_mut().insert(WaitTime(waited));
    response
}

/// Errors: the answer, if the request is refused or asks for a ticket.
async fn begin_acquire(
    state: &AppState,
    request: Request,
    audit_scope: &AuditScope,
) -> Result<(AcquireSetFields, Access, Option<Arc<QuotaPermit>>), Box<Response>> {
    let refused = |problem: Problem| Box::new(problem.into_response());
    let (mut read, access) = Box::pin(read_acquire(state, request, audit_scope)).await.map_err(refused)?;
    let Some(fields) = read.asynchronous.take() else {
        let permit = reserve(state, &mut read, &access).map_err(refused)?;
        return Ok((read, access, permit));
    };
    let (AcquireSetFields { request, others, format, .. }, audit_scope) = (read, audit_scope.clone());
    let asked = AsyncAcquire { request, others, fields, format, access, audit_scope };
    let answer = Box::pin(async_acquire::acquire(state.clone(), asked)).await;
    Err(Box::new(answer.unwrap_or_else(IntoResponse::into_response)))
}

async fn read_acquire(
    state: &AppState,
    request: Request,
    audit_scope: &AuditScope,
) -> Result<(AcquireSetFields, Access), Problem> {
    let access = RequestContext::access(&request);
    let mut fields = set_requests::acquire(request, &state.settings).await?;
    let names = names(&fields);
    let asked = &mut fields.request;
    asked.principal = access.shared_principal();
    audit_scope.split(names.iter().map(AuditPart::of));
    audit_scope.note(|record| {
        record.owner = Some(asked.labels.owner.clone()).filter(|owner| !owner.is_empty());
        record.token_id = asked.token.as_ref().map(|token| token.hash().id().to_string());
    });
    names.iter().try_for_each(|name| access.need(Right::Acquire, name))?;
    Ok((fields, access))
}

fn names(fields: &AcquireSetFields) -> Vec<ResourceName> {
    std::iter::once(&fields.request.resource).chain(&fields.others).cloned().collect()
}

/// The reservation in the principal's quota: that of the queue position that the request takes again, or a new one.
fn reserve(
    state: &AppState,
    fields: &mut AcquireSetFields,
    access: &Access,
) -> Result<Option<Arc<QuotaPermit>>, Problem> {
    let (names, asked) = (names(fields), &mut fields.request);
    let kept = asked.keep.as_ref();
    let kept = kept.and_then(|keep| state.manager.kept_permit(&names, access.principal(), &keep.wait_id));
    let permit = match kept {
        Some(permit) => Some(permit),
        None => access.reserve(&names, asked.token.as_ref(), !asked.wait.is_zero())?.map(Arc::new),
    };
    if let Some(keep) = &mut asked.keep {
        keep.permit.clone_from(&permit);
    }
    Ok(permit)
}

/// `PATCH`. Cancel: each extend may or may not have taken effect.
pub(crate) async fn extend(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope) = (RequestContext::access(&request), AuditScope::of(&request));
    let fields = Box::pin(set_requests::extend(request, &state.settings)).await?;
    let ExtendSetFields { request, resources, format } = fields;
    audit_scope.split(resources.iter().map(AuditPart::of));
    let token_id = request.token.hash().id();
    audit_scope.note(|record| record.token_id = Some(token_id.to_string()));
    resources.iter().try_for_each(|name| access.need(Right::Acquire, name))?;
    let outcomes = Box::pin(state.manager.extend_set(&request, &resources)).await;
    let time = state.answer_time();
    let mut all = Outcomes::default();
    for (resource, outcome) in resources.iter().zip(outcomes) {
        state.metrics.extended(&outcome);
        match outcome {
            Ok(extended) => {
                let lease = &extended.lease;
                access.update_quota(|quotas| quotas.extended((resource, token_id.clone()), lease.deadline));
                let (outcome, fence) = (Some("extended".to_owned()), Some(lease.fence.0));
                let mode = mode_word(lease.mode.wanted());
                all.parts.push(AuditPart { outcome, mode, fence, ..AuditPart::of(resource) });
                all.results.push(set_responses::extended(&extended, time));
            }
            Err(error) => all.refused(resource, refusals::extend(resource, error)),
        }
    }
    all.answer(&audit_scope, format)
}

/// `DELETE`. Cancel: the releases continue in the background.
pub(crate) async fn release(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope) = (RequestContext::access(&request), AuditScope::of(&request));
    let (resources, token, format) = Box::pin(set_requests::release(request, &state.settings)).await?;
    audit_scope.split(resources.iter().map(AuditPart::of));
    let token_id = token.hash().id();
    audit_scope.note(|record| record.token_id = Some(token_id.to_string()));
    resources.iter().try_for_each(|name| access.need(Right::Acquire, name))?;
    let outcomes = Box::pin(state.manager.release_set(&resources, &token)).await;
    let mut all = Outcomes::default();
    for (resource, outcome) in resources.iter().zip(outcomes) {
        state.metrics.released(&outcome);
        match outcome {
            Ok(held) => {
                access.update_quota(|quotas| quotas.ended((resource, token_id.clone())));
                let outcome = Some("released".to_owned());
                let held_ms = held.map(format::ms);
                all.parts.push(AuditPart { outcome, held_ms, ..AuditPart::of(resource) });
                all.results.push(api::SetResult::of(resource.as_str(), StatusCode::NO_CONTENT.as_u16()));
            }
            Err(error) => all.refused(resource, refusals::release(resource, error)),
        }
    }
    all.answer(&audit_scope, format)
}

/// The outcome for each resource.
#[derive(Default)]
struct Outcomes {
    results: Vec<api::SetResult>,
    parts: Vec<AuditPart>,
    /// The problem with the largest status, of the first resource with that status.
    worst: Option<Problem>,
}

impl Outcomes {
    fn refused(&mut self, resource: &ResourceName, problem: Problem) {
        let (slug, status) = (problem.kind().as_str(), problem.status());
        self.results.push(api::SetResult {
            slug: Some(slug.to_owned()),
            reason: problem.reason().map(str::to_owned),
            detail: Some(problem.sentence().to_owned()),
            ..api::SetResult::of(resource.as_str(), status.as_u16())
        });
        let (outcome, reason) = (Some(slug.to_owned()), problem.reason().map(str::to_owned));
        self.parts.push(AuditPart { outcome, reason, ..AuditPart::of(resource) });
        if self.worst.as_ref().is_none_or(|worst| worst.status() < status) {
            self.worst = Some(problem);
        }
    }

    /// 200 if all succeeded; otherwise the largest status, with the result of each.
    fn answer(self, audit_scope: &AuditScope, format: ResponseFormat) -> Result<Response, Problem> {
        audit_scope.split(self.parts.into_iter());
        match self.worst {
            Some(problem) => Err(problem.with(|members| members.results = Some(self.results.into()))),
            None => Ok(set_responses::results(self.results, format)),
        }
    }
}
