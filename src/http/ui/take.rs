//! Acquires a lock from a page for a limited time, without a process that holds it: the service renews the lease. The user who
//! acquired it may release it; the token is never shown. Works without scripts.

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};

use super::{pages, queries};
use crate::duration::{format_duration, parse_duration};
use crate::http::api::refusals;
use crate::http::api::request_body::{self, MergePatch};
use crate::http::middleware::access::Access;
use crate::http::middleware::audit::AuditScope;
use crate::http::path;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::state::AppState;
use crate::manager::PendingGrant;
use crate::manager::types::{AcquireError, AcquireRequest};
use crate::pages::layout::Tab;
use crate::pages::lock::CompletedAction;
use crate::pages::take::{TakeForm, TakePage};
use crate::types::{Labels, ResourceName, WantedMode};

const TAKE: &str = "/ui/take/";
const GIVE_BACK: &str = "/ui/give-back/";
/// The owner label of what is taken without authentication.
const NOBODY: &str = "dashboard";

/// `GET /ui/take/{resource}`. Cancel: nothing is left behind.
pub(super) async fn ask(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let resource = path::resource_after(request.uri(), TAKE)?;
    queries::nothing(request.uri())?;
    let access = Access::of(&request);
    show(&state, (request.uri(), &access), &resource, TakeForm::default(), StatusCode::OK)
}

fn show(
    state: &AppState,
    (uri, access): (&Uri, &Access),
    resource: &ResourceName,
    form: TakeForm,
    status: StatusCode,
) -> Result<Response, Problem> {
    let layout = pages::layout(state, Tab::Other, resource.as_str(), uri, access).without_refresh();
    pages::html(status, &TakePage::new(layout, resource, &format_duration(state.settings.max_keep), form))
}

/// `POST /ui/take/{resource}`. Cancel: the lease is given back.
pub(super) async fn take(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let resource = path::resource_after(request.uri(), TAKE)?;
    let (audit_scope, access) = (AuditScope::of(&request), Access::of(&request));
    audit_scope.note(|record| {
        record.action = "take".to_owned();
        record.resource = Some(resource.to_string());
    });
    let (parts, mut fields) = request_body::fields(request, &state.settings, MergePatch::Refused).await?;
    let mut field = |name: &str| fields.text(name).unwrap_or_default().trim().to_owned();
    let form = TakeForm { kept_for: field("for"), note: field("note"), errors: Vec::new() };
    fields.finish(&["for", "note"])?;
    let refused = |form: TakeForm, kind: ProblemKind, error: String| {
        audit_scope.note(|record| record.outcome = kind.as_str().to_owned());
        let form = TakeForm { errors: vec![error], ..form };
        show(&state, (&parts.uri, &access), &resource, form, kind.status())
    };
    let wanted = match wanted(&state, &access, &resource, &form) {
        Ok(wanted) => wanted,
        Err(error) => return refused(form, ProblemKind::Invalid, error),
    };
    let permit = access.reserve(std::slice::from_ref(&resource), None, false)?;
    match Box::pin(state.manager.acquire(wanted)).await.and_then(PendingGrant::commit) {
        Ok(lease) => {
            audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
            if let Some(permit) = permit {
                permit.granted(lease.counted(), lease.deadline);
            }
            Ok(Redirect::to(&location(&resource, CompletedAction::Taken)).into_response())
        }
        Err(error @ (AcquireError::Held(_) | AcquireError::WaitTimeout { .. })) => {
            let problem = refusals::acquire(&resource, error, &access);
            refused(form, ProblemKind::Locked, format!("Not taken: {}.", problem.sentence()))
        }
        Err(error) => Err(refusals::acquire(&resource, error, &access)),
    }
}

/// What the form asks for. Errors: the sentence for the page.
fn wanted(
    state: &AppState,
    access: &Access,
    resource: &ResourceName,
    form: &TakeForm,
) -> Result<AcquireRequest, String> {
    let settings = &state.settings;
    let range = settings.keep_range();
    let kept_for = parse_duration(&form.kept_for).map_err(|invalid| format!("For how long: {}.", invalid.0))?;
    if !range.contains(&kept_for) {
        let (least, most) = (format_duration(*range.start()), format_duration(*range.end()));
        return Err(format!("For how long: from {least} to {most}."));
    }
    let owner = access.principal().map_or_else(|| NOBODY.to_owned(), |principal| principal.name.to_string());
    let labels = Labels { owner, note: form.note.clone(), ..Labels::default() };
    labels.check().map_err(|(field, invalid)| format!("The {field}: {}.", invalid.0))?;
    let ttl = settings.kept_ttl(None, kept_for);
    let (resource, principal, kept_for) = (resource.clone(), access.shared_principal(), Some(kept_for));
    let wait = std::time::Duration::ZERO;
    Ok(AcquireRequest {
        resource,
        mode: WantedMode::Exclusive,
        ttl,
        wait,
        kept_for,
        labels,
        token: None,
        refuses_deadlock: false,
        principal,
        keep: None,
    })
}

/// `POST /ui/give-back/{resource}`: of a lease that the same principal acquired and the service keeps. Cancel: the release
/// continues in the background.
pub(super) async fn give_back(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let resource = path::resource_after(request.uri(), GIVE_BACK)?;
    let (audit_scope, access) = (AuditScope::of(&request), Access::of(&request));
    audit_scope.note(|record| {
        record.action = "give-back".to_owned();
        record.resource = Some(resource.to_string());
    });
    let (_, mut fields) = request_body::fields(request, &state.settings, MergePatch::Refused).await?;
    // A page of another site can place one click of a user here, and not two in different places.
    if fields.text("sure").as_deref() != Some("yes") {
        fields.wrong("sure", "must be yes: tick the box first");
    }
    fields.finish(&["sure"])?;
    let ended = Box::pin(state.manager.give_back(&resource, access.principal())).await;
    let held = ended.map_err(|error| refusals::release(&resource, error))?;
    access.update_quota(|quotas| quotas.ended(&resource));
    audit_scope.note(|record| {
        record.outcome = "released".to_owned();
        record.held_ms = held.map(crate::http::format::ms);
    });
    Ok(Redirect::to(&location(&resource, CompletedAction::GivenBack)).into_response())
}

fn location(resource: &ResourceName, done: CompletedAction) -> String {
    format!("/ui/locks/{resource}?done={}", done.as_str())
}
