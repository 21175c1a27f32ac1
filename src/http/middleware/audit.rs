//! The audit record of a request: begun when the request arrives, completed by whichever code knows more,
//! and written when the request is answered or dropped. Every change of state is recorded, and so is every
//! refusal for lack of a permission; reads are not.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use axum::response::Response;

use super::request_id::{RequestId, TraceParent};
use crate::audit::{Audit, AuditRecord};
use crate::http::api::extract;
use crate::http::api::problem::Problem;
use crate::http::routes::{Operation, ROUTES};
use crate::http::server::socket::ConnectionHandle;
use crate::types::{Fence, TokenId};

/// What happened that has no status code of its own.
const ABANDONED: &str = "abandoned";
/// A handler panicked.
const INTERNAL: &str = "internal";

/// A request's record in the making. Cheap to clone; does nothing where there is no audit log.
#[derive(Clone, Default)]
pub struct AuditScope(Option<Arc<Inner>>);

struct Inner {
    audit: Audit,
    is_change: bool,
    record: Mutex<AuditRecord>,
}

impl AuditScope {
    /// The scope of a request that has passed the layer.
    pub fn of(request: &Request) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    fn begin(audit: &Audit, request: &Request) -> Self {
        let pattern = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        let text = |id: &RequestId| id.as_str().to_owned();
        let peer = request.extensions().get::<ConnectionHandle>().and_then(ConnectionHandle::peer);
        let record = AuditRecord {
            request_id: request.extensions().get::<RequestId>().map(text),
            trace_id: TraceParent::sent(request.headers()).map(|parent| parent.trace_id),
            peer: peer.map(|address| address.to_string()),
            action: action(request.method(), pattern).into_owned(),
            resource: extract::resource(request.uri()).ok().map(|name| name.to_string()),
            ..AuditRecord::default()
        };
        let is_change = pattern.is_some() && !is_safe(request.method());
        Self(Some(Arc::new(Inner { audit: audit.clone(), is_change, record: Mutex::new(record) })))
    }

    /// Adds what is known. `change` is not called where there is no audit log.
    pub fn note(&self, change: impl FnOnce(&mut AuditRecord)) {
        if let Some(inner) = &self.0 {
            change(&mut inner.record());
        }
    }

    /// Who the caller proved to be: for whoever checks that.
    pub fn name(&self, principal: &str) {
        self.note(|record| record.principal = Some(principal.to_owned()));
    }

    /// A lease was granted to it.
    pub fn granted(&self, is_replay: bool, token: impl FnOnce() -> TokenId, fence: Fence) {
        self.note(|record| {
            record.outcome = if is_replay { "replayed" } else { "granted" }.to_owned();
            record.token_id = Some(token().to_string());
            record.fence = Some(fence.0);
        });
    }

    /// A line of its own, about what happened after the answer's head: of a stream.
    pub fn tell(&self, outcome: &str, reason: Option<&str>) {
        if let Some(inner) = &self.0 {
            let record = inner.record().clone();
            let (outcome, reason) = (outcome.to_owned(), reason.map(str::to_owned));
            inner.audit.put(AuditRecord { outcome, reason, status: None, ..record });
        }
    }

    /// The request is answered.
    fn answered(&self, response: &Response) {
        let Some(inner) = &self.0 else { return };
        let status = response.status();
        let is_denial =
            matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST);
        if !inner.is_change && !is_denial {
            return;
        }
        let mut record = inner.record();
        record.status = Some(status.as_u16());
        if let Some(problem) = response.extensions().get::<Arc<Problem>>() {
            record.outcome = problem.slug().as_str().to_owned();
            if record.reason.is_none() {
                record.reason = problem.reason().map(str::to_owned);
            }
        } else if record.outcome.is_empty() {
            record.outcome = status.canonical_reason().unwrap_or_default().to_ascii_lowercase();
        }
        inner.audit.put(record.clone());
        // What a stream says later is another event.
        record.status = None;
    }

    fn dropped(&self, outcome: &str) {
        let Some(inner) = self.0.as_ref().filter(|inner| inner.is_change) else { return };
        let record = inner.record().clone();
        inner.audit.put(AuditRecord { outcome: outcome.to_owned(), ..record });
    }
}

impl Inner {
    fn record(&self) -> MutexGuard<'_, AuditRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is followed. Dropped without an answer, a change that was asked for is written down
/// as abandoned.
pub struct AuditGuard(AuditScope);

impl AuditGuard {
    /// From now on; everybody below finds its [`AuditScope`].
    pub fn begin(audit: &Audit, request: &mut Request) -> Self {
        if !audit.is_on() {
            return Self(AuditScope::default());
        }
        let audit_scope = AuditScope::begin(audit, request);
        request.extensions_mut().insert(audit_scope.clone());
        Self(audit_scope)
    }

    /// It was answered.
    pub fn answered(mut self, response: &Response) {
        std::mem::take(&mut self.0).answered(response);
    }

    /// Its handler panicked.
    pub fn panicked(mut self) {
        std::mem::take(&mut self.0).dropped(INTERNAL);
    }
}

impl Drop for AuditGuard {
    fn drop(&mut self) {
        self.0.dropped(ABANDONED);
    }
}

fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// What is asked for, as far as method and route say it.
fn action(method: &Method, pattern: Option<&str>) -> Cow<'static, str> {
    let route = ROUTES.iter().find(|r| Some(r.pattern) == pattern && r.method == method.as_str());
    match route.map(|r| r.operation) {
        Some(Operation::Acquire) => "acquire".into(),
        Some(Operation::Extend) => "extend".into(),
        Some(Operation::Release) => "release".into(),
        _ => format!("{method} {}", route.map(|r| r.path).or(pattern).unwrap_or("unmatched")).into(),
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::response::IntoResponse;
    use axum::routing::{any, get};
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt;

    use super::*;
    use crate::http::api::problem_kind::ProblemKind;
    use crate::http::middleware::request_layer::RequestLayer;
    use crate::metrics::Metrics;

    async fn forbidden(request: Request) -> Response {
        AuditScope::of(&request).name("team-a");
        Problem::new(ProblemKind::Forbidden, "not yours").into_response()
    }

    /// What is written down of these requests, as action, principal, outcome and status.
    async fn written(requests: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        let (audit, writer) = Audit::open(&path).expect("opens");
        let router = Router::new()
            .route("/locks/{*resource}", any(forbidden))
            .route("/fine", get(|| async { "" }).post(|| async { "" }))
            .route(
                "/panic",
                any(async || {
                    if true {
                        panic!("a defect")
                    }
                }),
            )
            .layer(RequestLayer::new(Metrics::new(&[], &[]), audit, false));
        for (method, path) in requests {
            let request = Request::builder().method(*method).uri(*path).body(Body::empty()).expect("a request");
            router.clone().oneshot(request).await.expect("infallible");
        }
        let stop = CancellationToken::new();
        stop.cancel();
        writer.run(stop).await;
        let text = std::fs::read_to_string(&path).expect("readable");
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let word = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
            format!("{}|{}|{}|{}", word("action"), word("principal"), word("outcome"), line["status"])
        };
        text.lines().map(line).collect()
    }

    #[tokio::test]
    async fn denials_are_written_down_whatever_was_asked_and_reading_is_not() {
        let found = written(&[("GET", "/locks/a"), ("GET", "/fine"), ("HEAD", "/fine"), ("POST", "/locks/a")]).await;
        let expected =
            ["GET /locks/{resource}|team-a|forbidden|403", "acquire|team-a|forbidden|403"].map(str::to_owned);
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn a_change_that_no_handler_described_and_one_that_panicked_are_written_down() {
        let found = written(&[("POST", "/fine"), ("DELETE", "/panic"), ("POST", "/no/such/path")]).await;
        let expected = ["POST /fine|-|ok|200", "DELETE /panic|-|internal|null"].map(str::to_owned);
        assert_eq!(found, expected);
    }
}
