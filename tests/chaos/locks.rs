//! The two locks that are tested under the same faults: redlockd over HTTP, and plain Redlock as in the
//! Redis manual (SET NX PX, compare and delete), implemented here over the same proxies. Both have one
//! interface, so that the workload is the same.

use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{AsyncConnectionConfig, Client, Script, cmd};
use futures_util::future::join_all;
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use redlockd::redlock::random::{Entropy, SystemEntropy};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::cluster::{ChaosCluster, NODES};

/// How long a client waits for an answer: longer than the longest freeze, so that answers are late
/// rather than lost.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(6);
/// As the service's node_timeout here.
const NODE_TIMEOUT: Duration = Duration::from_millis(100);
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const EXTEND: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// Granted or extended.
#[derive(Debug, Clone)]
pub struct Granted {
    /// Plain Redlock has none.
    pub fence: Option<u64>,
    /// Until when the client may rely on it.
    pub deadline: BootTime,
}

/// Refused, with the service's status and nodes.
#[derive(Debug, Clone)]
pub struct Refused {
    pub status: u16,
    pub reason: String,
    /// Node and outcome.
    pub nodes: Vec<(usize, String)>,
}

impl Refused {
    fn quiet(status: u16, reason: &str) -> Self {
        Self { status, reason: reason.to_owned(), nodes: Vec::new() }
    }
}

/// Either lock. The first argument of each call is the instance to ask.
pub enum Locks {
    Service { http: reqwest::Client, urls: Vec<String> },
    Plain { connections: Vec<Vec<Mutex<Option<MultiplexedConnection>>>>, urls: Vec<Vec<String>> },
}

impl Locks {
    /// redlockd on this cluster.
    pub fn service(cluster: &ChaosCluster) -> Self {
        // Fails where a provider was installed before, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(CLIENT_TIMEOUT).build().expect("a plain client");
        Self::Service { http, urls: cluster.instances.iter().map(|i| i.url.clone()).collect() }
    }

    /// Plain Redlock on the cluster's nodes.
    pub fn plain(cluster: &ChaosCluster) -> Self {
        let urls = cluster.proxies.iter().map(|row| row.iter().map(|p| format!("redis://{}", p.address())).collect());
        let row = || (0..NODES).map(|_| Mutex::new(None)).collect();
        Self::Plain { connections: cluster.proxies.iter().map(|_| row()).collect(), urls: urls.collect() }
    }

    /// Draws a token.
    pub fn token(&self) -> String {
        SystemEntropy.token().reveal().to_owned()
    }

    /// Whether leases may be shared.
    pub fn shares(&self) -> bool {
        matches!(self, Self::Service { .. })
    }

    /// Acquires; `wait` and `is_shared` count for the service only.
    pub async fn acquire(
        &self,
        at: usize,
        name: &str,
        token: &str,
        ttl: Duration,
        (wait, is_shared): (Duration, bool),
    ) -> Result<Granted, Refused> {
        let sent = SystemClock.now();
        match self {
            Self::Service { http, urls } => {
                let mode = if is_shared { "shared" } else { "exclusive" };
                let body = json!({"ttl": ms(ttl), "wait": ms(wait), "token": token, "owner": "chaos", "mode": mode});
                let answer = http.post(format!("{}/locks/{name}", urls[at])).json(&body).send().await;
                granted(answer, sent).await
            }
            Self::Plain { .. } => {
                let ttl_ms = ttl.as_millis().to_string();
                let set = |mut c: MultiplexedConnection| {
                    let (name, token, ttl_ms) = (name.to_owned(), token.to_owned(), ttl_ms.clone());
                    async move {
                        let mut set = cmd("SET");
                        set.arg(name).arg(token).arg("NX").arg("PX").arg(ttl_ms);
                        set.query_async::<Option<String>>(&mut c).await.map(|answer| answer.is_some())
                    }
                };
                let votes = self.ask(at, set).await;
                let granted = plain_outcome(votes, sent, ttl);
                if granted.is_err() {
                    self.release(at, name, token).await.ok();
                }
                granted
            }
        }
    }

    /// Extends by `ttl` from now.
    pub async fn extend(&self, at: usize, name: &str, token: &str, ttl: Duration) -> Result<Granted, Refused> {
        let sent = SystemClock.now();
        match self {
            Self::Service { http, urls } => {
                let request = http.patch(format!("{}/locks/{name}", urls[at])).header("Lock-Token", token);
                granted(request.json(&json!({"ttl": ms(ttl)})).send().await, sent).await
            }
            Self::Plain { .. } => {
                let votes = self.script(at, EXTEND, name, token, ttl).await;
                plain_outcome(votes, sent, ttl)
            }
        }
    }

    /// Releases it.
    pub async fn release(&self, at: usize, name: &str, token: &str) -> Result<(), Refused> {
        match self {
            Self::Service { http, urls } => {
                let request = http.delete(format!("{}/locks/{name}", urls[at])).header("Lock-Token", token);
                match request.send().await {
                    Ok(answer) if answer.status() == 204 => Ok(()),
                    Ok(answer) => Err(refused(answer).await),
                    Err(_) => Err(Refused::quiet(0, "no answer")),
                }
            }
            Self::Plain { .. } => {
                self.script(at, RELEASE, name, token, Duration::ZERO).await;
                Ok(())
            }
        }
    }

    async fn script(&self, at: usize, source: &'static str, name: &str, token: &str, ttl: Duration) -> usize {
        let run = |mut c: MultiplexedConnection| {
            let (script, name, token) = (Script::new(source), name.to_owned(), token.to_owned());
            async move {
                let mut call = script.key(name);
                call.arg(token).arg(ttl.as_millis().to_string());
                call.invoke_async::<i64>(&mut c).await.map(|done| done == 1)
            }
        };
        self.ask(at, run).await
    }

    /// Number of nodes that agree in time. A failed connection is replaced next time.
    async fn ask<F>(&self, at: usize, call: impl Fn(MultiplexedConnection) -> F) -> usize
    where
        F: Future<Output = Result<bool, deadpool_redis::redis::RedisError>>,
    {
        let Self::Plain { connections, urls } = self else { return 0 };
        let one = async |n: usize| {
            let mut slot = connections[at][n].lock().await;
            let answer = tokio::time::timeout(NODE_TIMEOUT, async {
                if slot.is_none() {
                    let config = AsyncConnectionConfig::new().set_response_timeout(Some(NODE_TIMEOUT));
                    let client = Client::open(urls[at][n].as_str())?;
                    *slot = Some(client.get_multiplexed_async_connection_with_config(&config).await?);
                }
                let connection = slot.clone().expect("made above");
                call(connection).await
            });
            match answer.await {
                Ok(Ok(yes)) => yes,
                _ => {
                    *slot = None;
                    false
                }
            }
        };
        join_all((0..NODES).map(one)).await.into_iter().filter(|yes| *yes).count()
    }
}

fn plain_outcome(votes: usize, sent: BootTime, ttl: Duration) -> Result<Granted, Refused> {
    let deadline = sent.plus(ttl.saturating_sub(ttl / 100 + Duration::from_millis(2)));
    match votes > NODES / 2 && SystemClock.now() < deadline {
        true => Ok(Granted { fence: None, deadline }),
        false => Err(Refused::quiet(423, "plain")),
    }
}

fn ms(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// The deadline counts from before the request was sent, plus the time that was waited in the queue.
async fn granted(answer: reqwest::Result<reqwest::Response>, sent: BootTime) -> Result<Granted, Refused> {
    let Ok(answer) = answer else { return Err(Refused::quiet(0, "no answer")) };
    if !answer.status().is_success() {
        return Err(refused(answer).await);
    }
    let Ok(body) = answer.json::<Value>().await else { return Err(Refused::quiet(0, "no answer")) };
    let number = |field: &str| body[field].as_u64();
    let valid_for = number("valid_for_ms").expect("valid_for_ms").saturating_add(number("waited_ms").unwrap_or(0));
    Ok(Granted { fence: number("fence"), deadline: sent.plus(Duration::from_millis(valid_for)) })
}

async fn refused(answer: reqwest::Response) -> Refused {
    let status = answer.status().as_u16();
    let Ok(body) = answer.json::<Value>().await else { return Refused::quiet(0, "no answer") };
    let slug = body["type"].as_str().unwrap_or_default().trim_start_matches("/problems/").to_owned();
    let nodes = body["nodes"].as_array().map(Vec::as_slice).unwrap_or_default().iter().filter_map(|node| {
        let number = node["node"].as_str()?.trim_start_matches('n').parse().ok()?;
        Some((number, node["outcome"].as_str()?.to_owned()))
    });
    let nodes = nodes.collect();
    let reason = body["reason"].as_str().map(|why| format!("{slug}/{why}")).unwrap_or(slug);
    Refused { status, reason, nodes }
}
