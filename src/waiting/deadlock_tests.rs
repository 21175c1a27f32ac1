//! The search for cycles, compared with an exhaustive one.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Owners and resources are numbers here.
#[derive(Debug, Clone, Default)]
struct Model {
    /// By waiter: its owner, and the resource that it waits for.
    waiters: Vec<(u8, u8)>,
    holders: BTreeMap<u8, u8>,
}

fn party(number: u8) -> Party {
    Party::new("", &format!("o{number}")).expect("an owner")
}

fn resource(number: u8) -> ResourceName {
    ResourceName::parse(&format!("r{number}")).expect("valid")
}

fn token(number: u8) -> TokenHash {
    TokenHash::parse(&format!("{number:064x}")).expect("hex")
}

impl Model {
    /// What this waiter waits for, where somebody holds it.
    fn edge(&self, number: usize) -> Option<WaitEdge> {
        let (who, what) = *self.waiters.get(number)?;
        let holder = *self.holders.get(&what)?;
        let holder = KnownHolder { party: party(holder), token: token(holder) };
        Some(WaitEdge { party: party(who), waiter: number as u64, resource: resource(what), holder })
    }

    fn parties(&self) -> PartyWaiters {
        let mut parties = PartyWaiters::default();
        for (number, (who, _)) in self.waiters.iter().enumerate() {
            parties.add(&party(*who), number as u64);
        }
        parties
    }

    fn edges_of(&self, party: &Party, newest: u64, limit: usize) -> Vec<WaitEdge> {
        let edge = |number: u64| self.edge(usize::try_from(number).expect("small"));
        self.parties().of(party, newest).filter_map(edge).take(limit).collect()
    }

    fn cycle_through(&self, number: usize) -> Option<Vec<WaitEdge>> {
        let first = self.edge(number).into_iter().collect();
        shortest_cycle(first, |party, limit| self.edges_of(party, number as u64, limit))
    }

    fn cycle_of_owner(&self, who: u8) -> Option<Vec<WaitEdge>> {
        let edges = |party: &Party, limit| self.edges_of(party, u64::MAX, limit);
        shortest_cycle(edges(&party(who), SEARCH_MAX), edges)
    }

    /// Whether a path of waiters up to `newest` leads from `owner` to `start`, through owners not visited yet.
    fn leads(&self, owner: u8, start: u8, newest: usize, visited: &mut Vec<u8>) -> bool {
        if owner == start {
            return true;
        }
        if visited.contains(&owner) {
            return false;
        }
        visited.push(owner);
        let next = self.waiters.iter().enumerate().filter(|(number, (who, _))| *number <= newest && *who == owner);
        next.filter_map(|(_, (_, what))| self.holders.get(what)).any(|next| self.leads(*next, start, newest, visited))
    }

    fn is_in_cycle(&self, number: usize, newest: usize) -> bool {
        let (who, what) = self.waiters[number];
        let Some(next) = self.holders.get(&what) else { return false };
        *next != who && self.leads(*next, who, newest, &mut vec![])
    }
}

/// Each owner waits for what the next one has, every edge exists, and no owner is in it twice.
fn assert_cycle(cycle: &[WaitEdge], model: &Model) {
    assert!(cycle.len() >= 2, "{cycle:?}");
    for (edge, next) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
        assert_eq!(edge.holder.party, next.party, "{cycle:?}");
        assert_eq!(Some(edge), model.edge(usize::try_from(edge.waiter).expect("small")).as_ref());
    }
    let owners: HashSet<_> = cycle.iter().map(|edge| &edge.party).collect();
    assert_eq!(owners.len(), cycle.len(), "{cycle:?}");
}

fn graphs() -> impl Strategy<Value = Model> {
    let waiters = proptest::collection::vec((0..6_u8, 0..6_u8), 1..14);
    let holders = proptest::collection::btree_map(0..6_u8, 0..6_u8, 0..6);
    (waiters, holders).prop_map(|(waiters, holders)| Model { waiters, holders })
}

proptest! {
    #[test]
    fn a_waiter_is_suspected_exactly_if_it_is_the_newest_of_a_cycle(model in graphs()) {
        for number in 0..model.waiters.len() {
            let found = model.cycle_through(number);
            prop_assert_eq!(found.is_some(), model.is_in_cycle(number, number), "waiter {}", number);
            if let Some(cycle) = found {
                assert_cycle(&cycle, &model);
                prop_assert!(cycle.iter().all(|edge| edge.waiter <= number as u64));
                prop_assert_eq!(cycle[0].waiter, number as u64);
            }
        }
    }

    #[test]
    fn an_owner_is_suspected_exactly_if_one_of_its_waiters_is_in_a_cycle(model in graphs()) {
        for who in 0..6 {
            let own = model.waiters.iter().enumerate().filter(|(_, (w, _))| *w == who).map(|(number, _)| number);
            let expected = own.clone().any(|number| model.is_in_cycle(number, usize::MAX));
            let found = model.cycle_of_owner(who);
            prop_assert_eq!(found.is_some(), expected, "owner {}", who);
            if let Some(cycle) = found {
                assert_cycle(&cycle, &model);
            }
        }
    }

    #[test]
    fn removed_waiters_leave_nothing_behind(model in graphs()) {
        let mut parties = model.parties();
        for (number, (who, _)) in model.waiters.iter().enumerate() {
            prop_assert!(parties.of(&party(*who), u64::MAX).next().is_some());
            parties.remove(&party(*who), number as u64);
            parties.remove(&party(*who), number as u64);
        }
        prop_assert_eq!(parties, PartyWaiters::default());
    }
}

/// `o0` waits for what `o1` has, and so on, back to `o0`.
fn chain(length: u8) -> Model {
    Model {
        waiters: (0..length).map(|i| (i, i)).collect(),
        holders: (0..length).map(|i| (i, (i + 1) % length)).collect(),
    }
}

#[test]
fn the_longest_cycle_is_found_and_a_longer_one_is_not() {
    let longest = u8::try_from(CYCLE_MAX).expect("small");
    for (length, is_found) in [(2, true), (longest, true), (longest + 1, false)] {
        let found = chain(length).cycle_through(usize::from(length) - 1);
        assert_eq!(found.map(|c| c.len()), is_found.then_some(usize::from(length)), "{length}");
    }
}

#[test]
fn a_waiter_for_a_lease_of_its_own_owner_is_no_cycle() {
    let model = Model { waiters: vec![(1, 1)], holders: [(1, 1)].into() };
    assert_eq!((model.cycle_through(0), model.cycle_of_owner(1)), (None, None));
}

/// The search runs under the lock of all queues: a large graph is not visited to its end.
#[test]
fn a_search_is_bounded() {
    let waiters = (0..100).flat_map(|who| (0..100).map(move |what| (who, what))).collect();
    let model = Model { waiters, holders: (0..100).map(|i| (i, i)).collect() };
    let visited = std::cell::Cell::new(0);
    let outsider = Party::new("", "outsider").expect("an owner");
    let first = vec![WaitEdge { party: outsider, ..model.edge(0).expect("held") }];
    let found = shortest_cycle(first, |party, limit| {
        let edges = model.edges_of(party, u64::MAX, limit);
        visited.set(visited.get() + edges.len());
        edges
    });
    assert_eq!(found, None);
    assert!((1..=2 * SEARCH_MAX).contains(&visited.get()), "{}", visited.get());
}
