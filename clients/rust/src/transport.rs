//! Sends one request to the instances in turn until one answers: timeouts, headers, status and problem documents. Logs
//! nothing, because tokens and keys are sent here.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Method, redirect};
use rustls::crypto::CryptoProvider;

use super::base_url::BaseUrl;
use super::error::{ApiRefusal, ClientError, causes, reason};
use super::key::ClientKey;
use redlockd_common::api;
use redlockd_common::clock::{BootTime, Clock, SystemClock};
use redlockd_common::duration::format_duration;
use redlockd_common::types::{Invalid, Token};

/// Maximum number of instances.
pub const URLS_MAX: usize = 15;
/// How long connecting to one instance may take: there are others, and the lease runs meanwhile.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an answer may take, unless the request waits.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time without an answer, the client checks whether the instance is alive …
const PROBE_AFTER: Duration = Duration::from_millis(500);
/// … and waits this long for the answer. An instance that hangs delays a command by the sum.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// The same for the last instance: no other can be tried, and a machine that pauses for a second must not fail a job.
const LAST_PROBE_TIMEOUT: Duration = Duration::from_millis(2_500);
/// The pause before a waiting request checks its instance again, while there are other instances: a frozen instance keeps its
/// connections, and would hold its callers for the rest of their waits. Thousands may wait at one, so not more often.
const PROBE_AGAIN: Duration = Duration::from_secs(3);
/// The timeout of such a check: longer than of the first, because a place in the queue is lost.
const PROBE_AGAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The instance is given up after this many unanswered checks in a row, with [`PROBE_AFTER`] between them.
const PROBES_LOST: u32 = 2;
/// TCP keepalive: idle time before the first probe, interval, and number of lost probes. A request that waits in the queue for
/// minutes notices a dead instance after 15 s.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_LOST: u32 = 2;
/// How long sent bytes may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// Maximum size of an answer: a page of a list has at most 1,000 entries of some KiB.
const ANSWER_MAX_BYTES: usize = 16 * 1024 * 1024;

const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The path of the event stream, which is not answered as JSON.
pub(super) const EVENTS: &str = "/events";

/// The settings of a client.
#[derive(Debug, Clone, Default)]
pub struct ClientSettings {
    /// The instances, in order of preference; at least one, at most [`URLS_MAX`].
    pub urls: Vec<BaseUrl>,
    /// The key that is sent with each request, if there is one.
    pub key: Option<ClientKey>,
    /// PEM certificates of further authorities to trust, for https.
    pub ca_pem: Option<Vec<u8>>,
}

/// A client. Cheap to clone; clones share connections and the index of the instance that answered last.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    urls: Arc<[BaseUrl]>,
    /// Index of the instance that answered last.
    first: Arc<AtomicUsize>,
    key: Option<ClientKey>,
}

/// One HTTP request, before an instance is chosen.
#[derive(Debug)]
pub(super) struct ApiRequest<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) token: Option<&'a Token>,
    pub(super) body: Option<serde_json::Value>,
    /// Until when the service may let the request wait: each instance is asked for the time that is then left.
    pub(super) wait_until: Option<BootTime>,
    pub(super) if_match: Option<u64>,
    /// The last received event, in a request for events.
    pub(super) last_event: Option<String>,
    /// Timeout for each instance, beyond the wait.
    pub(super) timeout: Duration,
    /// Whether the request is idempotent: another instance may be tried even if one may have received it.
    pub(super) repeatable: bool,
}

impl<'a> ApiRequest<'a> {
    pub(super) fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            query: Vec::new(),
            token: None,
            body: None,
            wait_until: None,
            if_match: None,
            last_event: None,
            timeout: ANSWER_TIMEOUT,
            repeatable: true,
        }
    }

    pub(super) fn token(mut self, token: &'a Token) -> Self {
        self.token = Some(token);
        self
    }
}

/// A successful answer.
#[derive(Debug)]
pub(super) struct ApiResponse {
    /// When the answered request was sent.
    pub(super) started: BootTime,
    pub(super) body: Vec<u8>,
    pub(super) url: String,
}

impl ApiResponse {
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|error| ClientError::Unexpected {
            url: self.url.clone(),
            // The error's own text may quote the body.
            detail: format!("its answer cannot be read ({:?} at column {})", error.classify(), error.column()),
        })
    }
}

/// A try without an answer.
struct FailedTry {
    reason: String,
    sent: bool,
}

/// The outcome of a try: an answer, a refusal, or neither.
type Tried<T> = Result<Result<T, ClientError>, FailedTry>;

impl FailedTry {
    fn of(error: &reqwest::Error, timeout: Duration) -> Self {
        Self { sent: !error.is_connect(), reason: reason(error, timeout) }
    }
}

impl Client {
    /// A client for these instances. Sends nothing. It ignores proxy variables, so that a lock does not depend on the
    /// environment's proxy, and follows no redirects, which would send the key elsewhere. If the process has chosen no provider
    /// of cryptography for rustls, it chooses `ring`.
    ///
    /// Errors: [`Invalid`] for no or too many instances, for an invalid certificate, and if the TLS library fails.
    pub fn new(settings: ClientSettings) -> Result<Self, Invalid> {
        Self::with(settings, false)
    }

    /// For health checks of this machine's own service by its address: the certificate, which has a name, is not checked, and no
    /// key is sent. Not for locks: an interceptor could read their tokens. Errors: as [`Self::new`].
    pub fn of_own_service(url: BaseUrl) -> Result<Self, Invalid> {
        Self::with(ClientSettings { urls: vec![url], ..ClientSettings::default() }, true)
    }

    fn with(settings: ClientSettings, any_certificate: bool) -> Result<Self, Invalid> {
        if settings.urls.is_empty() || settings.urls.len() > URLS_MAX {
            return Err(Invalid(format!("from 1 to {URLS_MAX} URLs of instances are needed")));
        }
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which is equally good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let builder = reqwest::Client::builder()
            .user_agent(concat!("redlockd/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .tcp_keepalive_retries(KEEPALIVE_LOST)
            .tls_danger_accept_invalid_certs(any_certificate);
        #[cfg(target_os = "linux")]
        let builder = builder.tcp_user_timeout(UNACKNOWLEDGED);
        let builder = if settings.urls.iter().all(BaseUrl::is_plain) {
            // Reading the system's certificates takes longer than the rest of a request.
            builder.tls_certs_only(std::iter::empty())
        } else {
            let pem = settings.ca_pem.unwrap_or_default();
            let certificates = Certificate::from_pem_bundle(&pem)
                .map_err(|_| Invalid("the file with the certificate authorities is not PEM".to_owned()))?;
            builder.tls_certs_merge(certificates)
        };
        let http = builder
            .build()
            .map_err(|error| Invalid(format!("the HTTP client cannot be set up: {}", causes(&error))))?;
        Ok(Self { http, urls: settings.urls.into(), first: Arc::default(), key: settings.key })
    }

    /// Tries the instances in turn, the one that answered last first. An instance that is draining or cannot reach its nodes
    /// (503) is passed over as long as there are others. So is one that hangs, or freezes while the request waits; a hung last
    /// one is given up after 3 s.
    ///
    /// Errors: [`ClientError`]; of several refusals the last one.
    /// Cancel: the request may or may not have been received.
    pub(super) async fn send(&self, request: &ApiRequest<'_>) -> Result<ApiResponse, ClientError> {
        self.in_turn(request.repeatable, |url| self.try_send(url, request)).await
    }

    async fn try_send(&self, url: &BaseUrl, request: &ApiRequest<'_>) -> Tried<ApiResponse> {
        let started = SystemClock.now();
        let wait = request.wait_until.map(|until| until.since(started));
        let timeout = request.timeout.saturating_add(wait.unwrap_or_default());
        let failed = |error: reqwest::Error| FailedTry::of(&error, timeout);
        let mut response = self.build(url, request, wait).timeout(timeout).send().await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let Some(body) = read(&mut response).await.map_err(failed)? else { return Ok(Err(too_large(url))) };
        if status.is_success() {
            return Ok(Ok(ApiResponse { started, body, url: url.to_string() }));
        }
        Ok(Err(refusal(url, status.as_u16(), &headers, &body)))
    }

    /// As [`Self::send`], for an endless answer, whose body the caller reads: `request.timeout` limits the wait for its head.
    ///
    /// Errors, Cancel: as [`Self::send`].
    pub(super) async fn open(&self, request: &ApiRequest<'_>) -> Result<(String, reqwest::Response), ClientError> {
        self.in_turn(request.repeatable, |url| self.try_open(url, request)).await
    }

    async fn try_open(&self, url: &BaseUrl, request: &ApiRequest<'_>) -> Tried<(String, reqwest::Response)> {
        let late = || FailedTry { reason: format!("no answer within {} ms", request.timeout.as_millis()), sent: true };
        let failed = |error: reqwest::Error| FailedTry::of(&error, request.timeout);
        let (mut response, refused) = tokio::select! {
            biased;
            response = self.build(url, request, None).send() => {
                let response = response.map_err(failed)?;
                let refused = !response.status().is_success();
                (response, refused)
            }
            () = SystemClock.sleep(request.timeout) => return Err(late()),
        };
        if !refused {
            return Ok(Ok((url.to_string(), response)));
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = tokio::select! {
            biased;
            body = read(&mut response) => body.map_err(failed)?,
            () = SystemClock.sleep(request.timeout) => return Err(late()),
        };
        let Some(body) = body else { return Ok(Err(too_large(url))) };
        Ok(Err(refusal(url, status, &headers, &body)))
    }

    /// One lifetime for all: with separate ones, the compiler could not prove that the future may move between threads.
    async fn in_turn<'a, T, F: Future<Output = Tried<T>>>(
        &'a self,
        repeatable: bool,
        try_one: impl Fn(&'a BaseUrl) -> F,
    ) -> Result<T, ClientError> {
        let (mut tries, mut maybe_sent, mut refused) = (Vec::new(), false, None);
        let first = self.first.load(Ordering::Relaxed);
        let count = self.urls.len();
        for (index, has_more) in (0..count).map(|i| ((first + i) % count, i + 1 < count)) {
            let url = &self.urls[index];
            let outcome = tokio::select! {
                biased;
                outcome = try_one(url) => outcome,
                failed = self.hangs(url, !has_more), if repeatable => Err(failed),
            };
            match outcome {
                Ok(Ok(answer)) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(ClientError::Refused(refusal))) if refusal.status == 503 => refused = Some(refusal),
                Ok(Err(error)) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Err(error);
                }
                Err(FailedTry { reason, sent }) => {
                    maybe_sent |= sent;
                    tries.push((url.to_string(), reason));
                    if sent && !repeatable {
                        break;
                    }
                }
            }
        }
        Err(refused.map_or(ClientError::Unreachable { tries, maybe_sent }, ClientError::Refused))
    }

    /// Resolves if the instance does not even answer a check whether it is alive; a waiting request may take minutes. If there is
    /// no other instance, only the first check counts: the request waits on.
    async fn hangs(&self, url: &BaseUrl, is_last: bool) -> FailedTry {
        let timeout = if is_last { LAST_PROBE_TIMEOUT } else { PROBE_TIMEOUT };
        SystemClock.sleep(PROBE_AFTER).await;
        if !self.is_alive(url, timeout, is_last).await {
            let reason = format!("no answer within {} ms", (PROBE_AFTER + timeout).as_millis());
            return FailedTry { reason, sent: true };
        }
        if self.urls.len() == 1 {
            std::future::pending::<()>().await;
        }
        let mut lost = 0;
        while lost < PROBES_LOST {
            SystemClock.sleep(if lost == 0 { PROBE_AGAIN } else { PROBE_AFTER }).await;
            lost = if self.is_alive(url, PROBE_AGAIN_TIMEOUT, is_last).await { 0 } else { lost + 1 };
        }
        FailedTry { reason: "it stopped answering while the request waited".to_owned(), sent: true }
    }

    /// From the last instance any answer suffices: it may come from a proxy that passes on only the API.
    async fn is_alive(&self, url: &BaseUrl, timeout: Duration, is_last: bool) -> bool {
        let probe = self.http.get(url.at("/health/live")).timeout(timeout).send().await;
        probe.is_ok_and(|answer| is_last || answer.status().is_success())
    }

    /// `wait`: how long the service may let the request wait. The service limits a preference to its maximum, but refuses a field
    /// or a query above it. So field and query have only the part that a preference, in whole seconds, cannot express.
    fn build(&self, url: &BaseUrl, request: &ApiRequest<'_>, wait: Option<Duration>) -> reqwest::RequestBuilder {
        let mut target = url.at(&request.path);
        let part = wait.filter(|wait| wait.as_secs() == 0).map(format_duration);
        let in_query = part.iter().filter(|_| request.body.is_none()).map(|wait| ("wait", wait.clone()));
        let query: Vec<_> = request.query.iter().cloned().chain(in_query).collect();
        if !query.is_empty() {
            target.query_pairs_mut().extend_pairs(&query);
        }
        let mut headers = self.headers(request);
        if let Some(Ok(wait)) =
            wait.filter(|_| part.is_none()).map(|wait| HeaderValue::try_from(format!("wait={}", wait.as_secs())))
        {
            headers.insert(PREFER, wait);
        }
        let builder = self.http.request(request.method.clone(), target).headers(headers);
        match request.body.clone() {
            Some(mut body) => {
                if let Some(wait) = part {
                    body["wait"] = wait.into();
                }
                builder.json(&body)
            }
            None => builder,
        }
    }

    /// The URLs, for messages.
    pub(super) fn urls_shown(&self) -> String {
        self.urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    fn headers(&self, request: &ApiRequest<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        // With a limit, the request is for past events.
        let is_stream = request.path == EVENTS && request.query.iter().all(|(name, _)| *name != "limit");
        let accept = if is_stream { "text/event-stream" } else { "application/json" };
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        if let Some(Ok(id)) = request.last_event.as_deref().map(HeaderValue::from_str) {
            headers.insert(LAST_EVENT_ID, id);
        }
        if let Some(key) = &self.key {
            headers.insert(header::AUTHORIZATION, key.header());
        }
        if let Some(Ok(mut token)) = request.token.map(|t| HeaderValue::from_str(t.reveal())) {
            token.set_sensitive(true);
            headers.insert(LOCK_TOKEN, token);
        }
        if let Some(Ok(tag)) = request.if_match.map(|fence| HeaderValue::try_from(format!("\"{fence}\""))) {
            headers.insert(header::IF_MATCH, tag);
        }
        headers
    }
}

/// The body; `None` if it is over [`ANSWER_MAX_BYTES`].
async fn read(response: &mut reqwest::Response) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > ANSWER_MAX_BYTES {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

fn too_large(url: &BaseUrl) -> ClientError {
    ClientError::Unexpected { url: url.to_string(), detail: "its answer does not end".to_owned() }
}

/// The error of an answer without success.
fn refusal(url: &BaseUrl, status: u16, headers: &HeaderMap, body: &[u8]) -> ClientError {
    let retry_after = headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
    let problem: Option<api::ProblemDetails> = serde_json::from_slice(body).ok();
    let Some(problem) = problem.filter(|p| p.status == status) else {
        // From a proxy or another server. The status still shows whether to try again.
        return match status {
            401 | 403 | 429 | 500..=599 => ClientError::Refused(ApiRefusal {
                url: url.to_string(),
                status,
                slug: String::new(),
                problem: Box::default(),
                retry_after: retry_after.map(Duration::from_secs),
            }),
            _ => ClientError::Unexpected {
                url: url.to_string(),
                detail: format!("status {status}, and no problem document"),
            },
        };
    };
    ClientError::Refused(ApiRefusal {
        url: url.to_string(),
        status,
        slug: problem.kind.rsplit('/').next().unwrap_or_default().to_owned(),
        problem: Box::new(problem),
        retry_after: retry_after.map(Duration::from_secs),
    })
}

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;
