//! Connections on real sockets: disconnects, slow heads, limits, and the drain.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::Request;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::*;
use crate::worker_threads;

/// The defaults of the settings.
fn limits() -> ServeLimits {
    ServeLimits::from_config(&crate::http::state::shipped_config())
}

/// Longer than any step here takes.
const SOON: Duration = Duration::from_secs(20);

async fn soon<T>(expected: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("{expected} did not happen"))
}

/// Reports when it is dropped.
struct Parked(mpsc::UnboundedSender<&'static str>);

impl Drop for Parked {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

struct Service {
    address: SocketAddr,
    shutdown: CancellationToken,
    /// What `/park` reports: `parked`, and `dropped` when its future goes.
    parked: mpsc::UnboundedReceiver<&'static str>,
    /// Answers what is parked, as the drain hook does.
    release: Arc<Notify>,
    /// How often the drain hook was called.
    drains: Arc<AtomicUsize>,
    ended: JoinHandle<Drained>,
}

/// `/` answers at once, `/thread` with the number of its thread, `/park` when the drain hook is called, `/stuck` never.
async fn start(limits: ServeLimits) -> Service {
    start_on(WorkerThreads::default(), limits).await
}

async fn start_on(threads: WorkerThreads, limits: ServeLimits) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (tell, parked) = mpsc::unbounded_channel();
    let (release, shutdown, drains) =
        (Arc::new(Notify::new()), CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let park = {
        let (tell, release) = (tell.clone(), release.clone());
        move |request: Request| {
            let (guard, release) = (Parked(tell.clone()), release.clone());
            async move {
                drop(request);
                let released = release.notified();
                tokio::pin!(released);
                released.as_mut().enable();
                let _ = guard.0.send("parked");
                released.await;
                "released"
            }
        }
    };
    let stuck = move || {
        let guard = Parked(tell.clone());
        async move {
            let _ = guard.0.send("parked");
            std::future::pending::<()>().await;
        }
    };
    let echo = |body: String| async move { body };
    let router = Router::new()
        .route("/", get(|| async { "hello" }).post(echo))
        .route("/thread", get(|| async { format!("{}.", worker_threads::current()) }))
        .route("/park", post(park))
        .route("/stuck", get(stuck));
    let hook = {
        let (drains, release) = (drains.clone(), release.clone());
        move || {
            drains.fetch_add(1, Ordering::SeqCst);
            release.notify_waiters();
        }
    };
    let served = ServedListener { listener, tls: None, threads };
    let ended = tokio::spawn(serve(served, router, limits, Metrics::new(&[], &[]), shutdown.clone(), hook));
    Service { address, shutdown, parked, release, drains, ended }
}

async fn connect(service: &Service) -> TcpStream {
    soon("a connection", TcpStream::connect(service.address)).await.expect("accepted")
}

async fn write(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.expect("written");
}

/// Reads until what was read ends with `end`.
async fn read_to(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    while text.is_empty() || !text.ends_with(end) {
        let mut buffer = [0; 1024];
        let n = soon("an answer", stream.read(&mut buffer)).await.expect("readable");
        assert!(n > 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..n]).expect("UTF-8"));
    }
    text
}

/// Reads until the service closes.
async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    soon("the end of the connection", stream.read_to_string(&mut text)).await.expect("readable");
    text
}

const HELLO: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const PARK: &str = "POST /park HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab";

#[tokio::test]
async fn requests_are_answered_and_connections_kept() {
    let service = start(limits()).await;
    let mut stream = connect(&service).await;
    for _ in 0..2 {
        write(&mut stream, HELLO).await;
        assert!(read_to(&mut stream, "hello").await.starts_with("HTTP/1.1 200 OK\r\n"));
    }
}

#[tokio::test]
async fn a_disconnect_drops_the_request() {
    let mut service = start(limits()).await;
    let mut stream = connect(&service).await;
    write(&mut stream, PARK).await;
    assert_eq!(soon("parking", service.parked.recv()).await, Some("parked"));
    drop(stream);
    assert_eq!(soon("the drop", service.parked.recv()).await, Some("dropped"));
}

/// The library holds what comes behind a request, and reads no further meanwhile.
#[tokio::test]
async fn a_disconnect_drops_the_request_whatever_was_sent_behind_it() {
    let mut service = start(limits()).await;
    let unread_body = "GET /stuck HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab";
    for sent in [format!("{PARK}\r\n"), format!("{PARK}x"), format!("{PARK}{HELLO}{HELLO}"), unread_body.to_owned()] {
        for later in ["", "\r\n"] {
            let mut stream = connect(&service).await;
            write(&mut stream, &sent).await;
            assert_eq!(soon("parking", service.parked.recv()).await, Some("parked"));
            write(&mut stream, later).await;
            drop(stream);
            assert_eq!(soon("the drop", service.parked.recv()).await, Some("dropped"), "{sent:?}");
        }
    }
}

#[tokio::test]
async fn requests_sent_behind_a_waiting_one_are_answered_after_it() {
    let mut service = start(limits()).await;
    let mut stream = connect(&service).await;
    write(&mut stream, &format!("{PARK}{HELLO}")).await;
    assert_eq!(soon("parking", service.parked.recv()).await, Some("parked"));
    write(&mut stream, &format!("{PARK}{}", HELLO.repeat(100))).await;
    service.release.notify_waiters();
    assert!(read_to(&mut stream, "hello").await.contains("released"));
    assert_eq!(soon("the first's end", service.parked.recv()).await, Some("dropped"));
    assert_eq!(soon("parking", service.parked.recv()).await, Some("parked"));
    service.release.notify_waiters();
    let mut answers = String::new();
    while answers.matches("hello").count() < 100 {
        answers += &read_to(&mut stream, "").await;
    }
    assert!(answers.contains("released"), "{answers}");
}

#[tokio::test]
async fn a_drain_answers_waiters_and_closes_idle_connections() {
    let mut service = start(limits()).await;
    let (mut waiting, mut idle, mut fresh) =
        (connect(&service).await, connect(&service).await, connect(&service).await);
    write(&mut idle, HELLO).await;
    read_to(&mut idle, "hello").await;
    write(&mut waiting, PARK).await;
    assert_eq!(soon("parking", service.parked.recv()).await, Some("parked"));

    service.shutdown.cancel();
    let answer = read_all(&mut waiting).await;
    assert!(answer.contains("connection: close") && answer.ends_with("released"), "{answer}");
    assert_eq!(read_all(&mut idle).await, "");
    assert_eq!(read_all(&mut fresh).await, "");
    assert_eq!(soon("the end", service.ended).await.expect("no panic"), Drained::Clean);
    assert_eq!(service.drains.load(Ordering::SeqCst), 1);
    assert!(TcpStream::connect(service.address).await.is_err(), "no longer listening");
}

#[tokio::test]
async fn connections_are_closed_after_the_drain_timeout() {
    let limits = ServeLimits { drain_timeout: Duration::from_millis(50), ..limits() };
    let mut service = start(limits).await;
    let mut stream = connect(&service).await;
    write(&mut stream, "GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!(soon("parking", service.parked.recv()).await, Some("parked"));
    service.shutdown.cancel();
    assert_eq!(soon("the end", service.ended).await.expect("no panic"), Drained::Cut(1));
    assert_eq!(soon("the drop", service.parked.recv()).await, Some("dropped"));
    assert_eq!(read_all(&mut stream).await, "");
}

#[tokio::test]
async fn slow_heads_and_idle_connections_are_closed() {
    let limits =
        ServeLimits { header_timeout: Duration::from_millis(50), idle_timeout: Duration::from_millis(50), ..limits() };
    let service = start(limits).await;
    let (mut slow, mut silent, mut idle) = (connect(&service).await, connect(&service).await, connect(&service).await);
    write(&mut slow, "GET / HTTP/1.1\r\nHost: ").await;
    write(&mut idle, HELLO).await;
    read_to(&mut idle, "hello").await;
    assert!(!read_all(&mut slow).await.contains("200 OK"));
    assert!(!read_all(&mut silent).await.contains("200 OK"));
    assert!(!read_all(&mut idle).await.contains("200 OK"));
}

#[tokio::test]
async fn a_parked_request_outlives_the_header_timeout() {
    // Far longer than this machine takes to write a head, however busy it is.
    let limits =
        ServeLimits { header_timeout: Duration::from_secs(1), idle_timeout: Duration::from_secs(1), ..limits() };
    let mut service = start(limits).await;
    let mut waiting = connect(&service).await;
    write(&mut waiting, PARK).await;
    let mut silent = connect(&service).await;
    assert_eq!(soon("parking", service.parked.recv()).await, Some("parked"));
    // A connection that began no earlier has met the timeout by now.
    read_all(&mut silent).await;
    service.shutdown.cancel();
    assert!(read_all(&mut waiting).await.ends_with("released"));
}

#[tokio::test]
async fn connections_over_the_limit_wait_and_are_served_later() {
    let service = start(ServeLimits { max_connections: 1, ..limits() }).await;
    let mut first = connect(&service).await;
    write(&mut first, HELLO).await;
    read_to(&mut first, "hello").await;
    let mut second = connect(&service).await;
    write(&mut second, HELLO).await;
    // Time enough to serve the second one, if it had a permit: the first is served in between.
    for _ in 0..20 {
        write(&mut first, HELLO).await;
        read_to(&mut first, "hello").await;
    }
    let mut buffer = [0; 1];
    assert_eq!(second.try_read(&mut buffer).map_err(|e| e.kind()), Err(std::io::ErrorKind::WouldBlock));
    drop(first);
    assert!(read_to(&mut second, "hello").await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn each_thread_serves_as_many_connections_and_all_drain() {
    let (threads, _end) = WorkerThreads::start(2).expect("threads");
    let service = start_on(threads, limits()).await;
    let (mut connections, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let mut connection = connect(&service).await;
        // Twice: a connection stays on its thread.
        for _ in 0..2 {
            write(&mut connection, "GET /thread HTTP/1.1\r\nhost: a\r\n\r\n").await;
            let answer = read_to(&mut connection, ".").await;
            threads.push(answer.ends_with("1."));
        }
        connections.push(connection);
    }
    let (one, other) = (threads[0], !threads[0]);
    assert_eq!(threads, [one, one, other, other, one, one, other, other, one, one, other, other]);
    service.shutdown.cancel();
    assert_eq!(soon("the end", service.ended).await.expect("no panic"), Drained::Clean);
}

#[tokio::test]
async fn a_head_over_its_limit_is_refused() {
    let service = start(limits()).await;
    let mut stream = connect(&service).await;
    let head = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Big: {}\r\n\r\n", "x".repeat(limits().head_limit));
    // The service may close before all of it was taken.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = soon("the refusal", stream.read_to_end(&mut answer)).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn a_body_may_be_larger_than_the_head_limit() {
    let service = start(limits()).await;
    let mut stream = connect(&service).await;
    let body = "x".repeat(4 * limits().head_limit);
    write(&mut stream, &format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}y", body.len() + 1))
        .await;
    assert!(read_to(&mut stream, "xy").await.starts_with("HTTP/1.1 200 OK\r\n"));
}
