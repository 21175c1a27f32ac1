//! Tests of what is kept of leases and waits that are over, and of its exchange between instances.

use super::*;

/// 2026-11-20T18:07:03.120Z.
const NOW_MS: u64 = 1_795_198_023_120;
const TEXT_MAX: usize = 16_384;
/// The name of a run.
const ONE: &str = "00000000000000aa";

fn ended(resource: &str, owner: &str, at_ms: u64, held_ms: u64) -> Event {
    let (resource, owner) = (Some(resource.to_owned()), Some(owner.to_owned()));
    Event { resource, owner, at_ms, after_ms: Some(held_ms), ..Event::default() }
}

fn known(tenures: &Tenures, name: &str) -> Vec<Tenure> {
    tenures.since(NOW_MS - HOUR_MS, |known| known == name).names.remove(name).unwrap_or_default()
}

/// The issue: 1,024 events of other locks displaced what a lock's last hour was drawn from.
#[test]
fn a_busy_name_displaces_neither_itself_nor_others() {
    let tenures = Tenures::default();
    let begin = NOW_MS - 3_500_000;
    tenures.record_event(EventKind::Released, &ended("deploy", "ann", begin + 300_000, 300_000));
    for i in 0..35_000 {
        tenures.record_event(EventKind::Released, &ended("busy", ["a", "b"][i % 2], begin + i as u64 * 100, 50));
    }
    assert_eq!(known(&tenures, "deploy")[0], Tenure::new("ann", begin + 300_000, 300_000, TenureEnd::Released));
    let busy = known(&tenures, "busy");
    assert!(busy.len() <= 2 * OF_NAME_MAX, "{}", busy.len());
    assert!(busy[0].from_ms <= begin && busy[busy.len() - 1].to_ms == begin + 3_499_900, "the whole hour");
    let (count, lasted): (u32, u64) = busy.iter().fold((0, 0), |(n, ms), one| (n + one.count, ms + one.lasted_ms));
    assert_eq!((count, lasted, &busy[0].owner), (35_000, 35_000 * 50, &None), "none is lost");
    assert!(busy.windows(2).all(|pair| pair[0].from_ms <= pair[1].from_ms));
}

#[test]
fn of_too_many_names_the_longest_and_the_latest_stay() {
    let tenures = Tenures::default();
    tenures.record_event(EventKind::Released, &ended("long", "ann", NOW_MS - 2_000_000, 600_000));
    for i in 0..2 * TENURES_MAX as u64 {
        tenures.record_event(EventKind::Released, &ended(&format!("short/{i}"), "b", NOW_MS - 1_000_000 + i, 1));
    }
    let state = tenures.0.lock();
    let counted: usize = state.known.names.values().map(OfName::len).sum();
    assert!(counted == state.known.count && counted <= TENURES_MAX, "{counted}");
    assert!(state.unpublished.count <= UNPUBLISHED_MAX && state.unpublished.names.contains_key("long"));
    drop(state);
    assert_eq!(known(&tenures, "long").len(), 1);
    assert_eq!(known(&tenures, &format!("short/{}", 2 * TENURES_MAX - 1)).len(), 1);
}

#[test]
fn other_instances_show_the_same_once_whichever_node_passes_it_on() {
    let (one, two) = (Tenures::default(), Tenures::default());
    let resource = ResourceName::parse("a").expect("valid");
    two.due("two", NOW_MS, TEXT_MAX);
    one.record_event(EventKind::Released, &ended("a", "ann", NOW_MS, 4_000));
    one.record_event(EventKind::Acquired, &ended("a", "bob", NOW_MS, 1));
    one.record_wait(&resource, "bob", Duration::from_secs(3), TenureEnd::Granted, NOW_MS);
    let first = one.due(ONE, NOW_MS, TEXT_MAX).expect("a message is due");
    assert_eq!(one.due(ONE, NOW_MS + 60_000, TEXT_MAX), None, "nothing new");
    one.record_event(EventKind::Forced, &Event { reason: Some("revoke".into()), ..ended("a", "eve", NOW_MS, 9) });
    one.record_event(EventKind::Forced, &Event { reason: Some("now".into()), ..ended("a", "eve", NOW_MS, 9_000) });
    let second = one.due(ONE, NOW_MS + 70_000, TEXT_MAX).expect("a message is due");
    for text in [&first, &first, &second, &first] {
        two.receive(text.as_bytes(), "two");
    }
    let expected = [
        Tenure::new("eve", NOW_MS, 9_000, TenureEnd::Forced),
        Tenure::new("ann", NOW_MS, 4_000, TenureEnd::Released),
        Tenure::new("bob", NOW_MS, 3_000, TenureEnd::Granted),
    ];
    assert_eq!((known(&one, "a"), known(&two, "a")), (expected.clone().into(), expected.into()));
}

/// Of a busy name several become one at the sender: it must not look as if the name was held twice.
#[test]
fn what_stands_for_several_takes_in_what_was_meanwhile() {
    let mut of_name = OfName::default();
    let lease = |owner: &str, from_s: u64, to_s: u64| {
        Tenure::new(owner, NOW_MS + to_s * 1_000, (to_s - from_s) * 1_000, TenureEnd::Released)
    };
    for (owner, from, to) in [("ann", 0, 300), ("bob", 301, 302), ("bob", 303, 304), ("eve", 320, 330)] {
        of_name.add(lease(owner, from, to));
    }
    of_name.add(Tenure { count: 9, lasted_ms: 2_000, owner: Some("bob".into()), ..lease("", 299, 305) });
    let shown: Vec<_> = of_name.leases.iter().map(|one| (one.owner.as_deref(), one.count, one.lasted_ms)).collect();
    assert_eq!(shown, [(Some("ann"), 1, 300_000), (Some("bob"), 11, 4_000), (Some("eve"), 1, 10_000)]);
    of_name.add(lease("jim", 302, 303));
    assert_eq!((of_name.leases.len(), &of_name.leases[1].owner, of_name.leases[1].count), (3, &None, 12));
}

#[test]
fn what_is_lost_and_has_run_out_is_one_lease() {
    let tenures = Tenures::default();
    tenures.record_event(EventKind::Lost, &ended("a", "ann", NOW_MS - 3_000, 30_000));
    tenures.record_event(EventKind::Expired, &ended("a", "ann", NOW_MS, 31_000));
    tenures.record_event(EventKind::Expired, &ended("a", "ann", NOW_MS + 40_000, 30_000));
    let ends: Vec<_> = known(&tenures, "a").iter().map(|tenure| tenure.end).collect();
    assert_eq!(ends, [TenureEnd::Lost, TenureEnd::Expired]);
}

/// Any client of the nodes may publish.
#[test]
fn forged_messages_are_bounded() {
    let tenures = Tenures::default();
    tenures.due("own", NOW_MS, TEXT_MAX);
    let send = |instance: &str, number, tenure: Tenure, name: &str, copies| {
        let tenures_ = vec![(name.to_owned(), tenure); copies];
        let message = Message { event: MESSAGE.into(), instance: instance.into(), number, tenures: tenures_ };
        tenures.receive(&serde_json::to_vec(&message).expect("text"), "own");
    };
    let good = || Tenure::new("ann", NOW_MS, 1_000, TenureEnd::Released);
    send("no name of a run", 1, good(), "a", 1);
    send("own", 1, good(), "a", 1);
    send(ONE, 1, good(), "a//b", 1);
    send(ONE, 2, Tenure { owner: Some("x".repeat(OWNER_MAX_BYTES + 1)), ..good() }, "a", 1);
    send(ONE, 3, Tenure { to_ms: NOW_MS - HOUR_MS - 1, from_ms: 0, ..good() }, "a", 1);
    send(ONE, 4, Tenure { to_ms: NOW_MS + 2 * MINUTE_MS, ..good() }, "a", 1);
    send(ONE, 5, Tenure { from_ms: NOW_MS + 1, ..good() }, "a", 1);
    send(ONE, 6, Tenure { count: 0, ..good() }, "a", 1);
    tenures.receive(b"{\"event\":\"tenures\"", "own");
    assert_eq!(known(&tenures, "a"), []);
    send(ONE, 7, Tenure { lasted_ms: u64::MAX, ..good() }, "a", 10 * MESSAGE_TENURES_MAX);
    assert!((1..=MESSAGE_TENURES_MAX).contains(&known(&tenures, "a").len()));
    for i in 0..2 * INSTANCES_MAX as u64 {
        send(&format!("{i:016x}"), 1, good(), "b", 1);
    }
    assert!(tenures.0.lock().numbers.len() <= INSTANCES_MAX);
    for i in 0..1_000_u64 {
        let name = format!("{}/{i}", "x".repeat(240));
        tenures.record_event(EventKind::Released, &ended(&name, &"\u{1}".repeat(OWNER_MAX_BYTES), NOW_MS, i));
    }
    let text = tenures.due("own", NOW_MS + 10_000, TEXT_MAX).expect("a message is due");
    assert!(text.len() <= TEXT_MAX && text.contains("/999"), "the longest, as many as fit: {}", text.len());
}

#[test]
fn as_many_stay_as_fit_also_where_all_are_alike() {
    let admitted = |values: &[(u64, usize)], max| {
        let mut least = Least::of(values.to_vec(), max);
        values.iter().map(|(value, tenures)| least.admits(*value, *tenures)).collect::<Vec<_>>()
    };
    assert_eq!(admitted(&[(0, 1), (0, 1), (0, 1)], 2), [true, true, false]);
    assert_eq!(admitted(&[(1, 2), (5, 3), (0, 1), (3, 1)], 4), [false, true, false, true]);
    assert_eq!(admitted(&[(1, 2), (1, 1)], 1), [false, true]);
    assert_eq!(admitted(&[(0, 2), (7, 1)], 9), [true, true]);
}
