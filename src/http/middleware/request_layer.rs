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

use super::audit::Followed;
use super::metrics::Counted;
use super::request_id::{self, RequestId};
use crate::audit::Audit;
use crate::http::api::problem::{self, Form};
use crate::http::ui::html_response::Dress;
use crate::metrics::Metrics;

/// The layer. Cheap to clone.
#[derive(Clone)]
pub struct Frame(Arc<Around>);

struct Around {
    metrics: Arc<Metrics>,
    audit: Audit,
    is_open: bool,
}

impl Frame {
    /// `is_open`: see [`crate::http::state::HttpSettings::is_open_to_others`].
    pub fn new(metrics: Arc<Metrics>, audit: Audit, is_open: bool) -> Self {
        Self(Arc::new(Around { metrics, audit, is_open }))
    }
}

impl<S> Layer<S> for Frame {
    type Service = Framed<S>;

    fn layer(&self, inner: S) -> Framed<S> {
        Framed { frame: self.clone(), inner }
    }
}

/// A service inside of the frame.
#[derive(Clone)]
pub struct Framed<S> {
    frame: Frame,
    inner: S,
}

/// Cancel (the caller hung up): the request counts as abandoned, and a change that was asked for is
/// written down as such.
impl<S> Service<Request> for Framed<S>
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
        let Around { metrics, audit, is_open } = &*self.frame.0;
        // The name first: all below logs and answers under it.
        let (id, span) = request_id::identify(&mut request);
        let way_out = WayOut {
            id,
            counted: Counted::begin(metrics, &request),
            form: Form::of(&request),
            dress: Dress::of(&request, *is_open),
            followed: Followed::begin(audit, &mut request),
        };
        // Without a block of its own, which would keep a second place for what it awaits.
        let answer = AssertUnwindSafe(self.inner.call(request)).catch_unwind();
        let answer = answer.map(move |answer| match answer {
            Ok(Ok(response)) => Ok(way_out.pass(Some(response))),
            Err(_) => Ok(way_out.pass(None)),
        });
        Box::pin(answer.instrument(span))
    }
}

/// What was noted of a request on its way in, for its answer. Dropped, the caller hung up.
struct WayOut {
    id: RequestId,
    counted: Counted,
    form: Form,
    dress: Option<Dress>,
    followed: Followed,
}

impl WayOut {
    /// `None`: the handler panicked.
    fn pass(self, response: Option<Response>) -> Response {
        let Self { id, counted, form, dress, followed } = self;
        let mut response = match response {
            Some(response) => {
                // Sees what is refused before it is written out, whoever refuses it.
                followed.answered(&response);
                response
            }
            None => {
                followed.panicked();
                problem::of_a_panic()
            }
        };
        // Below `/ui`: what browsers are told of every answer, and problems as pages for people.
        if let Some(dress) = dress {
            response = dress.put(&id, response);
        }
        form.write(&id, &mut response);
        counted.answered(&response);
        id.sign(&mut response);
        // On every answer, whatever made it. Only what has its hash in its name may be kept.
        let headers = response.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }
}
