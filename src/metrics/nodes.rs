//! Metrics of nodes: calls by operation, and the node monitor's last report.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::RwLock;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

use super::register::{counters, gauge, gauges, histograms, quantities, raise};
use crate::manager::latency::entry_of;
use crate::manager::types::{NodeSummary, QuarantineCounts};
use crate::protocol::{OPERATIONS, UnreachableKind};
use crate::redlock::quorum::quorum_of;
use crate::types::NodeId;

/// Seconds: from a node on the same machine to twice the default node timeout; the alert's threshold is one of the bounds.
const BUCKETS: [f64; 10] = [0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.004, 0.01, 0.025, 0.05, 0.1];
/// Operations whose durations are counted together: each node has all buckets for each of them.
const GROUPS: [&str; 4] = ["acquire", "update", "release", "other"];
/// The version label of a node that has not answered yet.
const UNKNOWN: &str = "unknown";

/// The handles of one node.
struct NodeSeries {
    /// In the order of [`OPERATIONS`]; created by the first call, so that a scrape has only used ones.
    calls: [OnceLock<IntCounter>; OPERATIONS.len()],
    /// In the order of [`GROUPS`]; created likewise.
    durations: [OnceLock<Histogram>; GROUPS.len()],
    errors: HashMap<UnreachableKind, IntCounter>,
    up: IntGauge,
    votes: IntGauge,
    votes_in: Gauge,
    latency: Gauge,
    clock_offset: Gauge,
    restarts: IntCounter,
    quarantines: Vec<IntCounter>,
    two_servers: IntGauge,
    durable: IntGauge,
    findings: IntGauge,
}

/// The metrics of nodes, by their labels.
struct NodeVectors {
    calls: IntCounterVec,
    durations: HistogramVec,
    errors: IntCounterVec,
    up: IntGaugeVec,
    votes: IntGaugeVec,
    votes_in: GaugeVec,
    latency: GaugeVec,
    clock_offset: GaugeVec,
    restarts: IntCounterVec,
    quarantines: IntCounterVec,
    two_servers: IntGaugeVec,
    durable: IntGaugeVec,
    findings: IntGaugeVec,
}

/// The handles of all nodes.
pub(super) struct NodeMetrics {
    /// So few entries that each call searches the list.
    series: RwLock<Vec<(NodeId, Arc<NodeSeries>)>>,
    vectors: NodeVectors,
    /// The result of [`group_of`] for each of [`OPERATIONS`].
    groups: [usize; OPERATIONS.len()],
    info: IntGaugeVec,
    configured: IntGauge,
    quorum_available: IntGauge,
    quorum_margin: IntGauge,
}

impl NodeVectors {
    fn new(r: &Registry) -> Self {
        let calls = counters(r, "node_requests_total", "Answered calls to a node by operation.", &["node", "op"]);
        let help = "Answered calls to a node by group of operations.";
        let durations = histograms(r, "node_request_duration_seconds", help, &BUCKETS, &["node", "op"]);
        let errors =
            counters(r, "node_errors_total", "Calls to a node without a usable answer, by kind.", &["node", "kind"]);
        let up = gauges(r, "node_up", "1 while the node answers.", &["node"]);
        let votes = gauges(r, "node_votes", "1 while the node votes.", &["node"]);
        let help = "Time until a node in quarantine votes again; 0 if not known.";
        let votes_in = quantities(r, "node_votes_in_seconds", help, &["node"]);
        let latency = quantities(r, "node_probe_seconds", "Round trip of the last probe of the node.", &["node"]);
        let help = "The node's clock minus the cluster's time.";
        let clock_offset = quantities(r, "node_clock_offset_seconds", help, &["node"]);
        let help = "Restarts of the node that were detected.";
        let restarts = counters(r, "node_restarts_total", help, &["node"]);
        let help = "Quarantines of the node that began, by reason.";
        let quarantines = counters(r, "node_quarantines_total", help, &["node", "reason"]);
        let help = "1 while the node's name leads to two servers.";
        let two_servers = gauges(r, "node_two_servers", help, &["node"]);
        let help = "1 while the node syncs each write before it replies, with durable_nodes.";
        let durable = gauges(r, "node_durable", help, &["node"]);
        let help = "Problems of the node's settings; GET /nodes explains them.";
        let findings = gauges(r, "node_findings", help, &["node"]);
        Self {
            calls,
            durations,
            errors,
            up,
            votes,
            votes_in,
            latency,
            clock_offset,
            restarts,
            quarantines,
            two_servers,
            durable,
            findings,
        }
    }

    fn series(&self, node: &str) -> NodeSeries {
        // The operations that every instance sends to every node.
        for op in ["acquire", "release", "probe"] {
            self.calls.with_label_values(&[node, op]);
            self.durations.with_label_values(&[node, GROUPS[group_of(op)]]);
        }
        let errors = UnreachableKind::ALL.iter().map(|k| (*k, self.errors.with_label_values(&[node, k.as_str()])));
        NodeSeries {
            calls: Default::default(),
            durations: Default::default(),
            errors: errors.collect(),
            up: self.up.with_label_values(&[node]),
            votes: self.votes.with_label_values(&[node]),
            votes_in: self.votes_in.with_label_values(&[node]),
            latency: self.latency.with_label_values(&[node]),
            clock_offset: self.clock_offset.with_label_values(&[node]),
            restarts: self.restarts.with_label_values(&[node]),
            quarantines: QuarantineCounts::REASONS.map(|why| self.quarantines.with_label_values(&[node, why])).into(),
            two_servers: self.two_servers.with_label_values(&[node]),
            durable: self.durable.with_label_values(&[node]),
            findings: self.findings.with_label_values(&[node]),
        }
    }

    /// Removes the series of a node that left the list: an alert on them would never end.
    fn forget(&self, node: &str) {
        // An unused series does not exist.
        OPERATIONS.iter().for_each(|op| drop(self.calls.remove_label_values(&[node, op])));
        GROUPS.iter().for_each(|group| drop(self.durations.remove_label_values(&[node, group])));
        UnreachableKind::ALL.iter().for_each(|kind| drop(self.errors.remove_label_values(&[node, kind.as_str()])));
        QuarantineCounts::REASONS.iter().for_each(|why| drop(self.quarantines.remove_label_values(&[node, why])));
        for gauges in [&self.up, &self.votes, &self.two_servers, &self.durable, &self.findings] {
            drop(gauges.remove_label_values(&[node]));
        }
        for quantities in [&self.votes_in, &self.latency, &self.clock_offset] {
            drop(quantities.remove_label_values(&[node]));
        }
        drop(self.restarts.remove_label_values(&[node]));
    }
}

impl NodeMetrics {
    /// Registers the series of these nodes.
    pub(super) fn new(r: &Registry, nodes: &[NodeId]) -> Self {
        let vectors = NodeVectors::new(r);
        let info = gauges(r, "node_info", "Always 1.", &["node", "version"]);
        let configured = gauge(r, "nodes", "Nodes of the list, whether or not they answer.");
        configured.set(count(nodes.len()));
        for node in nodes {
            info.with_label_values(&[node.as_str(), UNKNOWN]).set(1);
        }
        let series = nodes.iter().map(|node| (node.clone(), Arc::new(vectors.series(node.as_str()))));
        Self {
            series: RwLock::new(series.collect()),
            vectors,
            groups: OPERATIONS.map(group_of),
            info,
            configured,
            quorum_available: gauge(r, "quorum_available", "1 while a quorum of nodes votes."),
            quorum_margin: gauge(r, "quorum_margin", "Voting nodes minus the quorum; negative: no quorum."),
        }
    }

    /// Follows the list of nodes. Labels come only from this list, which has at most 15 names.
    fn follow(&self, reports: &[NodeSummary]) {
        let is_listed = |node: &NodeId| reports.iter().any(|report| report.node == *node);
        let mut series = self.series.write();
        series.extract_if(.., |(node, _)| !is_listed(node)).for_each(|(node, _)| self.vectors.forget(node.as_str()));
        for NodeSummary { node, .. } in reports {
            if !series.iter().any(|(known, _)| known == node) {
                series.push((node.clone(), Arc::new(self.vectors.series(node.as_str()))));
            }
        }
        self.configured.set(count(reports.len()));
    }

    /// Counts calls that ended in the same way, each with its duration. An unknown node or operation is ignored.
    pub(super) fn calls(&self, node: &NodeId, operation: &str, took: &[Duration], result: Result<(), UnreachableKind>) {
        let (all, calls) = (self.series.read(), took.len() as u64);
        let Some(series) = entry_of(&all, node) else { return };
        match result {
            // Such calls occur once or twice a second, and no caller waits for them.
            Ok(()) if matches!(operation, "kept" | "tickets") => {}
            Ok(()) => {
                // Usually the very text of the list.
                let is_same = |known: &&str| std::ptr::eq(*known, operation);
                let index = OPERATIONS.iter().position(is_same);
                let Some(index) = index.or_else(|| OPERATIONS.iter().position(|known| *known == operation)) else {
                    return;
                };
                let new = || self.vectors.calls.with_label_values(&[node.as_str(), operation]);
                series.calls[index].get_or_init(new).inc_by(calls);
                let group = self.groups[index];
                let new = || self.vectors.durations.with_label_values(&[node.as_str(), GROUPS[group]]);
                let durations = series.durations[group].get_or_init(new);
                took.iter().for_each(|took| durations.observe(took.as_secs_f64()));
            }
            // The duration of a failed call is no latency: a node that refuses connections would be the fastest.
            Err(kind) => series.errors.get(&kind).into_iter().for_each(|errors| errors.inc_by(calls)),
        }
    }

    fn of(&self, node: &NodeId) -> Option<Arc<NodeSeries>> {
        entry_of(&self.series.read(), node).map(Arc::clone)
    }

    /// Sets the gauges from the reports of all nodes. One caller at a time.
    pub(super) fn set(&self, reports: &[NodeSummary]) {
        if !reports.is_empty() {
            self.follow(reports);
        }
        for report in reports {
            let Some(series) = self.of(&report.node) else { continue };
            series.up.set(i64::from(report.state != "down"));
            series.votes.set(i64::from(report.votes));
            series.votes_in.set(report.votes_in.filter(|_| !report.votes).unwrap_or_default().as_secs_f64());
            series.latency.set(report.latency.unwrap_or_default().as_secs_f64());
            let offset_ms = report.clock_offset_ms.unwrap_or_default();
            let offset = Duration::from_millis(offset_ms.unsigned_abs()).as_secs_f64();
            series.clock_offset.set(if offset_ms < 0 { -offset } else { offset });
            raise(&series.restarts, report.restarts);
            for (counter, (_, total)) in series.quarantines.iter().zip(report.quarantines.by_reason()) {
                raise(counter, total);
            }
            series.two_servers.set(i64::from(report.has_two_servers));
            series.durable.set(i64::from(report.is_durable));
            series.findings.set(count(report.findings.len()));
        }
        self.info.reset();
        for report in reports {
            let version = report.version.as_deref().unwrap_or(UNKNOWN);
            self.info.with_label_values(&[report.node.as_str(), version]).set(1);
        }
        let configured = usize::try_from(self.configured.get()).unwrap_or(usize::MAX);
        let margin = count(reports.iter().filter(|n| n.votes).count()) - count(quorum_of(configured));
        self.quorum_margin.set(margin);
        self.quorum_available.set(i64::from(margin >= 0));
    }
}

/// The index of an operation's group in [`GROUPS`].
fn group_of(operation: &str) -> usize {
    match operation {
        "acquire" | "acquire_set" | "acquire_shared" | "intent" => 0,
        "update" | "restore" | "downgrade" => 1,
        "release" | "cancel" | "revoke" | "delete_foreign" => 2,
        _ => 3,
    }
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
