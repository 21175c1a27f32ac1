//! The wait-for graph of an instance and the search for cycles in it. It connects waiters that name an `owner` with
//! the holders last seen of the resources that they wait for. The graph may be out of date, so a cycle is only
//! suspected here; the nodes must confirm it before a waiter is refused.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::compatible_waiters::is_permit;
use super::event::{Action, Blocker, Mode, RefuseReason, WaiterId};
use super::queue_state::{Queue, Resource, WaiterActivity};
use crate::mutant::{Mutant, is};
use crate::redlock::notifications::LeaseTag;
use crate::types::{PERMITS_MAX, ResourceName, TokenHash};

/// Maximum number of edges that one search visits, since it runs under the lock of all queues. A cycle beyond them is
/// not found.
pub(crate) const SEARCH_MAX: usize = 256;
/// Longest cycle that is reported: each of its resources costs an inspection of the nodes.
pub(crate) const CYCLE_MAX: usize = 16;
/// Maximum number of holders that are searched for a resource with shared leases: the first that are seen.
pub(crate) const HOLDERS_KNOWN_MAX: usize = 64;

/// Separates a principal from an owner: no principal's name contains it.
const SEPARATOR: char = '\0';

/// A waiter or a holder: an owner, which is only a label, of a principal, which is proven.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Party(Arc<str>);

impl Party {
    /// `None` without an owner. `principal` is empty where no principals exist.
    pub fn new(principal: &str, owner: &str) -> Option<Self> {
        (!owner.is_empty()).then(|| Self(format!("{principal}{SEPARATOR}{owner}").into()))
    }

    /// The owner label, without the principal.
    pub fn owner(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(_, owner)| owner)
    }
}

/// A holder of a resource when the resource was last seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KnownHolder {
    pub party: Party,
    pub token: TokenHash,
}

/// A waiter waits for a resource that `holder` has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WaitEdge {
    pub party: Party,
    /// The waiter, by its place in the queue.
    pub waiter: WaiterId,
    /// The resource that the waiter waits for.
    pub resource: ResourceName,
    pub holder: KnownHolder,
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

/// The shortest cycle that begins with an edge of `first`, all edges of one party. `edges_of` returns at most as many edges
/// of a party as its limit says. A waiter for a lease of its own party counts as another client with the same label.
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

/// The edges that lead to `last`, in order; `None` if there are more than [`CYCLE_MAX`].
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
    /// Records the leases that an attempt saw on nodes, whatever was reported of their ends before: all known leases of each
    /// resource that is named. If an owner closes a cycle in the wait-for graph, the newest waiter in the cycle checks it.
    pub(super) fn holders_seen(&mut self, blockers: &[Blocker]) {
        let mut resources: Vec<&ResourceName> = blockers.iter().map(|blocker| &blocker.resource).collect();
        resources.dedup();
        for resource in resources {
            let of_it = || blockers.iter().filter(|blocker| blocker.resource == *resource);
            let Some(known) = self.resources.get_mut(resource) else { continue };
            let leases =
                of_it().filter_map(|blocker| Some((LeaseTag::of(blocker.lease.as_ref()?), blocker.is_confirmed)));
            known.slots.see(of_it(), |lease| known.filter.is_ending(lease));
            let after = known.filter.on_seen_held(leases);
            known.seen = of_it().map(|blocker| blocker.mode).next();
            let permits =
                of_it().filter(|blocker| is_permit(blocker.mode)).filter_map(|blocker| blocker.lease.as_ref());
            known.permits = permits.map(LeaseTag::of).take(PERMITS_MAX.into()).collect();
            let before = std::mem::take(&mut known.holders);
            let mut holders: Vec<KnownHolder> = Vec::new();
            if self.settings.limits.detects_deadlocks {
                // What is known of a holder stays known, even if an attempt met only its token.
                let holder = |blocker: &Blocker| {
                    let known = before.iter().find(|known| Some(&known.token) == blocker.lease.as_ref());
                    known.cloned().or_else(|| blocker.holder())
                };
                holders.extend(of_it().filter_map(holder).take(HOLDERS_KNOWN_MAX));
                known.holders.clone_from(&holders);
            }
            self.wake(resource, after, None);
            holders.retain(|holder| before.iter().all(|known| known.token != holder.token));
            holders.iter().for_each(|holder| self.suspect(holder));
        }
    }

    /// Records that a lease of this resource was granted here.
    pub(super) fn holder_granted(
        &mut self,
        resource: &ResourceName,
        (lease, slot): (&TokenHash, Option<u8>),
        holder: Option<KnownHolder>,
        mode: Mode,
    ) {
        let Some(known) = self.resources.get_mut(resource) else { return };
        let after = known.filter.on_seen_held([(LeaseTag::of(lease), true)].into_iter());
        let mut is_new = false;
        if self.settings.limits.detects_deadlocks {
            if !known.seen.is_some_and(|seen| seen.is_compatible(mode)) {
                known.holders.clear();
            }
            is_new = known.holders.iter().all(|h| h.token != *lease) && known.holders.len() < HOLDERS_KNOWN_MAX;
            known.holders.extend(holder.clone().filter(|_| is_new));
        }
        known.permits.retain(|_| is_permit(mode));
        if is_permit(mode) && known.permits.len() < PERMITS_MAX.into() {
            known.permits.push(LeaseTag::of(lease));
        }
        if let Some(slot) = slot {
            known.slots.take(slot, Some(LeaseTag::of(lease)));
        }
        known.seen = Some(mode);
        self.wake(resource, after, None);
        holder.filter(|_| is_new).iter().for_each(|holder| self.suspect(holder));
    }

    /// If this holder closes a cycle, lets the newest waiter of the cycle check it.
    fn suspect(&mut self, holder: &KnownHolder) {
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
        let wants = waiter.into_iter().flat_map(|waiter| {
            let party = waiter.request.party.iter();
            party.flat_map(move |party| waiter.request.resources.iter().map(move |resource| (party, resource, waiter)))
        });
        wants.flat_map(move |(party, resource, waiter)| {
            // The end of any permit suffices: it is no deadlock if only some holders of permits wait for this waiter.
            let blocks = |known: &&Resource| {
                let (wanted, seen) = (waiter.request.mode, known.seen.unwrap_or(Mode::Exclusive));
                !(seen.is_compatible(wanted) || is_permit(seen) && is_permit(wanted))
            };
            let holders = self.resources.get(resource).filter(blocks).into_iter().flat_map(|known| &known.holders);
            holders.map(move |holder| WaitEdge {
                party: party.clone(),
                waiter: id,
                resource: resource.clone(),
                holder: holder.clone(),
            })
        })
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
        let Some(waiter) = self.waiters.get_mut(&id).filter(|w| w.activity == WaiterActivity::CheckingCycle) else {
            return;
        };
        waiter.activity = WaiterActivity::Idle;
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
