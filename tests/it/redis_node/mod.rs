//! [`RedisNode`] against real servers.

mod faults;
mod leases;
mod marker;
mod memory;
mod server_checks;

use std::sync::Arc;
use std::time::Duration;

use redlockd::nodes::redis::{NodeUrl, RedisNode, RedisNodeConfig};
use redlockd::protocol::{
    AcquireArgs, CancelArgs, ClusterParams, EndReason, IndexArgs, NodeResult, ReleaseArgs, Reply, Request,
    RequestStamp, RequestTime, RevokeArgs, TokenUse, Unreachable, UnreachableKind, UpdateArgs, UpdateKind,
    quarantine_for,
};
use redlockd::redlock::clock::{Clock, SystemClock};
use redlockd::redlock::node::Node;
use redlockd::redlock::random::{Entropy, SystemEntropy};
use redlockd::types::{AttemptId, Fence, NodeId, ResourceName, TokenHash, Ttl};
use tokio::task::JoinHandle;

use crate::support::poll;
use crate::support::redis_server::RedisServer;

/// A Redis node and its supervisor, which is aborted with it.
pub struct TestNode {
    pub redis: Arc<RedisNode>,
    supervisor: JoinHandle<()>,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

/// A guard so wide that a slow machine makes no request late.
pub fn params() -> ClusterParams {
    let (guard, lock_delay) = (Duration::from_secs(10), Duration::from_secs(1));
    ClusterParams {
        cluster: "c1".into(),
        guard,
        lock_delay,
        quarantine: quarantine_for(Duration::from_mins(5), lock_delay, guard),
        fence_ttl: Duration::from_hours(1),
        template: Default::default(),
    }
}

/// Timeouts so long that a slow machine exceeds none.
pub fn config(url: &str) -> RedisNodeConfig {
    let url = NodeUrl::parse(url).expect("a valid address");
    let id = NodeId::parse("n1").expect("a valid name");
    let mut config = RedisNodeConfig::new(id, url, Arc::new(params()), Duration::from_secs(1));
    config.connect_timeout = Duration::from_secs(5);
    config
}

impl TestNode {
    /// A node that may not be connected.
    pub fn new(config: RedisNodeConfig) -> Self {
        let (redis, supervisor) = RedisNode::new(config, SystemEntropy, None).expect("a valid configuration");
        Self { redis, supervisor: tokio::spawn(supervisor) }
    }

    /// A connected node.
    pub async fn connected(config: RedisNodeConfig) -> Self {
        let node = Self::new(config);
        node.until_connected().await;
        node
    }

    /// A connected node that votes.
    pub async fn voting(server: &RedisServer) -> Self {
        let node = Self::connected(config(&server.url())).await;
        node.reply(Request::init()).await;
        node
    }

    pub async fn until_connected(&self) {
        poll::until_true("the node is connected", || self.redis.report().connected).await;
    }

    pub async fn ask(&self, request: Request) -> NodeResult {
        self.ask_at(now(), request).await
    }

    pub async fn ask_at(&self, sent_at: RequestTime, request: Request) -> NodeResult {
        self.ask_in(sent_at.into(), request).await
    }

    pub async fn ask_in(&self, stamp: RequestStamp, request: Request) -> NodeResult {
        let call = Arc::clone(&self.redis).call(stamp, Arc::new(request));
        tokio::time::timeout(poll::PATIENCE, call).await.expect("no call hangs")
    }

    pub async fn reply(&self, request: Request) -> Reply {
        let shown = format!("{request:?}");
        self.ask(request).await.unwrap_or_else(|e| panic!("{shown}: {e}"))
    }

    pub async fn error(&self, request: Request) -> UnreachableKind {
        let shown = format!("{request:?}");
        match self.ask(request).await {
            Err(Unreachable { kind, .. }) => kind,
            Ok(reply) => panic!("{shown}: {reply:?}"),
        }
    }

    /// Acquires, has the lease listed, and returns the fence.
    pub async fn granted(&self, who: &Holder, ttl_ms: u64) -> Fence {
        match self.reply(who.acquire(ttl_ms)).await {
            Reply::Granted { fence, .. } => {
                assert_eq!(self.reply(who.index()).await, Reply::Indexed);
                fence
            }
            reply => panic!("{reply:?}"),
        }
    }
}

/// The host's clock, which is also the servers'.
pub fn now() -> RequestTime {
    RequestTime(SystemClock.wall_ms() * 1_000)
}

/// A resource, and the token and attempt that it is requested with.
#[derive(Clone)]
pub struct Holder {
    pub resource: ResourceName,
    pub token: TokenHash,
    pub attempt: AttemptId,
}

impl Holder {
    pub fn of(resource: &str) -> Self {
        let resource = ResourceName::parse(resource).expect("a valid name");
        Self { resource, token: SystemEntropy.token().hash(), attempt: SystemEntropy.attempt() }
    }

    /// The same token in a new attempt.
    pub fn again(&self) -> Self {
        Self { attempt: SystemEntropy.attempt(), ..self.clone() }
    }

    pub fn acquire(&self, ttl_ms: u64) -> Request {
        Request::Acquire(AcquireArgs {
            resource: self.resource.clone(),
            token: self.token.clone(),
            attempt: self.attempt.clone(),
            ttl: ttl(ttl_ms),
            labels: "{\"o\":\"me\"}".into(),
            token_use: TokenUse::Again,
        })
    }

    pub fn extend(&self, ttl_ms: Option<u64>) -> Request {
        self.update(ttl_ms, None, UpdateKind::Renewal, None)
    }

    pub fn update(&self, ttl_ms: Option<u64>, fence: Option<Fence>, kind: UpdateKind, labels: Option<&str>) -> Request {
        let (resource, token) = (self.resource.clone(), self.token.clone());
        Request::Update(UpdateArgs {
            resource,
            token,
            ttl: ttl_ms.map(ttl),
            fence,
            kind,
            labels: labels.map(Arc::from),
        })
    }

    pub fn cancel(&self) -> Request {
        Request::Cancel(CancelArgs {
            resource: self.resource.clone(),
            token: self.token.clone(),
            attempt: self.attempt.clone(),
        })
    }

    pub fn release(&self) -> Request {
        self.end(EndReason::Released)
    }

    pub fn end(&self, reason: EndReason) -> Request {
        Request::Release(ReleaseArgs { resource: self.resource.clone(), token: self.token.clone(), reason })
    }

    pub fn revoke(&self) -> Request {
        Request::Revoke(RevokeArgs { resource: self.resource.clone(), token: self.token.clone() })
    }

    pub fn inspect(&self) -> Request {
        Request::Inspect { resource: self.resource.clone() }
    }

    /// Has its lease listed.
    pub fn index(&self) -> Request {
        Request::Index(IndexArgs { leases: [(self.resource.clone(), self.token.clone())].into() })
    }
}

pub fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).expect("a valid TTL")
}
