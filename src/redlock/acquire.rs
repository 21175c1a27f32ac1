//! Acquire: rounds over all nodes until a quorum grants, the caller's patience ends, or the answer
//! is final. Each try is an attempt of its own, with its own start, id and clean-up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::backoff::{Backoff, uniform};
use super::cleanup::Undo;
use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::entropy::Entropy;
use super::node::Node;
use super::quorum::{Decision, NodeOutcome, Tally, quorum_free_in, quorum_of};
use super::round::Until;
use crate::mutant::{self, Mutant};
use crate::protocol::{
    AcquireArgs, CancelArgs, EndReason, LeaseRecord, NoVote, NodeResult, Reply, Request, Unreachable, UnreachableKind,
    UpdateArgs,
};
use crate::types::{Fence, ResourceName, TokenHash, Ttl};

/// Tries after a split vote for a caller that does not want to wait: a split says nothing about
/// whether the resource is free.
pub const SPLIT_TRIES: u32 = 6;
/// Spread of the wake-ups at the instant at which a lease ends.
const WAKE_JITTER: Duration = Duration::from_millis(3);
/// Tries to bring one fence to a quorum.
const FENCE_ROUNDS: usize = 3;

/// What is wanted.
#[derive(Debug, Clone)]
pub struct AcquireParams {
    /// What is to be protected.
    pub resource: ResourceName,
    /// Hash of the proof.
    pub token: TokenHash,
    /// For how long.
    pub ttl: Ttl,
    /// Encoded labels.
    pub labels: Arc<str>,
}

/// How long a caller tries, and what wakes it in between.
pub struct RetryUntil<'a> {
    /// No attempt starts after this. A value in the past: one attempt (more after a split vote).
    pub deadline: BootTime,
    /// Notified when the resource may have become free.
    pub wake: &'a Notify,
}

/// A lease that a quorum granted. Dropped without [`Grant::keep`], its attempt is cancelled on all
/// nodes in the background.
pub struct Grant<N: Node, C: Clock, E: Entropy> {
    engine: Redlock<N, C, E>,
    undo: Undo<N, C, E>,
    /// The fencing token, written on a quorum.
    pub fence: Fence,
    /// A quorum had the token's lease before this request's first attempt.
    pub joined: bool,
    /// Until when the lease may be relied on.
    pub deadline: BootTime,
    /// Nodes that had granted when the vote was won.
    pub granted: usize,
    min_validity: Duration,
}

impl<N: Node, C: Clock, E: Entropy> Grant<N, C, E> {
    /// What is left now.
    pub fn valid_for(&self) -> Duration {
        self.deadline.since(self.engine.clock.now())
    }

    /// Takes the lease: from now on nothing undoes it but a release or its TTL. To be called last,
    /// before the answer is written: it looks at the clock once more.
    ///
    /// Errors: `Err(())` where less than the least validity is left; the attempt is cancelled.
    pub fn keep(mut self) -> Result<(), TooLate> {
        if self.valid_for() < self.min_validity && !mutant::is(Mutant::NoRecheck) {
            return Err(TooLate);
        }
        self.undo.disarm();
        Ok(())
    }
}

/// The lease was granted, but too little of it was left at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the quorum answered too late to leave a useful lease")]
pub struct TooLate;

/// Why there is no lease.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// In one word.
    pub kind: RefusalKind,
    /// What each node said.
    pub nodes: Vec<NodeOutcome>,
    /// Nodes that granted.
    pub granted: usize,
    /// The lease in the way, as most nodes have it; `None` for a foreigner's.
    pub holder: Option<LeaseRecord>,
    /// Nodes that said so: fewer than a quorum where others could not be asked.
    pub holder_nodes: usize,
    /// The longest TTL that the key of the lease in the way has on a node.
    pub holder_left: Option<Duration>,
    /// The earliest time after which a quorum can be free.
    pub free_in: Option<Duration>,
}

/// See [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// Somebody has, or may well have, a quorum.
    Held,
    /// Enough nodes vote, but nobody has a quorum of them.
    Split,
    /// Too few nodes vote.
    NoQuorum,
    /// A quorum granted, but too late.
    TooSlow,
    /// This token's lease was ended for good.
    Ended(EndReason),
    /// Too many attempts claim this token's lease.
    TooManyClaims,
}

impl RefusalKind {
    /// Trying again with the same token cannot help.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Ended(_) | Self::TooManyClaims)
    }
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Tries until granted, finally refused, or out of patience.
    ///
    /// Errors: the last try's [`Refusal`].
    /// Cancel: the attempt under way is cancelled on all nodes in the background.
    pub async fn acquire(&self, want: &AcquireParams, retry: RetryUntil<'_>) -> Result<Grant<N, C, E>, Refusal> {
        let mut backoff = Backoff::new(self.settings.retry, self.entropy.clone());
        let once = retry.deadline <= self.clock.now();
        let mut tries = 0;
        let first = self.clock.now();
        loop {
            let started = if mutant::is(Mutant::RetryKeepsStart) { first } else { self.clock.now() };
            let mut refusal = match self.attempt_from(want, started).await {
                Ok(mut grant) => {
                    grant.joined &= tries == 0;
                    return Ok(grant);
                }
                Err(refusal) => refusal,
            };
            tries += 1;
            let now = self.clock.now();
            let again = once && refusal.kind == RefusalKind::Split && tries < SPLIT_TRIES;
            if refusal.kind.is_final() || (now >= retry.deadline && !again) {
                return Err(refusal);
            }
            let pause = match refusal.kind {
                RefusalKind::Held => {
                    backoff.reset();
                    let free_in = refusal.free_in.unwrap_or(Duration::MAX).min(self.settings.poll);
                    free_in.saturating_add(uniform(&self.entropy, WAKE_JITTER))
                }
                _ => backoff.next_delay(),
            };
            let at = if again { now.plus(pause) } else { now.plus(pause).min(retry.deadline) };
            refusal.nodes.clear();
            drop(refusal);
            tokio::select! {
                biased;
                () = retry.wake.notified() => {}
                () = self.clock.sleep_until(at) => {}
            }
        }
    }

    /// One round with its clean-up, for those who keep their own time between tries.
    ///
    /// Errors, Cancel: as [`Self::acquire`].
    pub(crate) async fn attempt(&self, want: &AcquireParams) -> Result<Grant<N, C, E>, Refusal> {
        self.attempt_from(want, self.clock.now()).await
    }

    /// `started`: from when on validity counts; never later than now.
    async fn attempt_from(&self, want: &AcquireParams, started: BootTime) -> Result<Grant<N, C, E>, Refusal> {
        let attempt = self.entropy.attempt();
        let (resource, token) = (want.resource.clone(), want.token.clone());
        let cancel = Request::Cancel(CancelArgs { resource, token, attempt: attempt.clone() });
        let keys_gone = started.plus(want.ttl.as_duration()).plus(self.settings.params.lock_delay);
        let mut undo = Undo::new(self.clone(), cancel, keys_gone);
        let request = Request::Acquire(AcquireArgs {
            resource: want.resource.clone(),
            token: want.token.clone(),
            attempt,
            ttl: want.ttl,
            labels: Arc::clone(&want.labels),
        });
        let deadline = started.plus(self.settings.node_timeout);
        let is_yes = |a: &NodeResult| matches!(a, Ok(Reply::Granted { .. }));
        let tally = self.round(&self.everyone(), request, started, deadline, Until::Decided, is_yes).await;
        if mutant::is(Mutant::CancelWhereGranted) {
            undo.narrow(tally.received().filter(|(_, a)| is_yes(a)).map(|(i, _)| i).collect());
        }
        if tally.decision() != Decision::Reached {
            if tally.answers().iter().all(took_no_effect) {
                undo.disarm();
            }
            return Err(self.refusal(&tally));
        }
        let Some(fence) = self.settle_fence(want, &tally).await else {
            return Err(Refusal { kind: RefusalKind::Split, ..self.refusal(&tally) });
        };
        let deadline = self.deadline(started, want.ttl);
        let min_validity = self.min_validity(want.ttl);
        if deadline.since(self.clock.now()) < min_validity {
            return Err(Refusal { kind: RefusalKind::TooSlow, ..self.refusal(&tally) });
        }
        let joined = tally.received().filter(|(_, a)| matches!(a, Ok(Reply::Granted { joined: true, .. }))).count();
        Ok(Grant {
            engine: self.clone(),
            undo,
            fence,
            joined: joined >= self.quorum(),
            deadline,
            granted: tally.yes(),
            min_validity,
        })
    }

    /// One number on a quorum: the highest that was granted. Nothing to do where a quorum said it
    /// already; otherwise it is written back where the lease still stands, and only nodes that
    /// confirm it count. `None` where that fails.
    ///
    /// A number that nodes refuse as one from the future (of a few whose clocks were once far ahead) is
    /// left to those few: the next lower one will do. Whichever a quorum confirms is above every fence
    /// that was on a quorum before, since some node of both knew that one when it granted this lease.
    ///
    /// Source: the two phases of an atomic register (Attiya, Bar-Noy, Dolev 1995); the held check
    /// in the write-back is what keeps two holders from one number.
    async fn settle_fence(&self, want: &AcquireParams, tally: &Tally) -> Option<Fence> {
        let fences = tally.received().filter_map(|(_, a)| match a {
            Ok(Reply::Granted { fence, .. }) => Some(*fence),
            _ => None,
        });
        let fences: Vec<Fence> = fences.collect();
        let mut highest = fences.iter().copied().max()?;
        let mut refused = None::<Fence>;
        if fences.iter().filter(|f| **f == highest).count() >= self.quorum() || mutant::is(Mutant::NoWriteBack) {
            return Some(highest);
        }
        for _ in 0..FENCE_ROUNDS {
            let request = Request::Update(UpdateArgs {
                resource: want.resource.clone(),
                token: want.token.clone(),
                ttl: Some(want.ttl),
                fence: Some(highest),
                renewal: false,
                labels: None,
            });
            let started = self.clock.now();
            let deadline = started.plus(self.settings.node_timeout);
            let is_yes = |a: &NodeResult| matches!(a, Ok(Reply::Updated { record, .. }) if record.fence == highest);
            let tally = self.round(&self.everyone(), request, started, deadline, Until::Decided, is_yes).await;
            if tally.decision() == Decision::Reached {
                return Some(highest);
            }
            let is_possible = |fence: &Fence| refused.is_none_or(|refused| *fence < refused);
            let higher = tally.received().filter_map(|(_, a)| match a {
                Ok(Reply::Other { fence: Some(fence) }) => Some(*fence),
                _ => None,
            });
            highest = match higher.filter(is_possible).max().filter(|f| *f > highest) {
                Some(higher) => higher,
                None if tally.received().any(|(_, a)| matches!(a, Ok(Reply::FenceTooFarAhead))) => {
                    refused = Some(highest);
                    fences.iter().copied().filter(|f| *f < highest).max()?
                }
                None => return None,
            };
        }
        None
    }

    fn refusal(&self, tally: &Tally) -> Refusal {
        let blocker = Blocker::most_common(tally);
        let voters = tally.received().filter(|(_, a)| is_vote(a)).count();
        let silent = tally.answers().iter().filter(|a| a.is_none()).count();
        let failed = tally.received().filter(|(_, a)| a.is_err()).count();
        let ended = tally.received().find_map(|(_, a)| match a {
            Ok(Reply::Ended { reason }) => Some(*reason),
            _ => None,
        });
        let need = quorum_of(tally.answers().len());
        let kind = match (ended, &blocker) {
            (Some(reason), _) => RefusalKind::Ended(reason),
            _ if tally.received().any(|(_, a)| matches!(a, Ok(Reply::TooManyClaims))) => RefusalKind::TooManyClaims,
            _ if voters + silent < need => RefusalKind::NoQuorum,
            (None, Some(b)) if b.nodes + silent + failed >= need => RefusalKind::Held,
            _ => RefusalKind::Split,
        };
        let taken = tally.answers().iter().map(|answer| match answer {
            None | Some(Ok(Reply::Granted { .. })) => Some(Duration::ZERO),
            Some(Ok(Reply::Held { left_ms, .. })) => left_ms.map(Duration::from_millis),
            Some(_) => None,
        });
        Refusal {
            kind,
            nodes: self.outcomes(tally.answers()),
            granted: tally.yes(),
            holder_nodes: blocker.as_ref().map_or(0, |b| b.nodes),
            holder_left: blocker.as_ref().and_then(|b| b.left),
            holder: blocker.and_then(|b| b.record),
            free_in: quorum_free_in(taken),
        }
    }
}

/// The node answered, and the answer proves that nothing was set there.
fn took_no_effect(answer: &Option<NodeResult>) -> bool {
    match answer {
        Some(Ok(reply)) => matches!(reply, Reply::Held { .. } | Reply::NoVote(_) | Reply::Ended { .. }),
        Some(Err(Unreachable { kind, .. })) => {
            matches!(kind, UnreachableKind::Disconnected | UnreachableKind::Unsuitable)
        }
        None => false,
    }
}

fn is_vote(answer: &NodeResult) -> bool {
    match answer {
        Ok(Reply::NoVote(NoVote::Quarantined { .. } | NoVote::Unseeded { .. })) | Ok(Reply::NoVote(_)) | Err(_) => {
            false
        }
        Ok(_) => true,
    }
}

/// Who is in the way on most nodes.
struct Blocker {
    record: Option<LeaseRecord>,
    nodes: usize,
    left: Option<Duration>,
}

impl Blocker {
    fn most_common(tally: &Tally) -> Option<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for (_, answer) in tally.received() {
            let Ok(Reply::Held { left_ms, record }) = answer else { continue };
            let left = left_ms.map(Duration::from_millis);
            let same = |b: &&mut Self| b.record.as_ref().map(|r| &r.token) == record.as_ref().map(|r| &r.token);
            match groups.iter_mut().find(same) {
                Some(group) => {
                    group.nodes += 1;
                    group.left = group.left.max(left);
                }
                None => groups.push(Self { record: record.clone(), nodes: 1, left }),
            }
        }
        groups.into_iter().max_by_key(|b| b.nodes)
    }
}
