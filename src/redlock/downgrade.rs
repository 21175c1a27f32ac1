//! Downgrade: an exclusive lease becomes a shared one, with its token, fence and end. From the moment that it is sent the lease
//! counts as shared, whatever the answer is: a node that missed it stays exclusive until the end, which keeps more callers out.

use super::clock::Clock;
use super::engine::Redlock;
use super::entropy::Entropy;
use super::extend::ExtendRefusal;
use super::inspect::ResourceState;
use super::node::Node;
use super::quorum::{Decision, Tally};
use super::round::Until;
use crate::protocol::{DowngradeArgs, LeaseRecord, NodeInspection, NodeResult, Reply, Request};
use crate::types::{Mode, ResourceName, TokenHash};

/// Why a lease was not downgraded.
#[derive(Debug, Clone)]
pub enum DowngradeRefusal {
    /// It is a permit.
    Permit,
    /// As for an extend. Of one that is unknown some nodes may have the lease as a shared one: it counts as shared.
    Lease(ExtendRefusal),
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Makes the lease of this token shared, and returns its record; one that is shared stays as it is. Never lengthens it.
    ///
    /// An attempt that joins the lease meanwhile is told that it is exclusive, so that the nodes compare its claims with those
    /// that were seen before: one that has another refuses.
    ///
    /// Errors: see [`DowngradeRefusal`].
    /// Cancel: some nodes may have done it.
    pub async fn downgrade(&self, resource: &ResourceName, token: &TokenHash) -> Result<LeaseRecord, DowngradeRefusal> {
        let unknown = |granted, answers: &[Option<NodeResult>]| {
            DowngradeRefusal::Lease(ExtendRefusal::Unknown { granted, nodes: self.outcomes(answers) })
        };
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
        let tally = self.round(&everyone, Request::Downgrade(request), started, deadline, Until::Won, is_yes).await;
        let shown = tally.received().filter_map(|(_, answer)| match answer {
            Ok(Reply::Downgraded { record, .. }) => Some(record),
            _ => None,
        });
        match (tally.decision(), shown.max_by_key(|record| record.recency())) {
            (Decision::Reached, Some(record)) => Ok(record.clone()),
            _ if is_permit(&tally) => Err(DowngradeRefusal::Permit),
            _ => Err(DowngradeRefusal::Lease(self.extend_refusal(&tally, None))),
        }
    }
}

fn is_permit(tally: &Tally) -> bool {
    tally.received().any(|(_, a)| matches!(a, Ok(Reply::ModeDiffers { mode: Mode::Permit { .. } })))
}
