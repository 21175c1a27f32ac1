//! Counts of minutes: what is kept, what other instances may say, and the bounds.

use super::*;

/// 2026-11-20T18:07:03.120Z.
const NOW_MS: u64 = 1_795_198_023_120;
const TEXT_MAX: usize = 16_384;

fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).expect("valid")
}

fn ended(resource: &str, owner: &str, held_s: u64, at_ms: u64) -> Event {
    let (resource, owner) = (Some(resource.to_owned()), Some(owner.to_owned()));
    Event { resource, owner, after_ms: Some(held_s * 1_000), at_ms, ..Event::default() }
}

fn contended(activity: &Activity, resource: &str, waited_s: u64, wall_ms: u64) {
    let seen = AcquireSeen { waited: Some(Duration::from_secs(waited_s)), is_contended: true, is_granted: true };
    activity.record_acquire(&name(resource), seen, wall_ms);
}

#[test]
fn an_hour_has_its_minutes_and_what_is_older_is_forgotten() {
    let activity = Activity::default();
    let ago = |minutes: u64| NOW_MS - minutes * MINUTE_MS;
    for minutes in [70, 60, 59, 30, 0] {
        activity.record_event(EventKind::Acquired, &Event { at_ms: ago(minutes), ..Event::default() });
        contended(&activity, "a", minutes, ago(minutes));
    }
    let hour = activity.hour(NOW_MS);
    let grants: Vec<(usize, u64)> =
        hour.minutes.iter().map(|minute| minute.grants).enumerate().filter(|(_, n)| *n > 0).collect();
    assert_eq!((grants, hour.all.grants, hour.instances), (vec![(0, 1), (29, 1), (59, 1)], 3, 1));
    assert_eq!((hour.contended["a"], hour.all.contended), (3, 3));
    let p95 = hour.minutes[29].wait_p95().expect("one waited");
    assert!(p95.abs_diff(Duration::from_secs(30)) < Duration::from_secs(4), "{p95:?}");
    assert_eq!((hour.minutes[30].wait_p95(), hour.known_from_ms), (None, hour.from_ms));
    assert_eq!(Activity::default().hour(NOW_MS).known_from_ms, NOW_MS, "it knows nothing of before its start");
}

#[test]
fn a_tenure_counts_only_as_far_as_it_lies_within_the_hour() {
    let activity = Activity::default();
    let (first, second) = (NOW_MS - 50 * MINUTE_MS, NOW_MS);
    activity.record_event(EventKind::Released, &ended("a", "ann", 3_600, first));
    activity.record_event(EventKind::Released, &ended("a", "ann", 600, second));
    activity.record_event(EventKind::Expired, &ended("a", "bob", 60, second));
    activity.record_event(EventKind::Lost, &ended("a", "bob", 60, second));
    activity.record_event(EventKind::Forced, &Event { reason: Some("revoke".into()), ..ended("a", "bob", 60, second) });
    activity.record_event(EventKind::Forced, &Event { reason: Some("now".into()), ..ended("a", "bob", 1, second) });
    let held = activity.hour(NOW_MS).held;
    assert_eq!(held[&("a".into(), "ann".into())], Duration::from_mins(20), "ten minutes of the first one");
    assert_eq!(held[&("a".into(), "bob".into())], Duration::from_secs(61));
}

#[test]
fn minutes_of_other_instances_are_added_once_and_replaced_by_later_ones() {
    let (one, two) = (Activity::default(), Activity::default());
    one.record_event(EventKind::Acquired, &Event { at_ms: NOW_MS, ..Event::default() });
    one.record_event(EventKind::Released, &ended("a", "ann", 7, NOW_MS));
    contended(&one, "a", 3, NOW_MS);
    let first = one.due("one", NOW_MS, TEXT_MAX);
    assert_eq!((first.len(), one.due("one", NOW_MS + 1_000, TEXT_MAX).len()), (1, 0), "not more often than needed");
    two.receive(first[0].as_bytes(), "two");
    assert_eq!(two.hour(NOW_MS).instances, 1, "before it counts itself, it knows no time");
    for _ in 0..3 {
        two.receive(first[0].as_bytes(), "two");
    }
    let hour = two.hour(NOW_MS);
    assert_eq!((hour.all.grants, hour.all.contended, hour.instances, hour.contended["a"]), (1, 1, 2, 1));
    assert_eq!(hour.held[&("a".into(), "ann".into())], Duration::from_secs(7));
    assert!(hour.all.wait_p95().is_some());
    contended(&one, "a", 3, NOW_MS + 5_000);
    let second = one.due("one", NOW_MS + 5_000, TEXT_MAX);
    two.receive(second[0].as_bytes(), "two");
    assert_eq!(two.hour(NOW_MS).all.contended, 2);
    let finished = one.due("one", NOW_MS + MINUTE_MS, TEXT_MAX);
    assert_eq!(finished.len(), 1, "the finished minute, and nothing of the empty one: {finished:?}");
}

#[test]
fn what_no_instance_would_publish_is_dropped() {
    let activity = Activity::default();
    activity.hour(NOW_MS);
    let message = |instance: &str, minute: u64, name: &str| {
        let minute =
            Minute { minute, grants: 1, waits: vec![(BUCKETS, 1)], names: vec![(name.into(), 1)], ..Minute::default() };
        serde_json::to_string(&Message { event: MESSAGE.into(), instance: instance.into(), minute }).expect("JSON")
    };
    let now = NOW_MS / MINUTE_MS;
    for wrong in
        [message("own", now, "a"), message("", now, "a"), message("x", now + 2, "a"), message("x", 0, "a"), "{}".into()]
    {
        activity.receive(wrong.as_bytes(), "own");
    }
    assert_eq!(activity.hour(NOW_MS).all.grants, 0);
    activity.receive(message("x", now, "no\nname").as_bytes(), "own");
    let minute = Minute {
        minute: now,
        contended: u64::MAX,
        names: vec![("a".into(), u64::MAX)],
        waits: vec![(0, 1); 2 * BUCKETS],
        held: vec![(("a".into(), "x".repeat(OWNER_MAX_BYTES + 1)), 1)],
        ..Minute::default()
    };
    let long = Message { event: MESSAGE.into(), instance: "long".into(), minute };
    activity.receive(serde_json::to_string(&long).expect("JSON").as_bytes(), "own");
    let kept = activity.0.lock().minutes["long"][&now].clone();
    assert_eq!((kept.waits.len(), kept.held.len()), (BUCKETS, 0));
    let hour = activity.hour(NOW_MS);
    assert_eq!((hour.all.grants, hour.contended.len()), (1, 1), "a bucket and a name that do not exist are left out");
    assert_eq!((hour.all.contended, hour.contended["a"]), (COUNT_MAX, COUNT_MAX), "as many as can be");
    for i in 0..2 * INSTANCES_MAX as u64 {
        activity.receive(message(&format!("i{i}"), now - 1, "a").as_bytes(), "own");
    }
    assert!(activity.0.lock().minutes.len() <= INSTANCES_MAX);
}

#[test]
fn names_are_bounded_and_those_with_the_largest_counts_stay() {
    let activity = Activity::default();
    for i in 0..10 * TRACKED_MAX {
        contended(&activity, &format!("{}/{i}", "long".repeat(60)), 1, NOW_MS);
        contended(&activity, "hot", 1, NOW_MS);
        activity.record_event(
            EventKind::Released,
            &ended(&format!("{}/{i}", "x".repeat(240)), &"\u{1}".repeat(128), 1, NOW_MS),
        );
    }
    let state = activity.0.lock();
    let present = state.present.as_ref().expect("counted");
    assert!(present.names.0.len() <= 2 * TRACKED_MAX && present.held.0.len() <= 2 * TRACKED_MAX);
    assert_eq!(present.names.largest(1), [(name("hot"), 10 * TRACKED_MAX as u64)]);
    drop(state);
    let texts = activity.due("one", NOW_MS, TEXT_MAX);
    assert!(texts[0].len() <= TEXT_MAX && texts[0].contains("hot"), "{}", texts[0].len());
}
