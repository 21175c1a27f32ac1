//! `POST /locks/{resource}?hold=true`: the answer is a stream that lives as long as the lease does.
//! Apart from the other handlers, since it answers in lines and not with a body. The lease belongs to
//! the stream: whatever drops the one gives back the other.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tracing::Instrument;

use super::locks::{measure, moment};
use super::negotiation::StreamFormat;
use super::problem;
use super::{convert, responses};
use crate::api;
use crate::auth::quota::{self, QuotaPermit};
use crate::http::middleware::audit::AuditScope;
use crate::http::server::socket::ConnectionHandle;
use crate::http::state::AppState;
use crate::manager::PendingGrant;
use crate::manager::renewal::HeldLease;
use crate::manager::types::{AcquireError, AcquireRequest, GrantedLease, HeldLeaseEvent};
use crate::metrics::leases::AcquireWatch;
use crate::metrics::requests::{InFlightGuard, RequestKind};
use crate::nodes::any::AnyNode;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::entropy::SystemEntropy;
use crate::types::ResourceName;

/// Who is granted or refused within this time is answered with that; everybody else is told the
/// place in the queue first.
const QUEUED_AFTER: Duration = Duration::from_millis(20);
/// A caller that was unplugged is noticed within one part in this many of the TTL after a renewal
/// was sent to it.
const LOSS_PARTS_OF_TTL: u32 = 2;
/// Proxies are not to collect the lines.
const NO_BUFFERING: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

type Acquiring = Pin<Box<dyn Future<Output = Result<GrantedLease, AcquireError>> + Send>>;

/// What is asked.
pub struct HoldParams {
    /// For the manager.
    pub request: AcquireRequest,
    /// In which form it is told.
    pub form: StreamFormat,
    /// Its connection, where it came on one.
    pub connection: Option<ConnectionHandle>,
    /// Among what its principal may have out, where that is counted.
    pub permit: Option<Box<QuotaPermit>>,
    /// Where its fate is written down.
    pub audit_scope: AuditScope,
}

/// Answers with a stream once the lease is granted or queued for; with a problem before that.
///
/// Cancel, and the end of the stream: the place in the queue is given up, the lease released.
pub async fn hold(state: AppState, params: HoldParams) -> Response {
    let HoldParams { request, form, connection, permit, audit_scope } = params;
    if let Some(connection) = &connection {
        connection.notice_loss_within(request.ttl.as_duration() / LOSS_PARTS_OF_TTL);
    }
    let (resource, waits) = (request.resource.clone(), !request.wait.is_zero());
    let mut watch = state.metrics.watch_acquire(waits);
    let manager = state.manager.clone();
    let mut acquiring: Acquiring =
        Box::pin(async move { manager.acquire(request).await.and_then(PendingGrant::commit) });
    let soon = if waits { QUEUED_AFTER } else { Duration::MAX };
    let first = tokio::select! {
        biased;
        outcome = &mut acquiring => Some(outcome),
        () = state.clock.sleep(soon) => None,
    };
    let step = match first {
        Some(outcome) => {
            watch.ended(outcome.as_ref().map(|lease| measure(&state, lease)));
            match outcome {
                Ok(lease) => {
                    audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
                    Step::Granted(state.manager.hold(lease, state.settings.max_hold))
                }
                Err(error) => return problem::acquire_refused(&resource, error).into_response(),
            }
        }
        None => {
            watch.leave_to_stream();
            audit_scope.note(|record| record.outcome = "queued".to_owned());
            Step::Queued(acquiring, watch)
        }
    };
    let on_drop = if matches!(step, Step::Queued(..)) { ABANDONED } else { DISCONNECTED };
    let _flight = state.metrics.watch_stream(RequestKind::Hold);
    let span = tracing::Span::current();
    let fate = Fate { audit_scope, on_drop: Some(on_drop) };
    let mut line = Line { state, resource, form, span, fate, count: Count::Asking(permit), _flight };
    if matches!(step, Step::Granted(_)) {
        line.counts();
    }
    let body = Body::from_stream(stream::unfold((step, line), |(step, mut line)| async move {
        // The answer's body is asked for outside of the request's span.
        let span = line.span.clone();
        let (told, next) = line.step(step).instrument(span).await?;
        Some((told, (next, line)))
    }));
    let kind = match form {
        StreamFormat::Lines => "application/x-ndjson",
        StreamFormat::Events => "text/event-stream",
    };
    let (name, value) = NO_BUFFERING;
    (StatusCode::OK, [(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (name, value)], body).into_response()
}

/// Where a stream is.
enum Step {
    Queued(Acquiring, AcquireWatch),
    Waiting(Acquiring, AcquireWatch),
    Granted(HeldLease<AnyNode, SystemClock, SystemEntropy>),
    Holding(HeldLease<AnyNode, SystemClock, SystemEntropy>),
    /// The body is broken off, so that the caller sees that this was no good end.
    Broken,
}

struct Line {
    state: AppState,
    resource: ResourceName,
    form: StreamFormat,
    span: tracing::Span,
    fate: Fate,
    count: Count,
    _flight: InFlightGuard,
}

/// How the lease counts for its principal; until the stream ends.
enum Count {
    Asking(Option<Box<QuotaPermit>>),
    Held { _held: quota::HeldQuota },
}

/// In the queue: nothing that was granted is left behind.
const ABANDONED: &str = "abandoned";
/// The lease is given back in the background.
const DISCONNECTED: &str = "disconnected";

/// What becomes of a stream, for the audit log: one line for each thing that happens to its lease,
/// and one where it is dropped before its end.
struct Fate {
    audit_scope: AuditScope,
    on_drop: Option<&'static str>,
}

impl Fate {
    /// It goes on, and a drop would mean something else from now on.
    fn granted(&mut self, lease: &GrantedLease) {
        self.audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
        self.audit_scope.tell(if lease.replay { "replayed" } else { "granted" }, None);
        self.on_drop = Some(DISCONNECTED);
    }

    fn ended(&mut self, outcome: &str, reason: Option<&str>) {
        self.audit_scope.tell(outcome, reason);
        self.on_drop = None;
    }
}

impl Drop for Fate {
    fn drop(&mut self) {
        if let Some(outcome) = self.on_drop {
            self.audit_scope.tell(outcome, None);
        }
    }
}

impl Line {
    fn counts(&mut self) {
        if let Count::Asking(permit) = &mut self.count
            && let Some(permit) = permit.take()
        {
            self.count = Count::Held { _held: permit.held(&self.resource) };
        }
    }

    /// The next thing to say; `None` ends the body well.
    async fn step(&mut self, step: Step) -> Option<(io::Result<Bytes>, Step)> {
        match step {
            Step::Queued(acquiring, watch) => {
                // Whoever came after it in the last few milliseconds is counted as well.
                let position = self.state.manager.waiter_count(&self.resource).max(1);
                Some((self.say(&api::HoldEvent::Queued { position }), Step::Waiting(acquiring, watch)))
            }
            Step::Waiting(acquiring, watch) => {
                let outcome = acquiring.await;
                watch.ended(outcome.as_ref().map(|lease| measure(&self.state, lease)));
                match outcome {
                    Ok(lease) => {
                        self.counts();
                        self.fate.granted(&lease);
                        self.granted(self.state.manager.hold(lease, self.state.settings.max_hold))
                    }
                    Err(error) => {
                        let problem = problem::acquire_refused(&self.resource, error);
                        self.fate.ended(problem.slug().as_str(), problem.reason());
                        Some((self.say(&api::HoldEvent::Refused(problem.body(""))), Step::Broken))
                    }
                }
            }
            Step::Granted(held) => self.granted(held),
            Step::Holding(mut held) => {
                let event = held.next().await;
                self.note(event);
                let valid_for_ms = convert::ms(held.lease().deadline.since(self.state.manager.now()));
                let (told, next) = match event {
                    HeldLeaseEvent::Renewed => (api::HoldEvent::Renewed { valid_for_ms }, Step::Holding(held)),
                    HeldLeaseEvent::AtRisk => (api::HoldEvent::AtRisk { valid_for_ms }, Step::Holding(held)),
                    HeldLeaseEvent::Released => return None,
                    HeldLeaseEvent::Lost(reason) => {
                        (api::HoldEvent::Lost { reason: reason.as_str().to_owned() }, Step::Broken)
                    }
                };
                Some((self.say(&told), next))
            }
            Step::Broken => {
                // A connection writes what it has when its body has nothing for it: the last event first.
                tokio::task::yield_now().await;
                Some((Err(io::Error::other("the lease is not held")), Step::Broken))
            }
        }
    }

    /// For metrics, log and audit log.
    fn note(&mut self, event: HeldLeaseEvent) {
        let metrics = &self.state.metrics;
        match event {
            HeldLeaseEvent::Renewed => metrics.hold_renewed("extended"),
            HeldLeaseEvent::AtRisk => metrics.hold_renewed("quorum-unavailable"),
            HeldLeaseEvent::Lost(reason) => {
                metrics.lost(reason);
                let (resource, reason) = (&self.resource, reason.as_str());
                tracing::warn!(%resource, reason, "a connection lost the lease that it held");
                self.fate.ended("lost", Some(reason));
            }
            HeldLeaseEvent::Released => self.fate.ended("released", None),
        }
    }

    fn granted(&self, held: HeldLease<AnyNode, SystemClock, SystemEntropy>) -> Option<(io::Result<Bytes>, Step)> {
        let lease = responses::lease_with_token(held.lease(), moment(&self.state));
        Some((self.say(&api::HoldEvent::Acquired(lease)), Step::Holding(held)))
    }

    fn say(&self, event: &api::HoldEvent) -> io::Result<Bytes> {
        let json = serde_json::to_string(event).expect("events are plain data");
        Ok(Bytes::from(match self.form {
            StreamFormat::Lines => format!("{json}\n"),
            StreamFormat::Events => format!("event: {}\ndata: {json}\n\n", event.word()),
        }))
    }
}
