//! The node's marker: what it knows of itself, and whether it may vote (the twin of `prelude.lua`).
//! Stands apart because this is where amnesia, clocks and other clusters are noticed. Knows no lock.

use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::protocol::{ClusterParams, NoVote, RequestTime};

/// One request's circumstances: what every script is told before its own arguments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visit<'a> {
    /// The node's clock, microseconds since 1970.
    pub(super) now_us: u64,
    /// The process to which the caller's connection was bound.
    pub(super) run: &'a str,
    /// When the request was sent, on the caller's clock.
    pub(super) sent_at: RequestTime,
    /// The caller's terms.
    pub(super) params: &'a ClusterParams,
}

impl Visit<'_> {
    /// The node's clock as TTLs see it.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    /// The guard in microseconds.
    pub(super) fn guard_us(&self) -> u64 {
        u64::try_from(self.params.guard.as_micros()).unwrap_or(u64::MAX)
    }

    /// A late request, or somebody's clock is off.
    pub(super) fn is_clock_off(&self) -> bool {
        self.now_us.abs_diff(self.sent_at.0) > self.guard_us()
    }

    fn quarantine_ms(&self) -> u64 {
        millis(self.params.quarantine)
    }

    fn fence_period(&self) -> u64 {
        self.now_ms() / millis(self.params.fence_ttl).max(1)
    }
}

/// Whole milliseconds, as the scripts are told them.
pub(super) fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The hash `redlockd:meta`.
#[derive(Debug, Clone)]
pub(super) struct Marker {
    /// The process that wrote it.
    pub(super) run: Arc<str>,
    /// Evictions that were noticed.
    pub(super) evicted: Option<u64>,
    /// It votes.
    pub(super) active: bool,
    /// The machine's own: its fences outlived the restart, so that it needs no seed and votes as
    /// soon as the quarantine is over. Redis nodes never have this.
    pub(super) recalls_fences: bool,
    /// End of the last quarantine. Microseconds since 1970.
    pub(super) until_us: u64,
    /// End of the quarantine by another clock than this one's of now: that of a quarantine that this one replaced, or
    /// that of who ordered it. Should that clock come back, the rest of it is still owed. 0 where there is none.
    pub(super) owed_us: u64,
    /// The newest time at which this clock was found off, or when the marker was written.
    pub(super) seen_us: u64,
    /// To whose cluster it belongs.
    pub(super) cluster: Arc<str>,
    /// The longest quarantine that any instance asked for. Milliseconds.
    pub(super) quarantine_ms: u64,
    /// Highest fence given here.
    pub(super) high_water: u64,
    /// At least every counter that may have expired.
    pub(super) base: u64,
    /// When `high_water` was last copied into `base`.
    pub(super) period: Option<u64>,
    /// Why it entered its present state.
    pub(super) why: &'static str,
    /// Since when.
    pub(super) since_us: u64,
}

/// The marker, where there is one.
#[derive(Debug, Clone, Default)]
pub(super) struct Mark(pub(super) Option<Marker>);

impl Mark {
    /// Highest fence given here; 0 without a marker.
    pub(super) fn high_water(&self) -> u64 {
        self.0.as_ref().map_or(0, |m| m.high_water)
    }

    /// At least every counter that may have expired; 0 without a marker.
    pub(super) fn base(&self) -> u64 {
        self.0.as_ref().map_or(0, |m| m.base)
    }

    /// Instances may disagree on the quarantine: the longest counts. Milliseconds.
    pub(super) fn longest_quarantine_ms(&self, visit: &Visit<'_>) -> u64 {
        self.0.as_ref().map_or(0, |m| m.quarantine_ms).max(visit.quarantine_ms())
    }

    /// Takes the vote from now for the whole quarantine; `cluster` is kept where there is one.
    pub(super) fn quarantine(&mut self, visit: &Visit<'_>, why: &'static str) -> u64 {
        let longest_ms = self.longest_quarantine_ms(visit);
        let old = self.0.take();
        let period = old.as_ref().and_then(|m| m.period);
        let replaced_us = old.as_ref().map_or(0, |m| if m.active { m.owed_us } else { m.owed_us.max(m.until_us) });
        let orderer_us = visit.sent_at.0.saturating_add(longest_ms.saturating_mul(1_000));
        let is_disputed = visit.is_clock_off() && !mutant::is(Mutant::OrderedByOneClock);
        let (high_water, base) = old.as_ref().map_or((0, 0), |m| (m.high_water, m.base));
        self.0 = Some(Marker {
            run: visit.run.into(),
            // Of another process, maybe: the next probe notes it anew.
            evicted: None,
            active: false,
            recalls_fences: false,
            until_us: visit.now_us.saturating_add(served_ms(longest_ms).saturating_mul(1_000)),
            owed_us: replaced_us.max(if is_disputed { orderer_us } else { 0 }),
            seen_us: visit.now_us,
            cluster: old.map_or_else(|| visit.params.cluster.clone(), |m| m.cluster),
            quarantine_ms: longest_ms,
            high_water,
            base,
            period,
            why,
            since_us: visit.now_us,
        });
        longest_ms
    }

    /// `None`: the node may vote. Notices amnesia, and clocks that went ahead and came back.
    pub(super) fn admit(&mut self, visit: &Visit<'_>) -> Option<NoVote> {
        let lost = match &self.0 {
            None => Some("blank"),
            Some(m) if &*m.run != visit.run => Some("restart"),
            Some(m) if visit.now_us.saturating_add(visit.guard_us()) < m.seen_us => Some("clock"),
            Some(_) => None,
        };
        let lost = lost.filter(|why| !is_overlooked(why));
        if visit.is_clock_off() && !mutant::is(Mutant::NoGuard) {
            if lost.is_none()
                && let Some(m) = self.0.as_mut().filter(|m| visit.now_us > m.seen_us)
            {
                m.seen_us = visit.now_us;
            }
            return Some(NoVote::ClockOff { node_us: visit.now_us });
        }
        let longest_ms = self.longest_quarantine_ms(visit);
        if let Some(why) = lost {
            self.quarantine(visit, why);
        }
        let m = self.0.as_mut()?;
        if mutant::is(Mutant::NoQuarantine) {
            m.active = true;
        }
        if longest_ms > m.quarantine_ms {
            m.until_us = m.until_us.saturating_add((longest_ms - m.quarantine_ms).saturating_mul(1_000));
            m.quarantine_ms = longest_ms;
        }
        m.vote(visit)
    }

    /// Before a fence is given: `base` keeps up with the counters that may expire.
    pub(super) fn rotate(&mut self, visit: &Visit<'_>) {
        if let Some(m) = self.0.as_mut().filter(|m| m.period != Some(visit.fence_period())) {
            if !mutant::is(Mutant::CountersForgotten) {
                m.base = m.base.max(m.high_water);
            }
            m.period = Some(visit.fence_period());
        }
    }

    /// Fences above this lie further ahead than clocks may differ: of the node's clock, or of the
    /// fences that it knows, which are ahead of a clock that was stepped back.
    pub(super) fn furthest_fence(&self, visit: &Visit<'_>) -> u64 {
        let known = if mutant::is(Mutant::FutureByClock) { 0 } else { self.high_water() };
        visit.now_us.max(known).saturating_add(visit.guard_us())
    }

    /// A fence was given or written here.
    pub(super) fn remember(&mut self, fence: u64) {
        if let Some(m) = &mut self.0 {
            m.high_water = m.high_water.max(fence);
        }
    }
}

impl Marker {
    fn vote(&mut self, visit: &Visit<'_>) -> Option<NoVote> {
        if self.cluster != visit.params.cluster && !mutant::is(Mutant::NoFingerprint) {
            return Some(NoVote::OtherCluster { theirs: self.cluster.to_string() });
        }
        if self.active {
            return None;
        }
        if visit.now_us < self.until_us {
            return Some(NoVote::Quarantined { left_ms: (self.until_us - visit.now_us).div_ceil(1_000) });
        }
        let begun_us = self.owed_us.saturating_sub(self.quarantine_ms.saturating_mul(1_000));
        if (begun_us..self.owed_us).contains(&visit.now_us) && !mutant::is(Mutant::QuarantineReplaced) {
            return Some(NoVote::Quarantined { left_ms: (self.owed_us - visit.now_us).div_ceil(1_000) });
        }
        if self.recalls_fences {
            (self.active, self.owed_us) = (true, 0);
            self.since_us = visit.now_us;
            return None;
        }
        Some(NoVote::Unseeded { high_water: crate::types::Fence(self.high_water) })
    }
}

/// Planted bugs: a sign of lost memory that is not seen.
fn is_overlooked(why: &str) -> bool {
    (why == "restart" && mutant::is(Mutant::RestartUnnoticed))
        || (why == "clock" && mutant::is(Mutant::ClockBackUnnoticed))
}

/// Half of it, as a planted bug.
fn served_ms(quarantine_ms: u64) -> u64 {
    if mutant::is(Mutant::HalfQuarantine) { quarantine_ms / 2 } else { quarantine_ms }
}

/// A quarantined node still refreshes leases and takes plants; under these two it does nothing.
pub(super) fn is_silent(no_vote: Option<&NoVote>) -> bool {
    matches!(no_vote, Some(NoVote::ClockOff { .. } | NoVote::OtherCluster { .. }))
}
