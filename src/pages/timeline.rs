//! The holders over the last hour of all names under a prefix: a lane for each name, with its waiters, and the incidents of nodes
//! and quorum across all lanes. A table has the same data.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;

use super::format;
use super::history::{self, LockHistory, Mark, Span, Unknown};
use super::layout::Layout;
use crate::api::Event;
use crate::manager::lease_snapshot::SnapshotLease;
use crate::manager::overview::{ListedWaiter, Overview};
use crate::manager::tenures::KnownTenures;
use crate::types::ResourceName;

/// The periods to choose from: as in queries and on the page, with the ends of the scale. Units: milliseconds.
pub(crate) const PERIODS: [(Period, &str); 3] =
    [(Period(super::history::HOUR_MS), "1h"), (Period(900_000), "15m"), (Period(300_000), "5m")];

/// How far back the page reaches. Units: milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period(u64);

/// What the page shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TimelineQuery {
    /// The prefix of the names.
    pub prefix: String,
    /// The length of the period that ends now.
    pub period: Period,
}

impl Period {
    /// The period with its unit.
    pub(crate) fn text(self) -> String {
        format::time(Duration::from_millis(self.0))
    }

    /// The start of the period that ends at `now_ms`. Units: milliseconds since 1970.
    pub(crate) fn begins_before(self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.0)
    }

    fn half(self) -> Self {
        Self(self.0 / 2)
    }
}

/// Maximum number of lanes that are drawn: the names with the most waiters, then those that were held last.
const LANES_MAX: usize = 20;
/// Height of a lane's name.
const NAME: usize = 18;
/// Space below a lane.
const SPACE: usize = 8;

/// The row of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lane {
    pub resource: String,
    pub y: usize,
    /// The leases and waits of the name.
    pub spans: Vec<Span>,
    pub waiting: usize,
}

#[derive(Debug, Template)]
#[template(path = "timeline.html")]
pub(crate) struct TimelinePage {
    layout: Layout,
    query: TimelineQuery,
    lanes: Vec<Lane>,
    marks: Vec<Mark>,
    height: usize,
    /// Names that are not drawn.
    hidden: usize,
    complete: bool,
    /// The periods without data.
    unknown: Vec<Unknown>,
    /// The age of the list of present leases.
    age: String,
    age_ms: u64,
}

/// Why a name has a lane.
#[derive(Default)]
struct Named {
    waiters: Vec<(String, Duration)>,
    /// When the name was last held. Milliseconds since 1970.
    last_ms: u64,
}

impl TimelinePage {
    /// `events`: newest first. These, `overview`, `waiters` and `tenures` have only what the reader may see. Units of `wall_ms`:
    /// milliseconds since 1970.
    pub(crate) fn new(
        layout: Layout,
        query: TimelineQuery,
        overview: &Overview,
        waiters: &[ListedWaiter],
        (tenures, events): (&KnownTenures, &[Arc<Event>]),
        wall_ms: u64,
    ) -> Self {
        let (prefix, now) = (query.prefix.as_str(), (wall_ms, query.period.0));
        let mut names: HashMap<&str, Named> = HashMap::new();
        let held = overview.leases.leases.iter().filter(|(_, lease)| lease.is_confirmed && lease.left > overview.age);
        for (name, _) in held.filter(|(name, _)| name.as_str().starts_with(prefix)) {
            names.entry(name.as_str()).or_default().last_ms = wall_ms;
        }
        for waiter in waiters.iter().filter(|waiter| waiter.resource.as_str().starts_with(prefix)) {
            let known = names.entry(waiter.resource.as_str()).or_default();
            known.waiters.push((waiter.owner.to_string(), waiter.waiting));
        }
        let from_ms = wall_ms.saturating_sub(query.period.0);
        for (name, past) in tenures.names.iter().filter(|(name, _)| name.starts_with(prefix)) {
            let last_ms = past.iter().map(|tenure| tenure.to_ms).max().unwrap_or_default();
            if last_ms > from_ms {
                let known = names.entry(name.as_str()).or_default();
                known.last_ms = known.last_ms.max(last_ms);
            }
        }
        let mut order: Vec<(&str, Named)> = names.into_iter().collect();
        order.sort_unstable_by(|(a, x), (b, y)| {
            (y.waiters.len(), y.last_ms).cmp(&(x.waiters.len(), x.last_ms)).then_with(|| a.cmp(b))
        });
        let (mut lanes, mut height, mut hidden) = (Vec::new(), 0, 0);
        for (name, known) in order {
            let lease = ResourceName::parse(name).ok().and_then(|name| overview.leases.leases.get(&name));
            let standing = lease.into_iter().flat_map(SnapshotLease::all);
            let standing = standing.filter(|lease| lease.is_confirmed && lease.left > overview.age);
            let labels = standing.map(SnapshotLease::labels).filter(|labels| labels.acquired_at_ms > 0);
            let holders: Vec<_> = labels.map(|labels| (&*labels.owner, labels.acquired_at_ms)).collect();
            let past = tenures.names.get(name).map(Vec::as_slice).unwrap_or_default();
            let drawn = LockHistory::new(
                history::Known {
                    holders: &holders,
                    waiters: &known.waiters,
                    tenures: past,
                    since_ms: tenures.since_ms,
                    gaps: &tenures.gaps,
                },
                &[],
                now,
            );
            if drawn.is_empty() {
                continue;
            }
            if lanes.len() == LANES_MAX {
                hidden += 1;
                continue;
            }
            let (y, waiting) = (height + NAME, known.waiters.len());
            height = y + drawn.height() + SPACE;
            lanes.push(Lane { resource: name.to_owned(), y, spans: drawn.spans, waiting });
        }
        let whole = history::Known { since_ms: tenures.since_ms, gaps: &tenures.gaps, ..history::Known::default() };
        let LockHistory { marks, unknown, .. } = LockHistory::new(whole, events, now);
        let (complete, age, age_ms) = (overview.leases.complete, format::time(overview.age), format::ms(overview.age));
        Self { layout, lanes, marks, height, hidden, complete, unknown, query, age, age_ms }
    }
}

impl Lane {
    /// The vertical position of the name.
    fn name_y(&self) -> usize {
        self.y - 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::tenures::{Tenure, TenureEnd};
    use crate::pages::locks::tests::{NOW_MS, four, layout};

    fn released(resource: &str, ago_s: u64) -> (String, Vec<Tenure>) {
        let (to_ms, lasted_ms) = (NOW_MS - ago_s * 1_000, 60_000);
        let (owner, from_ms, end) = (Some("ann".to_owned()), to_ms - lasted_ms, TenureEnd::Released);
        (resource.to_owned(), vec![Tenure { owner, from_ms, to_ms, end, count: 1, lasted_ms }])
    }

    fn page(prefix: &str, past: impl IntoIterator<Item = (String, Vec<Tenure>)>) -> TimelinePage {
        let down =
            Event { event: "node_down".into(), at_ms: NOW_MS - 5_000, node: Some("n1".into()), ..Event::default() };
        let tenures =
            KnownTenures { names: past.into_iter().collect(), since_ms: NOW_MS - 1_800_000, gaps: Vec::new() };
        let waiter = |name: &str| ListedWaiter {
            resource: ResourceName::parse(name).expect("valid"),
            instance: crate::protocol::InstanceName::from_random(1),
            position: 1,
            owner: "bob".into(),
            waiting: Duration::from_secs(9),
            left: None,
            note: "".into(),
            is_ticket: false,
        };
        let query = TimelineQuery { prefix: prefix.to_owned(), period: PERIODS[0].0 };
        TimelinePage::new(
            layout(),
            query,
            &four(),
            &[waiter("deploy/prod"), waiter("next")],
            (&tenures, &[Arc::new(down)]),
            NOW_MS,
        )
    }

    #[test]
    fn names_under_the_prefix_have_a_lane_each_the_most_waited_for_first() {
        let past = || [released("deploy/old", 10), released("import", 20), released("deploy/past", 4_000)];
        let all = page("deploy/", past());
        let lanes: Vec<_> = all.lanes.iter().map(|lane| (lane.resource.as_str(), lane.spans.len(), lane.y)).collect();
        assert_eq!(lanes, [("deploy/prod", 2, 18), ("deploy/test", 1, 82), ("deploy/old", 1, 128)]);
        assert_eq!((all.marks.len(), all.hidden, all.height), (1, 0, 156));
        let html = all.render().expect("a page");
        assert!(html.contains("node down n1") && html.contains("ann: ") && html.contains("bob: "), "{html}");
        assert_eq!(all.unknown.iter().map(|part| (part.x, part.width)).collect::<Vec<_>>(), [(0, 480)]);
        let said = [
            "<title>not known: 17:07:03 to 17:37:03, this instance did not run</title>",
            "<td data-label=\"To\">17:37:03",
        ];
        assert!(said.iter().all(|part| html.contains(part)), "in the drawing and in the table: {html}");
        let none = page("none/", past()).render().expect("a page");
        assert!(none.contains("Nobody has held") && none.contains("not known: 17:07:03 to 17:37:03"), "{none}");
    }

    #[test]
    fn further_names_are_counted() {
        let page = page("many/", (0..LANES_MAX + 7).map(|i| released(&format!("many/{i:02}"), i as u64)));
        assert_eq!((page.lanes.len(), page.hidden, page.lanes[0].resource.as_str()), (LANES_MAX, 7, "many/00"));
    }
}
