//! The start page: the held locks. Filters, sorts and pages the cached snapshot; of a hundred thousand leases only the shown rows
//! are formatted.

use std::cmp::Ordering;
use std::time::Duration;

use askama::Template;

use super::activity::HourSection;
use super::badges::{Badge, Severity, badge};
use super::format;
use super::layout::Layout;
pub(crate) use super::locks_query::{ListedState, LocksQuery, Sort};
use super::name_tree::NameTree;
use super::paging::Paging;
use super::wait_graph::WaitGraph;
use super::waiters::DeadlockRow;
use crate::manager::lease_snapshot::{LabelSummary, SnapshotLease};
use crate::manager::overview::Overview;
use crate::types::{Mode, ResourceName};

/// A column heading with a link that sorts by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub text: &'static str,
    /// The list sorted by this column.
    pub href: String,
    /// For `aria-sort`: `ascending`, `descending` or `none`.
    pub sorted: &'static str,
}

/// The row of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockRow {
    /// Name of the resource.
    pub resource: String,
    /// State of the resource.
    pub state: Badge,
    /// How several leases share it, as text: `3 shared`, `2 of 3 permits`; empty for an exclusive lease.
    pub together: String,
    /// Owner label; empty if there is none. For several leases, that of the first.
    pub owner: String,
    /// The owner label, encoded for a query.
    pub owner_query: String,
    /// Note of the lease.
    pub note: String,
    /// The metadata `url`, if it is an address of the web.
    pub url: String,
    /// The time of grant, as RFC 3339; empty if the resource is not held.
    pub acquired: String,
    /// Time since the grant. Units: milliseconds.
    pub held_ms: u64,
    /// `held_ms` as text.
    pub held: String,
    /// Remaining validity. Units: milliseconds.
    pub left_ms: u64,
    /// `left_ms` as text.
    pub left: String,
    /// Whether a quorum confirms the lease. Without confirmation nothing counts down.
    pub is_confirmed: bool,
    /// Remaining validity in percent of the TTL.
    pub left_percent: u64,
    /// The TTL. Units: milliseconds.
    pub ttl_ms: u64,
    /// Number of renewals, as text; empty for none.
    pub renewals: String,
    /// Fencing token; empty without a lease.
    pub fence: String,
    /// Number of waiters.
    pub waiting: usize,
}

impl LockRow {
    /// Whether there is a lease, active or expired.
    fn has_lease(&self) -> bool {
        !self.fence.is_empty()
    }
}

/// The figures above the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocksSummary {
    /// Number of active leases that the reader may see ([`Layout::of_locks`]); it means nothing unless `complete`.
    pub held: usize,
    /// Number of waiters that the reader may see ([`Layout::of_waiters`]).
    pub waiting: usize,
    /// Longest waiting time; `-` without waiters.
    pub longest_wait: String,
    /// Age of the snapshot. Units: milliseconds.
    pub age_ms: u64,
    /// `age_ms` as text.
    pub age: String,
    /// Whether the snapshot is complete: a quorum of the nodes listed all their leases.
    pub complete: bool,
    /// Whether the waiters of all other instances are known.
    pub waiters_known: bool,
}

#[derive(Debug, Template)]
#[template(path = "locks.html")]
pub(crate) struct LocksPage {
    layout: Layout,
    summary: LocksSummary,
    query: LocksQuery,
    tree: NameTree,
    columns: Vec<Column>,
    rows: Vec<LockRow>,
    paging: Paging,
    /// The prefix, if it is a valid name: a link to its page is offered.
    exact_name: Option<String>,
    /// Events of the last hour, and the graph of waits; absent above a filtered list.
    hour: HourSection,
    graph: WaitGraph,
    deadlocks: Vec<DeadlockRow>,
}

/// A resource before filtering and paging.
struct Candidate<'a> {
    name: &'a ResourceName,
    lease: Option<&'a SnapshotLease>,
    waiting: usize,
}

impl<'a> Candidate<'a> {
    fn owners(&self) -> impl Iterator<Item = &'a str> {
        self.lease.into_iter().flat_map(SnapshotLease::all).map(|lease| &*lease.labels().owner)
    }

    /// Whether the name or the holder's labels contain this text, given in lower case.
    fn contains(&self, text: &str) -> bool {
        let is_in = |whole: &str| whole.to_lowercase().contains(text);
        is_in(self.name.as_str())
            || self.lease.into_iter().flat_map(SnapshotLease::all).any(|lease| {
                let labels = lease.record.labels();
                is_in(&labels.owner) || is_in(&labels.note) || labels.metadata.values().any(|value| is_in(value))
            })
    }
}

/// The snapshot with the present time.
struct LockList<'a> {
    overview: &'a Overview,
    wall_ms: u64,
}

impl<'a> LockList<'a> {
    /// A lease that no quorum confirms has no validity.
    fn valid_for(&self, lease: &SnapshotLease) -> Duration {
        if !lease.is_confirmed {
            return Duration::ZERO;
        }
        lease.left.saturating_sub(self.overview.age).saturating_sub(self.overview.lock_delay)
    }

    fn is_listed(&self, lease: &SnapshotLease) -> bool {
        lease.left > self.overview.age
    }

    fn state(&self, candidate: &Candidate<'a>) -> ListedState {
        match candidate.lease {
            None => ListedState::Waited,
            Some(lease) if lease.all().all(|one| !one.is_confirmed) => ListedState::Unknown,
            Some(lease) if lease.all().all(|one| self.valid_for(one).is_zero()) => ListedState::LockDelay,
            Some(_) => ListedState::Held,
        }
    }

    fn together(&self, lease: &SnapshotLease) -> String {
        let count = lease.all().filter(|one| self.is_listed(one)).count();
        match lease.record.mode {
            Mode::Exclusive => String::new(),
            Mode::Shared => format!("{count} shared"),
            Mode::Permit { limit, .. } => format!("{count} of {limit} permits"),
        }
    }

    fn facts(&self, candidate: &Candidate<'a>) -> Option<&'a LabelSummary> {
        candidate.lease.map(SnapshotLease::labels)
    }

    fn summary(&self) -> LocksSummary {
        let overview = self.overview;
        LocksSummary {
            held: overview
                .leases
                .leases
                .values()
                .filter(|lease| lease.all().any(|one| !self.valid_for(one).is_zero()))
                .count(),
            waiting: overview.total_waiting(),
            longest_wait: overview.longest_wait.map_or_else(|| "-".to_owned(), format::time),
            age_ms: format::ms(overview.age),
            age: format::time(overview.age),
            complete: overview.leases.complete,
            waiters_known: overview.waiters_known,
        }
    }

    fn candidates(&self, query: &LocksQuery) -> Vec<Candidate<'a>> {
        let (leases, waiting) = (&self.overview.leases.leases, &self.overview.waiting);
        let has_waiters = !waiting.is_empty();
        let held = leases.iter().filter(|(_, lease)| lease.all().any(|one| self.is_listed(one)));
        let held = held.map(|(name, lease)| Candidate {
            name,
            lease: Some(lease),
            waiting: if has_waiters { waiting.get(name).copied().unwrap_or(0) } else { 0 },
        });
        let has_listed_lease = |name| leases.get(name).is_some_and(|lease| lease.all().any(|one| self.is_listed(one)));
        let waited = waiting.iter().filter(|(name, _)| !has_listed_lease(*name));
        let waited = waited.map(|(name, n)| Candidate { name, lease: None, waiting: *n });
        let (owner, find) = (query.owner.to_lowercase(), query.find.to_lowercase());
        let matches = |c: &Candidate<'a>| {
            c.name.as_str().starts_with(&query.prefix)
                && match query.state {
                    None => true,
                    Some(ListedState::Waited) => c.waiting > 0,
                    Some(wanted) => self.state(c) == wanted,
                }
                && (owner.is_empty() || c.owners().any(|name| name.to_lowercase().contains(&owner)))
                && (find.is_empty() || c.contains(&find))
        };
        held.chain(waited).filter(matches).collect()
    }

    fn compare(&self, sort: Sort, a: &Candidate<'a>, b: &Candidate<'a>) -> Ordering {
        let left = |c: &Candidate<'a>| c.lease.map_or(Duration::MAX, |lease| lease.left);
        let fence = |c: &Candidate<'a>| c.lease.map_or(0, |lease| lease.record.fence.0);
        // A later grant means a shorter time held.
        let granted_at = |c: &Candidate<'a>| self.facts(c).map_or(u64::MAX, |f| f.acquired_at_ms);
        match sort {
            Sort::Resource => Ordering::Equal,
            Sort::Owner => self.facts(a).map(|f| &*f.owner).cmp(&self.facts(b).map(|f| &*f.owner)),
            Sort::Held => granted_at(b).cmp(&granted_at(a)),
            Sort::Expires => left(a).cmp(&left(b)),
            Sort::Fence => fence(a).cmp(&fence(b)),
            Sort::Waiters => a.waiting.cmp(&b.waiting),
        }
    }

    /// The candidates of one page, in order; the others are not sorted.
    fn page_of(&self, query: &LocksQuery, mut all: Vec<Candidate<'a>>, paging: &Paging) -> Vec<Candidate<'a>> {
        let order = |a: &Candidate<'a>, b: &Candidate<'a>| {
            let by = self.compare(query.sort, a, b);
            let by = if query.sort == Sort::Resource { a.name.cmp(b.name) } else { by };
            let by = if query.descending { by.reverse() } else { by };
            by.then_with(|| a.name.cmp(b.name))
        };
        if paging.to < all.len() {
            all.select_nth_unstable_by(paging.to, order);
            all.truncate(paging.to);
        }
        all.sort_unstable_by(order);
        all.split_off(paging.from.min(all.len()))
    }

    fn row(&self, candidate: &Candidate<'a>) -> LockRow {
        let state = self.state(candidate);
        let text = ListedState::ALL.iter().find(|(s, ..)| *s == state).map_or("", |(.., text)| text);
        let severity = match state {
            ListedState::Held => Severity::Good,
            ListedState::LockDelay => Severity::Warn,
            ListedState::Unknown => Severity::Bad,
            ListedState::Waited => Severity::Neutral,
        };
        let mut row = LockRow {
            resource: candidate.name.to_string(),
            state: badge(text, severity),
            together: candidate.lease.map(|lease| self.together(lease)).unwrap_or_default(),
            owner: String::new(),
            owner_query: String::new(),
            note: String::new(),
            url: String::new(),
            acquired: String::new(),
            held_ms: 0,
            held: String::new(),
            left_ms: 0,
            left: String::new(),
            is_confirmed: candidate.lease.is_some_and(|lease| lease.is_confirmed),
            left_percent: 0,
            ttl_ms: 0,
            renewals: String::new(),
            fence: String::new(),
            waiting: candidate.waiting,
        };
        let Some(lease) = candidate.lease else { return row };
        let labels = lease.record.labels();
        let (left, held) = (self.valid_for(lease), format::since(self.wall_ms, labels.acquired_at_ms));
        row.ttl_ms = lease.record.ttl.as_ms();
        row.left_ms = format::ms(left);
        row.left = if lease.is_confirmed { format::clock(left) } else { "not known".to_owned() };
        row.left_percent = percent(row.left_ms, row.ttl_ms);
        row.fence = lease.record.fence.to_string();
        row.owner = format::visible(&labels.owner);
        row.owner_query = format::query(&labels.owner);
        row.note = format::visible(&labels.note);
        let url = labels.metadata.get("url").filter(|url| format::is_web_address(url));
        row.url = url.map(|url| format::visible(url)).unwrap_or_default();
        if lease.record.renewals > 0 {
            row.renewals = format!("{}×", format::number(lease.record.renewals));
        }
        if labels.acquired_at_ms > 0 {
            row.acquired = format::stamp(labels.acquired_at_ms);
            (row.held_ms, row.held) = (format::ms(held), format::clock(held));
        }
        row
    }
}

/// `part` in percent of `total`, 0 to 100.
fn percent(part: u64, total: u64) -> u64 {
    part.saturating_mul(100).checked_div(total).unwrap_or(0).min(100)
}

fn columns(query: &LocksQuery) -> Vec<Column> {
    let column = |(sort, text): (Sort, &'static str)| {
        let is_sorted = query.sort == sort;
        // The first click shows the usual interest first: the longest held, the next to expire, the most waiters.
        let descends_first = matches!(sort, Sort::Held | Sort::Fence | Sort::Waiters);
        let descending = if is_sorted { !query.descending } else { descends_first };
        let sorted = match (is_sorted, query.descending) {
            (false, _) => "none",
            (true, false) => "ascending",
            (true, true) => "descending",
        };
        Column { text, href: query.link(sort, descending), sorted }
    };
    [
        (Sort::Resource, "Resource"),
        (Sort::Owner, "Owner and note"),
        (Sort::Held, "Held for"),
        (Sort::Expires, "Expires in"),
        (Sort::Waiters, "Waiters"),
    ]
    .map(column)
    .into()
}

impl LocksPage {
    /// Units of `wall_ms`: milliseconds since 1970.
    pub(crate) fn new(layout: Layout, overview: &Overview, query: LocksQuery, wall_ms: u64) -> Self {
        let list = LockList { overview, wall_ms };
        let all = list.candidates(&query);
        let tree = NameTree::of(&query.prefix, all.iter().map(|c| (c.name.as_str(), c.waiting)));
        let paging = Paging::new(all.len(), query.page, query.link(query.sort, query.descending));
        let rows = list.page_of(&query, all, &paging).iter().map(|c| list.row(c)).collect();
        let exact_name = ResourceName::parse(&query.prefix).ok().map(|name| name.to_string());
        let (columns, hour, graph) = (columns(&query), HourSection::default(), WaitGraph::default());
        let (summary, deadlocks) = (list.summary(), Vec::new());
        Self { layout, summary, tree, columns, rows, paging, exact_name, query, hour, graph, deadlocks }
    }

    /// Whether the page has the section of the last hour: only above the unfiltered list.
    pub(crate) fn is_home(query: &LocksQuery) -> bool {
        !query.is_filtered() && query.page == 1
    }

    /// Sets the last hour and the waits.
    #[must_use]
    pub(crate) fn with_hour(self, hour: HourSection, graph: WaitGraph) -> Self {
        Self { hour, graph, ..self }
    }

    /// Sets the deadlocks.
    #[must_use]
    pub(crate) fn with_deadlocks(self, deadlocks: Vec<DeadlockRow>) -> Self {
        Self { deadlocks, ..self }
    }

    /// The link to the timeline of these names.
    fn timeline(&self) -> String {
        format!("/ui/timeline?prefix={}", format::query(&self.query.prefix))
    }
}

#[cfg(test)]
#[path = "locks_tests.rs"]
pub(crate) mod tests;
