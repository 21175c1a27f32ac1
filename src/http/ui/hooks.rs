//! The page of targets and hooks, and its forms: a test, and the repetition of messages. Works without scripts.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};

use super::{pages, queries};
use crate::http::api::hooks;
use crate::http::api::request_body::{self, MergePatch};
use crate::http::middleware::audit::AuditScope;
use crate::http::problem::Problem;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;
use crate::pages::hooks::{HooksDone, HooksPage};
use crate::pages::layout::Tab;

pub(super) async fn show(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let done = HooksDone::parse(queries::word(request.uri(), "done", &HooksDone::NAMES)?);
    let layout = pages::layout(&state, Tab::Hooks, "Hooks", request.uri(), &RequestContext::access(&request));
    pages::html(StatusCode::OK, &HooksPage::new(layout, &hooks::status(&state), done))
}

/// `POST /ui/hooks/test`. Cancel: the test may have been received.
pub(super) async fn test(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (name, audit_scope) = read(&state, request, "test").await?;
    let last = state.webhooks.test(&name).await.map_err(hooks::unknown)?;
    audit_scope.note(|record| record.outcome = hooks::outcome(&last).to_owned());
    Ok(back(if last.answer.is_accepted() { HooksDone::Accepted } else { HooksDone::NotAccepted }))
}

/// `POST /ui/hooks/replay`.
pub(super) async fn replay(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (name, audit_scope) = read(&state, request, "replay").await?;
    state.webhooks.replay(&name).map_err(hooks::unknown)?;
    audit_scope.note(|record| record.outcome = "queued".to_owned());
    Ok(back(HooksDone::Replayed))
}

async fn read(state: &AppState, request: Request, action: &str) -> Result<(String, AuditScope), Problem> {
    let audit_scope = AuditScope::of(&request);
    let (_, mut fields) = request_body::fields(request, &state.settings, MergePatch::Refused).await?;
    let name = fields.text("name").unwrap_or_default();
    fields.finish(&["name"])?;
    hooks::note(&audit_scope, action, &name);
    Ok((name, audit_scope))
}

fn back(done: HooksDone) -> Response {
    Redirect::to(&format!("/ui/hooks?done={}", done.as_str())).into_response()
}
