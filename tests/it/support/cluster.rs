//! Real Redis servers as one cluster, and instances over them, each behind a proxy of its own per
//! node: as processes ([`ServiceOver`]) and within the test ([`Instance`]). Knows how they are put
//! together, and no test.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::manager::LockManager;
use redlockd::manager::types::{
    AcquireError, AcquireRequest, ExtendError, ExtendRequest, ExtendedLease, GrantedLease, Inspection, ReleaseError,
};
use redlockd::nodes::redis::{NodeUrl, RedisNode, RedisNodeConfig};
use redlockd::protocol::{ClusterParams, quarantine_for};
use redlockd::redlock::backoff::BackoffRange;
use redlockd::redlock::clock::{Clock, SystemClock};
use redlockd::redlock::engine::{Redlock, RedlockSettings};
use redlockd::redlock::monitor::NodeMonitor;
use redlockd::redlock::random::SystemEntropy;
use redlockd::types::{Labels, NodeId, ResourceName, Token, Ttl};
use redlockd::waiting::event::WaitLimits;
use tokio::task::JoinHandle;

use super::chaos_proxy::{ChaosProxy, FAIR, Flow, Weather};
use super::client::Client;
use super::poll;
use super::redis_server::{Options, RedisServer};
use super::service::{SHORT_TIMES, Service, redlockd};
use super::temp_dir;

/// Nothing comes back: what is sent arrives. Ended by [`heal`].
pub const MUTE: Weather = Weather { to_client: Flow::Silent, ..FAIR };
/// Drops all traffic in both directions without closing connections. Ended by [`heal`].
pub const SILENT: Weather = Weather { to_node: Flow::Silent, to_client: Flow::Silent, ..FAIR };
/// No new connections; [`ChaosProxy::reset`] ends those that are there.
pub const REFUSING: Weather = Weather { accepts: false, ..FAIR };

/// Ends what swallowed bytes: no network goes on with a stream after it has lost a part of it.
pub fn heal(proxy: &ChaosProxy) {
    proxy.reset();
    proxy.set(FAIR);
}

/// What is sent arrives and is answered, and the answers take so long.
pub fn slow_to_answer(delay: Duration) -> Weather {
    Weather { to_client: Flow::Delay(delay), ..FAIR }
}

/// What is sent arrives so late, and is answered at once: the server's clock looks ahead by half of it.
pub fn slow_to_arrive(delay: Duration) -> Weather {
    Weather { to_node: Flow::Delay(delay), ..FAIR }
}

/// Redis servers n1, n2, …
pub struct Cluster {
    pub servers: Vec<RedisServer>,
}

impl Cluster {
    /// So many servers without options, not declared.
    pub async fn blank(count: usize) -> Self {
        Self::blank_with(vec![Options::default(); count]).await
    }

    /// One server for each of the options, not declared.
    pub async fn blank_with(options: Vec<Options>) -> Self {
        Self { servers: join_all(options.into_iter().map(RedisServer::start_with)).await }
    }

    /// So many servers, declared for services with [`SHORT_TIMES`].
    pub async fn start(count: usize) -> Self {
        let cluster = Self::blank(count).await;
        cluster.declare(&SHORT_TIMES);
        cluster
    }

    /// `redlockd init`, until the nodes answer within the short `guard` of tests.
    pub fn declare(&self, settings: &[&str]) {
        let mut args = vec!["init".to_owned()];
        args.extend(node_args(self.servers.iter().map(RedisServer::url)));
        args.extend(settings.iter().map(ToString::to_string));
        let end = SystemClock.now().plus(poll::PATIENCE);
        let (output, said) = loop {
            let output = redlockd(&args).output().expect("the binary runs");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if !said.contains("answers too slowly to tell") || SystemClock.now() >= end {
                break (output, said);
            }
        };
        // It asks again where answers come too late, and then finds what it did before.
        assert!(output.status.success() || said.contains("are part of this cluster already"), "init: {said}");
    }

    /// A service over it with [`SHORT_TIMES`], for which all nodes vote.
    pub async fn service(&self) -> ServiceOver {
        self.service_with(&[]).await
    }

    /// The same with the shipped settings; its nodes may not vote yet.
    pub async fn service_with_defaults(&self) -> ServiceOver {
        let proxies = self.proxies().await;
        let urls = self.servers.iter().zip(&proxies).map(|(server, proxy)| through(server, proxy));
        ServiceOver { service: Service::start(&node_args(urls)).await, proxies }
    }

    /// The same with more settings.
    pub async fn service_with(&self, more: &[&str]) -> ServiceOver {
        let over = self.service_at_once(more).await;
        over.until_all_vote().await;
        over
    }

    /// The same with these settings and without [`SHORT_TIMES`].
    pub async fn service_with_only(&self, settings: &[&str]) -> ServiceOver {
        let proxies = self.proxies().await;
        let urls = self.servers.iter().zip(&proxies).map(|(server, proxy)| through(server, proxy));
        let mut args = node_args(urls);
        args.extend(settings.iter().map(ToString::to_string));
        let over = ServiceOver { service: Service::start(&args).await, proxies };
        over.until_all_vote().await;
        over
    }

    /// The same, as soon as it listens: for nodes that are not all well.
    pub async fn service_at_once(&self, more: &[&str]) -> ServiceOver {
        self.service_with_env(&[], more).await
    }

    /// The same with these variables in its environment.
    pub async fn service_with_env(&self, env: &[(&str, &str)], more: &[&str]) -> ServiceOver {
        let proxies = self.proxies().await;
        let urls = self.servers.iter().zip(&proxies).map(|(server, proxy)| through(server, proxy));
        let mut args = node_args(urls);
        args.extend(SHORT_TIMES.iter().chain(more).map(ToString::to_string));
        let data = Arc::new(temp_dir::in_memory());
        ServiceOver { service: Service::start_with_env(env, "127.0.0.1:0", data, &args).await, proxies }
    }

    async fn proxies(&self) -> Vec<ChaosProxy> {
        join_all(self.servers.iter().map(|server| ChaosProxy::start(server.port()))).await
    }

    /// An instance within the test, on a cluster that this declares where it is blank.
    pub async fn instance(&self, tempo: Tempo) -> Instance {
        self.instance_at(tempo, SystemClock).await
    }

    /// The same on another clock.
    pub async fn instance_at<C: Clock>(&self, tempo: Tempo, clock: C) -> Instance<C> {
        let proxies = self.proxies().await;
        let params = Arc::new(tempo.params());
        let (mut nodes, mut tasks) = (Vec::new(), Vec::new());
        for (i, (server, proxy)) in self.servers.iter().zip(&proxies).enumerate() {
            let id = NodeId::parse(&format!("n{}", i + 1)).expect("a valid name");
            let url = NodeUrl::parse(&through(server, proxy)).expect("a valid address");
            let config = RedisNodeConfig::new(id, url, Arc::clone(&params), tempo.node_timeout);
            let (node, supervisor) = RedisNode::new(config, SystemEntropy, None).expect("a valid configuration");
            nodes.push(node);
            tasks.push(tokio::spawn(supervisor));
        }
        let engine = Redlock::new(nodes, clock, SystemEntropy, tempo.settings(params));
        let monitor = NodeMonitor::new(engine.clone());
        let limits = WaitLimits { per_resource: 1_000, total: 20_000, detects_deadlocks: true };
        let manager = LockManager::new(engine.clone(), monitor.clone(), limits, Duration::from_secs(2));
        poll::until("all nodes vote", || async {
            // Refused until all are connected, and once they are declared.
            let _ = monitor.init().await;
            monitor.probe_round().await;
            manager.nodes().iter().all(|node| node.votes).then_some(())
        })
        .await;
        tasks.push(tokio::spawn(monitor.watch()));
        Instance { proxies, engine, manager, tasks }
    }

    /// What each node has at a key: whether it is there.
    pub async fn has(&self, key: &str) -> Vec<bool> {
        join_all(self.servers.iter().map(|server| async { server.ask::<bool>(&["EXISTS", key]).await })).await
    }

    /// Waits until no node has the key.
    pub async fn until_nowhere(&self, key: &str) {
        let what = format!("no node has {key}");
        poll::until(&what, || async { (!self.has(key).await.contains(&true)).then_some(()) }).await;
    }

    /// Waits until each node has the key.
    pub async fn until_everywhere(&self, key: &str) {
        let what = format!("each node has {key}");
        poll::until(&what, || async { (!self.has(key).await.contains(&false)).then_some(()) }).await;
    }

    /// What another Redlock client does: takes the key on these nodes.
    pub async fn take_as_foreigner(&self, nodes: &[usize], key: &str, ms: u64) {
        for node in nodes {
            let taken: Option<String> =
                self.servers[*node].ask(&["SET", key, "foreign", "NX", "PX", &ms.to_string()]).await;
            assert_eq!(taken.as_deref(), Some("OK"), "n{}", node + 1);
        }
    }
}

/// A service with what lies between it and its nodes.
pub struct ServiceOver {
    pub service: Service,
    pub proxies: Vec<ChaosProxy>,
}

impl ServiceOver {
    /// A caller of it.
    pub fn client(&self) -> &Client {
        self.service.client()
    }

    /// Waits until all its nodes vote.
    pub async fn until_all_vote(&self) {
        poll::until("all nodes vote", || async {
            let answer = self.client().get("/nodes").await;
            // With access control only the readiness is known without a key: a quorum votes.
            if answer.status == 401 {
                return (self.client().get("/health/ready").await.status == 200).then_some(());
            }
            let quorum = answer.expect_status(200).json()["quorum"].clone();
            (quorum["granted"] == quorum["nodes"]).then_some(())
        })
        .await;
    }
}

/// `--node n1=URL --node n2=URL …`
pub fn node_args(urls: impl Iterator<Item = String>) -> Vec<String> {
    urls.enumerate().flat_map(|(i, url)| ["--node".to_owned(), format!("n{}={url}", i + 1)]).collect()
}

/// The server's URL with the proxy's address in it.
fn through(server: &RedisServer, proxy: &ChaosProxy) -> String {
    server.url().replace(&format!("127.0.0.1:{}", server.port()), &proxy.address().to_string())
}

/// The times of an [`Instance`].
#[derive(Debug, Clone, Copy)]
pub struct Tempo {
    pub node_timeout: Duration,
    pub guard: Duration,
    pub max_ttl: Duration,
}

/// As [`SHORT_TIMES`].
pub const SHORT: Tempo = Tempo {
    node_timeout: Duration::from_millis(200),
    guard: Duration::from_millis(300),
    max_ttl: Duration::from_secs(60),
};

impl Tempo {
    /// Twice the guard.
    pub fn lock_delay(self) -> Duration {
        self.guard * 2
    }

    fn params(self) -> ClusterParams {
        ClusterParams {
            cluster: "test".into(),
            guard: self.guard,
            lock_delay: self.lock_delay(),
            quarantine: quarantine_for(self.max_ttl, self.lock_delay(), self.guard),
            fence_ttl: Duration::from_hours(1),
            template: Default::default(),
        }
    }

    fn settings(self, params: Arc<ClusterParams>) -> RedlockSettings {
        RedlockSettings {
            params,
            node_timeout: self.node_timeout,
            drift_ppm: 10_000,
            drift_floor: Duration::from_millis(2),
            min_validity_percent: 10,
            retry: BackoffRange { first: Duration::from_millis(2), max: Duration::from_millis(250) },
            poll: Duration::from_secs(1),
            cleanup_limit: 4_096,
            fan_out: redlockd::redlock::fan_out::FanOut::All,
        }
    }
}

/// An instance of the service without HTTP; stops when dropped.
pub struct Instance<C: Clock = SystemClock> {
    pub proxies: Vec<ChaosProxy>,
    pub engine: Redlock<RedisNode, C, SystemEntropy>,
    pub manager: LockManager<RedisNode, C, SystemEntropy>,
    tasks: Vec<JoinHandle<()>>,
}

impl<C: Clock> Drop for Instance<C> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl<C: Clock> Instance<C> {
    /// Acquires with a token of the service's and keeps it.
    pub async fn acquire(&self, resource: &str, ttl_ms: u64, wait: Duration) -> Result<GrantedLease, AcquireError> {
        let (resource, ttl) = (name(resource), Ttl::from_ms(ttl_ms).expect("a valid TTL"));
        let request = AcquireRequest {
            resource,
            mode: redlockd::types::WantedMode::Exclusive,
            ttl,
            wait,
            kept_for: None,
            labels: Labels::default(),
            token: None,
            refuses_deadlock: false,
            principal: None,
            keep: None,
        };
        self.manager.acquire(request).await.and_then(redlockd::manager::PendingGrant::commit)
    }

    /// Acquires what is free, once a quorum answers: see [`Client::acquired`].
    pub async fn acquired(&self, resource: &str, ttl_ms: u64) -> GrantedLease {
        let granted = poll::until("a quorum answers an acquire", || async {
            let answer = self.acquire(resource, ttl_ms, Duration::ZERO).await;
            (!matches!(answer, Err(AcquireError::NoQuorum(_)))).then_some(answer)
        });
        granted.await.unwrap_or_else(|e| panic!("{resource}: {e:?}"))
    }

    /// Extends by a TTL from now.
    pub async fn extend(&self, resource: &str, token: &Token, ttl_ms: u64) -> Result<ExtendedLease, ExtendError> {
        let (resource, ttl) = (name(resource), Ttl::from_ms(ttl_ms).expect("a valid TTL"));
        let token = token.clone();
        let request = ExtendRequest {
            resource,
            token,
            ttl: Some(ttl),
            kept_for: None,
            downgrade: false,
            fence: None,
            note: None,
            metadata: Vec::new(),
        };
        self.manager.extend(request).await
    }

    /// Releases.
    pub async fn release(&self, resource: &str, token: &Token) -> Result<(), ReleaseError> {
        self.manager.release(&name(resource), token).await.map(|_| ())
    }

    /// Looks.
    pub async fn inspect(&self, resource: &str) -> Inspection {
        let seen = self.manager.inspect(&name(resource)).await;
        seen.unwrap_or_else(|e| panic!("{resource}: {e:?}"))
    }

    /// Waits until clean-ups, repairs and stragglers are over.
    pub async fn until_settled(&self) {
        poll::until_true("nothing is left to clean up", || self.engine.tasks.is_empty()).await;
    }
}

fn name(resource: &str) -> ResourceName {
    ResourceName::parse(resource).expect("a valid name")
}
