//! Downgrade: an exclusive lease becomes a shared one, with its token, fence and end. Once the request is sent, the lease counts
//! as shared, whatever the answer: a node that missed the request stays exclusive until the end, which blocks more callers.

use std::cmp::Reverse;

use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::extend::{ExtendRefusal, certain_fence};
use super::inspect::ResourceState;
use super::node::Node;
use super::quorum::{Decision, Tally};
use super::random::Entropy;
use super::record_agreement::Agreement;
use super::round::Until;
use crate::mutant::{self, Mutant};
use crate::protocol::{DowngradeArgs, LeaseRecord, NodeInspection, NodeResult, Reply, Request};
use crate::types::{Mode, ResourceName, TokenHash, Ttl};

/// A lease that a quorum has as a shared lease.
#[derive(Debug, Clone)]
pub struct ConfirmedDowngrade {
    pub record: LeaseRecord,
    /// End of the validity, from the end that the nodes store, which does not change.
    pub deadline: BootTime,
}

/// Why a lease was not downgraded.
#[derive(Debug, Clone)]
pub enum DowngradeRefusal {
    /// The lease is a permit: only exclusive leases can become shared.
    Permit,
    /// As for an extend. If the outcome is unknown, some nodes may have the lease as a shared one: it counts as shared.
    Lease(ExtendRefusal),
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Makes the lease of this token shared; a shared lease stays as it is. Never lengthens the lease.
    ///
    /// An attempt that joins the lease meanwhile is answered that the lease is exclusive, so that the nodes compare
    /// its claims with those that were seen before: a node that has another claim refuses.
    ///
    /// Errors: see [`DowngradeRefusal`].
    /// Cancel: some nodes may have downgraded the lease.
    pub async fn downgrade(
        &self,
        resource: &ResourceName,
        token: &TokenHash,
    ) -> Result<ConfirmedDowngrade, DowngradeRefusal> {
        let unknown = |granted, answers: &[Option<NodeResult>]| {
            DowngradeRefusal::Lease(ExtendRefusal::Unknown { granted, nodes: self.outcomes(answers) })
        };
        self.spread_first(resource, token).await;
        let found = self.inspect(resource).await.map_err(|answers| unknown(0, &answers))?;
        match (found.state.lease_of(token), &found.state) {
            (Some((record, _)), _) if record.mode.slot().is_some() => return Err(DowngradeRefusal::Permit),
            (Some(_), _) => {}
            (None, ResourceState::Free) => return Err(DowngradeRefusal::Lease(ExtendRefusal::Gone(None))),
            (None, _) => return Err(DowngradeRefusal::Lease(ExtendRefusal::NotHolder)),
        }
        let mut claims = String::new();
        for answer in found.answers.iter().flatten() {
            if let Ok(Reply::Inspected(NodeInspection { lock, .. })) = answer
                && let Some((record, _)) = lock.lease_of(token)
            {
                claims.push_str(&record.claims);
            }
        }
        let started = self.clock.now();
        let deadline = started.plus(self.node_timeout());
        let request = DowngradeArgs { resource: resource.clone(), token: token.clone(), claims: claims.into() };
        let is_yes = |a: &NodeResult| matches!(a, Ok(Reply::Downgraded { .. }));
        let everyone = self.everyone();
        let tally = self.round(&everyone, Request::Downgrade(request), started, deadline, Until::All, is_yes).await;
        let shown = tally.received().filter_map(|(_, answer)| match answer {
            Ok(Reply::Downgraded { record, left_ms }) => Some((record, *left_ms)),
            _ => None,
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort_by_key(|(_, left_ms)| Reverse(*left_ms));
        let records: Vec<&LeaseRecord> = shown.iter().map(|(record, _)| *record).collect();
        let agreed = Agreement::of(&records, tally.quorum()).map(|agreement| agreement.record);
        match (tally.decision(), agreed, shown.get(tally.quorum().saturating_sub(1))) {
            (Decision::Reached, Some(record), Some((_, left_ms))) => {
                let delay_ms = u64::try_from(self.terms().lock_delay.as_millis()).unwrap_or(u64::MAX);
                let left_ms = if mutant::is(Mutant::DowngradeLengthens) {
                    record.ttl.as_ms()
                } else {
                    // A key that was written with a larger lock delay lasts longer.
                    left_ms.saturating_sub(delay_ms).min(record.ttl.as_ms())
                };
                let deadline = Ttl::from_ms(left_ms).map_or(started, |left| self.deadline(started, left));
                let fence = certain_fence(&tally, None, tally.quorum()).unwrap_or(record.fence);
                Ok(ConfirmedDowngrade { record: LeaseRecord { fence, ..record }, deadline })
            }
            _ if is_permit(&tally) => Err(DowngradeRefusal::Permit),
            _ => Err(DowngradeRefusal::Lease(self.extend_refusal(&tally, None))),
        }
    }
}

fn is_permit(tally: &Tally) -> bool {
    let is_one = |(_, a): &(usize, &NodeResult)| matches!(a, Ok(Reply::ModeDiffers { mode: Mode::Permit { .. } }));
    tally.received().filter(is_one).count() >= tally.quorum()
}
