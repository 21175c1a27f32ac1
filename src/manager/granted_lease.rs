//! Turns a grant of the nodes into the leases of the answer: adds their labels, and publishes and counts them.

use std::time::Duration;

use super::events::{EventKind, LeaseEvent};
use super::incidents::Moment;
use super::latency::Round;
use super::lease_snapshot::LeaseChange;
use super::service::LockManager;
use super::types::GrantedLease;
use crate::redlock::acquire::{AcquireParams, Grant};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{Labels, Mode, ResourceName, Token, TokenHash};

/// A request and its grant, before the lease is kept.
pub(super) struct Asked<N: Node, C: Clock, E: Entropy> {
    pub(super) params: AcquireParams,
    pub(super) token: Token,
    pub(super) grant: Grant<N, C, E>,
    /// How long the request waited and tried.
    pub(super) waited: Duration,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The labels of the lease of the resource with this index: the nodes' labels if the token had it before.
    pub(super) async fn labels_of(&self, asked: &Asked<N, C, E>, index: usize) -> Labels {
        let Asked { params, grant, .. } = asked;
        let stored = match grant.leases[index].joined {
            true => Box::pin(self.stored_labels(&params.resources[index], &params.token)).await,
            false => None,
        };
        stored.unwrap_or_else(|| Labels { acquired_at_ms: grant.acquired_at_ms, ..params.labels.clone() })
    }

    /// The lease of the resource with this index.
    pub(super) fn granted_lease(&self, asked: &Asked<N, C, E>, index: usize, labels: Labels) -> GrantedLease {
        let Asked { params, token, grant, waited } = asked;
        let lease = grant.leases[index];
        GrantedLease {
            resource: params.resources[index].clone(),
            token: token.clone(),
            fence: lease.fence,
            kept_for: self.kept_for(&labels),
            labels,
            mode: grant.mode,
            ttl: params.ttl,
            deadline: grant.deadline,
            replay: lease.joined,
            waited: *waited,
            quorum: self.count(grant.granted),
        }
    }

    /// Records a grant that is about to be answered: lists, events and the pages show it from now on.
    pub(super) fn record_grant(&self, lease: &GrantedLease) {
        let (hash, at) = (lease.token.hash(), self.moment());
        self.record_own_lease(&hash, (&lease.resource, &lease.labels, lease.mode), lease.deadline, at);
        self.record_change(at.now, &lease.resource, |until| {
            LeaseChange::Granted(lease.record(), until(lease.deadline))
        });
        if lease.kept_for.is_some() {
            self.shared.keeper.keep(&lease.resource, &lease.record(), lease.deadline);
        }
        if !lease.replay {
            self.shared.events.publish_lease(LeaseEvent {
                kind: EventKind::Acquired,
                at_ms: at.wall_ms,
                resource: lease.resource.clone(),
                token: hash,
                owner: lease.labels.owner.as_str().into(),
                mode: Some(lease.mode),
                fence: Some(lease.fence),
                valid_for: Some(lease.deadline.since(at.now)),
                held: None,
                reason: None,
            });
        }
    }

    /// Records that this instance promised a lease until `deadline`, so that its end is reported.
    pub(super) fn record_own_lease(
        &self,
        token: &TokenHash,
        (resource, labels, mode): (&ResourceName, &Labels, Mode),
        deadline: BootTime,
        at: Moment,
    ) {
        self.shared.own_leases.record(token, deadline, granted_at(labels, at), (resource, &labels.owner, mode));
    }

    /// Makes `change` visible in lists from now on. `change` receives a function from a lease's deadline to the end of its keys.
    pub(super) fn record_change(
        &self,
        now: BootTime,
        resource: &ResourceName,
        change: impl FnOnce(&dyn Fn(BootTime) -> BootTime) -> LeaseChange,
    ) {
        let keys_gone = |deadline: BootTime| deadline.plus(self.engine().terms().lock_delay);
        self.shared.snapshots.record(now, resource, || change(&keys_gone));
    }

    /// Records that a quorum decided a round, which took from `begun` to `now`.
    pub(super) fn record_decided_round(&self, round: Round, begun: BootTime, now: BootTime) {
        self.shared.round_latency.record(round, now, now.since(begun));
    }
}

/// When a lease with these labels was granted, as far as the wall clocks of instances agree.
pub(super) fn granted_at(labels: &Labels, at: Moment) -> BootTime {
    let age_ms = if labels.acquired_at_ms > 0 { at.wall_ms.saturating_sub(labels.acquired_at_ms) } else { 0 };
    at.now.minus(Duration::from_millis(age_ms))
}
