//! The page of recent events, newest first, with filters; and the rows of events on other pages.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;

use super::badges::{Badge, Severity, badge};
use super::format;
use super::layout::Layout;
use super::paging::Paging;
use crate::api::Event;
use crate::manager::gaps::{Gap, GapReason};
use crate::manager::standstills::Standstill;

/// The kinds of events that can be filtered by, with their text.
pub(crate) const KINDS: [(&str, &str); 15] = [
    ("acquired", "acquired"),
    ("released", "released"),
    ("expired", "expired"),
    ("forced", "ended by an operator"),
    ("lost", "lost"),
    ("deadlock", "deadlock"),
    ("node_down", "node down"),
    ("node_up", "node up"),
    ("quarantined", "node without a vote"),
    ("two_servers", "two servers"),
    ("quorum_lost", "no quorum"),
    ("quorum_back", "quorum again"),
    ("started", "instance started"),
    ("stopping", "instance stopping"),
    ("reloaded", "file reloaded"),
];

/// The filters of the page, as they were entered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EventsQuery {
    /// One of [`KINDS`], or empty for all kinds.
    pub kind: String,
    /// Prefix of the name of the resource or node.
    pub prefix: String,
    /// Around this time.
    pub at: String,
    /// Not before this time.
    pub from: String,
    /// Not after this time.
    pub to: String,
    /// Page number, from 1.
    pub page: usize,
}

impl EventsQuery {
    fn link(&self) -> String {
        let fields =
            [("kind", &self.kind), ("prefix", &self.prefix), ("at", &self.at), ("from", &self.from), ("to", &self.to)];
        let set = fields.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> = set.map(|(name, value)| format!("{name}={}", format::query(value))).collect();
        if pairs.is_empty() { "/ui/events".to_owned() } else { format!("/ui/events?{}", pairs.join("&")) }
    }

    /// Whether the list is filtered by this kind.
    pub(crate) fn has_kind(&self, kind: &str) -> bool {
        self.kind == kind
    }

    /// Whether a filter is set.
    pub(crate) fn is_filtered(&self) -> bool {
        *self != Self { page: self.page, ..Self::default() }
    }
}

/// The row of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventRow {
    /// When, as RFC 3339.
    pub stamp: String,
    /// When, in the words of the page.
    pub moment: String,
    /// The kind of event.
    pub kind: Badge,
    /// Name of the resource; empty for events of nodes.
    pub resource: String,
    /// Name of the node; empty for events of resources.
    pub node: String,
    /// Name of the instance, if it reports an incident of its own; else empty.
    pub instance: String,
    /// Owner label of the lease; empty if the event has none.
    pub owner: String,
    /// Fence, token id, reason and cycle, if any.
    pub details: String,
}

impl EventRow {
    /// The time of day: `10:46:02`.
    pub(crate) fn clock(&self) -> &str {
        self.stamp.get(11..19).unwrap_or_default()
    }
}

/// Formats an event.
pub(crate) fn row(event: &Event) -> EventRow {
    let text = KINDS.iter().find(|(kind, _)| *kind == event.event).map_or(event.event.as_str(), |(_, text)| text);
    let (text, severity) = match (event.event.as_str(), event.reason.as_deref()) {
        ("forced", Some("now" | "forced")) => ("released by an operator", Severity::Bad),
        ("forced", _) => ("revoked by an operator", Severity::Warn),
        ("two_servers", Some("over")) => ("one server again", Severity::Good),
        ("reloaded", Some("rejected")) => ("file rejected", Severity::Bad),
        ("lost" | "node_down" | "deadlock" | "quorum_lost" | "two_servers", _) => (text, Severity::Bad),
        ("expired" | "quarantined", _) => (text, Severity::Warn),
        ("acquired" | "node_up" | "quorum_back", _) => (text, Severity::Good),
        _ => (text, Severity::Neutral),
    };
    let mut details = Vec::new();
    if let Some(after) = event.after_ms.map(Duration::from_millis) {
        let what = match event.event.as_str() {
            "released" | "expired" | "forced" | "lost" => "held for",
            _ => "after",
        };
        details.push(format!("{what} {}", format::time(after)));
    }
    if let Some(refused) = event.refused {
        details.push(format::count(refused, "request failed", "requests failed"));
    }
    if let Some(principal) = &event.principal {
        details.push(format!("by {}", format::visible(principal)));
    }
    // First, since the rest may be cut off. A time of day stays correct when it is read later.
    if let Some(left) = event.left_ms {
        let until = format::time_of_day(event.at_ms.saturating_add(left).saturating_add(999));
        details.push(format!("until {until} at the latest"));
    }
    details.extend(event.detail.as_deref().map(format::visible));
    if let Some(fence) = event.fence {
        details.push(format!("fence {fence}"));
    }
    if let Some(id) = &event.token_id {
        details.push(format!("lease {}", format::visible(id)));
    }
    // For other events, the badge or the detail has this.
    let says_more = match event.event.as_str() {
        "forced" | "node_down" | "node_up" | "two_servers" | "reloaded" => false,
        "quarantined" => event.reason.as_deref() != Some("quarantined"),
        "deadlock" => event.reason.as_deref() != Some("reported"),
        _ => true,
    };
    details.extend(event.reason.as_deref().filter(|_| says_more).map(format::visible));
    let links = event.cycle.iter().flatten();
    details.extend(links.map(|edge| {
        let [owner, resource, holder] = [&edge.owner, &edge.waits_for, &edge.held_by].map(|text| format::visible(text));
        format!("{owner} waits for {resource}, held by {holder}")
    }));
    EventRow {
        stamp: format::stamp(event.at_ms),
        moment: format::moment(event.at_ms),
        kind: badge(text, severity),
        resource: event.resource.clone().unwrap_or_default(),
        node: event.node.as_deref().map(format::visible).unwrap_or_default(),
        instance: event.instance.as_deref().map(format::visible).unwrap_or_default(),
        // The cycle names the owners of a deadlock.
        owner: event.owner.as_deref().filter(|_| event.event != "deadlock").map(format::visible).unwrap_or_default(),
        details: details.join(", "),
    }
}

/// Reports of several instances about the quorum within this time are one row: each instance sees the nodes with its own probes.
const SAME_OUTAGE: Duration = Duration::from_secs(10);
/// The number of latest rows that are searched for such reports.
const SAME_OUTAGE_EXAMINED: usize = 64;
/// Maximum number of instances in one row; further ones get another row. Any client of a node may invent instances.
const INSTANCES_MAX: usize = 16;

/// An event, and the reports of other instances about the same loss or return of the quorum.
pub(crate) struct Reported<'a> {
    /// The earliest.
    event: &'a Event,
    /// Ordered from earliest to latest.
    others: Vec<&'a Event>,
}

impl<'a> Reported<'a> {
    /// Events, newest first, with the reports of several instances grouped.
    pub(crate) fn of(events: impl IntoIterator<Item = &'a Event>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for event in events {
            let recent = all.len().saturating_sub(SAME_OUTAGE_EXAMINED);
            let same = match event.event.as_str() {
                "quorum_lost" | "quorum_back" => all[recent..].iter().rposition(|known| known.is_same(event)),
                _ => None,
            };
            let others = same.map(|at| all.remove(recent + at)).map(|mut known| {
                known.others.insert(0, known.event);
                known.others
            });
            all.push(Self { event, others: others.unwrap_or_default() });
        }
        all
    }

    fn all(&self) -> impl Iterator<Item = &'a Event> {
        std::iter::once(self.event).chain(self.others.iter().copied())
    }

    /// Two reports of one instance are two incidents.
    fn is_same(&self, other: &Event) -> bool {
        let is_near = |known: &Event| format::since(known.at_ms, other.at_ms) <= SAME_OUTAGE;
        let is_full = self.others.len() + 1 >= INSTANCES_MAX;
        !is_full
            && self.all().all(|known| known.event == other.event && known.instance != other.instance && is_near(known))
    }

    /// The row of the event. For several instances, it has the time of each report.
    pub(crate) fn row(&self) -> EventRow {
        let first = row(self.event);
        if self.others.is_empty() {
            return first;
        }
        let seen = self.all().map(row).map(|row| {
            let details = if row.details.is_empty() { String::new() } else { format!(" ({})", row.details) };
            format!("{} at {}{details}", row.instance, row.clock())
        });
        let seen = seen.collect::<Vec<_>>().join(", ");
        let details = format!("seen by {} instances: {seen}", self.others.len() + 1);
        EventRow { instance: String::new(), details, ..first }
    }
}

/// A standstill of the instance that shows the page, placed at its end.
pub(crate) fn standstill_row(one: &Standstill) -> EventRow {
    let (lasted, to) = (format::clock(one.lasted), format::time_of_day(one.to_ms));
    EventRow {
        stamp: format::stamp(one.to_ms),
        moment: format::moment(one.to_ms),
        kind: badge("this instance stood still", Severity::Warn),
        resource: String::new(),
        node: String::new(),
        instance: String::new(),
        owner: String::new(),
        details: format!("for {lasted}, to {to}: it was stopped, suspended, or got no processor time"),
    }
}

/// The period without data, and the reason.
pub(crate) fn gap_text(gap: &Gap) -> String {
    let to = format::moment(gap.to_ms);
    let when = match gap.from_ms {
        0 => format!("before {to}"),
        from_ms => format!("from {} to {to}", format::moment(from_ms)),
    };
    match gap.reason {
        GapReason::NotRunning => format!("{when} this instance did not run"),
        GapReason::CutOff => format!("{when} no node passed anything on to this instance"),
    }
}

#[derive(Debug, Template)]
#[template(path = "events.html")]
pub(crate) struct EventsPage {
    layout: Layout,
    query: EventsQuery,
    rows: Vec<EventRow>,
    /// Periods of which events may be missing.
    gaps: Vec<String>,
    paging: Paging,
}

impl EventsPage {
    /// `matching`: newest first; `gaps`: the oldest first.
    pub(crate) fn new(layout: Layout, matching: &[Arc<Event>], gaps: &[Gap], query: EventsQuery) -> Self {
        let reported = Reported::of(matching.iter().map(Arc::as_ref));
        let paging = Paging::new(reported.len(), query.page, query.link());
        let rows = reported[paging.from..paging.to].iter().map(Reported::row).collect();
        let gaps = gaps.iter().rev().map(gap_text).collect();
        Self { layout, query, rows, gaps, paging }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::events::EventKind;

    fn event(kind: &str, resource: Option<&str>, reason: Option<&str>) -> Event {
        Event {
            event: kind.into(),
            at_ms: 1_795_198_023_120,
            resource: resource.map(Into::into),
            reason: reason.map(Into::into),
            token_id: Some("9c1f02ab".into()),
            ..Event::default()
        }
    }

    #[test]
    fn every_kind_of_event_but_renewals_can_be_filtered() {
        for kind in EventKind::ALL.iter().filter(|k| **k != EventKind::Extended) {
            assert!(KINDS.iter().any(|(known, _)| *known == kind.as_str()), "{kind:?}");
        }
    }

    #[test]
    fn a_forced_end_shows_its_mode_and_a_loss_its_reason() {
        let row_of = |kind, reason| row(&event(kind, Some("a"), Some(reason)));
        assert_eq!(row_of("forced", "now").kind, badge("released by an operator", Severity::Bad));
        assert_eq!(row_of("forced", "revoke").kind.text, "revoked by an operator");
        assert_eq!(row_of("lost", "quorum").details, "lease 9c1f02ab, quorum");
        assert_eq!(row_of("reloaded", "rejected").kind, badge("file rejected", Severity::Bad));
        let back = Event { after_ms: Some(307_000), refused: Some(2), ..event("quorum_back", None, None) };
        assert_eq!(row(&Event { token_id: None, ..back }).details, "after 5 m 07 s, 2 requests failed");
        let ended = Event { after_ms: Some(4_200), principal: Some("ops".into()), ..event("forced", Some("a"), None) };
        let ended = Event { detail: Some("host is gone".into()), ..ended };
        assert_eq!(row(&ended).details, "held for 4 s, by ops, host is gone, lease 9c1f02ab");
        let quarantined =
            Event { left_ms: Some(28_500), detail: Some("wiped".into()), ..event("quarantined", None, None) };
        assert_eq!(row(&Event { token_id: None, ..quarantined }).details, "until 18:07:32 at the latest, wiped");
        assert_eq!(row_of("lost", "a\u{202e}b").details, "lease 9c1f02ab, a\\u{202e}b");
    }

    #[test]
    fn what_several_instances_see_of_the_quorum_is_one_row_that_says_when_each_saw_what() {
        let seen = |kind: &str, instance: &str, second: u64, detail: &str| Event {
            instance: Some(instance.into()),
            at_ms: 1_795_198_000_000 + second * 1_000,
            detail: Some(detail.into()),
            token_id: None,
            ..event(kind, None, None)
        };
        let all = [
            seen("quorum_lost", "a", 42, "n1 down"),
            seen("quorum_back", "b", 33, ""),
            seen("quorum_lost", "a", 32, "n1 down"),
            seen("node_down", "b", 31, "silent"),
            seen("quorum_lost", "b", 30, "n1 down, n2 down"),
            seen("quorum_lost", "a", 20, "n1 down"),
        ];
        let rows: Vec<EventRow> = Reported::of(&all).iter().map(Reported::row).collect();
        let shown: Vec<_> = rows.iter().map(|row| (row.clock(), row.instance.as_str(), row.details.as_str())).collect();
        let both = "seen by 2 instances: b at 18:07:10 (n1 down, n2 down), a at 18:07:12 (n1 down)";
        let expected = [
            ("18:07:22", "a", "n1 down"),
            ("18:07:13", "b", ""),
            ("18:07:11", "b", "silent"),
            ("18:07:10", "", both),
            ("18:07:00", "a", "n1 down"),
        ];
        assert_eq!(shown, expected);
        let many: Vec<Event> = (0..40).map(|i| seen("quorum_lost", &format!("i{i}"), 1, "")).collect();
        let sizes: Vec<usize> = Reported::of(&many).iter().map(|reported| reported.all().count()).collect();
        assert_eq!(sizes, [INSTANCES_MAX, INSTANCES_MAX, 40 - 2 * INSTANCES_MAX]);
    }

    #[test]
    fn links_to_pages_keep_the_filters() {
        let query = EventsQuery { kind: "lost".into(), prefix: "a b".into(), page: 2, ..EventsQuery::default() };
        assert_eq!(query.link(), "/ui/events?kind=lost&prefix=a%20b");
        assert_eq!(EventsQuery { at: "10:42".into(), ..EventsQuery::default() }.link(), "/ui/events?at=10%3A42");
        assert!(query.is_filtered() && !EventsQuery { page: 7, ..EventsQuery::default() }.is_filtered());
        assert_eq!(EventsQuery::default().link(), "/ui/events");
    }
}
