//! The fields that requests about leases share: each is read and checked against its limits; an error names its field.

use std::time::Duration;

use axum::http::request::Parts;

use super::refusals;
use super::request_fields::Fields;
use super::request_headers;
use crate::duration::format_duration;
use crate::http::problem::Problem;
use crate::http::state::HttpSettings;
use crate::manager::types::KeepPlace;
use crate::types::{Invalid, Labels, PERMITS_MAX, PERMITS_MIN, PermitLimit, Token, Ttl, WaitId, WantedMode};

/// The shortest TTL of a kept lease.
const KEPT_TTL_MIN: Duration = Duration::from_secs(5);

/// How long a ticket waits: the default and the minimum.
const TICKET_WAIT_DEFAULT: Duration = Duration::from_hours(1);
const TICKET_WAIT_MIN: Duration = Duration::from_secs(1);

/// How long a grant is offered to the receiver of call-backs: minimum, default and maximum.
const ACCEPT_MIN: Duration = Duration::from_secs(5);
const ACCEPT_DEFAULT: Duration = Duration::from_mins(2);
const ACCEPT_MAX: Duration = Duration::from_mins(10);

/// How the lease shares the lock: exclusive unless `mode` or `limit` says otherwise.
pub(super) fn mode(fields: &mut Fields) -> WantedMode {
    let word = fields.text("mode");
    let limit = fields.number("limit").map(|limit| {
        let detail = || Invalid(format!("must be from {PERMITS_MIN} to {PERMITS_MAX}: the number of permits"));
        fields.check("limit", PermitLimit::new(limit).ok_or_else(detail))
    });
    if word.is_some() && limit.is_some() {
        fields.wrong("limit", "is not for a request with `mode`: permits are a mode of their own");
    }
    match (word.as_deref(), limit) {
        (_, Some(limit)) => limit.map_or(WantedMode::Exclusive, |limit| WantedMode::Permit { limit }),
        (None | Some("exclusive"), None) => WantedMode::Exclusive,
        (Some("shared"), None) => WantedMode::Shared,
        (Some(_), None) => {
            fields.wrong("mode", "must be exclusive or shared (`limit` asks for one of so many permits)");
            WantedMode::Exclusive
        }
    }
}

/// Whether the exclusive lease becomes a shared one.
pub(super) fn downgrade(fields: &mut Fields) -> bool {
    match fields.text("mode").as_deref() {
        None => return false,
        Some("shared") => return true,
        Some("exclusive") => fields.wrong("mode", "cannot become exclusive again: release and acquire"),
        Some(_) => fields.wrong("mode", "must be shared"),
    }
    false
}

/// The TTL; `None` if the request has none.
pub(super) fn ttl(fields: &mut Fields, settings: &HttpSettings) -> Option<Ttl> {
    let ttl = fields.duration("ttl")?;
    let (least, most) = (settings.min_ttl.as_duration(), settings.max_ttl.as_duration());
    let bounded = if (least..=most).contains(&ttl) {
        Ttl::from_ms(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
    } else {
        let bounds = format!("must be from {} to {}", format_duration(least), format_duration(most));
        Err(Invalid(if ttl > most { bounds + "; longer work extends its lease with PATCH" } else { bounds }))
    };
    fields.check("ttl", bounded)
}

/// For how long the service renews the lease.
///
/// Errors: `keep-too-long`.
pub(super) fn kept_for(fields: &mut Fields, settings: &HttpSettings) -> Result<Option<Duration>, Problem> {
    let Some(kept_for) = fields.duration("keep") else { return Ok(None) };
    let (least, most) = settings.keep_range().into_inner();
    if kept_for > most {
        return Err(refusals::keep_too_long(most, most));
    }
    if kept_for < least {
        fields.wrong("keep", format!("must be from {} to {}", format_duration(least), format_duration(most)));
    }
    Ok(Some(kept_for))
}

/// The TTL of a kept lease: other instances need part of it to find the lease if this instance ends.
pub(super) fn kept_ttl(fields: &mut Fields, asked: Option<Ttl>, kept_for: Duration, settings: &HttpSettings) -> Ttl {
    if asked.is_some_and(|ttl| ttl.as_duration() < KEPT_TTL_MIN) {
        fields.wrong("ttl", format!("must be at least {} with `keep`", format_duration(KEPT_TTL_MIN)));
    }
    settings.kept_ttl(asked, kept_for)
}

/// The field takes precedence over the preference. A preference above the maximum is not refused but limited to it.
pub(super) fn wait(fields: &mut Fields, parts: &Parts, settings: &HttpSettings) -> (Duration, Option<u32>) {
    // At most `max_wait`, an hour.
    let seconds = |wait: Duration| u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
    match (fields.duration("wait"), request_headers::preferred_wait(&parts.headers)) {
        (Some(wait), _) if wait > settings.max_wait => {
            fields.wrong("wait", format!("must be at most {}", format_duration(settings.max_wait)));
            (Duration::ZERO, None)
        }
        (Some(wait), preferred) => (wait, preferred.filter(|p| *p == wait).map(seconds)),
        (None, Some(preferred)) => {
            let applied = seconds(preferred.min(settings.max_wait));
            (Duration::from_secs(applied.into()), Some(applied))
        }
        (None, None) => (Duration::ZERO, None),
    }
}

/// For how long a ticket waits.
pub(super) fn ticket_wait(fields: &mut Fields, settings: &HttpSettings) -> Duration {
    let (least, most) = (TICKET_WAIT_MIN, settings.max_ticket_wait);
    let wait = fields.duration("wait").unwrap_or(TICKET_WAIT_DEFAULT.min(most));
    if !(least..=most).contains(&wait) {
        fields.wrong("wait", format!("must be from {} to {}", format_duration(least), format_duration(most)));
    }
    wait
}

/// The fields that only an asynchronous acquire has.
pub(crate) struct AsyncFields {
    /// The address of call-backs, as received: a secret.
    pub callback: Option<String>,
    /// How long the grant is offered to the receiver of the call-backs.
    pub accept: Duration,
}

/// Omits the address.
impl std::fmt::Debug for AsyncFields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncFields").field("accept", &self.accept).finish_non_exhaustive()
    }
}

/// Whether a ticket is wanted: by `async=true`, by a preference, or since the request names a call-back.
pub(super) fn asynchronous(fields: &mut Fields, parts: &Parts, holds: bool, is_kept: bool) -> Option<AsyncFields> {
    let is_asked = fields.flag("async") || request_headers::prefers_async(&parts.headers);
    let (callback, accept) = (fields.text("callback"), fields.duration("accept"));
    if callback.is_some() && parts.uri.query().is_some_and(has_callback) {
        fields.wrong("callback", "belongs in the body: addresses are logged, and this one may be a secret");
    }
    if callback.is_none() && accept.is_some() {
        fields.wrong("accept", "is for a request with `callback`");
    }
    let accept = accept.unwrap_or(ACCEPT_DEFAULT);
    if !(ACCEPT_MIN..=ACCEPT_MAX).contains(&accept) {
        let (least, most) = (format_duration(ACCEPT_MIN), format_duration(ACCEPT_MAX));
        fields.wrong("accept", format!("must be from {least} to {most}"));
    }
    let asked = (is_asked || callback.is_some()).then_some(AsyncFields { callback, accept })?;
    check_async(fields, holds, is_kept);
    Some(asked)
}

fn has_callback(query: &str) -> bool {
    query.split('&').any(|pair| pair.split('=').next().is_some_and(|name| name.eq_ignore_ascii_case("callback")))
}

/// A ticket's lease has neither a client that renews it nor a connection that holds it.
fn check_async(fields: &mut Fields, holds: bool, is_kept: bool) {
    if holds {
        fields.wrong("hold", "is not for an asynchronous acquire, whose lease no connection holds");
    }
    if !is_kept {
        fields.wrong("keep", "is required for an asynchronous acquire: for how long the service renews the lease");
    }
    if fields.take("wait_id") {
        fields.wrong("wait_id", "is not for an asynchronous acquire: a ticket keeps its place by itself");
    }
}

/// The queue position that the request takes again, or keeps for the next request.
pub(super) fn keep(fields: &mut Fields, wait: Duration) -> Option<KeepPlace> {
    let text = fields.text("wait_id")?;
    let wait_id = fields.check("wait_id", WaitId::parse(&text))?;
    if wait.is_zero() {
        fields.wrong("wait_id", "names a place in the queue, which only a request with `wait` has");
    }
    Some(KeepPlace { wait_id, permit: None })
}

/// Whether the newest request of a deadlock is refused: it keeps waiting unless it asks for the refusal.
pub(super) fn refuses_deadlock(fields: &mut Fields) -> bool {
    let word = fields.text("on_deadlock");
    if word.as_deref().is_some_and(|word| !matches!(word, "report" | "refuse")) {
        fields.wrong("on_deadlock", "must be report (it waits on) or refuse (409)");
    }
    word.as_deref() == Some("refuse")
}

/// Owner, note and metadata.
pub(super) fn labels(fields: &mut Fields) -> Labels {
    let owner = fields.text("owner").unwrap_or_default();
    let note = fields.text("note").unwrap_or_default();
    let mut labels = Labels { owner, note, ..Labels::default() };
    for (key, value) in fields.pairs("metadata") {
        match value {
            Some(value) => drop(labels.metadata.insert(key, value)),
            None => fields.wrong("metadata", "values are strings: null removes a key, with PATCH only"),
        }
    }
    if let Err((field, invalid)) = labels.check() {
        fields.wrong(field, invalid.0);
    }
    labels
}

/// The client's own token, from the body or from the `Lock-Token` header.
pub(super) fn own_token(fields: &mut Fields, parts: &Parts) -> Result<Option<Token>, Problem> {
    let from_header = request_headers::lock_token(&parts.headers)?;
    let from_field = fields.text("token").and_then(|text| fields.check("token", Token::parse(&text)));
    if let (Some(a), Some(b)) = (&from_header, &from_field)
        && a != b
    {
        fields.wrong("token", "differs from the Lock-Token header");
    }
    Ok(from_field.or(from_header))
}
