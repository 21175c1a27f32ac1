//! The landing page: who holds what, since when, why, until when. Filters, sorts and pages the kept
//! snapshot; a hundred thousand leases are gone through once, and only the rows that are shown are
//! made. Knows no request.

use std::cmp::Ordering;
use std::time::Duration;

use askama::Template;

use super::badges::{Badge, Severity, badge};
use super::format;
use super::layout::Layout;
use super::paging::Paging;
use crate::manager::leases::{LabelSummary, SnapshotLease};
use crate::manager::overview::Overview;
use crate::types::ResourceName;

/// A column to sort by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// By name.
    #[default]
    Resource,
    /// By owner.
    Owner,
    /// Held the longest first, where downwards.
    Held,
    /// By the time left.
    Expires,
    /// By fencing token.
    Fence,
    /// By the number of waiters.
    Waiters,
}

impl Sort {
    /// All of them with their words in queries.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Resource, "resource"),
        (Self::Owner, "owner"),
        (Self::Held, "held"),
        (Self::Expires, "expires"),
        (Self::Fence, "fence"),
        (Self::Waiters, "waiters"),
    ];

    /// The word in queries.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(sort, _)| *sort == self).map_or("resource", |(_, word)| word)
    }
}

/// The state of a resource in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedState {
    /// A lease is running.
    Held,
    /// The last one has run out; its safety margin is passing.
    LockDelay,
    /// Nobody has it, and somebody waits for it here.
    Waited,
}

impl ListedState {
    /// Those that can be filtered by, with their words in queries and on the page.
    pub const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Held, "held", "held"),
        (Self::LockDelay, "lock-delay", "run out"),
        (Self::Waited, "waited", "waited for"),
    ];
}

/// What is to be shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocksQuery {
    /// Names that begin so.
    pub prefix: String,
    /// Owners that have this in them, whatever the case of its letters.
    pub owner: String,
    /// In this state. [`ListedState::Waited`]: all that somebody waits for.
    pub state: Option<ListedState>,
    /// By this column.
    pub sort: Sort,
    /// The largest first.
    pub descending: bool,
    /// From 1.
    pub page: usize,
}

impl LocksQuery {
    /// The page's address with these filters, sorted so.
    fn link(&self, sort: Sort, descending: bool) -> String {
        let mut parts = Vec::new();
        let mut add = |name: &str, value: &str| {
            if !value.is_empty() {
                parts.push(format!("{name}={}", format::query(value)));
            }
        };
        add("prefix", &self.prefix);
        add("owner", &self.owner);
        add("state", self.state_word());
        add("sort", if sort == Sort::default() { "" } else { sort.as_str() });
        add("dir", if descending { "desc" } else { "" });
        if parts.is_empty() { "/ui/".to_owned() } else { format!("/ui/?{}", parts.join("&")) }
    }

    /// The word of the state that is filtered by.
    pub fn state_word(&self) -> &'static str {
        ListedState::ALL.iter().find(|(state, ..)| Some(*state) == self.state).map_or("", |(_, word, _)| word)
    }

    /// Whether anything is left out.
    pub fn is_filtered(&self) -> bool {
        !self.prefix.is_empty() || !self.owner.is_empty() || self.state.is_some()
    }
}

/// A heading that sorts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// What it says.
    pub text: &'static str,
    /// Where it leads.
    pub href: String,
    /// For `aria-sort`: `ascending`, `descending` or `none`.
    pub sorted: &'static str,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRow {
    /// The name.
    pub resource: String,
    /// Its state.
    pub state: Badge,
    /// Who holds it, made visible; empty where nobody says.
    pub owner: String,
    /// The same for a query.
    pub owner_query: String,
    /// Why, made visible.
    pub note: String,
    /// When it was granted, for `datetime`; empty where nobody holds it.
    pub acquired: String,
    /// Since how long. Milliseconds.
    pub held_ms: u64,
    /// The same in words.
    pub held: String,
    /// What is left. Milliseconds.
    pub left_ms: u64,
    /// The same in words.
    pub left: String,
    /// What is left of the TTL, in percent.
    pub left_percent: u64,
    /// The TTL it was taken with. Milliseconds.
    pub ttl_ms: u64,
    /// How often it was extended, in words; empty for never.
    pub renewals: String,
    /// The fencing token.
    pub fence: String,
    /// How many wait here.
    pub waiting: usize,
}

impl LockRow {
    /// Whether somebody has, or had, a lease on it.
    pub fn is_held(&self) -> bool {
        !self.fence.is_empty()
    }
}

/// The strip above the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocksSummary {
    /// Leases that are running, in the whole cluster.
    pub held: usize,
    /// Requests that wait in this instance.
    pub waiting: usize,
    /// The longest wait in words; `-` where nobody waits.
    pub longest_wait: String,
    /// Of how long ago. Milliseconds.
    pub age_ms: u64,
    /// The same in words.
    pub age: String,
    /// A quorum of the nodes told all they have.
    pub complete: bool,
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "locks.html")]
pub struct LocksPage {
    layout: Layout,
    strip: LocksSummary,
    query: LocksQuery,
    columns: Vec<Column>,
    rows: Vec<LockRow>,
    paging: Paging,
    /// The prefix is a whole name: it can be looked up, whoever holds it.
    exact: Option<String>,
}

/// What a row is made of, before it is known whether it is shown.
struct Candidate<'a> {
    name: &'a ResourceName,
    lease: Option<(&'a SnapshotLease, usize)>,
    waiting: usize,
}

struct Scene<'a> {
    overview: &'a Overview,
    wall_ms: u64,
}

impl<'a> Scene<'a> {
    fn valid_for(&self, lease: &SnapshotLease) -> Duration {
        lease.left.saturating_sub(self.overview.age).saturating_sub(self.overview.lock_delay)
    }

    fn is_there(&self, lease: &SnapshotLease) -> bool {
        lease.left > self.overview.age
    }

    fn state(&self, candidate: &Candidate<'_>) -> ListedState {
        match candidate.lease {
            None => ListedState::Waited,
            Some((lease, _)) if self.valid_for(lease).is_zero() => ListedState::LockDelay,
            Some(_) => ListedState::Held,
        }
    }

    fn facts(&self, candidate: &Candidate<'_>) -> Option<&'a LabelSummary> {
        candidate.lease.and_then(|(_, i)| self.overview.leases.facts().get(i))
    }

    fn strip(&self) -> LocksSummary {
        let overview = self.overview;
        LocksSummary {
            held: overview.leases.leases.values().filter(|lease| !self.valid_for(lease).is_zero()).count(),
            waiting: overview.waiting.values().sum(),
            longest_wait: overview.longest_wait.map_or_else(|| "-".to_owned(), format::time),
            age_ms: format::ms(overview.age),
            age: format::time(overview.age),
            complete: overview.leases.complete,
        }
    }

    fn candidates(&self, query: &LocksQuery) -> Vec<Candidate<'a>> {
        let (leases, waiting) = (&self.overview.leases.leases, &self.overview.waiting);
        let has_waiters = !waiting.is_empty();
        let held = leases.iter().enumerate().filter(|(_, (_, lease))| self.is_there(lease));
        let held = held.map(|(i, (name, lease))| Candidate {
            name,
            lease: Some((lease, i)),
            waiting: if has_waiters { waiting.get(name).copied().unwrap_or(0) } else { 0 },
        });
        let is_listed = |name| leases.get(name).is_some_and(|lease| self.is_there(lease));
        let waited = waiting.iter().filter(|(name, _)| !is_listed(*name));
        let waited = waited.map(|(name, n)| Candidate { name, lease: None, waiting: *n });
        let owner = query.owner.to_lowercase();
        let fits = |c: &Candidate<'_>| {
            c.name.as_str().starts_with(&query.prefix)
                && match query.state {
                    None => true,
                    Some(ListedState::Waited) => c.waiting > 0,
                    Some(wanted) => self.state(c) == wanted,
                }
                && (owner.is_empty() || self.facts(c).is_some_and(|f| f.owner.to_lowercase().contains(&owner)))
        };
        held.chain(waited).filter(fits).collect()
    }

    fn compare(&self, sort: Sort, a: &Candidate<'_>, b: &Candidate<'_>) -> Ordering {
        let left = |c: &Candidate<'_>| c.lease.map_or(Duration::MAX, |(lease, _)| lease.left);
        let fence = |c: &Candidate<'_>| c.lease.map_or(0, |(lease, _)| lease.record.fence.0);
        // The later it was taken, the shorter it is held.
        let taken = |c: &Candidate<'_>| self.facts(c).map_or(u64::MAX, |f| f.acquired_at_ms);
        match sort {
            Sort::Resource => Ordering::Equal,
            Sort::Owner => self.facts(a).map(|f| &*f.owner).cmp(&self.facts(b).map(|f| &*f.owner)),
            Sort::Held => taken(b).cmp(&taken(a)),
            Sort::Expires => left(a).cmp(&left(b)),
            Sort::Fence => fence(a).cmp(&fence(b)),
            Sort::Waiters => a.waiting.cmp(&b.waiting),
        }
    }

    /// The candidates of one page, in order; the others are only parted from them.
    fn shown(&self, query: &LocksQuery, mut all: Vec<Candidate<'a>>, paging: &Paging) -> Vec<Candidate<'a>> {
        let order = |a: &Candidate<'_>, b: &Candidate<'_>| {
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
        let word = ListedState::ALL.iter().find(|(s, ..)| *s == state).map_or("", |(.., word)| word);
        let severity = match state {
            ListedState::Held => Severity::Good,
            ListedState::LockDelay => Severity::Warn,
            ListedState::Waited => Severity::Neutral,
        };
        let mut row = LockRow {
            resource: candidate.name.to_string(),
            state: badge(word, severity),
            owner: String::new(),
            owner_query: String::new(),
            note: String::new(),
            acquired: String::new(),
            held_ms: 0,
            held: String::new(),
            left_ms: 0,
            left: String::new(),
            left_percent: 0,
            ttl_ms: 0,
            renewals: String::new(),
            fence: String::new(),
            waiting: candidate.waiting,
        };
        let Some((lease, _)) = candidate.lease else { return row };
        let labels = lease.record.labels();
        let (left, held) = (self.valid_for(lease), format::since(self.wall_ms, labels.acquired_at_ms));
        row.ttl_ms = lease.record.ttl.as_ms();
        row.left_ms = format::ms(left);
        row.left = format::clock(left);
        row.left_percent = percent(row.left_ms, row.ttl_ms);
        row.fence = lease.record.fence.to_string();
        row.owner = format::visible(&labels.owner);
        row.owner_query = format::query(&labels.owner);
        row.note = format::visible(&labels.note);
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

/// A part of a whole, 0 to 100.
pub fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0).min(100)
}

fn columns(query: &LocksQuery) -> Vec<Column> {
    let column = |(sort, text): (Sort, &'static str)| {
        let is_sorted = query.sort == sort;
        // What is looked for first comes first: the longest held, the next to end, the most wanted.
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
        (Sort::Fence, "Fence"),
        (Sort::Waiters, "Waiters"),
    ]
    .map(column)
    .into()
}

impl LocksPage {
    /// The page. `wall_ms`: now, on the wall clock.
    pub fn new(layout: Layout, overview: &Overview, query: LocksQuery, wall_ms: u64) -> Self {
        let scene = Scene { overview, wall_ms };
        let all = scene.candidates(&query);
        let paging = Paging::new(all.len(), query.page, query.link(query.sort, query.descending));
        let rows = scene.shown(&query, all, &paging).iter().map(|c| scene.row(c)).collect();
        let exact = ResourceName::parse(&query.prefix).ok().map(|name| name.to_string());
        Self { layout, strip: scene.strip(), columns: columns(&query), rows, paging, exact, query }
    }
}

#[cfg(test)]
#[path = "locks_tests.rs"]
mod tests;
