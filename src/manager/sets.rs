//! Several resources at once: one request, one token, and an ordinary lease of each resource, all or none.

use std::time::Duration;

use futures_util::future::join_all;

use super::granted_lease::Asked;
use super::service::LockManager;
use super::types::{
    AcquireError, AcquireRequest, ExtendError, ExtendRequest, ExtendedLease, GrantedLease, ReleaseError,
};
use crate::redlock::acquire::Grant;
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{ResourceName, Token};

/// The grant of a set whose answer has not been written yet. When dropped without [`PendingSet::commit`], it is
/// undone on all nodes in the background.
pub struct PendingSet<N: Node, C: Clock, E: Entropy> {
    leases: Vec<GrantedLease>,
    grant: Option<Grant<N, C, E>>,
    manager: LockManager<N, C, E>,
}

impl<N: Node, C: Clock, E: Entropy> Drop for PendingSet<N, C, E> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            // As for one lease, the cancels are sent first.
            drop(grant);
            self.manager.set_may_have_ended(&self.leases);
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> PendingSet<N, C, E> {
    /// The granted leases, in the order of the request.
    pub fn leases(&self) -> &[GrantedLease] {
        &self.leases
    }

    /// Keeps the leases, one for each resource in the order of the request. Must be the last call before the answer is written.
    ///
    /// Errors: [`AcquireError::NoQuorum`] if less than the minimum validity is left; all leases are undone.
    pub fn commit(mut self) -> Result<Vec<GrantedLease>, AcquireError> {
        match self.grant.take().map(Grant::keep) {
            Some(Ok(())) => {
                self.leases.iter().for_each(|lease| self.manager.record_grant(lease));
                Ok(std::mem::take(&mut self.leases))
            }
            _ => {
                self.manager.set_may_have_ended(&self.leases);
                let granted = self.leases.first().map_or(0, |lease| lease.quorum.granted);
                Err(AcquireError::NoQuorum(self.manager.no_quorum(granted, Vec::new())))
            }
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Acquires `request.resource` and these others, which are distinct, at most
    /// [`SET_MAX`](crate::protocol::SET_MAX) in all: all of them or none. Leases that the token holds already remain.
    ///
    /// Cancel (drop): as [`Self::acquire`], for each resource.
    pub async fn acquire_set(
        &self,
        request: AcquireRequest,
        others: &[ResourceName],
    ) -> Result<PendingSet<N, C, E>, AcquireError> {
        let resources = std::iter::once(&request.resource).chain(others).cloned().collect();
        let kept_for = request.kept_for;
        let asked = self.ask(resources, request).await?;
        let each = (0..asked.params.resources.len()).map(|index| self.lease_of_set(&asked, index, kept_for));
        let leases = join_all(each).await.into_iter().collect::<Option<Vec<GrantedLease>>>();
        let Asked { grant, .. } = asked;
        // The end that was written for a lease is withdrawn with the grant.
        let granted = grant.granted;
        let leases = leases.ok_or_else(|| AcquireError::NoQuorum(self.no_quorum(granted, Vec::new())))?;
        Ok(PendingSet { leases, grant: Some(grant), manager: self.clone() })
    }

    /// The lease of the resource with this index, which the service keeps from now on if the request asks for it;
    /// `None` if too few nodes know that.
    async fn lease_of_set(
        &self,
        asked: &Asked<N, C, E>,
        index: usize,
        kept_for: Option<Duration>,
    ) -> Option<GrantedLease> {
        let mut labels = self.labels_of(asked, index).await;
        if let Some(kept_for) = kept_for.filter(|_| labels.kept_until_ms == 0) {
            let Asked { params, grant, .. } = asked;
            let lease = (&params.resources[index], &params.token);
            self.begin_keeping(lease, grant.leases[index].fence, &mut labels, kept_for).await.then_some(())?;
        }
        Some(self.granted_lease(asked, index, labels))
    }

    /// Extends several leases of one token, each separately. `request.resource` is one of the resources.
    ///
    /// Cancel: as [`Self::extend`], for each lease.
    pub async fn extend_set(
        &self,
        request: &ExtendRequest,
        resources: &[ResourceName],
    ) -> Vec<Result<ExtendedLease, ExtendError>> {
        let each = resources.iter().map(|resource| ExtendRequest { resource: resource.clone(), ..request.clone() });
        join_all(each.map(|request| self.extend(request))).await
    }

    /// Releases several leases of one token, each separately. Returns for how long each was held, where that is known.
    ///
    /// Cancel: the releases continue in the background.
    pub async fn release_set(
        &self,
        resources: &[ResourceName],
        token: &Token,
    ) -> Vec<Result<Option<Duration>, ReleaseError>> {
        join_all(resources.iter().map(|resource| self.release(resource, token))).await
    }

    fn set_may_have_ended(&self, leases: &[GrantedLease]) {
        leases.iter().for_each(|lease| self.shared.waiting.lease_may_have_ended(&lease.resource));
    }
}
