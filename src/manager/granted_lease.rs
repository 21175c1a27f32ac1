//! Turns a grant of the nodes into the leases of the answer: adds their labels, and publishes and counts them.

use super::events::{EventKind, set_lease, set_mode};
use super::lease_snapshot::LeaseChange;
use super::service::LockManager;
use super::types::GrantedLease;
use crate::redlock::acquire::{AcquireParams, Grant};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{Labels, Token};

/// A request and its grant, before the lease is kept.
pub(super) struct Asked<N: Node, C: Clock, E: Entropy> {
    pub(super) params: AcquireParams,
    pub(super) token: Token,
    pub(super) grant: Grant<N, C, E>,
    pub(super) started: BootTime,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The labels of the lease of the resource with this index: the nodes' labels if the token had it before.
    pub(super) async fn labels_of(&self, asked: &Asked<N, C, E>, index: usize) -> Labels {
        let Asked { params, grant, .. } = asked;
        let stored = match grant.leases[index].joined {
            true => self.stored_labels(&params.resources[index], &params.token).await,
            false => None,
        };
        stored.unwrap_or_else(|| Labels { acquired_at_ms: grant.acquired_at_ms, ..params.labels.clone() })
    }

    /// The lease of the resource with this index.
    pub(super) fn granted_lease(&self, asked: &Asked<N, C, E>, index: usize, labels: Labels) -> GrantedLease {
        let Asked { params, token, grant, started } = asked;
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
            waited: self.now().since(*started),
            quorum: self.count(grant.granted),
        }
    }

    /// Records a grant that is about to be answered: lists, events and the pages show it from now on.
    pub(super) fn record_grant(&self, lease: &GrantedLease) {
        let hash = lease.token.hash();
        self.record_own_lease(&hash, (&lease.resource, &lease.labels, lease.mode), lease.deadline);
        self.record_change(&lease.resource, |until| LeaseChange::Granted(lease.record(), until(lease.deadline)));
        if lease.kept_for.is_some() {
            self.shared.keeper.keep(&lease.resource, &lease.record(), lease.deadline);
        }
        if !lease.replay {
            self.shared.events.publish(EventKind::Acquired, self.wall_ms(), |event| {
                set_lease(event, &lease.resource, &hash);
                event.owner = (!lease.labels.owner.is_empty()).then(|| lease.labels.owner.clone());
                event.fence = Some(lease.fence.0);
                set_mode(event, lease.mode);
                event.valid_for_ms = u64::try_from(lease.deadline.since(self.now()).as_millis()).ok();
            });
        }
    }
}
