//! One request, sent to the instances in turn until one answers: timeouts, headers, the status line
//! and problem documents. Knows no endpoint, and logs nothing: tokens and keys pass through here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Method, redirect};

use super::base_url::BaseUrl;
use super::error::{ClientError, Refusal};
use super::key::Key;
use crate::api;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::types::{Invalid, Token};

/// Most instances that are tried in turn.
pub const URLS_MAX: usize = 15;
/// How long connecting to one instance may take: there are others, and a lease runs.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one ordinary answer may take.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// When a silent connection is probed, how often, and how many probes may be lost: a request that
/// waits in the queue for minutes notices a dead instance after 15 s.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_LOST: u32 = 2;
/// How long sent bytes may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// The largest answer that is read: a page of a list has at most 1,000 entries of some KiB.
const ANSWER_MAX_BYTES: usize = 16 * 1024 * 1024;

const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Where events are: answered as a stream, and not as JSON.
pub(super) const EVENTS: &str = "/events";

/// Where the service is and how it is spoken to.
#[derive(Debug, Clone, Default)]
pub struct ClientSettings {
    /// The instances, in order of preference; at least one, at most [`URLS_MAX`].
    pub urls: Vec<BaseUrl>,
    /// Sent with each request.
    pub key: Option<Key>,
    /// PEM certificates of authorities to trust besides the system's, for https.
    pub ca_pem: Option<Vec<u8>>,
}

/// A client. Cheap to clone; clones share connections and the memory of who answered last.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    urls: Arc<[BaseUrl]>,
    /// Index of the instance that answered last.
    first: Arc<AtomicUsize>,
    key: Option<Key>,
}

/// What is asked.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) token: Option<&'a Token>,
    pub(super) body: Option<serde_json::Value>,
    pub(super) prefer_wait: Option<u64>,
    pub(super) if_match: Option<u64>,
    /// The last event that was seen, where events are asked for.
    pub(super) last_event: Option<String>,
    /// Of each try.
    pub(super) timeout: Duration,
    /// Asking twice does what asking once does: another instance may be tried after one that may
    /// have heard it.
    pub(super) repeatable: bool,
}

impl<'a> Ask<'a> {
    pub(super) fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            query: Vec::new(),
            token: None,
            body: None,
            prefer_wait: None,
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

/// An answer with a status of success.
#[derive(Debug)]
pub(super) struct Answer {
    /// When the request that was answered was sent.
    pub(super) started: BootTime,
    pub(super) body: Vec<u8>,
    pub(super) url: String,
}

impl Answer {
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|error| ClientError::Strange {
            url: self.url.clone(),
            // The error's own text may quote the body.
            detail: format!("its answer cannot be read ({:?} at column {})", error.classify(), error.column()),
        })
    }
}

/// One try that brought nothing.
struct Failed {
    reason: String,
    sent: bool,
}

impl Failed {
    fn of(error: &reqwest::Error, timeout: Duration) -> Self {
        Self { sent: !error.is_connect(), reason: reason(error, timeout) }
    }
}

impl Client {
    /// A client for these instances. Sends nothing. Ignores proxy variables: a lock that depends on
    /// a proxy of the environment is none. Follows no redirects, which would carry the key away.
    ///
    /// Errors: [`Invalid`] for no or too many instances, for a certificate that is none, and where
    /// the TLS library cannot be set up.
    pub fn new(settings: ClientSettings) -> Result<Self, Invalid> {
        if settings.urls.is_empty() || settings.urls.len() > URLS_MAX {
            return Err(Invalid(format!("from 1 to {URLS_MAX} URLs of instances are needed")));
        }
        let builder = reqwest::Client::builder()
            .user_agent(concat!("redlockd/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .tcp_keepalive_retries(KEEPALIVE_LOST);
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

    /// Asks the instances in turn, the one that answered last first, until one gives an answer that
    /// the next one could not better: an instance that is draining or cannot reach its nodes is
    /// passed over as long as there are others.
    ///
    /// Errors: [`ClientError`]; of several refusals the last one.
    /// Cancel: the request may or may not have been heard.
    pub(super) async fn send(&self, ask: &Ask<'_>) -> Result<Answer, ClientError> {
        self.in_turn(ask.repeatable, async |url| {
            let request = self.request(url, ask).timeout(ask.timeout);
            let started = SystemClock.now();
            let failed = |error: reqwest::Error| Failed::of(&error, ask.timeout);
            let mut response = request.send().await.map_err(failed)?;
            let (status, headers) = (response.status(), response.headers().clone());
            let Some(body) = read(&mut response).await.map_err(failed)? else { return Ok(Err(endless(url))) };
            if status.is_success() {
                return Ok(Ok(Answer { started, body, url: url.to_string() }));
            }
            Ok(Err(refusal(url, status.as_u16(), &headers, &body)))
        })
        .await
    }

    /// The same for an answer without an end, whose body is the caller's to read: `ask.timeout` bounds
    /// the wait for its head.
    ///
    /// Errors, Cancel: as [`Self::send`].
    pub(super) async fn open(&self, ask: &Ask<'_>) -> Result<(String, reqwest::Response), ClientError> {
        self.in_turn(ask.repeatable, async |url| {
            let late = || Failed { reason: format!("no answer within {} ms", ask.timeout.as_millis()), sent: true };
            let failed = |error: reqwest::Error| Failed::of(&error, ask.timeout);
            let (mut response, refused) = tokio::select! {
                biased;
                response = self.request(url, ask).send() => {
                    let response = response.map_err(failed)?;
                    let refused = !response.status().is_success();
                    (response, refused)
                }
                () = SystemClock.sleep(ask.timeout) => return Err(late()),
            };
            if !refused {
                return Ok(Ok((url.to_string(), response)));
            }
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let body = tokio::select! {
                biased;
                body = read(&mut response) => body.map_err(failed)?,
                () = SystemClock.sleep(ask.timeout) => return Err(late()),
            };
            let Some(body) = body else { return Ok(Err(endless(url))) };
            Ok(Err(refusal(url, status, &headers, &body)))
        })
        .await
    }

    async fn in_turn<T>(
        &self,
        repeatable: bool,
        try_one: impl AsyncFn(&BaseUrl) -> Result<Result<T, ClientError>, Failed>,
    ) -> Result<T, ClientError> {
        let (mut tries, mut maybe_sent, mut refused) = (Vec::new(), false, None);
        let first = self.first.load(Ordering::Relaxed);
        for index in (0..self.urls.len()).map(|i| (first + i) % self.urls.len()) {
            let url = &self.urls[index];
            match try_one(url).await {
                Ok(Ok(answer)) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(ClientError::Refused(refusal))) if refusal.status == 503 => refused = Some(refusal),
                Ok(Err(error)) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Err(error);
                }
                Err(Failed { reason, sent }) => {
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

    fn request(&self, url: &BaseUrl, ask: &Ask<'_>) -> reqwest::RequestBuilder {
        let mut target = url.at(&ask.path);
        if !ask.query.is_empty() {
            target.query_pairs_mut().extend_pairs(&ask.query);
        }
        let request = self.http.request(ask.method.clone(), target).headers(self.headers(ask));
        match &ask.body {
            Some(body) => request.json(body),
            None => request,
        }
    }

    /// The instances, for messages.
    pub(super) fn urls_shown(&self) -> String {
        self.urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    fn headers(&self, ask: &Ask<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let accept = if ask.path == EVENTS { "text/event-stream" } else { "application/json" };
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        if let Some(Ok(id)) = ask.last_event.as_deref().map(HeaderValue::from_str) {
            headers.insert(LAST_EVENT_ID, id);
        }
        if let Some(key) = &self.key {
            headers.insert(header::AUTHORIZATION, key.header());
        }
        if let Some(Ok(mut token)) = ask.token.map(|t| HeaderValue::from_str(t.reveal())) {
            token.set_sensitive(true);
            headers.insert(LOCK_TOKEN, token);
        }
        if let Some(Ok(wait)) = ask.prefer_wait.map(|s| HeaderValue::try_from(format!("wait={s}"))) {
            headers.insert(PREFER, wait);
        }
        if let Some(Ok(tag)) = ask.if_match.map(|fence| HeaderValue::try_from(format!("\"{fence}\""))) {
            headers.insert(header::IF_MATCH, tag);
        }
        headers
    }
}

/// The body; `None` where it is larger than any answer.
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

fn endless(url: &BaseUrl) -> ClientError {
    ClientError::Strange { url: url.to_string(), detail: "its answer does not end".to_owned() }
}

/// What an answer without success means.
fn refusal(url: &BaseUrl, status: u16, headers: &HeaderMap, body: &[u8]) -> ClientError {
    let retry_after = headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
    let problem: Option<api::Problem> = serde_json::from_slice(body).ok();
    let Some(problem) = problem.filter(|p| p.status == status) else {
        // A proxy's page, or another server. The status still says whether to try again.
        return match status {
            401 | 403 | 429 | 500..=599 => ClientError::Refused(Refusal {
                url: url.to_string(),
                status,
                slug: String::new(),
                problem: Box::default(),
                retry_after: retry_after.map(Duration::from_secs),
            }),
            _ => ClientError::Strange {
                url: url.to_string(),
                detail: format!("status {status}, and no problem document"),
            },
        };
    };
    ClientError::Refused(Refusal {
        url: url.to_string(),
        status,
        slug: problem.kind.rsplit('/').next().unwrap_or_default().to_owned(),
        problem: Box::new(problem),
        retry_after: retry_after.map(Duration::from_secs),
    })
}

/// Why a try failed, in few words.
fn reason(error: &reqwest::Error, timeout: Duration) -> String {
    if error.is_timeout() {
        let limit = if error.is_connect() { timeout.min(CONNECT_TIMEOUT) } else { timeout };
        return format!("no answer within {} ms", limit.as_millis());
    }
    causes(error)
}

/// The innermost cause: what is around it repeats the URL.
fn causes(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;
