//! Refusals with their details: what holds a resource, as far as the nodes report it.

use super::service::LockManager;
use super::types::*;
use crate::protocol::MEMBERS_SHOWN;
use crate::redlock::acquire::{AcquireParams, Refusal};
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::quorum::NodeOutcome;
use crate::redlock::random::Entropy;
use crate::types::{Mode, WantedMode};

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    pub(super) fn held_refusal(&self, params: &AcquireParams, refusal: Refusal) -> HeldRefusal {
        let blocked_by = if params.resources.len() > 1 { self.blocked_by(params, &refusal) } else { Vec::new() };
        let (holders, ends_known) = self.named_holders(&refusal);
        let reason = match holders.first() {
            // A waiter of another instance is before this request.
            None if refusal.is_intent => HeldReason::Lease,
            None => HeldReason::Foreign,
            Some(first) if self.is_over(first.mode, params.mode, &refusal) => HeldReason::LockDelay,
            Some(_) => HeldReason::Lease,
        };
        let all_named = holders.len() < MEMBERS_SHOWN || permits_free(&holders) == Some(0);
        let is_behind = refusal.is_intent;
        let resource = refusal.resource;
        HeldRefusal {
            reason,
            holders,
            waiting: self.shared.waiting.queue(|queue| queue.waiter_count(&resource)),
            waiting_elsewhere: self.shared.cluster_waiters.waiting_for(&resource, self.now()),
            free_in: refusal.free_in,
            nodes: refusal.nodes,
            about: Box::new(HeldResources { resource, blocked_by, all_named, ends_known, is_behind }),
        }
    }

    /// The holders that nodes named, and whether they reported until when each holds. For several that hold together,
    /// a node reports only when the request may be granted, and each may have been named by one node only.
    fn named_holders(&self, refusal: &Refusal) -> (Vec<HolderInfo>, bool) {
        let left = refusal.holder_left.unwrap_or_default();
        match &refusal.holder {
            None => (Vec::new(), true),
            Some(record) if record.mode == Mode::Exclusive => (vec![self.holder(record, left, true)], true),
            Some(_) => {
                let is_quorum = refusal.holder_nodes >= self.engine().quorum();
                let is_known = is_quorum && refusal.members.len() == 1 && !refusal.is_intent;
                (refusal.members.iter().map(|record| self.holder(record, left, is_known)).collect(), is_known)
            }
        }
    }

    /// Whether all leases of this mode are over, and only the lock delay remains. Not if an intent blocks the
    /// request, or if only the first of several permits is over.
    fn is_over(&self, held: Mode, wanted: WantedMode, refusal: &Refusal) -> bool {
        let waits_for_all = match (held, wanted) {
            (Mode::Exclusive, _) => true,
            (Mode::Permit { .. }, WantedMode::Permit { .. }) => false,
            _ => !refusal.is_intent,
        };
        waits_for_all && refusal.holder_left.unwrap_or_default() <= self.engine().terms().lock_delay
    }

    /// Each resource of a set that was held, in the order of the request.
    fn blocked_by(&self, params: &AcquireParams, refusal: &Refusal) -> Vec<BlockingResource> {
        let all = || std::iter::once(refusal).chain(&refusal.others);
        let blocked = params.resources.iter().filter_map(|resource| {
            let refusal = all().find(|refusal| refusal.resource == *resource)?;
            let left = refusal.holder_left.unwrap_or_default();
            let is_confirmed = refusal.holder_nodes >= self.engine().quorum();
            let holder = refusal.holder.as_ref().map(|record| self.holder(record, left, is_confirmed));
            Some(BlockingResource { resource: resource.clone(), holder })
        });
        blocked.collect()
    }

    /// The refusal of a request that did not ask the nodes, since others of this instance are before it; `None`
    /// without a resource. Leases of its own token do not refuse it.
    pub(super) fn held_by_others(&self, params: &AcquireParams, known: Vec<Inspection>) -> Option<HeldRefusal> {
        let own = params.token.id();
        let is_own = |found: &Inspection| found.holders().iter().any(|holder| holder.token_id == own);
        let is_held = |found: &Inspection| found.state != LockState::Free && !is_own(found);
        let blocked_by = known.iter().filter(|found| is_held(found) && params.resources.len() > 1).map(|found| {
            let holder = found.holders().first().cloned();
            BlockingResource { resource: found.resource.clone(), holder }
        });
        let blocked_by = blocked_by.collect();
        let index = known.iter().position(is_held).unwrap_or(0);
        Some(self.held_on(known.into_iter().nth(index)?, blocked_by))
    }

    fn held_on(&self, inspection: Inspection, blocked_by: Vec<BlockingResource>) -> HeldRefusal {
        let (reason, holders, free_in) = match inspection.state {
            LockState::Free => (HeldReason::Lease, Vec::new(), None),
            LockState::Foreign { left, .. } => (HeldReason::Foreign, Vec::new(), left),
            LockState::Held(holders) => {
                // The wait ends with the last shared lease, or with any permit.
                let ends = || holders.iter().map(|holder| holder.valid_for);
                let left = if permits_free(&holders).is_some() { ends().min() } else { ends().max() };
                let left = left.unwrap_or_default().saturating_add(self.engine().terms().lock_delay);
                let delayed = holders.iter().all(|holder| holder.valid_for.is_zero() && holder.is_confirmed);
                let reason = if delayed { HeldReason::LockDelay } else { HeldReason::Lease };
                (reason, holders, Some(left))
            }
        };
        let nodes = inspection.nodes.into_iter().map(|n| NodeOutcome { node: n.node, verdict: n.verdict }).collect();
        let (waiting, waiting_elsewhere) = (inspection.waiting_here, inspection.waiting - inspection.waiting_here);
        let resource = inspection.resource;
        let about =
            Box::new(HeldResources { resource, blocked_by, all_named: true, ends_known: true, is_behind: false });
        HeldRefusal { about, reason, holders, waiting, waiting_elsewhere, free_in, nodes }
    }
}
