//! Metrics of nodes: calls by operation, and what the node monitor last reported.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{Gauge, Histogram, HistogramVec, IntCounter, IntGauge, IntGaugeVec, Registry};

use super::register::{counters, gauge, gauges, histograms, quantities, raise};
use crate::manager::types::{NodeSummary, QuarantineCounts};
use crate::protocol::{OPERATIONS, UnreachableKind};
use crate::redlock::quorum::quorum_of;
use crate::types::NodeId;

/// Seconds: powers of four up to the usual times, the threshold of the alert and the default node timeout. Few, since each
/// node has them for each operation.
const BUCKETS: [f64; 5] = [0.000_8, 0.003_2, 0.012_5, 0.025, 0.05];
/// The version label of a node that has not answered yet.
const UNKNOWN: &str = "unknown";

/// The handles of one node.
struct NodeSeries {
    /// In the order of [`OPERATIONS`]: from the first call on, so that a scrape has what is used.
    durations: [OnceLock<Histogram>; OPERATIONS.len()],
    errors: HashMap<UnreachableKind, IntCounter>,
    up: IntGauge,
    votes: IntGauge,
    votes_in: Gauge,
    latency: Gauge,
    clock_offset: Gauge,
    restarts: IntCounter,
    quarantines: Vec<IntCounter>,
    two_servers: IntGauge,
    findings: IntGauge,
}

/// The handles of all nodes.
pub(super) struct NodeMetrics {
    /// So few that each call searches the list.
    series: Vec<(NodeId, NodeSeries)>,
    durations: HistogramVec,
    info: IntGaugeVec,
    configured: IntGauge,
    quorum_available: IntGauge,
    quorum_margin: IntGauge,
}

impl NodeMetrics {
    /// Registers the series of these nodes.
    pub(super) fn new(r: &Registry, nodes: &[NodeId]) -> Self {
        let help = "Answered calls to a node by operation.";
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
        let help = "Problems of the node's settings; GET /nodes explains them.";
        let findings = gauges(r, "node_findings", help, &["node"]);
        let info = gauges(r, "node_info", "Always 1.", &["node", "version"]);
        // What every instance sends to every node.
        for (node, op) in nodes.iter().flat_map(|node| ["acquire", "release", "probe"].map(|op| (node, op))) {
            durations.with_label_values(&[node.as_str(), op]);
        }
        let series = |node: &str| NodeSeries {
            durations: Default::default(),
            errors: UnreachableKind::ALL.iter().map(|k| (*k, errors.with_label_values(&[node, k.as_str()]))).collect(),
            up: up.with_label_values(&[node]),
            votes: votes.with_label_values(&[node]),
            votes_in: votes_in.with_label_values(&[node]),
            latency: latency.with_label_values(&[node]),
            clock_offset: clock_offset.with_label_values(&[node]),
            restarts: restarts.with_label_values(&[node]),
            quarantines: QuarantineCounts::REASONS.map(|why| quarantines.with_label_values(&[node, why])).into(),
            two_servers: two_servers.with_label_values(&[node]),
            findings: findings.with_label_values(&[node]),
        };
        let configured = gauge(r, "nodes", "Nodes configured.");
        configured.set(count(nodes.len()));
        for node in nodes {
            info.with_label_values(&[node.as_str(), UNKNOWN]).set(1);
        }
        Self {
            series: nodes.iter().map(|node| (node.clone(), series(node.as_str()))).collect(),
            durations,
            info,
            configured,
            quorum_available: gauge(r, "quorum_available", "1 while a quorum of nodes votes."),
            quorum_margin: gauge(r, "quorum_margin", "Voting nodes minus the quorum; negative: no quorum."),
        }
    }

    /// Counts a call. An unknown node or operation is ignored.
    pub(super) fn call(&self, node: &NodeId, operation: &str, took: Duration, result: Result<(), UnreachableKind>) {
        let Some(series) = self.of(node) else { return };
        match result {
            // Once or twice a second, and no caller waits for it.
            Ok(()) if matches!(operation, "kept" | "tickets") => {}
            Ok(()) => {
                let Some(index) = OPERATIONS.iter().position(|known| *known == operation) else { return };
                let new = || self.durations.with_label_values(&[node.as_str(), operation]);
                series.durations[index].get_or_init(new).observe(took.as_secs_f64());
            }
            // How long a call took that failed is no latency: a node that refuses connections would be the fastest.
            Err(kind) => series.errors.get(&kind).into_iter().for_each(IntCounter::inc),
        }
    }

    fn of(&self, node: &NodeId) -> Option<&NodeSeries> {
        self.series.iter().find(|(id, _)| id == node).map(|(_, series)| series)
    }

    /// Sets the gauges from the reports of all nodes. One caller at a time.
    pub(super) fn set(&self, reports: &[NodeSummary]) {
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

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
