//! The reference of `durable.lua`: processes whose every write is on disk before its reply, and that one may take another's place.

use std::sync::Arc;

use super::marker::{CallContext, MarkerKey, MarkerRecord};
use super::store::Expiring;
use crate::mutant::{self, Mutant};
use crate::protocol::Inherited;

/// As in `durable.lua`. Milliseconds.
const TRIP_MS: u64 = 2_000;
const HORIZON_MS: u64 = 600_000;
const SLACK_MS: u64 = 10_000;

/// `redlockd:trip:*`: each is gone if the clock was ever past its end.
pub(in crate::protocol) type TripKeys = Expiring<u64, ()>;

/// What a process has of the durable one whose data it loaded.
#[derive(Debug, Clone)]
pub(in crate::protocol) struct Was {
    run: Arc<str>,
    beat_us: u64,
    /// From when on it may take that one's place; `None`: not known.
    ready_us: Option<u64>,
}

/// What is left of this voting process after a restart with its data.
pub(super) fn inherits(m: &MarkerRecord) -> Option<Was> {
    let is_durable = m.durable.as_ref() == Some(&m.run) || mutant::is(Mutant::PolicyUnnoticed);
    let was = || Was { run: Arc::clone(&m.run), beat_us: m.beat_us, ready_us: None };
    (m.active && !m.pending && is_durable).then(was)
}

/// As it is replied.
pub(in crate::protocol) fn inherited(m: Option<&MarkerRecord>, context: &CallContext<'_>) -> Option<Inherited> {
    let m = m.filter(|m| !m.active)?;
    let was = m.was.as_ref()?;
    let is_ready = is_durable(m, context) && was.ready_us.is_some_and(|ready_us| ready_us <= context.now_us);
    Some(Inherited { run: Arc::clone(&was.run), beat_us: was.beat_us, is_ready })
}

/// Whether a probe has noted that this process is durable.
pub(in crate::protocol) fn is_durable(m: &MarkerRecord, context: &CallContext<'_>) -> bool {
    m.durable.as_deref() == Some(context.run)
}

/// What a probe does. `syncs`: whether each write is synced before its reply, as the instance has just read.
pub(in crate::protocol) fn watch(marker: &mut MarkerKey, context: &CallContext<'_>, syncs: Option<bool>, votes: bool) {
    let longest_ms = marker.longest_quarantine_ms(context);
    let MarkerKey(Some(m), _, trips) = marker else { return };
    if syncs == Some(false) {
        m.durable = None;
    }
    if syncs != Some(true) || !votes && m.was.is_none() {
        return;
    }
    m.durable = Some(context.run.into());
    let now_ms = context.now_ms();
    let (first, to) = (now_ms / TRIP_MS + 1, (now_ms + longest_ms.min(HORIZON_MS)) / TRIP_MS);
    if votes {
        let next = if m.trip > to { 0 } else { m.trip + 1 };
        for n in first.max(next)..=to {
            trips.put(n, (), Some(n * TRIP_MS));
        }
        m.trip = to;
    } else if let Some(was) = m.was.as_mut().filter(|was| was.ready_us.is_none()) {
        let last = m.trip.min(first + HORIZON_MS / TRIP_MS);
        let is_right = first <= last && (first..=last).all(|n| trips.get(&n, now_ms).is_some());
        let is_over = now_ms >= was.beat_us / 1_000 + longest_ms + SLACK_MS;
        let ready_ms = if is_right { Some(first * TRIP_MS) } else { is_over.then_some(now_ms) };
        let at_once = mutant::is(Mutant::ClockAtStartIgnored).then_some(now_ms);
        was.ready_us = at_once.or(ready_ms).map(|ms| ms * 1_000);
    }
}
