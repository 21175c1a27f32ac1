//! Closes connections that make no progress: no request for too long, a request head that takes too long to arrive, or an answer
//! that the client does not read (over HTTP/2 see also `answer_body`). While a request is in flight (a waiter's may be for
//! minutes), only the last of these counts.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::early_bytes::EarlyBytes;
use super::malformed_request::RefusedHead;
use super::socket::LossTimeout;
use crate::http::connection::Connection;

/// How long a client may leave an answer unread. Stream readers read all the time, and other answers fit into the kernel's
/// buffers, so this affects only a client that has stopped reading. For HTTP/2, it applies to each answer.
pub(crate) const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionTimeouts {
    /// Timeout without a request.
    pub idle: Duration,
    /// Timeout from the first byte of a request to the end of its head; `None` for HTTP/2, where bytes need not be a head.
    pub head: Option<Duration>,
    /// Timeout without any read of an answer by the client.
    pub unread: Duration,
}

/// The event that the connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The end of a request.
    Busy,
    /// The first byte of the next request.
    Idle,
    /// The rest of a head. Holds [`Connection::requests_begun`] at its first byte.
    Head(u64),
}

/// A stream that fails with `TimedOut` when one of its timeouts passes.
pub(crate) struct IdleTimeout<S> {
    inner: S,
    connection: Arc<Connection>,
    timeouts: ConnectionTimeouts,
    phase: Phase,
    /// The end of the phase.
    deadline: Instant,
    /// Fires at the deadline or earlier. It is set again when it has fired, or while a phase waits that ends before it: nearly all
    /// phases end without that.
    timer: Pin<Box<Sleep>>,
    unread: Option<Pin<Box<Sleep>>>,
    /// Written in place of the library's own answer.
    refused: Option<RefusedHead>,
    /// `None` for HTTP/2, where the library reads all the time.
    early: Option<EarlyBytes>,
}

impl<S> IdleTimeout<S> {
    /// A connection without a request.
    pub(crate) fn new(inner: S, connection: Arc<Connection>, timeouts: ConnectionTimeouts) -> Self {
        let timer = Box::pin(sleep(timeouts.idle));
        let deadline = timer.deadline();
        let phase = Phase::Idle;
        Self { inner, connection, timeouts, phase, deadline, timer, unread: None, refused: None, early: None }
    }

    /// Detects that a client disconnects even if it sent bytes after its request; keeps at most `limit` such bytes, and ends the
    /// connection if there are more.
    pub(crate) fn with_early_bytes(self, limit: usize) -> Self {
        Self { early: Some(EarlyBytes::new(limit)), ..self }
    }

    fn enter(&mut self, phase: Phase, timeout: Duration) {
        self.phase = phase;
        // Only the time is taken from this timer.
        self.deadline = sleep(timeout).deadline();
    }

    /// The error of a phase that has taken too long.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.timer.deadline() > self.deadline {
            self.timer.as_mut().reset(self.deadline);
        }
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if self.timer.deadline() >= self.deadline {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            self.timer.as_mut().reset(self.deadline);
        }
    }

    /// Fails a write that has been pending for too long.
    fn check_unread<T>(&mut self, write: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.unread = None;
            return write;
        }
        let timeout = self.timeouts.unread;
        let timer = self.unread.get_or_insert_with(|| Box::pin(sleep(timeout)));
        timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: LossTimeout> IdleTimeout<S> {
    /// Applies the timeout that a request has set; called before each write, since loss only concerns sent bytes.
    fn apply_loss_timeout(&self) {
        if let Some(limit) = self.connection.take_loss_timeout() {
            self.inner.set_loss_timeout(limit);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = into.filled().len();
        let read = match &mut this.early {
            Some(early) => early.poll_read(Pin::new(&mut this.inner), cx, into),
            None => Pin::new(&mut this.inner).poll_read(cx, into),
        };
        // The head is complete once another request has begun.
        if let Phase::Head(begun) = this.phase
            && this.connection.requests_begun() > begun
        {
            this.phase = Phase::Busy;
        }
        if read.is_ready() {
            let has_bytes = into.filled().len() > before;
            if let (true, false, Some(head)) = (has_bytes, this.connection.is_busy(), this.timeouts.head)
                && !matches!(this.phase, Phase::Head(_))
            {
                this.enter(Phase::Head(this.connection.requests_begun()), head);
            }
            return read;
        }
        if this.connection.is_busy() {
            this.phase = Phase::Busy;
            return Poll::Pending;
        }
        if this.phase == Phase::Busy {
            this.enter(Phase::Idle, this.timeouts.idle);
        }
        this.poll_deadline(cx).map(Err)
    }
}

impl<S: AsyncRead + AsyncWrite + LossTimeout + Unpin> AsyncWrite for IdleTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.apply_loss_timeout();
        let this = &mut *self;
        if this.refused.is_none() {
            this.refused = RefusedHead::of(bytes);
        }
        let write = match &mut this.refused {
            None => Pin::new(&mut this.inner).poll_write(cx, bytes),
            Some(refused) => refused.poll_write(Pin::new(&mut this.inner), cx).map_ok(|()| bytes.len()),
        };
        if write.is_ready() {
            this.refused = None;
        }
        this.check_unread(write, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = bytes {
            return self.poll_write(cx, only);
        }
        self.apply_loss_timeout();
        let write = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.check_unread(write, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// The library calls this in each turn, after it tried to read.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(early) = this.early.as_mut().filter(|_| this.connection.is_busy())
            && let Poll::Ready(error) = early.poll_disconnect(Pin::new(&mut this.inner), cx)
        {
            return Poll::Ready(Err(error));
        }
        // The answer may have been written after the last attempt to read.
        if this.phase == Phase::Busy && !this.connection.is_busy() {
            this.enter(Phase::Idle, this.timeouts.idle);
            if let Poll::Ready(error) = this.poll_deadline(cx) {
                return Poll::Ready(Err(error));
            }
        }
        let flush = Pin::new(&mut this.inner).poll_flush(cx);
        this.check_unread(flush, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shutdown = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.check_unread(shutdown, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    impl LossTimeout for DuplexStream {
        fn set_loss_timeout(&self, _: Duration) {}
    }

    fn timed(head: Option<Duration>) -> (IdleTimeout<DuplexStream>, DuplexStream, Arc<Connection>) {
        let (ours, theirs) = duplex(8);
        let connection = Connection::new(([127, 0, 0, 1], 1).into(), false);
        let timeouts = ConnectionTimeouts { idle: MS(60_000), head, unread: MS(30_000) };
        (IdleTimeout::new(ours, Arc::clone(&connection), timeouts), theirs, connection)
    }

    /// A read is pending for that long and then fails.
    async fn ends_after(stream: &mut IdleTimeout<DuplexStream>, after: Duration) {
        let mut buffer = [0; 8];
        tokio::time::timeout(after - MS(5), stream.read(&mut buffer)).await.expect_err("not yet");
        let outcome = tokio::time::timeout(MS(10), stream.read(&mut buffer)).await.expect("now");
        assert_eq!(outcome.expect_err("timed out").kind(), io::ErrorKind::TimedOut);
    }

    async fn reads(stream: &mut IdleTimeout<DuplexStream>, theirs: &mut DuplexStream, bytes: &[u8]) {
        theirs.write_all(bytes).await.expect("written");
        let mut buffer = [0; 8];
        assert_eq!(stream.read(&mut buffer).await.expect("bytes"), bytes.len());
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_times_out_and_a_request_in_flight_stops_that_timer() {
        let (mut stream, mut theirs, connection) = timed(Some(MS(10_000)));
        reads(&mut stream, &mut theirs, b"GET").await;
        let request = connection.begin_request();
        let mut buffer = [0; 8];
        tokio::time::timeout(MS(3_600_000), stream.read(&mut buffer)).await.expect_err("a waiter is not idle");
        drop(request);
        ends_after(&mut stream, MS(60_000)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_head_timeout_runs_from_the_first_byte() {
        let (mut stream, mut theirs, connection) = timed(Some(MS(10_000)));
        reads(&mut stream, &mut theirs, b"G").await;
        for byte in [b"E", b"T", b" "] {
            let mut buffer = [0; 8];
            tokio::time::timeout(MS(3_000), stream.read(&mut buffer)).await.expect_err("slow");
            reads(&mut stream, &mut theirs, byte).await;
        }
        ends_after(&mut stream, MS(1_000)).await;
        // A request that ends before the next read leaves only the idle timeout.
        let (mut stream, mut theirs, second) = timed(Some(MS(10_000)));
        reads(&mut stream, &mut theirs, b"GET").await;
        drop(second.begin_request());
        ends_after(&mut stream, MS(60_000)).await;
        drop(connection);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_head_timeout_only_idleness_counts() {
        let (mut stream, mut theirs, _activity) = timed(None);
        reads(&mut stream, &mut theirs, b"PING").await;
        ends_after(&mut stream, MS(60_000)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_answer_ends_the_connection() {
        let (mut stream, mut theirs, connection) = timed(Some(MS(10_000)));
        let _request = connection.begin_request();
        stream.write_all(b"12345678").await.expect("written");
        tokio::time::timeout(MS(29_000), stream.write_all(b"9")).await.expect_err("the buffer is full");
        let mut buffer = [0; 4];
        theirs.read_exact(&mut buffer).await.expect("bytes");
        stream.write_all(b"9").await.expect("it reads again");
        stream.write_all(b"abc").await.expect("written");
        let outcome = tokio::time::timeout(MS(30_010), stream.write_all(b"x")).await.expect("given up");
        assert_eq!(outcome.expect_err("unread").kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_loss_timeout_that_a_request_asks_for_is_set_before_the_next_write() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let _client = tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("loopback");
        let (stream, peer) = listener.accept().await.expect("one");
        let connection = Connection::new(peer, false);
        let timeouts = ConnectionTimeouts { idle: MS(60_000), head: None, unread: MS(30_000) };
        let mut stream = IdleTimeout::new(stream, Arc::clone(&connection), timeouts);
        connection.notice_loss_within(MS(250));
        stream.write_all(b"answer").await.expect("written");
        assert_eq!(rustix::net::sockopt::tcp_user_timeout(&stream.inner).expect("an option"), 250);
        assert_eq!(connection.take_loss_timeout(), None, "set once");
    }
}
