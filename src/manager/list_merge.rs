//! Merges the lists of all nodes: which lease a quorum holds under each name, and for how long. Its cost
//! counts, since each lease of each node passes through it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use super::snapshots::SnapshotLease;
use crate::protocol::{LeaseRecord, ListedLease};
use crate::types::ResourceName;

/// The lists of all nodes as far as they have been read.
pub(super) struct ListMerge {
    nodes: usize,
    names: HashMap<ResourceName, Box<Copies>>,
}

/// The leases that the nodes have under one name.
struct Copies {
    /// The nodes that have the name, one bit each.
    nodes: u64,
    first: LeaseCopy,
    /// Other leases, where the nodes disagree.
    others: Vec<LeaseCopy>,
}

/// One lease, with the TTL that each node which has it gives its key. Milliseconds.
struct LeaseCopy {
    record: LeaseRecord,
    lefts: Vec<u64>,
}

impl ListMerge {
    /// For this many nodes, at most 15.
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes, names: HashMap::new() }
    }

    /// Adds a page of one node's list. A list may have a name twice: only the first entry counts, since a
    /// node has one vote.
    pub(super) fn add_page(&mut self, node: usize, page: Vec<ListedLease>) {
        let node = 1_u64 << node;
        let copy = |record, left_ms| {
            let mut lefts = Vec::with_capacity(self.nodes);
            lefts.push(left_ms);
            LeaseCopy { record, lefts }
        };
        for ListedLease { resource, record, left_ms } in page {
            let copies = match self.names.entry(resource) {
                Entry::Vacant(name) => {
                    let first = copy(record, left_ms);
                    name.insert(Box::new(Copies { nodes: node, first, others: Vec::new() }));
                    continue;
                }
                Entry::Occupied(name) => name.into_mut(),
            };
            if copies.nodes & node != 0 {
                continue;
            }
            copies.nodes |= node;
            let mut known = std::iter::once(&mut copies.first).chain(&mut copies.others);
            match known.find(|known| known.record.token == record.token) {
                Some(known) => known.lefts.push(left_ms),
                None => copies.others.push(copy(record, left_ms)),
            }
        }
    }

    /// For each name the lease that `quorum` nodes hold, or may hold: a `doubtful` node (one bit each), whose list is
    /// incomplete or which may have forgotten leases, may hold what it did not list. `None` where no lease can have a quorum.
    pub(super) fn held(
        self,
        quorum: usize,
        doubtful: u64,
    ) -> impl Iterator<Item = Option<(ResourceName, SnapshotLease)>> {
        self.names.into_iter().map(move |(resource, copies)| {
            let Copies { nodes, first, others } = *copies;
            let unknown = usize::try_from((doubtful & !nodes).count_ones()).unwrap_or(0);
            let most = std::iter::once(first).chain(others).max_by_key(|copy| copy.lefts.len())?;
            let LeaseCopy { record, mut lefts } = most;
            if lefts.len() + unknown < quorum {
                return None;
            }
            lefts.sort_unstable_by(|a, b| b.cmp(a));
            let confirmed = lefts.get(quorum.checked_sub(1)?).copied();
            let left = Duration::from_millis(confirmed.or(lefts.first().copied())?);
            Some((resource, SnapshotLease::new(record, left, confirmed.is_some())))
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
    fn of_two_leases_under_one_name_the_one_on_a_quorum_is_held() {
        let split = [(0, "b"), (1, "a"), (2, "b"), (3, "a"), (4, "a")];
        let pages = split.map(|(node, token)| (node, listed("x", token, 10 * (node as u64 + 1))));
        assert_eq!(held(pages.into(), 0), [("x".into(), "a".into(), 20, true)]);
    }
}
