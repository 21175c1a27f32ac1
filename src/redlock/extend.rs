//! Extend: more time for an existing lease. It never creates, revives or releases a lease: if it fails, the old
//! deadline remains. After a success the lease is restored on healthy nodes that miss it; such a repair never counts
//! as a vote.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::node::Node;
use super::quorum::{Decision, NodeOutcome, Tally};
use super::random::Entropy;
use super::record_agreement::{Agreement, agrees, at_least, member_mode};
use super::round::{Until, VIEW_REPEATS};
use crate::mutant::{self, Mutant};
use crate::protocol::{
    EndReason, LeaseRecord, NoVote, NodeResult, ReleaseArgs, Reply, Request, RequestTime, RestoreArgs, UpdateArgs,
    UpdateKind, View,
};
use crate::types::{Fence, Mode, ResourceName, TokenHash, Ttl};

/// The parameters of an extend.
#[derive(Debug, Clone)]
pub struct ExtendParams {
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
    /// New lifetime from now; `None`: the lease's own TTL.
    pub ttl: Option<Ttl>,
    /// With a `ttl`: the latest end, on the cluster clock; 0: any. Milliseconds since 1970.
    pub until_ms: u64,
    /// Extend only the lease with this fence.
    pub fence: Option<Fence>,
    /// New labels, encoded as JSON; `None`: unchanged.
    pub labels: Option<Arc<str>>,
}

impl ExtendParams {
    /// The lifetime for a request that is sent at `now`. `None`: it would be over already.
    fn ttl_at(&self, now: RequestTime) -> Option<Option<Ttl>> {
        if self.until_ms == 0 || mutant::is(Mutant::KeptPastEnd) {
            return Some(self.ttl);
        }
        let left = Ttl::from_ms(self.until_ms.saturating_sub(now.0 / 1_000)).ok()?;
        Some(self.ttl.map(|ttl| ttl.min(left)))
    }

    fn update(&self, ttl: Option<Ttl>, fence: Option<Fence>, kind: UpdateKind) -> UpdateArgs {
        let (resource, token, labels) = (self.resource.clone(), self.token.clone(), self.labels.clone());
        UpdateArgs { resource, token, ttl, fence, kind, labels }
    }
}

/// A lease that a quorum has extended.
#[derive(Debug, Clone)]
pub struct ConfirmedExtension {
    /// The lease as a node of the quorum stores it.
    pub record: LeaseRecord,
    /// The TTL that was set.
    pub ttl: Ttl,
    /// End of the validity.
    pub deadline: BootTime,
    /// Number of nodes that had agreed when the quorum was reached.
    pub granted: usize,
}

/// The fence to answer for a member: the fence that a quorum shows. If none does, the lowest: it is not above the
/// fence that a quorum gave to the lease, which one of these nodes also gave, so every later lease has a higher
/// fence. The highest may come from one node only.
pub(super) fn certain_fence(tally: &Tally, of: Option<Mode>, quorum: usize) -> Option<Fence> {
    let shown = tally.received().filter_map(|(_, answer)| match answer {
        Ok(Reply::Updated { record, .. } | Reply::Downgraded { record, .. }) => {
            of.is_none_or(|of| agrees(record.mode, of)).then_some(record.fence)
        }
        _ => None,
    });
    let shown: Vec<Fence> = shown.collect();
    let agreed = shown.iter().find(|fence| shown.iter().filter(|other| other == fence).count() >= quorum);
    agreed.or_else(|| shown.iter().min()).copied()
}

/// Why a lease was not extended.
#[derive(Debug, Clone)]
pub enum ExtendRefusal {
    /// A quorum reports another holder.
    NotHolder,
    /// A quorum reports that the lease has ended; the reason is `None` if it expired.
    Gone(Option<EndReason>),
    /// The nodes have another fence for this token than the requested one.
    Changed(Fence),
    /// It is not known whether the extend took effect. The old deadline remains.
    Unknown {
        /// Number of nodes that agreed.
        granted: usize,
        /// The verdict of each node.
        nodes: Vec<NodeOutcome>,
    },
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Extends in one round, or in a few more if the nodes show different forms of the lease.
    ///
    /// Errors: see [`ExtendRefusal`]. Nothing is ever released.
    /// Cancel: the extend may have taken effect; the old deadline remains.
    pub async fn extend(&self, extension: &ExtendParams) -> Result<ConfirmedExtension, ExtendRefusal> {
        let mut fence = extension.fence;
        let mut lower = None;
        let mut kind = UpdateKind::Renewal;
        let mut repeats = VIEW_REPEATS;
        let mut until = Until::Won;
        // If the nodes have different TTLs: the TTL that a quorum has at least, which is set on all.
        let mut common_ttl = None;
        self.spread_first(&extension.resource, &extension.token).await;
        loop {
            let started = self.clock.now();
            let Some(ttl) = extension.ttl_at(self.cluster_clock.request_time_at(started)) else {
                return Err(ExtendRefusal::Unknown { granted: 0, nodes: Vec::new() });
            };
            let ttl = ttl.or(common_ttl);
            let request = Request::Update(extension.update(ttl, fence, kind));
            let deadline = started.plus(self.node_timeout_for(ttl));
            let is_yes = |a: &NodeResult| match a {
                Ok(Reply::Updated { record, .. }) => fence.is_none_or(|expected| expected == record.fence),
                Ok(Reply::NoVote(NoVote::Quarantined { .. })) => mutant::is(Mutant::RepairVotes),
                _ => false,
            };
            let tally = self.round(&self.everyone(), request, started, deadline, until, is_yes).await;
            let minority = mutant::is(Mutant::ExtendByMinority) && tally.yes() > 0;
            if tally.decision() != Decision::Reached && repeats > 0 && self.has_moved_on(&tally) {
                repeats -= 1;
                continue;
            }
            if let Some(next) = lower.take()
                && tally.decision() != Decision::Reached
                && tally.received().any(|(_, a)| matches!(a, Ok(Reply::FenceTooFarAhead)))
            {
                // The fence came from one node whose clock was once ahead, or which is faulty.
                fence = Some(next);
                continue;
            }
            if tally.decision() != Decision::Reached && !minority {
                self.apply_mutants(extension, started, &tally);
                return Err(self.extend_refusal(&tally, extension.fence));
            }
            let member = member_mode(records(&tally), tally.quorum());
            let mode = member.map_or(Mode::Exclusive, |(mode, _)| mode);
            let (most_common, votes, highest, next) = fences(&tally, mode);
            // A slot that an earlier attempt left behind, or a node whose record no quorum has, may have answered first.
            let is_open = || votes < tally.quorum() || !is_agreed(extension, ttl, &tally);
            if until == Until::Won && !minority && tally.answers().iter().any(Option::is_none) && is_open() {
                until = Until::All;
                continue;
            }
            if let (None, false, Some(common)) = (ttl, minority, ttl_of_a_quorum(&tally, mode)) {
                common_ttl = Some(common);
                continue;
            }
            match member {
                None => {}
                Some((mode, agreeing)) if agreeing >= tally.quorum() || minority => {
                    let fence = certain_fence(&tally, Some(mode), tally.quorum()).unwrap_or(most_common);
                    return self.extended(extension, ttl, started, (fence, Some(mode)), &tally);
                }
                Some(_) => return Err(self.unknown(&tally)),
            }
            if votes < tally.quorum() && !minority && !(mutant::is(Mutant::RepairVotes) && votes > 0) {
                // The nodes have different fences: bring the highest to a quorum first.
                (fence, kind, lower) = (Some(highest), UpdateKind::Edit, next);
                continue;
            }
            return self.extended(extension, ttl, started, (most_common, None), &tally);
        }
    }

    /// `member`: the mode of a shared lease or a permit.
    fn extended(
        &self,
        extension: &ExtendParams,
        ttl: Option<Ttl>,
        started: BootTime,
        (fence, member): (Fence, Option<Mode>),
        tally: &Tally,
    ) -> Result<ConfirmedExtension, ExtendRefusal> {
        let mode = member.unwrap_or(Mode::Exclusive);
        let all = || records(tally).filter(|record| agrees(record.mode, mode));
        let unknown = || self.unknown(tally);
        if !all().any(|record| record.fence == fence) {
            return Err(unknown());
        }
        let found = Agreement::of(&all().collect::<Vec<_>>(), tally.quorum()).ok_or_else(unknown)?;
        let is_known = extension.labels.is_some() || found.may_be_written();
        let mut record = LeaseRecord { mode, fence, ..found.record };
        if let Some(labels) = &extension.labels {
            record.labels = Arc::clone(labels);
        }
        // All nodes have the same TTL here.
        let its = all().filter(|record| record.fence == fence || member.is_some());
        let ttl = ttl.unwrap_or_else(|| its.fold(record.ttl, |shortest, record| shortest.min(record.ttl)));
        let deadline = self.deadline(started, ttl);
        if self.clock.now() >= deadline {
            return Err(unknown());
        }
        let misses =
            |a: &NodeResult| misses_the_lease(a) || member.is_some() && matches!(a, Ok(Reply::Other { fence: None }));
        let missing: Vec<usize> = tally.received().filter(|(_, a)| misses(a)).map(|(i, _)| i).collect();
        // What one node may have made up is written to no other node. A member's fence is written only if a quorum
        // has given it to this lease, and all nodes show one form of the lease.
        let is_one_form = || !records(tally).any(|of| of.mode != mode);
        let is_certain = is_known
            && (member.is_none() || is_one_form() && all().filter(|of| of.fence == fence).count() >= tally.quorum());
        if !missing.is_empty() && is_certain {
            let keys_gone = started.plus(ttl.as_duration()).plus(self.terms().lock_delay);
            self.repair(extension.resource.clone(), record.clone(), missing, keys_gone, tally.view());
        }
        // The instance that granted the lease may have ended before it added the lease to the index.
        if record.renewals <= 1 {
            self.index_late(&extension.resource, &extension.token);
        }
        Ok(ConfirmedExtension { record, ttl, deadline, granted: tally.yes() })
    }

    /// What a failed extend must never do: mutants.
    fn apply_mutants(&self, extension: &ExtendParams, started: BootTime, tally: &Tally) {
        let (resource, token) = (extension.resource.clone(), extension.token.clone());
        let until = started.plus(super::cleanup::CLEANUP_MAX);
        if mutant::is(Mutant::ExtendReleases) {
            self.deliver(
                Request::Release(ReleaseArgs { resource, token, reason: EndReason::Released }),
                self.everyone(),
                until,
            );
        } else if mutant::is(Mutant::RepairUnconfirmed) {
            let updated = tally.received().find_map(|(_, a)| match a {
                Ok(Reply::Updated { record, .. }) => Some(record.clone()),
                _ => None,
            });
            let missing = tally.received().filter(|(_, a)| misses_the_lease(a)).map(|(i, _)| i).collect();
            if let Some(record) = updated {
                self.repair(resource, record, missing, started.plus(std::time::Duration::from_secs(2)), tally.view());
            }
        }
    }

    fn unknown(&self, tally: &Tally) -> ExtendRefusal {
        ExtendRefusal::Unknown { granted: tally.yes(), nodes: self.outcomes(tally.answers()) }
    }

    pub(super) fn extend_refusal(&self, tally: &Tally, requested: Option<Fence>) -> ExtendRefusal {
        let (mut missing, mut other, mut ended, mut changed) = (0, 0, Vec::new(), None);
        for (_, answer) in tally.received() {
            match answer {
                Ok(Reply::Missing) => missing += 1,
                Ok(Reply::Other { fence: Some(found) }) if requested.is_some() => {
                    changed = changed.max(Some(*found));
                    other += 1;
                }
                // A node has this token's lease with a fence that another round is still bringing to a quorum: unknown.
                Ok(Reply::Other { fence: Some(_) }) => {}
                Ok(Reply::Other { fence: None }) => other += 1,
                Ok(Reply::Ended { reason }) => ended.push(*reason),
                _ => {}
            }
        }
        if missing + other + ended.len() < tally.quorum() {
            return self.unknown(tally);
        }
        match (ended.first(), requested, changed) {
            (Some(reason), ..) => ExtendRefusal::Gone(Some(*reason)),
            (None, _, Some(found)) => ExtendRefusal::Changed(found),
            _ if other > 0 => ExtendRefusal::NotHolder,
            _ => ExtendRefusal::Gone(None),
        }
    }

    /// Restores a lease that was confirmed in `view` on the nodes that miss it, in a tracked and bounded task.
    fn repair(
        &self,
        resource: ResourceName,
        mut record: LeaseRecord,
        missing: Vec<usize>,
        keys_gone: BootTime,
        view: &Arc<View>,
    ) {
        self.count_under_replicated(missing.len());
        let Ok(permit) = self.cleanups.clone().try_acquire_owned() else { return };
        let (engine, view) = (self.clone(), Arc::clone(view));
        record.claims = "p,".into();
        self.tasks.spawn(async move {
            let now = engine.clock.now();
            let left_ms = u64::try_from(keys_gone.since(now).as_millis()).unwrap_or(0);
            if left_ms > 0 {
                let request = Request::Restore(RestoreArgs { resource, record, left_ms }).in_view(&view);
                let deadline = now.plus(engine.node_timeout());
                let is_restored = |a: &NodeResult| matches!(a, Ok(Reply::Restored));
                let tally = engine.round(&missing, request, now, deadline, Until::All, is_restored).await;
                (0..tally.yes()).for_each(|_| engine.count_repaired());
            }
            drop(permit);
        });
    }
}

fn misses_the_lease(answer: &NodeResult) -> bool {
    use NoVote::{Blocked, Quarantined, Unseeded};
    matches!(answer, Ok(Reply::Missing | Reply::NoVote(Quarantined { .. } | Unseeded { .. } | Blocked { .. })))
}

/// The leases that nodes have extended.
fn records(tally: &Tally) -> impl Iterator<Item = &LeaseRecord> {
    tally.received().filter_map(|(_, answer)| match answer {
        Ok(Reply::Updated { record, .. }) => Some(record),
        _ => None,
    })
}

/// Whether a quorum shows one form of the lease, and one value of each field that the request does not set.
fn is_agreed(extension: &ExtendParams, ttl: Option<Ttl>, tally: &Tally) -> bool {
    Agreement::of(&records(tally).collect::<Vec<_>>(), tally.quorum()).is_some_and(|found| {
        found.has_mode && (ttl.is_some() || found.has_ttl) && (extension.labels.is_some() || found.may_be_written())
    })
}

/// If nodes that agree on the mode have different TTLs, the TTL that a quorum has at least. It must be set on all of
/// them: otherwise the promise would depend on the one node with the shortest, or the longest, TTL.
fn ttl_of_a_quorum(tally: &Tally, mode: Mode) -> Option<Ttl> {
    let ttls: Vec<u64> = records(tally).filter(|of| agrees(of.mode, mode)).map(|record| record.ttl.as_ms()).collect();
    if ttls.len() < tally.quorum() || ttls.iter().all(|ttl| *ttl == ttls[0]) {
        return None;
    }
    Ttl::from_ms(at_least(ttls.into_iter(), tally.quorum())).ok()
}

/// For the yes-votes for a lease of this mode: the most common fence, its votes, the highest fence, and the next lower fence.
fn fences(tally: &Tally, mode: Mode) -> (Fence, usize, Fence, Option<Fence>) {
    let mut counts: BTreeMap<Fence, usize> = BTreeMap::new();
    for record in records(tally).filter(|record| agrees(record.mode, mode)) {
        *counts.entry(record.fence).or_default() += 1;
    }
    let mut descending = counts.keys().rev().copied();
    let (highest, next) = (descending.next().unwrap_or(Fence(0)), descending.next());
    let (fence, votes) = counts.into_iter().max_by_key(|(_, n)| *n).unwrap_or((Fence(0), 0));
    (fence, votes, highest, next)
}
