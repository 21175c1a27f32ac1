//! The data that a connection shares with its requests: the peer's address, the number of requests in flight, and a
//! shorter loss timeout that a request may ask for. `server` owns the socket; requests only hold this.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::HeaderValue;

/// One per connection; also in the context of each of its requests.
#[derive(Debug)]
pub(crate) struct Connection {
    peer: SocketAddr,
    is_tls: bool,
    in_flight: AtomicUsize,
    begun: AtomicU64,
    /// Bytes of counted answers that the client has not asked for yet.
    unread: AtomicUsize,
    /// Milliseconds; 0: no timeout was requested since the last [`Connection::take_loss_timeout`].
    loss_timeout_ms: AtomicU32,
    /// The first `Host` that passed all checks. Most clients send the same with each request.
    accepted_host: OnceLock<HeaderValue>,
}

impl Connection {
    /// An accepted connection without requests.
    pub(crate) fn new(peer: SocketAddr, is_tls: bool) -> Arc<Self> {
        let (in_flight, unread) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (begun, loss_timeout_ms) = (AtomicU64::new(0), AtomicU32::new(0));
        let accepted_host = OnceLock::new();
        Arc::new(Self { peer, is_tls, in_flight, begun, unread, loss_timeout_ms, accepted_host })
    }

    /// The address of the other end: a client, or a proxy.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the connection to this service is encrypted.
    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Whether a request on this connection passed all checks of its host with this value of `Host`, and without a host in its target.
    pub(crate) fn has_accepted(&self, host: &HeaderValue) -> bool {
        self.accepted_host.get() == Some(host)
    }

    /// Records that it did, unless another value is recorded.
    pub(crate) fn accept_host(&self, host: &HeaderValue) {
        let _ = self.accepted_host.set(host.clone());
    }

    /// From the next write on, the connection ends if sent data stays unacknowledged for this long, at most the listener's own
    /// limit.
    pub(crate) fn notice_loss_within(&self, limit: Duration) {
        let ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
        self.loss_timeout_ms.store(ms, Ordering::Relaxed);
    }

    /// The shorter timeout that was requested since the last call.
    pub(crate) fn take_loss_timeout(&self) -> Option<Duration> {
        if self.loss_timeout_ms.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let ms = self.loss_timeout_ms.swap(0, Ordering::Relaxed);
        (ms > 0).then(|| Duration::from_millis(ms.into()))
    }

    /// Counts a request as in flight once its head was read, until the guard is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> RequestGuard {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        RequestGuard(Arc::clone(self))
    }

    /// Whether a request is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0
    }

    /// The number of requests that have begun so far.
    pub(crate) fn requests_begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Counts an answer of so many bytes as unread; `None` if the connection's total would exceed `limit`.
    pub(crate) fn count_unread(self: &Arc<Self>, bytes: usize, limit: usize) -> Option<UnreadBytes> {
        let more = |unread: usize| unread.checked_add(bytes).filter(|sum| *sum <= limit);
        self.unread.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(UnreadBytes { connection: Arc::clone(self), left: bytes })
    }
}

/// The bytes of an answer that the client has not asked for. When dropped, they no longer count.
#[derive(Debug)]
pub(crate) struct UnreadBytes {
    connection: Arc<Connection>,
    left: usize,
}

impl UnreadBytes {
    /// Records that the client asked for so many bytes.
    pub(crate) fn read(&mut self, bytes: usize) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        self.connection.unread.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.connection.unread.fetch_sub(self.left, Ordering::Relaxed);
    }
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<Connection>);

impl RequestGuard {
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
