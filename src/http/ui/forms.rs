//! Ending another client's lease from a page: a confirmation page that states the consequences, and its form. Works without
//! scripts. The form names the holder that the operator saw, and ends no other lease.

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};

use super::{pages, queries};
use crate::http::access::Access;
use crate::http::api::lock_requests::REASON_MAX_BYTES;
use crate::http::api::request_body::{self, MergePatch};
use crate::http::api::{force, refusals};
use crate::http::middleware::audit::AuditScope;
use crate::http::path;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;
use crate::manager::types::{ForceError, ForceMode, ForceRequest};
use crate::pages::confirm::{ConfirmPage, FormError, RejectedForm};
use crate::pages::layout::Tab;
use crate::pages::lock::CompletedAction;
use crate::types::ResourceName;

/// `GET /ui/revoke/{resource}`. Cancel: nothing is left behind.
pub(super) async fn confirm_revoke(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    confirm(state, request, ForceMode::Revoke).await
}

/// `GET /ui/release/{resource}`. Cancel: nothing is left behind.
pub(super) async fn confirm_release(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    confirm(state, request, ForceMode::Now).await
}

/// `POST /ui/revoke/{resource}`. Cancel: requests sent to the nodes stay in effect.
pub(super) async fn revoke(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    Box::pin(submit(state, request, ForceMode::Revoke)).await
}

/// `POST /ui/release/{resource}`. Cancel: the release continues in the background.
pub(super) async fn release(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    Box::pin(submit(state, request, ForceMode::Now)).await
}

fn prefix(mode: ForceMode) -> &'static str {
    match mode {
        ForceMode::Revoke => "/ui/revoke/",
        ForceMode::Now => "/ui/release/",
    }
}

async fn confirm(state: AppState, request: Request, mode: ForceMode) -> Result<Response, Problem> {
    let resource = path::resource_after(request.uri(), prefix(mode))?;
    let lease = queries::lease(request.uri())?;
    let uri = request.uri().clone();
    let access = RequestContext::access(&request);
    drop(request);
    let form = RejectedForm { lease, ..RejectedForm::default() };
    Box::pin(show(&state, (&uri, &access), mode, &resource, form, StatusCode::OK)).await
}

/// The confirmation page about the present holder, with the errors of a rejected form.
async fn show(
    state: &AppState,
    (uri, access): (&Uri, &Access),
    mode: ForceMode,
    resource: &ResourceName,
    rejected: RejectedForm,
    status: StatusCode,
) -> Result<Response, Problem> {
    let inspection = Box::pin(state.manager.inspect(resource)).await;
    let inspection = inspection.map_err(|error| refusals::unknown(refusals::HOLDER_UNKNOWN, &error))?;
    let layout = pages::layout(state, Tab::Other, resource.as_str(), uri, access).without_refresh();
    let page = ConfirmPage::new(layout, mode, &inspection, rejected);
    pages::html(status, &page.naming_principals(|principal| pages::principal_name(state, principal)))
}

/// The fields of the form.
struct ForceForm {
    tag: String,
    reason: String,
    typed_name: String,
    principal: Option<String>,
}

impl ForceForm {
    fn errors(&self, mode: ForceMode, resource: &ResourceName) -> Vec<FormError> {
        let is_other = mode == ForceMode::Now && self.typed_name.trim() != resource.as_str();
        let errors = [
            self.reason.is_empty().then_some(FormError::NoReason),
            (self.reason.len() > REASON_MAX_BYTES).then_some(FormError::ReasonTooLong(REASON_MAX_BYTES)),
            is_other.then_some(FormError::WrongName),
            self.tag.is_empty().then_some(FormError::NoTag),
        ];
        errors.into_iter().flatten().collect()
    }
}

async fn submit(state: AppState, request: Request, mode: ForceMode) -> Result<Response, Problem> {
    let resource = path::resource_after(request.uri(), prefix(mode))?;
    let audit_scope = AuditScope::of(&request);
    let access = RequestContext::access(&request);
    let principal = access.principal().map(|principal| principal.name.to_string());
    audit_scope.note(|record| record.resource = Some(resource.to_string()));
    let (parts, mut fields) = request_body::fields(request, &state.settings, MergePatch::Refused).await?;
    let mut field = |name: &str| fields.text(name).unwrap_or_default();
    let (tag, reason, typed_name) = (field("tag"), field("reason").trim().to_owned(), field("name"));
    fields.finish(&["tag", "reason", "name"])?;
    force::note(&audit_scope, mode, &reason);
    let form = ForceForm { tag, reason, typed_name, principal };
    let (kind, errors) = match form.errors(mode, &resource) {
        errors if !errors.is_empty() => (ProblemKind::Invalid, errors),
        _ => match Box::pin(execute(&state, &audit_scope, &resource, mode, &form)).await {
            Ok(done) => return Ok(done),
            Err(ForceError::Changed { .. }) => (ProblemKind::Changed, vec![FormError::Changed]),
            Err(ForceError::NotHeld) => (ProblemKind::NotHeld, vec![FormError::NotHeld]),
            Err(error) => return Err(refusals::force(&resource, error)),
        },
    };
    // The answer is a page, so the audit log gets the problem's name from here.
    audit_scope.note(|record| record.outcome = kind.as_str().to_owned());
    let rejected = RejectedForm { lease: None, tag: form.tag, reason: form.reason, errors };
    Box::pin(show(&state, (&parts.uri, &access), mode, &resource, rejected, kind.status())).await
}

/// Ends the lease and redirects to the lock's page.
async fn execute(
    state: &AppState,
    audit_scope: &AuditScope,
    resource: &ResourceName,
    mode: ForceMode,
    form: &ForceForm,
) -> Result<Response, ForceError> {
    let (resource, reason, if_match) = (resource.clone(), form.reason.clone(), Some(form.tag.clone()));
    let principal = form.principal.clone();
    let done = if mode == ForceMode::Now { CompletedAction::Released } else { CompletedAction::Revoked };
    let location = format!("/ui/locks/{resource}?done={}", done.as_str());
    // Each of several holders has its fence as its tag, so the tag also selects the holder.
    let request = ForceRequest { resource, mode, reason, principal, holder: None, if_match };
    force::end_lease(state, audit_scope, request).await?;
    Ok(Redirect::to(&location).into_response())
}
