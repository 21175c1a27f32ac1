//! The reference of `marker.lua`: the node's marker and whether the node may vote. This detects lost memory, clocks that are off,
//! and requests of other clusters.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::disk::{self, TripKeys, Was};
use crate::mutant::{self, Mutant};
use crate::protocol::reply::RUN_ID_LENGTH;
use crate::protocol::{ClusterParams, NoVote, RequestTime, View, ViewId};
use crate::types::{Fence, NodeId, Ttl};

/// The data of a script besides its own arguments.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct CallContext<'a> {
    /// The node's clock, microseconds since 1970.
    pub(in crate::protocol) now_us: u64,
    /// The `run_id` of the process to which the caller's connection is bound.
    pub(in crate::protocol) run: &'a str,
    /// When the request was sent, by the caller's clock.
    pub(in crate::protocol) sent_at: RequestTime,
    /// The view in which the vote counts.
    pub(in crate::protocol) view: ViewId,
    /// The caller's parameters.
    pub(in crate::protocol) params: &'a ClusterParams,
}

impl CallContext<'_> {
    /// The node's clock in the unit of TTLs.
    pub(in crate::protocol) fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    /// The guard in microseconds.
    pub(in crate::protocol) fn guard_us(&self) -> u64 {
        u64::try_from(self.params.guard.as_micros()).unwrap_or(u64::MAX)
    }

    /// Whether the request is late, or one of the two clocks is off.
    pub(in crate::protocol) fn is_clock_off(&self) -> bool {
        self.now_us.abs_diff(self.sent_at.0) > self.guard_us()
    }

    /// The TTL of a lock's key: the lease's and the lock delay.
    pub(in crate::protocol) fn key_ttl_ms(&self, ttl: Ttl) -> u64 {
        let delay_ms = if mutant::is(Mutant::NoLockDelay) { 0 } else { millis(self.params.lock_delay) };
        ttl.as_ms().saturating_add(delay_ms)
    }

    /// The length of quarantine that the sender's longest lease needs.
    pub(in crate::protocol) fn quarantine_ms(&self) -> u64 {
        millis(self.params.quarantine)
    }

    /// The node's time after `span_ms`, microseconds since 1970.
    pub(in crate::protocol) fn in_ms(&self, span_ms: u64) -> u64 {
        self.now_us.saturating_add(span_ms.saturating_mul(1_000))
    }

    /// Why this run finds the marker of `other`.
    fn why_another_run(&self, other: &str) -> &'static str {
        let is_longer = self.run.len() > RUN_ID_LENGTH;
        if is_longer && other.get(..RUN_ID_LENGTH) == self.run.get(..RUN_ID_LENGTH) { "failover" } else { "restart" }
    }

    /// The present generation of fences.
    pub(in crate::protocol) fn generation(&self) -> u64 {
        self.now_ms() / millis(self.params.fence_ttl).max(1)
    }
}

/// Whole milliseconds, as scripts receive them.
pub(in crate::protocol) fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The fields of the hash `redlockd:meta`.
#[derive(Debug, Clone)]
pub(in crate::protocol) struct MarkerRecord {
    /// The process that wrote the marker.
    pub(in crate::protocol) run: Arc<str>,
    /// The server's count of evictions at the last probe.
    pub(in crate::protocol) evicted: Option<u64>,
    /// Whether the process has a vote, unless another check refuses it.
    pub(in crate::protocol) active: bool,
    /// The node's fences survived the restart, so that it needs no seed and votes as soon as the quarantine is over. Embedded
    /// nodes only.
    pub(in crate::protocol) recalls_fences: bool,
    /// End of the last quarantine. Microseconds since 1970.
    pub(in crate::protocol) until_us: u64,
    /// End of a quarantine by a clock other than the present one: that of the quarantine that this one replaced, or that
    /// of the instance that ordered it. If that clock returns, the rest must still be served. 0: none.
    pub(in crate::protocol) owed_us: u64,
    /// The latest time at which this clock was found to be off, or when the marker was written.
    pub(in crate::protocol) seen_us: u64,
    /// Fingerprint of the node's cluster; empty on a node that was blank, until it is given a vote.
    pub(in crate::protocol) cluster: Arc<str>,
    /// The longest quarantine that an instance asked for in this period. Milliseconds.
    pub(in crate::protocol) asked_ms: u64,
    /// The longest quarantine asked for in this period or the previous one: the length of a quarantine. Milliseconds.
    pub(in crate::protocol) quarantine_ms: u64,
    /// The end of the period. Microseconds since 1970.
    pub(in crate::protocol) period_ends_us: u64,
    /// Highest fence given or stored here.
    pub(in crate::protocol) high_water: u64,
    /// At least as high as every forgotten fence.
    pub(in crate::protocol) base: u64,
    /// The generation of the known fences.
    pub(in crate::protocol) generation: Option<u64>,
    /// `high_water` at the start of the generation.
    pub(in crate::protocol) before_generation: u64,
    /// The view that was installed last.
    pub(in crate::protocol) view: Arc<View>,
    /// The minimum: no view below it is installed.
    pub(in crate::protocol) promised: ViewId,
    /// The view of the last admission.
    pub(in crate::protocol) admitted: ViewId,
    /// The view of the last fill.
    pub(in crate::protocol) filled: ViewId,
    /// The process has installed a view that changes the list, and was not filled for it yet.
    pub(in crate::protocol) pending: bool,
    /// The progress of the fill since the process lost its vote.
    pub(in crate::protocol) fill: Option<FillProgress>,
    /// The run of which a probe noted that each write is synced before its reply.
    pub(in crate::protocol) durable: Option<Arc<str>>,
    /// The last probe.
    pub(in crate::protocol) beat_us: u64,
    /// The last trip key, see [`super::disk`].
    pub(in crate::protocol) trip: u64,
    /// Of a process that loaded the data of a durable one.
    pub(in crate::protocol) was: Option<Was>,
    /// Why the node is in its present state.
    pub(in crate::protocol) why: &'static str,
    /// When that state began. Microseconds since 1970.
    pub(in crate::protocol) since_us: u64,
}

/// Pages of a fill that were applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) struct FillProgress {
    /// The view that the fill is for.
    pub(in crate::protocol) view: ViewId,
    /// Random for each fill, so that pages of two fills are not mixed.
    pub(in crate::protocol) nonce: u64,
    /// The number of pages of the fill.
    pub(in crate::protocol) pages: u32,
    /// The number of applied pages.
    pub(in crate::protocol) done: u32,
}

/// The key `redlockd:meta`; empty on a blank node.
#[derive(Debug, Clone, Default)]
pub(in crate::protocol) struct MarkerKey(
    pub(in crate::protocol) Option<MarkerRecord>,
    pub(in crate::protocol) Notes,
    pub(in crate::protocol) TripKeys,
);

/// The notes that probes leave in the key.
#[derive(Debug, Clone, Default)]
pub(in crate::protocol) struct Notes {
    /// When each instance's time agreed with this clock. Microseconds since 1970.
    pub(in crate::protocol) fits: BTreeMap<Arc<str>, u64>,
    /// The runs that each instance sees alive, and the time of its note. Microseconds since 1970.
    pub(in crate::protocol) sees: BTreeMap<Arc<str>, (u64, SeenRuns)>,
}

/// The names that an instance reaches, with their runs.
type SeenRuns = Vec<(NodeId, Arc<str>)>;

impl MarkerKey {
    /// Highest fence given or stored here; 0 without a marker.
    pub(in crate::protocol) fn high_water(&self) -> u64 {
        self.0.as_ref().map_or(0, |m| m.high_water)
    }

    /// At least as high as every forgotten fence; 0 without a marker.
    pub(in crate::protocol) fn base(&self) -> u64 {
        self.0.as_ref().map_or(0, |m| m.base)
    }

    /// The length of a quarantine that begins with this request; a request of another cluster does not lengthen it. Milliseconds.
    pub(in crate::protocol) fn longest_quarantine_ms(&self, context: &CallContext<'_>) -> u64 {
        let own_ms = self.0.as_ref().map_or(0, |m| m.quarantine_ms);
        let counts = self.0.as_ref().is_none_or(|m| m.is_of(context));
        if counts { own_ms.max(context.quarantine_ms()) } else { own_ms }
    }

    /// Takes the vote for a whole quarantine from now; the node keeps its cluster. Returns the length in milliseconds.
    pub(in crate::protocol) fn quarantine(&mut self, context: &CallContext<'_>, why: &'static str) -> u64 {
        let longest_ms = self.longest_quarantine_ms(context);
        let old = self.0.take();
        let same_period = old.as_ref().filter(|m| longest_ms <= m.quarantine_ms).map(|m| m.period_ends_us);
        let (generation, before_generation) = old.as_ref().map_or((None, 0), |m| (m.generation, m.before_generation));
        let replaced_us = old.as_ref().map_or(0, |m| if m.active { m.owed_us } else { m.owed_us.max(m.until_us) });
        let by_sender_us = context.sent_at.0.saturating_add(longest_ms.saturating_mul(1_000));
        let has_other_clock = context.is_clock_off() && !mutant::is(Mutant::OrderedByOneClock);
        let (high_water, base) = old.as_ref().map_or((0, 0), |m| (m.high_water, m.base));
        let was = old.as_ref().filter(|_| why == "restart").and_then(disk::inherits);
        self.0 = Some(MarkerRecord {
            run: context.run.into(),
            // The count may be of another process: the next probe stores it again.
            evicted: None,
            active: false,
            recalls_fences: false,
            until_us: context.now_us.saturating_add(served_ms(longest_ms).saturating_mul(1_000)),
            owed_us: replaced_us.max(if has_other_clock { by_sender_us } else { 0 }),
            seen_us: context.now_us,
            asked_ms: old.as_ref().map_or(context.quarantine_ms(), |m| m.asked_ms),
            quarantine_ms: longest_ms,
            period_ends_us: same_period.unwrap_or_else(|| context.in_ms(longest_ms)),
            cluster: old.as_ref().map_or_else(|| claimed_at_first_look(context), |m| Arc::clone(&m.cluster)),
            view: old.as_ref().map(|m| Arc::clone(&m.view)).unwrap_or_default(),
            promised: old.as_ref().map_or(ViewId::NONE, |m| m.promised),
            admitted: old.as_ref().map_or(ViewId::NONE, |m| m.admitted),
            filled: old.as_ref().map_or(ViewId::NONE, |m| m.filled),
            high_water,
            base,
            generation,
            before_generation,
            pending: false,
            fill: None,
            durable: old.as_ref().and_then(|m| m.durable.clone()),
            beat_us: old.as_ref().map_or(0, |m| m.beat_us),
            trip: old.as_ref().map_or(0, |m| m.trip),
            was,
            why,
            since_us: context.now_us,
        });
        longest_ms
    }

    /// Returns `None` if the node may vote, else the refusal. Detects lost memory, and a clock that was ahead and went back: both
    /// begin a quarantine.
    pub(in crate::protocol) fn check_vote(&mut self, context: &CallContext<'_>) -> Option<NoVote> {
        let lost = match &self.0 {
            None => Some("blank"),
            Some(m) if &*m.run != context.run => Some(context.why_another_run(&m.run)),
            Some(m) if context.now_us.saturating_add(context.guard_us()) < m.seen_us => Some("clock"),
            Some(_) => None,
        };
        let lost = lost.filter(|why| !is_ignored(why));
        if context.is_clock_off() && !mutant::is(Mutant::NoGuard) {
            if lost.is_none()
                && let Some(m) = self.0.as_mut().filter(|m| context.now_us > m.seen_us)
            {
                m.seen_us = context.now_us;
            }
            return Some(NoVote::ClockOff { node_us: context.now_us });
        }
        let longest_ms = self.longest_quarantine_ms(context);
        if let Some(why) = lost {
            self.quarantine(context, why);
        }
        self.ask(context, longest_ms);
        let m = self.0.as_mut()?;
        if mutant::is(Mutant::NoQuarantine) && !m.active {
            m.active = true;
            (m.view, m.admitted) = (Arc::new(View { id: context.view, ..View::default() }), context.view);
        }
        m.check_state(context)
    }

    /// Notes the length of quarantine that this instance asks for; a quarantine in progress becomes as long.
    fn ask(&mut self, context: &CallContext<'_>, longest_ms: u64) {
        let Some(m) = self.0.as_mut() else { return };
        if longest_ms > m.quarantine_ms {
            m.until_us = m.until_us.saturating_add((longest_ms - m.quarantine_ms).saturating_mul(1_000));
            m.quarantine_ms = longest_ms;
            // A period lasts at least as long as the leases that it covers.
            m.period_ends_us = context.in_ms(longest_ms);
        }
        if m.is_of(context) {
            m.asked_ms = m.asked_ms.max(context.quarantine_ms());
        }
    }

    /// Once per period: all leases of the previous period are over, so only the lengths asked for in the ending period count.
    pub(in crate::protocol) fn end_period(&mut self, context: &CallContext<'_>) {
        if let Some(m) = self.0.as_mut().filter(|m| context.now_us >= m.period_ends_us) {
            m.quarantine_ms = m.asked_ms.max(context.quarantine_ms());
            m.asked_ms = context.quarantine_ms();
            m.period_ends_us = context.in_ms(m.quarantine_ms);
        }
    }

    /// Fences above this are further ahead than clocks may differ: ahead of the node's clock, and of the fences that the node
    /// knows, which may be ahead of a clock that was stepped back.
    pub(in crate::protocol) fn highest_plausible_fence(&self, context: &CallContext<'_>) -> u64 {
        let known = if mutant::is(Mutant::FutureByClock) { 0 } else { self.high_water() };
        context.now_us.max(known).saturating_add(context.guard_us())
    }

    /// Records a fence that was given or written back.
    pub(in crate::protocol) fn store_fence(&mut self, fence: u64) {
        if let Some(m) = &mut self.0 {
            m.high_water = m.high_water.max(fence);
        }
    }
}

impl MarkerRecord {
    /// The process knows all that it voted for, but votes in the present view only after it was filled for it.
    pub(in crate::protocol) fn is_pending(&self) -> bool {
        self.pending && !mutant::is(Mutant::CommonNotFilled)
    }

    /// Whether the node belongs to the sender's cluster, or to none yet.
    fn is_of(&self, context: &CallContext<'_>) -> bool {
        self.cluster.is_empty() || self.cluster == context.params.cluster.get()
    }

    /// The refusal if the node votes in another view than the sender's. It includes the node's view if that is the higher one.
    fn other_view(&self, context: &CallContext<'_>) -> Option<NoVote> {
        if self.view.id == context.view && !self.is_pending() || mutant::is(Mutant::ViewsMixed) {
            return None;
        }
        let is_higher = self.view.id > context.view;
        let only_id = || Arc::new(View { id: self.view.id, ..View::default() });
        Some(NoVote::OtherView { view: if is_higher { Arc::clone(&self.view) } else { only_id() } })
    }

    fn check_state(&mut self, context: &CallContext<'_>) -> Option<NoVote> {
        if !self.is_of(context) && !mutant::is(Mutant::NoFingerprint) {
            return Some(NoVote::OtherCluster { theirs: self.cluster.to_string() });
        }
        if self.active {
            return self.other_view(context);
        }
        if context.now_us < self.until_us {
            return Some(NoVote::Quarantined { left_ms: (self.until_us - context.now_us).div_ceil(1_000) });
        }
        let begun_us = self.owed_us.saturating_sub(self.quarantine_ms.saturating_mul(1_000));
        if (begun_us..self.owed_us).contains(&context.now_us) && !mutant::is(Mutant::QuarantineReplaced) {
            return Some(NoVote::Quarantined { left_ms: (self.owed_us - context.now_us).div_ceil(1_000) });
        }
        if self.recalls_fences {
            (self.active, self.owed_us) = (true, 0);
            self.since_us = context.now_us;
            return self.other_view(context);
        }
        Some(NoVote::Unseeded { high_water: Fence(self.high_water) })
    }
}

/// No cluster: the first request may be of another cluster. A mutant claims the node for the sender.
fn claimed_at_first_look(context: &CallContext<'_>) -> Arc<str> {
    if mutant::is(Mutant::FirstLookClaims) { context.params.cluster.get() } else { "".into() }
}

/// Mutants: whether this sign of lost memory is ignored.
fn is_ignored(why: &str) -> bool {
    (why == "restart" && mutant::is(Mutant::RestartUnnoticed))
        || (why == "failover" && mutant::is(Mutant::FailoverUnnoticed))
        || (why == "clock" && mutant::is(Mutant::ClockBackUnnoticed))
}

/// The quarantine to serve; for a mutant, half of it.
fn served_ms(quarantine_ms: u64) -> u64 {
    if mutant::is(Mutant::HalfQuarantine) { quarantine_ms / 2 } else { quarantine_ms }
}

/// Whether leases can neither be extended nor restored: a quarantined node does both, without a vote.
pub(in crate::protocol) fn refuses_updates(no_vote: Option<&NoVote>) -> bool {
    matches!(no_vote, Some(NoVote::ClockOff { .. } | NoVote::OtherCluster { .. }))
}
