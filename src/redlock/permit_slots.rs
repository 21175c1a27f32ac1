//! Chooses the slot that an attempt for a permit requests: a slot that, by earlier answers, is free on most nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::acquire_shared::held_in;
use super::quorum::Tally;
use super::random::Entropy;
use crate::protocol::{HeldByMembers, Reply};
use crate::types::{PermitLimit, SlotSet, WantedMode};

/// The known state of a resource's slots.
pub(super) struct PermitSlots {
    limit: PermitLimit,
    /// By slot, the nodes that showed it as taken.
    taken: BTreeMap<u8, BTreeSet<usize>>,
    /// The slot that this token has on most nodes already.
    pub(super) own: Option<u8>,
    nodes: usize,
    /// Slots that other callers of this instance are asking for.
    avoid: SlotSet,
}

impl PermitSlots {
    pub(super) fn new(limit: PermitLimit, avoid: SlotSet) -> Self {
        Self { limit, taken: BTreeMap::new(), own: None, nodes: 0, avoid }
    }

    /// Records the answers that an attempt received.
    pub(super) fn see(&mut self, tally: &Tally, wanted: WantedMode) {
        self.nodes = tally.size();
        let mut own: BTreeMap<u8, usize> = BTreeMap::new();
        for (index, answer) in tally.received() {
            match answer {
                Ok(Reply::HeldByMembers(HeldByMembers { taken, .. })) => {
                    for nodes in self.taken.values_mut() {
                        nodes.remove(&index);
                    }
                    for slot in taken {
                        self.taken.entry(*slot).or_default().insert(index);
                    }
                }
                Ok(Reply::ModeDiffers { mode }) if mode.wanted() == wanted => {
                    *own.entry(mode.slot().unwrap_or_default()).or_default() += 1;
                }
                _ => {}
            }
        }
        self.own = own.into_iter().max_by_key(|(_, nodes)| *nodes).map(|(slot, _)| slot);
    }

    /// Any slot that may be free on a quorum.
    pub(super) fn draw<E: Entropy>(&self, entropy: &E, quorum: usize) -> u8 {
        self.next_free(u8::MAX, entropy, quorum).unwrap_or_default()
    }

    /// A slot that is free on most nodes, except `except`; `None` if no slot can be free on a quorum.
    pub(super) fn next_free<E: Entropy>(&self, except: u8, entropy: &E, quorum: usize) -> Option<u8> {
        let takers = |slot: &u8| self.taken.get(slot).map_or(0, BTreeSet::len);
        let is_free = |slot: &u8| self.nodes == 0 || takers(slot) + quorum <= self.nodes;
        let possible = |slot: &u8| *slot != except && !self.avoid.contains(*slot) && is_free(slot);
        let least = (0..self.limit.get()).filter(possible).map(|slot| takers(&slot)).min()?;
        let best: Vec<u8> = (0..self.limit.get()).filter(possible).filter(|slot| takers(slot) == least).collect();
        let drawn = usize::try_from(entropy.below(best.len() as u64)).unwrap_or_default();
        best.get(drawn).copied()
    }
}

/// The slots of permits that are not free on any quorum.
pub(super) fn slots_taken(tally: &Tally) -> SlotSet {
    let mut takers: BTreeMap<u8, usize> = BTreeMap::new();
    held_in(tally).flat_map(|held| &held.taken).for_each(|slot| *takers.entry(*slot).or_default() += 1);
    takers.into_iter().filter(|(_, takers)| takers + tally.quorum() > tally.size()).map(|(slot, _)| slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::random::SystemEntropy;

    fn limit(permits: u64) -> PermitLimit {
        PermitLimit::new(permits).expect("in range")
    }

    fn refused(slots: &[&[u8]]) -> Tally {
        let mut tally = Tally::new(slots.len());
        for (index, taken) in slots.iter().enumerate() {
            let kind = Some(WantedMode::Permit { limit: limit(3) });
            let taken = taken.iter().copied().collect();
            let held = HeldByMembers { left_ms: 1, kind, is_intent: false, taken, members: Vec::new() };
            tally.record(index, Ok(Reply::HeldByMembers(held)), false);
        }
        tally
    }

    #[test]
    fn the_next_slot_is_one_that_most_nodes_have_free() {
        let wanted = WantedMode::Permit { limit: limit(3) };
        let mut slots = PermitSlots::new(limit(3), SlotSet::default());
        slots.see(&refused(&[&[0, 1], &[0], &[0]]), wanted);
        assert_eq!(slots.next_free(0, &SystemEntropy, 2), Some(2), "1 is taken on one node");
        assert_eq!(slots.next_free(2, &SystemEntropy, 2), Some(1));
        slots.see(&refused(&[&[0, 1, 2], &[0, 1, 2], &[0]]), wanted);
        assert_eq!(slots.next_free(0, &SystemEntropy, 2), None, "no quorum can have one");
        let drawn: BTreeSet<u8> =
            (0..200).map(|_| PermitSlots::new(limit(3), SlotSet::default()).draw(&SystemEntropy, 2)).collect();
        assert_eq!(drawn, BTreeSet::from([0, 1, 2]));
        let mut slots = PermitSlots::new(limit(3), [1].into_iter().collect());
        slots.see(&refused(&[&[0], &[0], &[0]]), wanted);
        assert_eq!(slots.next_free(2, &SystemEntropy, 2), None, "another one here asks for 1");
        let taken = slots_taken(&refused(&[&[0, 1, 2], &[0, 1], &[0]]));
        assert_eq!(taken.iter().collect::<Vec<_>>(), [0, 1], "a quorum may have 2");
    }
}
