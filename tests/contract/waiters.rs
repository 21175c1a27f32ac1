//! Cases about the waiters that instances publish on a node.

use std::time::Duration;

use redlockd::protocol::{InstanceName, PublishedWaitersPage, Reply, Request, WaitersArgs};

use super::subject::Subject;

const TTL: Duration = Duration::from_millis(400);

fn exchange(node: &mut impl Subject, instance: &str, entry: Option<&str>, cursor: u64) -> PublishedWaitersPage {
    let (instance, entry) = (InstanceName::parse(instance).expect("valid"), entry.map(Into::into));
    // Two exchanges are never at the same microsecond of the node's clock.
    node.pass(Duration::from_micros(10));
    match node.ask(&Request::Waiters(WaitersArgs { instance, entry, ttl: TTL, cursor })) {
        Reply::Waiters(page) => page,
        other => panic!("{other:?}"),
    }
}

fn shown(page: &PublishedWaitersPage) -> Vec<(&str, &str)> {
    let text = |entry| std::str::from_utf8(entry).expect("UTF-8");
    page.entries.iter().map(|listed| (listed.instance.as_str(), text(&listed.entry))).collect()
}

pub fn waiters_are_read_once_by_each_other_instance_until_they_change_or_run_out(node: &mut impl Subject) {
    let nothing = exchange(node, "a", None, 0);
    assert_eq!((nothing.is_published, nothing.cursor, shown(&nothing)), (false, 0, vec![]));
    let own = exchange(node, "a", Some("one"), 0);
    assert_eq!((own.is_published, own.has_more, shown(&own)), (true, false, vec![]));
    let seen = exchange(node, "b", Some("two"), 0);
    assert_eq!((seen.is_published, shown(&seen)), (true, vec![("a", "one")]));
    assert!((100..=400).contains(&seen.entries[0].left_ms), "{seen:?}");
    assert_eq!(shown(&exchange(node, "a", None, own.cursor)), [("b", "two")]);
    let again = exchange(node, "b", None, seen.cursor);
    assert_eq!((again.cursor, shown(&again)), (seen.cursor, vec![]));
    exchange(node, "a", Some("three"), 0);
    assert_eq!(shown(&exchange(node, "b", None, seen.cursor)), [("a", "three")]);
    assert_eq!(shown(&exchange(node, "c", None, 0)), [("b", "two"), ("a", "three")]);
    let future = node.now_us() + 60_000_000;
    assert_eq!(shown(&exchange(node, "c", None, future)).len(), 2, "a cursor from before the clock went back");
    node.pass(TTL + Duration::from_millis(2));
    assert_eq!(shown(&exchange(node, "c", None, 0)), []);
}

pub fn the_waiters_of_many_instances_come_in_pages(node: &mut impl Subject) {
    let names: Vec<String> = (0..11).map(|i| format!("instance-{i:02}")).collect();
    for name in &names {
        assert!(exchange(node, name, Some("x"), 0).is_published);
    }
    let first = exchange(node, "reader", None, 0);
    let second = exchange(node, "reader", None, first.cursor);
    assert_eq!((first.has_more, second.has_more), (true, false));
    let all: Vec<&str> = shown(&first).into_iter().chain(shown(&second)).map(|(name, _)| name).collect();
    assert_eq!((shown(&first).len(), all), (8, names.iter().map(String::as_str).collect()));
    // Instances that are gone do not fill the pages.
    node.pass(TTL + Duration::from_millis(2));
    for _ in 0..2 {
        assert!(exchange(node, "late", Some("y"), 0).is_published);
    }
    let page = exchange(node, "reader", None, 0);
    assert_eq!((page.has_more, shown(&page)), (false, vec![("late", "y")]));
}
