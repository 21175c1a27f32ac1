//! What is counted, and how it is called: one struct that owns its registry, so that two services
//! in one process do not share numbers. Every series is there from the start, and none carries a
//! resource, an owner or a token: their number is bounded by the configuration. Knows the manager's
//! words, and neither routes nor handlers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::manager::Gauges;
use crate::manager::outcome::{AcquireError, ExtendError, NodeReport, ReleaseError};
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::node::{UnreachableKind, VERBS};
use crate::redlock::quorum::quorum_of;
use crate::redlock::types::NodeId;

/// Of an acquire: how it can end. `abandoned`: the caller hung up.
pub const ACQUIRE_OUTCOMES: [&str; 11] = [
    "granted",
    "replayed",
    "locked",
    "wait-timeout",
    "deadlock",
    "quorum-unavailable",
    "lease-expired",
    "too-many-replays",
    "too-many-waiters",
    "draining",
    "abandoned",
];
/// Of an extend.
pub const EXTEND_OUTCOMES: [&str; 6] =
    ["extended", "not-holder", "lease-expired", "changed", "invalid", "quorum-unavailable"];
/// Of a release.
pub const RELEASE_OUTCOMES: [&str; 4] = ["released", "not-holder", "lease-expired", "quorum-unavailable"];

/// The route label of a path that has no route: raw paths would be labels without bound.
pub const UNMATCHED: &str = "unmatched";
/// The method label of a method that no route has.
pub const OTHER_METHOD: &str = "other";
/// The code label of a request whose caller hung up.
pub const CODE_ABANDONED: &str = "abandoned";

/// Seconds. A round on a local network takes one to ten milliseconds.
const REQUEST_BUCKETS: [f64; 9] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5];
/// Seconds. Up to the node timeout, and beyond it to see that it is kept.
const NODE_BUCKETS: [f64; 9] = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25];
/// Seconds. Up to the longest wait.
const WAIT_BUCKETS: [f64; 11] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 150.0, 300.0];

/// One route as metrics see it.
#[derive(Debug, Clone, Copy)]
pub struct RouteLabels {
    /// The path's pattern.
    pub route: &'static str,
    /// The method.
    pub method: &'static str,
    /// The codes that it answers with.
    pub codes: &'static [u16],
}

/// The handles of one node.
struct NodeSeries {
    durations: HashMap<&'static str, Histogram>,
    errors: HashMap<UnreachableKind, IntCounter>,
    up: IntGauge,
    votes: IntGauge,
}

/// All metrics of one service.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    request_durations: HistogramVec,
    in_flight: IntGauge,
    acquires: IntCounterVec,
    acquire_durations: HistogramVec,
    waits: Histogram,
    extends: IntCounterVec,
    releases: IntCounterVec,
    nodes: HashMap<NodeId, NodeSeries>,
    locks_held: IntGauge,
    waiters: IntGauge,
    waiters_limit: IntGauge,
    quorum_available: IntGauge,
    quorum_margin: IntGauge,
    cleanups: IntGauge,
    cleanups_skipped: IntGauge,
    under_replicated: IntGauge,
    repaired: IntGauge,
    draining: IntGauge,
}

/// What is read when somebody scrapes.
pub struct Scrape<'a> {
    /// Numbers of the manager.
    pub gauges: Gauges,
    /// All nodes.
    pub nodes: &'a [NodeReport],
    /// The service is shutting down.
    pub draining: bool,
}

/// Registers what was made with constant names: it can fail for a repeated or malformed name only.
fn add<M: prometheus::core::Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("metric names and labels are constants");
    registry.register(Box::new(metric.clone())).expect("metric names are unique");
    metric
}

fn name(name: &str) -> String {
    format!("redlockd_{name}")
}

fn gauge(registry: &Registry, of: &str, help: &str) -> IntGauge {
    add(registry, IntGauge::new(name(of), help))
}

fn counters(registry: &Registry, of: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(name(of), help), labels))
}

fn histograms(registry: &Registry, of: &str, help: &str, buckets: &[f64], labels: &[&str]) -> HistogramVec {
    add(registry, HistogramVec::new(HistogramOpts::new(name(of), help).buckets(buckets.to_vec()), labels))
}

impl Metrics {
    /// For these nodes and routes. Histograms of requests start with the codes of success only: each
    /// label set has a dozen series, and a rate that begins late is missed in counters alone.
    pub fn new(nodes: &[NodeId], routes: &[RouteLabels]) -> Arc<Self> {
        let registry = Registry::new();
        let r = &registry;
        let http = ["route", "method", "code"];
        let requests = counters(r, "http_requests_total", "Requests answered.", &http);
        let help = "From head to answer, without the time spent waiting for a lock.";
        let request_durations = histograms(r, "http_request_duration_seconds", help, &REQUEST_BUCKETS, &http);
        for route in routes {
            for code in route.codes {
                let labels = [route.route, route.method, &code.to_string()];
                requests.with_label_values(&labels);
                if *code < 400 {
                    request_durations.with_label_values(&labels);
                }
            }
        }
        requests.with_label_values(&[UNMATCHED, "GET", "404"]);
        let acquires = counters(r, "lock_acquire_total", "Acquires by outcome.", &["outcome"]);
        let help = "Acquires by outcome, from the checked request to the answer, waiting included.";
        let acquire_durations = histograms(r, "lock_acquire_duration_seconds", help, &WAIT_BUCKETS, &["outcome"]);
        for outcome in ACQUIRE_OUTCOMES {
            acquires.with_label_values(&[outcome]);
            acquire_durations.with_label_values(&[outcome]);
        }
        let extends = counters(r, "lock_extend_total", "Extends by outcome.", &["outcome"]);
        EXTEND_OUTCOMES.iter().for_each(|o| drop(extends.with_label_values(&[o])));
        let releases = counters(r, "lock_release_total", "Releases by outcome.", &["outcome"]);
        RELEASE_OUTCOMES.iter().for_each(|o| drop(releases.with_label_values(&[o])));
        let help = "How long acquires that were willing to wait did wait, however they ended.";
        let options = HistogramOpts::new(name("lock_wait_duration_seconds"), help).buckets(WAIT_BUCKETS.to_vec());
        let waits = add(r, Histogram::with_opts(options));
        let build = add(r, IntGaugeVec::new(Opts::new(name("build_info"), "Always 1."), &["version"]));
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        r.register(Box::new(ProcessCollector::for_self())).expect("the process_ names are not ours");
        Arc::new(Self {
            requests,
            request_durations,
            in_flight: gauge(r, "http_requests_in_flight", "Requests under way, waiting ones included."),
            acquires,
            acquire_durations,
            waits,
            extends,
            releases,
            nodes: node_series(r, nodes),
            locks_held: gauge(r, "locks_held", "Leases granted or extended by this instance that are running."),
            waiters: gauge(r, "lock_waiters", "Requests that wait in this instance."),
            waiters_limit: gauge(r, "lock_waiters_limit", "The bound of lock_waiters."),
            quorum_available: gauge(r, "quorum_available", "1 while a quorum of nodes votes."),
            quorum_margin: gauge(r, "quorum_margin", "Nodes that vote beyond the quorum; negative below it."),
            cleanups: gauge(r, "cleanups_in_flight", "Clean-ups of failed or abandoned attempts under way."),
            cleanups_skipped: gauge(
                r,
                "cleanups_skipped",
                "Clean-ups that were left to the TTL because too many were under way, since the start.",
            ),
            under_replicated: gauge(
                r,
                "under_replicated",
                "Nodes found without a lease that an extend had just confirmed on a quorum, since the start.",
            ),
            repaired: gauge(r, "leases_repaired", "Leases put back on such nodes, since the start."),
            draining: gauge(r, "draining", "1 while the instance shuts down."),
            registry,
        })
    }

    /// One call to a node. For the observer hook of the nodes: cheap, and silent about a node or a
    /// verb that was not announced. Verbs: [`VERBS`].
    pub fn node_call(&self, node: &NodeId, verb: &str, took: Duration, answer: Result<(), UnreachableKind>) {
        let Some(series) = self.nodes.get(node) else { return };
        if let Some(durations) = series.durations.get(verb) {
            durations.observe(took.as_secs_f64());
        }
        if let Err(kind) = answer
            && let Some(errors) = series.errors.get(&kind)
        {
            errors.inc();
        }
    }

    /// Follows one request until it is answered or dropped.
    pub fn watch_request(self: &Arc<Self>, route: &'static str, method: &'static str) -> RequestWatch {
        self.in_flight.inc();
        RequestWatch { metrics: self.clone(), route, method, began: SystemClock.now(), answered: false }
    }

    /// Follows one acquire until it has an outcome or is dropped. `waits`: it is willing to wait.
    pub fn watch_acquire(self: &Arc<Self>, waits: bool) -> AcquireWatch {
        AcquireWatch { metrics: self.clone(), waits, began: SystemClock.now(), ended: false }
    }

    /// Counts an extend.
    pub fn extended<T>(&self, outcome: &Result<T, ExtendError>) {
        let word = match outcome {
            Ok(_) => "extended",
            Err(ExtendError::NotHolder) => "not-holder",
            Err(ExtendError::Gone(_)) => "lease-expired",
            Err(ExtendError::Changed { .. }) => "changed",
            Err(ExtendError::Invalid(..)) => "invalid",
            Err(ExtendError::NoQuorum { .. }) => "quorum-unavailable",
        };
        self.extends.with_label_values(&[word]).inc();
    }

    /// Counts a release.
    pub fn released(&self, outcome: &Result<(), ReleaseError>) {
        let word = match outcome {
            Ok(()) => "released",
            Err(ReleaseError::NotHolder) => "not-holder",
            Err(ReleaseError::Gone(_)) => "lease-expired",
            Err(ReleaseError::NoQuorum(_)) => "quorum-unavailable",
        };
        self.releases.with_label_values(&[word]).inc();
    }

    /// The text exposition format. Errors: none of ours; a defect of the encoder is handed on.
    pub fn scrape(&self, now: &Scrape<'_>) -> prometheus::Result<String> {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.locks_held.set(count(now.gauges.leases_held));
        self.waiters.set(count(now.gauges.waiters));
        self.waiters_limit.set(count(now.gauges.waiters_limit));
        self.cleanups.set(count(now.gauges.cleanups));
        let total = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.cleanups_skipped.set(total(now.gauges.skipped_cleanups));
        self.under_replicated.set(total(now.gauges.under_replicated));
        self.repaired.set(total(now.gauges.repaired));
        self.draining.set(i64::from(now.draining));
        for report in now.nodes {
            if let Some(series) = self.nodes.get(&report.node) {
                series.up.set(i64::from(report.state != "down"));
                series.votes.set(i64::from(report.votes));
            }
        }
        let margin = count(now.nodes.iter().filter(|n| n.votes).count()) - count(quorum_of(now.nodes.len()));
        self.quorum_margin.set(margin);
        self.quorum_available.set(i64::from(margin >= 0));
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

fn node_series(r: &Registry, nodes: &[NodeId]) -> HashMap<NodeId, NodeSeries> {
    let help = "Calls to a node by operation.";
    let durations = histograms(r, "node_request_duration_seconds", help, &NODE_BUCKETS, &["node", "op"]);
    let errors = counters(r, "node_errors_total", "Calls without a usable answer.", &["node", "kind"]);
    let gauges = |of, help| add(r, IntGaugeVec::new(Opts::new(name(of), help), &["node"]));
    let up = gauges("redis_node_up", "1 while the node answers.");
    let votes = gauges("node_votes", "1 while the node votes.");
    let series = |node: &str| NodeSeries {
        durations: VERBS.iter().map(|verb| (*verb, durations.with_label_values(&[node, verb]))).collect(),
        errors: UnreachableKind::ALL.iter().map(|k| (*k, errors.with_label_values(&[node, k.as_str()]))).collect(),
        up: up.with_label_values(&[node]),
        votes: votes.with_label_values(&[node]),
    };
    nodes.iter().map(|node| (node.clone(), series(node.as_str()))).collect()
}

/// One request under way. Dropped without an answer it counts as [`CODE_ABANDONED`]; the gauge of
/// requests in flight falls in any case.
pub struct RequestWatch {
    metrics: Arc<Metrics>,
    route: &'static str,
    method: &'static str,
    began: BootTime,
    answered: bool,
}

impl RequestWatch {
    /// It was answered with `code`, after `waited` of its time had been spent waiting for a lock.
    pub fn answered(mut self, code: u16, waited: Duration) {
        self.answered = true;
        let code = code.to_string();
        let labels = [self.route, self.method, code.as_str()];
        let took = SystemClock.now().since(self.began).saturating_sub(waited);
        self.metrics.requests.with_label_values(&labels).inc();
        self.metrics.request_durations.with_label_values(&labels).observe(took.as_secs_f64());
    }
}

impl Drop for RequestWatch {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        if !self.answered {
            self.metrics.requests.with_label_values(&[self.route, self.method, CODE_ABANDONED]).inc();
        }
    }
}

/// One acquire under way. Dropped without an outcome it counts as `abandoned`.
pub struct AcquireWatch {
    metrics: Arc<Metrics>,
    waits: bool,
    began: BootTime,
    ended: bool,
}

impl AcquireWatch {
    /// It has ended. `Ok`: whether the lease was a replay. Returns how much of its time was waiting,
    /// which is all of it where the request was willing to wait.
    pub fn ended(mut self, outcome: Result<bool, &AcquireError>) -> Duration {
        self.ended = true;
        let took = self.record(match outcome {
            Ok(false) => "granted",
            Ok(true) => "replayed",
            Err(AcquireError::Locked(_)) => "locked",
            Err(AcquireError::WaitTimeout { .. }) => "wait-timeout",
            Err(AcquireError::NoQuorum(_)) => "quorum-unavailable",
            Err(AcquireError::Ended(_)) => "lease-expired",
            Err(AcquireError::Deadlock { .. }) => "deadlock",
            Err(AcquireError::TooManyReplays) => "too-many-replays",
            Err(AcquireError::TooManyWaiters { .. }) => "too-many-waiters",
            Err(AcquireError::Draining) => "draining",
        });
        if self.waits { took } else { Duration::ZERO }
    }

    fn record(&self, word: &str) -> Duration {
        let took = SystemClock.now().since(self.began);
        self.metrics.acquires.with_label_values(&[word]).inc();
        self.metrics.acquire_durations.with_label_values(&[word]).observe(took.as_secs_f64());
        if self.waits {
            self.metrics.waits.observe(took.as_secs_f64());
        }
        took
    }
}

impl Drop for AcquireWatch {
    fn drop(&mut self) {
        if !self.ended {
            self.record("abandoned");
        }
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
