//! The wait-for graph of this instance and the search for cycles in it: waiters that name an `owner`, and
//! the holders of what they wait for, as far as the heads of the queues last saw them. The graph may be out
//! of date, so a cycle is only suspected here; the manager asks the nodes before it refuses anybody.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::types::{ResourceName, TokenHash};

/// Edges that one search visits at most, since it runs under the lock of all queues. Beyond it no cycle
/// is found.
pub(crate) const SEARCH_MAX: usize = 256;
/// Longest cycle that is reported: each of its resources costs an inspection of the nodes.
pub(crate) const CYCLE_MAX: usize = 16;

/// Who held a resource when it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownHolder {
    /// The owner in the lease's labels; never empty.
    pub owner: Arc<str>,
    /// The lease.
    pub token: TokenHash,
}

/// A waiter in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedWaiter {
    /// Rises with time, over all queues.
    pub number: u64,
    /// What it waits for.
    pub resource: ResourceName,
}

/// `owner` waits for what `holder` has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitEdge {
    /// The owner that the waiter names.
    pub owner: Arc<str>,
    /// Its place in a queue.
    pub waiter: QueuedWaiter,
    /// The holder of that resource.
    pub holder: KnownHolder,
}

/// The waiters of each owner. Waiters without an owner are not in it.
#[derive(Default)]
pub(crate) struct WaitForGraph {
    by_owner: HashMap<Arc<str>, Vec<QueuedWaiter>>,
}

impl WaitForGraph {
    /// Adds a waiter. Its number is higher than all before.
    pub(crate) fn add(&mut self, owner: &Arc<str>, waiter: QueuedWaiter) {
        self.by_owner.entry(Arc::clone(owner)).or_default().push(waiter);
    }

    /// Removes a waiter, if it is there.
    pub(crate) fn remove(&mut self, owner: &str, number: u64) {
        let Some(waiters) = self.by_owner.get_mut(owner) else { return };
        if let Ok(index) = waiters.binary_search_by_key(&number, |w| w.number) {
            waiters.remove(index);
        }
        if waiters.is_empty() {
            self.by_owner.remove(owner);
        }
    }

    /// Whether this owner waits for anything.
    pub(crate) fn is_waiting(&self, owner: &str) -> bool {
        self.by_owner.contains_key(owner)
    }

    /// The shortest cycle through this waiter in which no waiter is newer.
    pub(crate) fn cycle_through<'a>(
        &self,
        owner: &Arc<str>,
        waiter: &QueuedWaiter,
        holder_of: impl Fn(&ResourceName) -> Option<&'a KnownHolder>,
    ) -> Option<Vec<WaitEdge>> {
        let holder = holder_of(&waiter.resource)?.clone();
        let first = WaitEdge { owner: Arc::clone(owner), waiter: waiter.clone(), holder };
        self.search(vec![first], waiter.number, holder_of)
    }

    /// The shortest cycle through any waiter of this owner. Its newest waiter is the one to refuse.
    pub(crate) fn cycle_of_owner<'a>(
        &self,
        owner: &Arc<str>,
        holder_of: impl Fn(&ResourceName) -> Option<&'a KnownHolder>,
    ) -> Option<Vec<WaitEdge>> {
        let edges = self.edges(owner, u64::MAX, &holder_of).take(SEARCH_MAX).collect();
        self.search(edges, u64::MAX, holder_of)
    }

    fn edges<'a, 'b>(
        &'b self,
        owner: &'b Arc<str>,
        newest: u64,
        holder_of: &'b impl Fn(&ResourceName) -> Option<&'a KnownHolder>,
    ) -> impl Iterator<Item = WaitEdge> + 'b {
        let waiters = self.by_owner.get(owner).into_iter().flatten().take_while(move |w| w.number <= newest);
        waiters.filter_map(move |waiter| {
            let holder = holder_of(&waiter.resource)?;
            // A waiter for a lease of its own owner is taken for another client with the same label.
            let is_own = holder.owner == *owner;
            (!is_own).then(|| WaitEdge { owner: Arc::clone(owner), waiter: waiter.clone(), holder: holder.clone() })
        })
    }

    /// Breadth-first search from `first`, edges of one owner, back to that owner.
    fn search<'a>(
        &self,
        first: Vec<WaitEdge>,
        newest: u64,
        holder_of: impl Fn(&ResourceName) -> Option<&'a KnownHolder>,
    ) -> Option<Vec<WaitEdge>> {
        let start = Arc::clone(&first.first()?.owner);
        let mut visited: HashSet<Arc<str>> = HashSet::from([Arc::clone(&start)]);
        // Each edge with the index of the one before it.
        let mut found: Vec<(WaitEdge, Option<usize>)> =
            first.into_iter().filter(|e| e.holder.owner != e.owner).map(|e| (e, None)).collect();
        let mut index = 0;
        while let Some((edge, _)) = found.get(index) {
            let next = Arc::clone(&edge.holder.owner);
            if next == start {
                return path_to(&found, index);
            }
            if visited.insert(Arc::clone(&next)) {
                let left = SEARCH_MAX.saturating_sub(found.len());
                found.extend(self.edges(&next, newest, &holder_of).take(left).map(|e| (e, Some(index))));
            }
            index += 1;
        }
        None
    }
}

/// The edges that lead to `last`, in order; `None` where they are more than [`CYCLE_MAX`].
fn path_to(found: &[(WaitEdge, Option<usize>)], last: usize) -> Option<Vec<WaitEdge>> {
    let mut edges = Vec::new();
    let mut index = Some(last);
    while let Some((edge, before)) = index.and_then(|index| found.get(index)) {
        edges.push(edge.clone());
        index = *before;
    }
    edges.reverse();
    (edges.len() <= CYCLE_MAX).then_some(edges)
}

#[cfg(test)]
#[path = "deadlock_tests.rs"]
mod tests;
