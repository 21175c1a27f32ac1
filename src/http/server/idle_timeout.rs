//! A connection that ends when nothing comes of it: silence between requests, a head that takes too
//! long, an answer that nobody reads. While a request is under way, which may wait for minutes, only
//! the last of these counts. Apart from [`crate::http::server`], which keeps connections; knows bytes and
//! how many requests are under way, and no HTTP.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long the other end may leave an answer unread. Streams are read all the time, and other
/// answers fit into the kernel's buffers, so only a reader that has stopped meets this.
pub const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The times of a connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionTimeouts {
    /// Without a request.
    pub idle: Duration,
    /// From the first byte of a request to the end of its head; `None` where bytes may mean other
    /// things, as in HTTP/2.
    pub head: Option<Duration>,
    /// Without the other end taking anything of an answer.
    pub unread: Duration,
}

/// What is under way on a connection.
#[derive(Debug, Default)]
pub struct RequestsInFlight {
    under_way: AtomicUsize,
    begun: AtomicU64,
}

/// A request that is under way, until this is dropped.
#[derive(Debug)]
pub struct RequestGuard(Arc<RequestsInFlight>);

impl RequestsInFlight {
    /// Its head was read.
    pub fn begin(self: &Arc<Self>) -> RequestGuard {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        RequestGuard(Arc::clone(self))
    }

    fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The end of a request.
    Busy,
    /// A request.
    Idle,
    /// The rest of a head that began when so many requests had begun.
    Head(u64),
}

/// A stream that fails with `TimedOut` when one of its timeouts passes.
pub struct IdleTimeout<S> {
    inner: S,
    requests: Arc<RequestsInFlight>,
    timeouts: ConnectionTimeouts,
    phase: Phase,
    timer: Pin<Box<Sleep>>,
    unread: Option<Pin<Box<Sleep>>>,
}

impl<S> IdleTimeout<S> {
    /// A fresh connection.
    pub fn new(inner: S, requests: Arc<RequestsInFlight>, timeouts: ConnectionTimeouts) -> Self {
        let timer = Box::pin(sleep(timeouts.idle));
        Self { inner, requests, timeouts, phase: Phase::Idle, timer, unread: None }
    }

    fn wait(&mut self, phase: Phase, for_at_most: Duration) {
        self.phase = phase;
        self.timer.set(sleep(for_at_most));
    }

    /// `pending` is what the other end made of a write; fails once that has lasted too long.
    fn written<T>(&mut self, outcome: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.unread = None;
            return outcome;
        }
        let within = self.timeouts.unread;
        let timer = self.unread.get_or_insert_with(|| Box::pin(sleep(within)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = into.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, into);
        // A head that was waited for is there once another request has begun.
        if let Phase::Head(begun) = this.phase
            && this.requests.begun() > begun
        {
            this.phase = Phase::Busy;
        }
        if read.is_ready() {
            let came = into.filled().len() > before;
            if let (true, false, Some(head)) = (came, this.requests.is_busy(), this.timeouts.head)
                && !matches!(this.phase, Phase::Head(_))
            {
                this.wait(Phase::Head(this.requests.begun()), head);
            }
            return read;
        }
        if this.requests.is_busy() {
            this.phase = Phase::Busy;
            return Poll::Pending;
        }
        if this.phase == Phase::Busy {
            this.wait(Phase::Idle, this.timeouts.idle);
        }
        match this.timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.written(outcome, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.written(outcome, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(cx);
        self.written(outcome, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.written(outcome, cx)
    }
}

/// A body that is under way until it has been sent, or dropped.
pub struct SentBody {
    /// The answer's own.
    pub body: axum::body::Body,
    /// For as long as that.
    pub under_way: RequestGuard,
}

impl HttpBody for SentBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn timed(head: Option<Duration>) -> (IdleTimeout<DuplexStream>, DuplexStream, Arc<RequestsInFlight>) {
        let (ours, theirs) = duplex(8);
        let requests = Arc::new(RequestsInFlight::default());
        let timeouts = ConnectionTimeouts { idle: MS(60_000), head, unread: MS(30_000) };
        (IdleTimeout::new(ours, Arc::clone(&requests), timeouts), theirs, requests)
    }

    /// Pending for that long, and then an error: whoever reads is told just then.
    async fn ends_after(stream: &mut IdleTimeout<DuplexStream>, after: Duration) {
        let mut buffer = [0; 8];
        tokio::time::timeout(after - MS(5), stream.read(&mut buffer)).await.expect_err("not yet");
        let outcome = tokio::time::timeout(MS(10), stream.read(&mut buffer)).await.expect("now");
        assert_eq!(outcome.expect_err("timed out").kind(), io::ErrorKind::TimedOut);
    }

    async fn takes(stream: &mut IdleTimeout<DuplexStream>, theirs: &mut DuplexStream, bytes: &[u8]) {
        theirs.write_all(bytes).await.expect("room");
        let mut buffer = [0; 8];
        assert_eq!(stream.read(&mut buffer).await.expect("bytes"), bytes.len());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_connection_and_a_request_stops_that_clock() {
        let (mut stream, mut theirs, requests) = timed(Some(MS(10_000)));
        takes(&mut stream, &mut theirs, b"GET").await;
        let request = requests.begin();
        let mut buffer = [0; 8];
        tokio::time::timeout(MS(3_600_000), stream.read(&mut buffer)).await.expect_err("a waiter is not idle");
        drop(request);
        ends_after(&mut stream, MS(60_000)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_own_time_however_its_bytes_come() {
        let (mut stream, mut theirs, requests) = timed(Some(MS(10_000)));
        takes(&mut stream, &mut theirs, b"G").await;
        for byte in [b"E", b"T", b" "] {
            let mut buffer = [0; 8];
            tokio::time::timeout(MS(3_000), stream.read(&mut buffer)).await.expect_err("slow");
            takes(&mut stream, &mut theirs, byte).await;
        }
        ends_after(&mut stream, MS(1_000)).await;
        // One that is done before anybody looks again leaves the time for silence.
        let (mut stream, mut theirs, activity2) = timed(Some(MS(10_000)));
        takes(&mut stream, &mut theirs, b"GET").await;
        drop(activity2.begin());
        ends_after(&mut stream, MS(60_000)).await;
        drop(requests);
    }

    #[tokio::test(start_paused = true)]
    async fn where_bytes_mean_other_things_only_silence_counts() {
        let (mut stream, mut theirs, _activity) = timed(None);
        takes(&mut stream, &mut theirs, b"PING").await;
        ends_after(&mut stream, MS(60_000)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_ends_the_connection() {
        let (mut stream, mut theirs, requests) = timed(Some(MS(10_000)));
        let _request = requests.begin();
        stream.write_all(b"12345678").await.expect("room");
        tokio::time::timeout(MS(29_000), stream.write_all(b"9")).await.expect_err("no room yet");
        let mut buffer = [0; 4];
        theirs.read_exact(&mut buffer).await.expect("bytes");
        stream.write_all(b"9").await.expect("it reads again");
        stream.write_all(b"abc").await.expect("room");
        let outcome = tokio::time::timeout(MS(30_010), stream.write_all(b"x")).await.expect("given up");
        assert_eq!(outcome.expect_err("unread").kind(), io::ErrorKind::TimedOut);
    }
}
