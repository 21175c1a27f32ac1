//! Acquire of a shared lease or a permit: one attempt as for an exclusive lease, with a slot that is free on a quorum, and a
//! fence that a quorum has given to this very lease (`docs/modes.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::acquire::{AcquireParams, Grant, Refusal, RefusalKind};
use super::cleanup::Undo;
use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::entropy::Entropy;
use super::node::Node;
use super::quorum::{Decision, Tally, quorum_of};
use super::round::Until;
use crate::mutant::{self, Mutant};
use crate::protocol::{
    AcquireSharedArgs, CancelArgs, GrantedLease, HeldByMembers, IntentArgs, LeaseRecord, NoVote, NodeResult, Reply,
    Request, UpdateArgs,
};
use crate::types::{Fence, Labels, Mode, PermitLimit, ResourceName, TokenHash, WantedMode};

/// Maximum number of slots that one attempt asks for, one after the other.
const SLOTS_MAX: usize = 3;
/// Maximum number of rounds to have a quorum give one fence to a lease.
const MEMBER_FENCE_ROUNDS: usize = 8;
/// By how much a proposed fence may lie ahead of the numbers that nodes gave: up to this many microseconds in the second round,
/// twice as many in each further one, so that of leases that are granted at a time each gets one soon.
const FENCE_LEAD_US: u64 = 1_000;

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// One attempt for what may be held together: as [`Redlock::attempt`].
    pub(super) async fn attempt_shared(
        &self,
        params: &AcquireParams,
        started: BootTime,
    ) -> Result<Grant<N, C, E>, Refusal> {
        if params.resources.len() != 1 {
            return Err(self.refusal(params, &Tally::new(self.nodes.len()))); // sets are exclusive
        }
        let WantedMode::Permit { limit } = params.mode else {
            return self.attempt_member(params, Mode::Shared, started).await.map_err(|(refusal, _)| *refusal);
        };
        let mut slots = Slots::new(limit);
        let mut slot = slots.draw(&self.entropy, self.quorum());
        for tries_left in (0..SLOTS_MAX).rev() {
            let mode = Mode::Permit { slot, limit };
            let (refusal, tally) = match self.attempt_member(params, mode, started).await {
                Ok(grant) => return Ok(grant),
                Err(refused) => refused,
            };
            slots.see(&tally, params.mode);
            let is_lost = matches!(refusal.kind, RefusalKind::Held | RefusalKind::Split | RefusalKind::ModeDiffers(_));
            match slots.own.take().or_else(|| slots.next_free(slot, &self.entropy, self.quorum())) {
                Some(next) if is_lost && tries_left > 0 => slot = next,
                _ => return Err(*refusal),
            }
        }
        unreachable!("the last try returns")
    }

    /// One attempt for one mode and slot. Where it fails, it is cancelled before this returns on nodes that answer.
    async fn attempt_member(
        &self,
        params: &AcquireParams,
        mode: Mode,
        started: BootTime,
    ) -> Result<Grant<N, C, E>, (Box<Refusal>, Tally)> {
        let labels = Labels { acquired_at_ms: self.clock.wall_ms(), ..params.labels.clone() };
        let (attempt, labels_text) = (self.entropy.attempt(), labels.encode());
        let (resource, token) = (params.resources[0].clone(), params.token.clone());
        let cancel = Request::Cancel(CancelArgs { resource, token, attempt: attempt.clone() });
        let keys_gone = self.clock.now().plus(params.ttl.as_duration()).plus(self.settings.params.lock_delay);
        let mut undo = Undo::new(self.clone(), vec![cancel.clone()], keys_gone);
        let args = AcquireSharedArgs {
            resource: params.resources[0].clone(),
            token: params.token.clone(),
            mode,
            attempt,
            ttl: params.ttl,
            labels: labels_text,
            proposed: None,
        };
        let begun = self.clock.now();
        let request = Request::AcquireShared(args.clone());
        let (tally, rounds) = self.acquire_round(request, params, begun, is_admitted).await;
        if mutant::is(Mutant::CancelWhereGranted) {
            undo.restrict_to(tally.received().filter(|(_, a)| is_admitted(a)).map(|(i, _)| i).collect());
        }
        let refused = |kind: Option<RefusalKind>| {
            let refusal = self.refusal(params, &tally);
            Box::new(Refusal { kind: kind.unwrap_or(refusal.kind), ..refusal })
        };
        if tally.decision() != Decision::Reached {
            if !rounds.took_effect {
                undo.disarm();
            } else if params.mode.limit().is_some() && !mutant::is(Mutant::NoCleanup) {
                // The next slot is asked for behind it, on the same connections.
                let until = self.clock.now().plus(self.node_timeout_for(Some(params.ttl)));
                let now = self.clock.now();
                self.round(&self.everyone(), cancel, now, until, Until::Won, Result::is_ok).await;
            }
            let refused = Box::new(Refusal { took_effect: rounds.took_effect, ..*refused(None) });
            return Err((refused, tally));
        }
        let Some(fence) = self.settle_member_fence(&args, &tally).await else {
            return Err((refused(Some(RefusalKind::Split)), tally));
        };
        let (deadline, min_validity) = (self.deadline(started, params.ttl), self.min_validity(params.ttl));
        if deadline.since(self.clock.now()) < min_validity {
            return Err((refused(Some(RefusalKind::TooSlow)), tally));
        }
        Ok(Grant {
            engine: self.clone(),
            undo,
            leases: [GrantedLease { fence, joined: rounds.joined.first().copied().unwrap_or_default() }].into(),
            mode,
            acquired_at_ms: labels.acquired_at_ms,
            deadline,
            granted: tally.yes(),
            min_validity,
        })
    }

    /// Has a quorum give one fence to this lease. A node gives each number once, so that no two leases get the same: the rule
    /// for exclusive leases, which writes the highest one back whoever has it, would. Where the answers differ, the highest is
    /// proposed to all; a node gives it if it is above all that it gave, and its next number otherwise. A later proposal lies
    /// ahead, since others have been given numbers meanwhile. `None` where that fails.
    ///
    /// Why a fence is above all that were answered before its caller asked: a node of both quorums gave the earlier one before
    /// it gave any number to this lease.
    async fn settle_member_fence(&self, args: &AcquireSharedArgs, tally: &Tally) -> Option<Fence> {
        let mut given: Vec<Option<Fence>> = tally.answers().iter().map(|answer| fence_in(answer.as_ref())).collect();
        let mut too_far = None::<Fence>;
        for round in 0..MEMBER_FENCE_ROUNDS {
            if let Some(fence) = agreed(&given, self.quorum()) {
                self.store_agreed_fence(args, fence, &given);
                return Some(fence);
            }
            let possible = given.iter().flatten().filter(|fence| too_far.is_none_or(|far| **fence < far));
            let highest = possible.max().copied()?;
            let lead = if round == 0 || too_far.is_some() { 0 } else { FENCE_LEAD_US << round };
            let present = if lead > 0 { self.cluster_clock.request_time().0 } else { 0 };
            let proposed = Fence(highest.0.max(present).saturating_add(self.entropy.below(lead)));
            let request = Request::AcquireShared(AcquireSharedArgs { proposed: Some(proposed), ..args.clone() });
            let now = self.clock.now();
            let deadline = now.plus(self.node_timeout_for(Some(args.ttl)));
            let is_yes = |a: &NodeResult| fence_in(Some(a)) == Some(proposed);
            let tally = self.round(&self.everyone(), request, now, deadline, Until::Decided, is_yes).await;
            for (index, answer) in tally.received() {
                given[index] = fence_in(Some(answer)).or(given[index]);
                if matches!(answer, Ok(Reply::FenceTooFarAhead)) {
                    too_far = Some(too_far.map_or(proposed, |far| far.min(proposed)));
                }
            }
        }
        agreed(&given, self.quorum())
    }

    /// Stores a fence that a quorum gave on the other nodes, so that later rounds find one number. Not awaited: nothing
    /// depends on it.
    fn store_agreed_fence(&self, args: &AcquireSharedArgs, fence: Fence, given: &[Option<Fence>]) {
        let differ = |(index, of): (usize, &Option<Fence>)| (*of != Some(fence)).then_some(index);
        let differing: Vec<usize> = given.iter().enumerate().filter_map(differ).collect();
        if differing.is_empty() || given.iter().flatten().all(|of| *of == fence) {
            return;
        }
        let request = Request::Update(UpdateArgs {
            resource: args.resource.clone(),
            token: args.token.clone(),
            ttl: Some(args.ttl),
            fence: Some(fence),
            renewal: false,
            labels: None,
        });
        let (engine, ttl) = (self.clone(), args.ttl);
        self.tasks.spawn(async move {
            let now = engine.clock.now();
            let deadline = now.plus(engine.node_timeout_for(Some(ttl)));
            engine.round(&differing, request, now, deadline, Until::All, Result::is_ok).await;
        });
    }

    /// Leaves the intent of a caller that is the head of its queue, for [`crate::protocol::INTENT_TTL`], or withdraws it: until
    /// then nodes admit no new shared lease or permit but its own. Returns the number of nodes where it stands.
    ///
    /// Cancel: some nodes may have it; it ends by itself.
    pub async fn intend(&self, resource: &ResourceName, token: &TokenHash, is_withdrawn: bool) -> usize {
        let (resource, token) = (resource.clone(), token.clone());
        let request = Request::Intent(IntentArgs { resource, token, is_withdrawn });
        let now = self.clock.now();
        let deadline = now.plus(self.node_timeout());
        let is_own = |a: &NodeResult| matches!(a, Ok(Reply::Intent { is_own: true }));
        self.round(&self.everyone(), request, now, deadline, Until::Won, is_own).await.yes()
    }
}

/// What is known of a resource's slots.
struct Slots {
    limit: PermitLimit,
    /// By slot, the nodes that showed it as taken.
    taken: BTreeMap<u8, BTreeSet<usize>>,
    /// The slot that this token has on most nodes already.
    own: Option<u8>,
    nodes: usize,
}

impl Slots {
    fn new(limit: PermitLimit) -> Self {
        Self { limit, taken: BTreeMap::new(), own: None, nodes: 0 }
    }

    /// What an attempt met.
    fn see(&mut self, tally: &Tally, wanted: WantedMode) {
        self.nodes = tally.answers().len();
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

    /// Any slot that a quorum may have free.
    fn draw<E: Entropy>(&self, entropy: &E, quorum: usize) -> u8 {
        self.next_free(u8::MAX, entropy, quorum).unwrap_or_default()
    }

    /// A slot that is free on most nodes, but for `except`; `None` where no quorum can have one.
    fn next_free<E: Entropy>(&self, except: u8, entropy: &E, quorum: usize) -> Option<u8> {
        let takers = |slot: &u8| self.taken.get(slot).map_or(0, BTreeSet::len);
        let possible = |slot: &u8| *slot != except && (self.nodes == 0 || takers(slot) + quorum <= self.nodes);
        let least = (0..self.limit.get()).filter(possible).map(|slot| takers(&slot)).min()?;
        let best: Vec<u8> = (0..self.limit.get()).filter(possible).filter(|slot| takers(slot) == least).collect();
        let drawn = usize::try_from(entropy.below(best.len() as u64)).unwrap_or_default();
        best.get(drawn).copied()
    }
}

fn is_admitted(answer: &NodeResult) -> bool {
    matches!(answer, Ok(Reply::Admitted { .. }))
}

fn fence_in(answer: Option<&NodeResult>) -> Option<Fence> {
    match answer {
        Some(Ok(Reply::Admitted { fence, .. })) => Some(*fence),
        _ => None,
    }
}

/// The fence that a quorum gave.
fn agreed(given: &[Option<Fence>], quorum: usize) -> Option<Fence> {
    if mutant::is(Mutant::NoWriteBack) {
        return given.iter().flatten().max().copied();
    }
    let count = |fence: Fence| given.iter().filter(|of| **of == Some(fence)).count();
    given.iter().flatten().copied().find(|fence| count(*fence) >= quorum)
}

/// Why what may be held together was refused, beyond what refuses an exclusive lease; `None`: for none of these reasons.
pub(super) fn kind_of(tally: &Tally, wanted: WantedMode, unknown: usize) -> Option<RefusalKind> {
    let need = quorum_of(tally.answers().len());
    let (mut modes, mut limits) = (Vec::new(), Vec::new());
    for (_, answer) in tally.received() {
        match answer {
            Ok(Reply::ModeDiffers { mode }) => modes.push(*mode),
            Ok(Reply::HeldByMembers(HeldByMembers { kind: Some(WantedMode::Permit { limit }), .. }))
                if wanted.limit().is_some_and(|wanted| wanted != *limit) =>
            {
                limits.push(*limit);
            }
            _ => {}
        }
    }
    match (modes.first(), limits.first()) {
        (Some(mode), _) if modes.len() + unknown >= need => Some(RefusalKind::ModeDiffers(*mode)),
        (_, Some(limit)) if limits.len() + unknown >= need => Some(RefusalKind::LimitDiffers(*limit)),
        _ => None,
    }
}

/// The answers of nodes where members, or an intent, kept the request out.
pub(super) fn held_in(tally: &Tally) -> impl Iterator<Item = &HeldByMembers> {
    tally.received().filter_map(|(_, answer)| match answer {
        Ok(Reply::HeldByMembers(held)) => Some(held),
        _ => None,
    })
}

/// Of a node that votes.
pub(super) fn is_vote(answer: &NodeResult) -> bool {
    match answer {
        // It votes, and does not know whether the resource is free.
        Ok(Reply::NoVote(NoVote::Blocked { .. })) => true,
        Ok(Reply::NoVote(_)) | Err(_) => false,
        Ok(_) => true,
    }
}

/// The members that nodes report, each once.
pub(super) fn members_in(tally: &Tally) -> Vec<&LeaseRecord> {
    let mut members: Vec<&LeaseRecord> = held_in(tally).flat_map(|held| &held.members).collect();
    members.sort_by(|a, b| (&a.token, b.recency()).cmp(&(&b.token, a.recency())));
    members.dedup_by(|a, b| a.token == b.token);
    members
}

/// The time after which a node may be free for what was asked, by its answer.
pub(super) fn members_left(answer: &NodeResult) -> Option<Duration> {
    match answer {
        Ok(Reply::HeldByMembers(held)) => Some(Duration::from_millis(held.left_ms)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::entropy::SystemEntropy;

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
        let mut slots = Slots::new(limit(3));
        slots.see(&refused(&[&[0, 1], &[0], &[0]]), wanted);
        assert_eq!(slots.next_free(0, &SystemEntropy, 2), Some(2), "1 is taken on one node");
        assert_eq!(slots.next_free(2, &SystemEntropy, 2), Some(1));
        slots.see(&refused(&[&[0, 1, 2], &[0, 1, 2], &[0]]), wanted);
        assert_eq!(slots.next_free(0, &SystemEntropy, 2), None, "no quorum can have one");
        let drawn: BTreeSet<u8> = (0..200).map(|_| Slots::new(limit(3)).draw(&SystemEntropy, 2)).collect();
        assert_eq!(drawn, BTreeSet::from([0, 1, 2]));
    }

    #[test]
    fn a_fence_counts_once_a_quorum_gave_it_to_this_lease() {
        let given = |of: &[u64]| of.iter().map(|n| (*n > 0).then_some(Fence(*n))).collect::<Vec<_>>();
        assert_eq!(agreed(&given(&[5, 6, 0]), 2), None);
        assert_eq!(agreed(&given(&[5, 5, 9]), 2), Some(Fence(5)), "whatever the third one gave");
        assert_eq!(agreed(&given(&[0, 0, 9]), 2), None);
    }
}
