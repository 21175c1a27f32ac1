//! Changes to a server that this service does not request: foreign clients, evictions, restarts. For the simulation and the
//! contract tests; the service calls nothing here.

use super::locks::LockValue;
use super::marker::MarkerKey;
use super::memory::Memory;
use super::node::ReferenceNode;
#[cfg(test)]
use crate::protocol::{LeaseRecord, TicketHead, TicketId};
use crate::types::{ResourceName, TokenHash};

/// A value that a foreign client may store at a lock's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForeignValue {
    /// The value of a string key.
    Bytes(Vec<u8>),
    /// A key of another type, by Redis' name for it: `list`, `hash`, `set`, `zset`, `stream`.
    OtherType(&'static str),
}

/// A key that a server under memory pressure may evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictedKey {
    /// A lock's key, with the leases in it.
    Lock(ResourceName),
    /// A resource's fence counter.
    Counter(ResourceName),
    /// The tombstone of a token.
    Ended(ResourceName, TokenHash),
    /// The node's marker.
    Marker,
}

/// Changes to a server that this service does not make.
impl ReferenceNode {
    /// Whether it may have leases of a former life at the names of another key template.
    #[cfg(test)]
    pub(crate) fn has_former_names(&self) -> bool {
        self.memory.names.has_former()
    }

    /// The cluster of the node; empty on one that was blank.
    #[cfg(test)]
    pub(crate) fn cluster(&self) -> std::sync::Arc<str> {
        self.memory.marker.0.as_ref().map_or_else(|| "".into(), |m| std::sync::Arc::clone(&m.cluster))
    }

    /// A client's `SET key value [PX ttl]`, regardless of the old value.
    pub fn foreign_set(&mut self, now_us: u64, resource: &ResourceName, value: &ForeignValue, ttl_ms: Option<u64>) {
        let value = match value {
            ForeignValue::Bytes(bytes) => LockValue::from_bytes(bytes),
            ForeignValue::OtherType(kind) => LockValue::OtherType(kind),
        };
        let end = ttl_ms.map(|ttl| (now_us / 1_000).saturating_add(ttl));
        self.memory.locks.put(resource, value, end);
    }

    /// A foreign client's `DEL` of a ticket.
    #[cfg(test)]
    pub(crate) fn forget_ticket(&mut self, id: &TicketId) {
        self.memory.tickets.tickets.remove(id);
    }

    /// Whether the node has a ticket, expired or not.
    #[cfg(test)]
    pub(crate) fn has_ticket(&self, id: &TicketId) -> bool {
        self.memory.tickets.tickets.get(id, 0).is_some()
    }

    /// The state of a stored ticket.
    #[cfg(test)]
    pub(crate) fn ticket_head(&self, id: &TicketId) -> Option<TicketHead> {
        self.memory.tickets.tickets.get(id, 0).map(|stored| stored.head)
    }

    /// A Redlock client's `SET key value NX PX ttl`. Returns whether it was set.
    pub fn foreign_acquire(&mut self, now_us: u64, resource: &ResourceName, value: &[u8], ttl_ms: u64) -> bool {
        let is_free = self.memory.locks.get(resource, now_us / 1_000).is_none();
        if is_free {
            self.foreign_set(now_us, resource, &ForeignValue::Bytes(value.to_vec()), Some(ttl_ms));
        }
        is_free
    }

    /// A client's `PEXPIRE key ttl`, or `PERSIST key` for `None`. Returns whether the key existed.
    pub fn foreign_expire(&mut self, now_us: u64, resource: &ResourceName, ttl_ms: Option<u64>) -> bool {
        let now_ms = now_us / 1_000;
        let exists = self.memory.locks.left_ms(resource, now_ms).is_some();
        if exists {
            self.memory.locks.set_end(resource, ttl_ms.map(|ttl| now_ms.saturating_add(ttl)));
        }
        exists
    }

    /// A client's `DEL key`. Returns whether the key existed.
    pub fn foreign_delete(&mut self, now_us: u64, resource: &ResourceName) -> bool {
        self.memory.locks.remove(resource, now_us / 1_000)
    }

    /// Removes all keys, as `FLUSHALL` does.
    pub fn flush_all(&mut self) {
        self.memory = Memory::default();
    }

    /// Sets the quarantine's end to the past.
    pub fn serve_quarantine(&mut self) {
        if let Some(marker) = &mut self.memory.marker.0 {
            (marker.until_us, marker.owed_us) = (0, 0);
        }
    }

    /// Evicts one key, as a server does that runs out of memory, and counts it, as in `INFO`.
    pub fn evict(&mut self, now_us: u64, key: &EvictedKey) {
        match key {
            EvictedKey::Lock(resource) => {
                self.memory.locks.remove(resource, now_us / 1_000);
            }
            EvictedKey::Counter(resource) => {
                self.memory.fences.remove(resource);
            }
            EvictedKey::Ended(resource, token) => {
                self.memory.ended.remove(&(resource.clone(), token.clone()));
            }
            EvictedKey::Marker => self.memory.marker = MarkerKey::default(),
        }
        self.evicted += 1;
    }

    /// Restarts the process with empty memory, as after a kill.
    pub fn restart_empty(&mut self, run: &str) {
        *self = Self::new(run);
    }

    /// Makes the process a master again after it was a replica: with the keys of an earlier clone.
    pub fn fail_over(&mut self, earlier: &Self, run: &str) {
        let evicted = self.evicted;
        *self = Self { run: run.into(), evicted, memory: earlier.memory.clone() };
    }

    /// Drops every expired key, as Redis does by itself many times a second.
    pub fn expire(&mut self, now_us: u64) {
        self.memory.purge(now_us / 1_000, usize::MAX);
    }

    /// `CONFIG RESETSTAT`.
    pub fn reset_statistics(&mut self) {
        self.evicted = 0;
    }

    /// Restarts the process with the present keys, or with those of an older clone: a log that lost its end.
    pub fn restart_with_memory(&mut self, run: &str) {
        self.run = run.into();
        self.evicted = 0;
    }
}

/// The state that the simulation reads from a node without a request.
#[cfg(test)]
impl ReferenceNode {
    /// All leases of a resource, with their remaining milliseconds.
    pub(crate) fn leases_of(&self, now_us: u64, resource: &ResourceName) -> Vec<(&LeaseRecord, u64)> {
        let elsewhere = self.memory.names.elsewhere().flat_map(|keys| keys.leases_of(resource, now_us / 1_000));
        self.memory.locks.leases_of(resource, now_us / 1_000).into_iter().chain(elsewhere).collect()
    }

    /// The last view that the process installed.
    pub(crate) fn view(&self) -> std::sync::Arc<crate::protocol::View> {
        self.memory.marker.0.as_ref().map(|m| std::sync::Arc::clone(&m.view)).unwrap_or_default()
    }

    /// The last probe, by the node's clock.
    pub(crate) fn last_beat_us(&self) -> u64 {
        self.memory.marker.0.as_ref().map_or(0, |m| m.beat_us)
    }

    /// Whether the process took the place of a durable one.
    pub(crate) fn votes_by_disk(&self) -> bool {
        self.memory.marker.0.as_ref().is_some_and(|m| m.active && m.why == "by-disk")
    }

    /// Whether the process has a vote, or had it at the last request.
    pub(crate) fn is_active(&self) -> bool {
        self.memory.marker.0.as_ref().is_some_and(|m| m.active && !m.pending && m.run == self.run)
    }

    /// Whether keys were evicted since the last probe.
    pub(crate) fn has_unseen_eviction(&self) -> bool {
        self.memory.marker.0.as_ref().is_some_and(|m| m.evicted.is_some_and(|seen| seen < self.evicted))
    }
}
