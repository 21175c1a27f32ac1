//! What every handler is given. Concrete, so that no handler carries a type parameter; apart from
//! the router, so that handlers and router do not import each other.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::middleware::host::AllowedHosts;
use crate::audit::Audit;
use crate::auth::authenticator::Authenticator;
use crate::manager;
use crate::manager::latency::NodeLatencies;
use crate::metrics::Metrics;
use crate::nodes::any::AnyNode;
use crate::redlock::clock::SystemClock;
use crate::redlock::entropy::SystemEntropy;
use crate::types::Ttl;

/// The manager with this machine's clock and randomness, over whichever nodes are configured.
pub type LockManager = manager::LockManager<AnyNode, SystemClock, SystemEntropy>;

/// The largest request body unless configured: a thousand times a usual one.
pub const BODY_LIMIT_BYTES: usize = 64 * 1024;
/// The longest path and query unless configured.
pub const URI_LIMIT_BYTES: usize = 4096;
/// How long a body may take to arrive after its head: a slow sender must not keep a connection for ever.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What the door assumes and allows. The configuration fills it in, checked.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// TTL of an acquire that names none.
    pub default_ttl: Ttl,
    /// The least TTL.
    pub min_ttl: Ttl,
    /// The most.
    pub max_ttl: Ttl,
    /// The longest `wait`.
    pub max_wait: Duration,
    /// The longest that a lease is renewed for a stream that holds it.
    pub max_hold: Duration,
    /// The largest body. Bytes.
    pub body_limit: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// The longest path and query. Bytes.
    pub uri_limit: usize,
    /// Proxies whose word on where a request comes from is taken.
    pub trusted_proxies: Vec<IpNet>,
    /// Names under which the pages may be asked for, and everything where there are no keys.
    pub hosts: AllowedHosts,
    /// Others can reach the service, and there are no keys: every page says so.
    pub is_open_to_others: bool,
}

impl Default for HttpSettings {
    /// The documented defaults.
    fn default() -> Self {
        let ttl = |ms| Ttl::from_ms(ms).expect("a constant in range");
        Self {
            default_ttl: ttl(30_000),
            min_ttl: ttl(100),
            max_ttl: ttl(300_000),
            max_wait: Duration::from_mins(5),
            max_hold: Duration::from_hours(24),
            body_limit: BODY_LIMIT_BYTES,
            body_timeout: BODY_TIMEOUT,
            uri_limit: URI_LIMIT_BYTES,
            trusted_proxies: Vec::new(),
            hosts: AllowedHosts::default(),
            is_open_to_others: false,
        }
    }
}

/// What the pages under `/ui/` need besides.
pub struct UiState {
    /// How long the nodes took lately.
    pub node_latencies: Arc<NodeLatencies>,
    /// Cookies travel over TLS only. Set it where the listener speaks TLS.
    pub secure_cookies: bool,
}

/// The state of all handlers. Cheap to clone: each request is given one.
#[derive(Clone)]
pub struct AppState(Arc<StateInner>);

impl Deref for AppState {
    type Target = StateInner;

    fn deref(&self) -> &StateInner {
        &self.0
    }
}

/// See [`AppState`].
#[derive(Clone)]
pub struct StateInner {
    /// Who queues and who holds.
    pub manager: LockManager,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What is written down.
    pub audit: Audit,
    /// What is assumed and allowed.
    pub settings: Arc<HttpSettings>,
    /// Who gets in.
    pub gate: Arc<Authenticator>,
    /// For the pages; `None`: there are none.
    pub ui: Option<Arc<UiState>>,
    /// For measuring requests; answers are dated by the manager's own clock.
    pub clock: SystemClock,
}

impl AppState {
    /// On the machine's clock, and open to everybody.
    pub fn new(manager: LockManager, metrics: Arc<Metrics>, settings: HttpSettings) -> Self {
        let (audit, settings, gate) = (Audit::default(), Arc::new(settings), Arc::new(Authenticator::open()));
        Self(Arc::new(StateInner { manager, metrics, audit, settings, gate, ui: None, clock: SystemClock }))
    }

    /// Behind this gate.
    #[must_use]
    pub fn with_authenticator(self, gate: Arc<Authenticator>) -> Self {
        self.changed(|state| state.gate = gate)
    }

    /// With pages.
    #[must_use]
    pub fn with_ui(self, ui: Option<UiState>) -> Self {
        self.changed(|state| state.ui = ui.map(Arc::new))
    }

    /// The same with an audit log.
    #[must_use]
    pub fn with_audit(self, audit: Audit) -> Self {
        self.changed(|state| state.audit = audit)
    }

    fn changed(self, change: impl FnOnce(&mut StateInner)) -> Self {
        let mut state = Arc::unwrap_or_clone(self.0);
        change(&mut state);
        Self(Arc::new(state))
    }
}
