//! Who waits for whom, and whether that goes in a circle: the callers of this instance's queues that
//! name an `owner`, and the holders of what they wait for, as far as the heads of the queues have
//! heard. Pure: it only suspects; the manager asks the nodes before anybody is refused. Knows no queue
//! and no node.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::types::{ResourceName, TokenHash};

/// Seats that one search looks at: it runs under the room's lock. Beyond it nothing is suspected.
pub const WALK_MAX: usize = 256;
/// The longest circle that is told: each of its resources costs a look at the nodes.
pub const CYCLE_MAX: usize = 16;

/// Who held a resource when it was last heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// As it called itself; never empty.
    pub owner: Arc<str>,
    /// Its lease.
    pub token: TokenHash,
}

/// A seat in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Rises with time, over all queues.
    pub seat: u64,
    /// What is waited for.
    pub resource: ResourceName,
}

/// `owner` waits for what `holder` has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// Who waits.
    pub owner: Arc<str>,
    /// Where.
    pub place: Place,
    /// Who is waited for.
    pub holder: Holder,
}

/// The seats of each owner. Seats without an owner are not in it.
#[derive(Default)]
pub struct Waits {
    by_owner: HashMap<Arc<str>, Vec<Place>>,
}

impl Waits {
    /// Somebody sat down; seats rise.
    pub fn seat(&mut self, owner: &Arc<str>, place: Place) {
        self.by_owner.entry(Arc::clone(owner)).or_default().push(place);
    }

    /// Somebody left.
    pub fn leave(&mut self, owner: &str, seat: u64) {
        let Some(places) = self.by_owner.get_mut(owner) else { return };
        if let Ok(index) = places.binary_search_by_key(&seat, |p| p.seat) {
            places.remove(index);
        }
        if places.is_empty() {
            self.by_owner.remove(owner);
        }
    }

    /// Whether this owner waits for anything.
    pub fn waits(&self, owner: &str) -> bool {
        self.by_owner.contains_key(owner)
    }

    /// A circle through this seat in which nobody sat down later: the shortest.
    pub fn circle_through<'a>(
        &self,
        owner: &Arc<str>,
        place: &Place,
        holder_of: impl Fn(&ResourceName) -> Option<&'a Holder>,
    ) -> Option<Vec<Edge>> {
        let holder = holder_of(&place.resource)?.clone();
        let first = Edge { owner: Arc::clone(owner), place: place.clone(), holder };
        self.search(vec![first], place.seat, holder_of)
    }

    /// A circle through whatever this owner waits for: the shortest. Its newest seat is to give way.
    pub fn circle_of<'a>(
        &self,
        owner: &Arc<str>,
        holder_of: impl Fn(&ResourceName) -> Option<&'a Holder>,
    ) -> Option<Vec<Edge>> {
        let edges = self.edges(owner, u64::MAX, &holder_of).take(WALK_MAX).collect();
        self.search(edges, u64::MAX, holder_of)
    }

    fn edges<'a, 'b>(
        &'b self,
        owner: &'b Arc<str>,
        newest: u64,
        holder_of: &'b impl Fn(&ResourceName) -> Option<&'a Holder>,
    ) -> impl Iterator<Item = Edge> + 'b {
        let places = self.by_owner.get(owner).into_iter().flatten().take_while(move |p| p.seat <= newest);
        places.filter_map(move |place| {
            let holder = holder_of(&place.resource)?;
            // Who waits for a lease of its own name is taken for another caller of that name.
            let is_own = holder.owner == *owner;
            (!is_own).then(|| Edge { owner: Arc::clone(owner), place: place.clone(), holder: holder.clone() })
        })
    }

    /// Breadth first from `first`, all of one owner, back to that owner.
    fn search<'a>(
        &self,
        first: Vec<Edge>,
        newest: u64,
        holder_of: impl Fn(&ResourceName) -> Option<&'a Holder>,
    ) -> Option<Vec<Edge>> {
        let home = Arc::clone(&first.first()?.owner);
        let mut seen: HashSet<Arc<str>> = HashSet::from([Arc::clone(&home)]);
        // Each with the index of the one before it.
        let mut walk: Vec<(Edge, Option<usize>)> =
            first.into_iter().filter(|e| e.holder.owner != e.owner).map(|e| (e, None)).collect();
        let mut at = 0;
        while let Some((edge, _)) = walk.get(at) {
            let next = Arc::clone(&edge.holder.owner);
            if next == home {
                return way(&walk, at);
            }
            if seen.insert(Arc::clone(&next)) {
                let room = WALK_MAX.saturating_sub(walk.len());
                walk.extend(self.edges(&next, newest, &holder_of).take(room).map(|e| (e, Some(at))));
            }
            at += 1;
        }
        None
    }
}

/// The edges that led to `at`, first to last; `None` where they are too many.
fn way(walk: &[(Edge, Option<usize>)], at: usize) -> Option<Vec<Edge>> {
    let mut edges = Vec::new();
    let mut at = Some(at);
    while let Some((edge, before)) = at.and_then(|index| walk.get(index)) {
        edges.push(edge.clone());
        at = *before;
    }
    edges.reverse();
    (edges.len() <= CYCLE_MAX).then_some(edges)
}

#[cfg(test)]
#[path = "deadlock_tests.rs"]
mod tests;
