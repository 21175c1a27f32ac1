//! The page of leases and waiters by owner. Owners are labels that holders give themselves.

use std::collections::HashMap;
use std::time::Duration;

use askama::Template;

use super::format;
use super::layout::Layout;
use super::paging::Paging;
use super::table_query::TableQuery;
use crate::manager::overview::{ListedWaiter, Overview};

/// Number of resources that are listed for each owner.
const NAMED: usize = 3;

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
    /// `next_end` in milliseconds.
    pub next_end_ms: u64,
}

#[derive(Debug, Template)]
#[template(path = "owners.html")]
pub(crate) struct OwnersPage {
    layout: Layout,
    rows: Vec<OwnerRow>,
    query: TableQuery,
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
    /// Units of `wall_ms`: milliseconds since 1970.
    pub(crate) fn new(
        layout: Layout,
        overview: &Overview,
        waiters: &[ListedWaiter],
        query: TableQuery,
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
        let mut all: Vec<(&str, Sum<'_>)> = sums.into_iter().filter(|(owner, _)| query.finds([*owner])).collect();
        sort(&query, &mut all);
        let paging = query.paging(all.len());
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
        Self { layout, rows, query, paging, complete: snapshot.complete, age, age_ms }
    }
}

fn sort(query: &TableQuery, all: &mut [(&str, Sum<'_>)]) {
    all.sort_unstable_by(|(a, x), (b, y)| {
        let by = match query.sort {
            "owner" => a.cmp(b),
            "waiters" => x.waiting.cmp(&y.waiting),
            // An earlier grant means a longer time held.
            "held" => y.oldest_ms.unwrap_or(u64::MAX).cmp(&x.oldest_ms.unwrap_or(u64::MAX)),
            "expires" => x.next_end.unwrap_or(Duration::MAX).cmp(&y.next_end.unwrap_or(Duration::MAX)),
            _ => (x.leases, x.waiting).cmp(&(y.leases, y.waiting)),
        };
        query.ordered(by).then_with(|| a.cmp(b))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::locks::tests::{NOW_MS, four, layout};
    use crate::pages::table_query::OWNERS;

    #[test]
    fn owners_are_found_and_ordered() {
        let waiter = crate::pages::waiters::tests::waiter("deploy/prod", "zoe", 9, Some(1));
        let shown = |query: TableQuery| {
            let page = OwnersPage::new(layout(), &four(), std::slice::from_ref(&waiter), query, NOW_MS);
            page.rows.iter().map(|row| row.owner.clone()).collect::<Vec<_>>()
        };
        let all = shown(TableQuery::of(OWNERS));
        assert_eq!(all.last().map(String::as_str), Some("zoe"), "without a lease: {all:?}");
        let by = |sort, descending| shown(TableQuery { sort, descending, ..TableQuery::of(OWNERS) });
        assert_eq!(by("waiters", true)[0], "zoe");
        let mut names = all.clone();
        names.sort();
        assert_eq!(by("owner", false), names);
        names.reverse();
        assert_eq!(by("owner", true), names);
        assert_eq!(by("expires", false).last().map(String::as_str), Some("zoe"), "who has nothing is the last");
        assert_eq!(shown(TableQuery { find: "ZO".to_owned(), ..TableQuery::of(OWNERS) }), ["zoe"]);
    }
}
