//! A receiver of messages, and a file of targets and hooks that names it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tempfile::TempDir;
use tokio::task::AbortHandle;

use crate::support::poll;
use crate::support::service::path;

/// The secret that signs everything here.
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Another one, to which the first is changed.
pub const NEW_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// The first line of a file in which the addresses of call-backs are sealed.
pub const SEALING: &str = "sealing_secret_files = [\"b.whsec\"]\n";

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct Received {
    pub method: Method,
    /// Path and query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Received {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    pub fn kind(&self) -> String {
        self.json()["type"].as_str().unwrap_or_default().to_owned()
    }
}

#[derive(Default)]
struct Inner {
    received: Vec<Received>,
    /// For the next requests; 204 after them.
    answers: VecDeque<(u16, Option<(&'static str, String)>)>,
    /// How many requests were answered.
    answered: usize,
    /// No request is.
    is_silent: bool,
}

/// A server on a free port of this machine, stopped when dropped.
pub struct Receiver {
    pub address: SocketAddr,
    inner: Arc<Mutex<Inner>>,
    task: AbortHandle,
}

async fn receive(
    State(inner): State<Arc<Mutex<Inner>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let answer = {
        let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.received.push(Received { method, path, headers, body });
        let answer = (!inner.is_silent).then(|| inner.answers.pop_front().unwrap_or((204, None)));
        inner.answered += usize::from(answer.is_some());
        answer
    };
    let Some((status, header)) = answer else { return std::future::pending().await };
    let mut response = StatusCode::from_u16(status).expect("a status").into_response();
    if let Some((name, value)) = header {
        response.headers_mut().insert(name, value.parse().expect("a value"));
    }
    response
}

impl Receiver {
    pub async fn start() -> Self {
        let inner: Arc<Mutex<Inner>> = Arc::default();
        let router = Router::new().fallback(receive).with_state(Arc::clone(&inner));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") }).abort_handle();
        Self { address, inner, task }
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that arrived.
    pub fn received(&self) -> Vec<Received> {
        self.inner().received.clone()
    }

    /// What arrived after the first `seen`.
    pub fn received_from(&self, seen: usize) -> Vec<Received> {
        self.inner().received[seen..].to_vec()
    }

    /// How many requests were answered.
    pub fn answered(&self) -> usize {
        self.inner().answered
    }

    /// Whether requests that come from now on get no answer.
    pub fn set_silent(&self, is_silent: bool) {
        self.inner().is_silent = is_silent;
    }

    /// The next requests get these.
    pub fn answer(&self, statuses: impl IntoIterator<Item = u16>) {
        self.inner().answers.extend(statuses.into_iter().map(|status| (status, None)));
    }

    /// The next request gets this, with a header.
    pub fn answer_with(&self, status: u16, name: &'static str, value: &str) {
        self.inner().answers.push_back((status, Some((name, value.to_owned()))));
    }

    /// Waits for the message that satisfies this.
    pub async fn until(&self, what: &str, is_it: impl Fn(&Received) -> bool) -> Received {
        poll::until(what, || {
            let found = self.received().into_iter().find(|received| is_it(received));
            async move { found }
        })
        .await
    }

    /// Waits for a message of this type.
    pub async fn until_kind(&self, kind: &str) -> Received {
        self.until(&format!("a message {kind}"), |received| received.kind() == kind).await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A file of targets and hooks with its secrets: `a.whsec`, `b.whsec` and `headers`.
pub struct HooksFile(pub TempDir);

impl HooksFile {
    pub fn with(text: &str) -> Self {
        let file = Self(tempfile::tempdir().expect("a directory"));
        file.write_other("a.whsec", &format!("{SECRET}\n"));
        file.write_other("b.whsec", &format!("{NEW_SECRET}\n"));
        file.write_other("headers", "Authorization: Bearer SECRET-of-headers\n");
        file.write(text);
        file
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("webhooks.toml")
    }

    /// Replaces the file by a rename, as configuration tools do.
    pub fn write(&self, text: &str) {
        self.write_other("new", text);
        std::fs::rename(self.0.path().join("new"), self.path()).expect("renamed");
    }

    pub fn write_other(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).expect("writable");
    }

    /// The setting with its path.
    pub fn setting(&self) -> String {
        format!("webhooks_file={}", path(&self.path()))
    }
}

/// A target `name` at this receiver, below `/in/`; `more`: further lines.
pub fn target(name: &str, receiver: &Receiver, more: &str) -> String {
    let url = format!("http://{}/in/SECRET-path/", receiver.address);
    format!("[[target]]\nname = \"{name}\"\nurl = \"{url}\"\nprivate = true\nsecret_files = [\"a.whsec\"]\n{more}\n")
}

/// A hook of the target `ops`.
pub fn hook(name: &str, events: &[&str], more: &str) -> String {
    format!("[[hook]]\nname = \"{name}\"\ntarget = \"ops\"\nevents = {events:?}\n{more}\n")
}
