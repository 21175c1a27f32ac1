//! Requests about several resources at once as checked parameters.

use std::collections::BTreeSet;

use axum::extract::Request;

use super::lease_fields::{self, AsyncFields};
use super::lock_requests::{self, BOTH};
use super::request_body::{self, MergePatch};
use super::request_fields::Fields;
use super::request_headers::{self, IfMatch, IfNoneMatch};
use super::tickets;
use crate::http::negotiation::ResponseFormat;
use crate::http::problem::Problem;
use crate::http::state::HttpSettings;
use crate::manager::types::{AcquireRequest, ExtendRequest};
use crate::protocol::SET_MAX;
use crate::types::{ResourceName, Token};

/// The names, repeated in a query or form.
const RESOURCE: &str = "resource";
/// The names as a JSON array.
const RESOURCES: &str = "resources";

/// The names of a valid request about locks; empty for a ticket's. For the fuzz targets: handlers' types are not public.
///
/// Errors: those of the request. Cancel: nothing is left behind.
pub async fn names_of(request: Request, settings: &HttpSettings) -> Result<Vec<ResourceName>, Problem> {
    let is_set = request.uri().path() == "/locks";
    let of_set = |fields: AcquireSetFields| [vec![fields.request.resource], fields.others].concat();
    match request.method().as_str() {
        "POST" if is_set => acquire(request, settings).await.map(of_set),
        "POST" => lock_requests::acquire(request, settings).await.map(|fields| vec![fields.request.resource]),
        "PATCH" if is_set => extend(request, settings).await.map(|fields| fields.resources),
        "PATCH" if request.uri().path().starts_with("/tickets/") => {
            tickets::read_keep(request, settings).await.map(|_| Vec::new())
        }
        "PATCH" => lock_requests::extend(request, settings).await.map(|fields| vec![fields.request.resource]),
        _ => release(request, settings).await.map(|(resources, ..)| resources),
    }
}

/// A parsed acquire of a set.
#[derive(Debug)]
pub(crate) struct AcquireSetFields {
    /// The manager's request for the first name, without principal and permit.
    pub request: AcquireRequest,
    /// All names but the first.
    pub others: Vec<ResourceName>,
    /// The format of the answer.
    pub format: ResponseFormat,
    /// The `Prefer: wait` that was applied. Seconds.
    pub applied: Option<u32>,
    /// Set if the client wants a ticket when the locks are not granted at once.
    pub asynchronous: Option<AsyncFields>,
}

/// Parses `POST /locks`.
///
/// Errors: `invalid`, `token-in-url`, `not-acceptable`, `unsupported-media-type`, `body-too-large`.
/// Cancel: nothing is left behind.
pub(crate) async fn acquire(request: Request, settings: &HttpSettings) -> Result<AcquireSetFields, Problem> {
    let format = request_headers::accepted(request.headers(), &BOTH)?;
    let none = Fields::with_repeatable(RESOURCE);
    let (parts, mut fields) = request_body::fields_into(none, request, settings, MergePatch::Refused).await?;
    let names = names(&mut fields, 2);
    for (field, why) in [
        ("hold", "is for one lock: POST /locks/{resource}?hold=true"),
        ("limit", "is for one lock: POST /locks/{resource} with limit"),
    ] {
        if fields.take(field) {
            fields.wrong(field, why);
        }
    }
    let mode = lease_fields::mode(&mut fields);
    let ttl = lease_fields::ttl(&mut fields, settings);
    let kept_for = lease_fields::kept_for(&mut fields, settings)?;
    let ttl = match kept_for {
        Some(kept_for) => lease_fields::kept_ttl(&mut fields, ttl, kept_for, settings),
        None => ttl.unwrap_or(settings.default_ttl),
    };
    let asynchronous = lease_fields::asynchronous(&mut fields, &parts, false, kept_for.is_some());
    let (wait, applied) = match asynchronous.is_some() {
        true => (lease_fields::ticket_wait(&mut fields, settings), None),
        false => lease_fields::wait(&mut fields, &parts, settings),
    };
    let labels = lease_fields::labels(&mut fields);
    let token = lease_fields::own_token(&mut fields, &parts)?;
    let refuses_deadlock = lease_fields::refuses_deadlock(&mut fields);
    let keep = lease_fields::keep(&mut fields, wait);
    fields.finish(&ACQUIRE_FIELDS)?;
    let Some((resource, others)) = names.split_first() else { return Err(no_names()) };
    let (resource, others) = (resource.clone(), others.to_vec());
    let principal = None;
    let request =
        AcquireRequest { resource, mode, ttl, wait, kept_for, labels, token, refuses_deadlock, principal, keep };
    Ok(AcquireSetFields { request, others, format, applied, asynchronous })
}

/// The fields of an acquire.
const ACQUIRE_FIELDS: [&str; 15] = [
    RESOURCES,
    RESOURCE,
    "mode",
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
    "on_deadlock",
    "wait_id",
];

/// A parsed extend of a set.
#[derive(Debug)]
pub(crate) struct ExtendSetFields {
    /// The manager's request for the first name.
    pub request: ExtendRequest,
    /// All names, the first one included.
    pub resources: Vec<ResourceName>,
    /// The format of the answer.
    pub format: ResponseFormat,
}

/// Parses `PATCH /locks`, a merge-patch for each name. Errors, Cancel: as [`acquire`].
pub(crate) async fn extend(request: Request, settings: &HttpSettings) -> Result<ExtendSetFields, Problem> {
    let format = request_headers::accepted(request.headers(), &BOTH)?;
    let none = Fields::with_repeatable(RESOURCE);
    let (parts, mut fields) = request_body::fields_into(none, request, settings, MergePatch::Accepted).await?;
    no_preconditions(&parts.headers)?;
    let resources = names(&mut fields, 1);
    let Some(first) = resources.first().cloned() else {
        return Err(fields.finish_with_others().err().unwrap_or_else(no_names));
    };
    let request = lock_requests::extension_of(first, &parts, fields, settings)?;
    Ok(ExtendSetFields { request, resources, format })
}

/// Parses `DELETE /locks`: the names, the token and the format of the answer. Errors, Cancel: as [`acquire`].
pub(crate) async fn release(
    request: Request,
    settings: &HttpSettings,
) -> Result<(Vec<ResourceName>, Token, ResponseFormat), Problem> {
    // A release is never refused for its answer's format.
    let format = request_headers::accepted(request.headers(), &BOTH).unwrap_or(ResponseFormat::Json);
    let none = Fields::with_repeatable(RESOURCE);
    let (parts, mut fields) = request_body::fields_into(none, request, settings, MergePatch::Refused).await?;
    no_preconditions(&parts.headers)?;
    let resources = names(&mut fields, 1);
    if fields.take("token") {
        fields.wrong("token", "belongs in the Lock-Token header");
    }
    fields.finish(&[RESOURCES, RESOURCE])?;
    if resources.is_empty() {
        return Err(no_names());
    }
    Ok((resources, request_headers::required_lock_token(&parts.headers)?, format))
}

/// The names of the request, at least `least` of them; every error is recorded.
fn names(fields: &mut Fields, least: usize) -> Vec<ResourceName> {
    if fields.take_null(RESOURCES) {
        fields.wrong(RESOURCES, "must be an array of strings, not null");
        return Vec::new();
    }
    let (listed, repeated) = (fields.list(RESOURCES), fields.repeated());
    let field = if listed.is_some() { RESOURCES } else { RESOURCE };
    let given = match listed {
        Some(_) if !repeated.is_empty() => {
            fields.wrong(RESOURCE, "is given beside `resources`: name all of them in one of the two");
            return Vec::new();
        }
        Some(listed) => listed,
        None => repeated,
    };
    if given.len() < least {
        let one = if least > 1 { "; for one: POST /locks/{resource}" } else { "" };
        fields.wrong(field, format!("names {}; at least {least} are needed{one}", given.len()));
    } else if given.len() > SET_MAX {
        fields.wrong(field, format!("names more than {SET_MAX}, the maximum"));
        return Vec::new();
    }
    let mut names = Vec::with_capacity(given.len());
    for (index, text) in given.iter().enumerate() {
        match ResourceName::parse(text) {
            Ok(name) => names.push(name),
            Err(invalid) => fields.wrong(field, format!("number {}: {}", index + 1, invalid.0)),
        }
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        fields.wrong(field, format!("names {twice} twice"));
    }
    names
}

fn no_names() -> Problem {
    Problem::invalid_field(RESOURCE, "is required: the names of the locks")
}

/// Each lease has its own fence, so a precondition would name only one of several.
fn no_preconditions(headers: &axum::http::HeaderMap) -> Result<(), Problem> {
    let wrong = |field| Err(Problem::invalid_field(field, "is for one lock: use /locks/{resource}"));
    match (request_headers::if_match(headers)?, request_headers::if_none_match(headers)?) {
        (IfMatch::OneOf(_), _) => wrong("If-Match"),
        (_, IfNoneMatch::Any | IfNoneMatch::OneOf(_)) => wrong("If-None-Match"),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "set_requests_tests.rs"]
mod tests;
