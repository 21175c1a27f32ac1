//! The search for circles, against a plain one that tries every way.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Owners and resources are numbers here.
#[derive(Debug, Clone, Default)]
struct Plain {
    /// By seat: who waits for what.
    seats: Vec<(u8, u8)>,
    holders: BTreeMap<u8, u8>,
}

fn owner(number: u8) -> Arc<str> {
    format!("o{number}").into()
}

fn resource(number: u8) -> ResourceName {
    ResourceName::parse(&format!("r{number}")).expect("valid")
}

fn place(seat: usize, number: u8) -> Place {
    Place { seat: seat as u64, resource: resource(number) }
}

fn holder(number: u8) -> Holder {
    Holder { owner: owner(number), token: TokenHash::parse(&format!("{number:064x}")).expect("hex") }
}

impl Plain {
    fn graph(&self) -> (Waits, BTreeMap<ResourceName, Holder>) {
        let mut waits = Waits::default();
        for (seat, (who, what)) in self.seats.iter().enumerate() {
            waits.seat(&owner(*who), place(seat, *what));
        }
        (waits, self.holders.iter().map(|(what, who)| (resource(*what), holder(*who))).collect())
    }

    /// Whether a way of seats up to `newest` leads from `at` to `home`, through owners not met yet.
    fn leads(&self, at: u8, home: u8, newest: usize, met: &mut Vec<u8>) -> bool {
        if at == home {
            return true;
        }
        if met.contains(&at) {
            return false;
        }
        met.push(at);
        let next = self.seats.iter().enumerate().filter(|(seat, (who, _))| *seat <= newest && *who == at);
        next.filter_map(|(_, (_, what))| self.holders.get(what)).any(|next| self.leads(*next, home, newest, met))
    }

    fn is_in_circle(&self, seat: usize, newest: usize) -> bool {
        let (who, what) = self.seats[seat];
        let Some(next) = self.holders.get(&what) else { return false };
        *next != who && self.leads(*next, who, newest, &mut vec![])
    }
}

/// Each waits for what the next one has, each edge stands, nobody is in it twice.
fn assert_circle(circle: &[Edge], plain: &Plain) {
    assert!(circle.len() >= 2, "{circle:?}");
    for (edge, next) in circle.iter().zip(circle.iter().cycle().skip(1)) {
        assert_eq!(edge.holder.owner, next.owner, "{circle:?}");
        let (who, what) = plain.seats[usize::try_from(edge.place.seat).expect("small")];
        assert_eq!((&edge.owner, &edge.place.resource), (&owner(who), &resource(what)));
        assert_eq!(edge.holder, holder(plain.holders[&what]));
    }
    let owners: HashSet<_> = circle.iter().map(|edge| &edge.owner).collect();
    assert_eq!(owners.len(), circle.len(), "{circle:?}");
}

fn graphs() -> impl Strategy<Value = Plain> {
    let seats = proptest::collection::vec((0..6_u8, 0..6_u8), 1..14);
    let holders = proptest::collection::btree_map(0..6_u8, 0..6_u8, 0..6);
    (seats, holders).prop_map(|(seats, holders)| Plain { seats, holders })
}

proptest! {
    #[test]
    fn a_seat_is_suspected_exactly_where_it_is_the_newest_of_a_circle(plain in graphs()) {
        let (waits, holders) = plain.graph();
        for (seat, (who, what)) in plain.seats.iter().enumerate() {
            let found = waits.circle_through(&owner(*who), &place(seat, *what), |r| holders.get(r));
            prop_assert_eq!(found.is_some(), plain.is_in_circle(seat, seat), "seat {}", seat);
            if let Some(circle) = found {
                assert_circle(&circle, &plain);
                prop_assert!(circle.iter().all(|edge| edge.place.seat <= seat as u64));
                prop_assert_eq!(circle[0].place.seat, seat as u64);
            }
        }
    }

    #[test]
    fn an_owner_is_suspected_exactly_where_one_of_its_seats_is_in_a_circle(plain in graphs()) {
        let (waits, holders) = plain.graph();
        for who in 0..6 {
            let own = plain.seats.iter().enumerate().filter(|(_, (w, _))| *w == who).map(|(seat, _)| seat);
            let expected = own.clone().any(|seat| plain.is_in_circle(seat, usize::MAX));
            let found = waits.circle_of(&owner(who), |r| holders.get(r));
            prop_assert_eq!(found.is_some(), expected, "owner {}", who);
            if let Some(circle) = found {
                assert_circle(&circle, &plain);
            }
        }
    }

    #[test]
    fn nothing_is_left_of_those_who_left(plain in graphs()) {
        let (mut waits, _) = plain.graph();
        for (seat, (who, _)) in plain.seats.iter().enumerate() {
            prop_assert!(waits.waits(&owner(*who)));
            waits.leave(&owner(*who), seat as u64);
            waits.leave(&owner(*who), seat as u64);
        }
        prop_assert!(waits.by_owner.is_empty());
    }
}

/// `o0` waits for what `o1` has, and so on, back to `o0`.
fn ring(length: u8) -> Plain {
    Plain {
        seats: (0..length).map(|i| (i, i)).collect(),
        holders: (0..length).map(|i| (i, (i + 1) % length)).collect(),
    }
}

#[test]
fn the_longest_circle_is_found_and_a_longer_one_is_left_alone() {
    let longest = u8::try_from(CYCLE_MAX).expect("small");
    for (length, is_found) in [(2, true), (longest, true), (longest + 1, false)] {
        let plain = ring(length);
        let (waits, holders) = plain.graph();
        let last = usize::from(length) - 1;
        let found = waits.circle_through(&owner(length - 1), &place(last, length - 1), |r| holders.get(r));
        assert_eq!(found.map(|c| c.len()), is_found.then_some(usize::from(length)), "{length}");
    }
}

#[test]
fn one_who_waits_for_its_own_name_is_another_of_that_name() {
    let plain = Plain { seats: vec![(1, 1)], holders: [(1, 1)].into() };
    let (waits, holders) = plain.graph();
    assert_eq!(waits.circle_through(&owner(1), &place(0, 1), |r| holders.get(r)), None);
    assert_eq!(waits.circle_of(&owner(1), |r| holders.get(r)), None);
}

/// The search runs under the room's lock: a crowd that all waits for each other's neighbour is not
/// looked through to its end.
#[test]
fn a_search_is_bounded() {
    let (mut waits, mut seat) = (Waits::default(), 0);
    let crowd: Vec<Arc<str>> = (0..100).map(|i| format!("c{i}").into()).collect();
    for who in &crowd {
        for what in 0..100 {
            waits.seat(who, place(seat, what));
            seat += 1;
        }
    }
    let holders: Vec<Holder> =
        crowd.iter().map(|who| Holder { owner: Arc::clone(who), token: holder(0).token }).collect();
    let looks = std::cell::Cell::new(0);
    let holder_of = |r: &ResourceName| {
        looks.set(looks.get() + 1);
        holders.get(r.as_str()[1..].parse::<usize>().expect("a number"))
    };
    let stranger: Arc<str> = "stranger".into();
    assert_eq!(waits.circle_through(&stranger, &place(seat, 0), holder_of), None);
    assert!(looks.get() <= 2 * WALK_MAX, "{}", looks.get());
}
