//! `POST /locks/{resource}?hold=true`: the answer is a stream that lives as long as the lease. Dropping the stream
//! releases the lease; losing the lease breaks the stream off.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::{lock_responses, refusals};
use crate::api;
use crate::auth::quota::{HeldQuota, QuotaPermit};
use crate::http::access::Access;
use crate::http::connection::Connection;
use crate::http::format;
use crate::http::log_request::{InRequest, LogRequest};
use crate::http::middleware::audit::AuditScope;
use crate::http::negotiation::StreamFormat;
use crate::http::state::AppState;
use crate::manager::PendingGrant;
use crate::manager::hold_renewal::HeldLease;
use crate::manager::types::{AcquireError, AcquireRequest, GrantedLease, HeldLeaseEvent};
use crate::metrics::leases::AcquireWatch;
use crate::metrics::requests::{InFlightGuard, RequestKind};
use crate::nodes::any_node::AnyNode;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::random::SystemEntropy;
use crate::types::ResourceName;

/// A decision within this time is the first answer; later ones come after the queue position.
const QUEUED_AFTER: Duration = Duration::from_millis(20);
/// The loss of an unplugged client is noticed within TTL / this number after a renewal was sent to it.
const LOSS_PARTS_OF_TTL: u32 = 2;
/// Proxies must not buffer the stream.
pub(super) const NO_BUFFERING: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

type Acquiring = Pin<Box<dyn Future<Output = Result<GrantedLease, AcquireError>> + Send>>;
type Held = HeldLease<AnyNode, SystemClock, SystemEntropy>;

/// A parsed acquire that holds.
pub(crate) struct HoldFields {
    /// The request for the manager.
    pub request: AcquireRequest,
    /// The format of the stream.
    pub format: StreamFormat,
    /// The connection of the request; `None` in tests without one.
    pub connection: Option<Arc<Connection>>,
    /// The permissions of the client.
    pub access: Access,
    /// The reservation in the principal's quota; `None` without authentication.
    pub permit: Option<Arc<QuotaPermit>>,
    /// The audit record of the request.
    pub audit_scope: AuditScope,
}

/// Answers with a stream once the lease is granted or the request is queued; with a problem if it is refused before that.
///
/// Cancel, and the end of the stream: the queue position is given up, and the lease is released.
pub(crate) async fn hold(state: AppState, params: HoldFields) -> Response {
    let HoldFields { request, format, connection, access, permit, audit_scope } = params;
    if let Some(connection) = &connection {
        connection.notice_loss_within(request.ttl.as_duration() / LOSS_PARTS_OF_TTL);
    }
    let (resource, waits) = (request.resource.clone(), !request.wait.is_zero());
    let owner = refusals::asked_owner(&request);
    let mut watch = state.metrics.watch_acquire_in(request.mode, waits);
    let manager = state.manager.clone();
    let mut acquiring: Acquiring =
        Box::pin(async move { manager.acquire(request).await.and_then(PendingGrant::commit) });
    let queued_after = if waits { QUEUED_AFTER } else { Duration::MAX };
    let decided = tokio::select! {
        biased;
        outcome = &mut acquiring => Some(outcome),
        () = state.clock.sleep(queued_after) => None,
    };
    let (step, on_drop) = match decided {
        Some(outcome) => {
            watch.ended(outcome.as_ref().map(|lease| state.measure(lease)));
            let lease = match outcome {
                Ok(lease) => lease,
                Err(error) => return refusals::acquire(&resource, error, &access).into_response(),
            };
            if let Some(problem) = refusals::other_owner(&lease, owner.as_deref()) {
                return problem.into_response();
            }
            audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
            audit_scope.mode(lease.mode.wanted());
            (Step::Granted(state.manager.hold(lease, state.settings.max_hold)), DISCONNECTED)
        }
        None => {
            watch.leave_to_stream();
            audit_scope.note(|record| record.outcome = "queued".to_owned());
            (Step::Queued(acquiring, watch), ABANDONED)
        }
    };
    let in_flight = state.metrics.watch_stream(RequestKind::Hold);
    let in_log = LogRequest::current();
    let held_since = (on_drop == DISCONNECTED).then(|| SystemClock.now());
    let audit = StreamAudit { audit_scope, on_drop: Some(on_drop), held_since };
    let quota = LeaseQuota::Reserved(permit);
    let mut stream = HoldStream { state, resource, owner, access, format, in_log, audit, quota, _in_flight: in_flight };
    if let Step::Granted(held) = &step {
        stream.occupy_quota(held.lease());
    }
    stream.into_response(step)
}

/// The state of a stream.
enum Step {
    Queued(Acquiring, AcquireWatch),
    Waiting(Acquiring, AcquireWatch),
    Granted(Held),
    Holding(Held),
    /// The body ends with an error, which the client can tell from a regular end.
    Broken,
}

struct HoldStream {
    state: AppState,
    resource: ResourceName,
    /// The result of [`refusals::asked_owner`].
    owner: Option<Box<str>>,
    access: Access,
    format: StreamFormat,
    in_log: Option<Arc<LogRequest>>,
    audit: StreamAudit,
    quota: LeaseQuota,
    _in_flight: InFlightGuard,
}

/// How the stream counts in its principal's quota until the stream ends.
enum LeaseQuota {
    Reserved(Option<Arc<QuotaPermit>>),
    Occupied { _held: HeldQuota },
}

/// The outcome of a stream that is dropped in the queue: nothing was granted.
const ABANDONED: &str = "abandoned";
/// The outcome of a stream that is dropped while it holds: the lease is released in the background.
const DISCONNECTED: &str = "disconnected";

/// Writes one audit record for each change of the lease, and one if the stream is dropped before its end.
struct StreamAudit {
    audit_scope: AuditScope,
    on_drop: Option<&'static str>,
    /// When the lease was granted.
    held_since: Option<BootTime>,
}

impl StreamAudit {
    fn granted(&mut self, lease: &GrantedLease) {
        self.audit_scope.granted(lease.replay, || lease.token.hash().id(), lease.fence);
        self.audit_scope.mode(lease.mode.wanted());
        self.audit_scope.note(|record| record.waited_ms = Some(format::ms(lease.waited)));
        self.held_since = Some(SystemClock.now());
        self.audit_scope.write(if lease.replay { "replayed" } else { "granted" }, None);
        self.on_drop = Some(DISCONNECTED);
    }

    fn ended(&mut self, outcome: &str, reason: Option<&str>) {
        self.write(outcome, reason);
        self.on_drop = None;
    }

    fn write(&self, outcome: &str, reason: Option<&str>) {
        let held = self.held_since.map(|since| format::ms(SystemClock.now().since(since)));
        self.audit_scope.note(|record| record.held_ms = held);
        self.audit_scope.write(outcome, reason);
    }
}

impl Drop for StreamAudit {
    fn drop(&mut self) {
        if let Some(outcome) = self.on_drop {
            self.write(outcome, None);
        }
    }
}

/// The value of an event in one word, for shells; for a grant, the token.
fn value(event: &api::HoldEvent) -> String {
    match event {
        api::HoldEvent::Queued { position } => position.to_string(),
        api::HoldEvent::Acquired(lease) => lease.token.as_ref().map_or_else(String::new, |token| token.0.clone()),
        api::HoldEvent::Renewed { valid_for_ms }
        | api::HoldEvent::AtRisk { valid_for_ms }
        | api::HoldEvent::Moved { valid_for_ms } => valid_for_ms.to_string(),
        api::HoldEvent::Lost { reason } => reason.clone(),
        api::HoldEvent::Refused(problem) => problem.kind.rsplit('/').next().unwrap_or_default().to_owned(),
    }
}

impl HoldStream {
    fn into_response(self, first: Step) -> Response {
        let content_type = match self.format {
            StreamFormat::Lines => "application/x-ndjson",
            StreamFormat::Events => "text/event-stream",
            StreamFormat::Text => "text/plain; charset=utf-8",
        };
        let body = Body::from_stream(stream::unfold((first, self), |(step, mut stream)| async move {
            // hyper polls the body after the request's future has ended.
            let in_log = stream.in_log.clone();
            let (event, next) = InRequest::new(in_log, Box::pin(stream.next(step))).await?;
            Some((event, (next, stream)))
        }));
        let content_type = (header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        (StatusCode::OK, [content_type, NO_BUFFERING], body).into_response()
    }

    fn occupy_quota(&mut self, lease: &GrantedLease) {
        if let LeaseQuota::Reserved(permit) = &mut self.quota
            && let Some(permit) = permit.take()
        {
            self.quota = LeaseQuota::Occupied { _held: permit.held(lease.counted()) };
        }
    }

    /// The next event; `None` ends the body regularly.
    async fn next(&mut self, step: Step) -> Option<(io::Result<Bytes>, Step)> {
        match step {
            Step::Queued(acquiring, watch) => {
                // Includes requests that arrived within `QUEUED_AFTER` behind it.
                let position = self.state.manager.waiter_count(&self.resource).max(1);
                Some((self.encode(&api::HoldEvent::Queued { position }), Step::Waiting(acquiring, watch)))
            }
            Step::Waiting(acquiring, watch) => {
                let outcome = acquiring.await;
                watch.ended(outcome.as_ref().map(|lease| self.state.measure(lease)));
                Some(self.decided(outcome))
            }
            Step::Granted(held) => Some(self.acquired(held)),
            Step::Holding(held) => self.held(held).await,
            Step::Broken => {
                // Lets the connection write the last event before the error closes it.
                tokio::task::yield_now().await;
                Some((Err(io::Error::other("the lease is not held")), Step::Broken))
            }
        }
    }

    fn decided(&mut self, outcome: Result<GrantedLease, AcquireError>) -> (io::Result<Bytes>, Step) {
        let problem = match outcome {
            Ok(lease) => match refusals::other_owner(&lease, self.owner.as_deref()) {
                None => {
                    self.occupy_quota(&lease);
                    self.audit.granted(&lease);
                    return self.acquired(self.state.manager.hold(lease, self.state.settings.max_hold));
                }
                Some(problem) => problem,
            },
            Err(error) => refusals::acquire(&self.resource, error, &self.access),
        };
        self.audit.ended(problem.kind().as_str(), problem.reason());
        (self.encode(&api::HoldEvent::Refused(problem.body(""))), Step::Broken)
    }

    fn acquired(&self, held: Held) -> (io::Result<Bytes>, Step) {
        let lease = lock_responses::lease_with_token(held.lease(), self.state.answer_time());
        (self.encode(&api::HoldEvent::Acquired(lease)), Step::Holding(held))
    }

    /// Waits for the next change of the held lease.
    async fn held(&mut self, mut held: Held) -> Option<(io::Result<Bytes>, Step)> {
        let change = held.next().await;
        self.record(change);
        let valid_for_ms = format::ms(held.lease().deadline.since(self.state.manager.now()));
        let (event, next) = match change {
            HeldLeaseEvent::Renewed => (api::HoldEvent::Renewed { valid_for_ms }, Step::Holding(held)),
            HeldLeaseEvent::AtRisk => (api::HoldEvent::AtRisk { valid_for_ms }, Step::Holding(held)),
            HeldLeaseEvent::Moved => (api::HoldEvent::Moved { valid_for_ms }, Step::Broken),
            HeldLeaseEvent::Released => return None,
            HeldLeaseEvent::Lost(reason) => (api::HoldEvent::Lost { reason: reason.as_str().to_owned() }, Step::Broken),
        };
        Some((self.encode(&event), next))
    }

    /// For metrics, log and audit log.
    fn record(&mut self, change: HeldLeaseEvent) {
        let metrics = &self.state.metrics;
        match change {
            HeldLeaseEvent::Renewed => metrics.hold_renewed("extended"),
            HeldLeaseEvent::AtRisk => metrics.hold_renewed("quorum-unavailable"),
            HeldLeaseEvent::Lost(reason) => {
                metrics.lost(reason);
                let (resource, reason) = (&self.resource, reason.as_str());
                tracing::warn!(%resource, reason, "a stream lost the lease that it held");
                self.audit.ended("lost", Some(reason));
            }
            HeldLeaseEvent::Released => self.audit.ended("released", None),
            HeldLeaseEvent::Moved => self.audit.ended("moved", None),
        }
    }

    fn encode(&self, event: &api::HoldEvent) -> io::Result<Bytes> {
        let json = serde_json::to_string(event).expect("events are plain data");
        Ok(Bytes::from(match self.format {
            StreamFormat::Lines => format!("{json}\n"),
            StreamFormat::Events => format!("event: {}\ndata: {json}\n\n", event.as_str()),
            StreamFormat::Text => format!("{} {}\n", event.as_str(), value(event)),
        }))
    }
}
