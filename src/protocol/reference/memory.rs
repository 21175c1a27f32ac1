//! All keys of a machine together, and the two acts that touch several kinds of them. Stands apart
//! so that the verbs share one memory without knowing the machine. Knows no request.

use std::time::Duration;

use super::locks::Locks;
use super::marker::{Mark, Visit, millis};
use super::store::Expiring;
use crate::protocol::EndReason;
use crate::types::{AttemptId, Fence, ResourceName, TokenHash};

/// How many keys of each kind that are over are dropped per request. A request makes at most three
/// keys, so memory shrinks to what is held, and no request pays for a long idle time at once.
pub(super) const PURGE_PER_REQUEST: usize = 16;

/// What a node remembers.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    /// `redlockd:meta`.
    pub(super) mark: Mark,
    /// Lock keys and their index.
    pub(super) locks: Locks,
    /// Fence counters.
    pub(super) counters: Expiring<ResourceName, Fence>,
    /// Tombstones of tokens, per resource.
    pub(super) ended: Expiring<(ResourceName, TokenHash), EndReason>,
    /// Tombstones of attempts.
    pub(super) cancelled: Expiring<(ResourceName, AttemptId), EndReason>,
}

impl Memory {
    /// Drops up to `limit` keys of each kind that are over.
    pub(super) fn purge(&mut self, now_ms: u64, limit: usize) {
        self.locks.purge(now_ms, limit);
        self.counters.purge(now_ms, limit, |_, _| {});
        self.ended.purge(now_ms, limit, |_, _| {});
        self.cancelled.purge(now_ms, limit, |_, _| {});
    }

    /// The resource's counter, 0 where it is not kept.
    pub(super) fn counter(&self, visit: &Visit<'_>, resource: &ResourceName) -> u64 {
        self.counters.get(resource, visit.now_ms()).map_or(0, |f| f.0)
    }

    /// The highest fence of this resource, and of this node.
    pub(super) fn remember(&mut self, visit: &Visit<'_>, resource: &ResourceName, fence: u64) {
        self.counters.put(resource.clone(), Fence(fence), Some(end_ms(visit, visit.params.fence_ttl)));
        self.mark.remember(fence);
    }

    /// The tombstone of this token for this resource.
    pub(super) fn tombstone(&self, visit: &Visit<'_>, resource: &ResourceName, token: &TokenHash) -> Option<EndReason> {
        self.ended.get(&(resource.clone(), token.clone()), visit.now_ms()).copied()
    }
}

/// The end of a key that is set now for `span`.
pub(super) fn end_ms(visit: &Visit<'_>, span: Duration) -> u64 {
    visit.now_ms().saturating_add(millis(span))
}
