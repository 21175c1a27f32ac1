//! An anonymous caller of a service with an access file: heads that are almost right, frames of HTTP/2, forged tokens of
//! an issuer, and connections that are left half open.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redlockd::redlock::random::Entropy;
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Access, Stage, assert_sound, mutated, principals};
use crate::support::client::{Answer, Client, try_send};
use crate::support::poll;
use crate::support::seeded::Seeded;
use crate::support::service::path;

/// A key whose other half nobody here uses (RFC 8037).
const KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
/// Connections that are left half open at a time.
const HALF_OPEN: usize = 100;
/// What the service sends before it closes is at most this; more is not read.
const ANSWER_MAX: u64 = 256 << 10;
/// A connection that was idle for longer is not used again: well below the service's `idle_timeout`.
const KEPT_FOR: Duration = Duration::from_secs(1);

const HEADS: [&str; 7] = [
    "GET /locks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "POST /locks/calm/held HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\nAuthorization: Bearer x\r\n\r\nttl=30s",
    "POST /locks/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nttl=30s\r\n0\r\n\r\n",
    "DELETE /locks/calm/held?force=now&reason=x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /ui/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /ui/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 5\r\n\r\nkey=x",
    "GET /ui/stream HTTP/1.0\r\nCookie: redlockd_session=0123456789abcdef\r\n\r\n",
];

/// Sends it, ends the request's side, and reads what comes until the service closes.
async fn raw(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // The service may close before it has read all.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = (&mut stream).take(ANSWER_MAX).read_to_end(&mut answer).await;
    // A reset leaves no port that waits: thousands of these follow each other.
    let _ = sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO));
    answer
}

/// The statuses of what was sent, and that none is an error of the service or has something of another caller's.
fn check(stage: &Stage, sent: &[u8], answer: &[u8]) -> String {
    let (shown, text) = (String::from_utf8_lossy(sent), String::from_utf8_lossy(answer));
    stage.assert_hides(&shown, &text);
    let Some(status) = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)) else { return "closed".to_owned() };
    for line in text.lines().filter_map(|line| line.strip_prefix("HTTP/1.")) {
        let is_error = line.get(2..3) == Some("5") && line.get(2..5) != Some("501");
        assert!(!is_error, "{shown:?}: {text}");
    }
    status.to_owned()
}

/// Frames of any kind behind the preface.
fn frames(random: &Seeded) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    for _ in 0..random.below(40) {
        let mut body = vec![0; usize::try_from(random.below(40)).expect("small")];
        random.fill(&mut body);
        let stream = u32::try_from(random.below(9)).expect("small").to_be_bytes();
        let (kind, flags) = (u8::try_from(random.below(11)).expect("small"), random.bits().to_le_bytes()[0]);
        bytes.extend([&[0, 0, u8::try_from(body.len()).expect("small"), kind, flags], &stream[..], &body].concat());
    }
    bytes
}

/// A token that looks like one of the issuer's, with a signature that is not.
fn token(random: &Seeded) -> String {
    let header = *random.pick(&[
        r#"{"alg":"none"}"#,
        r#"{"alg":"EdDSA","kid":"a"}"#,
        r#"{"alg":"EdDSA","kid":"unknown"}"#,
        r#"{"alg":"HS256","kid":"a"}"#,
        r#"{"alg":"RS256","jku":"http://127.0.0.1:1/","kid":"a"}"#,
        r#"{"alg":"EdDSA","crit":["x"],"kid":"a"}"#,
    ]);
    let claims = *random.pick(&[
        r#"{"iss":"https://forge.example","aud":"locks","repository":"acme/shop","exp":4102444800}"#,
        r#"{"iss":"https://forge.example","aud":["locks"],"repository":"acme/shop","exp":"soon"}"#,
        r#"{"iss":["https://forge.example"],"aud":"locks"}"#,
        "[]",
    ]);
    let mut signature = vec![0; usize::try_from(random.below(80)).expect("small")];
    random.fill(&mut signature);
    let parts = [header.as_bytes(), claims.as_bytes(), signature.as_slice()];
    let parts = parts.map(|part| URL_SAFE_NO_PAD.encode(mutated(random, part, 2)));
    parts[..usize::try_from(2 + random.below(2)).expect("small")].join(".")
}

/// The answer to a token, and what to add to its status. The service closes a connection that was idle for `idle_timeout`, also
/// just as it is used again: then the token is sent on a connection of its own, on which an answer must come.
async fn unauthorised(client: &Client, token: &str) -> (Answer, &'static str) {
    let request = |client: &Client| client.request("GET", "/locks").bearer_auth(token);
    if let Ok(answer) = try_send(request(client)).await {
        return (answer, "");
    }
    let ask = || async {
        let unused = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client");
        try_send(request(&Client::with(client.base(), unused))).await.ok()
    };
    (poll::until("a token is answered on a new connection", ask).await, ", the idle connection was closed")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_anonymous_caller() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("keys.json");
    std::fs::write(&file, KEYS).expect("writable");
    let access = Access::with(&format!(
        "[[issuer]]\nname = \"forge\"\nissuer = \"https://forge.example\"\naudience = \"locks\"\njwks = \"{}\"\n\
         algorithms = [\"EdDSA\"]\n[[principal]]\nname = \"shop\"\nallow = [\"admin\"]\n\
         tokens = [{{ issuer = \"forge\", claims = {{ repository = \"acme/*\" }} }}]\n{}",
        path(&file),
        principals(&[])
    ));
    let service = access.service(&["--set", "header_timeout=5s", "--set", "idle_timeout=5s"]).await;
    let kept = || reqwest::Client::builder().pool_idle_timeout(KEPT_FOR).build().expect("a client");
    let stage = Stage::of(&Client::with(service.client().base(), kept()), service.pid()).await;
    let half_open = Mutex::new(VecDeque::new());
    let (stage, half_open, service_ref) = (&stage, &half_open, &service);
    stage
        .play("caller", |random: Seeded| async move {
            match random.below(10) {
                0..5 => {
                    let bytes = mutated(&random, random.pick(&HEADS).as_bytes(), 6);
                    check(stage, &bytes, &raw(service_ref.address(), &bytes).await)
                }
                5 => {
                    let answer = raw(service_ref.address(), &frames(&random)).await;
                    stage.assert_hides("frames", &String::from_utf8_lossy(&answer));
                    "frames".to_owned()
                }
                6..9 => {
                    let token = token(&random);
                    let (answer, word) = unauthorised(&stage.client, &token).await;
                    assert_eq!(answer.status, 401, "{token}: {answer:?}");
                    stage.check(&token, &answer) + word
                }
                _ => {
                    let mut stream = TcpStream::connect(service_ref.address()).await.expect("it listens");
                    let head = random.pick(&HEADS).as_bytes();
                    let part = usize::try_from(random.below(head.len() as u64)).expect("small");
                    let _ = stream.write_all(&head[..part]).await;
                    let mut open = half_open.lock().expect("no panic");
                    open.push_back(stream);
                    if open.len() > HALF_OPEN {
                        open.pop_front();
                    }
                    "half open".to_owned()
                }
            }
        })
        .await;
    assert_sound("caller", &service);
}
