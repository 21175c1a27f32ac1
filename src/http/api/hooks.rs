//! The handlers of `/hooks`: the state of targets and hooks, tests, and the repetition of messages.

use axum::extract::{Request, State};
use axum::response::Response;
use percent_encoding::percent_decode_str;

use super::lock_responses;
use super::request_body::{self, MergePatch};
use super::request_fields::Fields;
use super::request_headers;
use crate::api;
use crate::http::format::{ms, tabs, time};
use crate::http::middleware::audit::AuditScope;
use crate::http::negotiation::ResponseFormat;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::state::AppState;
use crate::webhooks::deliveries::LastTry;
use crate::webhooks::hook_status::{HookStatus, TargetStatus};
use crate::webhooks::hooks::NoSuchName;

/// The maximum length of the name of a hook or a target, with its prefix. Bytes.
const HOOK_NAME_MAX_BYTES: usize = 80;

pub(crate) async fn list(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let format = request_headers::accepted(request.headers(), &[ResponseFormat::Json, ResponseFormat::Text])?;
    Fields::of_query(request.uri())?.finish(&[])?;
    let hooks = status(&state);
    Ok(match format {
        ResponseFormat::Json => lock_responses::ok(&hooks),
        ResponseFormat::Text => lock_responses::text(axum::http::StatusCode::OK, as_text(&hooks)),
    })
}

/// `POST /hooks/{name}/test`. Cancel: the test may have been received.
pub(crate) async fn test(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (name, audit_scope) = read(request, &state, "test").await?;
    let last = state.webhooks.test(&name).await.map_err(unknown)?;
    audit_scope.note(|record| record.outcome = outcome(&last).to_owned());
    Ok(lock_responses::ok(&convert_try(&last)))
}

/// `POST /hooks/{name}/replay`.
pub(crate) async fn replay(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (name, audit_scope) = read(request, &state, "replay").await?;
    let queued = state.webhooks.replay(&name).map_err(unknown)?;
    audit_scope.note(|record| record.outcome = "queued".to_owned());
    Ok(lock_responses::ok(&api::HookReplay { queued }))
}

/// The outcome of a test for the audit record.
pub(crate) fn outcome(last: &LastTry) -> &'static str {
    if last.answer.is_accepted() { "accepted" } else { "not-accepted" }
}

/// The problem of an unknown name.
pub(crate) fn unknown(_: NoSuchName) -> Problem {
    Problem::new(ProblemKind::NotFound, "no hook has this name, and no target where it begins with `target:`")
}

/// Notes in the audit record the hook that an operator acts on.
pub(crate) fn note(audit_scope: &AuditScope, action: &str, name: &str) {
    audit_scope.note(|record| {
        record.action = format!("{action}-hook");
        record.reason = Some(name.to_owned());
    });
}

/// The name in the path; the request has no fields. Errors: those of the body, `not-found`.
async fn read(request: Request, state: &AppState, action: &str) -> Result<(String, AuditScope), Problem> {
    request_headers::accepted(request.headers(), &[ResponseFormat::Json])?;
    let raw = request.uri().path().strip_prefix("/hooks/").and_then(|rest| rest.rsplit_once('/'));
    let name = raw.and_then(|(name, _)| percent_decode_str(name).decode_utf8().ok()).unwrap_or_default().into_owned();
    let audit_scope = AuditScope::of(&request);
    if name.len() > HOOK_NAME_MAX_BYTES {
        return Err(unknown(NoSuchName));
    }
    note(&audit_scope, action, &name);
    let (_, fields) = request_body::fields(request, &state.settings, MergePatch::Refused).await?;
    fields.finish(&[])?;
    Ok((name, audit_scope))
}

/// Every target and hook, for JSON and pages.
pub(crate) fn status(state: &AppState) -> api::Hooks {
    let (targets, hooks) = state.webhooks.status();
    api::Hooks {
        instance: state.manager.instance().to_string(),
        targets: targets.iter().map(convert_target).collect(),
        hooks: hooks.iter().map(convert_hook).collect(),
    }
}

fn convert_try(last: &LastTry) -> api::HookTry {
    api::HookTry {
        at: time(last.at_ms),
        accepted: last.answer.is_accepted(),
        answer: last.answer.text(),
        took_ms: ms(last.took),
    }
}

fn convert_target(status: &TargetStatus) -> api::HookTarget {
    let target = &status.target;
    api::HookTarget {
        name: target.name.clone(),
        origin: target.origin(),
        form: target.form.as_str().to_owned(),
        secrets: target.secrets.len(),
        principals: target.principals.as_ref().map(|names| names.iter().map(ToString::to_string).collect()),
        last: status.last.as_ref().map(convert_try),
        callbacks: status.callbacks,
        next_try_in_ms: status.next_try_in.map(ms),
    }
}

fn convert_hook(status: &HookStatus) -> api::HookState {
    let (hook, state) = match (&status.off, status.is_failing) {
        (Some(_), _) => (&status.hook, "off"),
        (None, true) => (&status.hook, "failing"),
        (None, false) => (&status.hook, "on"),
    };
    api::HookState {
        name: hook.name.clone(),
        target: hook.target.name.clone(),
        events: hook.events.names().map(str::to_owned).collect(),
        names: hook.names_text.clone(),
        state: state.to_owned(),
        why: status.off.map(|off| off.why.to_owned()),
        since: status.off.map(|off| time(off.at_ms)),
        queued: status.queued,
        next_try_in_ms: status.next_try_in.map(ms),
        accepted: status.counts.accepted,
        dropped: status.counts.dropped,
        gave_up: status.counts.gave_up,
        replayable: status.replayable,
        last: status.last.as_ref().map(convert_try),
    }
}

/// One line for each: `target` or `hook`, name, the target's origin or the hook's state, the answer to the last try.
fn as_text(hooks: &api::Hooks) -> String {
    let answer = |last: &Option<api::HookTry>| last.as_ref().map(|last| last.answer.clone()).unwrap_or_default();
    let targets = hooks.targets.iter().map(|t| tabs(&["target", &t.name, &t.origin, &answer(&t.last)]));
    let rows = hooks.hooks.iter().map(|h| tabs(&["hook", &h.name, &h.state, &answer(&h.last)]));
    targets.chain(rows).collect()
}
