//! Requests as checked parameters for the manager: the fields of each endpoint, their defaults and limits. Every check precedes
//! any use of a node or a queue.

use axum::extract::Request;
use axum::http::request::Parts;

use super::lease_fields::{
    AsyncFields, asynchronous, downgrade, keep, kept_for, kept_ttl, labels, mode, own_token, refuses_deadlock,
    ticket_wait, ttl, wait,
};
use super::request_body::{self, MergePatch};
use super::request_fields::Fields;
use super::request_headers::{self, IfMatch, IfNoneMatch};
use crate::http::negotiation::{ResponseFormat, StreamFormat};
use crate::http::path;
use crate::http::problem::Problem;
use crate::http::state::HttpSettings;
use crate::manager::types::{
    AcquireRequest, ExtendRequest, ForceMode, LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX, ListQuery, ListState,
};
use crate::nodes::redis::NodeUrl;
use crate::protocol::Terms;
use crate::protocol::keys::KeyTemplate;
use crate::types::{Invalid, Labels, NOTE_MAX_BYTES, NodeId, RESOURCE_MAX_BYTES, ResourceName, Token, TokenId};

/// The formats of answers under `/locks/{resource}`.
pub(crate) const BOTH: [ResponseFormat; 2] = [ResponseFormat::Json, ResponseFormat::Text];
/// The maximum length of the `reason` of a forced end: as long as a note.
pub(crate) const REASON_MAX_BYTES: usize = NOTE_MAX_BYTES;

/// A parsed acquire.
#[derive(Debug)]
pub(crate) struct AcquireFields {
    /// For the manager, without principal and permit.
    pub request: AcquireRequest,
    /// The format of the answer.
    pub format: ResponseFormat,
    /// The `Prefer: wait` that was applied. Seconds.
    pub applied: Option<u32>,
    /// Set if the client wants a ticket when the lock is not granted at once.
    pub asynchronous: Option<AsyncFields>,
    /// With `hold=true`: the format of the stream that holds the lease.
    pub hold: Option<StreamFormat>,
}

/// Parses `POST /locks/{resource}`.
///
/// Errors: `invalid`, `token-in-url`, `not-acceptable`, `unsupported-media-type`, `body-too-large`.
/// Cancel: nothing is left behind.
pub(crate) async fn acquire(request: Request, settings: &HttpSettings) -> Result<AcquireFields, Problem> {
    let resource = path::resource(request.uri())?;
    let format = request_headers::accepted(request.headers(), &BOTH);
    let (parts, mut fields) = request_body::fields(request, settings, MergePatch::Refused).await?;
    let hold = match fields.flag("hold") {
        true => Some(request_headers::accepted_stream(&parts.headers)?),
        false => None,
    };
    let format = if hold.is_some() { ResponseFormat::Json } else { format? };
    let mode = mode(&mut fields);
    let ttl = ttl(&mut fields, settings);
    let kept_for = kept_for(&mut fields, settings)?;
    let ttl = match kept_for {
        Some(kept_for) => kept_ttl(&mut fields, ttl, kept_for, settings),
        None => ttl.unwrap_or(settings.default_ttl),
    };
    if hold.is_some() && kept_for.is_some() {
        fields.wrong("keep", "is not for hold=true, which renews the lease as long as the connection lasts");
    }
    let asynchronous = asynchronous(&mut fields, &parts, hold.is_some(), kept_for.is_some());
    let (wait, applied) = match asynchronous.is_some() {
        true => (ticket_wait(&mut fields, settings), None),
        false => wait(&mut fields, &parts, settings),
    };
    let labels = labels(&mut fields);
    let token = own_token(&mut fields, &parts)?;
    let refuses_deadlock = refuses_deadlock(&mut fields);
    let keep = keep(&mut fields, wait);
    fields.finish(&ACQUIRE_FIELDS)?;
    let principal = None;
    let request =
        AcquireRequest { resource, mode, ttl, wait, kept_for, labels, token, refuses_deadlock, principal, keep };
    Ok(AcquireFields { request, format, applied, asynchronous, hold })
}

/// The fields of an acquire.
const ACQUIRE_FIELDS: [&str; 15] = [
    "mode",
    "limit",
    "ttl",
    "wait",
    "async",
    "callback",
    "accept",
    "keep",
    "owner",
    "note",
    "metadata",
    "token",
    "hold",
    "on_deadlock",
    "wait_id",
];

/// A parsed extend. `request.fence` is set later if `if_match` has tags.
#[derive(Debug)]
pub(crate) struct ExtendFields {
    pub request: ExtendRequest,
    /// The precondition.
    pub if_match: IfMatch,
    /// The format of the answer.
    pub format: ResponseFormat,
}

/// Parses `PATCH /locks/{resource}`, a merge-patch. Errors, Cancel: as [`acquire`].
pub(crate) async fn extend(request: Request, settings: &HttpSettings) -> Result<ExtendFields, Problem> {
    let resource = path::resource(request.uri())?;
    let format = request_headers::accepted(request.headers(), &BOTH)?;
    let (parts, fields) = request_body::fields(request, settings, MergePatch::Accepted).await?;
    let if_match = request_headers::if_match(&parts.headers)?;
    let request = extension_of(resource, &parts, fields, settings)?;
    Ok(ExtendFields { request, if_match, format })
}

/// The change of a lease, without its precondition. Errors: as [`acquire`].
pub(super) fn extension_of(
    resource: ResourceName,
    parts: &Parts,
    mut fields: Fields,
    settings: &HttpSettings,
) -> Result<ExtendRequest, Problem> {
    let token = request_headers::required_lock_token(&parts.headers)?;
    for field in ["ttl", "keep", "metadata", "mode"] {
        if fields.take_null(field) {
            fields.wrong(field, "cannot be removed; `metadata: {\"key\": null}` removes one key");
        }
    }
    let downgrade = downgrade(&mut fields);
    let ttl = ttl(&mut fields, settings);
    let kept_for = kept_for(&mut fields, settings)?;
    let note = if fields.take_null("note") { Some(String::new()) } else { fields.text("note") };
    if let Some(note) = &note
        && let Err((field, invalid)) = (Labels { note: note.clone(), ..Labels::default() }).check()
    {
        fields.wrong(field, invalid.0);
    }
    let metadata = fields.pairs("metadata");
    if fields.take("token") {
        fields.wrong("token", "belongs in the Lock-Token header");
    }
    fields.finish(&["ttl", "keep", "note", "metadata", "mode"])?;
    Ok(ExtendRequest { resource, token, ttl, kept_for, downgrade, fence: None, note, metadata })
}

/// A parsed release or forced end.
#[derive(Debug)]
pub(crate) enum ReleaseFields {
    /// The holder releases its own lease.
    Release { resource: ResourceName, token: Token, if_match: IfMatch },
    /// An operator ends the lease of another.
    Force { resource: ResourceName, holder: Option<TokenId>, mode: ForceMode, reason: String, if_match: IfMatch },
}

/// Parses `DELETE /locks/{resource}`. A release is never refused for its answer's format, so the Accept header is ignored.
/// Errors, Cancel: as [`acquire`].
pub(crate) async fn release(request: Request, settings: &HttpSettings) -> Result<ReleaseFields, Problem> {
    let resource = path::resource(request.uri())?;
    let (parts, mut fields) = request_body::fields(request, settings, MergePatch::Refused).await?;
    let if_match = request_headers::if_match(&parts.headers)?;
    // A malformed token is refused even if none is needed.
    let token = request_headers::lock_token(&parts.headers)?;
    if fields.take("token") {
        fields.wrong("token", "belongs in the Lock-Token header");
    }
    let Some(force) = fields.text("force") else {
        for field in ["reason", "token_id"] {
            if fields.take(field) {
                fields.wrong(field, "is for a forced end: add force=revoke or force=now");
            }
        }
        fields.finish(&["force", "reason", "token_id"])?;
        let token = token.map_or_else(|| request_headers::required_lock_token(&parts.headers), Ok)?;
        return Ok(ReleaseFields::Release { resource, token, if_match });
    };
    let mode = match force.as_str() {
        "revoke" => Some(ForceMode::Revoke),
        "now" => Some(ForceMode::Now),
        _ => None,
    };
    if mode.is_none() {
        fields.wrong("force", "must be revoke (safe: ends with the lease) or now (unsafe: at once)");
    }
    let holder = fields.text("token_id").and_then(|text| {
        let digits = TokenId::parse(&text).ok_or_else(|| Invalid("is not the `token_id` of a holder".to_owned()));
        fields.check("token_id", digits)
    });
    let reason = fields.text("reason").unwrap_or_default();
    if reason.trim().is_empty() {
        fields.wrong("reason", "is required: why the lease is ended, for the log");
    } else if reason.len() > REASON_MAX_BYTES {
        fields.wrong("reason", format!("{} bytes; at most {REASON_MAX_BYTES} are allowed", reason.len()));
    }
    fields.finish(&["force", "reason", "token_id"])?;
    let mode = mode.ok_or_else(|| Problem::invalid_field("force", "must be revoke or now"))?;
    Ok(ReleaseFields::Force { resource, holder, mode, reason, if_match })
}

/// Parses `GET` and `HEAD /locks/{resource}`. Errors: `invalid`, `token-in-url`, `not-acceptable`.
pub(crate) fn inspect(request: &Request) -> Result<(ResourceName, ResponseFormat, IfNoneMatch), Problem> {
    let resource = path::resource(request.uri())?;
    let format = request_headers::accepted(request.headers(), &BOTH)?;
    no_fields(request)?;
    Ok((resource, format, request_headers::if_none_match(request.headers())?))
}

/// Parses `GET /nodes`. Errors: as [`inspect`].
pub(crate) fn nodes(request: &Request) -> Result<ResponseFormat, Problem> {
    let format = request_headers::accepted(request.headers(), &[ResponseFormat::Json, ResponseFormat::Text])?;
    no_fields(request).map(|()| format)
}

/// What an operator changes about a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NodeChange {
    /// The node has ended for good.
    Forget,
    /// Another server takes over the node's name.
    Replace {
        /// The server that will vote under the name.
        address: String,
    },
    /// A server will vote under this new name.
    Add {
        /// The server that will vote under the name.
        address: String,
    },
    /// The node will not vote any more.
    Remove,
}

/// Parses `POST /nodes/{node}`: the change and its reason.
///
/// Errors: `invalid`, `not-acceptable`, those of the body.
pub(crate) async fn change_node(
    request: Request,
    settings: &HttpSettings,
) -> Result<(NodeId, NodeChange, String), Problem> {
    request_headers::accepted(request.headers(), &[ResponseFormat::Json])?;
    let node = path::node(request.uri())?;
    let (_, mut fields) = request_body::fields(request, settings, MergePatch::Refused).await?;
    let (action, url) = (fields.text("action").unwrap_or_default(), fields.text("url"));
    let mut change = NodeChange::Forget;
    match (action.as_str(), url) {
        ("forget", None) => {}
        ("remove", None) => change = NodeChange::Remove,
        ("forget" | "remove", Some(_)) => fields.wrong("url", "is for action=replace and action=add"),
        // The configuration has the credentials: the view is readable on every node.
        ("replace" | "add", Some(url)) if url.contains('@') || url.contains('?') => {
            fields.wrong("url", "has no user, password or options: those of the configuration are used");
        }
        ("replace" | "add", Some(url)) => match NodeUrl::parse(&url).map(|url| url.address().to_owned()) {
            Ok(address) if action == "add" => change = NodeChange::Add { address },
            Ok(address) => change = NodeChange::Replace { address },
            Err(why) => fields.wrong("url", why.0),
        },
        ("replace" | "add", None) => fields.wrong("url", "is required: where the new server is"),
        _ => fields.wrong("action", "must be forget (the node has ended for good), replace, add or remove"),
    }
    let reason = reason(&mut fields);
    fields.finish(&["action", "url", "reason"])?;
    Ok((node, change, reason))
}

/// Parses `POST /nodes`: the terms, of which the request names those that change, and the reason. `present`: the others.
///
/// Errors: as of [`change_node`].
pub(crate) async fn change_terms(
    request: Request,
    settings: &HttpSettings,
    present: Terms,
) -> Result<(Terms, String), Problem> {
    request_headers::accepted(request.headers(), &[ResponseFormat::Json])?;
    let (_, mut fields) = request_body::fields(request, settings, MergePatch::Refused).await?;
    let [guard, lock_delay, fence_ttl] = ["guard", "lock_delay", "fence_ttl"].map(|field| fields.duration(field));
    let template = fields.text("key_template");
    if guard.or(lock_delay).or(fence_ttl).is_none() && template.is_none() {
        fields.wrong("guard", "is required, or lock_delay, fence_ttl or key_template: what is to change");
    }
    let template = template.and_then(|template| match KeyTemplate::parse(&template) {
        Ok(template) => Some(template),
        Err(why) => {
            fields.wrong("key_template", why.0);
            None
        }
    });
    let terms = Terms {
        guard: guard.unwrap_or(present.guard),
        lock_delay: lock_delay.unwrap_or(present.lock_delay),
        fence_ttl: fence_ttl.unwrap_or(present.fence_ttl),
        template: template.or(present.template),
    };
    for (field, why) in settings.terms.check(&terms) {
        fields.wrong(field, why);
    }
    let reason = reason(&mut fields);
    fields.finish(&["guard", "lock_delay", "fence_ttl", "key_template", "reason"])?;
    Ok((terms, reason))
}

/// Why an operator changes something.
fn reason(fields: &mut Fields) -> String {
    let reason = fields.text("reason").unwrap_or_default();
    if reason.trim().is_empty() {
        fields.wrong("reason", "is required: why, for the log");
    } else if reason.len() > REASON_MAX_BYTES {
        fields.wrong("reason", format!("{} bytes; at most {REASON_MAX_BYTES} are allowed", reason.len()));
    }
    reason
}

fn no_fields(request: &Request) -> Result<(), Problem> {
    Fields::of_query(request.uri())?.finish(&[])
}

/// Parses `GET /locks`. Errors: as [`inspect`].
pub fn list(request: &Request) -> Result<(ListQuery, ResponseFormat), Problem> {
    let format = request_headers::accepted(request.headers(), &[ResponseFormat::Json, ResponseFormat::Text])?;
    let mut fields = Fields::of_query(request.uri())?;
    let prefix = fields.text("prefix").unwrap_or_default();
    if prefix.len() > RESOURCE_MAX_BYTES {
        fields.wrong("prefix", format!("{} bytes; at most {RESOURCE_MAX_BYTES} are allowed", prefix.len()));
    }
    let owner = fields.text("owner");
    let state = fields.text("state").and_then(|word| {
        let state = match word.as_str() {
            "held" => Ok(ListState::Held),
            "waited" => Ok(ListState::Waited),
            "lock-delay" => Ok(ListState::LockDelay),
            "unknown" => Ok(ListState::Unknown),
            _ => Err(Invalid("must be held, waited, lock-delay or unknown".to_owned())),
        };
        fields.check("state", state)
    });
    let after = fields.text("cursor").and_then(|text| {
        let cursor = ResourceName::parse(&text).map_err(|_| Invalid("is not a `next_cursor` of a list".to_owned()));
        fields.check("cursor", cursor).map(|name| name.as_str().to_owned())
    });
    let limit = fields.number("limit").map_or(LIST_LIMIT_DEFAULT, |n| usize::try_from(n).unwrap_or(usize::MAX));
    if !(1..=LIST_LIMIT_MAX).contains(&limit) {
        fields.wrong("limit", format!("must be from 1 to {LIST_LIMIT_MAX}"));
    }
    fields.finish(&["prefix", "owner", "state", "cursor", "limit"])?;
    Ok((ListQuery { prefix, owner, state, after, limit }, format))
}

#[cfg(test)]
#[path = "lock_requests_tests.rs"]
mod tests;
