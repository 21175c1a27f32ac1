//! The answers of `elect --listen`: `GET /` names the leader, `GET /leader` whether this process leads (200 or 503), for sidecars
//! and readiness probes. Every client that can connect may ask; the answers contain no secret.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::client::transport::Client;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::types::ResourceName;

/// Maximum number of connections; others wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;
/// Maximum duration of one request with its answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Timeout of the service's answer about the leader.
const INSPECT_MAX: Duration = Duration::from_secs(2);
/// How long that answer is reused.
const INSPECTED_FOR: Duration = Duration::from_secs(1);
/// Pause after a connection that could not be accepted (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whether this process leads, by its own clock.
#[derive(Debug, Default)]
pub(super) struct Leader {
    /// Fence and deadline of the present term.
    term: RefCell<Option<(u64, watch::Receiver<BootTime>)>>,
}

impl Leader {
    /// Begins a term; the renewals set `deadline`.
    pub(super) fn begin(&self, fence: u64, deadline: watch::Receiver<BootTime>) {
        *self.term.borrow_mut() = Some((fence, deadline));
    }

    /// Ends the term.
    pub(super) fn end(&self) {
        *self.term.borrow_mut() = None;
    }

    /// Fence and time left, while this process leads. A term ends when its deadline passes, whatever the other state is.
    fn leads(&self) -> Option<(u64, Duration)> {
        let term = self.term.borrow();
        let (fence, deadline) = term.as_ref()?;
        let left = deadline.borrow().since(SystemClock.now());
        (!left.is_zero()).then_some((*fence, left))
    }
}

/// The data of the answers.
pub(super) struct LeaderPage<'a> {
    pub leader: &'a Leader,
    pub client: &'a Client,
    pub resource: &'a ResourceName,
    /// This process' own label.
    pub owner: &'a str,
    /// The leader in the service's last answer.
    pub seen: Cell<Option<(BootTime, Option<String>)>>,
}

impl LeaderPage<'_> {
    /// Serves for ever. Cancel: open connections are closed.
    pub(super) async fn serve(&self, listener: Option<TcpListener>) -> Infallible {
        let Some(listener) = listener else { return std::future::pending().await };
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(()) = connections.next(), if !connections.is_empty() => {}
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((stream, _)) => connections.push(self.answer(stream)),
                    Err(_) => SystemClock.sleep(ACCEPT_PAUSE).await,
                },
            }
        }
    }

    async fn answer(&self, stream: TcpStream) {
        let service = service_fn(|request| self.respond(request));
        let connection = http1::Builder::new()
            .keep_alive(false)
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service);
        // An error is the client's: there is nobody to report it to.
        let _ = tokio::time::timeout(ANSWER_MAX, connection).await;
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<String>, Infallible> {
        let (status, kind, body) = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/") => (StatusCode::OK, "application/json", self.who_leads().await),
            (&Method::GET | &Method::HEAD, "/leader") => match self.leader.leads() {
                Some(_) => (StatusCode::OK, "text/plain", "this process leads\n".to_owned()),
                None => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", "this process does not lead\n".to_owned()),
            },
            _ => (StatusCode::NOT_FOUND, "text/plain", "GET / or /leader\n".to_owned()),
        };
        let response = Response::builder().status(status).header(CONTENT_TYPE, kind).header(CACHE_CONTROL, "no-store");
        Ok(response.body(body).expect("the headers are valid"))
    }

    async fn who_leads(&self) -> String {
        let own = self.leader.leads();
        let leader = if own.is_some() { Some(self.owner.to_owned()) } else { self.other_leader().await };
        let answer = json!({
            "resource": self.resource.as_str(),
            "owner": self.owner,
            "is_leader": own.is_some(),
            "leader": leader,
            "fence": own.map(|(fence, _)| fence),
            "valid_for_ms": own.map(|(_, left)| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        });
        format!("{answer}\n")
    }

    /// The owner of the lease; `None` if nobody holds it, or the owner is unknown.
    async fn other_leader(&self) -> Option<String> {
        let seen = self.seen.take();
        let leader = match seen {
            Some((at, leader)) if SystemClock.now().since(at) < INSPECTED_FOR => {
                self.seen.set(Some((at, leader.clone())));
                return leader;
            }
            _ => tokio::time::timeout(INSPECT_MAX, self.client.inspect(self.resource)).await,
        };
        let leader = leader.ok()?.ok()??.holders.into_iter().next().map(|holder| holder.owner);
        self.seen.set(Some((SystemClock.now(), leader.clone())));
        leader
    }
}
