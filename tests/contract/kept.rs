//! Cases about the index of kept leases.

use std::time::Duration;

use redlockd::protocol::{KEPT_PAGE_MAX, KEPT_PAUSE, KeptArgs, KeptPage, Reply, Request};

use super::subject::{Subject, acquire, name};

fn exchange(node: &mut impl Subject, add: &[&str]) -> KeptPage {
    match node.ask(&Request::Kept(KeptArgs { add: add.iter().map(|text| name(text)).collect() })) {
        Reply::Kept(page) => page,
        other => panic!("{other:?}"),
    }
}

fn due(page: &KeptPage) -> Vec<&str> {
    let mut names: Vec<&str> = page.due.iter().map(|lease| lease.resource.as_str()).collect();
    names.sort_unstable();
    names
}

fn hold(node: &mut impl Subject, resource: &str, ttl_ms: u64) {
    let reply = node.ask(&acquire(resource, 7, 7, ttl_ms));
    assert!(matches!(reply, Reply::Granted { .. }), "{reply:?}");
}

pub fn a_kept_lease_is_due_when_half_of_its_ttl_has_passed(node: &mut impl Subject) {
    hold(node, "x", 4_000);
    let first = exchange(node, &["x", "y"]);
    assert_eq!((first.is_indexed, first.has_more, due(&first)), (true, false, vec![]), "{first:?}");
    node.pass(Duration::from_millis(2_001));
    let shown = node.now_us();
    let late = exchange(node, &[]);
    assert_eq!(due(&late), ["x"]);
    assert_eq!((late.due[0].record.ttl.as_ms(), &*late.due[0].record.labels), (4_000, r#"{"o":"me|you"}"#));
    let again = exchange(node, &[]);
    if Duration::from_micros(node.now_us() - shown) < KEPT_PAUSE {
        assert_eq!(due(&again), [""; 0], "somebody was shown it just now");
    }
    node.pass(KEPT_PAUSE + Duration::from_millis(1));
    assert_eq!(due(&exchange(node, &[])), ["x"], "and has done nothing");
    assert_eq!(due(&exchange(node, &["x"])), ["x"], "whoever indexes it anew looks at it");
}

pub fn what_is_no_lease_leaves_the_index(node: &mut impl Subject) {
    let names: Vec<String> = (0..KEPT_PAGE_MAX).map(|i| format!("gone/{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).chain(["last"]).collect();
    let (most, last) = names.split_at(KEPT_PAGE_MAX);
    let full = exchange(node, most);
    assert_eq!((full.is_indexed, full.has_more, due(&full)), (true, true, vec![]));
    let rest = exchange(node, last);
    assert_eq!((rest.has_more, due(&rest)), (false, vec![]));
    hold(node, "gone/1", 100);
    node.pass(Duration::from_millis(200));
    assert_eq!(due(&exchange(node, &[])), [""; 0], "it is indexed no more");
}
