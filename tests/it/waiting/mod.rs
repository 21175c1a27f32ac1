//! Waiting, on real sockets: instances in this process over Redis servers of their own.

mod deadlock;
mod disconnects;
mod events;
mod handover;
mod holding;
mod places;
mod replays;

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::app::{self, App};
use redlockd::client::base_url::BaseUrl;
use redlockd::client::transport::ClientSettings;
use redlockd::config::{Config, Inputs, ProcessEnvironment};
use redlockd::redlock::clock::{Clock, SystemClock};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::poll;
use crate::support::redis_server::RedisServer;

/// Nodes that belong together.
pub struct Cluster {
    pub servers: Vec<RedisServer>,
}

/// Times that a busy machine keeps: a node may take half a second, and a lease is gone two seconds after its end.
const SETTINGS: [(&str, &str); 7] = [
    ("listen", "127.0.0.1:0"),
    ("node_timeout", "500ms"),
    ("min_ttl", "1s"),
    ("guard", "1s"),
    ("lock_delay", "2s"),
    ("worker_threads", "2"),
    ("drain_timeout", "5s"),
];

impl Cluster {
    /// Declared, and ready.
    pub async fn of(nodes: usize) -> Self {
        let mut servers = Vec::new();
        for _ in 0..nodes {
            servers.push(RedisServer::start().await);
        }
        let cluster = Self { servers };
        app::init(&cluster.config(&[])).await.expect("a new cluster");
        cluster
    }

    pub fn config(&self, more: &[(&str, &str)]) -> Config {
        let nodes = self.servers.iter().enumerate().map(|(i, s)| format!("n{i}={}", s.url())).collect();
        config(more, nodes)
    }

    /// One more instance.
    pub async fn instance(&self, more: &[(&str, &str)]) -> Instance {
        Instance::start(&self.config(more)).await
    }

    /// On how many nodes this key is.
    pub async fn nodes_with(&self, key: &str) -> usize {
        let each = self.servers.iter().map(|server| async move { server.ask::<bool>(&["EXISTS", key]).await });
        join_all(each).await.into_iter().filter(|exists| *exists).count()
    }

    /// How many listen for the ends of this resource's leases on the first node.
    pub async fn listeners(&self, resource: &str) -> usize {
        let channel = format!("redlockd:freed:{resource}");
        let (_, count): (String, usize) = self.servers[0].ask(&["PUBSUB", "NUMSUB", &channel]).await;
        count
    }
}

pub fn config(more: &[(&str, &str)], nodes: Vec<String>) -> Config {
    let flags = SETTINGS.iter().chain(more).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let inputs = Inputs { flags, nodes, ..Inputs::default() };
    inputs.load(&ProcessEnvironment).expect("a good configuration").config
}

/// A running instance; cut off when dropped.
pub struct Instance {
    pub address: SocketAddr,
    pub shutdown: CancellationToken,
    pub client: Client,
    run: JoinHandle<()>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.run.abort();
    }
}

impl Instance {
    pub async fn start(config: &Config) -> Self {
        // As the program does; the client needs one even for plain HTTP.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let app = App::start(config).await.expect("it starts");
        let (address, shutdown) = (app.address().expect("bound"), CancellationToken::new());
        let stop = shutdown.clone();
        let run = tokio::spawn(async move { app.run(stop).await.expect("a clean end") });
        Self { address, shutdown, client: Client::new(), run }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn post(&self, resource: &str, form: &[(&str, &str)]) -> RequestBuilder {
        self.client.post(self.url(&format!("/locks/{resource}"))).form(form)
    }

    /// Acquires; the answer is the lease.
    pub async fn acquire(&self, resource: &str, form: &[(&str, &str)]) -> Lease {
        let response = self.post(resource, form).send().await.expect("an answer");
        lease(response).await
    }

    /// Acquires in a task of its own.
    pub fn queue(&self, resource: &str, form: &[(&str, &str)]) -> JoinHandle<Lease> {
        let request = self.post(resource, form);
        tokio::spawn(async move { lease(request.send().await.expect("an answer")).await })
    }

    pub async fn release(&self, resource: &str, lease: &Lease) -> u16 {
        let request = self.client.delete(self.url(&format!("/locks/{resource}")));
        request.header("lock-token", &lease.token).send().await.expect("an answer").status().as_u16()
    }

    /// How many wait here.
    pub async fn waiting(&self) -> usize {
        self.metric("redlockd_lock_waiters ").await.unwrap_or(0)
    }

    pub async fn until_waiting(&self, count: usize) {
        poll::until("so many wait", || async { (self.waiting().await == count).then_some(()) }).await;
    }

    /// Calls of a verb to the nodes so far.
    pub async fn calls(&self, verb: &str) -> usize {
        let text = self.metrics().await;
        let of_verb = |l: &&str| l.starts_with("redlockd_node_requests_total{") && l.contains(&format!("\"{verb}\""));
        text.lines().filter(of_verb).filter_map(|l| l.rsplit(' ').next()?.parse::<usize>().ok()).sum()
    }

    pub async fn metric(&self, start: &str) -> Option<usize> {
        let text = self.metrics().await;
        text.lines().find_map(|l| l.strip_prefix(start))?.trim().parse().ok()
    }

    async fn metrics(&self) -> String {
        let answer = self.client.get(self.url("/metrics")).send().await.expect("an answer");
        answer.text().await.expect("text")
    }

    /// Resolves when as many rounds of probes have passed.
    pub async fn until_probes(&self, rounds: usize, nodes: usize) {
        let before = self.calls("probe").await;
        poll::until("probes pass", || async { (self.calls("probe").await >= before + rounds * nodes).then_some(()) })
            .await;
    }

    pub async fn ended(mut self) {
        let run = std::mem::replace(&mut self.run, tokio::spawn(async {}));
        run.await.expect("no panic");
    }
}

/// What an acquire answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub status: u16,
    pub token: String,
    pub fence: u64,
    pub body: Value,
}

async fn lease(response: Response) -> Lease {
    let status = response.status().as_u16();
    let body: Value = response.json().await.expect("JSON");
    let token = body["token"].as_str().unwrap_or_default().to_owned();
    Lease { status, token, fence: body["fence"].as_u64().unwrap_or(0), body }
}

/// A client of the instance at this URL.
pub fn client_of(url: &str) -> redlockd::client::transport::Client {
    let urls = vec![BaseUrl::parse(url).expect("a URL")];
    redlockd::client::transport::Client::new(ClientSettings { urls, ca_pem: None, key: None }).expect("a client")
}

/// How long `work` takes.
pub async fn timed<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let started = SystemClock.now();
    let done = work.await;
    (SystemClock.now().since(started), done)
}
