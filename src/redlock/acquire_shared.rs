//! Acquire of a shared lease or a permit: one attempt as for an exclusive lease, with a slot that is free on a
//! quorum, and a fence that a quorum has given to exactly this lease (`docs/modes.md`).

use std::time::Duration;

use futures_util::future::join_all;

use super::acquire::{AcquireParams, Grant, Refusal, RefusalKind};
use super::acquire_set::{granted, request_for, withdrawal_of};
use super::cleanup::Undo;
use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::node::Node;
use super::permit_slots::PermitSlots;
use super::quorum::{Decision, Tally};
use super::random::Entropy;
use super::round::Until;
use crate::mutant::{self, Mutant};
use crate::protocol::{
    AcquireSharedArgs, EndReason, HeldByMembers, IntentArgs, LeaseRecord, NoVote, NodeGrant, NodeResult, Reply,
    Request, TokenUse,
};
use crate::types::{Fence, Labels, Mode, ResourceName, SlotChoice, TokenHash, WantedMode};

/// Maximum number of slots that one attempt asks for, one after the other.
const SLOTS_MAX: usize = 3;

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// One attempt for a shared lease or a permit: as [`Redlock::attempt`]. For a permit it asks for up to
    /// [`SLOTS_MAX`] slots, one after the other, except slots that other callers of this instance are asking for.
    pub(super) async fn attempt_shared(
        &self,
        params: &AcquireParams,
        started: BootTime,
        choice: SlotChoice,
    ) -> Result<Grant<N, C, E>, Refusal> {
        let WantedMode::Permit { limit } = params.mode else {
            return self.attempt_member(params, Mode::Shared, started).await.map_err(|(refusal, _)| *refusal);
        };
        let mut slots = PermitSlots::new(limit, choice.avoid);
        let mut slot = choice.slot.unwrap_or_else(|| slots.draw(&self.entropy, self.quorum()));
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

    /// One attempt for one mode and slot. If it fails, it is cancelled on the nodes that answer before this returns.
    async fn attempt_member(
        &self,
        params: &AcquireParams,
        mode: Mode,
        started: BootTime,
    ) -> Result<Grant<N, C, E>, (Box<Refusal>, Tally)> {
        let labels = Labels { acquired_at_ms: self.clock.wall_ms(), ..params.labels.clone() };
        let (attempt, labels_text) = (self.entropy.attempt(), labels.encode());
        let withdrawal = withdrawal_of(params, &attempt);
        let keys_gone = self.clock.now().plus(params.ttl.as_duration()).plus(self.terms().lock_delay);
        let mut undo = Undo::new(self.clone(), withdrawal.clone(), keys_gone);
        let begun = self.clock.now();
        let request = request_for(params, mode, attempt.clone(), labels_text.clone(), TokenUse::Again);
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
                // The next slot is requested after this cancel, on the same connections.
                let until = self.clock.now().plus(self.node_timeout_for(Some(params.ttl)));
                let now = self.clock.now();
                for cancel in withdrawal.requests() {
                    self.round(&self.everyone(), cancel, now, until, Until::Won, Result::is_ok).await;
                }
            }
            let refused = Box::new(Refusal { took_effect: rounds.took_effect, ..*refused(None) });
            return Err((refused, tally));
        }
        let settled = params.resources.iter().enumerate().map(|(index, resource)| {
            let (resource, token, attempt) = (resource.clone(), params.token.clone(), attempt.clone());
            let (ttl, labels) = (params.ttl, labels_text.clone());
            let args = AcquireSharedArgs { resource, token, mode, attempt, ttl, labels, proposed: None };
            let given = tally.answers().iter().map(|answer| granted(answer.as_ref()?, index).map(|lease| lease.fence));
            self.settle_member_fence(args, given.collect(), tally.view())
        });
        let Some(fences) = join_all(settled).await.into_iter().collect::<Option<Vec<Fence>>>() else {
            return Err((refused(Some(RefusalKind::Split)), tally));
        };
        let (deadline, min_validity) = (self.deadline(started, params.ttl), self.min_validity(params.ttl));
        if deadline.since(self.clock.now()) < min_validity {
            return Err((refused(Some(RefusalKind::TooSlow)), tally));
        }
        Ok(Grant {
            engine: self.clone(),
            undo,
            leases: fences.into_iter().zip(rounds.joined).map(|(fence, joined)| NodeGrant { fence, joined }).collect(),
            mode,
            acquired_at_ms: labels.acquired_at_ms,
            started,
            deadline,
            granted: tally.yes(),
            min_validity,
            unasked: None,
        })
    }

    /// Leaves, for [`crate::protocol::INTENT_TTL`], the intent of a caller that is the head of its queue, or withdraws it.
    /// Meanwhile nodes admit no caller that would block it, unless they have the intent of a caller that has waited longer.
    /// `since`: when the caller began to wait. Returns the number of nodes that have this intent.
    ///
    /// Cancel: some nodes may have the intent; it expires by itself.
    pub(crate) async fn intend(
        &self,
        (resource, mode): (ResourceName, WantedMode),
        token: TokenHash,
        since: BootTime,
        is_withdrawn: bool,
    ) -> usize {
        let since = self.cluster_clock.request_time_at(since);
        let request = Request::Intent(IntentArgs { resource, token, since, mode, is_withdrawn });
        let now = self.clock.now();
        let deadline = now.plus(self.node_timeout());
        let is_own = |a: &NodeResult| matches!(a, Ok(Reply::Intent { is_own: true }));
        self.round(&self.everyone(), request, now, deadline, Until::Won, is_own).await.yes()
    }
}

fn is_admitted(answer: &NodeResult) -> bool {
    matches!(answer, Ok(Reply::Admitted { .. } | Reply::SetGranted { .. }))
}

/// Why a shared lease or a permit was refused, if the reason cannot occur for exclusive leases.
pub(super) fn kind_of(tally: &Tally, wanted: WantedMode, unknown: usize) -> Option<RefusalKind> {
    let need = tally.quorum();
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

/// Why the attempt, or its token, has ended, as most nodes report, if a quorum reports an end. A single node only
/// withholds its vote: an attempt that has ended on a quorum is granted by no quorum.
pub(super) fn ended_by_quorum(tally: &Tally) -> Option<EndReason> {
    let reasons = tally.received().filter_map(|(_, answer)| match answer {
        Ok(Reply::Ended { reason }) => Some(*reason),
        _ => None,
    });
    let reasons: Vec<EndReason> = reasons.collect();
    let votes = |of: &EndReason| reasons.iter().filter(|reason| *reason == of).count();
    reasons.iter().copied().max_by_key(votes).filter(|_| reasons.len() >= tally.quorum())
}

/// The answers of nodes where members, or an intent, blocked the request.
pub(super) fn held_in(tally: &Tally) -> impl Iterator<Item = &HeldByMembers> {
    tally.received().filter_map(|(_, answer)| match answer {
        Ok(Reply::HeldByMembers(held)) => Some(held),
        _ => None,
    })
}

/// Whether the answer is from a node that votes.
pub(super) fn is_vote(answer: &NodeResult) -> bool {
    match answer {
        // The node votes, and does not know whether the resource is free.
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

/// The time after which a node may grant the request, by its answer.
pub(super) fn members_left(answer: &NodeResult) -> Option<Duration> {
    match answer {
        Ok(Reply::HeldByMembers(held)) => Some(Duration::from_millis(held.left_ms)),
        _ => None,
    }
}
