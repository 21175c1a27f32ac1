//! Keeps connections: takes a bound listener and a shutdown token, bounds how many there are and
//! how long each may be of no use, speaks TLS and HTTP/2 where it is asked to, and drains at the end.
//! Knows a router and nothing of what it serves.
//!
//! A caller that hangs up is noticed by the connection, which drops the request's future with it.

use std::time::Duration;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use super::idle_timeout::{ConnectionTimeouts, IdleTimeout, RequestsInFlight, SentBody, UNREAD_TIMEOUT};
use super::socket::{ConnectionHandle, Socket};
use super::tls::{self, ALPN_H2, Tls};
use crate::auth::principals::PeerCertificate;
use crate::http::middleware::client_address::PeerAddress;
use crate::metrics::Metrics;
use axum::Router;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The most connections at a time: each waiter has one of its own, so this is the bound of waiters
/// (20,000) and a quarter more for everybody else.
pub const MAX_CONNECTIONS: usize = 25_000;
/// How long the head of a request may take, and the handshake of TLS: slow senders are to cost
/// nothing for ever.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be without a request.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The most bytes of a request's head: a resource, a query and a dozen headers fit several times.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;
/// The most requests at a time on one HTTP/2 connection.
const H2_STREAMS_MAX: u32 = 256;
/// How often an HTTP/2 connection is asked whether somebody is there, and how long that may take.
const H2_PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(15));
/// Bytes of answers that may be kept for one HTTP/2 request whose client does not take them.
const H2_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// The most headers of a request.
pub const MAX_HEADERS: usize = 64;
/// How long requests under way may take to finish once the service drains. Waiters are answered at
/// once, so what is left is rounds (milliseconds) and slow networks.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to pause after a failed accept: out of file descriptors, the next one would fail as well.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The bounds of a listener.
#[derive(Debug, Clone)]
pub struct ServeLimits {
    /// See [`MAX_CONNECTIONS`]. Beyond it connections wait in the kernel's queue.
    pub max_connections: usize,
    /// See [`HEADER_TIMEOUT`].
    pub header_timeout: Duration,
    /// See [`IDLE_TIMEOUT`].
    pub idle_timeout: Duration,
    /// See [`MAX_HEAD_BYTES`]. At least 8 KiB.
    pub head_limit: usize,
    /// See [`DRAIN_TIMEOUT`].
    pub drain_timeout: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS,
            header_timeout: HEADER_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            head_limit: MAX_HEAD_BYTES,
            drain_timeout: DRAIN_TIMEOUT,
        }
    }
}

/// How a listener ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every request was answered.
    Clean,
    /// So many connections were cut off when the drain timeout passed.
    Cut(usize),
}

/// Serves, over TLS where there is one, until `shutdown` is cancelled, then drains: stops accepting, calls `drain` (which has the
/// waiters answered), lets requests under way finish, and cuts off what is left after the drain
/// timeout.
///
/// Cancel (drop): connections go on without bounds on their end; cancel `shutdown` instead.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    limits: ServeLimits,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
    drain: impl FnOnce() + Send,
) -> Drained {
    let connections = TaskTracker::new();
    let stop = Stop { drain: CancellationToken::new(), cut: CancellationToken::new() };
    let handler = ConnectionHandler {
        tls,
        router,
        metrics,
        limits: limits.clone(),
        tasks: connections.clone(),
        stop: stop.clone(),
    };
    accept_until(&shutdown, listener, &handler).await;
    tracing::info!(connections = connections.len(), "draining: no new connections, requests under way finish");
    // First the connections, so that each answer to a waiter already says that it is the last.
    stop.drain.cancel();
    drain();
    connections.close();
    if tokio::time::timeout(limits.drain_timeout, connections.wait()).await.is_ok() {
        return Drained::Clean;
    }
    let left = connections.len();
    tracing::warn!(connections = left, "the drain timeout passed: what is left is cut off");
    stop.cut.cancel();
    connections.wait().await;
    Drained::Cut(left)
}

/// What tells connections to end.
#[derive(Clone)]
struct Stop {
    /// After the request under way.
    drain: CancellationToken,
    /// At once.
    cut: CancellationToken,
}

/// What every connection is kept with. Cheap to clone.
#[derive(Clone)]
struct ConnectionHandler {
    tls: Option<Arc<Tls>>,
    router: Router,
    metrics: Arc<Metrics>,
    limits: ServeLimits,
    /// Connections, and the requests of those with HTTP/2.
    tasks: TaskTracker,
    stop: Stop,
}

/// Accepts until `shutdown`; the listener is closed on return.
async fn accept_until(shutdown: &CancellationToken, listener: TcpListener, handler: &ConnectionHandler) {
    let permits = Arc::new(Semaphore::new(handler.limits.max_connections));
    loop {
        let next = async {
            if permits.available_permits() == 0 {
                let limit = handler.limits.max_connections;
                tracing::warn!(limit, "the bound on connections is met: further ones queue");
            }
            let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            next = next => next,
        };
        match accepted {
            Ok((stream, address)) => {
                handler.clone().keep(stream, address.ip(), (permit, handler.metrics.connected()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
}

impl ConnectionHandler {
    /// One connection, to its end, in a task of its own. `permit` is given back with it.
    fn keep(self, stream: TcpStream, from: IpAddr, permit: impl Send + 'static) {
        let socket = Socket::new(stream);
        let service = ConnectionService {
            router: TowerToHyperService::new(self.router.clone()),
            requests: Arc::default(),
            connection: socket.handle(),
            from: PeerAddress(from),
            certificate: None,
        };
        let tasks = self.tasks.clone();
        // Two tasks, since one that may be either is as large as the larger: thousands of these are parked.
        match self.tls.clone() {
            None => tasks.spawn(async move {
                self.http1(socket, service).await;
                drop(permit);
            }),
            Some(tls) => tasks.spawn(async move {
                self.https(&tls, socket, service).await;
                drop(permit);
            }),
        };
    }

    async fn https(&self, tls: &Tls, socket: Socket, mut service: ConnectionService) {
        let handshake = tokio::time::timeout(self.limits.header_timeout, tls.acceptor().accept(socket));
        let stream = tokio::select! {
            biased;
            () = self.stop.drain.cancelled() => return,
            shaken = handshake => match shaken {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => return tracing::debug!("a TLS handshake took too long"),
            },
        };
        let (_, session) = stream.get_ref();
        service.certificate = tls::peer(session);
        if session.alpn_protocol() == Some(ALPN_H2) {
            self.http2(stream, service).await;
        } else {
            self.http1(stream, service).await;
        }
    }

    fn timeouts(&self, head: Option<Duration>) -> ConnectionTimeouts {
        ConnectionTimeouts { idle: self.limits.idle_timeout, head, unread: UNREAD_TIMEOUT }
    }

    async fn http1(&self, stream: impl AsyncRead + AsyncWrite + Unpin, service: ConnectionService) {
        let timeouts = self.timeouts(Some(self.limits.header_timeout));
        let stream = IdleTimeout::new(stream, Arc::clone(&service.requests), timeouts);
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // It also counts while nothing comes; the head's own time is kept by the stream.
            .header_read_timeout(self.limits.idle_timeout.max(self.limits.header_timeout))
            .max_buf_size(self.limits.head_limit)
            .max_headers(MAX_HEADERS);
        let connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        self.drive(connection, |connection| connection.graceful_shutdown()).await;
    }

    async fn http2(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, service: ConnectionService) {
        let stream = IdleTimeout::new(stream, Arc::clone(&service.requests), self.timeouts(None));
        let mut builder = http2::Builder::new(Tracked(self.tasks.clone()));
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(H2_STREAMS_MAX)
            .max_header_list_size(u32::try_from(self.limits.head_limit).unwrap_or(u32::MAX))
            .max_send_buf_size(H2_SEND_BUFFER_BYTES)
            .keep_alive_interval(H2_PING.0)
            .keep_alive_timeout(H2_PING.1);
        let connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        self.drive(connection, |connection| connection.graceful_shutdown()).await;
    }

    /// To the end of the connection, or until it is cut off; told once when the service drains.
    async fn drive<C>(&self, mut connection: Pin<&mut C>, finish: impl Fn(Pin<&mut C>))
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                () = self.stop.cut.cancelled() => return,
                () = self.stop.drain.cancelled(), if !told => {
                    told = true;
                    finish(connection.as_mut());
                }
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        // A caller that hung up, was too slow, or spoke no HTTP: nobody has to act.
                        tracing::debug!(%error, "a connection ended early");
                    }
                    return;
                }
            }
        }
    }
}

/// Spawns the requests of HTTP/2 connections where connections are: they end with theirs.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tracked {
    fn execute(&self, request: F) {
        self.0.spawn(request);
    }
}

/// The router, as one connection calls it: each request is told where it comes from, and counts as
/// under way until its answer has been sent.
struct ConnectionService {
    router: TowerToHyperService<Router>,
    requests: Arc<RequestsInFlight>,
    connection: ConnectionHandle,
    from: PeerAddress,
    certificate: Option<Arc<PeerCertificate>>,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<SentBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let under_way = self.requests.begin();
        let extensions = request.extensions_mut();
        extensions.insert(self.connection.clone());
        extensions.insert(self.from);
        if let Some(certificate) = &self.certificate {
            extensions.insert(Arc::clone(certificate));
        }
        let answer = self.router.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| SentBody { body, under_way })) })
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
