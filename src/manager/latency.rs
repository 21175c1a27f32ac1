//! Latencies and failures of the last quarter of an hour, in histograms by time slot: one series for quorum rounds
//! and one for each node, for the pages. Metrics cannot show this, since they count for ever.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::protocol::UnreachableKind;
use crate::redlock::clock::BootTime;
use crate::redlock::known_nodes::NODES_KNOWN_MAX;
use crate::types::NodeId;

/// The time that one slot covers: a chart has sixty points.
pub(crate) const SLOT: Duration = Duration::from_secs(15);
/// Number of slots that are kept: a quarter of an hour.
pub(crate) const SLOTS: usize = 60;
/// Number of buckets of a histogram. The first has durations below one microsecond; each further bucket ends at the same
/// multiple of its beginning, so all are equally wide on a logarithmic axis. A quantile is off by at most a sixteenth; the
/// last bucket ends at 8.4 s, far beyond every timeout. Instances exchange bucket numbers ([`super::activity`]).
pub(crate) const BUCKETS: usize = 185;
/// Number of buckets for each power of two of microseconds.
const BUCKETS_PER_OCTAVE: f64 = 8.0;
const KINDS: usize = UnreachableKind::ALL.len();

/// The bucket of a latency; beyond the largest bucket, the last one.
pub(crate) fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).min(1 << 32);
    let Some(octave) = micros.checked_ilog2() else { return 0 };
    // Each call to a node is counted: a logarithm would take most of the time.
    let part = (micros << 31) >> octave;
    let parts = PARTS_OF_OCTAVE.iter().filter(|begin| part >= **begin).count();
    (octave as usize * PARTS_OF_OCTAVE.len() + parts).min(BUCKETS - 1)
}

/// Where the buckets of an octave begin: 2^(n/8), times 2^31, rounded up.
const PARTS_OF_OCTAVE: [u64; 8] = [
    2_147_483_648,
    2_341_847_524,
    2_553_802_834,
    2_784_941_738,
    3_037_000_500,
    3_311_872_530,
    3_611_622_603,
    3_938_502_376,
];

/// The position of a latency on a logarithmic axis on which each bucket has the width 1 and begins at its number. Whole
/// microseconds at an edge are on the correct side: only powers of two are at an edge, and their logarithms are exact.
pub(crate) fn axis(took: Duration) -> f64 {
    let micros = took.as_micros();
    #[expect(clippy::cast_precision_loss, reason = "a latency is far below 2^52 microseconds")]
    if micros == 0 { 0.0 } else { 1.0 + (micros as f64).log2() * BUCKETS_PER_OCTAVE }
}

/// The beginning of a bucket and of the next one. Units: microseconds.
pub(crate) fn bounds(bucket: usize) -> (f64, f64) {
    let edge = |number: usize| (f64::from(u32::try_from(number).unwrap_or(u32::MAX)) / BUCKETS_PER_OCTAVE).exp2();
    bucket.checked_sub(1).map_or((0.0, 1.0), |number| (edge(number), edge(number + 1)))
}

/// How often durations occurred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// The count of each bucket; see [`bounds`].
    pub counts: [u32; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    /// The number of values that were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|n| u64::from(*n)).sum()
    }

    /// The duration that this share (0 to 1) of the values did not exceed, to within a sixteenth; `None` without
    /// values.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let total = self.total();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count: not negative, at most the count, and exact enough for a quantile"
        )]
        let rank = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        for (i, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                let (low, high) = bounds(i);
                // The middle of the bucket, on the same axis, has the smallest error.
                return Some(Duration::from_secs_f64((low * high).sqrt().round() / 1e6));
            }
        }
        None
    }

    fn add(&mut self, other: &Self) {
        for (mine, more) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*more);
        }
    }
}

/// What happened within one [`SLOT`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimeSlot {
    number: u64,
    /// Durations of successes.
    pub took: Histogram,
    /// Counts of failures, in the order of [`UnreachableKind::ALL`].
    pub failed: [u32; KINDS],
}

impl TimeSlot {
    fn add(&mut self, other: &Self) {
        self.took.add(&other.took);
        for (mine, more) in self.failed.iter_mut().zip(other.failed) {
            *mine = mine.saturating_add(more);
        }
    }

    /// All failures together.
    pub fn failures(&self) -> u64 {
        self.failed.iter().map(|n| u64::from(*n)).sum()
    }
}

/// The last [`SLOTS`] slots.
#[derive(Default)]
pub struct LatencySeries {
    slots: Mutex<VecDeque<TimeSlot>>,
}

/// How many of the last calls to a node were late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LateShare {
    /// How many calls were late or without an answer.
    pub late: u64,
    /// How many calls there were.
    pub calls: u64,
    /// The period before now that these calls cover.
    pub over: Duration,
}

impl LateShare {
    /// The share in percent.
    pub(crate) fn percent(self) -> u64 {
        (self.late * 100).checked_div(self.calls).unwrap_or(0)
    }
}

/// The last quarter of an hour.
#[derive(Debug, Clone, Default)]
pub struct LatencyWindow {
    /// Exactly [`SLOTS`] slots, the oldest first, the last being the present; `None` if nothing happened.
    pub slots: Vec<Option<TimeSlot>>,
    /// The sum of all slots.
    pub all: TimeSlot,
}

impl LatencySeries {
    /// Records a success.
    pub fn record_success(&self, now: BootTime, took: Duration) {
        self.record_successes(now, &[took]);
    }

    /// Records successes.
    pub fn record_successes(&self, now: BootTime, took: &[Duration]) {
        self.with(now, |slot| {
            for took in took {
                let count = &mut slot.took.counts[bucket(*took)];
                *count = count.saturating_add(1);
            }
        });
    }

    /// Records so many failures.
    pub fn record_failures(&self, now: BootTime, kind: UnreachableKind, failures: usize) {
        let index = UnreachableKind::ALL.iter().position(|k| *k == kind).unwrap_or(0);
        let failures = u32::try_from(failures).unwrap_or(u32::MAX);
        self.with(now, |slot| slot.failed[index] = slot.failed[index].saturating_add(failures));
    }

    fn with(&self, now: BootTime, record: impl FnOnce(&mut TimeSlot)) {
        let (number, mut slots) = (number(now), self.slots.lock());
        // Readings of several threads may arrive in a different order: they are added to the newest slot.
        if slots.back().is_none_or(|slot| slot.number < number) {
            while slots.len() >= SLOTS {
                slots.pop_front();
            }
            slots.push_back(TimeSlot { number, ..TimeSlot::default() });
        }
        if let Some(slot) = slots.back_mut() {
            record(slot);
        }
    }

    /// The calls of the present slot and the one before that took longer than `limit`, or ended without an answer in time.
    pub(crate) fn late_calls(&self, now: BootTime, limit: Duration) -> LateShare {
        let first = number(now).saturating_sub(1);
        let mut recent = TimeSlot::default();
        self.slots.lock().iter().filter(|slot| slot.number >= first).for_each(|slot| recent.add(slot));
        let timeouts =
            UnreachableKind::ALL.iter().zip(recent.failed).filter(|(kind, _)| **kind == UnreachableKind::Timeout);
        let timeouts: u64 = timeouts.map(|(_, count)| u64::from(count)).sum();
        let answered = recent.took.counts.iter().skip(bucket(limit) + 1).map(|count| u64::from(*count)).sum::<u64>();
        let begun = Duration::from_micros(u64::try_from(SLOT.as_micros()).unwrap_or(u64::MAX).saturating_mul(first));
        let over = Duration::from_micros(now.as_micros()).saturating_sub(begun);
        LateShare { late: answered + timeouts, calls: recent.took.total() + recent.failures(), over }
    }

    /// The last quarter of an hour.
    pub fn window(&self, now: BootTime) -> LatencyWindow {
        let last = number(now);
        let first = (last + 1).saturating_sub(SLOTS as u64);
        let mut window = LatencyWindow { slots: vec![None; SLOTS], all: TimeSlot::default() };
        for slot in self.slots.lock().iter().filter(|slot| slot.number >= first) {
            window.all.add(slot);
            let back = usize::try_from(last.saturating_sub(slot.number)).unwrap_or(SLOTS);
            if let Some(index) = (SLOTS - 1).checked_sub(back) {
                window.slots[index] = Some(slot.clone());
            }
        }
        window
    }
}

impl LatencyWindow {
    /// Adds the counts of another slot of the same time.
    fn add(&mut self, other: &Self) {
        self.all.add(&other.all);
        for (mine, more) in self.slots.iter_mut().zip(&other.slots) {
            match (mine, more) {
                (Some(mine), Some(more)) => mine.add(more),
                (mine @ None, Some(more)) => *mine = Some(more.clone()),
                (_, None) => {}
            }
        }
    }
}

/// The kind of a decided quorum round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// An acquire that was granted.
    Granted,
    /// An acquire that was refused, since another holds the resource.
    Refused,
    /// An extend that was decided.
    Extended,
    Released,
}

impl Round {
    pub const ALL: [Self; 4] = [Self::Granted, Self::Refused, Self::Extended, Self::Released];
}

/// A [`LatencySeries`] for each kind of round.
#[derive(Default)]
pub(crate) struct RoundLatencies {
    decided: [LatencySeries; 4],
    /// Requests that failed for want of a quorum: without latencies, since they took as long as the time-outs.
    undecided: LatencySeries,
}

impl RoundLatencies {
    /// Records a decided round.
    pub(crate) fn record(&self, round: Round, now: BootTime, took: Duration) {
        self.decided[round as usize].record_success(now, took);
    }

    /// Records a request that failed for want of a quorum.
    pub(crate) fn record_undecided(&self, now: BootTime) {
        self.undecided.with(now, |slot| slot.failed[0] = slot.failed[0].saturating_add(1));
    }

    /// The last quarter of an hour: all rounds, with failures for want of a quorum, and each kind of decided round.
    pub(crate) fn windows(&self, now: BootTime) -> (LatencyWindow, [(Round, LatencyWindow); 4]) {
        let each = Round::ALL.map(|round| (round, self.decided[round as usize].window(now)));
        let mut all = self.undecided.window(now);
        each.iter().for_each(|(_, window)| all.add(window));
        (all, each)
    }
}

fn number(now: BootTime) -> u64 {
    now.as_micros() / u64::try_from(SLOT.as_micros()).unwrap_or(u64::MAX)
}

/// A [`LatencySeries`] for each node.
pub struct NodeLatencies {
    nodes: RwLock<Vec<(NodeId, Arc<LatencySeries>)>>,
}

impl NodeLatencies {
    /// Series for these nodes, and for nodes that are added.
    pub fn new(nodes: &[NodeId]) -> Self {
        Self { nodes: RwLock::new(nodes.iter().map(|id| (id.clone(), Arc::default())).collect()) }
    }

    /// Records another node from now on; at most [`NODES_KNOWN_MAX`].
    pub fn add(&self, node: &NodeId) {
        let mut nodes = self.nodes.write();
        if nodes.len() < NODES_KNOWN_MAX && !nodes.iter().any(|(id, _)| id == node) {
            nodes.push((node.clone(), Arc::default()));
        }
    }

    /// Records calls to a node that ended in the same way, each with its duration. Cheap, since every request does it.
    pub fn record(&self, node: &NodeId, now: BootTime, took: &[Duration], answer: Result<(), UnreachableKind>) {
        let nodes = self.nodes.read();
        let Some(series) = entry_of(&nodes, node) else { return };
        match answer {
            Ok(()) => series.record_successes(now, took),
            Err(kind) => series.record_failures(now, kind, took.len()),
        }
    }

    /// The last quarter of an hour of each node.
    pub fn windows(&self, now: BootTime) -> Vec<(NodeId, LatencyWindow)> {
        self.nodes.read().iter().map(|(id, series)| (id.clone(), series.window(now))).collect()
    }

    /// The series of one node.
    pub fn of(&self, node: &NodeId) -> Option<Arc<LatencySeries>> {
        entry_of(&self.nodes.read(), node).map(Arc::clone)
    }
}

/// The entry of a node. The caller's name is usually the very text of the list, so that none needs to be compared.
pub(crate) fn entry_of<'a, T>(entries: &'a [(NodeId, T)], node: &NodeId) -> Option<&'a T> {
    let is_same = |(id, _): &&(NodeId, T)| std::ptr::eq(id.as_str(), node.as_str());
    let found = entries.iter().find(is_same).or_else(|| entries.iter().find(|(id, _)| id == node));
    found.map(|(_, entry)| entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> BootTime {
        BootTime::default().plus(Duration::from_secs(seconds))
    }

    const MICROS_MAX: u32 = (1 << 23) - 1;

    proptest! {
        #[test]
        fn every_duration_has_a_bucket_that_contains_it(micros in 0..=MICROS_MAX) {
            let index = bucket(Duration::from_micros(micros.into()));
            prop_assert!(index < BUCKETS);
            let (low, high) = bounds(index);
            prop_assert!((low..high).contains(&f64::from(micros)), "{micros} in {low}..{high}");
        }

        #[test]
        fn a_quantile_is_off_by_a_sixteenth_at_most(mut times in proptest::collection::vec(1u64..8_000_000, 1..200)) {
            let series = LatencySeries::default();
            for micros in &times {
                series.record_success(at(1), Duration::from_micros(*micros));
            }
            times.sort_unstable();
            let all = series.window(at(1)).all.took;
            for (share, index) in [(0.5, (times.len() - 1) / 2), (1.0, times.len() - 1)] {
                let measured = u64::try_from(all.quantile(share).expect("some").as_micros()).expect("small");
                let truth = times[index];
                prop_assert!(measured.abs_diff(truth) <= truth / 16 + 1, "{measured} for {truth}");
            }
        }
    }

    #[test]
    fn the_share_of_late_calls_is_that_of_the_last_half_minute() {
        let (series, ms) = (LatencySeries::default(), Duration::from_millis);
        (0..9).for_each(|_| series.record_success(at(20), ms(300)));
        for took in [1, 40, 300] {
            series.record_success(at(44), ms(took));
        }
        series.record_failures(at(52), UnreachableKind::Timeout, 1);
        series.record_failures(at(52), UnreachableKind::Disconnected, 1);
        let late = series.late_calls(at(52), ms(50));
        assert_eq!(late, LateShare { late: 2, calls: 5, over: Duration::from_secs(22) });
        assert_eq!(
            (late.percent(), series.late_calls(at(90), ms(50)).percent()),
            (40, 0),
            "without calls, none is late"
        );
    }

    #[test]
    fn the_longest_duration_falls_into_the_last_bucket() {
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        assert_eq!(bounds(BUCKETS - 1).1, f64::from(MICROS_MAX + 1));
    }

    #[test]
    fn buckets_follow_each_other_and_have_one_ratio() {
        assert_eq!((bounds(0), bounds(1).0, bucket(Duration::ZERO)), ((0.0, 1.0), 1.0, 0));
        for number in 1..BUCKETS {
            let (low, high) = bounds(number);
            assert!((high / low - 2_f64.powf(0.125)).abs() < 1e-12, "{number}: {low} to {high}");
            assert_eq!(bounds(number - 1).1, low);
        }
        for power in 0..23 {
            assert_eq!(bucket(Duration::from_micros(1 << power)), 1 + 8 * power, "a power of two begins a bucket");
        }
        for micros in (1..100_000).chain((100_000..20_000_000).step_by(997)) {
            let took = Duration::from_micros(micros);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the axis ends below 2^10")]
            let expected = (axis(took) as usize).min(BUCKETS - 1);
            assert_eq!(bucket(took), expected, "{micros}");
        }
    }

    #[test]
    fn a_window_is_the_last_quarter_of_an_hour_and_older_slots_are_dropped() {
        let series = LatencySeries::default();
        for slot in 0..200 {
            series.record_success(at(slot * 15), Duration::from_millis(1));
        }
        assert_eq!(series.slots.lock().len(), SLOTS);
        let window = series.window(at(199 * 15 + 14));
        assert_eq!((window.slots.iter().flatten().count(), window.all.took.total()), (SLOTS, 60));
        let later = series.window(at((199 + 10) * 15));
        assert_eq!(later.slots.iter().flatten().count(), SLOTS - 10);
        assert!(later.slots[SLOTS - 1].is_none() && later.slots[SLOTS - 11].is_some());
        assert!(series.window(at(1_000_000)).all.took.quantile(0.5).is_none());
    }

    #[test]
    fn rounds_are_kept_by_kind_and_summed() {
        let rounds = RoundLatencies::default();
        rounds.record(Round::Granted, at(1), Duration::from_millis(1));
        rounds.record(Round::Refused, at(1), Duration::from_millis(2));
        rounds.record(Round::Refused, at(16), Duration::from_millis(3));
        rounds.record_undecided(at(16));
        let (all, each) = rounds.windows(at(16));
        assert_eq!(
            (all.slots[58].as_ref().map(TimeSlot::failures), all.all.failures()),
            (Some(0), 1),
            "an outage is seen"
        );
        let slots = |window: &LatencyWindow| -> Vec<u64> {
            window.slots.iter().flatten().map(|slot| slot.took.total()).collect()
        };
        assert_eq!((all.all.took.total(), slots(&all)), (3, vec![2, 1]));
        assert_eq!(each.map(|(_, window)| slots(&window)), [vec![1], vec![1, 1], vec![], vec![]]);
    }

    #[test]
    fn failures_are_counted_by_kind_and_unknown_nodes_are_not() {
        let id = |name| NodeId::parse(name).expect("valid");
        let latencies = NodeLatencies::new(&[id("n1")]);
        latencies.record(&id("n1"), at(1), &[Duration::ZERO], Err(UnreachableKind::Timeout));
        latencies.record(&id("n1"), at(2), &[Duration::ZERO; 2], Err(UnreachableKind::Full));
        latencies.record(&id("n2"), at(2), &[Duration::ZERO], Err(UnreachableKind::Full));
        let all = latencies.of(&id("n1")).expect("known").window(at(2)).all;
        assert_eq!((all.failures(), all.failed[0]), (3, 1));
        assert!(latencies.of(&id("n2")).is_none());
    }
}
