//! A caller of the service: forms in, status, headers and body out. Stands apart so that the tests
//! read as what is asked and answered. Knows the contract's headers, and no test.

use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;

use super::poll;

/// Only a hang takes this long: longer than any wait that the tests ask for.
const PATIENCE: Duration = Duration::from_secs(60);
/// A connection that was idle for longer is not used again: the service closes it after its `idle_timeout` of a minute, and a request
/// that crosses with that has no answer.
const KEPT_FOR: Duration = Duration::from_secs(20);

/// Talks to one instance. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    base: String,
    http: reqwest::Client,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub text: String,
    /// From before the request was sent until the body was read.
    pub took: Duration,
}

impl Client {
    /// For `http://…`, without a slash at the end.
    pub fn new(base: &str) -> Self {
        // Whoever was first has chosen the provider; all of them serve.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(PATIENCE).pool_idle_timeout(KEPT_FOR);
        Self::with(base, http.build().expect("a client"))
    }

    /// The same with an HTTP client of the caller's own.
    pub fn with(base: &str, http: reqwest::Client) -> Self {
        Self { base: base.to_owned(), http }
    }

    /// `http://…`, without a slash at the end.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// A request to be filled in; see [`send`].
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        self.http.request(method, format!("{}{path}", self.base))
    }

    /// `GET` of any path.
    pub async fn get(&self, path: &str) -> Answer {
        send(self.request("GET", path)).await
    }

    /// Acquire, with a form.
    pub async fn acquire(&self, resource: &str, fields: &[(&str, &str)]) -> Answer {
        send(self.request("POST", &lock(resource)).form(fields)).await
    }

    /// Acquires what is free, once a quorum answers: on a machine with other work three nodes of three may be later than the
    /// short `node_timeout` of tests, and 503 asks the caller to come again. Panics where it is not free.
    pub async fn acquired(&self, resource: &str, fields: &[(&str, &str)]) -> Answer {
        poll::until("a quorum answers an acquire", || async {
            let answer = self.acquire(resource, fields).await;
            (answer.status != 503).then_some(answer)
        })
        .await
        .expect_status(201)
    }

    /// Extend, with a form.
    pub async fn extend(&self, resource: &str, token: &str, fields: &[(&str, &str)]) -> Answer {
        let request = self.request("PATCH", &lock(resource)).header("Lock-Token", token);
        send(if fields.is_empty() { request } else { request.form(fields) }).await
    }

    /// Release.
    pub async fn release(&self, resource: &str, token: &str) -> Answer {
        send(self.request("DELETE", &lock(resource)).header("Lock-Token", token)).await
    }

    /// Who has it.
    pub async fn inspect(&self, resource: &str) -> Answer {
        self.get(&lock(resource)).await
    }

    /// The number of waiters at this instance as `GET` reports it, also for a free lock.
    pub async fn waiting(&self, resource: &str) -> usize {
        let here = self.inspect(resource).await.json()["waiting_here"].as_u64();
        here.map_or(0, |n| usize::try_from(n).expect("small"))
    }
}

/// `/locks/` and the name.
pub fn lock(resource: &str) -> String {
    format!("/locks/{resource}")
}

/// Sends it. Panics where no answer comes.
pub async fn send(request: RequestBuilder) -> Answer {
    try_send(request).await.unwrap_or_else(|e| panic!("no answer: {e:?}"))
}

/// The same, with its error.
pub async fn try_send(request: RequestBuilder) -> Result<Answer, reqwest::Error> {
    let begun = SystemClock.now();
    let response = request.send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await?;
    Ok(Answer { status, headers, text, took: SystemClock.now().since(begun) })
}

impl Answer {
    /// The body as JSON; null where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// A header's value, empty where it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().expect("ASCII"))
    }

    /// The slug of a problem, empty where it is none.
    pub fn slug(&self) -> String {
        self.json()["type"].as_str().and_then(|t| t.strip_prefix("/problems/")).unwrap_or_default().to_owned()
    }

    /// The token that an acquire was given.
    pub fn token(&self) -> String {
        assert!(!self.header("lock-token").is_empty(), "{self:?}");
        self.header("lock-token").to_owned()
    }

    /// The fence that an acquire was given.
    pub fn fence(&self) -> u64 {
        self.header("fencing-token").parse().unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// What each node said, as `name: word`, in configured order.
    pub fn outcomes(&self) -> Vec<String> {
        let body = self.json();
        let nodes = body["nodes"].as_array().cloned().unwrap_or_default();
        let text = |node: &Value, member: &str| node[member].as_str().unwrap_or_default().to_owned();
        nodes.iter().map(|n| format!("{}: {}", text(n, "node"), text(n, "outcome"))).collect()
    }

    /// Panics, showing all of it, where the status is another one.
    #[track_caller]
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// A problem of this kind, with what every problem has.
    #[track_caller]
    pub fn expect_problem(self, status: u16, slug: &str) -> Self {
        assert_eq!((self.status, self.slug().as_str()), (status, slug), "{self:?}");
        let body = self.json();
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(body["status"], status);
        assert_eq!(body["instance"], self.header("x-request-id"));
        for member in ["title", "detail", "instance"] {
            assert!(body[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {self:?}");
        }
        self
    }
}
