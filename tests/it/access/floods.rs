//! Floods: connections that never finish a head, and readers of every stream that do not read. Memory is bounded, and
//! another caller is served meanwhile. `make floods` runs them large.

use std::os::fd::AsFd;
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::net::sockopt;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use crate::support::client::Client;
use crate::support::poll;
use crate::support::service::Service;

/// Longer than another caller may wait for an acquire and a release during a flood, on a machine that is busy otherwise.
const SERVED_WITHIN: Duration = Duration::from_secs(10);
/// Connections of the ordinary run; `REDLOCKD_FLOOD` has another number.
const CONNECTIONS: usize = 600;
/// These fit into the listen queue.
const AT_ONCE: usize = 250;
/// Streams that are not read, of each kind. Event streams have a limit of 256.
const STREAMS: usize = 60;
/// Locks that are acquired and released while nobody reads.
const EVENTS: usize = 300;
/// Memory that one connection may cost. Bytes.
const CONNECTION_MAX: usize = 64 << 10;
/// Memory that one unread stream may cost in the process: its buffers; the kernel's are not counted. Bytes.
const STREAM_MAX: usize = 512 << 10;

/// The number of a large run.
fn wanted() -> Option<usize> {
    std::env::var("REDLOCKD_FLOOD").ok().and_then(|number| number.parse().ok())
}

/// The memory of the process that is in use. Bytes.
fn memory(service: &Service) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid().as_raw_nonzero())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

/// How long another caller takes for an acquire and a release; at most [`SERVED_WITHIN`].
async fn other_caller(client: &Client) -> Duration {
    let began = SystemClock.now();
    let cycle = async {
        let lease = client.acquired("somebody/else", &[]).await;
        client.release("somebody/else", &lease.token()).await.expect_status(204);
    };
    tokio::time::timeout(SERVED_WITHIN, cycle).await.expect("another caller is served");
    SystemClock.now().since(began)
}

/// A connection whose kernel keeps little of what is not read.
async fn narrow(service: &Service) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    sockopt::set_socket_recv_buffer_size(socket.as_fd(), 4_096).expect("an option");
    socket.connect(service.address()).await.expect("it listens")
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stdout, reason = "figures of a run by hand")]
async fn half_open_connections_do_not_block_another_caller() {
    let count = wanted().unwrap_or(CONNECTIONS);
    // Long enough that none is closed before the last one is opened.
    let service = Service::embedded(&["--set", "header_timeout=5m", "--set", "idle_timeout=5m"]).await;
    let client = service.client();
    other_caller(client).await;
    let (before, mut open, mut slowest) = (memory(&service), Vec::new(), Duration::ZERO);
    while open.len() < count {
        let opened = (0..AT_ONCE.min(count - open.len())).map(async |i| {
            let mut stream = TcpStream::connect(service.address()).await.expect("it listens");
            // Nothing, the beginning of a head, a head whose body does not come, a request whose answer is not read.
            let head: &[u8] = match i % 4 {
                0 => b"",
                1 => b"POST /locks/x HTTP/1.1\r\nHost",
                2 => b"POST /locks/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nttl",
                _ => b"GET /openapi.yaml HTTP/1.1\r\nHost: localhost\r\n\r\n",
            };
            stream.write_all(head).await.expect("connected");
            stream
        });
        open.extend(futures_util::future::join_all(opened).await);
        slowest = slowest.max(other_caller(client).await);
    }
    let grown = memory(&service).saturating_sub(before);
    assert!(grown < count * CONNECTION_MAX, "{grown} bytes for {count} connections");
    if wanted().is_some() {
        println!("{count} connections: {} bytes each, another caller took at most {slowest:?}", grown / count);
    }
    drop(open);
    // All of them end, and what they cost is free again.
    poll::until("they are closed", || async {
        let metrics = client.get("/metrics").await.expect_status(200).text;
        let line = metrics.lines().find_map(|line| line.strip_prefix("redlockd_http_connections "))?.to_owned();
        line.parse::<f64>().is_ok_and(|open| open < 50.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stdout, reason = "figures of a run by hand")]
async fn readers_that_do_not_read_do_not_block_another_caller() {
    let events = wanted().map_or(EVENTS, |number| number.min(5_000));
    let service = Service::embedded(&["--set", "min_ttl=400ms"]).await;
    let client = service.client();
    other_caller(client).await;
    let (before, mut open) = (memory(&service), Vec::new());
    for i in 0..STREAMS {
        for request in [
            "GET /events?renewals=true HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
            "GET /ui/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
            // A renewal every 133 ms.
            format!("POST /locks/held/{i}?hold=true&ttl=400ms HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            "GET /openapi.yaml HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(50),
        ] {
            let mut stream = narrow(&service).await;
            stream.write_all(request.as_bytes()).await.expect("connected");
            open.push(stream);
        }
    }
    let owner = "x".repeat(128);
    let (mut most, mut slowest) = (0, Duration::ZERO);
    for i in 0..events {
        let lease = client.acquired(&format!("event/{i}"), &[("owner", &owner)]).await;
        client.release(&format!("event/{i}"), &lease.token()).await.expect_status(204);
        if i % 50 == 0 {
            most = most.max(memory(&service));
            slowest = slowest.max(other_caller(client).await);
        }
    }
    let grown = most.saturating_sub(before);
    assert!(grown < open.len() * STREAM_MAX, "{grown} bytes for {} streams", open.len());
    if wanted().is_some() {
        let each = grown / open.len();
        println!(
            "{} unread streams, {events} events: {each} bytes each, another caller took at most {slowest:?}",
            open.len()
        );
    }
    // Who holds a lock through a stream keeps it only as long as the connection is there.
    drop(open);
    poll::until("the held locks are free", || async {
        let list = client.get("/locks?prefix=held/").await.expect_status(200).json();
        (list["total"] == 0).then_some(())
    })
    .await;
}
