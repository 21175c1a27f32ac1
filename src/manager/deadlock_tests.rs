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

fn owner(number: u8) -> Arc<str> {
    format!("o{number}").into()
}

fn resource(number: u8) -> ResourceName {
    ResourceName::parse(&format!("r{number}")).expect("valid")
}

fn waiter(number: usize, name: u8) -> QueuedWaiter {
    QueuedWaiter { number: number as u64, resource: resource(name) }
}

fn holder(number: u8) -> KnownHolder {
    KnownHolder { owner: owner(number), token: TokenHash::parse(&format!("{number:064x}")).expect("hex") }
}

impl Model {
    fn graph(&self) -> (WaitForGraph, BTreeMap<ResourceName, KnownHolder>) {
        let mut graph = WaitForGraph::default();
        for (number, (who, what)) in self.waiters.iter().enumerate() {
            graph.add(&owner(*who), waiter(number, *what));
        }
        (graph, self.holders.iter().map(|(what, who)| (resource(*what), holder(*who))).collect())
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
        assert_eq!(edge.holder.owner, next.owner, "{cycle:?}");
        let (who, what) = model.waiters[usize::try_from(edge.waiter.number).expect("small")];
        assert_eq!((&edge.owner, &edge.waiter.resource), (&owner(who), &resource(what)));
        assert_eq!(edge.holder, holder(model.holders[&what]));
    }
    let owners: HashSet<_> = cycle.iter().map(|edge| &edge.owner).collect();
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
        let (graph, holders) = model.graph();
        for (number, (who, what)) in model.waiters.iter().enumerate() {
            let found = graph.cycle_through(&owner(*who), &waiter(number, *what), |r| holders.get(r));
            prop_assert_eq!(found.is_some(), model.is_in_cycle(number, number), "waiter {}", number);
            if let Some(cycle) = found {
                assert_cycle(&cycle, &model);
                prop_assert!(cycle.iter().all(|edge| edge.waiter.number <= number as u64));
                prop_assert_eq!(cycle[0].waiter.number, number as u64);
            }
        }
    }

    #[test]
    fn an_owner_is_suspected_exactly_if_one_of_its_waiters_is_in_a_cycle(model in graphs()) {
        let (graph, holders) = model.graph();
        for who in 0..6 {
            let own = model.waiters.iter().enumerate().filter(|(_, (w, _))| *w == who).map(|(number, _)| number);
            let expected = own.clone().any(|number| model.is_in_cycle(number, usize::MAX));
            let found = graph.cycle_of_owner(&owner(who), |r| holders.get(r));
            prop_assert_eq!(found.is_some(), expected, "owner {}", who);
            if let Some(cycle) = found {
                assert_cycle(&cycle, &model);
            }
        }
    }

    #[test]
    fn removed_waiters_leave_nothing_behind(model in graphs()) {
        let (mut graph, _) = model.graph();
        for (number, (who, _)) in model.waiters.iter().enumerate() {
            prop_assert!(graph.is_waiting(&owner(*who)));
            graph.remove(&owner(*who), number as u64);
            graph.remove(&owner(*who), number as u64);
        }
        prop_assert!(graph.by_owner.is_empty());
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
        let model = chain(length);
        let (graph, holders) = model.graph();
        let last = usize::from(length) - 1;
        let found = graph.cycle_through(&owner(length - 1), &waiter(last, length - 1), |r| holders.get(r));
        assert_eq!(found.map(|c| c.len()), is_found.then_some(usize::from(length)), "{length}");
    }
}

#[test]
fn a_waiter_for_a_lease_of_its_own_owner_is_no_cycle() {
    let model = Model { waiters: vec![(1, 1)], holders: [(1, 1)].into() };
    let (graph, holders) = model.graph();
    assert_eq!(graph.cycle_through(&owner(1), &waiter(0, 1), |r| holders.get(r)), None);
    assert_eq!(graph.cycle_of_owner(&owner(1), |r| holders.get(r)), None);
}

/// The search runs under the lock of all queues: a large graph is not visited to its end.
#[test]
fn a_search_is_bounded() {
    let (mut graph, mut number) = (WaitForGraph::default(), 0);
    let owners: Vec<Arc<str>> = (0..100).map(|i| format!("c{i}").into()).collect();
    for who in &owners {
        for what in 0..100 {
            graph.add(who, waiter(number, what));
            number += 1;
        }
    }
    let holders: Vec<KnownHolder> =
        owners.iter().map(|who| KnownHolder { owner: Arc::clone(who), token: holder(0).token }).collect();
    let lookups = std::cell::Cell::new(0);
    let holder_of = |r: &ResourceName| {
        lookups.set(lookups.get() + 1);
        holders.get(r.as_str()[1..].parse::<usize>().expect("a number"))
    };
    let outsider: Arc<str> = "outsider".into();
    assert_eq!(graph.cycle_through(&outsider, &waiter(number, 0), holder_of), None);
    assert!(lookups.get() <= 2 * SEARCH_MAX, "{}", lookups.get());
}
