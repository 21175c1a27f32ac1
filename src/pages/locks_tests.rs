//! The list of locks: rows, filters, order, paging and untrusted texts.

use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::manager::lease_snapshot::Snapshot;
use crate::pages::paging::PAGE_ROWS;
use crate::protocol::LeaseRecord;
use crate::redlock::clock::BootTime;
use crate::types::Labels;

pub(crate) const NOW_MS: u64 = 1_795_198_023_120;

fn lease(owner: &str, note: &str, held_s: u64, left_s: u64, fence: u64) -> SnapshotLease {
    let labels = Labels {
        owner: owner.into(),
        note: note.into(),
        metadata: [("build".to_owned(), format!("#{fence}"))].into(),
        acquired_at_ms: NOW_MS - held_s * 1_000,
        ..Labels::default()
    };
    let value = format!("{}|000002|60000|{fence}|p,|{}", "a".repeat(64), labels.encode());
    let record = LeaseRecord::parse(value.as_bytes()).expect("a record");
    SnapshotLease::new(record, Duration::from_secs(left_s), true)
}

fn name(name: &str) -> ResourceName {
    ResourceName::parse(name).expect("valid")
}

fn overview(leases: Vec<(&str, SnapshotLease)>, waiting: &[(&str, usize)]) -> Overview {
    let leases = leases.into_iter().map(|(n, lease)| (name(n), lease)).collect();
    Overview {
        leases: Arc::new(Snapshot::of(leases, BootTime::default(), true)),
        age: Duration::from_secs(1),
        lock_delay: Duration::from_secs(1),
        waiting: waiting.iter().map(|(n, count)| (name(n), *count)).collect::<HashMap<_, _>>(),
        longest_wait: Some(Duration::from_secs(75)),
        instance: crate::protocol::InstanceName::from_random(1),
        unnamed: 0,
        waiters_known: true,
    }
}

pub(crate) fn layout() -> Layout {
    use crate::manager::overview::ClusterStatus;
    use crate::manager::types::QuorumCount;
    let quorum = QuorumCount { granted: 5, needed: 3, nodes: 5 };
    Layout::new(
        &ClusterStatus {
            nodes: Vec::new(),
            quorum,
            draining: false,
            instance: crate::protocol::InstanceName::from_random(1),
            situation: Default::default(),
            list: Default::default(),
        },
        crate::pages::layout::Tab::Locks,
        "Locks",
        "/ui/",
    )
}

fn page(overview: &Overview, query: LocksQuery) -> LocksPage {
    LocksPage::new(layout(), overview, query, NOW_MS)
}

fn names(page: &LocksPage) -> Vec<&str> {
    page.rows.iter().map(|row| row.resource.as_str()).collect()
}

pub(crate) fn four() -> Overview {
    overview(
        vec![
            ("deploy/prod", lease("ci-4711", "release 1.9", 300, 32, 9)),
            ("deploy/test", lease("CI-12", "", 10, 62, 7)),
            ("import", lease("", "nightly", 90, 2, 8)),
            ("over", lease("x", "", 90, 1, 5)),
        ],
        &[("deploy/prod", 3), ("next", 1)],
    )
}

#[test]
fn a_row_shows_owner_note_times_fence_and_waiters() {
    let overview = four();
    let page = page(&overview, LocksQuery::default());
    assert_eq!(names(&page), ["deploy/prod", "next", "deploy/test", "import"], "the most waited for first");
    let row = &page.rows[0];
    assert_eq!((row.owner.as_str(), row.note.as_str(), row.fence.as_str()), ("ci-4711", "release 1.9", "9"));
    assert_eq!((row.held.as_str(), row.left.as_str(), row.left_percent), ("5 m 00 s", "30 s", 50));
    assert_eq!((row.waiting, row.renewals.as_str(), row.state.text.as_str()), (3, "2×", "held"));
    assert_eq!(page.rows[3].state.text, "expired", "only the safety margin is left");
    assert_eq!(page.rows[1].state.text, "waited for");
    let summary = &page.summary;
    assert_eq!((summary.held, summary.waiting, summary.longest_wait.as_str()), (2, 4, "1 m 15 s"));
}

#[test]
fn the_list_is_filtered_by_prefix_owner_and_state() {
    let overview = four();
    let with = |change: fn(&mut LocksQuery)| {
        let mut query = LocksQuery::default();
        change(&mut query);
        names(&page(&overview, query)).join(" ")
    };
    assert_eq!(with(|q| q.prefix = "deploy/".into()), "deploy/prod deploy/test");
    assert_eq!(with(|q| q.owner = "ci-".into()), "deploy/prod deploy/test");
    assert_eq!(with(|q| q.state = Some(ListedState::Held)), "deploy/prod deploy/test");
    assert_eq!(with(|q| q.state = Some(ListedState::LockDelay)), "import");
    assert_eq!(with(|q| q.state = Some(ListedState::Waited)), "deploy/prod next");
    assert_eq!(with(|q| q.owner = "nobody".into()), "");
    assert_eq!(with(|q| q.find = "PROD".into()), "deploy/prod");
    assert_eq!(with(|q| q.find = "ci-".into()), "deploy/prod deploy/test");
    assert_eq!(with(|q| q.find = "x".into()), "next");
    assert_eq!(with(|q| q.find = "nightly".into()), "import", "its note");
    assert_eq!(with(|q| q.find = "#7".into()), "deploy/test", "its metadata");
}

#[test]
fn every_column_sorts_both_ways() {
    let overview = four();
    let sorted =
        |sort, descending| names(&page(&overview, LocksQuery { sort, descending, ..LocksQuery::default() })).join(" ");
    assert_eq!(sorted(Sort::Resource, true), "next import deploy/test deploy/prod");
    assert_eq!(sorted(Sort::Held, true), "deploy/prod import deploy/test next");
    assert_eq!(sorted(Sort::Expires, false), "import deploy/prod deploy/test next");
    assert_eq!(sorted(Sort::Fence, true), "deploy/prod import deploy/test next");
    assert_eq!(sorted(Sort::Waiters, true), "deploy/prod next deploy/test import");
    assert_eq!(sorted(Sort::Waiters, false), "deploy/test import next deploy/prod");
    assert_eq!(sorted(Sort::Owner, false), "next import deploy/test deploy/prod");
}

#[test]
fn links_of_columns_keep_the_filters_and_reverse_the_order() {
    let overview = four();
    let query = LocksQuery {
        prefix: "deploy/".into(),
        owner: "a&b".into(),
        sort: Sort::Held,
        descending: true,
        ..LocksQuery::default()
    };
    let page = page(&overview, query);
    let held = page.columns.iter().find(|c| c.text == "Held for").expect("a column");
    assert_eq!((held.sorted, held.href.as_str()), ("descending", "/ui/?prefix=deploy/&owner=a%26b&sort=held"));
    let waiters = page.columns.iter().find(|c| c.text == "Waiters").expect("a column");
    assert_eq!((waiters.sorted, waiters.href.as_str()), ("none", "/ui/?prefix=deploy/&owner=a%26b"));
}

#[test]
fn a_row_links_the_address_in_its_metadata_and_nothing_else() {
    let with = |url: &str| {
        let labels = Labels { metadata: [("url".to_owned(), url.to_owned())].into(), ..Labels::default() };
        let value = format!("{}|000000|60000|1|p,|{}", "a".repeat(64), labels.encode());
        let record = LeaseRecord::parse(value.as_bytes()).expect("a record");
        let overview = overview(vec![("a", SnapshotLease::new(record, Duration::from_secs(60), true))], &[]);
        page(&overview, LocksQuery::default()).render().expect("a page")
    };
    assert!(with("https://ci.example/job/7").contains("<a class=\"job\" href=\"https://ci.example/job/7\""));
    assert!(!with("javascript:alert(1)").contains("javascript:"));
}

#[test]
fn an_owner_is_linked_by_the_template_unless_the_metadata_has_an_address() {
    let with = |template: &str, owner: &str, url: &str| {
        let metadata = if url.is_empty() { [].into() } else { [("url".to_owned(), url.to_owned())].into() };
        let labels = Labels { owner: owner.to_owned(), metadata, ..Labels::default() };
        let value = format!("{}|000000|60000|1|p,|{}", "a".repeat(64), labels.encode());
        let record = LeaseRecord::parse(value.as_bytes()).expect("a record");
        let overview = overview(vec![("a", SnapshotLease::new(record, Duration::from_secs(60), true))], &[]);
        let mut page = page(&overview, LocksQuery::default());
        page.layout = page.layout.with_owner_url(template);
        page.render().expect("a page")
    };
    let ci = "https://ci.example/job/{owner}/log";
    for (owner, url, link) in [
        ("ci-4711", "", "https://ci.example/job/ci-4711/log"),
        ("a/../b?\"", "", "https://ci.example/job/a%2F..%2Fb%3F%22/log"),
        ("ci-4711", "https://own.example/7", "https://own.example/7"),
    ] {
        assert!(with(ci, owner, url).contains(&format!("<a class=\"job\" href=\"{link}\"")), "{owner}");
    }
    for (template, owner) in [("", "ci-4711"), (ci, ".."), (ci, "")] {
        assert!(!with(template, owner, "").contains("class=\"job\""), "{template}: {owner}");
    }
}

#[test]
fn pages_together_contain_every_lock_once_in_every_order() {
    let all: Vec<String> = (0..250).map(|i| format!("r/{i:03}")).collect();
    let leases = all.iter().enumerate().map(|(i, n)| (n.as_str(), lease("o", "", i as u64 % 7, 60, i as u64 % 5)));
    let overview = overview(leases.collect(), &[]);
    for (sort, _) in Sort::ALL {
        let mut seen = Vec::new();
        for number in 1..=3 {
            let page = page(&overview, LocksQuery { sort, page: number, ..LocksQuery::default() });
            assert!(page.rows.len() <= PAGE_ROWS);
            seen.extend(page.rows.into_iter().map(|row| row.resource));
        }
        seen.sort_unstable();
        assert_eq!(seen, all, "{sort:?}");
    }
}

/// Names cannot contain such characters; owners and notes can.
#[test]
fn untrusted_texts_are_escaped() {
    let hostile = "\"><script>alert(1)</script><img src=x onerror=alert(2)>' {{7*7}} \u{202e}";
    let overview = overview(vec![("a", lease(hostile, hostile, 1, 60, 1))], &[]);
    // The filter that was typed is returned unchanged, but escaped.
    let query = LocksQuery { prefix: hostile.trim_end_matches('\u{202e}').into(), ..LocksQuery::default() };
    for html in [page(&overview, LocksQuery::default()), page(&overview, query)].map(|p| p.render().expect("a page")) {
        assert!(
            !html.contains("<script>alert") && !html.contains("<img src=x") && !html.contains('\u{202e}'),
            "{html}"
        );
    }
}

#[test]
fn an_incomplete_list_has_a_warning() {
    let mut overview = four();
    assert!(!page(&overview, LocksQuery::default()).render().expect("a page").contains("fewer than a quorum"));
    let leases = overview.leases.leases.clone();
    overview.leases = Arc::new(Snapshot::of(leases, BootTime::default(), false));
    assert!(page(&overview, LocksQuery::default()).render().expect("a page").contains("fewer than a quorum"));
}

#[test]
fn the_home_page_has_the_last_hour_and_the_waits_and_a_filtered_list_has_not() {
    use crate::manager::activity::Hour;
    use crate::manager::overview::ListedWaiter;
    use crate::pages::activity::HourSection;
    use crate::pages::wait_graph::WaitGraph;
    let overview = four();
    let waiter = ListedWaiter {
        resource: name("deploy/prod"),
        instance: crate::protocol::InstanceName::from_random(1),
        position: 1,
        owner: "</text><script>".into(),
        waiting: Duration::from_secs(1),
        left: None,
        note: "".into(),
        is_ticket: false,
    };
    let hour = Hour { contended: [("hot".to_owned(), 7)].into(), ..Hour::default() };
    let hour = HourSection::new(&hour, &overview, |_| true, true, NOW_MS);
    let html = |query: LocksQuery| {
        let page =
            page(&overview, query).with_hour(hour.clone(), WaitGraph::new(&overview, std::slice::from_ref(&waiter)));
        page.render().expect("a page")
    };
    let home = html(LocksQuery::default());
    for part in ["The last hour", "Grants", "href=\"/ui/locks/hot\"", "Who waits for whom", "class=\"arrow\""] {
        assert!(home.contains(part), "{part}: {home}");
    }
    assert!(!home.contains("</text><script>"), "{home}");
    assert!(!html(LocksQuery { page: 2, ..LocksQuery::default() }).contains("The last hour"));
    assert!(!html(LocksQuery { find: "x".into(), ..LocksQuery::default() }).contains("The last hour"));
}
