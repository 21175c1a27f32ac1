//! Keeps connections: takes a bound listener and a shutdown token, bounds how many there are and
//! how long each may take with its head, and drains at the end. Knows a router and nothing of what
//! it serves.
//!
//! A caller that hangs up is noticed by the connection, which drops the request's future with it.

use std::time::Duration;

use super::socket::Socket;
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The most connections at a time: each waiter has one of its own, so this is the bound of waiters
/// (20,000) and a quarter more for everybody else.
pub const MAX_CONNECTIONS: usize = 25_000;
/// How long a connection may be idle, or take to send the head of a request: slow senders are to
/// cost nothing for ever.
pub const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of a request's head: a resource, a query and a dozen headers fit several times.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;
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
    /// See [`HEADER_READ_TIMEOUT`].
    pub header_read_timeout: Duration,
    /// See [`DRAIN_TIMEOUT`].
    pub drain_timeout: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS,
            header_read_timeout: HEADER_READ_TIMEOUT,
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

/// Serves until `shutdown` is cancelled, then drains: stops accepting, calls `drain` (which has the
/// waiters answered), lets requests under way finish, and cuts off what is left after the drain
/// timeout.
///
/// Cancel (drop): connections go on without bounds on their end; cancel `shutdown` instead.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServeLimits,
    shutdown: CancellationToken,
    drain: impl FnOnce() + Send,
) -> Drained {
    let connections = TaskTracker::new();
    let stop = Stop { drain: CancellationToken::new(), cut: CancellationToken::new() };
    accept_until(&shutdown, listener, router, &limits, &connections, &stop).await;
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

/// Accepts until `shutdown`; the listener is closed on return.
async fn accept_until(
    shutdown: &CancellationToken,
    listener: TcpListener,
    router: Router,
    limits: &ServeLimits,
    connections: &TaskTracker,
    stop: &Stop,
) {
    let seats = std::sync::Arc::new(Semaphore::new(limits.max_connections));
    let builder = builder(limits);
    loop {
        let next = async {
            if seats.available_permits() == 0 {
                tracing::warn!(limit = limits.max_connections, "the bound on connections is met: further ones queue");
            }
            let seat = seats.clone().acquire_owned().await.expect("the semaphore is never closed");
            (seat, listener.accept().await)
        };
        let (seat, accepted) = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = connection(builder.clone(), stream, router.clone(), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(seat);
                });
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

fn builder(limits: &ServeLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS);
    builder
}

/// One connection, to its end.
async fn connection(builder: http1::Builder, stream: TcpStream, router: Router, stop: Stop) {
    let socket = Socket::new(stream);
    let service = service_fn({
        let (router, caller) = (TowerToHyperService::new(router), socket.caller());
        move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(caller.clone());
            router.call(request)
        }
    });
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let mut told = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cut.cancelled() => return,
            () = stop.drain.cancelled(), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    // A caller that hung up, or spoke no HTTP: nobody has to act.
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
        }
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
