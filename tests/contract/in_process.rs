//! The nodes without Redis as subjects of the contract suite; the test moves their time.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redlockd::nodes::embedded::{BootId, EmbeddedConfig, EmbeddedNode};
use redlockd::protocol::reference::{EvictedKey, ForeignValue, ReferenceNode};
use redlockd::protocol::{ClusterParams, NodeResult, Reply, Request, RequestStamp, RequestTime, View};
use redlockd::redlock::clock::{BootTime, Clock};
use redlockd::redlock::node::Node;
use redlockd::types::{NodeId, ResourceName};

use super::subject::{Server, Subject, name, params};

const START_US: u64 = 1_700_000_000_000_000;

/// The reference itself.
pub struct Reference {
    node: ReferenceNode,
    now_us: u64,
    restarts: u32,
    view: Arc<View>,
}

impl Reference {
    pub fn start() -> Self {
        Self { node: ReferenceNode::new("run0"), now_us: START_US, restarts: 0, view: Arc::default() }
    }
}

impl Subject for Reference {
    fn now_us(&mut self) -> u64 {
        self.now_us
    }

    fn ask_with(&mut self, sent_at: RequestTime, params: &ClusterParams, request: &Request) -> NodeResult {
        let stamp = RequestStamp::new(sent_at, Arc::clone(&self.view));
        self.node.apply(self.now_us, "", stamp, params, request)
    }

    fn set_view(&mut self, view: &Arc<View>) {
        self.view = Arc::clone(view);
    }

    fn run(&mut self) -> String {
        self.node.run().to_owned()
    }

    fn pass(&mut self, span: Duration) {
        self.now_us += u64::try_from(span.as_micros()).expect("short");
    }
}

impl Server for Reference {
    fn foreign_set(&mut self, resource: &ResourceName, value: &[u8], ttl_ms: Option<u64>) {
        self.node.foreign_set(self.now_us, resource, &ForeignValue::Bytes(value.to_vec()), ttl_ms);
    }

    fn foreign_list(&mut self, resource: &ResourceName, ttl_ms: Option<u64>) {
        self.node.foreign_set(self.now_us, resource, &ForeignValue::OtherType("list"), ttl_ms);
    }

    fn foreign_acquire(&mut self, resource: &ResourceName, value: &[u8], ttl_ms: u64) -> bool {
        self.node.foreign_acquire(self.now_us, resource, value, ttl_ms)
    }

    fn foreign_expire(&mut self, resource: &ResourceName, ttl_ms: Option<u64>) -> bool {
        self.node.foreign_expire(self.now_us, resource, ttl_ms)
    }

    fn foreign_delete(&mut self, resource: &ResourceName) -> bool {
        self.node.foreign_delete(self.now_us, resource)
    }

    fn flush_all(&mut self) {
        self.node.flush_all();
    }

    fn ask_ahead(&mut self, request: &Request, _: &ResourceName, ms: u64) -> Reply {
        self.now_us += ms * 1_000;
        let reply = self.ask(request);
        self.now_us -= ms * 1_000;
        reply
    }

    fn serve_quarantine(&mut self) {
        self.node.serve_quarantine();
    }

    fn evict_something(&mut self) {
        self.node.evict(self.now_us, &EvictedKey::Counter(name("junk")));
    }

    fn reset_statistics(&mut self) {
        self.node.reset_statistics();
    }

    fn restart_empty(&mut self) {
        self.restarts += 1;
        self.node.restart_empty(&format!("run{}", self.restarts));
    }

    fn sync_each_write(&mut self) {}

    fn restart_kept(&mut self, ahead_ms: u64) {
        self.restarts += 1;
        self.node.restart_with_memory(&format!("run{}", self.restarts));
        self.node.expire(self.now_us + ahead_ms * 1_000);
    }
}

/// A boot clock that moves only when the test moves it.
#[derive(Debug, Clone)]
struct StoppedClock(Arc<AtomicU64>);

impl Clock for StoppedClock {
    fn now(&self) -> BootTime {
        BootTime::from_nanos(self.0.load(Ordering::SeqCst) * 1_000)
    }

    fn wall_ms(&self) -> u64 {
        START_US / 1_000
    }

    fn sleep_until(&self, _at: BootTime) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }
}

/// The node that the service runs if no Redis is configured. It initialises itself.
pub struct Embedded {
    node: Arc<EmbeddedNode<StoppedClock>>,
    clock: StoppedClock,
    runtime: tokio::runtime::Runtime,
    view: Arc<View>,
    _dir: tempfile::TempDir,
}

impl Embedded {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let clock = StoppedClock(Arc::new(AtomicU64::new(1_000_000)));
        let id = NodeId::parse("embedded").expect("valid");
        let config = EmbeddedConfig { id, dir: dir.path().to_owned(), params: params(), clock: clock.clone() };
        let node = EmbeddedNode::open_in(config, BootId::named("boot")).expect("opens");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        Self { node, clock, runtime, view: Arc::default(), _dir: dir }
    }
}

impl Subject for Embedded {
    fn now_us(&mut self) -> u64 {
        START_US + self.clock.0.load(Ordering::SeqCst) - 1_000_000
    }

    fn ask_with(&mut self, sent_at: RequestTime, asked: &ClusterParams, request: &Request) -> NodeResult {
        assert_eq!(*asked, params(), "an embedded node has one instance and one set of parameters");
        let stamp = RequestStamp::new(sent_at, Arc::clone(&self.view));
        self.runtime.block_on(self.node.clone().call(stamp, Arc::new(request.clone())))
    }

    fn set_view(&mut self, view: &Arc<View>) {
        self.view = Arc::clone(view);
    }

    fn run(&mut self) -> String {
        match self.ask(&Request::probe()) {
            redlockd::protocol::Reply::Status(status) => status.run,
            other => panic!("{other:?}"),
        }
    }

    fn pass(&mut self, span: Duration) {
        self.clock.0.fetch_add(u64::try_from(span.as_micros()).expect("short"), Ordering::SeqCst);
    }
}
