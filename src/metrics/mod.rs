//! What is counted, and how it is called: one struct that owns its registry, so that two services
//! in one process do not share numbers. Every series is there from the start, and none carries a
//! resource, an owner or a token: their number is bounded by the configuration. `requests`, `leases`,
//! `nodes` and `door` count; `make` registers. `docs/metrics.md` says what each is for, and is held against
//! this by a test. Knows the manager's words, and neither routes nor handlers.

pub mod connections;
pub mod leases;
mod nodes;
mod register;
pub mod requests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::process_collector::ProcessCollector;
use prometheus::{Counter, Gauge, IntCounter, IntGauge, Registry, TextEncoder};

use crate::manager::Gauges;
use crate::manager::types::{
    ExtendError, ForceError, ForceMode, Forced, LeaseOutcome, LostReason, NodeSummary, ReleaseError,
};
use crate::protocol::UnreachableKind;
use crate::types::NodeId;
use connections::{ConnectionMetrics, ReloadedFile};
use leases::{AcquireWatch, LeaseMetrics};
use nodes::NodeMetrics;
use register::{counter, counters, gauge, gauges, quantity, raise, sum};
use requests::{InFlightGuard, RequestKind, RequestMetrics, RequestWatch};

pub use requests::RouteLabels;

/// All metrics of one service.
pub struct Metrics {
    registry: Registry,
    requests: RequestMetrics,
    leases: Arc<LeaseMetrics>,
    nodes: NodeMetrics,
    state: State,
    door: ConnectionMetrics,
    /// One scrape at a time: it sets gauges and raises counters to totals that are kept elsewhere.
    scraping: Mutex<()>,
}

/// What is only read when somebody scrapes.
struct State {
    locks_held: IntGauge,
    holds: IntGauge,
    longest_held: Gauge,
    waiters: IntGauge,
    waiters_limit: IntGauge,
    oldest_wait: Gauge,
    listeners: IntGauge,
    listeners_limit: IntGauge,
    cleanups: IntGauge,
    cleanups_skipped: IntCounter,
    under_replicated: IntCounter,
    repaired: IntCounter,
    clock_jumps: Counter,
    audit_records: [IntCounter; 3],
    audit_queue: IntGauge,
    draining: IntGauge,
}

/// What is read when somebody scrapes.
#[derive(Default)]
pub struct Scrape<'a> {
    /// Numbers of the manager.
    pub gauges: Gauges,
    /// All nodes.
    pub nodes: &'a [NodeSummary],
    /// The service is shutting down.
    pub draining: bool,
    /// What became of audit records.
    pub audit: AuditTotals,
}

/// Audit records so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct AuditTotals {
    /// They are written.
    pub written: u64,
    /// There was no room to keep them for the writer.
    pub dropped: u64,
    /// The writing failed.
    pub failed: u64,
    /// They wait for the writer.
    pub queued: usize,
}

impl Metrics {
    /// For these nodes and routes.
    pub fn new(nodes: &[NodeId], routes: &[RouteLabels]) -> Arc<Self> {
        let registry = Registry::new();
        let r = &registry;
        let build = gauges(r, "build_info", "Always 1.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        r.register(Box::new(ProcessCollector::for_self())).expect("the process_ names are not ours");
        Arc::new(Self {
            requests: RequestMetrics::new(r, routes),
            leases: Arc::new(LeaseMetrics::new(r)),
            nodes: NodeMetrics::new(r, nodes),
            state: State::new(r),
            door: ConnectionMetrics::new(r),
            scraping: Mutex::default(),
            registry,
        })
    }

    /// One call to a node. For the observer hook of the nodes: cheap, and silent about a node or a
    /// verb that was not announced. Verbs: [`crate::protocol::OPERATIONS`].
    pub fn node_call(&self, node: &NodeId, verb: &str, took: Duration, answer: Result<(), UnreachableKind>) {
        self.nodes.call(node, verb, took, answer);
    }

    /// Follows one request until it is answered or dropped.
    pub fn watch_request(&self, route: &'static str, method: &'static str) -> RequestWatch {
        RequestWatch::begin(&self.requests, route, method)
    }

    /// Counts a stream as under way until the guard is dropped.
    pub fn watch_stream(&self, kind: RequestKind) -> InFlightGuard {
        self.requests.in_flight(kind)
    }

    /// Follows one acquire until it has an outcome or is dropped. `waits`: it is willing to wait.
    pub fn watch_acquire(&self, waits: bool) -> AcquireWatch {
        AcquireWatch::begin(&self.leases, waits, &self.requests)
    }

    /// Counts a connection until the guard is dropped.
    pub fn connected(&self) -> InFlightGuard {
        self.door.connected()
    }

    /// The most connections that there may be.
    pub fn connections_limit(&self, connections: usize) {
        self.door.limit(connections);
    }

    /// Files were read again; whether what is in them is in force now.
    pub fn reloaded(&self, what: ReloadedFile, is_in_force: bool) {
        self.door.reloaded(what, is_in_force);
    }

    /// Counts an extend.
    pub fn extended<T>(&self, outcome: &Result<T, ExtendError>) {
        self.leases.extended(outcome);
    }

    /// A connection that holds a lease had it renewed, or not: the outcome's word, one of
    /// [`leases::EXTEND_OUTCOMES`].
    pub fn hold_renewed(&self, word: &str) {
        self.leases.count_extend(word);
    }

    /// A connection lost the lease that it held.
    pub fn lost(&self, reason: LostReason) {
        self.leases.lost(reason);
    }

    /// Counts a release.
    pub fn released(&self, outcome: &Result<(), ReleaseError>) {
        self.leases.released(outcome);
    }

    /// Counts a forced end.
    pub fn forced(&self, how: ForceMode, outcome: Result<&Forced, &ForceError>) {
        self.leases.forced(how, outcome);
    }

    /// A lease ended that was held for so long. Cheap: called under a lock.
    pub fn lease_ended(&self, end: LeaseOutcome, held: Duration) {
        self.leases.ended(end, held);
    }

    /// The text exposition format. Costs the same whatever is held or waited for.
    ///
    /// Errors: none of ours; a defect of the encoder is handed on.
    pub fn scrape(&self, now: &Scrape<'_>) -> prometheus::Result<String> {
        let _alone = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.set(&now.gauges, now.draining);
        self.state.set_audit(now.audit);
        self.nodes.set(now.nodes);
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

impl State {
    fn new(r: &Registry) -> Self {
        let skipped = "Clean-ups that were left to the TTL because too many were under way.";
        let missing = "Nodes found without a lease that an extend had just confirmed on a quorum.";
        let help = "Audit records: written, dropped for want of room, or failed to be written.";
        let audit = counters(r, "audit_records_total", help, &["outcome"]);
        Self {
            audit_records: ["written", "dropped", "failed"].map(|outcome| audit.with_label_values(&[outcome])),
            audit_queue: gauge(r, "audit_queue_length", "Audit records that wait to be written."),
            locks_held: gauge(r, "locks_held", "LeaseMetrics granted or extended by this instance that are running."),
            holds: gauge(r, "lock_holds", "Connections that hold a lease."),
            longest_held: quantity(r, "lock_longest_held_seconds", "Age of the oldest lease of locks_held."),
            waiters: gauge(r, "lock_waiters", "Requests that wait in this instance."),
            waiters_limit: gauge(r, "lock_waiters_limit", "The bound of lock_waiters."),
            oldest_wait: quantity(r, "lock_oldest_wait_seconds", "How long the oldest waiter has been waiting."),
            listeners: gauge(r, "event_listeners", "Listeners to GET /events."),
            listeners_limit: gauge(r, "event_listeners_limit", "The bound of event_listeners."),
            cleanups: gauge(r, "cleanups_in_flight", "Clean-ups of failed or abandoned attempts under way."),
            cleanups_skipped: counter(r, "cleanups_skipped_total", skipped),
            under_replicated: counter(r, "leases_under_replicated_total", missing),
            repaired: counter(r, "leases_repaired_total", "LeaseMetrics put back on nodes that had lost them."),
            clock_jumps: sum(r, "clock_jump_seconds_total", "Jumps of this machine's wall clock, either way, summed."),
            draining: gauge(r, "draining", "1 while the instance shuts down."),
        }
    }

    fn set_audit(&self, now: AuditTotals) {
        let totals = [now.written, now.dropped, now.failed];
        self.audit_records.iter().zip(totals).for_each(|(counter, total)| raise(counter, total));
        self.audit_queue.set(i64::try_from(now.queued).unwrap_or(i64::MAX));
    }

    fn set(&self, now: &Gauges, draining: bool) {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.locks_held.set(count(now.leases_held));
        self.holds.set(count(now.holding_connections));
        self.longest_held.set(now.longest_held.as_secs_f64());
        self.waiters.set(count(now.waiters));
        self.waiters_limit.set(count(now.waiters_limit));
        self.oldest_wait.set(now.longest_wait.as_secs_f64());
        self.listeners.set(count(now.listeners));
        self.listeners_limit.set(count(now.listeners_limit));
        self.cleanups.set(count(now.cleanups));
        raise(&self.cleanups_skipped, now.skipped_cleanups);
        raise(&self.under_replicated, now.under_replicated);
        raise(&self.repaired, now.repaired);
        self.clock_jumps.inc_by((now.clock_jumps.as_secs_f64() - self.clock_jumps.get()).max(0.0));
        self.draining.set(i64::from(draining));
    }
}

#[cfg(test)]
mod tests;
