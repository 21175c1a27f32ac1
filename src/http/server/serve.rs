//! The connection server: accepts connections from a bound listener, limits their number and idle time, speaks TLS
//! and HTTP/2 where negotiated, and drains on shutdown. When a client disconnects, the connection drops the futures
//! of its requests.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use futures_util::future::Either;
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

use super::answer_body::{Http2Request, TrackedBody};
use super::idle_timeout::{ConnectionTimeouts, IdleTimeout, UNREAD_TIMEOUT};
use super::socket::{self, LossTimeout};
use super::tls::{self, ALPN_H2, Tls};
use super::woken_future::WokenFuture;
use crate::auth::principals::PeerCertificate;
use crate::config::Config;
use crate::http::connection::{Connection, RequestGuard};
use crate::http::lock_routes::Routes;
use crate::http::middleware::stack::Answer;
use crate::http::request_context::RequestContext;
use crate::http::request_head::MAX_HEADERS;
use crate::metrics::Metrics;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::worker_threads::WorkerThreads;

/// The maximum number of concurrent requests on one HTTP/2 connection.
const H2_STREAMS_MAX: u32 = 256;
/// The interval of HTTP/2 pings, and the timeout of the answer to one.
const H2_PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(15));
/// Bytes buffered for one HTTP/2 request whose client does not read its answer.
const H2_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// The pause after a failed accept: without file descriptors, the next one would also fail.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The minimum time between two log lines about the maximum number of connections: clients could fill the log.
const FULL_WARN_INTERVAL: Duration = Duration::from_mins(1);

/// The limits of a listener.
#[derive(Debug, Clone)]
pub(crate) struct ServeLimits {
    /// Maximum number of connections; further ones wait in the kernel's queue. Each waiter has its own connection.
    pub max_connections: usize,
    /// Timeout for the head of a request, and for a TLS handshake.
    pub header_timeout: Duration,
    /// Timeout for a connection without a request.
    pub idle_timeout: Duration,
    /// Maximum number of bytes of a request's head. At least 8 KiB.
    pub head_limit: usize,
    /// How long requests in flight may take to finish once the service drains. Waiters are answered at once.
    pub drain_timeout: Duration,
}

impl ServeLimits {
    pub(crate) fn from_config(config: &Config) -> Self {
        Self {
            max_connections: config.max_connections,
            header_timeout: config.header_timeout,
            idle_timeout: config.idle_timeout,
            head_limit: config.head_limit,
            drain_timeout: config.drain_timeout,
        }
    }
}

/// How a listener ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Every request was answered.
    Clean,
    /// The drain timeout passed, and this many connections were closed.
    Cut(usize),
}

/// A bound listener, and how its connections are served.
pub(crate) struct ServedListener {
    pub listener: TcpListener,
    /// `None`: without TLS.
    pub tls: Option<Arc<Tls>>,
    /// The threads that serve its connections.
    pub threads: WorkerThreads,
}

/// Serves until `shutdown` is cancelled, then drains: stops accepting, calls `drain` (which answers
/// the waiters), lets requests in flight finish, and closes the remaining connections after the drain timeout.
///
/// Cancel (drop): connections continue without a time limit; cancel `shutdown` instead.
pub(crate) async fn serve(
    ServedListener { listener, tls, threads }: ServedListener,
    routes: impl Into<Routes>,
    limits: ServeLimits,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
    drain: impl FnOnce() + Send,
) -> Drained {
    let connections = TaskTracker::new();
    let stop = StopSignals { drain: CancellationToken::new(), cut: CancellationToken::new() };
    let handler = ConnectionHandler {
        tls,
        routes: routes.into(),
        loads: (0..threads.count()).map(|_| Load::default()).collect(),
        threads,
        metrics,
        limits: limits.clone(),
        tasks: connections.clone(),
        stop: stop.clone(),
    };
    accept_until(&shutdown, listener, &handler).await;
    tracing::info!(connections = connections.len(), "draining: no new connections; requests in flight finish");
    // Connections first, so that the answers to waiters already carry `Connection: close`.
    stop.drain.cancel();
    drain();
    connections.close();
    if tokio::time::timeout(limits.drain_timeout, connections.wait()).await.is_ok() {
        return Drained::Clean;
    }
    let left = connections.len();
    tracing::warn!(connections = left, "the drain timeout passed: remaining connections are closed");
    stop.cut.cancel();
    connections.wait().await;
    Drained::Cut(left)
}

/// The signals that end connections.
#[derive(Clone)]
struct StopSignals {
    /// Ends connections after the requests in flight.
    drain: CancellationToken,
    /// Ends connections at once, even those with a request.
    cut: CancellationToken,
}

/// Accepts until `shutdown`; the listener is closed on return.
async fn accept_until(shutdown: &CancellationToken, listener: TcpListener, handler: &ConnectionHandler) {
    let permits = Arc::new(Semaphore::new(handler.limits.max_connections));
    let mut warned: Option<BootTime> = None;
    loop {
        let next = async {
            let now = SystemClock.now();
            let may_warn = warned.is_none_or(|at| now.since(at) >= FULL_WARN_INTERVAL);
            if permits.available_permits() == 0 && may_warn {
                warned = Some(now);
                let limit = handler.limits.max_connections;
                tracing::warn!(limit, "the maximum number of connections is reached: further ones wait");
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
            Ok((stream, peer)) => handler.clone().spawn(stream, peer, (permit, handler.metrics.connected())),
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

/// Each connection of a thread has a clone.
type Load = Arc<()>;

/// The data for handling each connection. Cheap to clone.
#[derive(Clone)]
struct ConnectionHandler {
    tls: Option<Arc<Tls>>,
    routes: Routes,
    metrics: Arc<Metrics>,
    limits: ServeLimits,
    threads: WorkerThreads,
    /// By thread.
    loads: Arc<[Load]>,
    /// The tasks of connections, and of the requests of HTTP/2 connections.
    tasks: TaskTracker,
    stop: StopSignals,
}

impl ConnectionHandler {
    /// Handles one connection to its end, in its own task on the thread with the fewest connections; `permit` is dropped with it.
    fn spawn(self, stream: TcpStream, peer: SocketAddr, permit: impl Send + 'static) {
        let (threads, loads) = (self.threads.clone(), Arc::clone(&self.loads));
        let fewest = loads.iter().enumerate().min_by_key(|(_, load)| Arc::strong_count(load));
        let Some((thread, load)) = fewest else { return };
        let permit = (permit, Arc::clone(load));
        let entered = threads.enter(thread);
        // A socket is woken by the runtime in which it was made.
        let moved = if entered.is_some() { stream.into_std().and_then(TcpStream::from_std) } else { Ok(stream) };
        let stream = match moved {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%error, "a connection could not be passed to its thread"),
        };
        socket::configure(&stream);
        let service = ConnectionService {
            router: TowerToHyperService::new(self.routes.router.clone()),
            routes: self.routes.clone(),
            connection: Connection::new(peer, self.tls.is_some()),
            certificate: None,
        };
        let tasks = self.tasks.clone();
        // Two types of task: a common type would be as large as the larger, and thousands of these tasks wait.
        match self.tls.clone() {
            None => tasks.spawn(async move {
                self.http1(stream, service).await;
                drop(permit);
            }),
            Some(tls) => tasks.spawn(async move {
                self.https(&tls, stream, service).await;
                drop(permit);
            }),
        };
    }

    async fn https(&self, tls: &Tls, stream: TcpStream, mut service: ConnectionService) {
        let handshake = tokio::time::timeout(self.limits.header_timeout, tls.acceptor().accept(stream));
        let stream = tokio::select! {
            biased;
            () = self.stop.drain.cancelled() => return,
            finished = handshake => match finished {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => return tracing::debug!("a TLS handshake timed out"),
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

    async fn http1(&self, stream: impl AsyncRead + AsyncWrite + LossTimeout + Unpin, service: ConnectionService) {
        let timeouts = self.timeouts(Some(self.limits.header_timeout));
        let stream = IdleTimeout::new(stream, Arc::clone(&service.connection), timeouts)
            .with_early_bytes(self.limits.head_limit);
        let mut builder = http1::Builder::new();
        // Without hyper's own timeout of a head, which would need a timer for each request: `IdleTimeout` has it.
        builder.header_read_timeout(None).max_buf_size(self.limits.head_limit).max_headers(MAX_HEADERS);
        let connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        self.drive(connection, |connection| connection.graceful_shutdown()).await;
    }

    async fn http2<S>(&self, stream: S, service: ConnectionService)
    where
        S: AsyncRead + AsyncWrite + LossTimeout + Unpin + Send + 'static,
    {
        let stream = IdleTimeout::new(stream, Arc::clone(&service.connection), self.timeouts(None));
        let mut builder = http2::Builder::new(TrackedExecutor(self.tasks.clone()));
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

    /// Drives the connection to its end, or until it is cut; `finish` is called once when the service drains.
    async fn drive<C>(&self, mut connection: Pin<&mut C>, finish: impl Fn(Pin<&mut C>))
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let (mut cut, mut drain) = (pin!(self.stop.cut.cancelled()), pin!(self.stop.drain.cancelled()));
        let (mut is_draining, mut woken_by) = (false, None::<Waker>);
        let ended = poll_fn(|cx| {
            let is_listening = woken_by.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            // A signal that was polled once wakes this task, however often the connection is polled until then.
            if !is_listening || self.stop.cut.is_cancelled() || (!is_draining && self.stop.drain.is_cancelled()) {
                woken_by = Some(cx.waker().clone());
                if cut.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(()));
                }
                if !is_draining && drain.as_mut().poll(cx).is_ready() {
                    is_draining = true;
                    finish(connection.as_mut());
                }
            }
            connection.as_mut().poll(cx)
        });
        if let Err(error) = ended.await {
            // The client disconnected, timed out or sent no HTTP: no action is needed.
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// Spawns the requests of HTTP/2 connections on the tracker of the connections.
#[derive(Clone)]
struct TrackedExecutor(TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for TrackedExecutor {
    fn execute(&self, request: F) {
        self.0.spawn(Http2Request::new(request));
    }
}

/// The routes as one connection calls them: adds the connection to each request's extensions, and counts the request as in flight
/// until its answer has been sent.
struct ConnectionService {
    routes: Routes,
    router: TowerToHyperService<Router>,
    connection: Arc<Connection>,
    certificate: Option<Arc<PeerCertificate>>,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<TrackedBody>;
    type Error = Infallible;
    type Future = AnswerOf;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let guard = self.connection.begin_request();
        let context = RequestContext::new(Arc::clone(&self.connection), &request);
        let extensions = request.extensions_mut();
        extensions.insert(context);
        if let Some(certificate) = &self.certificate {
            extensions.insert(Arc::clone(certificate));
        }
        let answer = match self.routes.direct(&request) {
            Some(handler) => Either::Left(handler(request.map(body_of))),
            None => Either::Right(Box::pin(self.router.call(request)) as RouterAnswer),
        };
        AnswerOf { answer: WokenFuture::new(answer), guard: Some(guard) }
    }
}

/// Needs no box where there is no body.
fn body_of(body: Incoming) -> Body {
    if body.is_end_stream() { Body::empty() } else { Body::new(body) }
}

type RouterAnswer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// The answer to a request, by the handler of one lock or by the router.
struct AnswerOf {
    answer: WokenFuture<Either<Answer, RouterAnswer>>,
    /// Taken by the answer's body.
    guard: Option<RequestGuard>,
}

impl Future for AnswerOf {
    type Output = Result<Response<TrackedBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { answer, guard } = self.get_mut();
        let answer = ready!(Pin::new(answer).poll(cx))?;
        let Some(guard) = guard.take() else { return Poll::Pending };
        Poll::Ready(Ok(answer.map(|body| TrackedBody::new(body, guard))))
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
