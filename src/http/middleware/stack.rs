//! The outermost layer, around every handler. It does seven jobs for each request, in this order: names the request (for the
//! answer and the log), measures it, records it for the audit log, refuses a malformed head, answers a panic with 500, turns
//! problems into pages below `/ui`, and writes problems out. One service with plain steps: a tower layer per step would clone and
//! box everything inside it for each request.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tower::{Layer, Service};

use super::audit::AuditGuard;
use super::html_response::{self, HtmlResponse};
use super::metrics::MeasuredRequest;
use super::request_id::{self, RequestId};
use crate::audit::Audit;
use crate::http::log_request::{InRequest, LogRequest};
use crate::http::problem::{self, ProblemWriter};
use crate::http::request_context::RequestContext;
use crate::http::request_head;
use crate::http::routes::MatchedRoute;
use crate::http::state::HttpSettings;
use crate::metrics::Metrics;

/// The answer to a request.
pub(crate) type Answer = InRequest<dyn Future<Output = Result<Response, Infallible>> + Send>;

/// The layer of one route. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RequestLayer {
    context: Arc<LayerContext>,
    route: Option<MatchedRoute>,
}

struct LayerContext {
    metrics: Arc<Metrics>,
    audit: Audit,
    settings: Arc<HttpSettings>,
}

impl RequestLayer {
    /// The layer for requests without a route.
    pub(crate) fn new(metrics: Arc<Metrics>, audit: Audit, settings: Arc<HttpSettings>) -> Self {
        Self { context: Arc::new(LayerContext { metrics, audit, settings }), route: None }
    }

    /// The layer for one route, or for one path whose method does not match.
    #[must_use]
    pub(crate) fn matched(self, route: MatchedRoute) -> Self {
        Self { route: Some(route), ..self }
    }
}

impl<S> Layer<S> for RequestLayer {
    type Service = RequestService<S>;

    fn layer(&self, inner: S) -> RequestService<S> {
        RequestService { layer: self.clone(), inner }
    }
}

/// A service inside the layer.
#[derive(Clone)]
pub(crate) struct RequestService<S> {
    layer: RequestLayer,
    inner: S,
}

/// Cancel (the client disconnected): the request counts as abandoned, and a requested change is recorded as such.
impl<S> Service<Request> for RequestService<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let RequestLayer { context, route } = &self.layer;
        // The id first: everything inside this layer logs and answers with it.
        let (id, in_log) = request_id::identify(&request);
        let in_log = Some(in_log);
        let steps = ResponseSteps {
            measured: MeasuredRequest::begin(&context.metrics, &request, *route),
            problem_writer: ProblemWriter::of(&request),
            html_response: HtmlResponse::of(&request, &context.settings),
            audit_guard: AuditGuard::begin(&context.audit, &id, &mut request, *route),
            id,
        };
        // Tests call the router without a connection, and without a host.
        let mut head = RequestContext::connection(&request).map_or(Ok(()), |_| request_head::check(&request));
        if route.is_none() {
            // On a route, this check comes after the client's address was noted.
            head = head.and_then(|()| request_head::check_uri(&request, context.settings.uri_limit));
        }
        if let Err(problem) = head {
            let answer = LogRequest::enter(&in_log, || steps.finish(Some(problem.into_response())));
            return Answer::new(in_log, Box::pin(std::future::ready(Ok(answer))));
        }
        // No async block: it would keep a second copy of the awaited future.
        let answer = AssertUnwindSafe(self.inner.call(request)).catch_unwind();
        let answer = answer.map(move |answer| match answer {
            Ok(Ok(response)) => Ok(steps.finish(Some(response))),
            Err(_) => Ok(steps.finish(None)),
        });
        Answer::new(in_log, Box::pin(answer))
    }
}

/// The data of a request that its answer needs. Dropped unfinished when the client disconnects.
struct ResponseSteps {
    id: RequestId,
    measured: MeasuredRequest,
    problem_writer: ProblemWriter,
    html_response: Option<HtmlResponse>,
    audit_guard: AuditGuard,
}

impl ResponseSteps {
    /// `None`: the handler panicked.
    fn finish(self, response: Option<Response>) -> Response {
        let Self { id, measured, problem_writer, html_response, audit_guard } = self;
        let mut response = match response {
            Some(response) => {
                // Before the problem is written out and removed from the extensions.
                audit_guard.answered(&response);
                response
            }
            None => {
                audit_guard.panicked();
                problem::handler_panicked()
            }
        };
        let is_page = html_response.is_some();
        if let Some(html_response) = html_response {
            response = html_response.apply(id.as_str(), response);
        }
        problem_writer.write(&id, &mut response);
        html_response::add_headers(response.headers_mut(), is_page);
        measured.answered(&response);
        id.write(&mut response);
        response
    }
}
