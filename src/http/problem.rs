//! Problems (RFC 9457): the answer of a handler or layer that refuses a request. The request layer writes them out, since only it
//! knows the request's id and whether the client reads JSON or text. [`super::api::refusals`] maps domain errors to problems.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::format::{one_line, seconds_up};
use super::negotiation::{self, ResponseFormat};
use super::problem_kind::ProblemKind;
use crate::api;

/// The minimum `Retry-After`: 0 would make `curl --retry` spin. Seconds.
pub(crate) const RETRY_AFTER_MIN: u64 = 1;
/// The maximum `Retry-After`, and the default: a holder may release early, so clients should not wait for the whole of a long
/// lease. Seconds.
pub(crate) const RETRY_AFTER_MAX: u64 = 30;

/// A refused request. Boxed inside, so that results that carry it stay small.
#[derive(Debug, Clone)]
pub struct Problem(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: ProblemKind,
    detail: String,
    members: api::Members,
    headers: HeaderMap,
    /// Replaces the kind's own status.
    status: Option<StatusCode>,
}

impl Problem {
    /// The detail as a sentence without its full stop.
    pub fn sentence(&self) -> &str {
        &self.0.detail
    }

    /// A problem without extension members. `detail` is shown to the client: no secret, no node address.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        let (detail, members, headers) = (detail.into(), api::Members::default(), HeaderMap::new());
        Self(Box::new(Inner { kind, detail, members, headers, status: None }))
    }

    /// Invalid input, one entry per field.
    pub fn invalid(errors: Vec<api::FieldError>) -> Self {
        let detail = errors.iter().map(|e| format!("{}: {}", e.field, e.detail)).collect::<Vec<_>>().join("; ");
        Self::new(ProblemKind::Invalid, detail).with(|m| m.errors = Some(errors))
    }

    /// Invalid input in one field.
    pub fn invalid_field(field: &str, detail: impl Into<String>) -> Self {
        Self::invalid(vec![api::FieldError { field: field.to_owned(), detail: detail.into() }])
    }

    /// Sets extension members.
    #[must_use]
    pub fn with(mut self, set: impl FnOnce(&mut api::Members)) -> Self {
        set(&mut self.0.members);
        self
    }

    /// Adds a header to the answer, or replaces it.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    /// Sets `Retry-After`: rounded up, within its bounds.
    #[must_use]
    pub fn retry_after(self, after: Duration) -> Self {
        let seconds = seconds_up(after).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
        self.header(header::RETRY_AFTER, seconds.into())
    }

    /// Sets another status than the kind's, for a client that asked for it.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.0.status = Some(status);
        self
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.0.status.unwrap_or_else(|| self.0.kind.status())
    }

    /// Closes the connection after the answer.
    #[must_use]
    pub fn closing(self) -> Self {
        self.header(header::CONNECTION, HeaderValue::from_static("close"))
    }

    /// The kind, which decides type, status and title.
    pub fn kind(&self) -> ProblemKind {
        self.0.kind
    }

    /// The member `reason`.
    pub fn reason(&self) -> Option<&str> {
        self.0.members.reason.as_deref()
    }

    /// The JSON body; `instance` is the request's id.
    pub fn body(&self, instance: &str) -> api::ProblemDetails {
        let inner = &self.0;
        api::ProblemDetails {
            kind: format!("/problems/{}", inner.kind.as_str()),
            title: inner.kind.title().to_owned(),
            status: self.status().as_u16(),
            detail: inner.detail.clone(),
            instance: instance.to_owned(),
            members: inner.members.clone(),
        }
    }

    fn text(&self) -> String {
        format!("{}: {}\n", self.0.kind.as_str(), one_line(&self.0.detail))
    }
}

/// Status and headers; the body is written by [`ProblemWriter::write`].
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status(), self.0.headers.clone()).into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// Writes the problem that answers one request, in the format that the request accepts.
pub(crate) struct ProblemWriter {
    format: ResponseFormat,
    is_head: bool,
}

impl ProblemWriter {
    /// For this request.
    pub(crate) fn of(request: &Request) -> Self {
        Self { format: negotiation::for_problem(request.headers()), is_head: request.method() == Method::HEAD }
    }

    /// Replaces the body by the problem, if the answer is a problem. `instance`: the request's id.
    pub(crate) fn write(&self, instance: impl AsRef<str>, response: &mut Response) {
        let Some(problem) = response.extensions_mut().remove::<Arc<Problem>>() else { return };
        let (kind, body) = match self.format {
            ResponseFormat::Text => ("text/plain; charset=utf-8", problem.text()),
            ResponseFormat::Json => ("application/problem+json", {
                serde_json::to_string(&problem.body(instance.as_ref())).expect("a problem is plain data") + "\n"
            }),
        };
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(header::CONTENT_LENGTH, body.len().into());
        *response.body_mut() = if self.is_head { Body::empty() } else { body.into() };
    }
}

/// The answer if a handler panicked.
pub(crate) fn handler_panicked() -> Response {
    // The panic hook has logged location and message.
    tracing::error!("a handler panicked; the request was answered with 500");
    Problem::new(ProblemKind::Internal, "internal error; the log has the details under this request's id")
        .into_response()
}

/// An ETag with its quotes; `None` if the value has characters that a header cannot carry; fences and token ids have none.
pub(crate) fn etag(tag: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(["\"", tag, "\""].concat()).ok()
}

#[cfg(test)]
#[path = "problem_tests.rs"]
mod tests;
