//! Floods over HTTP/2: streams that are opened and reset as fast as possible, each with a request that would wait for a lock
//! (rapid reset, CVE-2023-44487); frames of every kind that costs their sender little; answers that nobody reads. Another client is
//! served meanwhile, within bounds of time and memory. `make floods` runs them large.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};

use reqwest::Certificate;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::tls::{Authority, Secure};
use super::{Access, entry, key};
use crate::support::poll;

/// Longer than anything but a hang.
const SOON: Duration = Duration::from_secs(60);
/// Streams of one connection, unless the service closes it.
const STREAMS: u32 = 20_000;
/// Connections, one after the other.
const ROUNDS: usize = 5;
/// Maximum growth of the process' memory.
const MEMORY_MAX: usize = 64 << 20;
/// Longer than another client may wait for an acquire and a release during a flood, on a machine that is busy otherwise.
const SERVED_WITHIN: Duration = Duration::from_secs(10);
/// Frames of a flood of the ordinary run, unless the service closes the connection.
const FRAMES: usize = 5_000;
/// The same of a large one.
const FRAMES_OF_LARGE_RUN: usize = 500_000;
/// Frames that are written at a time.
const BATCH: usize = 100;
/// Connections that do not read, and requests on each: as many as the service takes.
const UNREAD: (usize, u32) = (4, 256);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const CANCEL: u32 = 8;
/// `END_STREAM`.
const LAST: u8 = 1;
/// `END_HEADERS`.
const HEAD: u8 = 4;
/// `END_STREAM` and `END_HEADERS`.
const WHOLE: u8 = 5;

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("small").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// `GET path` as a header block; the next is the same for `POST`.
fn get(path: &str) -> Vec<u8> {
    [&[0x82], &post(path)[1..]].concat()
}

/// `POST path` as a header block: indexed fields, and literals without indexing.
fn post(path: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    // 15 + 8: `authorization` is the 23rd name of the static table.
    let authorization = [vec![0x0f, 8], text(&format!("Bearer {}", key("ci")))].concat();
    [vec![0x83, 0x87, 0x04], text(path), vec![0x01], text("localhost"), authorization].concat()
}

async fn connect(secure: &Secure) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(secure.authority.pem.as_bytes()).expect("PEM")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.expect("usual versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(secure.url.trim_start_matches("https://")).await.expect("it listens");
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("it shakes hands")
}

/// Opens and resets streams until the service closes the connection or all are sent; their number.
async fn rapid_reset(secure: &Secure) -> u32 {
    let (mut read, mut write) = tokio::io::split(connect(secure).await);
    let opening = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    write.write_all(&opening).await.expect("connected");
    // Reads all answers, so that the service never waits for this client.
    let reading = tokio::spawn(async move {
        let mut sink = vec![0; 16 * 1024];
        while read.read(&mut sink).await.is_ok_and(|bytes| bytes > 0) {}
    });
    let block = post("/locks/contended?wait=1m");
    let mut sent = 0;
    while sent < STREAMS && !reading.is_finished() {
        let stream = 2 * sent + 1;
        let pair =
            [frame(HEADERS, WHOLE, stream, &block), frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())].concat();
        if write.write_all(&pair).await.is_err() {
            break;
        }
        sent += 1;
    }
    reading.abort();
    sent
}

/// Another client, over connections of its own.
struct Other<'s> {
    secure: &'s Secure,
    http: reqwest::Client,
}

impl<'s> Other<'s> {
    fn of(secure: &'s Secure) -> Self {
        let root = Certificate::from_pem(secure.authority.pem.as_bytes()).expect("PEM");
        Self { secure, http: secure.builder().tls_certs_only([root]).build().expect("a client") }
    }

    fn lock(&self, name: &str) -> String {
        format!("{}/locks/{name}", self.secure.url)
    }

    /// Acquires; asks again where the node was late, which on a busy machine it can be. The token.
    async fn take(&self, name: &str) -> reqwest::header::HeaderValue {
        poll::until("a quorum answers an acquire", || async {
            let request = self.http.post(self.lock(name)).bearer_auth(key("ci")).form(&[("ttl", "1m")]);
            let answer = request.send().await.expect("an answer");
            // What a late answer left behind has a lock delay.
            let is_late = matches!(answer.status().as_u16(), 503 | 423);
            let granted = (!is_late).then(|| answer.error_for_status().expect("granted"));
            granted.map(|answer| answer.headers()["lock-token"].clone())
        })
        .await
    }

    /// Acquires and releases, within [`SERVED_WITHIN`]; how long that took.
    async fn served(&self) -> Duration {
        let began = SystemClock.now();
        let cycle = async {
            let token = self.take("somebody/else").await;
            let release =
                self.http.delete(self.lock("somebody/else")).bearer_auth(key("ci")).header("Lock-Token", token);
            let released = release.send().await.expect("an answer").status().as_u16();
            assert!(matches!(released, 204 | 503), "{released}");
        };
        tokio::time::timeout(SERVED_WITHIN, cycle).await.expect("another client is served");
        SystemClock.now().since(began)
    }

    /// Is served again and again while the flood lasts; what the flood came to, how often, and the longest time.
    async fn beside<T>(&self, flood: impl Future<Output = T>) -> (T, u32, Duration) {
        let (is_over, mut times, mut slowest) = (Cell::new(false), 0, Duration::ZERO);
        let flood = async {
            let came = tokio::time::timeout(SOON, flood).await.expect("it takes them, or closes");
            is_over.set(true);
            came
        };
        let serving = async {
            while !is_over.get() {
                slowest = slowest.max(self.served().await);
                times += 1;
            }
        };
        let (came, ()) = tokio::join!(flood, serving);
        (came, times, slowest)
    }
}

fn access() -> Access {
    Access::with(&entry("ci", &[&key("ci")], &["admin"], "requests_per_second = 1000000"))
}

fn is_large_run() -> bool {
    std::env::var_os("REDLOCKD_FLOOD").is_some()
}

#[tokio::test]
#[expect(clippy::print_stdout, reason = "figures of a run by hand")]
async fn rapidly_reset_streams_do_not_affect_other_clients() {
    let secure = Secure::start(&access(), &Authority::new("clients").pem, &[]).await;
    let other = Other::of(&secure);
    other.take("contended").await;
    rapid_reset(&secure).await;
    let before = secure.memory();
    let (mut sent, mut slowest) = (Vec::new(), Duration::ZERO);
    for _ in 0..ROUNDS {
        let (streams, _, took) = other.beside(rapid_reset(&secure)).await;
        sent.push(streams);
        slowest = slowest.max(took);
    }
    assert!(sent.iter().all(|sent| *sent > 10), "{sent:?}");
    // The queue is empty again, and the memory has not grown.
    poll::until("the queue is empty", || async {
        let seen = other.http.get(other.lock("contended")).bearer_auth(key("ci")).send().await.expect("an answer");
        let body: serde_json::Value = seen.json().await.expect("JSON");
        body["waiters"].as_array().is_some_and(Vec::is_empty).then_some(())
    })
    .await;
    let grown = secure.memory().saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{grown} bytes more after {sent:?} streams");
    if is_large_run() {
        println!("rapid reset: {sent:?} streams, {grown} bytes more, another client took at most {slowest:?}");
    }
}

/// Sends the opening, then one frame again and again, until the service closes the connection or all are sent; their number.
async fn frame_flood(secure: &Secure, opening: &[u8], again: &[u8], frames: usize) -> usize {
    let (mut read, mut write) = tokio::io::split(connect(secure).await);
    write.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[]), opening].concat()).await.expect("connected");
    let reading = tokio::spawn(async move {
        let mut sink = vec![0; 16 * 1024];
        while read.read(&mut sink).await.is_ok_and(|bytes| bytes > 0) {}
    });
    let (batch, mut sent) = (again.repeat(BATCH), 0);
    while sent < frames && !reading.is_finished() && write.write_all(&batch).await.is_ok() {
        sent += BATCH;
    }
    reading.abort();
    sent
}

#[tokio::test]
#[expect(clippy::print_stdout, reason = "figures of a run by hand")]
async fn floods_of_frames_do_not_affect_other_clients() {
    let secure = Secure::start(&access(), &Authority::new("clients").pem, &[]).await;
    let other = Other::of(&secure);
    let frames = if is_large_run() { FRAMES_OF_LARGE_RUN } else { FRAMES };
    let posting = frame(HEADERS, HEAD, 1, &post("/locks/x"));
    let endless = frame(HEADERS, LAST, 1, &post("/locks/x"));
    let field = [vec![0x00, 1, b'x', 100], vec![b'y'; 100]].concat();
    let floods = [
        ("PING", vec![], frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", vec![], frame(SETTINGS, 0, 0, &[])),
        ("SETTINGS with a value", vec![], frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 16, 0])),
        ("CONTINUATION", endless.clone(), frame(CONTINUATION, 0, 1, &field)),
        ("CONTINUATION without bytes", endless, frame(CONTINUATION, 0, 1, &[])),
        ("DATA without bytes", posting.clone(), frame(DATA, 0, 1, &[])),
        ("DATA with padding only", posting, frame(DATA, 8, 1, &[3, 0, 0, 0])),
        ("WINDOW_UPDATE", vec![], frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
        ("PRIORITY", vec![], frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        ("an unknown kind", vec![], frame(0xbe, 0, 0, &[7; 64])),
    ];
    other.served().await;
    let before = secure.memory();
    for (what, opening, again) in floods {
        let (sent, times, slowest) = other.beside(frame_flood(&secure, &opening, &again, frames)).await;
        let grown = secure.memory().saturating_sub(before);
        assert!(sent > 0 && times > 0, "{what}: {sent} frames");
        assert!(grown < MEMORY_MAX, "{what}: {grown} bytes more after {sent} frames");
        if is_large_run() {
            println!(
                "{what}: {sent} frames, {grown} bytes more, another client took at most {slowest:?}, {times} times"
            );
        }
    }
}

/// A connection with requests whose answers it does not read; it gives no window for them.
async fn unread(secure: &Secure, streams: u32) -> TlsStream<TcpStream> {
    let mut connection = connect(secure).await;
    // `SETTINGS_INITIAL_WINDOW_SIZE`: no byte of a body.
    let mut requests = [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    for i in 0..streams {
        let path = match i % 4 {
            0 => "/events?renewals=true".to_owned(),
            1 => format!("/locks/held-{i}?hold=true&ttl=1s"),
            2 => "/ui/stream".to_owned(),
            _ => "/openapi.yaml".to_owned(),
        };
        let block = if i % 4 == 1 { post(&path) } else { get(&path) };
        requests.extend(frame(HEADERS, WHOLE, 2 * i + 1, &block));
    }
    connection.write_all(&requests).await.expect("connected");
    connection
}

#[tokio::test]
#[expect(clippy::print_stdout, reason = "figures of a run by hand")]
async fn answers_that_nobody_reads_do_not_affect_other_clients() {
    let secure = Secure::start(&access(), &Authority::new("clients").pem, &[]).await;
    let other = Other::of(&secure);
    other.served().await;
    let before = secure.memory();
    let (connections, streams) = UNREAD;
    let flood = async {
        let mut open = Vec::new();
        for _ in 0..connections {
            open.push(unread(&secure, streams).await);
        }
        // Events, which all those streams would have.
        for i in 0..if is_large_run() { 2_000 } else { 100 } {
            other.take(&format!("event/{i}")).await;
        }
        open
    };
    let (open, times, slowest) = other.beside(flood).await;
    let grown = secure.memory().saturating_sub(before);
    assert_eq!(open.len(), connections);
    assert!(grown < MEMORY_MAX, "{grown} bytes for {connections} connections with {streams} unread answers each");
    if is_large_run() {
        println!(
            "{connections} connections with {streams} unread answers each: {grown} bytes more, another client took at most \
             {slowest:?}, {times} times"
        );
    }
}
