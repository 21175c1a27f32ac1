//! The page of leases and waiters by owner. Owners are labels that holders give themselves.

use std::collections::HashMap;
use std::time::Duration;

use askama::Template;

use super::format;
use super::layout::Layout;
use super::paging::Paging;
use crate::manager::overview::{ListedWaiter, Overview};

/// Number of resources that are listed for each owner.
const NAMED: usize = 3;

/// One owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnerRow {
    /// Owner label; empty for leases without one.
    pub owner: String,
    /// The owner label, encoded for a query.
    pub owner_query: String,
    /// Number of leases.
    pub leases: usize,
    /// Number of waiters.
    pub waiting: usize,
    /// The first [`NAMED`] resources.
    pub resources: Vec<String>,
    /// Age of the oldest lease; `-` if there is none.
    pub longest: String,
    /// Time until the first of its leases expires; `-` if there is none.
    pub next_end: String,
    /// The same in milliseconds.
    pub next_end_ms: u64,
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "owners.html")]
pub(crate) struct OwnersPage {
    layout: Layout,
    rows: Vec<OwnerRow>,
    paging: Paging,
    complete: bool,
    age: String,
    age_ms: u64,
}

#[derive(Default)]
struct Sum<'a> {
    leases: usize,
    waiting: usize,
    resources: Vec<&'a str>,
    oldest_ms: Option<u64>,
    next_end: Option<Duration>,
}

impl OwnersPage {
    /// The owner with the most leases comes first. Units of `wall_ms`: milliseconds since 1970.
    pub(crate) fn new(
        layout: Layout,
        overview: &Overview,
        waiters: &[ListedWaiter],
        page: usize,
        wall_ms: u64,
    ) -> Self {
        let snapshot = &overview.leases;
        let mut sums: HashMap<&str, Sum<'_>> = HashMap::new();
        let all = snapshot.leases.iter().flat_map(|(name, lease)| lease.all().map(move |one| (name, one)));
        let held = all.filter(|(_, lease)| lease.is_confirmed && lease.left > overview.age);
        for (resource, lease) in held {
            let facts = lease.labels();
            let sum = sums.entry(&facts.owner).or_default();
            sum.leases += 1;
            if sum.resources.len() < NAMED {
                sum.resources.push(resource.as_str());
            }
            if facts.acquired_at_ms > 0 {
                sum.oldest_ms = Some(sum.oldest_ms.map_or(facts.acquired_at_ms, |at| at.min(facts.acquired_at_ms)));
            }
            sum.next_end = Some(sum.next_end.map_or(lease.left, |left| left.min(lease.left)));
        }
        for waiter in waiters {
            sums.entry(&waiter.owner).or_default().waiting += 1;
        }
        let mut all: Vec<(&str, Sum<'_>)> = sums.into_iter().collect();
        all.sort_unstable_by(|(a, x), (b, y)| (y.leases, y.waiting).cmp(&(x.leases, x.waiting)).then_with(|| a.cmp(b)));
        let paging = Paging::new(all.len(), page, "/ui/owners".to_owned());
        let row = |(owner, sum): &(&str, Sum<'_>)| {
            let next_end =
                sum.next_end.map(|left| left.saturating_sub(overview.age).saturating_sub(overview.lock_delay));
            OwnerRow {
                owner: format::visible(owner),
                owner_query: format::query(owner),
                leases: sum.leases,
                waiting: sum.waiting,
                resources: sum.resources.iter().map(ToString::to_string).collect(),
                longest: sum.oldest_ms.map_or_else(|| "-".to_owned(), |at| format::clock(format::since(wall_ms, at))),
                next_end: next_end.map_or_else(|| "-".to_owned(), format::clock),
                next_end_ms: next_end.map_or(0, format::ms),
            }
        };
        let rows = all[paging.from..paging.to].iter().map(row).collect();
        let (age, age_ms) = (format::time(overview.age), format::ms(overview.age));
        Self { layout, rows, paging, complete: snapshot.complete, age, age_ms }
    }
}
