//! The metrics of the service, in their own registry, so that two services in one process do not share numbers. No label contains
//! a resource, an owner or a token: the number of series is bounded by the configuration. Series of codes and histograms appear
//! with their first event, all others exist from the start. `docs/metrics.md` describes them; a test compares the two.

pub(crate) mod connections;
pub(crate) mod leases;
mod nodes;
mod register;
pub(crate) mod requests;
mod tickets;
pub(crate) mod webhooks;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::process_collector::ProcessCollector;
use prometheus::{Counter, Gauge, IntCounter, IntGauge, Registry, TextEncoder};

use crate::manager::Gauges;
use crate::manager::kept_leases::KeptLeaseEvent;
use crate::manager::tickets::TicketEvent;
use crate::manager::types::{
    ExtendError, ForceError, ForceMode, Forced, LeaseOutcome, LostReason, NodeSummary, ReleaseError,
};
use crate::protocol::UnreachableKind;
use crate::types::{NodeId, WantedMode};
use connections::{ConnectionMetrics, IssuerCounts, ReloadedFile};
use leases::{AcquireWatch, LeaseMetrics};
use nodes::NodeMetrics;
use register::{counter, counters, gauge, gauges, quantity, raise, sum};
use requests::{InFlightGuard, RequestKind, RequestMetrics, RequestWatch};
use webhooks::{WebhookMetrics, WebhookTotals};

pub use requests::RouteLabels;

/// All metrics of one service.
pub struct Metrics {
    registry: Registry,
    requests: RequestMetrics,
    leases: Arc<LeaseMetrics>,
    tickets: tickets::TicketMetrics,
    nodes: NodeMetrics,
    instance: InstanceMetrics,
    connections: ConnectionMetrics,
    /// Present if there is a file of targets and hooks.
    webhooks: OnceLock<WebhookMetrics>,
    /// One scrape at a time: it sets gauges and raises counters to totals that are kept elsewhere.
    scraping: Mutex<()>,
}

/// Metrics that are set only by a scrape.
struct InstanceMetrics {
    node_timeout: Gauge,
    cluster_locks_held: Gauge,
    cluster_longest_held: Gauge,
    cluster_longest_unkept: Gauge,
    cluster_locks_age: Gauge,
    kept: IntGauge,
    holds: IntGauge,
    waiters: IntGauge,
    waiters_limit: IntGauge,
    oldest_wait: Gauge,
    oldest_ticket: Gauge,
    deadlocks: [IntCounter; 2],
    cluster_waiters: IntGauge,
    cluster_oldest_wait: Gauge,
    cluster_waiters_known: IntGauge,
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

/// The values that a scrape reads.
#[derive(Default)]
pub struct Scrape<'a> {
    /// Gauges of the manager.
    pub gauges: Gauges,
    pub nodes: &'a [NodeSummary],
    /// Whether the service is shutting down.
    pub draining: bool,
    /// Totals of the audit log.
    pub audit: AuditTotals,
    /// The first principal to have no valid key left, and the time: milliseconds since 1970.
    pub last_key: Option<(String, u64)>,
    /// Totals of call-backs and hooks.
    pub webhooks: WebhookTotals,
}

/// Number of audit records by outcome.
#[derive(Debug, Clone, Copy, Default)]
pub struct AuditTotals {
    /// Written to the log.
    pub written: u64,
    /// Not queued, since the queue was full.
    pub dropped: u64,
    /// Lost by a failed write.
    pub failed: u64,
    /// Waiting to be written.
    pub queued: usize,
}

impl Metrics {
    /// Registers all series for these nodes and routes.
    pub fn new(nodes: &[NodeId], routes: &[RouteLabels]) -> Arc<Self> {
        let registry = Registry::new();
        let r = &registry;
        let build = gauges(r, "build_info", "Always 1.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        r.register(Box::new(ProcessCollector::for_self())).expect("no other metric begins with process_");
        Arc::new(Self {
            requests: RequestMetrics::new(r, routes),
            leases: Arc::new(LeaseMetrics::new(r)),
            tickets: tickets::TicketMetrics::new(r),
            nodes: NodeMetrics::new(r, nodes),
            instance: InstanceMetrics::new(r),
            connections: ConnectionMetrics::new(r),
            webhooks: OnceLock::new(),
            scraping: Mutex::default(),
            registry,
        })
    }

    /// Counts calls to a node that ended in the same way. `operation`: one of [`crate::protocol::OPERATIONS`]. An unknown
    /// node or operation is ignored.
    pub fn node_calls(&self, node: &NodeId, operation: &str, took: &[Duration], result: Result<(), UnreachableKind>) {
        self.nodes.calls(node, operation, took, result);
    }

    /// Measures a request until it is answered or dropped.
    pub fn watch_request(&self, route: &'static str, method: &'static str) -> RequestWatch {
        RequestWatch::begin(&self.requests, route, method)
    }

    /// Counts a stream as in flight until the guard is dropped.
    pub fn watch_stream(&self, kind: RequestKind) -> InFlightGuard {
        self.requests.in_flight(kind)
    }

    /// Measures an acquire until it has an outcome or is dropped. `may_wait`: it has a wait deadline.
    pub fn watch_acquire(&self, may_wait: bool) -> AcquireWatch {
        self.watch_acquire_in(WantedMode::Exclusive, may_wait)
    }

    /// As [`Self::watch_acquire`], for a lease of this mode.
    pub fn watch_acquire_in(&self, mode: WantedMode, may_wait: bool) -> AcquireWatch {
        AcquireWatch::begin(&self.leases, mode, may_wait, &self.requests)
    }

    /// Counts a connection until the guard is dropped.
    pub fn connected(&self) -> InFlightGuard {
        self.connections.connected()
    }

    /// Sets the maximum number of connections.
    pub fn connections_limit(&self, connections: usize) {
        self.connections.limit(connections);
    }

    /// Counts a reload of a file; `is_in_force`: its new content is valid and in use.
    pub fn reloaded(&self, file: ReloadedFile, is_in_force: bool) {
        self.connections.reloaded(file, is_in_force);
    }

    /// Sets when the certificate in force expires. Units: seconds since 1970.
    pub(crate) fn certificate_expires(&self, at_s: i64) {
        self.connections.certificate_expires(at_s);
    }

    /// Sets the state of the issuers' keys.
    pub(crate) fn issuers(&self, now: IssuerCounts) {
        self.connections.issuers(now);
    }

    /// Adds the series of call-backs and hooks, which mean nothing without targets.
    pub fn add_webhooks(&self) {
        self.webhooks.get_or_init(|| WebhookMetrics::new(&self.registry));
    }

    /// Counts a try to send a message, or a message that was given up (without a duration).
    pub fn webhook_tried(&self, kind: &str, outcome: &str, took: Option<Duration>) {
        if let Some(webhooks) = self.webhooks.get() {
            webhooks.tried(kind, outcome, took);
        }
    }

    /// Counts an extend.
    pub fn extended<T>(&self, outcome: &Result<T, ExtendError>) {
        self.leases.extended(outcome);
    }

    /// Counts the renewal of a lease that a connection holds. `outcome`: one of [`leases::EXTEND_OUTCOMES`].
    pub fn hold_renewed(&self, outcome: &str) {
        self.leases.count_extend(outcome);
    }

    /// Counts a lease that was lost by the connection that held it.
    pub fn lost(&self, reason: LostReason) {
        self.leases.lost(reason);
    }

    /// Counts a release.
    pub fn released<T>(&self, outcome: &Result<T, ReleaseError>) {
        self.leases.released(outcome);
    }

    /// Counts a forced end.
    pub fn forced(&self, mode: ForceMode, outcome: Result<&Forced, &ForceError>) {
        self.leases.forced(mode, outcome);
    }

    /// Counts the end of a lease that was held for `held`. Called under a lock, so it must be cheap.
    pub fn lease_ended(&self, end: LeaseOutcome, held: Duration) {
        self.leases.ended(end, held);
    }

    /// Counts an event of a kept lease.
    pub fn kept(&self, event: KeptLeaseEvent<'_>) {
        self.leases.kept(event);
    }

    /// Counts an event of a ticket.
    pub fn ticket(&self, event: TicketEvent) {
        self.tickets.count(event);
    }

    /// All metrics in Prometheus' text format. The cost does not depend on the number of leases or waiters.
    ///
    /// Errors: those of the encoder.
    pub fn scrape(&self, now: &Scrape<'_>) -> prometheus::Result<String> {
        let _one_at_a_time = self.scraping.lock();
        self.instance.set(&now.gauges, now.draining);
        self.tickets.set(now.gauges.tickets);
        self.instance.set_audit(now.audit);
        self.nodes.set(now.nodes);
        self.connections.last_key_expires(now.last_key.as_ref());
        if let Some(webhooks) = self.webhooks.get() {
            webhooks.set(now.webhooks);
        }
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

impl InstanceMetrics {
    fn new(r: &Registry) -> Self {
        let skipped = "Clean-ups left to the TTL: too many at a time.";
        let missing = "Nodes without a lease that an extend had just confirmed.";
        let help = "Audit records by outcome.";
        let audit = counters(r, "audit_records_total", help, &["outcome"]);
        let help = "Deadlocks that a quorum confirmed.";
        let deadlocks = counters(r, "lock_deadlocks_total", help, &["outcome"]);
        Self {
            deadlocks: ["reported", "refused"].map(|outcome| deadlocks.with_label_values(&[outcome])),
            audit_records: ["written", "dropped", "failed"].map(|outcome| audit.with_label_values(&[outcome])),
            audit_queue: gauge(r, "audit_queue_length", "Audit records waiting to be written."),
            cluster_locks_held: quantity(
                r,
                "cluster_locks_held",
                "Leases in the cluster, as last read; NaN while too few nodes answer.",
            ),
            cluster_longest_held: quantity(
                r,
                "cluster_lock_longest_held_seconds",
                "Age of the oldest lease of cluster_locks_held.",
            ),
            cluster_longest_unkept: quantity(
                r,
                "cluster_lock_longest_unkept_seconds",
                "The same of the leases that the service does not keep.",
            ),
            cluster_locks_age: quantity(
                r,
                "cluster_locks_age_seconds",
                "Age of cluster_locks_held; NaN before the first reading.",
            ),
            kept: gauge(r, "lock_kept", "Leases that this instance keeps."),
            holds: gauge(r, "lock_holds", "Connections that hold a lease."),
            node_timeout: quantity(r, "node_timeout_seconds", "How long rounds wait for a node's answer."),
            waiters: gauge(r, "lock_waiters", "Requests waiting for a lock at this instance."),
            waiters_limit: gauge(r, "lock_waiters_limit", "Maximum of lock_waiters."),
            oldest_wait: quantity(r, "lock_oldest_wait_seconds", "Time that the oldest request has been waiting."),
            oldest_ticket: quantity(
                r,
                "ticket_oldest_wait_seconds",
                "Time that the oldest ticket has been waiting here.",
            ),
            cluster_waiters: gauge(
                r,
                "cluster_lock_waiters",
                "Requests waiting for a lock at all instances, as far as this one knows.",
            ),
            cluster_oldest_wait: quantity(
                r,
                "cluster_lock_oldest_wait_seconds",
                "Time that the oldest of cluster_lock_waiters has been waiting.",
            ),
            cluster_waiters_known: gauge(
                r,
                "cluster_lock_waiters_known",
                "1 while the waiters of all other instances are known.",
            ),
            listeners: gauge(r, "event_listeners", "Listeners of GET /events."),
            listeners_limit: gauge(r, "event_listeners_limit", "Maximum of event_listeners."),
            cleanups: gauge(r, "cleanups_in_flight", "Clean-ups of failed or abandoned attempts in progress."),
            cleanups_skipped: counter(r, "cleanups_skipped_total", skipped),
            under_replicated: counter(r, "leases_under_replicated_total", missing),
            repaired: counter(r, "leases_repaired_total", "Leases restored on nodes that had lost them."),
            clock_jumps: sum(r, "clock_jump_seconds_total", "Jumps of this machine's wall clock, both ways."),
            draining: gauge(r, "draining", "1 while the instance shuts down."),
        }
    }

    fn set_audit(&self, now: AuditTotals) {
        let totals = [now.written, now.dropped, now.failed];
        self.audit_records.iter().zip(totals).for_each(|(counter, total)| raise(counter, total));
        self.audit_queue.set(i64::try_from(now.queued).unwrap_or(i64::MAX));
    }

    /// Unknown values are NaN: a zero would mean that nobody holds a lock.
    fn set_cluster_locks(&self, gauges: &Gauges) {
        let leases = gauges.cluster_leases.as_ref();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52 leases")]
        let held = leases.and_then(|leases| leases.held).map_or(f64::NAN, |held| held as f64);
        let longest = leases.filter(|leases| leases.held.is_some()).map(|leases| leases.longest_held);
        self.cluster_locks_held.set(held);
        self.cluster_longest_held.set(longest.map_or(f64::NAN, |longest| longest.as_secs_f64()));
        let unkept = leases.filter(|leases| leases.held.is_some()).map(|leases| leases.longest_unkept);
        self.cluster_longest_unkept.set(unkept.map_or(f64::NAN, |longest| longest.as_secs_f64()));
        self.cluster_locks_age.set(leases.map_or(f64::NAN, |leases| leases.age.as_secs_f64()));
    }

    fn set(&self, now: &Gauges, draining: bool) {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.set_cluster_locks(now);
        self.kept.set(count(now.kept));
        self.holds.set(count(now.holding_connections));
        self.waiters.set(count(now.waiters));
        self.waiters_limit.set(count(now.waiters_limit));
        self.node_timeout.set(now.node_timeout.as_secs_f64());
        self.oldest_wait.set(now.longest_wait.as_secs_f64());
        self.oldest_ticket.set(now.longest_ticket_wait.as_secs_f64());
        let deadlocks = [now.deadlocks_reported, now.deadlocks_refused];
        self.deadlocks.iter().zip(deadlocks).for_each(|(counter, total)| raise(counter, total));
        self.cluster_waiters.set(count(now.cluster_waiters));
        self.cluster_oldest_wait.set(now.cluster_longest_wait.as_secs_f64());
        self.cluster_waiters_known.set(i64::from(now.cluster_waiters_known));
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
