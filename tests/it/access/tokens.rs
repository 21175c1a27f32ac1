//! Tokens of an issuer (OIDC) as credentials, with an issuer of the tests' own: its keys over HTTP, over TLS and in a
//! file, and what happens while it is down, slow or sends without an end.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redlockd::redlock::clock::{Clock, SystemClock};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::tls::Authority;
use super::{Access, entry, key};
use crate::support::client::{Answer, send};
use crate::support::poll;
use crate::support::service::{Service, path};

const ISSUER: &str = "https://forge.example";

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Runs openssl. Panics where it fails.
fn openssl(args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("openssl");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("openssl runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), input).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{args:?}");
    output.stdout
}

/// An RSA key of the issuer, as GitHub and GitLab sign with.
pub(super) struct SigningKey {
    dir: tempfile::TempDir,
    id: &'static str,
}

impl SigningKey {
    pub(super) fn new(id: &'static str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("key.pem");
        openssl(&["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", path(&file)], b"");
        Self { dir, id }
    }

    fn file(&self) -> String {
        path(&self.dir.path().join("key.pem")).to_owned()
    }

    /// As the issuer publishes it.
    pub(super) fn jwks(&self) -> String {
        let text = openssl(&["rsa", "-in", &self.file(), "-noout", "-modulus"], b"");
        let text = String::from_utf8(text).expect("text");
        let digits = text.trim().strip_prefix("Modulus=").expect("a modulus").as_bytes().to_vec();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
        let modulus: Vec<u8> = digits.chunks(2).map(byte).collect();
        let key = json!({ "kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.id, "n": b64(modulus), "e": "AQAB" });
        json!({ "keys": [key] }).to_string()
    }

    /// A token with the usual claims, some of them replaced.
    fn token(&self, changes: Value) -> String {
        let now_s = SystemClock.wall_ms() / 1_000;
        let mut claims = json!({
            "iss": ISSUER, "aud": "locks", "repository": "acme/shop", "ref": "refs/heads/main", "nbf": now_s, "exp": now_s + 600,
        });
        for (name, value) in changes.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        let header = json!({ "typ": "JWT", "alg": "RS256", "kid": self.id });
        let message = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = openssl(&["dgst", "-sha256", "-sign", &self.file()], message.as_bytes());
        format!("{message}.{}", b64(signature))
    }
}

/// An access file with this source of keys.
fn access(jwks: &str, more: &str) -> Access {
    Access::with(&format!(
        "[[issuer]]\nname = \"forge\"\nissuer = \"{ISSUER}\"\naudience = \"locks\"\njwks = \"{jwks}\"\n{more}\n\
         [[principal]]\nname = \"shop\"\nallow = [\"acquire:deploy/*\"]\n\
         tokens = [{{ issuer = \"forge\", claims = {{ repository = \"acme/shop\", ref = \"refs/heads/*\" }} }}]\n{}",
        entry("ann", &[&key("ann")], &["admin"], "")
    ))
}

async fn acquire(service: &Service, name: &str, token: &str) -> Answer {
    send(service.client().request("POST", &format!("/locks/{name}")).bearer_auth(token)).await
}

/// Waits until the service knows the keys.
async fn until_accepted(service: &Service, token: &str) {
    let ask = || send(service.client().request("GET", "/locks").bearer_auth(token));
    poll::until("the keys are read", || async { (ask().await.status == 200).then_some(()) }).await;
}

/// Waits until the metrics have the one issuer under this kind, and under no other.
async fn until_counted(service: &Service, kind: &str) {
    poll::until(kind, || async {
        let metrics = send(service.client().request("GET", "/metrics").bearer_auth(key("ann"))).await.text;
        let counted = |kind: &str| metrics.contains(&format!("\nredlockd_issuers{{kind=\"{kind}\"}} 1\n"));
        let kinds = ["current", "outdated", "without-keys"].into_iter().filter(|kind| counted(kind));
        (kinds.collect::<Vec<_>>() == [kind]).then_some(())
    })
    .await;
}

/// Answers each connection in this way, until it is dropped.
struct Server {
    port: u16,
    task: JoinHandle<()>,
    asked: Arc<AtomicUsize>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads the head and writes this answer, over and over if it `repeats`.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &str, repeats: bool) {
    let mut head = vec![0; 4_096];
    if stream.read(&mut head).await.is_err() {
        return;
    }
    while stream.write_all(answer.as_bytes()).await.is_ok() && repeats {}
    let _ = stream.shutdown().await;
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

impl Server {
    async fn start(text: String, repeats: bool, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (port, asked) = (listener.local_addr().expect("bound").port(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                match &tls {
                    None => answer(stream, &text, repeats).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            answer(stream, &text, repeats).await;
                        }
                    }
                }
            }
        });
        Self { port, task, asked }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_a_pipeline_acquires_what_its_claims_allow_also_while_the_issuer_is_down() {
    let signing = SigningKey::new("2027-01");
    let server = Server::start(ok(&signing.jwks()), false, None).await;
    let access = access(&format!("http://127.0.0.1:{}/keys", server.port), "");
    let service = access.service(&["--log-level", "debug"]).await;
    let good = signing.token(json!({}));
    until_accepted(&service, &good).await;
    // The issuer is down from here on.
    let asked = server.asked.load(Ordering::Relaxed);
    assert_eq!(asked, 1, "fetched once");
    drop(server);
    let held = acquire(&service, "deploy/shop", &good).await.expect_status(201);
    acquire(&service, "other/shop", &good).await.expect_problem(403, "forbidden");
    let release = service.client().request("DELETE", "/locks/deploy/shop").header("Lock-Token", held.token());
    send(release.basic_auth("x", Some(&good))).await.expect_status(204);
    let now_s = SystemClock.wall_ms() / 1_000;
    for changes in [
        json!({ "repository": "acme/other" }),
        json!({ "ref": "refs/tags/v1" }),
        json!({ "aud": "elsewhere" }),
        json!({ "iss": "https://evil.example" }),
        json!({ "exp": now_s - 60 }),
        json!({ "nbf": now_s + 600 }),
    ] {
        let refused = acquire(&service, "deploy/shop", &signing.token(changes.clone())).await;
        let refused = refused.expect_problem(401, "unauthenticated");
        assert!(refused.header("www-authenticate").contains("invalid_token"), "{changes}: {refused:?}");
    }
    // A renewal and a release may come after the end of the token, and nothing else: not with `force`, wherever it is.
    let late = signing.token(json!({ "exp": now_s - 3_600 }));
    let held = acquire(&service, "deploy/shop", &good).await.expect_status(201);
    let holder = |method: &str, path: &str| {
        service.client().request(method, path).header("Lock-Token", held.token()).bearer_auth(&late)
    };
    send(holder("PATCH", "/locks/deploy/shop")).await.expect_status(200);
    let forced = holder("DELETE", "/locks/deploy/shop").form(&[("force", "now"), ("reason", "x")]);
    send(forced).await.expect_problem(403, "forbidden");
    send(holder("DELETE", "/locks/deploy/shop?force=now&reason=x")).await.expect_problem(403, "forbidden");
    send(holder("GET", "/locks/deploy/shop")).await.expect_problem(401, "unauthenticated");
    send(holder("POST", "/locks/deploy/shop")).await.expect_problem(401, "unauthenticated");
    send(holder("DELETE", "/terraform/deploy/shop/lock")).await.expect_problem(401, "unauthenticated");
    send(holder("DELETE", "/locks/deploy/shop")).await.expect_status(204);
    // The same for several locks, and for a ticket: its principal needs the secret then, and cannot end another's.
    let set = service.client().request("POST", "/locks").bearer_auth(&good).json(&json!({
        "resources": ["deploy/a", "deploy/b"], "keep": "1m",
    }));
    let set = send(set).await.expect_status(201).token();
    let several = |method: &str| {
        let request = service.client().request(method, "/locks?resource=deploy/a&resource=deploy/b");
        send(request.header("Lock-Token", &set).bearer_auth(&late))
    };
    several("PATCH").await.expect_status(200);
    several("DELETE").await.expect_status(200);
    let held = acquire(&service, "deploy/shop", &good).await.expect_status(201);
    let ticket = service.client().request("POST", "/locks/deploy/shop").bearer_auth(&good);
    let ticket = send(ticket.json(&json!({"async": true, "keep": "1m"}))).await.expect_status(202);
    let path = ticket.header("location").to_owned();
    let end =
        |token: &str| send(service.client().request("DELETE", &path).header("Lock-Token", token).bearer_auth(&late));
    end("a-strange-token-0123456789").await.expect_problem(404, "not-found");
    end(&ticket.token()).await.expect_status(204);
    let release = service.client().request("DELETE", "/locks/deploy/shop").header("Lock-Token", held.token());
    send(release.bearer_auth(&late)).await.expect_status(204);
    // Signed by somebody else under the same id.
    let forged = SigningKey::new("2027-01").token(json!({}));
    acquire(&service, "deploy/shop", &forged).await.expect_problem(401, "unauthenticated");
    // Keys work beside it, and nothing logged has a token.
    acquire(&service, "deploy/shop", &key("ann")).await.expect_status(201);
    let output = service.output().join("\n");
    assert!(output.contains("a token was refused") && output.contains("it has expired"), "{output}");
    assert!(!output.contains(good.rsplit('.').next().expect("a signature")) && !output.contains("eyJ"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_in_a_file_are_rotated_while_the_service_runs() {
    let (old, new) = (SigningKey::new("old"), SigningKey::new("new"));
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("keys.json");
    std::fs::write(&file, old.jwks()).expect("writable");
    let access = access(path(&file), "");
    let service = access.service(&[]).await;
    until_accepted(&service, &old.token(json!({}))).await;
    acquire(&service, "deploy/a", &new.token(json!({}))).await.expect_problem(401, "unauthenticated");
    std::fs::write(dir.path().join("next"), new.jwks()).expect("writable");
    std::fs::rename(dir.path().join("next"), &file).expect("renamed");
    until_accepted(&service, &new.token(json!({}))).await;
    acquire(&service, "deploy/a", &old.token(json!({}))).await.expect_problem(401, "unauthenticated");
    // A set that cannot be read leaves the one before in force.
    std::fs::write(&file, "{}").expect("writable");
    let said = || service.output().iter().any(|line| line.contains("are no JWK set") && line.contains("stay in force"));
    poll::until_true("it is reported", said).await;
    acquire(&service, "deploy/a", &new.token(json!({}))).await.expect_status(201);
    until_counted(&service, "outdated").await;
    std::fs::write(&file, new.jwks()).expect("writable");
    until_counted(&service, "current").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_fetched_over_tls_of_the_named_authority_only() {
    let signing = SigningKey::new("a");
    let (authority, dir) = (Authority::new("issuers"), tempfile::tempdir().expect("a directory"));
    let (cert, own_key) = authority.for_loopback();
    let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).expect("PEM")];
    let own_key = PrivateKeyDer::from_pem_slice(own_key.as_bytes()).expect("PEM");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config =
        config.expect("usual versions").with_no_client_auth().with_single_cert(chain, own_key).expect("a pair");
    let server = Server::start(ok(&signing.jwks()), false, Some(TlsAcceptor::from(Arc::new(config)))).await;
    let (ours, others) = (dir.path().join("ours"), dir.path().join("others"));
    std::fs::write(&ours, &authority.pem).expect("writable");
    std::fs::write(&others, Authority::new("others").pem).expect("writable");
    let url = format!("https://127.0.0.1:{}/keys", server.port);
    let file = |path_to: &Path| access(&url, &format!("ca_file = \"{}\"", path(path_to)));
    let trusting = file(&ours);
    let service = trusting.service(&[]).await;
    until_accepted(&service, &signing.token(json!({}))).await;
    let suspicious = file(&others);
    let service = suspicious.service(&[]).await;
    let said = || service.output().iter().any(|line| line.contains("cannot be fetched"));
    poll::until_true("it is reported", said).await;
    acquire(&service, "deploy/a", &signing.token(json!({}))).await.expect_problem(401, "unauthenticated");
    until_counted(&service, "without-keys").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_issuer_sends_is_bounded() {
    let endless = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned() + &" ".repeat(1 << 20);
    let redirect = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n".to_owned();
    for (text, repeats, word) in [(endless, true, "have more than 262144 bytes"), (redirect, false, "status 302")] {
        let server = Server::start(text, repeats, None).await;
        let access = access(&format!("http://127.0.0.1:{}/keys", server.port), "");
        let service = access.service(&[]).await;
        let said = || service.output().iter().any(|line| line.contains(word) && line.contains("are refused until"));
        poll::until_true(word, said).await;
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", service.pid().as_raw_nonzero())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
        let most: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
        assert!(most < 64 * 1024, "{most} KiB");
        acquire(&service, "deploy/a", &key("ann")).await.expect_status(201);
    }
}
