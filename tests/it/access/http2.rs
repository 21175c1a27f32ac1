//! HTTP/2 rapid reset (CVE-2023-44487): streams that are opened and reset as fast as possible, each with a request that
//! would wait for a lock.

use std::sync::Arc;
use std::time::Duration;

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

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CANCEL: u32 = 8;
/// `END_STREAM` and `END_HEADERS`.
const WHOLE: u8 = 5;

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("small").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
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

#[tokio::test]
async fn rapidly_reset_streams_do_not_affect_other_clients() {
    let access = Access::with(&entry("ci", &[&key("ci")], &["admin"], "requests_per_second = 1000000"));
    let secure = Secure::start(&access, &Authority::new("clients").pem, &[]).await;
    let root = Certificate::from_pem(secure.authority.pem.as_bytes()).expect("PEM");
    let client = secure.builder().tls_certs_only([root]).build().expect("a client");
    let lock = |name: &str| format!("{}/locks/{name}", secure.url);
    let take = async |name: &str| {
        let answer = client.post(lock(name)).bearer_auth(key("ci")).form(&[("ttl", "1m")]).send().await;
        answer.expect("an answer").error_for_status().expect("granted").headers()["lock-token"].clone()
    };
    take("contended").await;
    rapid_reset(&secure).await;
    let before = secure.memory();
    let mut sent = Vec::new();
    for _ in 0..ROUNDS {
        sent.push(tokio::time::timeout(SOON, rapid_reset(&secure)).await.expect("it takes them, or closes"));
        // Another client is served meanwhile.
        let token = take("somebody/else").await;
        let released = client.delete(lock("somebody/else")).bearer_auth(key("ci")).header("Lock-Token", token).send();
        assert_eq!(released.await.expect("an answer").status(), 204);
    }
    assert!(sent.iter().all(|sent| *sent > 10), "{sent:?}");
    // The queue is empty again, and the memory has not grown.
    poll::until("the queue is empty", || async {
        let seen = client.get(lock("contended")).bearer_auth(key("ci")).send().await.expect("an answer");
        let body: serde_json::Value = seen.json().await.expect("JSON");
        body["waiters"].as_array().is_some_and(Vec::is_empty).then_some(())
    })
    .await;
    let grown = secure.memory().saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{grown} bytes more after {sent:?} streams");
}
