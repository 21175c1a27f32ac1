//! The audit record of a request: begun when the request arrives, completed by the code that knows more, and written when the
//! request is answered or dropped. Every change of state is recorded, and so is every refusal for lack of a permission; reads are
//! not.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use parking_lot::Mutex;

use super::metrics::method_label;
use super::request_id::{RequestId, TraceParent};
use crate::audit::{Audit, AuditRecord};
use crate::http::path;
use crate::http::problem::Problem;
use crate::http::request_context::RequestContext;
use crate::http::routes::{MatchedRoute, Operation};
use crate::types::{Fence, ResourceName, TokenId, WantedMode};

/// The outcome of a request whose client disconnected.
const ABANDONED: &str = "abandoned";
/// The outcome of a request whose handler panicked.
const INTERNAL: &str = "internal";

/// The audit record of a request in progress. Cheap to clone; does nothing without an audit log.
#[derive(Clone, Default)]
pub(crate) struct AuditScope(Option<Arc<Inner>>);

struct Inner {
    audit: Audit,
    is_change: bool,
    record: Mutex<AuditRecord>,
    /// For a request for several resources: one record is written for each.
    parts: Mutex<Vec<AuditPart>>,
}

/// The fields of the record of one of several resources; the other fields come from the request's record.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditPart {
    /// The name of the one lock that this part is about.
    pub resource: String,
    /// Replaces the request's outcome.
    pub outcome: Option<String>,
    /// As in the record; replaces the request's mode.
    pub mode: Option<String>,
    /// As in the record.
    pub fence: Option<u64>,
    /// As in the record.
    pub held_ms: Option<u64>,
    /// Replaces the request's reason.
    pub reason: Option<String>,
}

impl AuditPart {
    /// A part for this resource without further fields.
    pub(crate) fn of(resource: &ResourceName) -> Self {
        Self { resource: resource.to_string(), ..Self::default() }
    }
}

impl Inner {
    /// Writes the record; for several resources, one for each.
    fn put(&self, record: &AuditRecord) {
        let parts = self.parts.lock();
        if parts.is_empty() {
            return self.audit.put(record.clone());
        }
        for part in parts.iter() {
            self.audit.put(AuditRecord {
                resource: Some(part.resource.clone()),
                outcome: part.outcome.clone().unwrap_or_else(|| record.outcome.clone()),
                mode: part.mode.clone().or_else(|| record.mode.clone()),
                fence: part.fence,
                held_ms: part.held_ms,
                reason: part.reason.clone().or_else(|| record.reason.clone().filter(|_| part.outcome.is_none())),
                ..record.clone()
            });
        }
    }
}

impl AuditScope {
    /// The record of a request that has passed the request layer.
    pub(crate) fn of(request: &Request) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    fn begin(audit: &Audit, id: &RequestId, request: &Request, route: Option<MatchedRoute>) -> Self {
        let record = AuditRecord {
            request_id: Some(id.as_str().to_owned()),
            trace_id: TraceParent::sent(request.headers()).map(|parent| parent.trace_id),
            peer: RequestContext::connection(request).map(|connection| connection.peer().to_string()),
            action: action(request.method(), route).into_owned(),
            resource: path::resource(request.uri()).ok().map(|name| name.to_string()),
            ..AuditRecord::default()
        };
        // Without an operation, the method is not allowed: nothing changes, and anybody may send such a request.
        let is_change = route.is_some_and(|r| r.operation.is_some()) && !is_safe(request.method());
        let (audit, record, parts) = (audit.clone(), Mutex::new(record), Mutex::default());
        Self(Some(Arc::new(Inner { audit, is_change, record, parts })))
    }

    /// Completes the record. `change` is not called without an audit log.
    pub(crate) fn note(&self, change: impl FnOnce(&mut AuditRecord)) {
        if let Some(inner) = &self.0 {
            change(&mut inner.record.lock());
        }
    }

    /// Sets the resources of the request: one record is written for each. `parts` is not read without an audit log.
    pub(crate) fn split(&self, parts: impl Iterator<Item = AuditPart>) {
        if let Some(inner) = &self.0 {
            // Collected first: the iterator may note something.
            let parts = parts.collect();
            *inner.parts.lock() = parts;
        }
    }

    /// Sets the authenticated principal.
    pub(crate) fn name(&self, principal: &str) {
        self.note(|record| record.principal = Some(principal.to_owned()));
    }

    /// Records a grant; `token` is not called without an audit log.
    pub(crate) fn granted(&self, is_replay: bool, token: impl FnOnce() -> TokenId, fence: Fence) {
        self.note(|record| {
            record.outcome = if is_replay { "replayed" } else { "granted" }.to_owned();
            record.token_id = Some(token().to_string());
            record.fence = Some(fence.0);
        });
    }

    /// Records how the lease shares its resource; records nothing for an exclusive one.
    pub(crate) fn mode(&self, mode: WantedMode) {
        self.note(|record| record.mode = mode_word(mode));
    }

    /// Writes a further record, for events of a stream after the head of its answer.
    pub(crate) fn write(&self, outcome: &str, reason: Option<&str>) {
        if let Some(inner) = &self.0 {
            let record = inner.record.lock().clone();
            let (outcome, reason) = (outcome.to_owned(), reason.map(str::to_owned));
            inner.audit.put(AuditRecord { outcome, reason, status: None, ..record });
        }
    }

    fn answered(&self, response: &Response) {
        let Some(inner) = &self.0 else { return };
        let status = response.status();
        let is_denial =
            matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST);
        if !inner.is_change && !is_denial {
            return;
        }
        let mut record = inner.record.lock();
        record.status = Some(status.as_u16());
        if let Some(problem) = response.extensions().get::<Arc<Problem>>() {
            record.outcome = problem.kind().as_str().to_owned();
            if record.reason.is_none() {
                record.reason = problem.reason().map(str::to_owned);
            }
        } else if record.outcome.is_empty() {
            record.outcome = status.canonical_reason().unwrap_or_default().to_ascii_lowercase();
        }
        inner.put(&record);
        // Later records of a stream are not about the answer.
        record.status = None;
    }

    fn dropped(&self, outcome: &str) {
        let Some(inner) = self.0.as_ref().filter(|inner| inner.is_change) else { return };
        let record = inner.record.lock().clone();
        inner.put(&AuditRecord { outcome: outcome.to_owned(), ..record });
    }
}

/// Writes the record when the request is answered. Dropped without an answer, it records a requested change as
/// abandoned.
pub(crate) struct AuditGuard(AuditScope);

impl AuditGuard {
    /// Begins the record and leaves its [`AuditScope`] in the request's extensions.
    pub(crate) fn begin(audit: &Audit, id: &RequestId, request: &mut Request, route: Option<MatchedRoute>) -> Self {
        if !audit.is_on() {
            return Self(AuditScope::default());
        }
        let audit_scope = AuditScope::begin(audit, id, request, route);
        request.extensions_mut().insert(audit_scope.clone());
        Self(audit_scope)
    }

    /// The request was answered.
    pub(crate) fn answered(mut self, response: &Response) {
        std::mem::take(&mut self.0).answered(response);
    }

    /// The handler panicked.
    pub(crate) fn panicked(mut self) {
        std::mem::take(&mut self.0).dropped(INTERNAL);
    }
}

impl Drop for AuditGuard {
    fn drop(&mut self) {
        self.0.dropped(ABANDONED);
    }
}

/// The mode as in a record: nothing for an exclusive lease.
pub(crate) fn mode_word(mode: WantedMode) -> Option<String> {
    Some(mode).filter(|mode| *mode != WantedMode::Exclusive).map(|mode| mode.as_str().to_owned())
}

fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// The action, as far as method and route determine it; handlers may refine it.
fn action(method: &Method, route: Option<MatchedRoute>) -> Cow<'static, str> {
    match route.and_then(|r| r.operation) {
        Some(Operation::Acquire | Operation::AcquireSet | Operation::TerraformLock) => "acquire".into(),
        Some(Operation::Extend | Operation::ExtendSet) => "extend".into(),
        Some(Operation::Release | Operation::ReleaseSet | Operation::TerraformUnlock) => "release".into(),
        Some(Operation::KeepTicket) => "keep-ticket".into(),
        Some(Operation::EndTicket) => "end-ticket".into(),
        // A client may send any word as method.
        _ => format!("{} {}", method_label(method), route.map_or("unmatched", |r| r.path)).into(),
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::handler::Handler;
    use axum::response::IntoResponse;
    use axum::routing::any;
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt;

    use super::*;
    use crate::http::middleware::stack::RequestLayer;
    use crate::http::problem_kind::ProblemKind;
    use crate::metrics::Metrics;

    async fn forbidden(request: Request) -> Response {
        AuditScope::of(&request).name("team-a");
        Problem::new(ProblemKind::Forbidden, "not allowed").into_response()
    }

    async fn panics() -> Response {
        panic!("a defect")
    }

    /// The records of these requests, as action, principal, outcome and status.
    async fn written(requests: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("audit.log");
        let (audit, writer) = Audit::open(&file).expect("opens");
        let layer = RequestLayer::new(Metrics::new(&[], &[]), audit, Arc::new(crate::http::state::shipped_settings()));
        let matched = |path, operation| layer.clone().matched(MatchedRoute { path, operation });
        let router = Router::new()
            .route("/locks/a", any(forbidden).layer(matched("/locks/{resource}", Some(Operation::Acquire))))
            .route("/nodes", any(forbidden).layer(matched("/nodes", Some(Operation::Nodes))))
            .route("/fine", any(async || "").layer(matched("/fine", Some(Operation::ChangeNode))))
            .route("/panic", any(panics).layer(matched("/panic", Some(Operation::ChangeNode))))
            .route("/405", any(async || StatusCode::METHOD_NOT_ALLOWED).layer(matched("/405", None)))
            .fallback((async || "").layer(layer));
        for (method, path) in requests {
            let request = Request::builder().method(*method).uri(*path).body(Body::empty()).expect("a request");
            router.clone().oneshot(request).await.expect("infallible");
        }
        let stop = CancellationToken::new();
        stop.cancel();
        writer.run(stop).await;
        let text = std::fs::read_to_string(&file).expect("readable");
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let field = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
            format!("{}|{}|{}|{}", field("action"), field("principal"), field("outcome"), line["status"])
        };
        text.lines().map(line).collect()
    }

    #[tokio::test]
    async fn denials_are_recorded_for_every_method_and_successful_reads_are_not() {
        let found = written(&[("GET", "/nodes"), ("GET", "/fine"), ("HEAD", "/fine"), ("POST", "/locks/a")]).await;
        let expected = ["GET /nodes|team-a|forbidden|403", "acquire|team-a|forbidden|403"].map(str::to_owned);
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn changes_without_a_handlers_description_and_panics_are_recorded() {
        let long = "M".repeat(15_000);
        let found = written(&[
            ("POST", "/fine"),
            ("DELETE", "/panic"),
            ("POST", "/no/such/path"),
            ("DELETE", "/405"),
            (long.as_str(), "/405"),
            (long.as_str(), "/nodes"),
        ])
        .await;
        let expected = ["POST /fine|-|ok|200", "DELETE /panic|-|internal|null", "other /nodes|team-a|forbidden|403"];
        let expected = expected.map(str::to_owned);
        assert_eq!(found, expected);
    }
}
