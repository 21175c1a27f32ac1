//! What call-backs may reach: name servers that change their mind, literal addresses in every spelling, redirects, proxies,
//! and receivers that do not end. The real sender, with a name server of the test's own.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redlockd::manager::callbacks::{CallbackEvent, CallbackKind, CallbackSender, DeliveryOutcome};
use redlockd::redlock::clock::{Clock, SystemClock};
use redlockd::redlock::random::SystemEntropy;
use redlockd::webhooks::connection::TRY_READ_MAX_BYTES;
use redlockd::webhooks::deliveries::CallbackDeliveries;
use redlockd::webhooks::hooks::Webhooks;
use redlockd::webhooks::resolver::Lookup;
use redlockd::webhooks::transport::HttpTransport;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Map;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::receiver::{HooksFile, Receiver, SEALING, target};
use crate::access::tls::Authority;
use crate::support::client::send;
use crate::support::service::Service;
use crate::support::temp_dir;

type Tried = Webhooks<SystemClock, SystemEntropy, HttpTransport>;

/// Answers from a list, one after another, the last one for ever.
#[derive(Clone, Default)]
struct NameServer {
    answers: Arc<Mutex<Vec<Vec<IpAddr>>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl NameServer {
    fn of(answers: &[&[&str]]) -> Self {
        let parse = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().expect("an address")).collect();
        Self { answers: Arc::new(Mutex::new(answers.iter().map(parse).collect())), ..Self::default() }
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Lookup for NameServer {
    fn lookup(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(host);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers.first().cloned().unwrap_or_default() };
        Box::pin(async move { Ok(answer) })
    }
}

fn open(file: &HooksFile, names: &NameServer) -> Tried {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let parts = (SystemClock, SystemEntropy, HttpTransport);
    let names: Arc<dyn Lookup> = Arc::new(names.clone());
    Tried::open(parts, Some(file.path()), names, "i".to_owned(), Box::new(|_, _, _| {})).expect("a good file")
}

/// What became of a call-back, with a minute to be accepted.
async fn deliver(tried: &Tried, address: &str) -> DeliveryOutcome {
    let sender = CallbackDeliveries(Arc::clone(&tried.deliveries));
    let callback = sender.resolve(address, None).unwrap_or_else(|error| panic!("{address}: {error:?}"));
    let (id, principal) = ("tk_1_granted".to_owned(), String::new());
    let event = CallbackEvent { id, kind: CallbackKind::Granted, at_ms: 1, data: Map::new(), principal };
    let until = SystemClock.now().plus(Duration::from_secs(60));
    sender.deliver(callback, event, until, CancellationToken::new()).await
}

/// What came of one try.
async fn once(tried: &Tried) -> String {
    tried.test("target:t").await.expect("a target").answer.text()
}

/// A target by name at this receiver's port, allowed to use http; `private` too where it says so.
fn named(receiver: &Receiver, is_private: bool) -> HooksFile {
    let allowed = if is_private { "insecure = true\nprivate = true\n" } else { "insecure = true\n" };
    let text = target("t", receiver, "").replace("http://127.0.0.1:", "http://hooks.example.com:");
    HooksFile::with(&text.replace("private = true\n", allowed))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_leads_inside_is_not_followed_whenever_it_does() {
    let receiver = Receiver::start().await;
    let file = named(&receiver, false);
    for inside in ["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00:ec2::254", "0.0.0.0"] {
        // The first look-up finds nothing; by the second the name has become an address inside.
        let names = NameServer::of(&[&[], &[inside]]);
        let tried = open(&file, &names);
        let (first, second) = (once(&tried).await, once(&tried).await);
        assert!(first.starts_with("no connection"), "{first}");
        assert!(second.starts_with("not sent: the address is"), "{inside}: {second}");
        assert_eq!(names.asked(), 2, "the name is looked up for each try");
    }
    assert!(receiver.received().is_empty());
}

/// A kept connection would lead to where the name led before.
#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_message_leaves_no_connection_that_the_next_one_uses() {
    let receiver = Receiver::start().await;
    let file = named(&receiver, true);
    // Of several addresses those are used that are allowed.
    let names = NameServer::of(&[&["169.254.169.254", "127.0.0.1"], &["169.254.169.254"]]);
    let tried = open(&file, &names);
    assert_eq!(once(&tried).await, "status 204");
    let answer = once(&tried).await;
    assert!(answer.starts_with("not sent: the address is link-local"), "{answer}");
    assert_eq!((receiver.received().len(), names.asked()), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn literal_addresses_are_checked_in_every_spelling() {
    let receiver = Receiver::start().await;
    let port = receiver.address.port();
    for host in
        ["127.0.0.1", "2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0", "localhost"]
    {
        let text = target("t", &receiver, "insecure = true").replace("127.0.0.1", host).replace("private = true\n", "");
        let file = HooksFile::with(&text);
        let names = NameServer::of(&[&["127.0.0.1"]]);
        let tried = open(&file, &names);
        let answer = once(&tried).await;
        assert!(answer.starts_with("not sent: the address is"), "{host}: {answer}");
    }
    assert!(receiver.received().is_empty());
    // The same address with the administrator's word.
    let tried = open(&HooksFile::with(&(SEALING.to_owned() + &target("t", &receiver, ""))), &NameServer::default());
    let address = format!("http://2130706433:{port}/in/SECRET-path/17?signature=a%2Fb&x=");
    assert_eq!(deliver(&tried, &address).await, DeliveryOutcome::Accepted);
    assert_eq!(receiver.received()[0].path, "/in/SECRET-path/17?signature=a%2Fb&x=", "the query is untouched");
}

/// http without `insecure` is for this machine, also where the name leads elsewhere later.
#[tokio::test(flavor = "multi_thread")]
async fn http_for_this_machine_does_not_leave_it() {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&target("t", &receiver, "").replace("127.0.0.1", "localhost"));
    let names = NameServer::of(&[&["127.0.0.1"], &["10.0.0.1"], &["1.1.1.1"]]);
    let tried = open(&file, &names);
    assert_eq!(once(&tried).await, "status 204");
    for _ in 0..2 {
        let answer = once(&tried).await;
        assert!(answer.contains("http leads to another machine"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_failures_and_never_followed() {
    let (receiver, elsewhere) = (Receiver::start().await, Receiver::start().await);
    let tried = open(&HooksFile::with(&target("t", &receiver, "")), &NameServer::default());
    let there = format!("http://{}/elsewhere", elsewhere.address);
    for (status, location) in [
        (301, there.as_str()),
        (302, "http://169.254.169.254/latest/"),
        (303, "/in/other"),
        (307, &there),
        (308, &there),
    ] {
        receiver.answer_with(status, "location", location);
        assert_eq!(once(&tried).await, format!("status {status}"));
    }
    assert!(elsewhere.received().is_empty());
    assert!(
        receiver.received().iter().all(|received| received.path == "/in/SECRET-path/"),
        "{:?}",
        receiver.received()
    );
    assert_eq!(receiver.received().len(), 5);
}

/// n8n answers 409 until it waits; then once 200. The id stays, the time is that of the try.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_waits_only_a_moment_later_gets_the_same_message_again() {
    let receiver = Receiver::start().await;
    let tried = open(&HooksFile::with(&target("t", &receiver, "")), &NameServer::default());
    receiver.answer([409, 200, 409]);
    assert_eq!(deliver(&tried, "target:t").await, DeliveryOutcome::Accepted);
    let received = receiver.received();
    assert_eq!(received.len(), 2);
    assert_eq!(received[0].body, received[1].body);
    assert!(received.iter().all(|r| r.header("webhook-id") == "tk_1_granted"));
    receiver.answer([410]);
    assert_eq!(deliver(&tried, "target:t").await, DeliveryOutcome::Gone, "after the 409 that is left");
}

/// The status is the answer: a body without an end is not read, and the connection is closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_an_end_is_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let endless = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = vec![0; 4_096];
        let _ = stream.read(&mut head).await.expect("a request");
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.expect("open");
        let chunk = [b"4000\r\n".as_slice(), &[b'x'; 0x4000], b"\r\n"].concat();
        let mut sent = 0_usize;
        while stream.write_all(&chunk).await.is_ok() {
            sent += chunk.len();
        }
        sent
    });
    let receiver = Receiver::start().await;
    let text = target("t", &receiver, "").replace(&receiver.address.port().to_string(), &port.to_string());
    let tried = open(&HooksFile::with(&text), &NameServer::default());
    assert_eq!(once(&tried).await, "status 200");
    let sent = endless.await.expect("the connection is closed");
    assert!(sent < 32 << 20, "{sent} bytes were taken");
}

/// A target at this port of this machine.
async fn target_at(port: u16) -> HooksFile {
    let receiver = Receiver::start().await;
    let text = target("t", &receiver, "").replace(&receiver.address.port().to_string(), &port.to_string());
    HooksFile::with(&text)
}

/// Interim answers are read before the answer: without a bound, a receiver that sends them without end keeps a thread busy that
/// others' requests wait for.
#[tokio::test(flavor = "multi_thread")]
async fn interim_answers_without_an_end_are_given_up() {
    const INTERIM: &[u8] = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let file = target_at(listener.local_addr().expect("bound").port()).await;
    let server = tokio::spawn(async move {
        // Some of them are usual.
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let _ = stream.read(&mut [0; 4_096]).await.expect("a request");
        let usual = [&INTERIM.repeat(3)[..], b"HTTP/1.1 204 No Content\r\n\r\n"].concat();
        stream.write_all(&usual).await.expect("open");
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let _ = stream.read(&mut [0; 4_096]).await.expect("a request");
        let (interim, mut sent) = (INTERIM.repeat(100), 0_usize);
        while stream.write_all(&interim).await.is_ok() {
            sent += interim.len();
        }
        sent
    });
    let tried = open(&file, &NameServer::default());
    assert_eq!(once(&tried).await, "status 204");
    assert_eq!(once(&tried).await, "it closed the connection, or its answer is not HTTP");
    let sent = server.await.expect("the connection is closed");
    assert!((TRY_READ_MAX_BYTES..32 << 20).contains(&sent), "{sent} bytes were taken");
}

/// A receiver over TLS with this certificate; it accepts every message.
async fn over_tls((certificate, key): (String, String)) -> u16 {
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config =
        rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).expect("they match");
    let (acceptor, listener) = (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await);
    let listener = listener.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4_096]).await;
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn only_certificates_of_the_targets_authorities_and_its_name_are_accepted() {
    let (authority, other) = (Authority::new("receivers"), Authority::new("others"));
    let port = over_tls(authority.for_name("hooks.example.com")).await;
    let refused = "its certificate is not accepted, or TLS failed";
    for (host, authorities, expected) in [
        ("hooks.example.com", Some(&authority), "status 204"),
        ("hooks.example.com", Some(&other), refused),
        ("hooks.example.com", None, refused),
        ("other.example.com", Some(&authority), refused),
        ("127.0.0.1", Some(&authority), refused),
    ] {
        let file = target_at(port).await;
        let more = authorities.map_or("", |_| "ca_file = \"ca.pem\"\n");
        file.write_other("ca.pem", authorities.map_or("", |authority| &authority.pem));
        let text = std::fs::read_to_string(file.path()).expect("written");
        file.write(&(text.replace("http://127.0.0.1", &format!("https://{host}")) + more));
        let tried = open(&file, &NameServer::of(&[&["127.0.0.1"]]));
        assert_eq!(once(&tried).await, expected, "{host}");
    }
}

/// The variables for proxies would send messages, and the resume URLs in them, to another machine.
#[tokio::test(flavor = "multi_thread")]
async fn proxies_of_the_environment_are_not_used() {
    let (receiver, proxy) = (Receiver::start().await, Receiver::start().await);
    let file = HooksFile::with(&target("t", &receiver, ""));
    let url = format!("http://{}", proxy.address);
    let env = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let env: Vec<(&str, &str)> = env.iter().map(|name| (*name, url.as_str())).collect();
    let setting = file.setting();
    let args = ["--set", setting.as_str()];
    let data = Arc::new(temp_dir::in_memory());
    let service = Service::start_with_env(&env, "127.0.0.1:0", data, &args).await;
    let answer = send(service.client().request("POST", "/hooks/target%3At/test")).await.expect_status(200);
    assert_eq!(answer.json()["accepted"], true, "{}", answer.text);
    assert_eq!((receiver.received().len(), proxy.received().len()), (1, 0));
}
