//! The page of the nodes: which nodes vote, why others do not and for how long, latency, failures and findings.

use std::cmp::Reverse;
use std::time::Duration;

use askama::Template;

use super::badges::{self, Badge, Severity, badge};
use super::charts::{self, HeatCell, Sparkline};
use super::format;
use super::layout::Layout;
use crate::duration::format_duration;
use crate::manager::latency::LatencyWindow;
use crate::manager::overview::ClusterStatus;
use crate::manager::types::{NodeFinding, NodeSummary};
use crate::protocol::{Terms, UnreachableKind};
use crate::types::NodeId;

#[derive(Debug, Clone)]
pub(crate) struct NodeCard {
    /// Name of the node.
    pub node: String,
    /// State of the node.
    pub state: Badge,
    /// Time in this state.
    pub since: String,
    /// `since` in milliseconds.
    pub since_ms: u64,
    /// Begin of this state, in UTC: `10:46:02`.
    pub since_clock: String,
    /// Why the node does not vote; empty if it does.
    pub why: String,
    /// When the node votes again, in UTC; empty if not known.
    pub until_clock: String,
    /// Time until the node votes again; empty if not known.
    pub votes_in: String,
    /// `votes_in` in milliseconds.
    pub votes_in_ms: u64,
    /// Round trip of the last probe.
    pub latency: String,
    /// Median of the last 15 minutes.
    pub median: String,
    /// 99th percentile of the last 15 minutes.
    pub slow: String,
    /// Answers in the last 15 minutes.
    pub answers: String,
    /// Failures in the last 15 minutes.
    pub failures: u64,
    /// Failures by kind, without kinds that did not occur.
    pub kinds: Vec<(&'static str, String)>,
    /// The node's clock minus that of this instance.
    pub offset: String,
    /// Version of the server.
    pub version: String,
    /// Abbreviated run id of the server process.
    pub run: String,
    /// Number of restarts that this instance detected.
    pub restarts: u64,
    /// The number of the node's installed view; empty if it has none.
    pub view: String,
    /// Whether the server syncs each write before it replies.
    pub is_durable: bool,
    /// Whether this instance asks for votes in another view.
    pub is_elsewhere: bool,
    /// Problems of the server's settings.
    pub findings: Vec<FindingRow>,
    /// Latency over time.
    pub spark: Sparkline,
    /// The latency over time as a heat strip.
    pub heat: Vec<HeatCell>,
}

/// A finding as shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FindingRow {
    /// The finding's code; bad if it costs the vote.
    pub badge: Badge,
    /// What is wrong and what to do.
    pub detail: String,
}

/// Number of characters of a run id that are shown.
const RUN_ID_SHOWN: usize = 8;

fn finding(view: &NodeFinding) -> FindingRow {
    // redlockd needs no persistence: this finding needs no action.
    let severity = match view.bars {
        true => Severity::Bad,
        false if view.code == "no-persistence" => Severity::Neutral,
        false => Severity::Warn,
    };
    FindingRow { badge: badge(&view.code, severity), detail: format::visible(&view.detail) }
}

fn or_dash(took: Option<Duration>) -> String {
    took.map_or_else(|| "-".to_owned(), format::latency)
}

/// How severe the state of a node is. Severe states are listed first.
fn trouble(report: &NodeSummary) -> u8 {
    match (report.votes, report.findings.iter().any(|finding| finding.bars), report.votes_in) {
        (false, _, None) => 3,
        (false, _, Some(_)) => 2,
        (true, true, _) => 1,
        (true, false, _) => 0,
    }
}

fn node(report: &NodeSummary, window: &LatencyWindow, node_timeout: Duration, wall_ms: u64) -> NodeCard {
    let kinds = UnreachableKind::ALL.iter().zip(window.all.failed).filter(|(_, n)| *n > 0);
    NodeCard {
        node: report.node.to_string(),
        state: badges::node_badge(report),
        since: format::clock(report.since),
        since_ms: format::ms(report.since),
        since_clock: format::time_of_day(wall_ms.saturating_sub(format::ms(report.since))),
        until_clock: report
            .votes_in
            .map(|left| format::time_of_day(wall_ms.saturating_add(format::ms(left) + 999)))
            .unwrap_or_default(),
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
        is_durable: report.is_durable,
        run: report.run_id.as_deref().map(|run| run.chars().take(RUN_ID_SHOWN).collect()).unwrap_or_default(),
        restarts: report.restarts,
        view: report.view.map(|number| number.to_string()).unwrap_or_default(),
        is_elsewhere: false,
        findings: report.findings.iter().map(finding).collect(),
        spark: charts::sparkline(window, charts::SPARK_WIDTH, charts::SPARK_HEIGHT),
        heat: charts::heat(window, node_timeout),
    }
}

#[derive(Debug, Template)]
#[template(path = "nodes.html")]
pub(crate) struct NodesPage {
    layout: Layout,
    nodes: Vec<NodeCard>,
    node_timeout: String,
    /// The number of the view in which this instance asks for votes; empty before the first.
    view: String,
    /// The change of the list that is in progress; empty if there is none.
    change: String,
    change_badge: Badge,
    /// The change of the terms that is in progress; empty if there is none.
    terms_change: String,
    /// The terms in force, if this instance is configured with others.
    other_terms: String,
}

impl NodesPage {
    /// `window`: the latencies of a node in the last 15 minutes. The nodes with the most trouble come first. Units of
    /// `wall_ms`: milliseconds since 1970.
    pub(crate) fn new(
        layout: Layout,
        status: &ClusterStatus,
        window: impl Fn(&NodeId) -> LatencyWindow,
        node_timeout: Duration,
        wall_ms: u64,
    ) -> Self {
        let mut reports: Vec<&NodeSummary> = status.nodes.iter().collect();
        reports.sort_by_key(|report| Reverse(trouble(report)));
        let card = |report: &&NodeSummary| {
            let is_elsewhere = report.view.is_some() && report.view != status.list.view;
            NodeCard { is_elsewhere, ..node(report, &window(&report.node), node_timeout, wall_ms) }
        };
        let change = status.list.change.as_ref();
        let change =
            change.map(|(from, to)| format!("from {} to {}", NodeId::list(from), NodeId::list(to))).unwrap_or_default();
        let terms = |terms: &Terms| {
            let [guard, delay, fences] = [terms.guard, terms.lock_delay, terms.fence_ttl].map(format_duration);
            let keys = terms.template.as_ref().map(|template| format!(", key template {template}")).unwrap_or_default();
            format!("guard {guard}, lock delay {delay}, fence TTL {fences}{keys}")
        };
        let terms_change = status.list.terms_change.as_ref();
        let terms_change =
            terms_change.map(|(from, to)| format!("from {} to {}", terms(from), terms(to))).unwrap_or_default();
        let other_terms = status.list.other_terms.as_ref().map(terms).unwrap_or_default();
        let view = status.list.view.map(|number| number.to_string()).unwrap_or_default();
        let (nodes, node_timeout) = (reports.iter().map(card).collect(), format::time(node_timeout));
        let change_badge = badge("being changed", Severity::Warn);
        Self { layout, nodes, node_timeout, view, change, change_badge, terms_change, other_terms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::latency::LatencySeries;
    use crate::manager::types::NodeListState;
    use crate::redlock::clock::BootTime;

    /// 2026-11-20T18:07:03.120Z.
    const NOW_MS: u64 = 1_795_198_023_120;

    #[test]
    fn the_nodes_with_the_most_trouble_come_first_with_their_times() {
        let named = |name: &str, state: &str, votes| NodeSummary {
            node: NodeId::parse(name).expect("valid"),
            findings: Vec::new(),
            view: Some(7),
            ..report(state, votes)
        };
        let all =
            [named("a", "up", true), report("up", true), named("c", "quarantined", false), named("d", "down", false)];
        let status = ClusterStatus {
            nodes: all.into(),
            quorum: crate::manager::types::QuorumCount { granted: 2, needed: 3, nodes: 4 },
            draining: false,
            instance: crate::protocol::InstanceName::from_random(1),
            situation: Default::default(),
            list: NodeListState {
                view: Some(8),
                change: Some((vec![named("a", "up", true).node], Vec::new())),
                ..NodeListState::default()
            },
        };
        let layout = crate::pages::locks::tests::layout();
        let page = NodesPage::new(layout, &status, |_| LatencyWindow::default(), Duration::from_millis(50), NOW_MS);
        let order: Vec<_> = page.nodes.iter().map(|n| n.node.as_str()).collect();
        assert_eq!(order, ["d", "c", "n1", "a"], "a finding counts as well");
        let html = page.render().expect("a page");
        assert!(
            html.contains("is being changed from a to") && html.contains("7 <strong>not that of this instance, 8"),
            "{html}"
        );
        assert!(html.contains("since 18:05:48") && html.contains("until 18:09:14"), "{html}");
    }

    fn report(state: &str, votes: bool) -> NodeSummary {
        NodeSummary {
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
            ..NodeSummary::new(NodeId::parse("n1").expect("valid"))
        }
    }

    #[test]
    fn a_node_without_a_vote_shows_the_reason_and_the_findings() {
        let (series, now) = (LatencySeries::default(), BootTime::default());
        series.record_failures(now, UnreachableKind::Timeout, 1);
        let view = node(&report("quarantined", false), &series.window(now), Duration::from_millis(50), NOW_MS);
        assert_eq!((view.state.text.as_str(), view.votes_in.as_str()), ("in quarantine", "2 m 10 s"));
        assert_eq!((view.kinds.as_slice(), view.failures), (&[("timeout", "1".to_owned())][..], 1));
        assert_eq!((view.latency.as_str(), view.offset.as_str(), view.run.as_str()), ("412 µs", "-3 ms", "01234567"));
        assert_eq!(view.findings[0].badge.severity, Severity::Bad);
        let information = NodeFinding { code: "no-persistence".into(), detail: "it is off".into(), bars: false };
        assert_eq!(finding(&information).badge.severity, Severity::Neutral);
    }

    #[test]
    fn a_node_that_is_down_shows_no_present_latency() {
        let view = node(&report("down", false), &LatencyWindow::default(), Duration::from_millis(50), NOW_MS);
        assert_eq!((view.latency.as_str(), view.median.as_str()), ("-", "-"));
    }
}
