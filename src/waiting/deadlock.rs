//! The wait-for graph of an instance and the search for cycles in it: waiters that name an `owner`, and the
//! holders of what they wait for, as far as they were last seen. The graph may be out of date, so a cycle is only
//! suspected here; the nodes are asked before anybody is refused.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::entry::{Activity, Queue};
use super::event::{Action, RefuseReason, WaiterId};
use crate::mutant::{Mutant, is};
use crate::redlock::notifications::LeaseTag;
use crate::types::{ResourceName, TokenHash};

/// Edges that one search visits at most, since it runs under the lock of all queues. Beyond it no cycle
/// is found.
pub(crate) const SEARCH_MAX: usize = 256;
/// Longest cycle that is reported: each of its resources costs an inspection of the nodes.
pub(crate) const CYCLE_MAX: usize = 16;

/// Separates a principal from an owner: no principal's name has it.
const SEPARATOR: char = '\0';

/// Who waits or holds: an owner, which is only a label, of a principal, which is proven.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Party(Arc<str>);

impl Party {
    /// `None` without an owner. `principal` stands for the principal, and is empty where there are none.
    pub fn new(principal: &str, owner: &str) -> Option<Self> {
        (!owner.is_empty()).then(|| Self(format!("{principal}{SEPARATOR}{owner}").into()))
    }

    /// The label.
    pub fn owner(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(_, owner)| owner)
    }
}

/// Who held a resource when it was last seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Who.
    pub party: Party,
    /// The lease.
    pub token: TokenHash,
}

/// A waiter waits for a resource that `holder` has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WaitEdge {
    /// Who waits.
    pub party: Party,
    /// Its place in the queue.
    pub waiter: WaiterId,
    /// What it waits for.
    pub resource: ResourceName,
    /// Who has it.
    pub holder: Holder,
}

/// The waiters of each party.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct PartyWaiters(BTreeSet<(Party, WaiterId)>);

impl PartyWaiters {
    pub(super) fn add(&mut self, party: &Party, waiter: WaiterId) {
        self.0.insert((party.clone(), waiter));
    }

    pub(super) fn remove(&mut self, party: &Party, waiter: WaiterId) {
        self.0.remove(&(party.clone(), waiter));
    }

    /// The waiters of this party, up to `newest`, in order.
    pub(super) fn of(&self, party: &Party, newest: WaiterId) -> impl Iterator<Item = WaiterId> {
        self.0.range((party.clone(), 0)..=(party.clone(), newest)).map(|(_, waiter)| *waiter)
    }
}

/// The shortest cycle that begins with one of `first`, edges of one party. `edges_of` has at most so many edges
/// of a party; a waiter for a lease of its own party is taken for another client with the same label.
pub(super) fn shortest_cycle(
    first: Vec<WaitEdge>,
    edges_of: impl Fn(&Party, usize) -> Vec<WaitEdge>,
) -> Option<Vec<WaitEdge>> {
    let start = first.first()?.party.clone();
    let mut visited: HashSet<Party> = HashSet::from([start.clone()]);
    // Each edge with the index of the one before it.
    let mut found: Vec<(WaitEdge, Option<usize>)> = Vec::new();
    let is_other = |edge: &WaitEdge| edge.holder.party != edge.party;
    found.extend(first.into_iter().filter(is_other).map(|edge| (edge, None)));
    let mut index = 0;
    while let Some((edge, _)) = found.get(index) {
        let next = edge.holder.party.clone();
        if next == start {
            return path_to(&found, index);
        }
        if visited.insert(next.clone()) {
            let left = SEARCH_MAX.saturating_sub(found.len());
            found.extend(edges_of(&next, left).into_iter().filter(is_other).map(|edge| (edge, Some(index))));
        }
        index += 1;
    }
    None
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

/// The search among the waiters of a queue.
impl Queue {
    /// This lease was seen on nodes, whatever was reported of its end before. If its owner closes a cycle in the
    /// wait-for graph, the newest waiter in it checks.
    pub(super) fn holder_seen(
        &mut self,
        resource: &ResourceName,
        lease: &TokenHash,
        holder: Option<Holder>,
        is_confirmed: bool,
    ) {
        let Some(known) = self.resources.get_mut(resource) else { return };
        let after = known.filter.on_seen_held(LeaseTag::of(lease), is_confirmed);
        let is_new = known.holder.as_ref().is_none_or(|known| known.token != *lease);
        if self.settings.limits.detects_deadlocks && is_new {
            known.holder = holder.clone();
        }
        self.wake(resource, after);
        let Some(holder) = holder.filter(|_| self.settings.limits.detects_deadlocks && is_new) else { return };
        let first = self.edges_of(&holder.party, WaiterId::MAX, SEARCH_MAX);
        let cycle = shortest_cycle(first, |party, limit| self.edges_of(party, WaiterId::MAX, limit));
        let Some(newest) = cycle.into_iter().flatten().map(|edge| edge.waiter).max() else { return };
        if !is(Mutant::DeadlockUnnoticed) {
            self.update(newest, |waiter| waiter.is_suspect = true);
            self.proceed(newest);
        }
    }

    /// The shortest cycle through this waiter in which no waiter is newer.
    pub(super) fn cycle_through(&self, id: WaiterId) -> Option<Vec<WaitEdge>> {
        shortest_cycle(self.edges(id).collect(), |party, limit| self.edges_of(party, id, limit))
    }

    fn edges(&self, id: WaiterId) -> impl Iterator<Item = WaitEdge> {
        let waiter = self.waiters.get(&id);
        let edge = move |(party, resource): (&Party, &ResourceName)| {
            let holder = self.resources.get(resource)?.holder.clone()?;
            Some(WaitEdge { party: party.clone(), waiter: id, resource: resource.clone(), holder })
        };
        let wants = waiter.into_iter().flat_map(|waiter| {
            let party = waiter.request.party.iter();
            party.flat_map(|party| waiter.request.resources.iter().map(move |resource| (party, resource)))
        });
        wants.filter_map(edge)
    }

    pub(super) fn edges_of(&self, party: &Party, newest: WaiterId, limit: usize) -> Vec<WaitEdge> {
        self.parties.of(party, newest).flat_map(|id| self.edges(id)).take(limit).collect()
    }

    pub(super) fn cycle_checked(&mut self, id: WaiterId, cycle: Vec<WaitEdge>, is_confirmed: bool, may_refuse: bool) {
        let recheck_at = self.now.plus(self.draw(self.settings.poll));
        let waits = |edge: &WaitEdge| {
            self.resources.get(&edge.resource).is_some_and(|known| known.order.binary_search(&edge.waiter).is_ok())
        };
        let is_deadlock = is_confirmed && cycle.iter().all(waits);
        let Some(waiter) = self.waiters.get_mut(&id).filter(|w| w.activity == Activity::CheckingCycle) else { return };
        waiter.activity = Activity::Idle;
        if !is_deadlock && !is(Mutant::DeadlockForgotten) {
            waiter.recheck_at = recheck_at;
        } else if is_deadlock && waiter.request.refuses_deadlock && may_refuse {
            return self.refuse(id, RefuseReason::Deadlock(cycle));
        } else if is_deadlock && !std::mem::replace(&mut waiter.has_reported, true) {
            self.actions.push(Action::ReportDeadlock(cycle));
        }
        self.proceed(id);
    }
}

#[cfg(test)]
#[path = "deadlock_tests.rs"]
mod tests;
