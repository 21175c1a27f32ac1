//! Bytes that an HTTP/1 client sends after a request that is not answered yet: a line end, or the next request. The HTTP library
//! stops reading while it holds such bytes, and would not notice that the client disconnects. This module continues reading in
//! its place, and keeps the bytes for it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Maximum number of bytes per read from the socket.
const READ_BYTES: usize = 2_048;

/// How long the library may leave a full buffer. It takes the body of a request as soon as the handler wants it, and every
/// handler does at once; bytes left for longer follow a request that waits.
pub(crate) const EARLY_BYTES_TIMEOUT: Duration = Duration::from_secs(5);

/// The bytes that were read ahead of the library.
#[derive(Debug)]
pub(super) struct EarlyBytes {
    kept: Vec<u8>,
    /// Maximum length of `kept`. Bytes.
    limit: usize,
    /// Runs while the buffer is full.
    full: Option<Pin<Box<Sleep>>>,
    /// Whether the library itself waits for bytes, and so would detect the end.
    is_library_reading: bool,
}

impl EarlyBytes {
    /// Keeps at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { kept: Vec::new(), limit, full: None, is_library_reading: false }
    }

    /// A read by the library: returns the kept bytes first.
    pub(super) fn poll_read(
        &mut self,
        inner: Pin<&mut impl AsyncRead>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_library_reading = false;
        self.full = None;
        if self.kept.is_empty() {
            let read = inner.poll_read(cx, into);
            self.is_library_reading = read.is_pending();
            return read;
        }
        let taken = into.remaining().min(self.kept.len());
        into.put_slice(&self.kept[..taken]);
        self.kept.drain(..taken);
        if self.kept.is_empty() {
            self.kept = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Called after each attempt of the library to read while a request is in flight. Ready when the client disconnected, or when
    /// the library has left a full buffer for too long, which hides a disconnect.
    pub(super) fn poll_disconnect(
        &mut self,
        mut inner: Pin<&mut impl AsyncRead>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Error> {
        // For one turn only: the library does not report when it stops waiting.
        if std::mem::take(&mut self.is_library_reading) {
            return Poll::Pending;
        }
        loop {
            let space = self.limit - self.kept.len();
            if space == 0 {
                let timer = self.full.get_or_insert_with(|| Box::pin(sleep(EARLY_BYTES_TIMEOUT)));
                return timer.as_mut().poll(cx).map(|()| io::Error::other("too much behind a request in flight"));
            }
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes[..space.min(READ_BYTES)]);
            match ready!(inner.as_mut().poll_read(cx, &mut read)) {
                Err(error) => return Poll::Ready(error),
                Ok(()) if read.filled().is_empty() => return Poll::Ready(io::ErrorKind::ConnectionAborted.into()),
                Ok(()) => self.kept.extend_from_slice(read.filled()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_are_kept_in_order_and_the_end_is_seen_behind_them() {
        let (mut ours, mut theirs) = duplex(64);
        let mut early = EarlyBytes::new(6);
        let mut cx = Context::from_waker(Waker::noop());
        theirs.write_all(b"abc").await.expect("written");
        assert!(early.poll_disconnect(Pin::new(&mut ours), &mut cx).is_pending());
        theirs.write_all(b"def").await.expect("written");
        assert!(early.poll_disconnect(Pin::new(&mut ours), &mut cx).is_pending());
        let mut bytes = [0; 4];
        for expected in [&b"abcd"[..], b"ef"] {
            let mut read = ReadBuf::new(&mut bytes);
            assert!(early.poll_read(Pin::new(&mut ours), &mut cx, &mut read).is_ready());
            assert_eq!(read.filled(), expected);
        }
        let mut read = ReadBuf::new(&mut bytes);
        assert!(early.poll_read(Pin::new(&mut ours), &mut cx, &mut read).is_pending());
        theirs.write_all(b"12345678901234567890").await.expect("written");
        assert!(early.poll_disconnect(Pin::new(&mut ours), &mut cx).is_pending(), "the library waits itself");
        assert!(early.poll_disconnect(Pin::new(&mut ours), &mut cx).is_pending(), "space for six");
        let left = poll_fn(|cx| early.poll_disconnect(Pin::new(&mut ours), cx));
        tokio::time::timeout(EARLY_BYTES_TIMEOUT - Duration::from_secs(1), left).await.expect_err("not yet");
        let mut read = ReadBuf::new(&mut bytes);
        assert!(early.poll_read(Pin::new(&mut ours), &mut cx, &mut read).is_ready(), "that starts the time again");
        let left = poll_fn(|cx| early.poll_disconnect(Pin::new(&mut ours), cx));
        tokio::time::timeout(EARLY_BYTES_TIMEOUT - Duration::from_secs(1), left).await.expect_err("not yet");
        let left = poll_fn(|cx| early.poll_disconnect(Pin::new(&mut ours), cx));
        tokio::time::timeout(Duration::from_secs(2), left).await.expect("now");
        drop(theirs);
        let (mut ours, _) = duplex(64);
        let mut early = EarlyBytes::new(6);
        let Poll::Ready(error) = early.poll_disconnect(Pin::new(&mut ours), &mut cx) else { panic!("the end") };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }
}
