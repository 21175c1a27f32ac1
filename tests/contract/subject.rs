//! The nodes under test as traits, so that each case is written once.

use std::sync::Arc;
use std::time::Duration;

use redlockd::protocol::{
    AcquireArgs, CancelArgs, ClusterParams, EndReason, IndexArgs, NodeResult, ReleaseArgs, Reply, Request, RequestTime,
    RevokeArgs, RosterEntry, TokenUse, UpdateArgs, UpdateKind, View, ViewId,
};
use redlockd::types::{AttemptId, Fence, NodeId, ResourceName, Token, TokenHash, Ttl};

/// The view with this number, in which this process is admitted.
pub fn view(number: u64, run: &str) -> Arc<View> {
    let id = view_id(number);
    let name = NodeId::parse("n").expect("a valid name");
    Arc::new(View {
        id,
        list: None,
        roster: [(name, RosterEntry { run: run.into(), since: id, address: None })].into(),
    })
}

pub fn view_id(number: u64) -> ViewId {
    (0..number).fold(ViewId::NONE, |id, _| id.above(7))
}

pub const GUARD: Duration = Duration::from_millis(500);

pub fn params() -> ClusterParams {
    ClusterParams {
        cluster: "cluster one".into(),
        guard: GUARD,
        lock_delay: Duration::from_millis(20),
        quarantine: Duration::from_secs(60),
        fence_ttl: Duration::from_mins(10),
        template: Default::default(),
    }
}

/// A node under test, whose time can pass.
pub trait Subject {
    /// The node's clock, microseconds since 1970.
    fn now_us(&mut self) -> u64;
    /// In the subject's view.
    fn ask_with(&mut self, sent_at: RequestTime, params: &ClusterParams, request: &Request) -> NodeResult;
    /// In which later requests ask for votes; none at first.
    fn set_view(&mut self, view: &Arc<View>);
    /// Which process it is.
    fn run(&mut self) -> String;
    /// Returns when the node's clock has advanced by at least `span`.
    fn pass(&mut self, span: Duration);

    fn ask(&mut self, request: &Request) -> Reply {
        let sent_at = RequestTime(self.now_us());
        self.ask_with(sent_at, &params(), request).expect("an answer")
    }
}

/// A server that foreign clients can reach as well.
pub trait Server: Subject {
    fn foreign_set(&mut self, resource: &ResourceName, value: &[u8], ttl_ms: Option<u64>);
    fn foreign_list(&mut self, resource: &ResourceName, ttl_ms: Option<u64>);
    fn foreign_acquire(&mut self, resource: &ResourceName, value: &[u8], ttl_ms: u64) -> bool;
    fn foreign_expire(&mut self, resource: &ResourceName, ttl_ms: Option<u64>) -> bool;
    fn foreign_delete(&mut self, resource: &ResourceName) -> bool;
    fn flush_all(&mut self);
    /// Asked while the clock is ahead by `ms`, from which it goes back: what the node has of this resource ends as much later.
    fn ask_ahead(&mut self, request: &Request, resource: &ResourceName, ms: u64) -> Reply;
    /// Its quarantine is over now.
    fn serve_quarantine(&mut self);
    /// Memory is full for a moment; a key that is no lease is evicted.
    fn evict_something(&mut self);
    /// `CONFIG RESETSTAT`.
    fn reset_statistics(&mut self);
    /// The process is killed and restarted with empty memory.
    fn restart_empty(&mut self);
    /// From now on each write is synced before its reply.
    fn sync_each_write(&mut self);
    /// The process is killed and restarted with its data, while the clock is ahead by so many ms.
    fn restart_kept(&mut self, ahead_ms: u64);
}

pub fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).expect("a valid name")
}

pub fn token(i: u64) -> TokenHash {
    Token::parse(&format!("token-number-{i:016}")).expect("a valid token").hash()
}

pub fn attempt(i: u64) -> AttemptId {
    AttemptId::from_random(i)
}

pub fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).expect("a valid TTL")
}

pub fn acquire(resource: &str, by: u64, at: u64, ms: u64) -> Request {
    Request::Acquire(AcquireArgs {
        resource: name(resource),
        token: token(by),
        attempt: attempt(at),
        ttl: ttl(ms),
        labels: r#"{"o":"me|you"}"#.into(),
        token_use: TokenUse::Again,
    })
}

/// The first request with this token, which the service draws: no other one is sent before it is answered.
pub fn first(resource: &str, by: u64, at: u64, ms: u64) -> Request {
    let Request::Acquire(args) = acquire(resource, by, at, ms) else { unreachable!("an acquire") };
    Request::Acquire(AcquireArgs { token_use: TokenUse::First, ..args })
}

/// Grants another resource, which begins a generation of fences: from then on `plain.lua` decides first acquires.
pub fn begin_generation(node: &mut impl Subject) {
    assert!(matches!(node.ask(&first("other", 99, 99, 60_000)), Reply::Granted { .. }));
}

pub fn extend(resource: &str, by: u64, ms: Option<u64>, fence: Option<Fence>) -> Request {
    let (resource, token) = (name(resource), token(by));
    Request::Update(UpdateArgs { resource, token, ttl: ms.map(ttl), fence, kind: UpdateKind::Renewal, labels: None })
}

pub fn cancel(resource: &str, by: u64, at: u64) -> Request {
    Request::Cancel(CancelArgs { resource: name(resource), token: token(by), attempt: attempt(at) })
}

/// Lists the leases that these tokens hold.
pub fn index(leases: &[(&str, u64)]) -> Request {
    let leases = leases.iter().map(|(resource, by)| (name(resource), token(*by))).collect();
    Request::Index(IndexArgs { leases })
}

pub fn release(resource: &str, by: u64) -> Request {
    Request::Release(ReleaseArgs { resource: name(resource), token: token(by), reason: EndReason::Released })
}

pub fn revoke(resource: &str, by: u64) -> Request {
    Request::Revoke(RevokeArgs { resource: name(resource), token: token(by) })
}

pub fn inspect(resource: &str) -> Request {
    Request::Inspect { resource: name(resource) }
}
