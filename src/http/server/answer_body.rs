//! Bodies of answers on their way to the client. Over HTTP/1, a client that stops reading leaves writes pending, which
//! `idle_timeout` sees. Over HTTP/2 the client may keep the windows closed: nothing is written, and the library does not ask for
//! the body. So each HTTP/2 request has its own timeout here, which resets only that request: a proxy sends many callers'
//! requests on one connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

use super::idle_timeout::UNREAD_TIMEOUT;
use crate::http::connection::{RequestGuard, UnreadBytes};

/// The maximum number of bytes of an answer that the library gets at a time; it keeps them while the client does not read.
const H2_CHUNK_BYTES: usize = 16 * 1024;
/// The maximum number of unread bytes of answers, except smaller ones, on one HTTP/2 connection: space for the largest lists of a
/// proxy's callers.
pub(crate) const H2_UNREAD_MAX_BYTES: usize = 16 << 20;

tokio::task_local! {
    /// The progress of the HTTP/2 request that is being polled.
    static PROGRESS: Arc<AnswerProgress>;
}

/// The progress of an answer between server and client.
#[derive(Debug, Default)]
struct AnswerProgress(Mutex<Progress>);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Progress {
    /// How often the client was offered a further part of the answer.
    offers: u64,
    /// Whether the client has to read: the answer has a part to send now.
    is_offered: bool,
}

impl AnswerProgress {
    fn client_must_read(&self) {
        let mut progress = self.0.lock();
        *progress = Progress { offers: progress.offers + 1, is_offered: true };
    }
}

/// An HTTP/2 request and its answer, which ends (and resets its stream) if the client reads nothing of the answer for
/// [`UNREAD_TIMEOUT`].
pub(super) struct Http2Request<F> {
    request: Pin<Box<F>>,
    progress: Arc<AnswerProgress>,
    /// Runs since the last offer.
    timer: Option<(u64, Pin<Box<Sleep>>)>,
}

impl<F> Http2Request<F> {
    /// The handler starts at the first poll.
    pub(super) fn new(request: F) -> Self {
        Self { request: Box::pin(request), progress: Arc::default(), timer: None }
    }
}

impl<F: Future<Output = ()>> Future for Http2Request<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { request, progress, timer } = &mut *self;
        if PROGRESS.sync_scope(Arc::clone(progress), || request.as_mut().poll(cx)).is_ready() {
            return Poll::Ready(());
        }
        let Progress { offers, is_offered } = *progress.0.lock();
        if !is_offered {
            *timer = None;
            return Poll::Pending;
        }
        let (since, timer) = timer.get_or_insert_with(|| (offers, Box::pin(sleep(UNREAD_TIMEOUT))));
        if *since != offers {
            *since = offers;
            timer.set(sleep(UNREAD_TIMEOUT));
        }
        timer.as_mut().poll(cx).map(|()| tracing::debug!("an answer over HTTP/2 was not read: its stream is reset"))
    }
}

/// A response body whose request counts as in flight until the body has been sent or dropped.
pub(crate) struct TrackedBody {
    body: axum::body::Body,
    /// The rest of a frame of the body.
    rest: Bytes,
    /// `None` over HTTP/1.
    progress: Option<Arc<AnswerProgress>>,
    /// `None`: the answer is not counted.
    unread: Option<UnreadBytes>,
    is_refused: bool,
    /// Dropped with the body.
    request: RequestGuard,
}

impl TrackedBody {
    /// The router's body, in answer to this request. If the client has left too much unread, the body is dropped and the stream
    /// will be reset.
    pub(super) fn new(body: axum::body::Body, request: RequestGuard) -> Self {
        let progress = PROGRESS.try_with(Arc::clone).ok();
        let rest = Bytes::new();
        let mut answer = Self { body, rest, progress, unread: None, is_refused: false, request };
        if let Some(progress) = &answer.progress {
            progress.client_must_read();
            let bytes = answer.body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
            if let Some(bytes) = bytes.filter(|bytes| *bytes > H2_CHUNK_BYTES) {
                answer.unread = answer.request.connection().count_unread(bytes, H2_UNREAD_MAX_BYTES);
                answer.is_refused = answer.unread.is_none();
            }
        }
        if answer.is_refused {
            answer.body = axum::body::Body::empty();
        }
        answer
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let Some(progress) = &this.progress else { return Pin::new(&mut this.body).poll_frame(cx) };
        if this.is_refused {
            return Poll::Ready(Some(Err(axum::Error::new("too much is unread on this connection"))));
        }
        if this.rest.is_empty() {
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Pending => {
                    progress.0.lock().is_offered = false;
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return ended,
            }
        }
        progress.client_must_read();
        let chunk = this.rest.split_to(this.rest.len().min(H2_CHUNK_BYTES));
        if let Some(unread) = &mut this.unread {
            unread.read(chunk.len());
        }
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        !self.is_refused && self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_refused || !self.rest.is_empty() { SizeHint::new() } else { self.body.size_hint() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use http_body_util::BodyExt;

    use super::*;
    use crate::http::connection::Connection;

    /// An answer of HTTP/2 of which `reads` frames are read, and nothing after that.
    async fn read_only(body: Body, reads: usize) {
        let connection = Connection::new(([127, 0, 0, 1], 1).into(), true);
        Http2Request::new(async move {
            let mut body = TrackedBody::new(body, connection.begin_request());
            for _ in 0..reads {
                let _ = body.frame().await;
            }
            std::future::pending::<()>().await;
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_ends_its_request_and_one_that_has_nothing_to_send_does_not() {
        let second = Duration::from_secs(1);
        for (bytes, reads) in [(4, 0), (3 * H2_CHUNK_BYTES, 2)] {
            let request = || read_only(Body::from(vec![7; bytes]), reads);
            tokio::time::timeout(UNREAD_TIMEOUT - second, request()).await.expect_err("not yet");
            tokio::time::timeout(UNREAD_TIMEOUT + second, request()).await.expect("it ended");
        }
        let silent = Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>());
        tokio::time::timeout(Duration::from_hours(1), read_only(silent, 1)).await.expect_err("it waits for an event");
    }

    #[tokio::test]
    async fn large_answers_are_given_out_in_parts_and_bounded_by_what_is_unread() {
        let connection = Connection::new(([127, 0, 0, 1], 1).into(), true);
        Http2Request::new(async {
            let answer = |bytes| TrackedBody::new(Body::from(vec![7; bytes]), connection.begin_request());
            let mut first = answer(H2_UNREAD_MAX_BYTES);
            assert!(answer(H2_CHUNK_BYTES + 1).frame().await.expect("a frame").is_err(), "refused");
            assert!(answer(H2_CHUNK_BYTES).frame().await.expect("a frame").is_ok(), "small ones are not counted");
            for _ in 0..2 {
                let part = first.frame().await.expect("a frame").expect("data").into_data().expect("data");
                assert_eq!((part.len(), first.is_end_stream()), (H2_CHUNK_BYTES, false));
            }
            assert!(answer(H2_CHUNK_BYTES + 1).frame().await.expect("a frame").is_ok(), "there is space again");
            drop(first);
            assert_eq!(answer(100_000).collect().await.expect("all").to_bytes().len(), 100_000);
            assert_eq!(answer(H2_UNREAD_MAX_BYTES).size_hint().exact(), Some(H2_UNREAD_MAX_BYTES as u64));
        })
        .await;
    }
}
