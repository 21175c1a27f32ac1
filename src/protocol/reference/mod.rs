//! A node without Redis: the same keys, the same replies, the same effects as the scripts in
//! `nodes/lua/` have on a real server, as a plain value that is handed the time. It carries the
//! embedded node and the simulator; `tests/contract.rs` and its differential test hold it to Redis.
//! Stands apart so that there is one twin, not two. Knows no lock, no clock, no task, no file.
//!
//! Where it differs, on purpose: pages of the list follow places instead of `ZSCAN` cursors; index
//! entries go with their lease instead of in a sweep; a node that knows its fences from elsewhere
//! (see [`ReferenceNode::resume`]) needs no seed.

mod admin;
mod leases;
mod locks;
mod marker;
mod memory;
mod release;
mod store;

use std::sync::Arc;

#[cfg(test)]
use crate::protocol::LeaseRecord;
use crate::protocol::{
    AcquireArgs, CancelArgs, ClusterParams, DeleteForeignArgs, ListArgs, NodeResult, ReleaseArgs, Request, RequestTime,
    RestoreArgs, RevokeArgs, UpdateArgs,
};
use crate::types::{ResourceName, TokenHash, Ttl};
use leases::{Change, Whose, Wish};
use locks::LockValue;
use marker::{Mark, Visit, millis};
use memory::Memory;

/// One node's whole state.
#[derive(Debug, Clone)]
pub struct ReferenceNode {
    run: Arc<str>,
    evicted: u64,
    memory: Memory,
}

/// What a foreign client may store at a lock's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForeignValue {
    /// A string.
    Bytes(Vec<u8>),
    /// A key of another type, by Redis' name for it: `list`, `hash`, `set`, `zset`, `stream`.
    OtherType(&'static str),
}

/// What a server under memory pressure may evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictedKey {
    /// A lock's key.
    Lock(ResourceName),
    /// A resource's fence counter.
    Counter(ResourceName),
    /// The tombstone of a token.
    Ended(ResourceName, TokenHash),
    /// The node's marker.
    Marker,
}

/// Keys in memory, those included that are over and not yet dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// Lock keys.
    pub locks: usize,
    /// Entries of the index of leases.
    pub index: usize,
    /// Fence counters.
    pub counters: usize,
    /// Tombstones of tokens and attempts.
    pub tombstones: usize,
}

/// The furthest that a request can take a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectBound {
    /// The end of the lease, or of the quarantine, that it may begin or move; `None` where it moves
    /// none. Microseconds on the node's clock.
    pub end_us: Option<u64>,
    /// No fence that it may give or store is above this.
    pub fence: u64,
}

/// How a node that was down comes back, see [`ReferenceNode::resume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// Every fence that it may have given is at most this.
    pub fence: u64,
    /// Until when it has no vote. Microseconds on the node's clock; one that is past means at once.
    pub until_us: u64,
    /// For people; see [`crate::protocol::NodeStatus::why`].
    pub why: &'static str,
}

impl ReferenceNode {
    /// An empty server process. It carries no marker, so it is taken for a wiped one until it was
    /// declared by [`Request::Init`] or [`Self::resume`].
    pub fn new(run: &str) -> Self {
        Self { run: run.into(), evicted: 0, memory: Memory::default() }
    }

    /// The process's run id.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Runs one script. `now_us` is the server's clock in microseconds since 1970; `run` the process
    /// to which the caller's connection was bound, empty for `identity = "script"`.
    ///
    /// Errors: `Protocol` where the script itself fails: on a value that begins with the caller's token
    /// but is no lease.
    pub fn apply(
        &mut self,
        now_us: u64,
        run: &str,
        sent_at: RequestTime,
        params: &ClusterParams,
        request: &Request,
    ) -> NodeResult {
        let own = Arc::clone(&self.run);
        let run = if run.is_empty() { &*own } else { run };
        let visit = &Visit { now_us, run, sent_at, params };
        let memory = &mut self.memory;
        memory.purge(visit.now_ms(), memory::PURGE_PER_REQUEST);
        match request {
            Request::Acquire(AcquireArgs { resource, token, attempt, ttl, labels }) => {
                leases::acquire(memory, visit, Whose { resource, token }, Wish { attempt, ttl: *ttl, labels })
            }
            Request::Update(UpdateArgs { resource, token, ttl, fence, renewal, labels }) => {
                let change = Change { ttl: *ttl, fence: *fence, renewal: *renewal, labels: labels.as_ref() };
                leases::hold(memory, visit, Whose { resource, token }, change)
            }
            Request::Restore(RestoreArgs { resource, record, left_ms }) => {
                leases::plant(memory, visit, resource, record, *left_ms)
            }
            Request::Cancel(CancelArgs { resource, token, attempt }) => {
                Ok(release::cancel(memory, visit, Whose { resource, token }, attempt))
            }
            Request::Release(ReleaseArgs { resource, token, reason }) => {
                Ok(release::release(memory, visit, Whose { resource, token }, *reason))
            }
            Request::Revoke(RevokeArgs { resource, token }) => {
                Ok(release::revoke(memory, visit, Whose { resource, token }))
            }
            Request::DeleteForeign(DeleteForeignArgs { resource, fingerprint }) => {
                Ok(release::evict(memory, visit, resource, fingerprint))
            }
            Request::Inspect { resource } => Ok(release::inspect(memory, visit, resource)),
            Request::List(ListArgs { cursor, count }) => Ok(release::list(memory, visit, *cursor, *count)),
            Request::Probe => Ok(admin::probe(&mut memory.mark, visit, self.evicted, None)),
            Request::Init => Ok(admin::init(&mut memory.mark, visit, self.evicted)),
            Request::Quarantine => Ok(admin::order_quarantine(&mut memory.mark, visit, self.evicted)),
            Request::Activate { seed } => Ok(admin::probe(&mut memory.mark, visit, self.evicted, Some(*seed))),
        }
    }

    /// Declares a node whose past is known from elsewhere: it gives no fence up to `resumed.fence`,
    /// has no vote until `resumed.until_us`, and then votes without a seed. What it held is gone.
    pub fn resume(&mut self, now_us: u64, params: &ClusterParams, resumed: Resumed) {
        let own = Arc::clone(&self.run);
        let visit = &Visit { now_us, run: &own, sent_at: RequestTime(now_us), params };
        self.memory = Memory::default();
        admin::declare(&mut self.memory.mark, visit, self.evicted, resumed.fence);
        if let Some(marker) = &mut self.memory.mark.0 {
            marker.active = now_us >= resumed.until_us;
            marker.recalls_fences = true;
            marker.until_us = resumed.until_us;
            marker.why = resumed.why;
        }
    }

    /// How far `request` can take this node. For whoever must write it down beforehand.
    pub fn effect_bound(
        &self,
        now_us: u64,
        sent_at: RequestTime,
        params: &ClusterParams,
        request: &Request,
    ) -> EffectBound {
        let visit = &Visit { now_us, run: &self.run, sent_at, params };
        let known = self.memory.mark.high_water().max(self.memory.mark.base());
        // Stamps and written-back fences from beyond these are refused.
        let soon = now_us.saturating_add(visit.guard_us());
        let nothing = EffectBound { end_us: None, fence: known };
        let furthest = self.memory.mark.furthest_fence(visit);
        let for_ttl = |ttl: Ttl| end_us(visit.now_ms().saturating_add(millis(leases::padded(ttl, visit))));
        match request {
            Request::Acquire(AcquireArgs { resource, token, ttl, .. }) if self.may_grant(visit, resource, token) => {
                EffectBound { end_us: Some(for_ttl(*ttl)), fence: known.saturating_add(1).max(soon) }
            }
            Request::Update(UpdateArgs { resource, token, ttl, fence, .. }) => {
                match self.memory.locks.get(resource, visit.now_ms()) {
                    Some(LockValue::Lease(record)) if record.token == *token => {
                        let want = fence.map_or(0, |f| f.0);
                        let end = for_ttl(ttl.unwrap_or(record.ttl));
                        EffectBound { end_us: Some(end), fence: known.max(want.min(furthest)) }
                    }
                    _ => nothing,
                }
            }
            Request::Restore(RestoreArgs { left_ms, record, .. }) => {
                let end = end_us(visit.now_ms().saturating_add((*left_ms).max(1)));
                EffectBound { end_us: Some(end), fence: known.max(record.fence.0.min(furthest)) }
            }
            Request::Quarantine => {
                let longest_ms = self.memory.mark.longest_quarantine_ms(visit);
                EffectBound { end_us: Some(end_us(visit.now_ms().saturating_add(longest_ms))), fence: known }
            }
            Request::Init => EffectBound { end_us: None, fence: known.max(sent_at.0.min(soon)) },
            Request::Activate { seed } => EffectBound { end_us: None, fence: known.max(seed.0) },
            _ => nothing,
        }
    }

    fn may_grant(&self, visit: &Visit<'_>, resource: &ResourceName, token: &TokenHash) -> bool {
        let is_free_or_theirs = match self.memory.locks.get(resource, visit.now_ms()) {
            None => true,
            Some(LockValue::Lease(record)) => record.token == *token,
            Some(_) => false,
        };
        is_free_or_theirs && self.memory.mark.clone().admit(visit).is_none()
    }

    /// The instant by which every lock key is gone, 0 where there is none. Microseconds on the
    /// node's clock.
    pub fn last_lease_end_us(&self) -> u64 {
        self.memory.locks.latest_end_ms().map_or(0, end_us)
    }

    /// The first instant after `now_us` at which something changes by itself: a key or the quarantine
    /// ends. For whoever moves the time. Microseconds on the node's clock.
    pub fn next_end_us(&self, now_us: u64) -> Option<u64> {
        let (m, from_ms) = (&self.memory, now_us / 1_000);
        let keys = [m.locks.next_end_ms(from_ms), m.counters.next_end_ms(from_ms)];
        let tombstones = [m.ended.next_end_ms(from_ms), m.cancelled.next_end_ms(from_ms)];
        let ends = keys.into_iter().chain(tombstones).flatten().map(end_us);
        ends.chain(self.quarantined_until_us().filter(|until| *until > now_us)).min()
    }

    /// Until when it has no vote; `None` where it votes, or will not by itself. Microseconds on the
    /// node's clock.
    pub fn quarantined_until_us(&self) -> Option<u64> {
        self.memory.mark.0.as_ref().filter(|m| !m.active).map(|m| m.until_us)
    }

    /// The highest fence that it has given, stored or been told.
    pub fn highest_fence(&self) -> u64 {
        self.memory.mark.high_water().max(self.memory.mark.base())
    }

    /// How much it remembers.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            locks: self.memory.locks.len(),
            index: self.memory.locks.index_len(),
            counters: self.memory.counters.len(),
            tombstones: self.memory.ended.len() + self.memory.cancelled.len(),
        }
    }
}

/// What others than ourselves may do to a server.
impl ReferenceNode {
    /// A client's `SET key value [PX ttl]`, whatever stood there.
    pub fn foreign_set(&mut self, now_us: u64, resource: &ResourceName, value: &ForeignValue, ttl_ms: Option<u64>) {
        let value = match value {
            ForeignValue::Bytes(bytes) => LockValue::from_bytes(bytes),
            ForeignValue::OtherType(kind) => LockValue::OtherType(kind),
        };
        let end = ttl_ms.map(|ttl| (now_us / 1_000).saturating_add(ttl));
        self.memory.locks.put(resource, value, end);
    }

    /// A Redlock client's `SET key value NX PX ttl`. Whether it was set.
    pub fn foreign_acquire(&mut self, now_us: u64, resource: &ResourceName, value: &[u8], ttl_ms: u64) -> bool {
        let is_free = self.memory.locks.get(resource, now_us / 1_000).is_none();
        if is_free {
            self.foreign_set(now_us, resource, &ForeignValue::Bytes(value.to_vec()), Some(ttl_ms));
        }
        is_free
    }

    /// A client's `PEXPIRE key ttl`, or `PERSIST key` for `None`. Whether the key was there.
    pub fn foreign_expire(&mut self, now_us: u64, resource: &ResourceName, ttl_ms: Option<u64>) -> bool {
        let now_ms = now_us / 1_000;
        let is_there = self.memory.locks.left_ms(resource, now_ms).is_some();
        if is_there {
            self.memory.locks.set_end(resource, ttl_ms.map(|ttl| now_ms.saturating_add(ttl)));
        }
        is_there
    }

    /// A client's `DEL key`. Whether the key was there.
    pub fn foreign_delete(&mut self, now_us: u64, resource: &ResourceName) -> bool {
        self.memory.locks.remove(resource, now_us / 1_000)
    }

    /// `FLUSHALL`.
    pub fn flush_all(&mut self) {
        self.memory = Memory::default();
    }

    /// The server runs out of memory and evicts one key; counted, as `INFO` does.
    pub fn evict(&mut self, now_us: u64, victim: &EvictedKey) {
        match victim {
            EvictedKey::Lock(resource) => {
                self.memory.locks.remove(resource, now_us / 1_000);
            }
            EvictedKey::Counter(resource) => {
                self.memory.counters.remove(resource);
            }
            EvictedKey::Ended(resource, token) => {
                self.memory.ended.remove(&(resource.clone(), token.clone()));
            }
            EvictedKey::Marker => self.memory.mark = Mark::default(),
        }
        self.evicted += 1;
    }

    /// The process was killed and comes back with nothing.
    pub fn restart_empty(&mut self, run: &str) {
        *self = Self::new(run);
    }

    /// The process comes back with what `self` remembers (which may be an older clone of it: a log
    /// that lost its tail).
    pub fn restart_with_memory(&mut self, run: &str) {
        self.run = run.into();
        self.evicted = 0;
    }
}

/// For the simulation, which looks into nodes without asking them.
#[cfg(test)]
impl ReferenceNode {
    /// The lease that stands at a lock's key, and what it has left in milliseconds.
    pub(crate) fn lease_of(&self, now_us: u64, resource: &ResourceName) -> Option<(&LeaseRecord, u64)> {
        let now_ms = now_us / 1_000;
        match self.memory.locks.get(resource, now_ms)? {
            LockValue::Lease(record) => Some((record, self.memory.locks.left_ms(resource, now_ms)??)),
            _ => None,
        }
    }

    /// Drops all that is over, as Redis does by itself many times a second.
    pub(crate) fn expire(&mut self, now_us: u64) {
        self.memory.purge(now_us / 1_000, usize::MAX);
    }
}

/// The microsecond at which a key that ends in millisecond `ms` is surely gone.
fn end_us(ms: u64) -> u64 {
    ms.saturating_add(1).saturating_mul(1_000)
}

#[cfg(test)]
mod tests;
