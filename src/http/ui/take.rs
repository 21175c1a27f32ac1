//! Acquires a lock from a page for a limited time, without a process that holds it: the service renews the lease. The user may
//! release the lock again; the token is never shown. Works without scripts.

use std::ops::RangeInclusive;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};

use super::{pages, queries};
use crate::duration::{format_duration, parse_duration};
use crate::http::access::Access;
use crate::http::api::refusals;
use crate::http::api::request_body::{self, MergePatch};
use crate::http::middleware::audit::AuditScope;
use crate::http::path;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;
use crate::manager::PendingGrant;
use crate::manager::types::{AcquireError, AcquireRequest};
use crate::pages::layout::Tab;
use crate::pages::lock::CompletedAction;
use crate::pages::take::{TakeForm, TakePage};
use crate::types::{Labels, ResourceName, WantedMode};

const TAKE: &str = "/ui/take/";
const GIVE_BACK: &str = "/ui/give-back/";
/// The owner label of locks that are taken without authentication.
const NOBODY: &str = "dashboard";

/// `GET /ui/take/{resource}`. Cancel: nothing is left behind.
pub(super) async fn ask(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let resource = path::resource_after(request.uri(), TAKE)?;
    queries::nothing(request.uri())?;
    let access = RequestContext::access(&request);
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

/// `POST /ui/take/{resource}`. Cancel: the lease is released.
pub(super) async fn take(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let resource = path::resource_after(request.uri(), TAKE)?;
    let (audit_scope, access) = (AuditScope::of(&request), RequestContext::access(&request));
    audit_scope.note(|record| {
        record.action = "take".to_owned();
        record.resource = Some(resource.to_string());
    });
    let (parts, mut fields) = request_body::fields(request, &state.settings, MergePatch::Refused).await?;
    let mut field = |name: &str| fields.text(name).unwrap_or_default().trim().to_owned();
    let (kept_for, until) = (field("for"), field("until"));
    let form = TakeForm { kept_for, until, note: field("note"), errors: Vec::new() };
    fields.finish(&["for", "until", "note"])?;
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

/// How long to keep the lease from now, by the one field of two that is filled in. Errors: the sentence for the page.
fn kept_for_of(form: &TakeForm, now_ms: u64, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let (least, most) = (format_duration(*range.start()), format_duration(*range.end()));
    let longer = "Whoever runs the service can allow more: the setting max_keep";
    if form.until.is_empty() {
        let kept_for = parse_duration(&form.kept_for).map_err(|invalid| format!("For how long: {}.", invalid.0))?;
        return match range.contains(&kept_for) {
            true => Ok(kept_for),
            false => Err(format!("For how long: from {least} to {most}. {longer}.")),
        };
    }
    if !form.kept_for.is_empty() {
        return Err("For how long, or until when: fill in one of the two.".to_owned());
    }
    let at_ms = time_ms(&form.until).ok_or("Until: must be a time in UTC, such as 2026-11-30T08:00.")?;
    let kept_for = Duration::from_millis(at_ms.saturating_sub(now_ms));
    match kept_for {
        kept_for if kept_for < *range.start() => Err("Until: that time is over.".to_owned()),
        kept_for if kept_for > *range.end() => {
            let hours = kept_for.as_secs().div_ceil(3_600);
            Err(format!(
                "Until: that is {hours} h from now, and the service keeps a lock for {most} at most. {longer}."
            ))
        }
        kept_for => Ok(kept_for),
    }
}

/// A time in UTC, unless it names another offset. Milliseconds since 1970.
fn time_ms(text: &str) -> Option<u64> {
    let at = text.parse::<jiff::Timestamp>().ok().or_else(|| {
        let at: jiff::civil::DateTime = text.parse().ok()?;
        Some(at.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    })?;
    u64::try_from(at.as_millisecond()).ok()
}

/// The request that the form describes. Errors: the sentence for the page.
fn wanted(
    state: &AppState,
    access: &Access,
    resource: &ResourceName,
    form: &TakeForm,
) -> Result<AcquireRequest, String> {
    let settings = &state.settings;
    let kept_for = kept_for_of(form, state.manager.wall_ms(), &settings.keep_range())?;
    let owner = access.principal().map_or_else(|| NOBODY.to_owned(), |principal| principal.name.to_string());
    let labels = Labels { owner, note: form.note.clone(), ..Labels::default() };
    labels.check().map_err(|(field, invalid)| format!("The {field}: {}.", invalid.0))?;
    let ttl = settings.kept_ttl(None, kept_for);
    let (resource, principal, kept_for) = (resource.clone(), access.shared_principal(), Some(kept_for));
    let wait = Duration::ZERO;
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

/// `POST /ui/give-back/{resource}`: for a lease that the same principal acquired and the service keeps. Cancel: the release
/// continues in the background.
pub(super) async fn give_back(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let resource = path::resource_after(request.uri(), GIVE_BACK)?;
    let (audit_scope, access) = (AuditScope::of(&request), RequestContext::access(&request));
    audit_scope.note(|record| {
        record.action = "give-back".to_owned();
        record.resource = Some(resource.to_string());
    });
    let (_, mut fields) = request_body::fields(request, &state.settings, MergePatch::Refused).await?;
    // A page of another site can trick a user into one click here, but not into clicks in two different places.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_taken_for_a_time_or_until_one() {
        let now_ms = 1_795_784_400_000; // 2026-11-27T13:00:00Z, a Friday
        let range = Duration::from_secs(1)..=Duration::from_hours(24);
        let asked = |kept_for: &str, until: &str| {
            let form = TakeForm { kept_for: kept_for.into(), until: until.into(), ..TakeForm::default() };
            kept_for_of(&form, now_ms, &range)
        };
        assert_eq!(asked("4h", ""), Ok(Duration::from_hours(4)));
        for until in ["2026-11-28T08:00", "2026-11-28 08:00", "2026-11-28T09:00+01:00"] {
            assert_eq!(asked("", until), Ok(Duration::from_hours(19)), "{until}");
        }
        for (kept_for, until, said) in [
            ("", "", "For how long: "),
            ("25h", "", "from 1s to 24h. Whoever runs the service can allow more: the setting max_keep."),
            ("4h", "2026-11-28T08:00", "fill in one of the two"),
            ("", "Monday", "must be a time in UTC"),
            ("", "2026-11-27T12:59", "that time is over"),
            ("", "2026-11-30T08:00", "that is 67 h from now, and the service keeps a lock for 24h at most"),
        ] {
            let refused = asked(kept_for, until).expect_err("refused");
            assert!(refused.contains(said), "{refused}");
        }
        let longer = Duration::from_secs(1)..=Duration::from_hours(72);
        let form = TakeForm { until: "2026-11-30T08:00".into(), ..TakeForm::default() };
        assert_eq!(kept_for_of(&form, now_ms, &longer), Ok(Duration::from_hours(67)));
    }
}
