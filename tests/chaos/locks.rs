//! The two locks that are put through the same faults: redlockd over HTTP, and plain Redlock as the
//! Redis manual has it (SET NX PX, compare and delete), spoken by the test itself through the same
//! proxies. One vocabulary for both, so that the workload does not know which it has.

use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{AsyncConnectionConfig, Client, Script, cmd};
use futures_util::future::join_all;
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use redlockd::redlock::entropy::{Entropy, SystemEntropy};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::rig::{NODES, Rig};

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
pub struct Yes {
    /// Plain Redlock has none.
    pub fence: Option<u64>,
    /// Until when the client may rely on it.
    pub deadline: BootTime,
}

/// Refused; status and nodes as the service gave them.
#[derive(Debug, Clone)]
pub struct No {
    pub status: u16,
    pub reason: String,
    /// Node and outcome.
    pub nodes: Vec<(usize, String)>,
}

impl No {
    fn quiet(status: u16, reason: &str) -> Self {
        Self { status, reason: reason.to_owned(), nodes: Vec::new() }
    }
}

/// Either; see the module. The first argument of each call is the instance that is asked.
pub enum Locks {
    Service { http: reqwest::Client, urls: Vec<String> },
    Plain { connections: Vec<Vec<Mutex<Option<MultiplexedConnection>>>>, urls: Vec<Vec<String>> },
}

impl Locks {
    /// redlockd, as the rig serves it.
    pub fn service(rig: &Rig) -> Self {
        // Whoever was first has chosen the provider; all of them serve.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(CLIENT_TIMEOUT).build().expect("a plain client");
        Self::Service { http, urls: rig.instances.iter().map(|i| i.url.clone()).collect() }
    }

    /// Plain Redlock on the rig's nodes.
    pub fn plain(rig: &Rig) -> Self {
        let urls = rig.proxies.iter().map(|row| row.iter().map(|p| format!("redis://{}", p.address())).collect());
        let row = || (0..NODES).map(|_| Mutex::new(None)).collect();
        Self::Plain { connections: rig.proxies.iter().map(|_| row()).collect(), urls: urls.collect() }
    }

    /// Draws a token.
    pub fn token(&self) -> String {
        SystemEntropy.token().reveal().to_owned()
    }

    /// Acquires; `wait` counts for the service only.
    pub async fn acquire(&self, at: usize, name: &str, token: &str, ttl: Duration, wait: Duration) -> Result<Yes, No> {
        let sent = SystemClock.now();
        match self {
            Self::Service { http, urls } => {
                let body = json!({"ttl": ms(ttl), "wait": ms(wait), "token": token, "owner": "chaos"});
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
    pub async fn extend(&self, at: usize, name: &str, token: &str, ttl: Duration) -> Result<Yes, No> {
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

    /// Gives it back.
    pub async fn release(&self, at: usize, name: &str, token: &str) -> Result<(), No> {
        match self {
            Self::Service { http, urls } => {
                let request = http.delete(format!("{}/locks/{name}", urls[at])).header("Lock-Token", token);
                match request.send().await {
                    Ok(answer) if answer.status() == 204 => Ok(()),
                    Ok(answer) => Err(refused(answer).await),
                    Err(_) => Err(No::quiet(0, "no answer")),
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

    /// How many nodes say yes in time. A connection that fails is made anew next time.
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

fn plain_outcome(votes: usize, sent: BootTime, ttl: Duration) -> Result<Yes, No> {
    let deadline = sent.plus(ttl.saturating_sub(ttl / 100 + Duration::from_millis(2)));
    match votes > NODES / 2 && SystemClock.now() < deadline {
        true => Ok(Yes { fence: None, deadline }),
        false => Err(No::quiet(423, "plain")),
    }
}

fn ms(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// The deadline counts from before the request was sent; what was waited in the queue was not yet
/// part of the lease.
async fn granted(answer: reqwest::Result<reqwest::Response>, sent: BootTime) -> Result<Yes, No> {
    let Ok(answer) = answer else { return Err(No::quiet(0, "no answer")) };
    if !answer.status().is_success() {
        return Err(refused(answer).await);
    }
    let Ok(body) = answer.json::<Value>().await else { return Err(No::quiet(0, "no answer")) };
    let number = |field: &str| body[field].as_u64();
    let valid_for = number("valid_for_ms").expect("valid_for_ms").saturating_add(number("waited_ms").unwrap_or(0));
    Ok(Yes { fence: number("fence"), deadline: sent.plus(Duration::from_millis(valid_for)) })
}

async fn refused(answer: reqwest::Response) -> No {
    let status = answer.status().as_u16();
    let Ok(body) = answer.json::<Value>().await else { return No::quiet(0, "no answer") };
    let slug = body["type"].as_str().unwrap_or_default().trim_start_matches("/problems/").to_owned();
    let nodes = body["nodes"].as_array().map(Vec::as_slice).unwrap_or_default().iter().filter_map(|node| {
        let number = node["node"].as_str()?.trim_start_matches('n').parse().ok()?;
        Some((number, node["outcome"].as_str()?.to_owned()))
    });
    let nodes = nodes.collect();
    let reason = body["reason"].as_str().map(|why| format!("{slug}/{why}")).unwrap_or(slug);
    No { status, reason, nodes }
}
