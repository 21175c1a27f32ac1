//! Ending somebody's lease from a page: a page that asks, with the consequences in plain words, and
//! what its form does. Works without script. What is ended is the holder that the operator saw.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};

use super::{form_token, pages, queries};
use crate::http::api::extract::{self, Patch};
use crate::http::api::locks;
use crate::http::api::problem::{self, Problem};
use crate::http::api::problem_kind::ProblemKind;
use crate::http::api::requests::REASON_MAX_BYTES;
use crate::http::middleware::audit::AuditScope;
use crate::http::state::AppState;
use crate::manager::types::{ForceError, ForceMode, ForceRequest};
use crate::types::ResourceName;
use crate::views::confirm::{ConfirmPage, FormError, RejectedForm};
use crate::views::layout::Tab;
use crate::views::lock::CompletedAction;

/// `GET /ui/revoke/{resource}`. Cancel: nothing is left behind.
pub async fn ask_revoke(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    ask(state, request, ForceMode::Revoke).await
}

/// `GET /ui/release/{resource}`. Cancel: nothing is left behind.
pub async fn ask_release(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    ask(state, request, ForceMode::Now).await
}

/// `POST /ui/revoke/{resource}`. Cancel: what was sent to the nodes stays.
pub async fn revoke(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    Box::pin(force(state, request, ForceMode::Revoke)).await
}

/// `POST /ui/release/{resource}`. Cancel: the release goes on in the background.
pub async fn release(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    Box::pin(force(state, request, ForceMode::Now)).await
}

fn prefix(mode: ForceMode) -> &'static str {
    match mode {
        ForceMode::Revoke => "/ui/revoke/",
        ForceMode::Now => "/ui/release/",
    }
}

async fn ask(state: AppState, request: Request, mode: ForceMode) -> Result<Response, Problem> {
    let resource = queries::resource(request.uri(), prefix(mode))?;
    queries::nothing(request.uri())?;
    let (uri, headers) = (request.uri().clone(), request.headers().clone());
    drop(request);
    Box::pin(show(&state, &uri, &headers, mode, &resource, RejectedForm::default(), StatusCode::OK)).await
}

/// The page that asks, about the holder that there is now; with what was wrong with the last answer.
async fn show(
    state: &AppState,
    uri: &Uri,
    headers: &HeaderMap,
    mode: ForceMode,
    resource: &ResourceName,
    answered: RejectedForm,
    status: StatusCode,
) -> Result<Response, Problem> {
    let seen = Box::pin(state.manager.inspect(resource)).await;
    let seen = seen.map_err(|error| problem::no_quorum("nobody can say who holds it", &error))?;
    let is_secure = state.ui.as_ref().is_some_and(|ui| ui.secure_cookies);
    let token = form_token::issue(headers, is_secure);
    let frame = pages::shell(state, Tab::Other, resource.as_str(), uri).without_refresh();
    let page = ConfirmPage::new(frame, mode, &seen, token.text, answered);
    let mut response = pages::html(status, &page)?;
    if let Some(cookie) = token.cookie {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

async fn force(state: AppState, request: Request, mode: ForceMode) -> Result<Response, Problem> {
    let resource = queries::resource(request.uri(), prefix(mode))?;
    let audit_scope = AuditScope::of(&request);
    audit_scope.note(|record| record.resource = Some(resource.to_string()));
    let (parts, mut fields) = extract::fields(request, &state.settings, Patch::No).await?;
    let mut field = |name: &str| fields.text(name).unwrap_or_default();
    let (token, tag, reason, typed) = (field(form_token::NAME), field("tag"), field("reason"), field("name"));
    fields.finish(&[form_token::NAME, "tag", "reason", "name"])?;
    let reason = reason.trim().to_owned();
    locks::note_force(&audit_scope, mode, &reason);
    if !form_token::matches(&parts.headers, &token) {
        let detail = "this form is not one that this browser was given (are cookies off?); nothing was done";
        return Err(Problem::new(ProblemKind::Forbidden, detail));
    }
    let refused = [
        reason.is_empty().then_some(FormError::NoReason),
        (reason.len() > REASON_MAX_BYTES).then_some(FormError::ReasonTooLong(REASON_MAX_BYTES)),
        (mode == ForceMode::Now && typed.trim() != resource.as_str()).then_some(FormError::WrongName),
        tag.is_empty().then_some(FormError::NoTag),
    ];
    let refused: Vec<FormError> = refused.into_iter().flatten().collect();
    // The answer is a page, not a problem: what a problem would be called is noted here.
    let again = async |slug: ProblemKind, refused: Vec<FormError>| {
        audit_scope.note(|record| record.outcome = slug.as_str().to_owned());
        let answered = RejectedForm { tag: tag.clone(), reason: reason.clone(), errors: refused };
        Box::pin(show(&state, &parts.uri, &parts.headers, mode, &resource, answered, slug.status())).await
    };
    if !refused.is_empty() {
        return again(ProblemKind::Invalid, refused).await;
    }
    let request =
        ForceRequest { resource: resource.clone(), mode, reason: reason.clone(), if_match: Some(tag.clone()) };
    match Box::pin(locks::end_by_force(&state, &audit_scope, request)).await {
        Ok(_) => {
            let done = if mode == ForceMode::Now { CompletedAction::Released } else { CompletedAction::Revoked };
            Ok(Redirect::to(&format!("/ui/locks/{resource}?done={}", done.as_str())).into_response())
        }
        Err(ForceError::Changed { .. }) => again(ProblemKind::Changed, vec![FormError::Changed]).await,
        Err(ForceError::NotHeld) => again(ProblemKind::NotHeld, vec![FormError::NotHeld]).await,
        Err(error) => Err(problem::force_refused(&resource, error)),
    }
}
