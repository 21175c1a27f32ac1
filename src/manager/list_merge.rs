//! Merges the lists of all nodes: which lease a quorum holds under each name, and for how long. Its cost matters,
//! since each lease of each node passes through it.

use std::collections::hash_map::Entry;
use std::time::Duration;

use super::lease_snapshot::SnapshotLease;
use crate::keyed_maps::KeyedMap;
use crate::protocol::{LeaseRecord, ListedLease};
use crate::types::{Mode, ResourceName};

/// The lists of all nodes as far as they have been read.
pub(super) struct ListMerge {
    nodes: usize,
    names: KeyedMap<ResourceName, Box<Copies>>,
}

/// The leases that the nodes have under one name.
struct Copies {
    /// The nodes that have the name, one bit each.
    nodes: u64,
    /// The nodes of these that list shared leases or permits.
    with_members: u64,
    first: LeaseCopy,
    /// Other leases, if the nodes disagree, or if several are held together.
    others: Vec<LeaseCopy>,
}

/// One lease, with the TTL of its key on each node that has it. Milliseconds.
struct LeaseCopy {
    record: LeaseRecord,
    /// The nodes that have the lease: bit `i` is node `i`.
    nodes: u64,
    lefts: Vec<u64>,
}

impl LeaseCopy {
    fn is_member(&self) -> bool {
        self.record.mode != Mode::Exclusive
    }
}

impl ListMerge {
    /// A merge for this many nodes, at most 15.
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes, names: KeyedMap::default() }
    }

    /// Adds a page of one node's list. A list may have a name twice: only the first entry counts, since a
    /// node has one vote.
    pub(super) fn add_page(&mut self, node: usize, page: Vec<ListedLease>) {
        let node = 1_u64 << node;
        let copy = |record, left_ms| {
            let mut lefts = Vec::with_capacity(self.nodes);
            lefts.push(left_ms);
            LeaseCopy { record, nodes: node, lefts }
        };
        for ListedLease { resource, record, left_ms } in page {
            let copies = match self.names.entry(resource) {
                Entry::Vacant(name) => {
                    let first = copy(record, left_ms);
                    let with_members = if first.is_member() { node } else { 0 };
                    name.insert(Box::new(Copies { nodes: node, with_members, first, others: Vec::new() }));
                    continue;
                }
                Entry::Occupied(name) => name.into_mut(),
            };
            let is_member = record.mode != Mode::Exclusive;
            let is_beside = is_member && copies.with_members & node != 0;
            if copies.nodes & node != 0 && !is_beside {
                continue;
            }
            copies.nodes |= node;
            copies.with_members |= if is_member { node } else { 0 };
            let mut known = std::iter::once(&mut copies.first).chain(&mut copies.others);
            match known.find(|known| known.record.token == record.token) {
                Some(known) if known.nodes & node != 0 => {}
                Some(known) => {
                    known.nodes |= node;
                    known.lefts.push(left_ms);
                }
                None => copies.others.push(copy(record, left_ms)),
            }
        }
    }

    /// For each name, the lease that `quorum` nodes hold, or may hold, or the leases that are held together. A
    /// `doubtful` node (one bit each), whose list is incomplete or which may have forgotten leases, may hold leases
    /// that it did not list. `None` if no lease can have a quorum.
    pub(super) fn held(
        self,
        quorum: usize,
        doubtful: u64,
    ) -> impl Iterator<Item = Option<(ResourceName, SnapshotLease)>> {
        self.names.into_iter().map(move |(resource, copies)| {
            let Copies { nodes, first, others, .. } = *copies;
            let unknown = usize::try_from((doubtful & !nodes).count_ones()).unwrap_or(0);
            let of_quorum = |LeaseCopy { record, mut lefts, .. }: LeaseCopy| {
                if lefts.len() + unknown < quorum {
                    return None;
                }
                lefts.sort_unstable_by(|a, b| b.cmp(a));
                let confirmed = lefts.get(quorum.checked_sub(1)?).copied();
                let left = Duration::from_millis(confirmed.or(lefts.first().copied())?);
                Some(SnapshotLease::new(record, left, confirmed.is_some()))
            };
            let mut all: Vec<LeaseCopy> = std::iter::once(first).chain(others).collect();
            let most = (0..all.len()).max_by_key(|index| all[*index].lefts.len())?;
            let lease = match all[most].is_member() {
                true => SnapshotLease::of_members(
                    all.into_iter().filter(LeaseCopy::is_member).filter_map(of_quorum).collect(),
                )?,
                false => of_quorum(all.swap_remove(most))?,
            };
            Some((resource, lease))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str, token: &str, left_ms: u64) -> ListedLease {
        let value = format!("{}|000000|1000|7|p,|{{}}", token.repeat(64));
        let record = LeaseRecord::parse(value.as_bytes()).expect("a record");
        ListedLease { resource: ResourceName::parse(name).expect("valid"), record, left_ms }
    }

    /// What a quorum of 3 of 5 holds: name, first digit of the token, TTL, whether it is confirmed.
    fn held(pages: Vec<(usize, ListedLease)>, doubtful: u64) -> Vec<(String, String, u128, bool)> {
        let mut merge = ListMerge::new(5);
        for (node, listed) in pages {
            merge.add_page(node, vec![listed]);
        }
        let row = |(name, lease): (ResourceName, SnapshotLease)| {
            let token = lease.record.token.as_str()[..1].to_owned();
            (name.to_string(), token, lease.left.as_millis(), lease.is_confirmed)
        };
        merge.held(3, doubtful).flatten().map(row).collect()
    }

    #[test]
    fn a_lease_is_held_by_a_quorum_for_as_long_as_a_quorum_has_it() {
        let pages = |nodes: usize| (0..nodes).map(|node| (node, listed("x", "a", 10 + node as u64))).collect();
        assert_eq!(held(pages(5), 0), [("x".into(), "a".into(), 12, true)]);
        assert_eq!(held(pages(3), 0), [("x".into(), "a".into(), 10, true)]);
        assert_eq!(held(pages(2), 0), []);
        assert_eq!(held(pages(2), 0b100), [("x".into(), "a".into(), 11, false)], "the third node may hold it too");
        assert_eq!(held(pages(2), 0b11), [], "both nodes have listed it: neither counts twice");
    }

    #[test]
    fn a_node_counts_once_however_often_it_lists_a_name() {
        let twice = [0, 0, 1, 1, 0].map(|node| (node, listed("x", "a", 10)));
        assert_eq!(held(twice.into(), 0), []);
        let changed = [(0, "a"), (1, "a"), (2, "b"), (2, "a")].map(|(node, token)| (node, listed("x", token, 10)));
        assert_eq!(held(changed.into(), 0), [], "a node's first entry counts");
    }

    #[test]
    fn leases_that_are_held_together_each_need_a_quorum() {
        let member = |token: &str, left_ms| {
            let ListedLease { resource, record, .. } = listed("x", token, left_ms);
            ListedLease { resource, record: LeaseRecord { mode: Mode::Shared, ..record }, left_ms }
        };
        let mut merge = ListMerge::new(5);
        for (node, token) in [(0, "a"), (0, "b"), (0, "a"), (1, "b"), (1, "a"), (2, "b"), (3, "c"), (4, "a"), (4, "b")]
        {
            merge.add_page(node, vec![member(token, 10)]);
        }
        let held: Vec<_> = merge.held(3, 0).flatten().collect();
        let [(_, lease)] = held.as_slice() else { panic!("one name: {held:?}") };
        let tokens: Vec<_> = lease.all().map(|one| one.record.token.as_str()[..1].to_owned()).collect();
        assert_eq!(tokens, ["a", "b"]);
    }

    #[test]
    fn of_two_leases_under_one_name_the_one_on_a_quorum_is_held() {
        let split = [(0, "b"), (1, "a"), (2, "b"), (3, "a"), (4, "a")];
        let pages = split.map(|(node, token)| (node, listed("x", token, 10 * (node as u64 + 1))));
        assert_eq!(held(pages.into(), 0), [("x".into(), "a".into(), 20, true)]);
    }
}
