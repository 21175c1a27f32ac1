//! The handlers of tickets: `POST /locks/{resource}` with `async`, and `/tickets/{id}`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::lease_fields::{self, AsyncFields};
use super::lock_requests::BOTH;
use super::request_body::{self, LOCK_TOKEN, MergePatch};
use super::request_fields::Fields;
use super::{lock_responses, refusals};
use crate::api;
use crate::auth::access_rule::Right;
use crate::auth::quota::QuotaPermit;
use crate::duration::format_duration;
use crate::http::format;
use crate::http::middleware::access::Access;
use crate::http::middleware::audit::AuditScope;
use crate::http::negotiation::ResponseFormat;
use crate::http::path::TICKETS_PREFIX;
use crate::http::problem::{Problem, RETRY_AFTER_MAX};
use crate::http::problem_kind::ProblemKind;
use crate::http::state::{AppState, HttpSettings};
use crate::manager::PendingGrant;
use crate::manager::callbacks::CallbackRefused;
use crate::manager::tickets::types::{AskedTerms, FoundTicket, TicketError, TicketLease, TicketRequest};
use crate::manager::types::{AcquireError, AcquireRequest};
use crate::protocol::TicketId;
use crate::types::Token;

/// What an asynchronous acquire has beside its parameters.
pub(crate) struct AsyncAcquire {
    /// `wait` is that of the ticket; it has a `kept_for`.
    pub request: AcquireRequest,
    pub fields: AsyncFields,
    pub format: ResponseFormat,
    pub access: Access,
    pub permit: Option<Arc<QuotaPermit>>,
    pub audit_scope: AuditScope,
}

/// 201 with the lease where it is granted in the first round, else 202 with a ticket; always 202 where somebody is to be called.
///
/// Cancel: what was granted is undone; a ticket that a majority stores ends if no request about it follows.
pub(crate) async fn acquire(state: AppState, asked: AsyncAcquire) -> Result<Response, Problem> {
    let AsyncAcquire { request, fields, format, access, permit, audit_scope } = asked;
    let AsyncFields { callback, accept } = fields;
    let callback = callback.map(|address| state.manager.resolve_callback(&address, access.principal()));
    let callback = callback.transpose().map_err(callback_refused)?.map(|callback| (callback, accept));
    let (resource, wait) = (request.resource.clone(), request.wait);
    let keep = request.kept_for.unwrap_or_default();
    let token = request.token.clone().unwrap_or_else(|| state.manager.new_token());
    if request.token.is_some() {
        // The same request again.
        match Box::pin(state.manager.find_ticket_of(&resource, &token.hash())).await {
            Ok(found) => {
                if !is_own(&state, &found, &access, None) {
                    return Err(Problem::invalid_field("token", "is that of another principal's ticket"));
                }
                return Box::pin(made(&state, found, token, format, &audit_scope)).await;
            }
            Err(TicketError::NotFound) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    if callback.is_none() {
        let first = AcquireRequest { wait: Duration::ZERO, token: Some(token.clone()), keep: None, ..request.clone() };
        if let Some(answer) = at_once(&state, first, (&access, permit.as_ref()), format, &audit_scope).await? {
            return Ok(answer);
        }
    }
    let AcquireRequest { ttl, mode, labels, refuses_deadlock, principal, .. } = request;
    let terms = AskedTerms { ttl, wait, keep, mode, refuses_deadlock };
    let ticket = TicketRequest { resource, terms, labels, token: token.clone(), principal, callback, permit };
    let found = Box::pin(state.manager.make_ticket(ticket)).await.map_err(refused)?;
    Box::pin(made(&state, found, token, format, &audit_scope)).await
}

/// 201 where it is granted without a wait; `None` where the lock is held.
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

/// 202 while it waits, with its token; 200 if it is further already.
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

/// `GET`. A request that waits keeps the ticket's place in the queue, however it ends.
///
/// Cancel: the ticket stays as it is.
pub(crate) async fn show(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, id) = (Access::of(&request), id(&request)?);
    let format = request_body::accepted(request.headers(), &BOTH)?;
    let token = request_body::lock_token(request.headers())?;
    let wait = wait(&request, &state.settings)?;
    drop(request);
    let until = state.manager.now().plus(wait);
    let found = Box::pin(state.manager.find_ticket(&id)).await.map_err(refused)?;
    let is_own = is_own(&state, &found, &access, token.as_ref());
    if !is_own && !access.may(Right::Read, &found.ticket.resource) {
        return Err(no_such_ticket());
    }
    let found = match is_own {
        true => Box::pin(state.manager.await_ticket(found, until)).await.map_err(refused)?,
        false => found,
    };
    let found = match is_own {
        true => Box::pin(state.manager.accept_ticket(found)).await.map_err(refused)?,
        false => found,
    };
    let (found, lease) = Box::pin(state.manager.ticket_lease(found)).await.map_err(refused)?;
    Ok(answer(&document(&state, &found, lease.as_ref(), is_own), format))
}

/// `PATCH`: another end of its lease. Cancel: it may or may not have taken effect.
pub(crate) async fn keep(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope, id) = (Access::of(&request), AuditScope::of(&request), id(&request)?);
    let format = request_body::accepted(request.headers(), &BOTH)?;
    let (token, kept_for) = read_keep(request, &state.settings).await?;
    let found = Box::pin(state.manager.find_ticket(&id)).await.map_err(refused)?;
    changeable(&state, &found, &access, token.as_ref(), &audit_scope)?;
    Box::pin(state.manager.keep_ticket(&found, kept_for)).await.map_err(refused)?;
    let (found, lease) = Box::pin(state.manager.ticket_lease(found)).await.map_err(refused)?;
    audit_scope.note(|record| record.outcome = "extended".to_owned());
    Ok(answer(&document(&state, &found, lease.as_ref(), true), format))
}

/// Parses `PATCH`: the token, if there is one, and for how long from now on the lease is to be kept.
///
/// Errors: `invalid`, `keep-too-long`, those of the body. Cancel: nothing is left behind.
pub(crate) async fn read_keep(request: Request, settings: &HttpSettings) -> Result<(Option<Token>, Duration), Problem> {
    let (parts, mut fields) = request_body::fields(request, settings, MergePatch::Accepted).await?;
    let token = request_body::lock_token(&parts.headers)?;
    let kept_for = lease_fields::kept_for(&mut fields, settings)?;
    if kept_for.is_none() {
        fields.wrong("keep", "is required: for how long from now on the lease is to be kept");
    }
    fields.finish(&["keep"])?;
    Ok((token, kept_for.unwrap_or_default()))
}

/// `DELETE`: gives it up while it waits, else releases its lease. Cancel: it ends all the same.
pub(crate) async fn end(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope, id) = (Access::of(&request), AuditScope::of(&request), id(&request)?);
    let token = request_body::lock_token(request.headers())?;
    Fields::of_query(request.uri())?.finish(&[])?;
    drop(request);
    let found = Box::pin(state.manager.find_ticket(&id)).await.map_err(refused)?;
    let is_own = changeable(&state, &found, &access, token.as_ref(), &audit_scope)?;
    let end = Box::pin(state.manager.end_ticket(&found, !is_own)).await.map_err(refused)?;
    access.update_quota(|quotas| quotas.ended(&found.ticket.resource));
    audit_scope.note(|record| record.outcome = end.as_str().to_owned());
    Ok(lock_responses::released())
}

fn id(request: &Request) -> Result<TicketId, Problem> {
    let text = request.uri().path().strip_prefix(TICKETS_PREFIX).unwrap_or_default();
    TicketId::parse(text).ok_or_else(no_such_ticket)
}

fn wait(request: &Request, settings: &HttpSettings) -> Result<Duration, Problem> {
    let mut fields = Fields::of_query(request.uri())?;
    let wait = fields.duration("wait");
    if wait.is_some_and(|wait| wait > settings.max_wait) {
        fields.wrong("wait", format!("must be at most {}", format_duration(settings.max_wait)));
    }
    fields.finish(&["wait"])?;
    let preferred = request_body::preferred_wait(request.headers()).map(|wait| wait.min(settings.max_wait));
    Ok(wait.or(preferred).unwrap_or_default())
}

/// Whether the request has the ticket's token, or comes from the principal that made it.
fn is_own(state: &AppState, found: &FoundTicket, access: &Access, token: Option<&Token>) -> bool {
    token.is_some_and(|token| found.is_of(&token.hash())) || state.manager.has_made(found, access.principal())
}

/// Whether the ticket is the client's own; otherwise it has the right to end other clients' leases.
///
/// Errors: `not-found`, `forbidden`.
fn changeable(
    state: &AppState,
    found: &FoundTicket,
    access: &Access,
    token: Option<&Token>,
    audit_scope: &AuditScope,
) -> Result<bool, Problem> {
    let resource = &found.ticket.resource;
    audit_scope.note(|record| {
        record.resource = Some(resource.to_string());
        record.token_id = Some(found.ticket.token.id().to_string());
    });
    match is_own(state, found, access, token) {
        true => Ok(true),
        false if access.may(Right::Force, resource) => Ok(false),
        false if access.may(Right::Read, resource) => access.need(Right::Force, resource).map(|()| false),
        false => Err(no_such_ticket()),
    }
}

fn no_such_ticket() -> Problem {
    Problem::new(ProblemKind::NotFound, "there is no such ticket, or it is another principal's, or it ended long ago")
}

/// Which error becomes which problem.
fn refused(error: TicketError) -> Problem {
    match error {
        TicketError::NotFound => no_such_ticket(),
        TicketError::Waiting => {
            Problem::new(ProblemKind::TicketWaiting, "the ticket is still waiting: it has no lease that could be kept")
        }
        TicketError::Over(end) => {
            let detail = format!("the ticket is over: {}", end.as_str());
            Problem::new(ProblemKind::TicketEnded, detail).with(|m| m.ended_by = Some(end.as_str().to_owned()))
        }
        TicketError::TooMany(limit) => {
            Problem::new(ProblemKind::TooManyWaiters, format!("{limit} tickets or requests already wait, the maximum"))
                .with(|m| {
                    m.limit = Some(limit);
                    m.scope = Some("instance".to_owned());
                })
                .retry_after(Duration::from_secs(RETRY_AFTER_MAX))
        }
        TicketError::Draining => refusals::draining(),
        TicketError::Callback(refused) => callback_refused(refused),
        TicketError::NoQuorum(error) => refusals::no_quorum("the ticket is not known", &error),
        TicketError::Keep(error) => refusals::keep(error),
    }
}

/// The problem of an address for call-backs, which it does not repeat.
fn callback_refused(refused: CallbackRefused) -> Problem {
    match refused {
        CallbackRefused::Invalid(invalid) => Problem::invalid_field("callback", invalid.0),
        CallbackRefused::NotAllowed(why) => Problem::new(ProblemKind::CallbackNotAllowed, why),
    }
}

fn document(state: &AppState, found: &FoundTicket, lease: Option<&TicketLease>, is_own: bool) -> api::Ticket {
    let (ticket, head) = (&found.ticket, found.head);
    let labels = lease.map_or(&ticket.body.labels, |lease| &lease.labels);
    let is_waiting = found.state() == "waiting";
    api::Ticket {
        ticket: found.id.to_string(),
        token: None,
        token_id: ticket.token.id().to_string(),
        resource: ticket.resource.to_string(),
        state: found.state().to_owned(),
        ended_by: head.end.filter(|_| found.is_over()).map(|end| end.as_str().to_owned()),
        position: is_waiting.then(|| state.manager.ticket_position(found)).flatten(),
        owner: is_own.then(|| labels.owner.clone()),
        note: is_own.then(|| labels.note.clone()),
        metadata: is_own.then(|| labels.metadata.clone()),
        made_at: format::time(ticket.body.made_ms),
        expires_at: is_waiting.then(|| format::time(ticket.body.wait_until_ms)),
        fence: lease.map(|lease| lease.fence.0).or((head.fence.0 > 0).then_some(head.fence.0)),
        valid_for_ms: lease.map(|lease| format::ms(lease.valid_for)),
        kept_until: lease.map(|lease| format::time(lease.kept_until_ms)),
        kept_for_ms: lease.map(|lease| format::ms(lease.kept_for)),
    }
}

fn json(status: StatusCode, body: &api::Ticket) -> Response {
    let text = serde_json::to_string(body).expect("answers are plain data") + "\n";
    (status, [(CONTENT_TYPE, "application/json")], text).into_response()
}

fn answer(body: &api::Ticket, format: ResponseFormat) -> Response {
    if format == ResponseFormat::Json {
        return json(StatusCode::OK, body);
    }
    let number = |n: Option<u64>| n.map(|n| n.to_string());
    let pairs = [
        ("ticket", Some(body.ticket.clone())),
        ("resource", Some(body.resource.clone())),
        ("state", Some(body.state.clone())),
        ("ended_by", body.ended_by.clone()),
        ("position", body.position.map(|n| n.to_string())),
        ("token_id", Some(body.token_id.clone())),
        ("owner", body.owner.clone()),
        ("note", body.note.clone()),
        ("made_at", Some(body.made_at.clone())),
        ("expires_at", body.expires_at.clone()),
        ("fence", number(body.fence)),
        ("valid_for_ms", number(body.valid_for_ms)),
        ("kept_until", body.kept_until.clone()),
        ("kept_for_ms", number(body.kept_for_ms)),
    ];
    let known = pairs.into_iter().filter_map(|(key, value)| Some((key, value?)));
    lock_responses::text(StatusCode::OK, format::lines(known))
}
