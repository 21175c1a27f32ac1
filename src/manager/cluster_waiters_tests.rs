//! What an instance publishes and when, and what it believes of the others.

use super::*;
use crate::manager::moved_places::OwnPlaces;
use crate::protocol::FIRST_WAITERS_MAX;
use crate::types::{WaitId, WantedMode};

fn at(ms: u64) -> BootTime {
    BootTime::default().plus(Duration::from_mins(1)).plus(Duration::from_millis(ms))
}

fn waiter(resource: &str, owner: &str, since_ms: u64) -> (ResourceName, usize, WaiterEntry) {
    let resource = ResourceName::parse(resource).expect("valid");
    let (owner, mode, note) = (owner.into(), WantedMode::Exclusive, "n".into());
    let (since, until, is_ticket) = (at(since_ms), at(since_ms + 60_000), since_ms.is_multiple_of(2));
    (resource, 1, WaiterEntry { owner, mode, since, until, note, is_ticket })
}

fn own(count: u64) -> OwnWaiters {
    OwnWaiters::of((0..count).map(|i| waiter("x", &format!("owner-{i}"), i)).collect(), OwnPlaces::new())
}

fn listed(instance: u64, left_ms: u64, entry: &WaitersEntry) -> ListedEntry {
    ListedEntry { instance: InstanceName::from_random(instance), left_ms, entry: entry.encode().as_bytes().into() }
}

fn name() -> ResourceName {
    ResourceName::parse("x").expect("valid")
}

#[test]
fn an_entry_names_the_first_waiters_of_each_resource_and_counts_all() {
    let mut all: Vec<_> = (0..10).map(|i| waiter("x", &format!("owner-{i}"), i)).collect();
    all.insert(1, waiter("y", "", 0));
    let entry = OwnWaiters::of(all, OwnPlaces::new()).entry(7, at(1_000));
    assert_eq!((entry.stamp, entry.waiting, entry.oldest_ms), (7, 11, 1_000));
    let shown: Vec<_> = entry.resources.iter().map(|r| (&*r.resource, r.waiting, r.first.len())).collect();
    assert_eq!(shown, [("x", 10, FIRST_WAITERS_MAX), ("y", 1, 1)]);
    let third = &entry.resources[0].first[2];
    assert_eq!((&*third.owner, third.waiting_ms, third.left_ms, &*third.note), ("owner-2", 998, Some(59_002), "n"));
    assert_eq!(entry.resources[0].first.iter().take(3).map(|w| w.is_ticket).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn an_entry_is_published_when_it_changed_or_runs_out_or_was_not_stored() {
    let mut publisher = Publisher::new(at(0));
    assert_eq!(publisher.due(own(0), at(0)), None, "nobody waits, and nothing was published");
    assert_eq!(publisher.due(own(1), at(1_000)).map(|e| (e.stamp, e.waiting)), Some((1, 1)));
    assert_eq!(publisher.due(own(1), at(2_000)).map(|e| e.stamp), Some(2), "no quorum stored it");
    publisher.stored_at = Some(at(2_000));
    assert_eq!(publisher.due(own(1), at(4_999)), None);
    assert_eq!(publisher.due(own(1), at(5_000)).map(|e| e.stamp), Some(3), "it runs out");
    publisher.stored_at = Some(at(5_000));
    assert_eq!(publisher.due(own(0), at(6_000)).map(|e| (e.stamp, e.waiting)), Some((4, 0)));
    assert_eq!(publisher.due(own(0), at(7_000)).map(|e| e.stamp), Some(5), "an older entry may be on a node");
    publisher.stored_at = Some(at(7_000));
    assert_eq!(publisher.due(own(0), at(60_000)), None);
}

#[test]
fn the_newest_entry_of_each_instance_counts_until_it_runs_out() {
    let known = ClusterWaiters::default();
    known.receive(&listed(1, 9_000, &own(3).entry(2, at(5_000))), at(6_000));
    known.receive(&listed(1, 9_999, &own(1).entry(1, at(4_000))), at(6_000));
    known.receive(&listed(2, 4_000, &own(1).entry(1, at(5_000))), at(6_000));
    assert_eq!(known.waiting_for(&name(), at(6_000)), 4);
    let summary = known.summary(at(6_000));
    // Written 6 seconds ago, when the oldest had waited 5.
    assert_eq!((summary.waiting, summary.oldest), (4, Some(Duration::from_secs(11))));
    let (waiters, waiting) = known.waiters_for(&name(), at(6_000));
    assert_eq!(waiting, 4);
    let shown: Vec<_> = waiters.iter().map(|w| (w.instance.as_str(), w.position, &*w.owner)).collect();
    let [one, two] = [1, 2].map(|i| InstanceName::from_random(i).to_string());
    let expected = [(&*one, 1, "owner-0"), (&*one, 2, "owner-1"), (&*one, 3, "owner-2"), (&*two, 1, "owner-0")];
    assert_eq!(shown, expected);
    assert_eq!(waiters[1].waiting, Duration::from_millis(5_999), "written a second ago");
    assert_eq!(known.waiting_for(&name(), at(10_000)), 3, "the second one is not renewed");
    known.receive(&listed(1, 9_999, &own(0).entry(3, at(10_000))), at(10_000));
    assert_eq!(known.summary(at(10_000)), OthersSummary::default());
}

#[test]
fn waiters_that_no_entry_names_are_counted() {
    let known = ClusterWaiters::default();
    let entry = WaitersEntry { waiting: 9, ..own(2).entry(1, at(10)) };
    known.receive(&listed(1, 9_000, &entry), at(10));
    let summary = known.summary(at(10));
    assert_eq!((summary.waiting, summary.unnamed), (9, 7));
    known.completed(at(10));
    let other = ResourceName::parse("other").expect("valid");
    assert!(!known.summary(at(10)).all_named() && !known.knows_of(&other, at(10)), "it may be among the 7");
    assert!(known.knows_of(&name(), at(10)), "all that wait for a named one are counted");
    known.receive(&listed(1, 9_000, &own(2).entry(2, at(10))), at(10));
    assert!(known.summary(at(10)).all_named() && known.knows_of(&other, at(10)));
}

#[test]
fn the_others_are_known_for_some_seconds_after_a_quorum_answered() {
    let known = ClusterWaiters::default();
    assert!(!known.summary(at(0)).is_known);
    known.completed(at(0));
    assert!(known.summary(at(3_000)).is_known && !known.summary(at(3_001)).is_known);
}

#[test]
fn a_place_elsewhere_counts_while_it_is_published() {
    let known = ClusterWaiters::default();
    let key = |wait_id: &str, principal: &str| PlaceKey {
        resources: [name()].into(),
        principal: principal.into(),
        wait_id: WaitId::parse(wait_id).expect("valid"),
    };
    let (own_key, id) = (key("0123456789abcdef", "ann"), "0123456789abcdef");
    let places = vec![(moved_places::tag(&own_key), at(0))];
    known.receive(&listed(1, 10_000, &OwnWaiters::of(Vec::new(), places).entry(1, at(7_000))), at(7_000));
    assert_eq!(known.waited_for(&own_key, at(8_000)), Duration::from_secs(8));
    for other in [key(id, "bob"), key(id, ""), key("0123456789abcdeX", "ann")] {
        assert_eq!(known.waited_for(&other, at(8_000)), Duration::ZERO);
    }
    assert_eq!(known.waited_for(&own_key, at(17_000)), Duration::ZERO, "it ran out");
    let made_up = vec![(moved_places::tag(&own_key), BootTime::default())];
    let days = BootTime::default().plus(Duration::from_hours(240));
    known.receive(&listed(2, 10_000, &OwnWaiters::of(Vec::new(), made_up).entry(1, days)), at(7_000));
    assert_eq!(known.waited_for(&own_key, at(8_000)), Duration::from_hours(24), "nobody waits for days");
}

#[test]
fn a_moved_waiter_is_listed_where_it_waits_now() {
    let key = |wait_id: &str| PlaceKey {
        resources: [name()].into(),
        principal: "ann".into(),
        wait_id: WaitId::parse(wait_id).expect("valid"),
    };
    let tags = ["0123456789abcdef", "fedcba9876543210"].map(|id| moved_places::tag(&key(id)));
    let of = |waiters: &[(&str, u64)], places: &[(usize, u64)]| {
        let all = waiters.iter().map(|(owner, since_ms)| waiter("x", owner, *since_ms)).collect();
        OwnWaiters::of(all, places.iter().map(|(tag, since)| (Arc::clone(&tags[*tag]), at(*since))).collect())
    };
    let known = ClusterWaiters::default();
    let listed_waiters = || {
        let (waiters, waiting) = known.waiters_for(&name(), at(9_000));
        let by = |w: &WaiterInfo| format!("{}@{}", w.owner, w.instance.as_str().trim_start_matches('0'));
        (waiters.iter().map(by).collect::<Vec<_>>(), waiting, known.summary(at(9_000)).waiting)
    };
    // Of three that waited at the first instance, the one with the first place waits here now, and the other at the second.
    let dead = of(&[("moved", 1_000), ("stays", 1_000), ("other", 3_000)], &[(0, 1_000), (1, 3_000)]);
    known.receive(&listed(1, 9_000, &dead.entry(1, at(5_000))), at(6_000));
    known.receive(&listed(2, 9_900, &of(&[("other", 3_050)], &[(1, 3_050)]).entry(1, at(8_900))), at(9_000));
    assert_eq!((listed_waiters().1, listed_waiters().2), (4, 4));
    let here = of(&[("moved", 1_020)], &[(0, 1_020)]);
    for _ in 0..2 {
        known.leave_out_moved(&here);
        assert_eq!(listed_waiters(), (vec!["stays@1".to_owned(), "other@2".to_owned()], 2, 2));
    }
    // What waits at another instance is not left out for a place without a waiter: this instance stops.
    known.receive(&listed(3, 9_900, &of(&[("third", 100)], &[(0, 100)]).entry(1, at(8_900))), at(9_000));
    known.leave_out_moved(&of(&[], &[(0, 1_020)]));
    assert_eq!(listed_waiters().1, 3);
}

#[test]
fn too_many_instances_are_left_out_and_said_to_be() {
    let known = ClusterWaiters::default();
    known.completed(at(0));
    for instance in 0..=u64::try_from(INSTANCES_MAX).expect("small") {
        assert!(known.summary(at(0)).is_known, "{instance}");
        known.receive(&listed(instance, 9_000, &own(1).entry(1, at(0))), at(0));
    }
    let summary = known.summary(at(0));
    assert_eq!((summary.waiting, summary.is_known), (INSTANCES_MAX, false));
    known.receive(&listed(5, 9_000, &own(2).entry(2, at(0))), at(0));
    assert_eq!(known.summary(at(0)).waiting, INSTANCES_MAX + 1, "a known one is followed");
    known.begin(at(9_000));
    assert_eq!(known.0.lock().instances.len(), 0);
}

#[test]
fn what_is_no_entry_is_ignored() {
    let known = ClusterWaiters::default();
    let junk = ListedEntry { instance: InstanceName::from_random(1), left_ms: 9, entry: b"junk"[..].into() };
    known.receive(&junk, at(0));
    assert_eq!(known.summary(at(0)), OthersSummary::default());
}

#[test]
fn made_up_numbers_are_bounded() {
    let known = ClusterWaiters::default();
    for instance in 1..=3 {
        let mut entry = own(1).entry(1, at(5_000));
        entry.waiting = usize::MAX;
        entry.resources[0].waiting = usize::MAX;
        known.receive(&listed(instance, 9_000, &entry), at(6_000));
    }
    assert_eq!(known.waiters_for(&name(), at(6_000)).1, 3 * WAITERS_MAX);
    assert_eq!(known.summary(at(6_000)).unnamed, 0);
}
