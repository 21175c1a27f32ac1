//! The state that every handler receives, and the settings of the HTTP layer. Concrete types, so that no handler has a type
//! parameter; apart from the router, so that handlers and router do not import each other.

use std::ops::{Deref, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::allowed_hosts::AllowedHosts;
use super::history_limit::HistoryLimit;
use crate::audit::Audit;
use crate::auth::authenticator::Authenticator;
use crate::config::{Config, TermsRules};
use crate::manager;
use crate::manager::latency::NodeLatencies;
use crate::manager::types::GrantedLease;
use crate::metrics::Metrics;
use crate::metrics::leases::GrantMeasure;
use crate::nodes::any_node::AnyNode;
use crate::redlock::clock::{BootTime, SystemClock};
use crate::redlock::random::SystemEntropy;
use crate::types::Ttl;
use crate::webhooks::ServiceWebhooks;

/// The manager with this machine's clock and randomness, over nodes of any kind.
pub type ServiceManager = manager::LockManager<AnyNode, SystemClock, SystemEntropy>;

/// The minimum `keep`.
const KEEP_MIN: Duration = Duration::from_secs(1);

/// The checked settings of the HTTP layer.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// TTL of an acquire that names none.
    pub default_ttl: Ttl,
    pub min_ttl: Ttl,
    pub max_ttl: Ttl,
    /// What an operator may change guard, lock delay and fence TTL to.
    pub terms: TermsRules,
    /// The maximum `wait`.
    pub max_wait: Duration,
    /// Maximum time for which a lease is renewed for the stream that holds it.
    pub max_hold: Duration,
    /// The maximum `keep`.
    pub max_keep: Duration,
    /// Maximum wait of a ticket.
    pub max_ticket_wait: Duration,
    /// How long locks of Terraform are kept, unless a request says otherwise.
    pub terraform_keep: Duration,
    /// The maximum size of a body. Bytes.
    pub body_limit: usize,
    /// How long a body may take to arrive after its head.
    pub body_timeout: Duration,
    /// The maximum length of path and query. Bytes.
    pub uri_limit: usize,
    /// Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Host names under which pages, and without authentication everything, are served.
    pub hosts: AllowedHosts,
    /// The link target of owners: a URL with `{owner}` in it; empty for no links.
    pub owner_url: String,
    /// Other machines can reach the service without authentication: every page shows a warning.
    pub is_open_to_others: bool,
}

impl HttpSettings {
    /// The settings from the configuration.
    ///
    /// Errors: the key and what is wrong with it.
    pub fn from_config(config: &Config) -> Result<Self, (&'static str, String)> {
        let ttl = |key: &'static str, period: Duration| {
            let ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
            Ttl::from_ms(ms).map_err(|invalid| (key, invalid.0))
        };
        Ok(Self {
            default_ttl: ttl("default_ttl", config.default_ttl)?,
            min_ttl: ttl("min_ttl", config.min_ttl)?,
            max_ttl: ttl("max_ttl", config.max_ttl)?,
            terms: TermsRules::from_config(config),
            max_wait: config.max_wait,
            max_hold: config.max_hold,
            max_keep: config.max_keep,
            max_ticket_wait: config.max_ticket_wait,
            terraform_keep: config.terraform_keep.min(config.max_keep),
            body_limit: config.body_limit,
            body_timeout: config.body_timeout,
            uri_limit: config.uri_limit,
            trusted_proxies: config.trusted_proxies.clone(),
            hosts: hosts(config),
            owner_url: config.owner_url.clone(),
            is_open_to_others: config.is_open_to_others(),
        })
    }

    /// The range of times for which a lease may be kept.
    pub(crate) fn keep_range(&self) -> RangeInclusive<Duration> {
        KEEP_MIN.max(self.min_ttl.as_duration())..=self.max_keep
    }

    /// The TTL of a lease that is kept for `kept_for`: the requested one, else the maximum; at most `kept_for`.
    pub(crate) fn kept_ttl(&self, asked: Option<Ttl>, kept_for: Duration) -> Ttl {
        let ttl = asked.unwrap_or(self.max_ttl).as_duration().min(kept_for);
        Ttl::from_ms(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)).unwrap_or(self.default_ttl)
    }
}

/// With `insecure_no_auth` and no `allowed_hosts`, every name is allowed: every client that can connect may do everything anyway,
/// and the network of a container may give it any name.
fn hosts(config: &Config) -> AllowedHosts {
    match config.is_open_to_others() && config.allowed_hosts.is_empty() {
        true => AllowedHosts::any(),
        false => AllowedHosts::of(config.allowed_hosts.clone()),
    }
}

/// Additional state of the pages under `/ui/`.
pub struct UiState {
    /// Response times of the nodes.
    pub node_latencies: Arc<NodeLatencies>,
}

/// The state of all handlers. Cheap to clone: each request gets a clone.
#[derive(Clone)]
pub struct AppState(Arc<StateInner>);

impl Deref for AppState {
    type Target = StateInner;

    fn deref(&self) -> &StateInner {
        &self.0
    }
}

/// The fields of [`AppState`].
#[derive(Clone)]
pub struct StateInner {
    /// Acquires, extends, releases, lists.
    pub manager: ServiceManager,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    pub audit: Audit,
    /// Settings of the HTTP layer.
    pub settings: Arc<HttpSettings>,
    /// Principals, sessions and quotas.
    pub authenticator: Arc<Authenticator>,
    /// State of the pages; `None`: pages are disabled.
    pub ui: Option<Arc<UiState>>,
    /// Call-backs and hooks.
    pub webhooks: Arc<ServiceWebhooks>,
    /// The principals whose answers about past events are made now.
    pub(crate) history_limit: Arc<HistoryLimit>,
    /// For durations of requests; times in answers come from the manager's clock.
    pub clock: SystemClock,
}

/// The two clocks at the moment of an answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerTime {
    /// The boot clock, for deadlines.
    pub now: BootTime,
    /// For display. Milliseconds since 1970.
    pub wall_ms: u64,
}

impl AppState {
    /// A state without authentication, audit log and pages.
    pub fn new(manager: ServiceManager, metrics: Arc<Metrics>, settings: HttpSettings) -> Self {
        let (audit, settings, authenticator) = (Audit::default(), Arc::new(settings), Arc::new(Authenticator::open()));
        let (webhooks, history_limit, clock) = (Arc::new(ServiceWebhooks::none()), Arc::default(), SystemClock);
        let ui = None;
        let inner = StateInner { manager, metrics, audit, settings, authenticator, ui, webhooks, history_limit, clock };
        Self(Arc::new(inner))
    }

    /// Adds authentication.
    #[must_use]
    pub fn with_authenticator(self, authenticator: Arc<Authenticator>) -> Self {
        self.changed(|state| state.authenticator = authenticator)
    }

    /// Adds call-backs and hooks.
    #[must_use]
    pub fn with_webhooks(self, webhooks: Arc<ServiceWebhooks>) -> Self {
        self.changed(|state| state.webhooks = webhooks)
    }

    /// Adds pages, if `ui` is given.
    #[must_use]
    pub fn with_ui(self, ui: Option<UiState>) -> Self {
        self.changed(|state| state.ui = ui.map(Arc::new))
    }

    /// Adds an audit log.
    #[must_use]
    pub fn with_audit(self, audit: Audit) -> Self {
        self.changed(|state| state.audit = audit)
    }

    fn changed(self, change: impl FnOnce(&mut StateInner)) -> Self {
        let mut state = Arc::unwrap_or_clone(self.0);
        change(&mut state);
        Self(Arc::new(state))
    }

    /// Both clocks, read now.
    pub fn answer_time(&self) -> AnswerTime {
        AnswerTime { now: self.manager.now(), wall_ms: self.manager.wall_ms() }
    }

    /// The measured values of a grant that is about to be answered. The start of its round is computed from the deadline.
    pub fn measure(&self, lease: &GrantedLease) -> GrantMeasure {
        let now = self.manager.now();
        let whole = self.manager.engine().deadline(now, lease.ttl).since(now);
        GrantMeasure {
            is_replay: lease.replay,
            round: now.since(lease.deadline.minus(whole)),
            valid_for: lease.deadline.since(now),
            ttl: lease.ttl.as_duration(),
        }
    }

    /// As [`Self::measure`], for the leases of a set, which is a replay if all of them are.
    pub fn measure_set(&self, leases: &[GrantedLease]) -> GrantMeasure {
        self.measure(leases.iter().min_by_key(|lease| lease.replay).expect("a set has a lease of each resource"))
    }
}

/// The shipped defaults (`config/redlockd.toml`), for tests.
#[cfg(test)]
pub fn shipped_config() -> Config {
    let env = std::collections::BTreeMap::<String, String>::new();
    crate::config::Inputs::default().load(&env).expect("the shipped defaults are valid").config
}

/// The shipped defaults, for tests.
#[cfg(test)]
pub fn shipped_settings() -> HttpSettings {
    HttpSettings::from_config(&shipped_config()).expect("the shipped defaults are valid")
}
