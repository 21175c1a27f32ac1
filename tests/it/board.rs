//! What each panel of the Grafana dashboard shows of the failures that `prometheus.rs` causes on three nodes with two
//! instances: the figure, and between which values it must lie. A histogram begins with its first event, so that a rate may not
//! show a single one. Upper bounds of times allow for a machine with other work.

use serde_json::Value;

/// Which value of a series counts over the whole run.
#[derive(Debug, Clone, Copy)]
enum Extreme {
    Least,
    Most,
}

use Extreme::{Least, Most};

/// A figure of a panel.
#[derive(Debug)]
pub struct Figure {
    /// The panel's title.
    pub panel: &'static str,
    /// The query's `refId`.
    pub query: &'static str,
    /// `label=value`: of series with this label; empty: of all.
    series: &'static str,
    extreme: Extreme,
    from: f64,
    to: f64,
}

const fn of(
    panel: &'static str,
    query: &'static str,
    series: &'static str,
    extreme: Extreme,
    from: f64,
    to: f64,
) -> Figure {
    Figure { panel, query, series, extreme, from, to }
}

/// More than nothing.
const SOME: f64 = 1e-9;

pub const FIGURES: [Figure; 99] = [
    of("Quorum", "A", "", Least, 0.0, 0.0),
    of("Quorum", "A", "", Most, 1.0, 1.0),
    of("Margin", "A", "", Least, -2.0, -1.0),
    of("Margin", "A", "", Most, 1.0, 1.0),
    of("Held", "A", "", Most, 1.0, 12.0),
    of("Waiting", "A", "", Most, 1.0, 6.0),
    of("Oldest wait", "A", "", Most, SOME, 4.0),
    of("Lost in the last hour", "A", "", Most, 0.9, 2.0),
    // The third node may be late once as well.
    of("Votes", "A", "", Least, 0.0, 1.0),
    of("Votes", "A", "", Most, 1.0, 3.0),
    of("Votes", "B", "", Least, 2.0, 2.0),
    of("Votes", "C", "", Least, 3.0, 3.0),
    of("Leases held", "A", "", Most, 1.0, 12.0),
    of("Leases held", "B", "", Most, 1.0, 3.0),
    of("Leases held", "B", "", Least, 0.0, 0.0),
    of("Oldest lease", "A", "", Most, 1.0, 60.0),
    of("Acquires by outcome", "A", "outcome=granted", Most, 1.0, 1e4),
    of("Acquires by outcome", "A", "outcome=locked", Most, SOME, 1e4),
    of("Acquires by outcome", "A", "outcome=wait-timeout", Most, SOME, 1e4),
    of("Acquires by outcome", "A", "outcome=quorum-unavailable", Most, SOME, 1e4),
    of("Acquires that failed without a quorum", "A", "", Most, 0.01, 1.0),
    of("Acquires that failed without a quorum", "A", "", Least, 0.0, 0.0),
    of("Time to grant", "A", "", Most, SOME, 5.0),
    of("Time to grant", "B", "", Most, SOME, 5.0),
    of("Time to grant", "C", "", Most, SOME, 5.0),
    of("Requests by code", "A", "code=201", Most, 1.0, 1e4),
    of("Requests by code", "A", "code=503", Most, SOME, 1e4),
    of("Request duration, p99", "A", "route=/locks/{resource}", Most, SOME, 30.0),
    of("Requests in flight", "A", "kind=wait", Most, 1.0, 6.0),
    of("Requests in flight", "A", "kind=hold", Most, 1.0, 3.0),
    of("Requests in flight", "A", "kind=events", Most, 1.0, 1.0),
    of("Waiting time", "A", "le=+Inf", Most, 1.0, 1e5),
    of("Outcomes of waiting", "A", "outcome=granted", Most, SOME, 1e4),
    of("Outcomes of waiting", "A", "outcome=wait-timeout", Most, SOME, 1e4),
    of("Waiters", "A", "", Most, 1.0, 6.0),
    of("Waiters", "B", "", Least, 20_000.0, 20_000.0),
    of("Wait until granted", "A", "", Most, SOME, 10.0),
    of("Wait until granted", "B", "", Most, SOME, 10.0),
    of("Wait until granted", "C", "", Most, SOME, 10.0),
    of("Extends by outcome", "A", "outcome=extended", Most, SOME, 1e4),
    of("Extends by outcome", "A", "outcome=not-holder", Most, SOME, 1e4),
    of("Releases by outcome", "A", "outcome=released", Most, SOME, 1e4),
    of("Releases by outcome", "A", "outcome=expired", Most, SOME, 1e4),
    of("Ends of leases", "A", "end=released", Most, SOME, 1e4),
    of("Ends of leases", "A", "end=disconnected", Most, SOME, 1e4),
    of("Ends of leases", "A", "end=forced", Most, SOME, 1e4),
    of("TTL left at the grant", "A", "le=+Inf", Most, 1.0, 1e5),
    of("Duration of leases", "A", "", Most, SOME, 5.0),
    of("Duration of leases", "B", "", Most, SOME, 60.0),
    of("Lost and forced", "A", "reason=forced", Most, 0.5, 4.0),
    of("Lost and forced", "A", "reason=max_hold", Most, 0.5, 2.0),
    of("Lost and forced", "B", "how=now", Most, 0.5, 3.0),
    of("Lost and forced", "B", "how=revoke", Most, 0.5, 3.0),
    of("Clean-ups", "A", "", Most, 1.0, 4_096.0),
    of("Clean-ups", "B", "", Most, SOME, 1e4),
    of("Clean-ups", "B", "", Least, 0.0, 0.0),
    of("Repairs", "A", "", Most, SOME, 1e4),
    of("Repairs", "B", "", Most, SOME, 1e4),
    of("Up", "A", "node=n1", Least, 0.0, 0.0),
    of("Up", "A", "node=n2", Least, 0.0, 0.0),
    of("Up", "A", "node=n3", Most, 1.0, 1.0),
    of("Votes", "A", "node=n1", Least, 0.0, 0.0),
    of("Votes", "A", "node=n3", Least, 0.0, 0.0),
    of("Call duration, p99", "A", "node=n1", Most, SOME, 2.0),
    of("Calls by operation", "A", "op=acquire", Most, 1.0, 1e5),
    of("Calls by operation", "A", "op=probe", Most, SOME, 100.0),
    of("Errors", "A", "kind=timeout", Most, SOME, 1e5),
    of("Errors", "A", "kind=disconnected", Most, SOME, 1e5),
    of("Probe", "A", "node=n1", Most, 0.25, 5.0),
    of("Clock offset", "A", "", Most, 1e-6, 0.3),
    of("Restarts and quarantine", "A", "node=n3", Most, SOME, 6.0),
    of("Restarts and quarantine", "B", "node=n3", Most, 1.0, 3.0),
    of("Restarts and quarantine", "B", "node=n1", Most, 0.0, 0.0),
    // Counted once for each, however short it was.
    of("Restarts and quarantine", "C", "node=n3", Most, 1.0, 1.0),
    of("Restarts and quarantine", "C", "node=n1", Most, 0.0, 0.0),
    of("Versions and findings", "A", "", Most, 1.0, 4.0),
    of("Processor", "A", "", Most, SOME, 64.0),
    of("Memory", "A", "", Most, 1e6, 1e9),
    of("Open files and connections", "A", "", Most, SOME, 0.8),
    of("Threads", "A", "", Most, 1.0, 500.0),
    of("Audit records", "A", "outcome=written", Most, SOME, 1e4),
    of("Audit records", "A", "outcome=failed", Most, SOME, 1e4),
    of("Refused: authentication and authorization", "A", "reason=unauthenticated", Most, SOME, 1e4),
    of("Refused: authentication and authorization", "A", "reason=forbidden", Most, SOME, 1e4),
    of("Listeners, draining, clock", "A", "", Most, 1.0, 1.0),
    of("Listeners, draining, clock", "B", "", Most, 1.0, 1.0),
    of("Listeners, draining, clock", "B", "", Least, 0.0, 0.0),
    // That of the third instance is stepped by 2 s; somebody may step the machine's own meanwhile.
    of("Listeners, draining, clock", "C", "", Most, 1.5, 1_000.0),
    of("Instances", "A", "", Most, 1.0, 1.0),
    of("Call-backs and hooks: tries by outcome", "A", "outcome=accepted", Most, SOME, 1e4),
    of("Hooks: waiting, dropped, off", "A", "", Most, 1.0, 1_000.0),
    of("Hooks: waiting, dropped, off", "B", "", Most, SOME, 1e5),
    of("Hooks: waiting, dropped, off", "C", "", Most, 1.0, 1.0),
    of("Hooks: waiting, dropped, off", "C", "", Least, 0.0, 0.0),
    of("Tickets", "A", "state=waiting", Most, 1.0, 1.0),
    of("Tickets", "A", "state=accepted", Most, 1.0, 1.0),
    of("Ends of tickets", "A", "reason=released", Most, SOME, 1e4),
    of("Kept leases", "A", "", Most, 1.0, 3.0),
    of("Kept leases", "B", "reason=released", Most, SOME, 1e4),
];

impl Figure {
    /// The query in one of these panels; null if there is none. Two panels have the same title.
    pub fn target<'a>(&self, panels: &[&'a Value]) -> &'a Value {
        let (label, _) = self.series.split_once('=').unwrap_or_default();
        let targets = panels.iter().filter(|panel| panel["title"] == self.panel).flat_map(|panel| {
            panel["targets"].as_array().into_iter().flatten().filter(|target| target["refId"] == self.query)
        });
        let mut all: Vec<&Value> = targets.collect();
        // The one whose legend has the label, where there are two.
        all.sort_by_key(|target| !target["legendFormat"].as_str().is_some_and(|legend| legend.contains(label)));
        if label.is_empty() {
            all.sort_by_key(|target| target["legendFormat"].as_str().is_some_and(|legend| legend.contains("{{")));
        }
        all.first().copied().unwrap_or(&Value::Null)
    }

    /// Its value in an answer of Prometheus; `None` if there is none.
    pub fn of(&self, answer: &Value) -> Option<f64> {
        let has_label = |series: &&Value| match self.series.split_once('=') {
            Some((label, value)) => series["metric"][label] == value,
            None => true,
        };
        let series = answer["data"]["result"].as_array()?.iter().filter(has_label);
        let points =
            series.flat_map(|series| series["values"].as_array().into_iter().flatten().chain(series.get("value")));
        let values =
            points.filter_map(|point| point[1].as_str()?.parse::<f64>().ok()).filter(|value| value.is_finite());
        match self.extreme {
            Least => values.reduce(f64::min),
            Most => values.reduce(f64::max),
        }
    }

    /// `label=value`, or nothing.
    pub fn series(&self) -> &'static str {
        self.series
    }

    /// Whether it holds, too, where what it counts never happened.
    pub fn can_be_nothing(&self) -> bool {
        matches!(self.extreme, Most) && self.holds(0.0)
    }

    /// Whether it is what it must be.
    pub fn holds(&self, value: f64) -> bool {
        (self.from..=self.to).contains(&value)
    }
}

#[test]
fn a_figure_is_the_least_or_the_most_of_its_series_and_can_be_wrong() {
    let answer = serde_json::json!({"data": {"result": [
        {"metric": {"node": "n1"}, "values": [[1, "3"], [2, "NaN"], [3, "7"]]},
        {"metric": {"node": "n2"}, "value": [1, "1"]},
    ]}});
    assert_eq!(of("", "A", "node=n1", Least, 0.0, 0.0).of(&answer), Some(3.0));
    assert_eq!(of("", "A", "", Least, 0.0, 0.0).of(&answer), Some(1.0));
    assert_eq!(of("", "A", "", Most, 0.0, 0.0).of(&answer), Some(7.0));
    assert_eq!(of("", "A", "node=n3", Most, 0.0, 0.0).of(&answer), None);
    let figure = of("", "A", "", Most, 1.0, 6.0);
    assert!(!figure.holds(7.0) && figure.holds(1.0) && !figure.holds(0.9));
}
