//! Problems (RFC 9457): the one file that maps domain errors to status codes, and the one place
//! that writes them out. A handler answers a [`Problem`]; only [`ProblemWriter::write`] knows the request's id and
//! whether the client reads JSON or text. Knows no handler and no router.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};

use super::convert;
use super::negotiation::{self, ResponseFormat};
use super::problem_kind::ProblemKind;
use crate::api;
use crate::http::middleware::request_id::RequestId;
use crate::manager::types::{
    AcquireError, ExtendError, ForceError, GoneReason, HeldReason, HeldRefusal, NoQuorum, ReleaseError,
};
use crate::protocol::EndReason;
use crate::types::ResourceName;

/// The least `Retry-After`: zero would make `curl --retry` spin. Seconds.
pub const RETRY_AFTER_MIN: u64 = 1;
/// The most, and what is said where nothing is known: a release comes unannounced, so nobody should
/// stay away for the whole of a long lease. Seconds.
pub const RETRY_AFTER_MAX: u64 = 30;

/// A request that was not fulfilled. Boxed inside, so that results which carry it stay small.
#[derive(Debug, Clone)]
pub struct Problem(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    slug: ProblemKind,
    detail: String,
    members: api::Members,
    headers: HeaderMap,
}

impl Problem {
    /// Without members. `detail` is shown to the client: no secret, no address.
    pub fn new(slug: ProblemKind, detail: impl Into<String>) -> Self {
        let (detail, members, headers) = (detail.into(), api::Members::default(), HeaderMap::new());
        Self(Box::new(Inner { slug, detail, members, headers }))
    }

    /// Bad input, one field at least.
    pub fn invalid(errors: Vec<api::FieldError>) -> Self {
        let detail = errors.iter().map(|e| format!("{}: {}", e.field, e.detail)).collect::<Vec<_>>().join("; ");
        Self::new(ProblemKind::Invalid, detail).with(|m| m.errors = Some(errors))
    }

    /// Bad input in one place.
    pub fn invalid_field(field: &str, detail: impl Into<String>) -> Self {
        Self::invalid(vec![api::FieldError { field: field.to_owned(), detail: detail.into() }])
    }

    /// Sets extension members.
    #[must_use]
    pub fn with(mut self, set: impl FnOnce(&mut api::Members)) -> Self {
        set(&mut self.0.members);
        self
    }

    /// Sets a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    /// Sets `Retry-After`: rounded up, within its bounds.
    #[must_use]
    pub fn retry_after(self, after: Duration) -> Self {
        let seconds = convert::seconds_up(after).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
        self.header(header::RETRY_AFTER, seconds.into())
    }

    /// Ends the connection after the answer.
    #[must_use]
    pub fn closing(self) -> Self {
        self.header(header::CONNECTION, HeaderValue::from_static("close"))
    }

    /// Its kind.
    pub fn slug(&self) -> ProblemKind {
        self.0.slug
    }

    /// Why, in a word, where there is one.
    pub fn reason(&self) -> Option<&str> {
        self.0.members.reason.as_deref()
    }

    /// The body for the request with this id.
    pub fn body(&self, instance: &str) -> api::Problem {
        let inner = &self.0;
        api::Problem {
            kind: format!("/problems/{}", inner.slug.as_str()),
            title: inner.slug.title().to_owned(),
            status: inner.slug.status().as_u16(),
            detail: inner.detail.clone(),
            instance: instance.to_owned(),
            members: inner.members.clone(),
        }
    }

    fn text(&self) -> String {
        format!("{}: {}\n", self.0.slug.as_str(), convert::one_line(&self.0.detail))
    }
}

/// Status and headers; the body is written by [`ProblemWriter::write`].
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.0.slug.status(), self.0.headers.clone()).into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// What a problem is written like for one request.
pub struct ProblemWriter {
    format: ResponseFormat,
    is_head: bool,
}

impl ProblemWriter {
    /// As this request wants it.
    pub fn of(request: &Request) -> Self {
        Self { format: negotiation::for_problem(request.headers()), is_head: request.method() == Method::HEAD }
    }

    /// Writes the problem out, if the answer is one.
    pub fn write(&self, id: &RequestId, response: &mut Response) {
        let Some(problem) = response.extensions_mut().remove::<Arc<Problem>>() else { return };
        let (kind, body) = match self.format {
            ResponseFormat::Text => ("text/plain; charset=utf-8", problem.text()),
            ResponseFormat::Json => ("application/problem+json", {
                serde_json::to_string(&problem.body(id.as_str())).expect("a problem is plain data") + "\n"
            }),
        };
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(header::CONTENT_LENGTH, body.len().into());
        *response.body_mut() = if self.is_head { Body::empty() } else { body.into() };
    }
}

/// What is answered where a handler panicked.
pub fn of_a_panic() -> Response {
    // The panic hook has logged place and message.
    tracing::error!("a handler panicked; the request was answered with 500");
    Problem::new(ProblemKind::Internal, "the service met a defect of its own; its log has it under this request's id")
        .into_response()
}

/// `"…"`, as an ETag is written. Invalid characters cannot be in a fence or a fingerprint; a value
/// that has some all the same is left out.
pub fn etag(tag: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("\"{tag}\"")).ok()
}

fn locked_members(slug: ProblemKind, resource: &ResourceName, locked: &HeldRefusal, detail: String) -> Problem {
    let reason = match locked.reason {
        HeldReason::Lease => "held",
        HeldReason::Foreign => "foreign",
        HeldReason::LockDelay => "lock-delay",
    };
    Problem::new(slug, detail)
        .with(|m| {
            m.resource = Some(resource.to_string());
            m.reason = Some(reason.to_owned());
            m.holders = Some(locked.holders.iter().map(convert::holder).collect());
            m.waiting = Some(locked.waiting);
            m.nodes = Some(locked.nodes.iter().map(convert::node_outcome).collect());
        })
        .retry_after(locked.free_in.unwrap_or(Duration::from_secs(RETRY_AFTER_MAX)))
}

/// Who has it, in a sentence.
fn held_by(resource: &ResourceName, locked: &HeldRefusal) -> String {
    match (locked.reason, locked.holders.first()) {
        (HeldReason::Foreign, _) => format!("{resource} is held by another Redlock client"),
        (HeldReason::LockDelay, _) => {
            format!("the last lease of {resource} has run out and its safety margin is passing")
        }
        (HeldReason::Lease, Some(holder)) => {
            let owner =
                Some(holder.labels.owner.as_str()).filter(|o| !o.is_empty()).unwrap_or("a holder without a name");
            format!("{resource} is held by {owner} for {} s more", convert::seconds_up(holder.valid_for))
        }
        (HeldReason::Lease, None) => format!("{resource} is held"),
    }
}

/// Too few votes. `about` begins the sentence.
pub fn no_quorum(about: &str, error: &NoQuorum) -> Problem {
    let count = error.quorum;
    let detail =
        format!("{about}: {} of {} nodes voted for it, {} are needed", count.granted, count.nodes, count.needed);
    Problem::new(ProblemKind::QuorumUnavailable, detail)
        .with(|m| {
            m.quorum = Some(convert::quorum(count));
            m.nodes = Some(error.nodes.iter().map(convert::node_outcome).collect());
        })
        .retry_after(error.retry_after)
}

/// Shutting down.
pub fn draining() -> Problem {
    Problem::new(ProblemKind::Draining, "this instance is shutting down: ask another one, or this one in a second")
        .retry_after(Duration::ZERO)
        .closing()
}

/// Why an acquire was not granted.
pub fn acquire_refused(resource: &ResourceName, error: AcquireError) -> Problem {
    match error {
        AcquireError::Held(locked) => {
            let detail = held_by(resource, &locked);
            locked_members(ProblemKind::Locked, resource, &locked, detail)
        }
        AcquireError::WaitTimeout { held: locked, waited, position } => {
            let detail =
                format!("{} ms of waiting were not enough: {}", convert::ms(waited), held_by(resource, &locked));
            locked_members(ProblemKind::WaitTimeout, resource, &locked, detail).with(|m| {
                m.waited_ms = Some(convert::ms(waited));
                m.position = Some(position);
            })
        }
        AcquireError::Deadlock { cycle, waited } => {
            let chain = cycle
                .iter()
                .map(|edge| format!("{} waits for {}, held by {}", edge.owner, edge.waits_for, edge.held_by));
            let chain = chain.collect::<Vec<_>>().join("; ");
            Problem::new(ProblemKind::Deadlock, format!("this would wait for itself: {chain}")).with(|m| {
                m.resource = Some(resource.to_string());
                m.waited_ms = Some(convert::ms(waited));
                m.cycle = Some(cycle.iter().map(convert::deadlock_edge).collect());
            })
        }
        AcquireError::NoQuorum(error) => {
            no_quorum("the lock was not granted", &error).with(|m| m.resource = Some(resource.to_string()))
        }
        AcquireError::Ended(reason) => {
            let reason = match reason {
                EndReason::Released => GoneReason::Released,
                EndReason::Forced | EndReason::Revoked => GoneReason::Forced,
                EndReason::Cancelled => GoneReason::Unknown,
            };
            gone(resource, reason)
        }
        AcquireError::TooManyReplays => Problem::new(
            ProblemKind::QuotaExceeded,
            "this token claims its lease too often: draw a fresh one per acquire",
        )
        .retry_after(Duration::from_secs(RETRY_AFTER_MAX)),
        AcquireError::TooManyWaiters { limit, per_resource } => {
            let scope = if per_resource { "resource" } else { "instance" };
            Problem::new(ProblemKind::TooManyWaiters, format!("{limit} requests wait already, the most per {scope}"))
                .with(|m| {
                    m.limit = Some(limit);
                    m.scope = Some(scope.to_owned());
                })
                .retry_after(Duration::ZERO)
        }
        AcquireError::Draining => draining(),
    }
}

fn gone(resource: &ResourceName, reason: GoneReason) -> Problem {
    let how = match reason {
        GoneReason::Expired => "it ran out",
        GoneReason::Released => "it was released",
        GoneReason::Forced => "an operator ended it",
        GoneReason::Unknown => "the nodes no longer know it",
    };
    Problem::new(ProblemKind::LeaseExpired, format!("this token has no lease on {resource}: {how}")).with(|m| {
        m.resource = Some(resource.to_string());
        m.reason = Some(reason.as_str().to_owned());
    })
}

fn not_holder(resource: &ResourceName) -> Problem {
    Problem::new(ProblemKind::NotHolder, format!("another token holds {resource}"))
        .with(|m| m.resource = Some(resource.to_string()))
}

/// The precondition names another holder than `current`.
pub fn changed(resource: &ResourceName, current: &str) -> Problem {
    let problem = Problem::new(ProblemKind::Changed, format!("{resource} has another holder by now; nothing was done"))
        .with(|m| m.resource = Some(resource.to_string()));
    match etag(current) {
        Some(value) => problem.header(header::ETAG, value),
        None => problem,
    }
}

/// Nobody holds it.
pub fn not_held(resource: &ResourceName) -> Problem {
    Problem::new(ProblemKind::NotHeld, format!("nobody holds {resource}"))
        .with(|m| m.resource = Some(resource.to_string()))
}

/// Why a lease was not extended.
pub fn extend_refused(resource: &ResourceName, error: ExtendError) -> Problem {
    match error {
        ExtendError::NotHolder => not_holder(resource),
        ExtendError::Gone(reason) => gone(resource, reason),
        ExtendError::Changed { current } => changed(resource, &current.to_string()),
        ExtendError::Invalid(field, detail) => Problem::invalid_field(field, detail),
        ExtendError::NoQuorum { no_quorum: error, valid_for } => {
            no_quorum("it is not known whether the lease was extended; its old deadline stands", &error).with(|m| {
                m.resource = Some(resource.to_string());
                m.valid_for_ms = valid_for.map(convert::ms);
            })
        }
    }
}

/// Why a lease was not released.
pub fn release_refused(resource: &ResourceName, error: ReleaseError) -> Problem {
    match error {
        ReleaseError::NotHolder => not_holder(resource),
        ReleaseError::Gone(reason) => gone(resource, reason),
        ReleaseError::NoQuorum(error) => {
            no_quorum("released where it was reached, tried on elsewhere, and over with its TTL at the latest", &error)
                .with(|m| m.resource = Some(resource.to_string()))
        }
    }
}

/// Why nothing was forced.
pub fn force_refused(resource: &ResourceName, error: ForceError) -> Problem {
    match error {
        ForceError::NotHeld => not_held(resource),
        ForceError::Changed { current } => changed(resource, &current),
        ForceError::ForeignRevoke => {
            let detail = "another Redlock client's lock cannot be revoked: it renews without asking us. \
                          `now` ends it, unsafely";
            Problem::invalid_field("force", detail)
        }
        ForceError::NoQuorum(error) => {
            no_quorum("the lock was not ended", &error).with(|m| m.resource = Some(resource.to_string()))
        }
    }
}

#[cfg(test)]
#[path = "problem_tests.rs"]
mod tests;
