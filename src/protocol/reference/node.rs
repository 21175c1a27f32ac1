//! One node: dispatches each request to its operation's reference, and computes in advance the maximum effect of a request.

use std::sync::Arc;
use std::time::Duration;

use super::locks::LockValue;
use super::marker::{CallContext, millis};
use super::memory::{self, Memory};
use crate::mutant::{self, Mutant};
use crate::protocol::reply::RUN_ID_LENGTH;
use crate::protocol::{
    AcquireArgs, AcquireSetArgs, AcquireSharedArgs, AdmitArgs, ClusterParams, FillArgs, FillEntry, NoVote, NodeResult,
    Reply, Request, RequestStamp, RequestTime, RestoreArgs, UpdateArgs, ViewId, Vote, acquire, acquire_set,
    acquire_shared, admin, delete_foreign, downgrade, fill, index, inspect, intent, kept, list, read_all, release,
    rename, restore, revoke, ticket, ticket_exchange, update, view_change, waiters,
};
use crate::types::{ResourceName, TokenHash, Ttl};

/// The whole state of one node.
#[derive(Debug, Clone)]
pub struct ReferenceNode {
    pub(super) run: Arc<str>,
    pub(super) evicted: u64,
    pub(super) memory: Memory,
}

/// Numbers of keys in memory, including expired ones that were not dropped yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyCounts {
    pub locks: usize,
    /// Entries of the index of leases.
    pub index: usize,
    /// The last fences of resources.
    pub counters: usize,
    /// Tombstones of tokens and attempts.
    pub tombstones: usize,
    /// The keys that block a resource.
    pub blocks: usize,
}

/// The maximum effect of a request on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectBound {
    /// The end of a lease or quarantine that the request may begin or extend; `None`: neither. Microseconds on the node's clock.
    pub end_us: Option<u64>,
    /// The highest fence that the request may give or store.
    pub fence: u64,
}

/// The state in which a stopped node restarts, see [`ReferenceNode::resume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// At least as high as every fence that the node may have given.
    pub fence: u64,
    /// Until when the node has no vote, microseconds on the node's clock. A time in the past: it votes at once.
    pub until_us: u64,
    /// For display, see [`crate::protocol::NodeStatus::why`].
    pub why: &'static str,
}

impl ReferenceNode {
    /// An empty server process. It has no marker, so it counts as wiped until [`Request::Init`] or [`Self::resume`].
    pub fn new(run: &str) -> Self {
        Self { run: run.into(), evicted: 0, memory: Memory::default() }
    }

    /// The process's run id.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Runs one script. `now_us` is the server's clock in microseconds since 1970; `run` is the process to which the
    /// caller's connection is bound, empty for `identity = "script"`.
    ///
    /// Errors: `Protocol` if the script itself fails: on a value that begins with the caller's token but is no lease.
    pub fn apply(
        &mut self,
        now_us: u64,
        run: &str,
        stamp: impl Into<RequestStamp>,
        params: &ClusterParams,
        request: &Request,
    ) -> NodeResult {
        let RequestStamp { sent_at, view, .. } = stamp.into();
        let params = &*params.in_view(&view);
        let own = Arc::clone(&self.run);
        let run = if run.is_empty() { &*own } else { run };
        let context = &CallContext { now_us, run, sent_at, view: view.id, params };
        let present = &CallContext { run: present_run(run, &own), ..*context };
        self.memory.purge(context.now_ms(), memory::PURGE_PER_REQUEST);
        let own = self.memory.names.own.clone().filter(|_| uses_own_names(request));
        let resting = self.memory.names.resting();
        self.memory.show(own.as_ref().map_or(&params.template, |own| &own.template));
        let is_moving = own.is_some_and(|own| own.moving.is_some()) && !matches!(request, Request::Rename(_));
        let laid = if is_moving { self.memory.lay_over() } else { Vec::new() };
        let answer = self.dispatch(context, present, request);
        self.memory.lift(laid);
        if let Some(resting) = self.memory.names.own.as_ref().map(|own| own.template.clone()).or(resting) {
            self.memory.show(&resting);
        }
        answer
    }

    fn dispatch(&mut self, context: &CallContext<'_>, present: &CallContext<'_>, request: &Request) -> NodeResult {
        let memory = &mut self.memory;
        if matches!(request, Request::Update(_) | Request::Restore(_))
            && !memory.names.are_of(&context.params.template)
            && let Some(no_vote) = memory.marker.check_vote(context)
        {
            return Ok(Reply::NoVote(no_vote)); // its own key has another name
        }
        Ok(match request {
            Request::Acquire(args) => acquire::reference::apply(memory, context, args),
            Request::AcquireShared(args) => acquire_shared::reference::apply(memory, context, args),
            Request::Downgrade(args) => downgrade::reference::apply(memory, context, args),
            Request::Intent(args) => intent::reference::apply(memory, context, args),
            Request::AcquireSet(args) => acquire_set::reference::apply(memory, context, args),
            Request::Update(args) => return update::reference::apply(memory, context, args),
            Request::Restore(args) => restore::reference::apply(memory, context, args),
            Request::Cancel(args) => release::reference::cancel(memory, context, args),
            Request::Release(args) => release::reference::release(memory, context, args),
            Request::Revoke(args) => revoke::reference::apply(memory, context, args),
            Request::DeleteForeign(args) => delete_foreign::reference::apply(memory, context, args),
            Request::Inspect { resource } => inspect::reference::apply(memory, context, resource),
            Request::List(args) => list::reference::apply(memory, context, args),
            Request::Index(args) => index::reference::apply(memory, context, args),
            Request::Kept(args) => kept::reference::apply(memory, context, args),
            Request::Waiters(args) => waiters::reference::apply(memory, context, args),
            Request::Ticket(args) => ticket::reference::apply(memory, context, args),
            Request::Tickets(args) => ticket_exchange::reference::apply(memory, context, args),
            Request::Read(args) => read_all::reference::apply(memory, context, args),
            Request::Fill(args) => fill::reference::apply(memory, context, args),
            Request::Rename(args) => rename::reference::apply(memory, context, args),
            Request::Probe(args) => {
                let reply = admin::reference::probe(&mut memory.marker, present, self.evicted, args);
                if matches!(&reply, Reply::Status(status) if matches!(status.vote, Vote::Active | Vote::NoVote(NoVote::OtherView { .. })))
                {
                    memory.begin_generation(present); // else what a burst left stays until the next acquire
                }
                reply
            }
            Request::Init { view } => admin::reference::init(&mut memory.marker, present, self.evicted, view),
            Request::Quarantine { by } => {
                admin::reference::order_quarantine(&mut memory.marker, present, self.evicted, by)
            }
            Request::Promise { view } => view_change::reference::promise(&mut memory.marker, present, *view),
            Request::Install { view } => view_change::reference::install(memory, present, view),
            Request::Admit(args) => view_change::reference::admit(&mut memory.marker, present, args),
        })
    }

    /// Restarts a node whose past is known from another source: it gives only fences above `resumed.fence`, has no vote until
    /// `resumed.until_us`, and then votes without a seed. Its keys are lost.
    pub fn resume(&mut self, now_us: u64, params: &ClusterParams, resumed: Resumed) {
        let own = Arc::clone(&self.run);
        let context = &CallContext { now_us, run: &own, sent_at: RequestTime(now_us), view: ViewId::NONE, params };
        self.memory = Memory::default();
        admin::reference::declare(&mut self.memory.marker, context, self.evicted, resumed.fence);
        if let Some(marker) = &mut self.memory.marker.0 {
            marker.active = now_us >= resumed.until_us;
            marker.recalls_fences = true;
            marker.until_us = resumed.until_us;
            marker.why = resumed.why;
        }
    }

    /// The maximum effect of `request`, for a caller that must store it before the request runs.
    pub fn effect_bound(
        &self,
        now_us: u64,
        sent_at: RequestTime,
        params: &ClusterParams,
        request: &Request,
    ) -> EffectBound {
        let view = self.memory.marker.0.as_ref().map(|m| Arc::clone(&m.view)).unwrap_or_default();
        let params = &*params.in_view(&view);
        let context = &CallContext { now_us, run: &self.run, sent_at, view: view.id, params };
        let known = self.memory.marker.high_water().max(self.memory.marker.base());
        // Later times of sending, and written-back fences beyond the highest plausible one, are refused.
        let soon = now_us.saturating_add(context.guard_us());
        let nothing = EffectBound { end_us: None, fence: known };
        let highest = self.memory.marker.highest_plausible_fence(context);
        let for_ttl = |ttl: Ttl| end_us(context.now_ms().saturating_add(context.key_ttl_ms(ttl)));
        match request {
            Request::Acquire(AcquireArgs { resource, token, ttl, .. }) if self.may_grant(context, resource, token) => {
                EffectBound { end_us: Some(for_ttl(*ttl)), fence: known.saturating_add(1).max(soon) }
            }
            Request::AcquireShared(AcquireSharedArgs { ttl, proposed, .. }) => {
                let proposed = proposed.map_or(0, |fence| fence.0.min(highest));
                EffectBound { end_us: Some(for_ttl(*ttl)), fence: known.saturating_add(1).max(soon).max(proposed) }
            }
            Request::AcquireSet(AcquireSetArgs { resources, token, ttl, is_shared, .. })
                if *is_shared || resources.iter().all(|resource| self.may_grant(context, resource, token)) =>
            {
                EffectBound { end_us: Some(for_ttl(*ttl)), fence: known.saturating_add(1).max(soon) }
            }
            Request::Update(UpdateArgs { resource, token, ttl, fence, .. }) => {
                let leases = self.memory.locks.leases_of(resource, context.now_ms());
                match leases.into_iter().find(|(record, _)| record.token == *token) {
                    Some((record, _)) => {
                        let wanted = fence.map_or(0, |f| f.0);
                        let end = for_ttl(ttl.unwrap_or(record.ttl));
                        EffectBound { end_us: Some(end), fence: known.max(wanted.min(highest)) }
                    }
                    None => nothing,
                }
            }
            Request::Restore(RestoreArgs { left_ms, record, .. }) => {
                let end = end_us(context.now_ms().saturating_add((*left_ms).max(1)));
                EffectBound { end_us: Some(end), fence: known.max(record.fence.0.min(highest)) }
            }
            Request::Fill(FillArgs { entries, .. }) => {
                let longest_ms = entries.iter().map(FillEntry::left_ms).max().unwrap_or(0);
                EffectBound { end_us: Some(end_us(context.now_ms().saturating_add(longest_ms.max(1)))), fence: known }
            }
            Request::Quarantine { .. } => {
                let longest_ms = self.memory.marker.longest_quarantine_ms(context);
                EffectBound { end_us: Some(end_us(context.now_ms().saturating_add(longest_ms))), fence: known }
            }
            Request::Init { .. } => EffectBound { end_us: None, fence: known.max(sent_at.0.min(soon)) },
            Request::Admit(AdmitArgs { seed, .. }) => EffectBound { end_us: None, fence: known.max(seed.0) },
            _ => nothing,
        }
    }

    fn may_grant(&self, context: &CallContext<'_>, resource: &ResourceName, token: &TokenHash) -> bool {
        let is_free_or_own = match self.memory.locks.get(resource, context.now_ms()) {
            None => true,
            Some(LockValue::Lease(record)) => record.token == *token,
            Some(_) => false,
        };
        is_free_or_own && self.memory.marker.clone().check_vote(context).is_none()
    }

    /// When the last lock key and block will have expired; 0 if there is none. Microseconds on the node's clock.
    pub fn last_lease_end_us(&self) -> u64 {
        self.memory.locks.latest_end_ms().max(self.memory.blocks.latest_end_ms()).map_or(0, end_us)
    }

    /// The next time after `now_us` at which a key or the quarantine ends, or at which a lease has used half of its TTL, so that
    /// it is due if it is kept. Microseconds on the node's clock.
    pub fn next_end_us(&self, now_us: u64, lock_delay: Duration) -> Option<u64> {
        let (m, from_ms) = (&self.memory, now_us / 1_000);
        let keys = [m.locks.next_end_ms(from_ms), m.blocks.next_end_ms(from_ms)].into_iter();
        let tombstones =
            [m.ended.next_end_ms(from_ms), m.cancelled.next_end_ms(from_ms), m.intents.next_end_ms(from_ms)];
        let ends = keys.chain(tombstones).chain([m.waiters.entries.next_end_ms(from_ms)]).flatten().map(end_us);
        let owed_us = m.marker.0.as_ref().filter(|m| !m.active).map(|m| m.owed_us);
        let leases = m.locks.iter(from_ms).flat_map(|(resource, ..)| m.locks.leases_of(resource, from_ms));
        let halves = leases.map(|(record, left_ms)| {
            (from_ms + left_ms).saturating_sub(record.ttl.as_ms().div_ceil(2) + millis(lock_delay))
        });
        let due = halves.chain(m.kept.values().copied()).map(end_us);
        ends.chain(due).chain(self.quarantined_until_us()).chain(owed_us).filter(|end_us| *end_us > now_us).min()
    }

    /// Until when the node has no vote; `None` if it votes or has no marker. Microseconds on the node's clock.
    pub fn quarantined_until_us(&self) -> Option<u64> {
        self.memory.marker.0.as_ref().filter(|m| !m.active).map(|m| m.until_us)
    }

    /// The highest fence that the node has given or stored, or received as a seed.
    pub fn highest_fence(&self) -> u64 {
        self.memory.marker.high_water().max(self.memory.marker.base())
    }

    /// The number of keys in memory.
    pub fn key_counts(&self) -> KeyCounts {
        KeyCounts {
            locks: self.memory.locks.len(),
            index: self.memory.locks.index_len(),
            counters: self.memory.fences.len(),
            tombstones: self.memory.ended.len() + self.memory.cancelled.len(),
            blocks: self.memory.blocks.len(),
        }
    }
}

/// Whether a request finds locks by the names of the process, whatever view its sender is in.
fn uses_own_names(request: &Request) -> bool {
    matches!(
        request,
        Request::Cancel(_)
            | Request::Release(_)
            | Request::Revoke(_)
            | Request::DeleteForeign(_)
            | Request::List(_)
            | Request::Index(_)
            | Request::Kept(_)
            | Request::Rename(_)
    )
}

/// The present run of this process, for operations on the node: the caller's connection may date from before a failover.
fn present_run<'a>(bound: &'a str, own: &'a str) -> &'a str {
    let id = |run: &'a str| run.get(..RUN_ID_LENGTH).filter(|_| run.len() > RUN_ID_LENGTH);
    if id(bound).is_some() && id(bound) == id(own) && !mutant::is(Mutant::FailoverUnnoticed) { own } else { bound }
}

/// The first microsecond at which a key with its last millisecond at `ms` no longer exists.
fn end_us(ms: u64) -> u64 {
    ms.saturating_add(1).saturating_mul(1_000)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
