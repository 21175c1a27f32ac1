//! The handlers of `/tickets/{id}`. [`super::async_acquire`] makes tickets.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::lease_fields;
use super::lock_requests::BOTH;
use super::request_body::{self, MergePatch};
use super::request_fields::Fields;
use super::request_headers;
use super::{lock_responses, refusals};
use crate::api;
use crate::auth::access_rule::Right;
use crate::duration::format_duration;
use crate::http::access::Access;
use crate::http::format;
use crate::http::middleware::audit::{AuditPart, AuditScope};
use crate::http::negotiation::ResponseFormat;
use crate::http::path::TICKETS_PREFIX;
use crate::http::problem::{Problem, RETRY_AFTER_MAX};
use crate::http::problem_kind::ProblemKind;
use crate::http::request_context::RequestContext;
use crate::http::state::{AppState, HttpSettings};
use crate::manager::callbacks::CallbackRefused;
use crate::manager::tickets::types::{FoundTicket, TicketError, TicketLease};
use crate::manager::types::{ForceMode, Forced};
use crate::protocol::{TICKET_MAX_BYTES, TicketEnd, TicketId};
use crate::types::{PermitLimit, Token};

/// `GET`. A waiting request keeps the ticket's place in the queue, however the request ends.
///
/// Cancel: the ticket stays as it is.
pub(crate) async fn show(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, id) = (RequestContext::access(&request), id(&request)?);
    let format = request_headers::accepted(request.headers(), &BOTH)?;
    let token = request_headers::lock_token(request.headers())?;
    let wait = wait(&request, &state.settings)?;
    drop(request);
    let _permit = if wait.is_zero() { None } else { access.reserve_poll()? };
    let until = state.manager.now().plus(wait);
    let found = Box::pin(state.manager.find_ticket(&id)).await.map_err(refused)?;
    let is_own = is_own(&state, &found, &access, token.as_ref());
    if !is_own && !may_all(&access, Right::Read, &found) {
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

/// `PATCH`: sets a new end of the lease; this also accepts an offered grant. Cancel: it may or may not have taken effect.
pub(crate) async fn keep(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope, id) = (RequestContext::access(&request), AuditScope::of(&request), id(&request)?);
    let format = request_headers::accepted(request.headers(), &BOTH)?;
    let (token, kept_for) = read_keep(request, &state.settings).await?;
    let found = Box::pin(state.manager.find_ticket(&id)).await.map_err(refused)?;
    let is_own = changeable(&state, &found, &access, token.as_ref(), &audit_scope)?;
    Box::pin(state.manager.keep_ticket(&found, kept_for, is_own)).await.map_err(refused)?;
    // The ticket's state may have changed.
    let found = Box::pin(state.manager.find_ticket(&id)).await.map_err(refused)?;
    let (found, lease) = Box::pin(state.manager.ticket_lease(found)).await.map_err(refused)?;
    audit_scope.note(|record| record.outcome = "extended".to_owned());
    Ok(answer(&document(&state, &found, lease.as_ref(), true), format))
}

/// Parses `PATCH`: the token, if there is one, and for how long from now the lease is kept.
///
/// Errors: `invalid`, `keep-too-long`, those of the body. Cancel: nothing is left behind.
pub(crate) async fn read_keep(request: Request, settings: &HttpSettings) -> Result<(Option<Token>, Duration), Problem> {
    let (parts, mut fields) = request_body::fields(request, settings, MergePatch::Accepted).await?;
    let token = request_headers::lock_token(&parts.headers)?;
    let kept_for = lease_fields::kept_for(&mut fields, settings)?;
    if kept_for.is_none() {
        fields.wrong("keep", "is required: for how long from now on the lease is to be kept");
    }
    fields.finish(&["keep"])?;
    Ok((token, kept_for.unwrap_or_default()))
}

/// `DELETE`: gives up a waiting ticket, else releases its lease. Cancel: the ticket ends nevertheless.
pub(crate) async fn end(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (access, audit_scope, id) = (RequestContext::access(&request), AuditScope::of(&request), id(&request)?);
    let token = request_headers::lock_token(request.headers())?;
    Fields::of_query(request.uri())?.finish(&[])?;
    drop(request);
    let found = Box::pin(state.manager.find_ticket(&id)).await.map_err(refused)?;
    let is_own = changeable(&state, &found, &access, token.as_ref(), &audit_scope)?;
    let end = Box::pin(state.manager.end_ticket(&found, !is_own)).await.map_err(refused)?;
    let token_id = found.ticket.token.id();
    if end == TicketEnd::Forced {
        let names: Vec<String> = found.ticket.resources().map(ToString::to_string).collect();
        let (principal, owner) =
            (access.principal().map(|principal| principal.name.to_string()), found.ticket.body.labels.owner.as_str());
        tracing::warn!(ticket = %found.id, resources = ?names, owner, principal, "a lease was ended by force through its ticket");
        found.ticket.resources().for_each(|_| state.metrics.forced(ForceMode::Now, Ok(&Forced::Freed)));
    }
    for resource in found.ticket.resources() {
        access.update_quota(|quotas| quotas.ended((resource, token_id.clone())));
    }
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
    let preferred = request_headers::preferred_wait(request.headers()).map(|wait| wait.min(settings.max_wait));
    Ok(wait.or(preferred).unwrap_or_default())
}

/// Whether the request has the ticket's token, or comes from the principal that created the ticket.
pub(super) fn is_own(state: &AppState, found: &FoundTicket, access: &Access, token: Option<&Token>) -> bool {
    token.is_some_and(|token| found.is_of(&token.hash())) || state.manager.has_made(found, access.owner())
}

/// Whether the ticket is the client's own; if not, the client has the right to end other clients' leases.
///
/// Errors: `not-found`, `forbidden`.
fn changeable(
    state: &AppState,
    found: &FoundTicket,
    access: &Access,
    token: Option<&Token>,
    audit_scope: &AuditScope,
) -> Result<bool, Problem> {
    let ticket = &found.ticket;
    match ticket.others.is_empty() {
        true => audit_scope.note(|record| record.resource = Some(ticket.resource.to_string())),
        false => audit_scope.split(ticket.resources().map(AuditPart::of)),
    }
    audit_scope.note(|record| record.token_id = Some(ticket.token.id().to_string()));
    match is_own(state, found, access, token) {
        true => need_acquire(access, found).map(|()| true),
        false if may_all(access, Right::Force, found) => Ok(false),
        false if may_all(access, Right::Read, found) => {
            ticket.resources().try_for_each(|name| access.need(Right::Force, name)).map(|()| false)
        }
        false => Err(no_such_ticket()),
    }
}

/// The secret alone does not permit a change, as with a lock: the principal's rule may have been removed.
fn need_acquire(access: &Access, found: &FoundTicket) -> Result<(), Problem> {
    found.ticket.resources().try_for_each(|name| access.need(Right::Acquire, name))
}

fn may_all(access: &Access, right: Right, found: &FoundTicket) -> bool {
    found.ticket.resources().all(|name| access.may(right, name))
}

fn no_such_ticket() -> Problem {
    Problem::new(ProblemKind::NotFound, "there is no such ticket, or it is another principal's, or it ended long ago")
}

/// Which error becomes which problem.
pub(super) fn refused(error: TicketError) -> Problem {
    match error {
        TicketError::NotFound => no_such_ticket(),
        TicketError::Waiting => {
            Problem::new(ProblemKind::TicketWaiting, "the ticket is still waiting: it has no lease that could be kept")
        }
        TicketError::Over(end) => {
            let detail = format!("the ticket is over: {}", end.as_str());
            Problem::new(ProblemKind::TicketEnded, detail).with(|m| m.ended_by = Some(end.as_str().to_owned()))
        }
        TicketError::TooLarge { field, bytes } => Problem::invalid_field(
            field,
            format!(
                "is too long: names, labels and call-back would take {bytes} bytes, the maximum is {TICKET_MAX_BYTES}"
            ),
        ),
        TicketError::TooMany { limit, per_resource } => {
            let scope = if per_resource { "resource" } else { "instance" };
            let detail =
                format!("{limit} tickets or requests already wait, or have not ended, the maximum per {scope}");
            Problem::new(ProblemKind::TooManyWaiters, detail)
                .with(|m| {
                    m.limit = Some(limit);
                    m.scope = Some(scope.to_owned());
                })
                .retry_after(Duration::from_secs(RETRY_AFTER_MAX))
        }
        TicketError::Draining => refusals::draining(),
        TicketError::Callback(refused) => callback_refused(refused),
        TicketError::NoQuorum(error) => refusals::unanswered("the ticket is not known", &error),
        TicketError::Keep(error) => refusals::keep(error),
    }
}

/// The problem of a refused call-back address. It does not repeat the address.
pub(super) fn callback_refused(refused: CallbackRefused) -> Problem {
    match refused {
        CallbackRefused::Invalid(invalid) => Problem::invalid_field("callback", invalid.0),
        CallbackRefused::NotAllowed(why) => Problem::new(ProblemKind::CallbackNotAllowed, why),
    }
}

pub(super) fn document(
    state: &AppState,
    found: &FoundTicket,
    lease: Option<&TicketLease>,
    is_own: bool,
) -> api::TicketStatus {
    let (ticket, head) = (&found.ticket, found.head);
    let labels = lease.map_or(&ticket.body.labels, |lease| &lease.labels);
    let (is_waiting, has_several) = (found.state() == "waiting", !ticket.others.is_empty());
    let known = lease.and_then(|lease| lease.fences.first()).copied().or((head.fence.0 > 0).then_some(head.fence));
    let each = |lease: &TicketLease| {
        let each = ticket.resources().zip(&lease.fences);
        each.map(|(name, fence)| api::TicketFence { resource: name.to_string(), fence: fence.0 }).collect()
    };
    api::TicketStatus {
        ticket: found.id.to_string(),
        token: None,
        token_id: ticket.token.id().to_string(),
        resource: (!has_several).then(|| ticket.resource.to_string()),
        resources: has_several.then(|| ticket.resources().map(ToString::to_string).collect()),
        mode: ticket.mode.as_str().to_owned(),
        limit: ticket.mode.limit().map(PermitLimit::get),
        slot: lease.and_then(|lease| lease.slot),
        state: found.state().to_owned(),
        ended_by: head.end.filter(|_| found.is_over()).map(|end| end.as_str().to_owned()),
        position: is_waiting.then(|| state.manager.ticket_position(found)).flatten(),
        owner: is_own.then(|| labels.owner.clone()),
        note: is_own.then(|| labels.note.clone()),
        metadata: is_own.then(|| labels.metadata.clone()),
        made_at: format::time(ticket.body.made_ms),
        expires_at: is_waiting.then(|| format::time(ticket.body.wait_until_ms)),
        fence: known.filter(|_| !has_several).map(|fence| fence.0),
        leases: lease.filter(|_| has_several).map(each),
        valid_for_ms: lease.map(|lease| format::ms(lease.valid_for)),
        kept_until: lease.map(|lease| format::time(lease.kept_until_ms)),
        kept_for_ms: lease.map(|lease| format::ms(lease.kept_for)),
    }
}

pub(super) fn json(status: StatusCode, body: &api::TicketStatus) -> Response {
    let text = serde_json::to_string(body).expect("answers are plain data") + "\n";
    (status, [(CONTENT_TYPE, "application/json")], text).into_response()
}

fn answer(body: &api::TicketStatus, format: ResponseFormat) -> Response {
    if format == ResponseFormat::Json {
        return json(StatusCode::OK, body);
    }
    let number = |n: Option<u64>| n.map(|n| n.to_string());
    let pairs = [
        ("ticket", Some(body.ticket.clone())),
        ("resource", body.resource.clone()),
        ("resources", body.resources.as_ref().map(|names| names.join(" "))),
        ("mode", Some(body.mode.clone())),
        ("limit", body.limit.map(|n| n.to_string())),
        ("slot", body.slot.map(|n| n.to_string())),
        ("state", Some(body.state.clone())),
        ("ended_by", body.ended_by.clone()),
        ("position", body.position.map(|n| n.to_string())),
        ("token_id", Some(body.token_id.clone())),
        ("owner", body.owner.clone()),
        ("note", body.note.clone()),
        ("made_at", Some(body.made_at.clone())),
        ("expires_at", body.expires_at.clone()),
        ("fence", number(body.fence)),
        (
            "fences",
            body.leases.as_ref().map(|all| all.iter().map(|one| one.fence.to_string()).collect::<Vec<_>>().join(" ")),
        ),
        ("valid_for_ms", number(body.valid_for_ms)),
        ("kept_until", body.kept_until.clone()),
        ("kept_for_ms", number(body.kept_for_ms)),
    ];
    let known = pairs.into_iter().filter_map(|(key, value)| Some((key, value?)));
    lock_responses::text(StatusCode::OK, format::lines(known))
}
