//! The request that is being served, for the log. It is set whenever the request's future is polled, and read by the formatter of a
//! line: a span of `tracing` would format its fields for each request, and most requests write no line.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{Method, Uri};
use serde::Serialize;

use super::middleware::request_id::{RequestId, TraceParent};

thread_local! {
    static CURRENT: RefCell<Option<Arc<LogRequest>>> = const { RefCell::new(None) };
}

/// What lines about a request have in common.
#[derive(Debug)]
pub(crate) struct LogRequest {
    pub(super) id: RequestId,
    pub(super) method: Method,
    /// Lines have its path, but not its query, where a client may have put a token by mistake.
    pub(super) uri: Uri,
    pub(super) trace: Option<TraceParent>,
}

/// The fields of the object in a line of JSON.
#[derive(Serialize)]
struct Fields<'a> {
    request_id: &'a str,
    method: &'a str,
    path: &'a str,
    #[serde(flatten)]
    trace: Option<&'a TraceParent>,
    name: &'static str,
}

impl LogRequest {
    /// The request whose future is being polled by this thread.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Lines that `run` writes are about this request.
    pub(crate) fn enter<T>(request: &Option<Arc<Self>>, run: impl FnOnce() -> T) -> T {
        // Restored even if `run` panics.
        let _outer = Outer(CURRENT.replace(request.clone()));
        run()
    }

    /// Writes the fields as an object of JSON.
    pub(crate) fn write_json(&self, out: &mut impl Write) -> fmt::Result {
        let (request_id, method, path) = (self.id.as_str(), self.method.as_str(), self.uri.path());
        let fields = Fields { request_id, method, path, trace: self.trace.as_ref(), name: "request" };
        out.write_str(&serde_json::to_string(&fields).map_err(|_| fmt::Error)?)
    }

    /// Writes the fields as `tracing-subscriber` writes those of a span, with or without colours.
    pub(crate) fn write_text(&self, out: &mut impl Write, has_colours: bool) -> fmt::Result {
        let (bold, dim, italic, end) =
            if has_colours { ("\x1b[1m", "\x1b[2m", "\x1b[3m", "\x1b[0m") } else { ("", "", "", "") };
        let sign = |name| format!("{italic}{name}{end}{dim}={end}");
        write!(out, "{bold}request{end}{bold}{{{end}{}{:?}", sign("request_id"), self.id.as_str())?;
        write!(out, " {}{} {}{:?}", sign("method"), self.method, sign("path"), self.uri.path())?;
        if let Some(TraceParent { trace_id, parent_id }) = &self.trace {
            write!(out, " {}{trace_id:?} {}{parent_id:?}", sign("trace_id"), sign("parent_id"))?;
        }
        write!(out, "{bold}}}{end}{dim}:{end} ")
    }
}

struct Outer(Option<Arc<LogRequest>>);

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// A future whose lines are about a request, also those that are written when it is dropped.
pub(crate) struct InRequest<F: ?Sized> {
    request: Option<Arc<LogRequest>>,
    future: Option<Pin<Box<F>>>,
}

impl<F: ?Sized> InRequest<F> {
    pub(crate) fn new(request: Option<Arc<LogRequest>>, future: Pin<Box<F>>) -> Self {
        Self { request, future: Some(future) }
    }
}

impl<F: Future + ?Sized> Future for InRequest<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { request, future } = self.get_mut();
        // It is taken only when it is dropped.
        let Some(future) = future else { return Poll::Pending };
        LogRequest::enter(request, || future.as_mut().poll(cx))
    }
}

impl<F: ?Sized> Drop for InRequest<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        LogRequest::enter(&self.request, || drop(future));
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use futures_util::FutureExt;

    use super::*;

    fn request(id: &str) -> Option<Arc<LogRequest>> {
        let mut headers = axum::http::HeaderMap::new();
        headers.insert("x-request-id", id.parse().expect("a header value"));
        let id = RequestId::sent(&headers).expect("valid");
        Some(Arc::new(LogRequest { id, method: Method::GET, uri: Uri::from_static("/a?token=b"), trace: None }))
    }

    fn current() -> Option<String> {
        LogRequest::current().map(|request| request.id.as_str().to_owned())
    }

    #[test]
    fn a_request_is_current_while_its_future_is_polled_or_dropped_and_then_the_outer_one_again() {
        struct Dropped(Arc<parking_lot::Mutex<Option<String>>>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                *self.0.lock() = current();
            }
        }
        let seen = Arc::default();
        let held = Dropped(Arc::clone(&seen));
        let inner = InRequest::new(
            request("inner"),
            Box::pin(async move {
                let _held = held;
                assert_eq!(current().as_deref(), Some("inner"));
                pending::<()>().await;
            }),
        );
        let mut inner = Some(inner);
        let outer = InRequest::new(
            request("outer"),
            Box::pin(poll_fn(move |cx| {
                assert!(inner.as_mut().is_some_and(|inner| inner.poll_unpin(cx).is_pending()));
                inner = None;
                assert_eq!(current().as_deref(), Some("outer"));
                Poll::Ready(())
            })),
        );
        assert!(outer.now_or_never().is_some());
        assert_eq!(seen.lock().as_deref(), Some("inner"));
        assert_eq!(current(), None);
        let panics = std::panic::catch_unwind(|| LogRequest::enter(&request("inner"), || panic!("expected")));
        assert!(panics.is_err() && current().is_none());
    }
}
