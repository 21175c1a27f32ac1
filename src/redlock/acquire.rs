//! Acquire: one attempt, with its own start, id and clean-up. `waiting` decides when to make another attempt.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::acquire_set::{granted, joined, request_for, withdrawal_of};
use super::acquire_shared::{ended_by_quorum, held_in, is_vote, kind_of, members_in, members_left};
use super::blocker::Blocker;
use super::cleanup::Undo;
use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::fan_out::Order;
use super::node::Node;
use super::permit_slots::slots_taken;
use super::quorum::{Decision, NodeOutcome, Tally, quorum_free_in};
use super::random::Entropy;
use super::round::{Until, VIEW_REPEATS};
use super::spread::Unasked;
use crate::mutant::{self, Mutant};
use crate::protocol::{
    EndReason, LeaseRecord, NoVote, NodeGrant, NodeResult, Reply, Request, RequestStamp, TokenUse, Unreachable,
    UnreachableKind, UpdateArgs, UpdateKind,
};
use crate::types::{Fence, Labels, Mode, PermitLimit, ResourceName, SlotChoice, SlotSet, TokenHash, Ttl, WantedMode};

/// Maximum number of rounds to write one fence on a quorum.
const FENCE_ROUNDS: usize = 3;

/// The parameters of an acquire.
#[derive(Debug, Clone)]
pub(crate) struct AcquireParams {
    /// The resources: distinct, at most [`SET_MAX`](crate::protocol::SET_MAX); all of them are granted, or none.
    pub resources: Arc<[ResourceName]>,
    /// Hash of the token of each lease.
    pub token: TokenHash,
    /// Lifetime of each lease.
    pub ttl: Ttl,
    /// How each lease shares its resource.
    pub mode: WantedMode,
    /// Labels that are stored with each lease. Each attempt sets the time of the grant, since a request may wait long
    /// before the attempt that is granted.
    pub labels: Labels,
    /// Of the first attempt with these parameters; each later one uses the token again.
    pub token_use: TokenUse,
}

/// The leases that a quorum granted, one for each resource. If dropped without [`Grant::keep`], its attempt is cancelled on all
/// nodes in the background.
pub(crate) struct Grant<N: Node, C: Clock, E: Entropy> {
    pub(super) engine: Redlock<N, C, E>,
    pub(super) undo: Undo<N, C, E>,
    /// The grant of each lease, in the order of the resources.
    pub leases: Box<[NodeGrant]>,
    /// How each lease shares its resource, with the slot of a permit.
    pub mode: Mode,
    /// When the granted attempt began, as in the stored labels. Milliseconds since 1970.
    pub acquired_at_ms: u64,
    /// When the granted attempt began, on this host's clock.
    pub started: BootTime,
    /// End of the validity.
    pub deadline: BootTime,
    /// Number of nodes that had granted when the quorum was reached.
    pub granted: usize,
    pub(super) min_validity: Duration,
    /// If only a quorum was asked: what the rest of the nodes is still to be asked, for the lease of this resource and token.
    pub(super) unasked: Option<(ResourceName, TokenHash, Box<Unasked>)>,
}

impl<N: Node, C: Clock, E: Entropy> Grant<N, C, E> {
    /// Asks the nodes that were not asked. Must be called before anything is written to the lease.
    ///
    /// Cancel: not possible in between, since it never waits; the grant still undoes itself on all nodes.
    pub(crate) async fn spread(&mut self) {
        if let Some((.., unasked)) = self.unasked.take() {
            self.engine.spread_now(unasked).await;
        }
    }

    /// Validity left now.
    pub(crate) fn valid_for(&self) -> Duration {
        self.deadline.since(self.engine.clock.now())
    }

    /// The fencing token of the first resource, stored on a quorum.
    pub(crate) fn fence(&self) -> Fence {
        self.leases.first().map_or(Fence(0), |lease| lease.fence)
    }

    /// Keeps the leases until they are released or their TTL ends. Must be called last, just before the answer
    /// is written, because it checks the remaining validity once more.
    ///
    /// Errors: [`TooLate`] if less than the minimum validity is left; the attempt is cancelled.
    pub(crate) fn keep(mut self) -> Result<(), TooLate> {
        if self.valid_for() < self.min_validity && !mutant::is(Mutant::NoRecheck) {
            return Err(TooLate);
        }
        self.undo.disarm();
        if let Some((resource, token, unasked)) = self.unasked.take() {
            self.engine.spread_later(resource, token, unasked);
        }
        Ok(())
    }
}

/// The lease was granted, but less than the minimum validity was left when the answer was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the quorum answered too late to leave a useful lease")]
pub(crate) struct TooLate;

/// Why there is no lease.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub kind: RefusalKind,
    /// The resource that `holder` and the like describe: of several, the one whose refusal explains the most.
    pub resource: ResourceName,
    /// For several resources, the refusals of the others that are held.
    pub others: Vec<Refusal>,
    /// Whether a node may have set a key of the attempt, which is being cancelled.
    pub took_effect: bool,
    /// The verdict of each node.
    pub nodes: Vec<NodeOutcome>,
    /// Number of nodes that granted.
    pub granted: usize,
    /// The lease that holds the resource, as most nodes report it; `None` for a foreign client's lock.
    pub holder: Option<LeaseRecord>,
    /// Number of nodes that reported this lease: less than a quorum if others did not answer.
    pub holder_nodes: usize,
    /// The longest time left of that lease's key on any node.
    pub holder_left: Option<Duration>,
    /// The earliest time after which a quorum can be free.
    pub free_in: Option<Duration>,
    /// Shared leases or permits that hold the resource, each once, as nodes report them. If there are many, only some of them.
    pub members: Vec<LeaseRecord>,
    /// For permits, the slots that are not free on any quorum of nodes.
    pub taken: SlotSet,
    /// Whether the intent of another caller, which waits, blocks the request on a node; there may be no holder.
    pub is_intent: bool,
}

/// Reason of a [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    /// Another lease has a quorum, or may have one.
    Held,
    /// A quorum of nodes votes, but no lease has a quorum.
    Split,
    /// Fewer than a quorum of nodes vote.
    NoQuorum,
    /// A quorum granted, but less than the minimum validity was left.
    TooSlow,
    /// This token's lease was released, cancelled or revoked.
    Ended(EndReason),
    /// Too many attempts claim this token's lease.
    TooManyClaims,
    /// Permits of another limit are held, and there was no quorum.
    LimitDiffers(PermitLimit),
    /// This token holds the resource in another mode or with another limit.
    ModeDiffers(Mode),
}

impl RefusalKind {
    /// Whether further attempts with the same token must fail too.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Ended(_) | Self::TooManyClaims | Self::LimitDiffers(_) | Self::ModeDiffers(_))
    }
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// One attempt. `started`: the time from which validity counts; never later than now. `slots`: the choice of a permit's slot.
    /// `token_use`: [`TokenUse::First`] at most once for a token.
    ///
    /// Errors: the attempt's [`Refusal`].
    /// Cancel: the attempt is cancelled on all nodes in the background.
    pub(crate) async fn attempt(
        &self,
        params: &AcquireParams,
        started: BootTime,
        slots: SlotChoice,
        token_use: TokenUse,
    ) -> Result<Grant<N, C, E>, Refusal> {
        if params.mode != WantedMode::Exclusive {
            return Box::pin(self.attempt_shared(params, started, slots)).await;
        }
        let attempt = self.entropy.attempt();
        let labels = Labels { acquired_at_ms: self.clock.wall_ms(), ..params.labels.clone() };
        let keys_gone = started.plus(params.ttl.as_duration()).plus(self.terms().lock_delay);
        let mut undo = Undo::new(self.clone(), withdrawal_of(params, &attempt), keys_gone);
        let token_use = if mutant::is(Mutant::AgainAsFirst) { TokenUse::First } else { token_use };
        let request = request_for(params, Mode::Exclusive, attempt, labels.encode(), token_use);
        let is_yes = |a: &NodeResult| matches!(a, Ok(Reply::Granted { .. } | Reply::SetGranted { .. }));
        let (tally, Rounds { joined, took_effect, mut unasked }) =
            self.acquire_round(request, params, started, is_yes).await;
        if mutant::is(Mutant::CancelWhereGranted) {
            undo.restrict_to(tally.received().filter(|(_, a)| is_yes(a)).map(|(i, _)| i).collect());
        }
        if tally.decision() != Decision::Reached {
            if !took_effect {
                undo.disarm();
            }
            return Err(Refusal { took_effect, ..self.refusal(params, &tally) });
        }
        // One fence is brought to a quorum: the rest may have to take the place of a node whose fence the others refuse.
        let fences = || tally.received().filter_map(|(_, a)| granted(a, 0)).map(|lease| lease.fence);
        if let Some(unasked) = unasked.take_if(|_| fences().max() != fences().min()) {
            self.spread_now(unasked).await;
        }
        let Some(fences) = self.settle_fences(params, &tally).await else {
            return Err(Refusal { kind: RefusalKind::Split, ..self.refusal(params, &tally) });
        };
        let deadline = self.deadline(started, params.ttl);
        let min_validity = self.min_validity(params.ttl);
        if deadline.since(self.clock.now()) < min_validity {
            return Err(Refusal { kind: RefusalKind::TooSlow, ..self.refusal(params, &tally) });
        }
        // The script of a set lists its leases itself.
        if let [resource] = &*params.resources {
            self.index_late(resource, &params.token);
        }
        Ok(Grant {
            engine: self.clone(),
            undo,
            leases: fences.into_iter().zip(joined).map(|(fence, joined)| NodeGrant { fence, joined }).collect(),
            mode: Mode::Exclusive,
            acquired_at_ms: labels.acquired_at_ms,
            started,
            deadline,
            granted: tally.yes(),
            min_validity,
            unasked: unasked.map(|unasked| (params.resources[0].clone(), params.token.clone(), unasked)),
        })
    }

    /// One round of an attempt, repeated with the same attempt and stamp if the view changed meanwhile.
    pub(super) async fn acquire_round(
        &self,
        mut request: Request,
        params: &AcquireParams,
        started: BootTime,
        is_yes: impl Fn(&NodeResult) -> bool,
    ) -> (Tally, Rounds) {
        let timeout = self.node_timeout_for(Some(params.ttl));
        let mut deadline = started.plus(timeout);
        // For each resource, the nodes on which this attempt may have set the key before.
        let mut own: Vec<Vec<usize>> = vec![Vec::new(); params.resources.len()];
        let mut took_effect = false;
        let mut repeats = VIEW_REPEATS;
        // This attempt may reach nodes that a lease of the same token has not reached yet.
        for resource in &*params.resources {
            self.spread_first(resource, &params.token).await;
        }
        let slot = self.acquire_order(params, timeout).and_then(|order| Some((order, self.spread_slot()?)));
        let (mut order, slot) = slot.unzip();
        loop {
            let asked = order.take().unwrap_or_else(|| Order::all(self.everyone()));
            let first = if asked.rest.is_empty() { Vec::new() } else { asked.first.clone() };
            let round = self.round_in_order(asked, request.clone(), started, deadline, Until::Decided, &is_yes).await;
            self.leave(round.late);
            let tally = round.tally;
            took_effect |= !tally.answers().iter().all(took_no_effect);
            self.note_foreign(params, &tally);
            if tally.decision() == Decision::Reached || repeats == 0 || !self.has_moved_on(&tally) {
                let joined = own.iter().enumerate().map(|(resource, own)| {
                    let is_old = |(i, a): &(usize, &NodeResult)| joined(a, resource) && !own.contains(i);
                    tally.received().filter(is_old).count() >= tally.quorum()
                });
                let joined = joined.collect();
                let unasked = (!round.rest.is_empty()).then(|| {
                    let order = Order { first, rest: round.rest };
                    // Without what was encoded: thousands of leases may wait for this.
                    let stamp = RequestStamp::new(round.stamp.sent_at, round.stamp.view);
                    Box::new(Unasked { request: round.request, stamp, started, order, slot })
                });
                return (tally, Rounds { joined, took_effect, unasked });
            }
            repeats -= 1;
            if let Request::Acquire(args) = &mut request {
                args.token_use = TokenUse::Again; // perhaps with another time of sending
            }
            // Answers to a repeated round that join a lease may join what this attempt set before the change.
            for (resource, own) in own.iter_mut().enumerate() {
                let is_own = |a: &NodeResult| !joined(a, resource) && !matches!(a, Ok(Reply::NoVote(_)));
                own.extend(tally.received().filter(|(_, a)| is_own(a)).map(|(i, _)| i));
            }
            deadline = self.clock.now().plus(timeout);
        }
    }

    /// The fence of each resource, see [`Self::settle_fence`].
    async fn settle_fences(&self, params: &AcquireParams, tally: &Tally) -> Option<Vec<Fence>> {
        let each = (0..params.resources.len()).map(|index| self.settle_fence(params, index, tally));
        join_all(each).await.into_iter().collect()
    }

    /// Brings one fence of the resource with this index to a quorum: the highest fence that was granted. If a quorum
    /// already granted it, nothing is written. Otherwise it is written back to the nodes that still have the lease,
    /// and only nodes that confirm it count. `None` if that fails.
    ///
    /// If nodes refuse a fence as too far ahead (it comes from a few nodes whose clocks once ran ahead), the next
    /// lower fence is tried. Any fence that a quorum confirms is above every fence that was on a quorum before: the
    /// two quorums share a node, which knew that earlier fence when it granted this lease.
    ///
    /// Source: the two phases of an atomic register (Attiya, Bar-Noy, Dolev 1995). Nodes write a fence
    /// only for the lease that they hold, so two holders never get the same one.
    async fn settle_fence(&self, params: &AcquireParams, index: usize, tally: &Tally) -> Option<Fence> {
        let fences: Vec<Fence> = tally.received().filter_map(|(_, a)| granted(a, index)).map(|l| l.fence).collect();
        let mut highest = fences.iter().copied().max()?;
        let mut refused = None::<Fence>;
        if fences.iter().filter(|f| **f == highest).count() >= tally.quorum() || mutant::is(Mutant::NoWriteBack) {
            return Some(highest);
        }
        for _ in 0..FENCE_ROUNDS {
            let request = Request::Update(UpdateArgs {
                resource: params.resources[index].clone(),
                token: params.token.clone(),
                ttl: Some(params.ttl),
                fence: Some(highest),
                kind: UpdateKind::Edit,
                labels: None,
            });
            let started = self.clock.now();
            let deadline = started.plus(self.node_timeout_for(Some(params.ttl)));
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

    /// The refusal of one resource, from its answers in `tally`. `all`: the nodes' original answers.
    pub(super) fn refusal_of(
        &self,
        (resource, wanted): (&ResourceName, WantedMode),
        tally: &Tally,
        all: &Tally,
    ) -> Refusal {
        let blocker = Blocker::most_common(tally);
        let voters = tally.received().filter(|(_, a)| is_vote(a)).count();
        let silent = tally.size().saturating_sub(tally.received().count());
        let failed = tally.received().filter(|(_, a)| a.is_err()).count();
        let is_blocked = |a: &NodeResult| matches!(a, Ok(Reply::NoVote(NoVote::Blocked { .. })));
        let blocked = tally.received().filter(|(_, a)| is_blocked(a)).count();
        let need = tally.quorum();
        let ended = ended_by_quorum(tally);
        let too_many = |(_, a): &(usize, &NodeResult)| matches!(a, Ok(Reply::TooManyClaims));
        let kind = match (ended, &blocker) {
            (Some(reason), _) => RefusalKind::Ended(reason),
            _ if tally.received().filter(too_many).count() >= need => RefusalKind::TooManyClaims,
            _ if voters + silent < need => RefusalKind::NoQuorum,
            _ if let Some(kind) = kind_of(tally, wanted, blocked + silent + failed) => kind,
            (None, Some(b)) if b.nodes + blocked + silent + failed >= need => RefusalKind::Held,
            _ => RefusalKind::Split,
        };
        let taken = tally.received().map(|(_, answer)| match answer {
            Ok(Reply::Granted { .. } | Reply::Missing | Reply::Admitted { .. }) => Some(Duration::ZERO),
            Ok(Reply::Held { left_ms, .. }) => left_ms.map(Duration::from_millis),
            Ok(Reply::NoVote(NoVote::Blocked { left_ms })) => Some(Duration::from_millis(*left_ms)),
            answer => members_left(answer),
        });
        let taken = taken.chain(std::iter::repeat_n(Some(Duration::ZERO), silent));
        Refusal {
            kind,
            resource: resource.clone(),
            others: Vec::new(),
            took_effect: true,
            nodes: self.outcomes(all.answers()),
            granted: all.yes(),
            holder_nodes: blocker.as_ref().map_or(0, |b| b.nodes),
            holder_left: blocker.as_ref().and_then(|b| b.left),
            holder: blocker.and_then(|b| b.record),
            free_in: quorum_free_in(taken, need),
            members: members_in(tally).into_iter().cloned().collect(),
            taken: slots_taken(tally),
            is_intent: held_in(tally).any(|held| held.is_intent),
        }
    }
}

/// The outcome of the rounds of one attempt.
pub(super) struct Rounds {
    /// For each resource, whether a quorum had the token's lease before.
    pub(super) joined: Vec<bool>,
    /// Whether a node may have a key of this attempt, perhaps from a round before a change of the view.
    pub(super) took_effect: bool,
    /// If a quorum granted, the nodes that were not asked.
    pub(super) unasked: Option<Box<Unasked>>,
}

/// Whether the node answered, and the answer proves that no key was set there.
fn took_no_effect(answer: &Option<NodeResult>) -> bool {
    match answer {
        Some(Ok(reply)) => {
            matches!(reply, Reply::Held { .. } | Reply::NoVote(_) | Reply::Ended { .. } | Reply::SetRefused { .. })
                || matches!(reply, Reply::HeldByMembers(_) | Reply::ModeDiffers { .. })
        }
        Some(Err(Unreachable { kind, .. })) => {
            matches!(kind, UnreachableKind::Disconnected | UnreachableKind::Unsuitable | UnreachableKind::NotAsked)
        }
        None => false,
    }
}
