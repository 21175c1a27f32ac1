//! `POST /locks/{resource}` and `POST /locks` with `async`: the lease if it can be granted at once, else a ticket.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::lease_fields::AsyncFields;
use super::request_headers::LOCK_TOKEN;
use super::tickets::{callback_refused, document, is_own, json, refused};
use super::{lock_responses, refusals, set_responses};
use crate::api;
use crate::auth::quota::QuotaPermit;
use crate::http::access::Access;
use crate::http::middleware::audit::{AuditPart, AuditScope};
use crate::http::negotiation::ResponseFormat;
use crate::http::path::TICKETS_PREFIX;
use crate::http::problem::Problem;
use crate::http::state::AppState;
use crate::manager::tickets::types::{AskedTerms, FoundTicket, TicketError, TicketRequest};
use crate::manager::types::{AcquireError, AcquireRequest};
use crate::manager::{PendingGrant, PendingSet};
use crate::types::{ResourceName, Token};

/// The fields of an asynchronous acquire.
pub(crate) struct AsyncAcquire {
    /// `wait` is the ticket's wait; `kept_for` is set. For several resources: the request of the first one.
    pub request: AcquireRequest,
    /// The other resources; all are granted together or none.
    pub others: Vec<ResourceName>,
    pub fields: AsyncFields,
    pub format: ResponseFormat,
    pub access: Access,
    pub audit_scope: AuditScope,
}

/// 201 with the lease if the first round grants it, else 202 with a ticket; always 202 if the request names a call-back.
///
/// Cancel: a grant is undone; a ticket that a majority stores ends if no request about it follows.
pub(crate) async fn acquire(state: AppState, asked: AsyncAcquire) -> Result<Response, Problem> {
    let AsyncAcquire { request, others, fields, format, access, audit_scope } = asked;
    let AsyncFields { callback, accept } = fields;
    let callback = callback.map(|address| state.manager.resolve_callback(&address, access.principal()));
    let callback = callback.transpose().map_err(callback_refused)?.map(|callback| (callback, accept));
    let (resource, wait) = (request.resource.clone(), request.wait);
    let keep = request.kept_for.unwrap_or_default();
    let token = request.token.clone().unwrap_or_else(|| state.manager.new_token());
    let names: Vec<ResourceName> = std::iter::once(&resource).chain(&others).cloned().collect();
    if request.token.is_some() {
        // The request was sent before. It counts in no quota: its ticket does.
        match Box::pin(state.manager.find_ticket_of(&names, &token.hash())).await {
            Ok(found) => {
                if !is_own(&state, &found, &access, None) {
                    return Err(Problem::invalid_field("token", "is that of another principal's ticket"));
                }
                if !found.is_for(&names) {
                    return Err(Problem::invalid_field("token", "is that of a ticket for other locks"));
                }
                return Box::pin(made(&state, found, token, format, &audit_scope)).await;
            }
            Err(TicketError::NotFound) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    let permit = access.reserve(&names, request.token.as_ref(), !wait.is_zero())?.map(Arc::new);
    if callback.is_none() {
        let first = AcquireRequest { wait: Duration::ZERO, token: Some(token.clone()), keep: None, ..request.clone() };
        let who = (&access, permit.as_ref());
        let answer = match others.is_empty() {
            true => Box::pin(at_once(&state, first, who, format, &audit_scope)).await?,
            false => Box::pin(set_at_once(&state, first, &others, who, format, &audit_scope)).await?,
        };
        if let Some(answer) = answer {
            return Ok(answer);
        }
    }
    let AcquireRequest { ttl, mode, labels, refuses_deadlock, principal, .. } = request;
    let terms = AskedTerms { ttl, wait, keep, mode, refuses_deadlock };
    let ticket = TicketRequest { resource, others, terms, labels, token: token.clone(), principal, callback, permit };
    let found = Box::pin(state.manager.make_ticket(ticket)).await.map_err(refused)?;
    Box::pin(made(&state, found, token, format, &audit_scope)).await
}

/// 201 if the lease is granted without a wait; `None` if the lock is held.
async fn at_once(
    state: &AppState,
    request: AcquireRequest,
    (access, permit): (&Access, Option<&Arc<QuotaPermit>>),
    format: ResponseFormat,
    audit_scope: &AuditScope,
) -> Result<Option<Response>, Problem> {
    let (resource, owner) = (request.resource.clone(), refusals::asked_owner(&request));
    let watch = state.metrics.watch_acquire_in(request.mode, false);
    let outcome = Box::pin(state.manager.acquire(request)).await.and_then(PendingGrant::commit);
    watch.ended(outcome.as_ref().map(|lease| state.measure(lease)));
    match outcome {
        Ok(lease) => {
            audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
            audit_scope.mode(lease.mode.wanted());
            if let Some(permit) = permit {
                permit.granted(lease.counted(), lease.deadline);
            }
            match refusals::other_owner(&lease, owner.as_deref()) {
                None => Ok(Some(lock_responses::acquired(&lease, state.answer_time(), format))),
                Some(problem) => Err(problem),
            }
        }
        Err(AcquireError::Held(_)) => Ok(None),
        Err(error) => Err(refusals::acquire(&resource, error, access)),
    }
}

/// As [`at_once`], for several resources.
async fn set_at_once(
    state: &AppState,
    request: AcquireRequest,
    others: &[ResourceName],
    (access, permit): (&Access, Option<&Arc<QuotaPermit>>),
    format: ResponseFormat,
    audit_scope: &AuditScope,
) -> Result<Option<Response>, Problem> {
    let (first, owner) = (request.resource.clone(), refusals::asked_owner(&request));
    let watch = state.metrics.watch_acquire_in(request.mode, false);
    let outcome = Box::pin(state.manager.acquire_set(request, others)).await;
    // Checked before the grant is kept: a grant that joined another owner's lease is undone.
    let other = outcome.as_ref().ok().and_then(|pending| {
        pending.leases().iter().find_map(|lease| Some((lease, refusals::other_owner(lease, owner.as_deref())?)))
    });
    if let Some((lease, problem)) = other {
        watch.ended(Ok(state.measure(lease)));
        return Err(problem);
    }
    let outcome = outcome.and_then(PendingSet::commit);
    watch.ended(outcome.as_ref().map(|leases| state.measure_set(leases)));
    match outcome {
        Ok(leases) => {
            leases.iter().for_each(|lease| {
                if let Some(permit) = permit {
                    permit.granted(lease.counted(), lease.deadline);
                }
            });
            audit_scope.split(leases.iter().map(|lease| {
                audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
                let outcome = Some(if lease.replay { "replayed" } else { "granted" }.to_owned());
                AuditPart { outcome, fence: Some(lease.fence.0), ..AuditPart::of(&lease.resource) }
            }));
            leases.first().into_iter().for_each(|lease| audit_scope.mode(lease.mode.wanted()));
            Ok(Some(set_responses::acquired(&leases, state.answer_time(), format)))
        }
        Err(AcquireError::Held(_)) => Ok(None),
        Err(error) => Err(refusals::acquire(&first, error, access)),
    }
}

/// 202 with the token while the ticket waits; 200 in a later state.
async fn made(
    state: &AppState,
    found: FoundTicket,
    token: Token,
    format: ResponseFormat,
    audit_scope: &AuditScope,
) -> Result<Response, Problem> {
    audit_scope.note(|record| {
        record.action = "acquire-async".to_owned();
        record.outcome = found.state().to_owned();
        record.token_id = Some(token.hash().id().to_string());
    });
    let (found, lease) = Box::pin(state.manager.ticket_lease(found)).await.map_err(refused)?;
    let status = if found.state() == "waiting" { StatusCode::ACCEPTED } else { StatusCode::OK };
    let mut body = document(state, &found, lease.as_ref(), true);
    let mut response = match format {
        ResponseFormat::Text => lock_responses::text(status, format!("{}\n", token.reveal())),
        ResponseFormat::Json => {
            body.token = Some(api::TokenText(token.reveal().to_owned()));
            json(status, &body)
        }
    };
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::try_from(format!("{TICKETS_PREFIX}{}", found.id)) {
        headers.insert(header::LOCATION, location);
    }
    if let Ok(mut secret) = HeaderValue::from_str(token.reveal()) {
        secret.set_sensitive(true);
        headers.insert(LOCK_TOKEN, secret);
    }
    Ok(response)
}
