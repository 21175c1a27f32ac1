//! Whose place it is, until when, and how many are kept.

use super::*;
use crate::types::PermitLimit;

fn at(s: u64) -> BootTime {
    BootTime::default().plus(Duration::from_secs(s))
}

fn keep(resource: &str, wait_id: &str, ttl_ms: u64) -> PlaceRequest {
    let key = PlaceKey {
        resources: [ResourceName::parse(resource).expect("valid")].into(),
        principal: "ci".into(),
        wait_id: WaitId::parse(wait_id).expect("valid"),
    };
    let ttl = Ttl::from_ms(ttl_ms).expect("in range");
    let mode = WantedMode::Exclusive;
    let terms = Terms { mode, ttl, labels: Labels::default(), token: None, refuses_deadlock: false, kept_for: None };
    PlaceRequest { key, terms, permit: Some(Arc::new(7_u8)), waited: Duration::ZERO }
}

const ID: &str = "0123456789abcdef";

#[test]
fn a_place_is_taken_again_by_the_same_request_only() {
    let (mut places, own) = (Places::default(), keep("a", ID, 1_000));
    assert_eq!(places.take(&own, |_| true), Ok(None));
    places.add(own.clone(), 3);
    assert!(places.leave(&own.key, 3, true, at(1)));
    for (other, found) in [
        (keep("b", ID, 1_000), Ok(None)),
        (keep("a", "0123456789abcdeX", 1_000), Ok(None)),
        (keep("a", ID, 2_000), Err("ttl")),
        (own.clone(), Ok(Some(3))),
    ] {
        assert_eq!(places.take(&other, |_| true), found);
    }
    let someone = PlaceRequest { key: PlaceKey { principal: "ann".into(), ..own.key.clone() }, ..own.clone() };
    assert_eq!(places.take(&someone, |_| true), Ok(None));
    assert_eq!(places.take(&own, |_| false), Ok(None), "its wait is over");
    assert!(places.permit(&own.key).is_some() && places.permit(&someone.key).is_none());
}

#[test]
fn each_field_that_differs_is_named() {
    let own = keep("a", ID, 1_000).terms;
    let labels = |change: fn(&mut Labels)| {
        let mut terms = own.clone();
        change(&mut terms.labels);
        terms
    };
    for (field, other) in [
        ("owner", labels(|l| l.owner = "x".into())),
        ("note", labels(|l| l.note = "x".into())),
        ("metadata", labels(|l| drop(l.metadata.insert("k".into(), "v".into())))),
        ("token", Terms { token: TokenHash::parse(&"a".repeat(64)), ..own.clone() }),
        ("mode", Terms { mode: WantedMode::Shared, ..own.clone() }),
        ("limit", Terms { mode: WantedMode::Permit { limit: PermitLimit::new(3).expect("in range") }, ..own.clone() }),
        ("keep", Terms { kept_for: Some(Duration::from_secs(60)), ..own.clone() }),
        ("on_deadlock", Terms { refuses_deadlock: true, ..own.clone() }),
    ] {
        assert_eq!(own.difference(&other), Some(field));
    }
    assert_eq!(own.difference(&labels(|l| l.acquired_at_ms = 7)), None, "the time of the request is none of its terms");
}

/// A request of this principal, with a name of its own.
fn of(principal: &str, number: usize) -> PlaceRequest {
    let keep = keep("a", &format!("{number:016}"), 1_000);
    PlaceRequest { key: PlaceKey { principal: principal.into(), ..keep.key }, ..keep }
}

/// P5: one principal left no place for the callers of others.
#[test]
fn p5_one_principal_has_half_of_the_places_and_without_authentication_all_have_all() {
    let kept = |principal: &str, numbers: std::ops::Range<usize>, places: &mut Places| {
        let leaves = |number: &usize| {
            places.add(of(principal, *number), *number as u64);
            places.leave(&of(principal, *number).key, *number as u64, true, at(1))
        };
        numbers.filter(leaves).count()
    };
    let mut places = Places::default();
    assert_eq!(kept("ci", 0..ABSENT_MAX, &mut places), ABSENT_MAX / 2);
    assert_eq!(kept("cd", 0..ABSENT_MAX, &mut places), ABSENT_MAX / 2, "what the first one has to leave");
    assert_eq!(kept("", 0..ABSENT_MAX + 1, &mut Places::default()), ABSENT_MAX);
}

#[test]
fn a_place_is_kept_for_its_time_and_while_there_are_not_too_many() {
    let mut places = Places::default();
    let own = |number: usize| of(["ci", "cd"][number % 2], number);
    for number in 0..=ABSENT_MAX {
        places.add(own(number), number as u64);
        assert_eq!(places.leave(&own(number).key, number as u64, true, at(1)), number < ABSENT_MAX);
    }
    assert!(!places.leave(&own(0).key, 77, true, at(1)), "of another waiter");
    assert_eq!(places.take(&own(5), |_| true), Ok(Some(5)));
    assert!(places.expire(at(1).plus(PLACE_KEPT).minus(Duration::from_nanos(1))).is_empty());
    let mut expired = places.expire(at(1).plus(PLACE_KEPT));
    expired.sort_unstable();
    assert_eq!(expired, (0..ABSENT_MAX as u64).filter(|waiter| *waiter != 5).collect::<Vec<_>>());
    assert_eq!((places.absent, places.kept.len()), (0, 1), "its caller is there");
    assert!(!places.leave(&own(5).key, 5, false, at(60)) && places.kept.is_empty(), "it had left its queue");
}
