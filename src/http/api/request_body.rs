//! Reads a request's body, limited in size and time, and merges query, form and JSON into one set of fields. Independent of
//! the endpoint.

use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::request_fields::Fields;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::state::HttpSettings;

/// The header that names what a PATCH may send (RFC 5789), and its value.
const ACCEPT_PATCH: HeaderName = HeaderName::from_static("accept-patch");
const PATCH_TYPES: HeaderValue =
    HeaderValue::from_static("application/merge-patch+json, application/json, application/x-www-form-urlencoded");

/// Whether a body may be `application/merge-patch+json`, besides JSON or a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergePatch {
    /// The request is a `PATCH`.
    Accepted,
    /// For other methods.
    Refused,
}

/// How a body is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyKind {
    Json,
    Form,
    /// No Content-Type: the body must be empty.
    Untyped,
}

/// Errors: `unsupported-media-type`.
fn body_kind(headers: &HeaderMap, patch: MergePatch) -> Result<BodyKind, Problem> {
    let refused = |detail: &str| {
        let problem = Problem::new(ProblemKind::UnsupportedMediaType, detail);
        Err(if patch == MergePatch::Accepted { problem.header(ACCEPT_PATCH, PATCH_TYPES) } else { problem })
    };
    let identity = |v: &axum::http::HeaderValue| v.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get(header::CONTENT_ENCODING).is_some_and(|v| !identity(v)) {
        return refused("compressed bodies are not supported: send it without Content-Encoding");
    }
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let Some(value) = values.next() else { return Ok(BodyKind::Untyped) };
    if values.next().is_some() {
        return refused("Content-Type is given twice");
    }
    // As most clients write it.
    if value == "application/json" {
        return Ok(BodyKind::Json);
    }
    let value = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let mut parts = value.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let charset = parts.find_map(|part| part.strip_prefix("charset=")).map(|name| name.trim_matches('"'));
    if charset.is_some_and(|name| !matches!(name, "utf-8" | "utf8" | "us-ascii")) {
        return refused("the body must be UTF-8");
    }
    match (essence, patch) {
        ("application/json", _) | ("application/merge-patch+json", MergePatch::Accepted) => Ok(BodyKind::Json),
        ("application/x-www-form-urlencoded", _) => Ok(BodyKind::Form),
        _ => refused(
            "the body must be application/json or application/x-www-form-urlencoded \
             (PATCH: also application/merge-patch+json)",
        ),
    }
}

/// All fields of a request, from query and body.
///
/// Errors: `invalid`, `token-in-url`, `unsupported-media-type`, `body-too-large`.
/// Cancel: nothing is left behind.
pub async fn fields(request: Request, settings: &HttpSettings, patch: MergePatch) -> Result<(Parts, Fields), Problem> {
    fields_into(Fields::default(), request, settings, patch).await
}

/// As [`fields`]; adds to the given fields.
pub async fn fields_into(
    mut fields: Fields,
    request: Request,
    settings: &HttpSettings,
    patch: MergePatch,
) -> Result<(Parts, Fields), Problem> {
    fields.add_query(request.uri().query().unwrap_or_default())?;
    let (parts, kind, bytes) = body(request, settings, patch).await?;
    match kind {
        BodyKind::Json => fields.add_json(&bytes)?,
        BodyKind::Form => fields.add_form(&bytes)?,
        BodyKind::Untyped => {}
    }
    Ok((parts, fields))
}

/// A JSON body as received; empty if there is none. Errors, Cancel: as [`fields`].
pub async fn json(request: Request, settings: &HttpSettings) -> Result<(Parts, Bytes), Problem> {
    match body(request, settings, MergePatch::Refused).await? {
        (parts, BodyKind::Json | BodyKind::Untyped, bytes) => Ok((parts, bytes)),
        (_, BodyKind::Form, _) => {
            Err(Problem::new(ProblemKind::UnsupportedMediaType, "the body must be application/json"))
        }
    }
}

/// The body and its kind: [`BodyKind::Untyped`] for an empty one.
async fn body(
    request: Request,
    settings: &HttpSettings,
    patch: MergePatch,
) -> Result<(Parts, BodyKind, Bytes), Problem> {
    let (parts, body) = request.into_parts();
    // Content-Type is checked only for non-empty bodies: before the body is read if Content-Length announces one.
    let announced = parts.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_none_or(|bytes| bytes == 0) && body.is_end_stream() {
        return Ok((parts, BodyKind::Untyped, Bytes::new()));
    }
    let kind = body_kind(&parts.headers, patch);
    if announced.is_some_and(|n| n > 0) {
        kind.clone()?;
    }
    if announced.is_some_and(|n| n > u64::try_from(settings.body_limit).unwrap_or(u64::MAX)) {
        return Err(too_large(settings.body_limit));
    }
    let bytes = read(body, settings.body_limit, settings.body_timeout).await?;
    let kind = match bytes.is_empty() {
        true => BodyKind::Untyped,
        false => kind?,
    };
    if kind == BodyKind::Untyped && !bytes.is_empty() {
        let detail = "the body has no Content-Type: send application/json or application/x-www-form-urlencoded";
        return Err(Problem::new(ProblemKind::UnsupportedMediaType, detail));
    }
    Ok((parts, kind, bytes))
}

async fn read(mut body: axum::body::Body, limit: usize, within: Duration) -> Result<Bytes, Problem> {
    // A short body has usually arrived with the head, as one frame.
    let first = body.frame().now_or_never().flatten();
    let first = first.transpose().map_err(|_| ended_early())?.and_then(|frame| frame.into_data().ok());
    let first = first.unwrap_or_default();
    let Some(left) = limit.checked_sub(first.len()) else { return Err(too_large(limit)) };
    if body.is_end_stream() {
        return Ok(first);
    }
    // In a box: most bodies end before, and without it the future of each request has its size.
    match Box::pin(tokio::time::timeout(within, Limited::new(body, left).collect())).await {
        Ok(Ok(rest)) => Ok([first, rest.to_bytes()].concat().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Ok(Err(_)) => Err(ended_early()),
        Err(_) => {
            let detail = format!("did not arrive within {} s", within.as_secs());
            Err(Problem::invalid_field("body", detail).closing())
        }
    }
}

fn ended_early() -> Problem {
    Problem::invalid_field("body", "ended early").closing()
}

/// The rest of the body is not read, so the connection cannot be reused.
fn too_large(limit: usize) -> Problem {
    Problem::new(ProblemKind::BodyTooLarge, format!("the body is larger than {limit} bytes, the maximum")).closing()
}

#[cfg(test)]
#[path = "request_body_tests.rs"]
mod tests;
