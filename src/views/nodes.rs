//! The nodes: who votes, who does not and why, for how long, how fast each was lately, what failed,
//! and what to do about it. Knows no request.

use std::time::Duration;

use askama::Template;

use super::badges::{self, Badge, Severity, badge};
use super::charts::{self, HeatCell, Sparkline};
use super::format;
use super::layout::Layout;
use crate::manager::latency::LatencyWindow;
use crate::manager::overview::ClusterStatus;
use crate::manager::types::{NodeFinding, NodeSummary};
use crate::protocol::UnreachableKind;
use crate::types::NodeId;

/// One node.
#[derive(Debug, Clone)]
pub struct NodeCard {
    /// Its name.
    pub node: String,
    /// Its state.
    pub state: Badge,
    /// Since how long.
    pub since: String,
    /// The same. Milliseconds.
    pub since_ms: u64,
    /// Why it has no vote; empty where it has.
    pub why: String,
    /// Until it votes again, in words; empty where that is not known.
    pub votes_in: String,
    /// The same. Milliseconds.
    pub votes_in_ms: u64,
    /// Of the last probe.
    pub latency: String,
    /// Of the last quarter of an hour.
    pub median: String,
    /// The same.
    pub slow: String,
    /// Answers in it.
    pub answers: String,
    /// Failures in it.
    pub failures: u64,
    /// By kind, only those that there are.
    pub kinds: Vec<(&'static str, String)>,
    /// Its clock minus ours, in words.
    pub offset: String,
    /// The server's version.
    pub version: String,
    /// The process that answers, shortened.
    pub run: String,
    /// How often another one answered than before.
    pub restarts: u64,
    /// What else an operator should know.
    pub findings: Vec<FindingRow>,
    /// Latency over time.
    pub spark: Sparkline,
    /// The same as a strip.
    pub heat: Vec<HeatCell>,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingRow {
    /// Its word.
    pub badge: Badge,
    /// What it is and what to do.
    pub detail: String,
}

/// Letters of a run id that tell runs apart.
const RUN_SHOWN: usize = 8;

fn finding(view: &NodeFinding) -> FindingRow {
    let severity = if view.bars { Severity::Bad } else { Severity::Warn };
    FindingRow { badge: badge(&view.code, severity), detail: format::visible(&view.detail) }
}

fn or_dash(took: Option<Duration>) -> String {
    took.map_or_else(|| "-".to_owned(), format::latency)
}

fn node(report: &NodeSummary, window: &LatencyWindow, node_timeout: Duration) -> NodeCard {
    let kinds = UnreachableKind::ALL.iter().zip(window.all.failed).filter(|(_, n)| *n > 0);
    NodeCard {
        node: report.node.to_string(),
        state: badges::node_badge(report),
        since: format::clock(report.since),
        since_ms: format::ms(report.since),
        why: report.why.as_deref().map(format::visible).unwrap_or_default(),
        votes_in: report.votes_in.map(format::clock).unwrap_or_default(),
        votes_in_ms: report.votes_in.map_or(0, format::ms),
        latency: or_dash(report.latency.filter(|_| report.state != "down")),
        median: or_dash(window.all.took.quantile(0.5)),
        slow: or_dash(window.all.took.quantile(0.99)),
        answers: format::number(window.all.took.total()),
        failures: window.all.failures(),
        kinds: kinds.map(|(kind, n)| (kind.as_str(), format::number(n))).collect(),
        offset: report.clock_offset_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:+} ms")),
        version: report.version.as_deref().map(format::visible).unwrap_or_else(|| "-".to_owned()),
        run: report.run_id.as_deref().map(|run| run.chars().take(RUN_SHOWN).collect()).unwrap_or_default(),
        restarts: report.restarts,
        findings: report.findings.iter().map(finding).collect(),
        spark: charts::sparkline(window, charts::SPARK_WIDTH, charts::SPARK_HEIGHT),
        heat: charts::heat(window, node_timeout),
    }
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "nodes.html")]
pub struct NodesPage {
    layout: Layout,
    nodes: Vec<NodeCard>,
    node_timeout: String,
}

impl NodesPage {
    /// The page; `window` has each node's last quarter of an hour.
    pub fn new(
        layout: Layout,
        vote: &ClusterStatus,
        window: impl Fn(&NodeId) -> LatencyWindow,
        node_timeout: Duration,
    ) -> Self {
        let nodes = vote.nodes.iter().map(|report| node(report, &window(&report.node), node_timeout)).collect();
        Self { layout, nodes, node_timeout: format::time(node_timeout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::latency::LatencySeries;
    use crate::redlock::clock::BootTime;

    fn report(state: &str, votes: bool) -> NodeSummary {
        NodeSummary {
            node: NodeId::parse("n1").expect("valid"),
            state: state.into(),
            votes,
            since: Duration::from_secs(75),
            votes_in: (state == "quarantined").then(|| Duration::from_secs(130)),
            why: (!votes).then(|| "in quarantine: its server was restarted".into()),
            latency: Some(Duration::from_micros(412)),
            clock_offset_ms: Some(-3),
            run_id: Some("0123456789abcdef".into()),
            version: Some("7.0.15".into()),
            restarts: 2,
            findings: vec![NodeFinding { code: "maxmemory-policy".into(), detail: "<b>set</b> it".into(), bars: true }],
        }
    }

    #[test]
    fn a_node_says_why_it_has_no_vote_and_what_to_do() {
        let (series, now) = (LatencySeries::default(), BootTime::default());
        series.record_failure(now, UnreachableKind::Timeout);
        let view = node(&report("quarantined", false), &series.window(now), Duration::from_millis(50));
        assert_eq!((view.state.text.as_str(), view.votes_in.as_str()), ("in quarantine", "2 m 10 s"));
        assert_eq!((view.kinds.as_slice(), view.failures), (&[("timeout", "1".to_owned())][..], 1));
        assert_eq!((view.latency.as_str(), view.offset.as_str(), view.run.as_str()), ("412 µs", "-3 ms", "01234567"));
        assert_eq!(view.findings[0].badge.severity, Severity::Bad);
    }

    #[test]
    fn a_node_that_is_down_has_no_latency_now() {
        let view = node(&report("down", false), &LatencyWindow::default(), Duration::from_millis(50));
        assert_eq!((view.latency.as_str(), view.median.as_str()), ("-", "-"));
    }
}
