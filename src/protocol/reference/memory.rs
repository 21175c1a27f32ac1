//! All keys of a reference node, and the shared functions with which the operations' references read and change them.

use std::time::Duration;

use super::blocks::Blocks;
use super::fences::Fences;
use super::locks::{LockKeys, LockValue};
use super::marker::{CallContext, MarkerKey, millis};
use super::names::Names;
use super::store::Expiring;
use crate::mutant::{self, Mutant};
use crate::protocol::intent::reference::StoredIntent;
use crate::protocol::kept::reference::KeptIndex;
use crate::protocol::ticket::reference::TicketKeys;
use crate::protocol::waiters::reference::WaitersKeys;
use crate::protocol::{EndReason, Found};
use crate::types::{AttemptId, Fence, ResourceName, TokenHash};

/// The number of expired keys of each kind that are dropped per request. A request makes at most three keys, so memory shrinks to
/// the held keys, and no request pays for a long idle time at once.
pub(super) const PURGE_PER_REQUEST: usize = 16;

/// The keys of one node.
#[derive(Debug, Clone, Default)]
pub(in crate::protocol) struct Memory {
    /// The key `redlockd:meta`.
    pub(in crate::protocol) marker: MarkerKey,
    /// Lock keys and their index.
    pub(in crate::protocol) locks: LockKeys,
    /// The names by which locks are found.
    pub(in crate::protocol) names: Names,
    /// `redlockd:block:*`.
    pub(in crate::protocol) blocks: Blocks,
    /// The last fences of resources.
    pub(in crate::protocol) fences: Fences,
    /// Tombstones of tokens, per resource.
    pub(in crate::protocol) ended: Expiring<(ResourceName, TokenHash), EndReason>,
    /// Tombstones of attempts.
    pub(in crate::protocol) cancelled: Expiring<(ResourceName, TokenHash, AttemptId), EndReason>,
    /// Until when first acquires read the tombstone of their token, too. Microseconds since 1970.
    pub(in crate::protocol) late_us: u64,
    /// `redlockd:i:*`: the intents of waiting callers, which block incompatible requests.
    pub(in crate::protocol) intents: Expiring<ResourceName, StoredIntent>,
    /// The index of kept leases.
    pub(in crate::protocol) kept: KeptIndex,
    /// Tickets and their index.
    pub(in crate::protocol) tickets: TicketKeys,
    /// The waiters that instances have published.
    pub(in crate::protocol) waiters: WaitersKeys,
}

impl Memory {
    /// Drops up to `limit` expired keys of each kind.
    pub(super) fn purge(&mut self, now_ms: u64, limit: usize) {
        self.locks.purge(now_ms, limit);
        self.names.purge(now_ms, limit);
        self.marker.2.purge(now_ms, limit, |_, _| {});
        self.blocks.purge(now_ms, limit);
        self.fences.purge();
        self.ended.purge(now_ms, limit, |_, _| {});
        self.cancelled.purge(now_ms, limit, |_, _| {});
        self.intents.purge(now_ms, limit, |_, _| {});
        self.tickets.tickets.purge(now_ms, limit, |_, _| {});
        self.waiters.purge(now_ms, limit);
    }

    /// The remaining milliseconds of the resource's block, if it has one: no lease lasts longer than a quarantine.
    pub(in crate::protocol) fn cut_block(&mut self, context: &CallContext<'_>, resource: &ResourceName) -> Option<u64> {
        self.blocks.cut(resource, self.marker.longest_quarantine_ms(context), context.now_ms())
    }

    /// Called before a fence is given: begins the next generation of fences, if it is time. `base` covers the forgotten fences:
    /// it is at least the highest fence at the end of their generation.
    pub(in crate::protocol) fn begin_generation(&mut self, context: &CallContext<'_>) {
        let Some(m) = self.marker.0.as_mut().filter(|m| m.generation != Some(context.generation())) else { return };
        let is_next = m.generation.is_some_and(|generation| context.generation() == generation + 1);
        if !mutant::is(Mutant::CountersForgotten) {
            m.base = m.base.max(if is_next { m.before_generation } else { m.high_water });
        }
        (m.generation, m.before_generation) = (Some(context.generation()), m.high_water);
        self.fences.begin_generation(is_next);
    }

    /// Stores the highest fence of this resource, and of this node.
    pub(in crate::protocol) fn store_fence(&mut self, resource: &ResourceName, fence: u64) {
        self.fences.keep(resource.clone(), Fence(fence.max(self.fences.last(resource))));
        self.marker.store_fence(fence);
    }

    /// The tombstone of this token for this resource.
    pub(in crate::protocol) fn tombstone(
        &self,
        context: &CallContext<'_>,
        resource: &ResourceName,
        token: &TokenHash,
    ) -> Option<EndReason> {
        self.ended.get(&(resource.clone(), token.clone()), context.now_ms()).copied()
    }

    /// For `span` from now on, first acquires read the tombstone of their token, too.
    pub(in crate::protocol) fn read_tombstones(&mut self, context: &CallContext<'_>, span: Duration) {
        self.late_us = self.late_us.max(context.in_ms(millis(span)));
    }

    /// A lease that is not made by the first acquire with its token does not show that this one was here: until it is too old to be
    /// granted, it is late.
    pub(in crate::protocol) fn expect_late(&mut self, context: &CallContext<'_>) {
        if !mutant::is(Mutant::OthersUnread) {
            self.read_tombstones(context, context.params.attempt_tombstone());
        }
    }

    /// Whether first acquires read the tombstone of their token.
    pub(in crate::protocol) fn reads_tombstones(&self, context: &CallContext<'_>) -> bool {
        context.now_us <= self.late_us
    }

    /// The value at the lock's key, for a request that names this token's lease.
    pub(in crate::protocol) fn find(
        &self,
        context: &CallContext<'_>,
        resource: &ResourceName,
        token: &TokenHash,
    ) -> Found {
        match self.locks.get(resource, context.now_ms()) {
            Some(LockValue::Lease(record)) if record.token == *token => Found::Match,
            Some(value) if value.is_damaged_lease_of(token) => Found::Match,
            Some(_) => Found::Other,
            None => Found::Nothing,
        }
    }
}

/// The end of a key that is set now for `span`.
pub(in crate::protocol) fn end_ms(context: &CallContext<'_>, span: Duration) -> u64 {
    context.now_ms().saturating_add(millis(span))
}
