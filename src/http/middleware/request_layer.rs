//! What every request passes, whatever it asks for, and every answer on its way out: the one layer around
//! all routes. Each step is its neighbour's business; here is their order. One service with plain steps
//! before and after it: a layer for each would copy and box all that is below it, for every request.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::FutureExt;
use tower::{Layer, Service};
use tracing::Instrument;

use super::audit::AuditGuard;
use super::metrics::MeasuredRequest;
use super::request_id::{self, RequestId};
use crate::audit::Audit;
use crate::http::api::problem::{self, ProblemWriter};
use crate::http::ui::html_response::HtmlResponse;
use crate::metrics::Metrics;

/// The layer. Cheap to clone.
#[derive(Clone)]
pub struct RequestLayer(Arc<RequestContext>);

struct RequestContext {
    metrics: Arc<Metrics>,
    audit: Audit,
    is_open: bool,
}

impl RequestLayer {
    /// `is_open`: see [`crate::http::state::HttpSettings::is_open_to_others`].
    pub fn new(metrics: Arc<Metrics>, audit: Audit, is_open: bool) -> Self {
        Self(Arc::new(RequestContext { metrics, audit, is_open }))
    }
}

impl<S> Layer<S> for RequestLayer {
    type Service = RequestService<S>;

    fn layer(&self, inner: S) -> RequestService<S> {
        RequestService { layer: self.clone(), inner }
    }
}

/// A service inside of the frame.
#[derive(Clone)]
pub struct RequestService<S> {
    layer: RequestLayer,
    inner: S,
}

/// Cancel (the caller hung up): the request counts as abandoned, and a change that was asked for is
/// written down as such.
impl<S> Service<Request> for RequestService<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let RequestContext { metrics, audit, is_open } = &*self.layer.0;
        // The name first: all below logs and answers under it.
        let (id, span) = request_id::identify(&mut request);
        let response_steps = ResponseSteps {
            id,
            measured: MeasuredRequest::begin(metrics, &request),
            problem_writer: ProblemWriter::of(&request),
            html_response: HtmlResponse::of(&request, *is_open),
            audit_guard: AuditGuard::begin(audit, &mut request),
        };
        // Without a block of its own, which would keep a second place for what it awaits.
        let answer = AssertUnwindSafe(self.inner.call(request)).catch_unwind();
        let answer = answer.map(move |answer| match answer {
            Ok(Ok(response)) => Ok(response_steps.pass(Some(response))),
            Err(_) => Ok(response_steps.pass(None)),
        });
        Box::pin(answer.instrument(span))
    }
}

/// What was noted of a request on its way in, for its answer. Dropped, the caller hung up.
struct ResponseSteps {
    id: RequestId,
    measured: MeasuredRequest,
    problem_writer: ProblemWriter,
    html_response: Option<HtmlResponse>,
    audit_guard: AuditGuard,
}

impl ResponseSteps {
    /// `None`: the handler panicked.
    fn pass(self, response: Option<Response>) -> Response {
        let Self { id, measured, problem_writer, html_response, audit_guard } = self;
        let mut response = match response {
            Some(response) => {
                // Sees what is refused before it is written out, whoever refuses it.
                audit_guard.answered(&response);
                response
            }
            None => {
                audit_guard.panicked();
                problem::of_a_panic()
            }
        };
        // Below `/ui`: what browsers are told of every answer, and problems as pages for people.
        if let Some(html_response) = html_response {
            response = html_response.apply(&id, response);
        }
        problem_writer.write(&id, &mut response);
        measured.answered(&response);
        id.sign(&mut response);
        // On every answer, whatever made it. Only what has its hash in its name may be kept.
        let headers = response.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }
}
