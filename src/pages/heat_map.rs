//! Heat maps of latency: time from left to right, latency upwards on a logarithmic scale that all maps of a page share, colour by
//! count. A table has the same data as text.

use std::fmt::Write as _;
use std::time::Duration;

use super::format;
use crate::manager::latency::{BUCKETS, LatencyWindow, SLOT, SLOTS, TimeSlot, axis, bucket};

/// Buckets of a histogram in one row of a map: each bucket ends at √2 times its start. The first bucket, for durations below a
/// microsecond, is beside the bottom row.
const BUCKETS_PER_ROW: usize = 4;
/// Rows of the smallest map.
const ROWS_MIN: usize = 12;
/// The number of colours; the highest is the deepest.
const LEVELS: u32 = 4;

/// The latency axis of all maps of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scale {
    /// The bottom row, counted from the row of a histogram's shortest latency.
    first: usize,
    /// How many rows there are.
    pub rows: usize,
    /// Labels, from the top.
    pub ticks: Vec<ScaleTick>,
}

/// A latency on the axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScaleTick {
    /// Distance from the top in percent of the height.
    pub percent: String,
    /// The latency of the tick, with its unit.
    pub label: String,
}

/// A coloured cell of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Slot, from the left.
    pub x: usize,
    /// Row, from the top.
    pub y: usize,
    /// From 1 to [`LEVELS`].
    pub level: u32,
}

/// The latencies of one kind of round, or of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeatMap {
    /// What was measured.
    pub name: String,
    /// Whether these are refused rounds, which have another colour.
    pub is_refused: bool,
    /// The number of rounds or calls.
    pub count: String,
    /// Failures, which have no latency.
    pub failed: String,
    /// Median, 95th and 99th percentile; `-` without data.
    pub quantiles: [String; 3],
    /// Cells with at least one round or call.
    pub cells: Vec<Cell>,
    /// Slots with a failure, from the left.
    pub failures: Vec<usize>,
    /// Medians over time, as a path.
    pub median: String,
    /// 99th percentiles over time, as a path.
    pub slow: String,
}

/// The position on the axis, in rows.
fn height(took: Duration) -> f64 {
    (axis(took).min(real(BUCKETS as u64)) - 1.0).max(0.0) / real(BUCKETS_PER_ROW as u64)
}

/// The row of a bucket.
fn row(bucket: usize) -> usize {
    bucket.saturating_sub(1) / BUCKETS_PER_ROW
}

#[expect(clippy::cast_precision_loss, reason = "counts and coordinates of a chart are far below 2^52")]
fn real(n: u64) -> f64 {
    n as f64
}

impl Scale {
    /// A scale that covers all `windows`, and `mark`.
    pub(crate) fn of<'a>(windows: impl Iterator<Item = &'a LatencyWindow>, mark: Duration) -> Self {
        let used = windows.flat_map(|window| window.all.took.counts.iter().enumerate());
        let marked = row(bucket(mark));
        let (mut first, mut last) = (marked, marked);
        for (bucket, _) in used.filter(|(_, count)| **count > 0) {
            (first, last) = (first.min(row(bucket)), last.max(row(bucket)));
        }
        let rows = (last + 2 - first).max(ROWS_MIN);
        let mut scale = Self { first, rows, ticks: Vec::new() };
        let decades = (0..7).rev().map(|power| Duration::from_micros(10_u64.pow(power)));
        scale.ticks = decades.filter_map(|at| scale.tick(at)).collect();
        scale
    }

    /// A label at this latency, if the scale covers it.
    pub(crate) fn tick(&self, at: Duration) -> Option<ScaleTick> {
        let share = self.height_of(at) / real(self.rows as u64);
        let label = format::latency(at).replace(".00", "").replace(".0 s", " s");
        (0.0..=1.0).contains(&share).then(|| ScaleTick { percent: format!("{:.1}", share * 100.0), label })
    }

    /// Distance from the top, in rows.
    fn height_of(&self, took: Duration) -> f64 {
        real(self.rows as u64) + real(self.first as u64) - height(took)
    }

    /// Draws one series on this scale.
    pub(crate) fn map(&self, name: String, is_refused: bool, window: &LatencyWindow) -> HeatMap {
        let quantile = |share| window.all.took.quantile(share).map_or_else(|| "-".to_owned(), format::latency);
        let has_failed = |(x, slot): (usize, &Option<TimeSlot>)| slot.as_ref().filter(|s| s.failures() > 0).map(|_| x);
        HeatMap {
            name,
            is_refused,
            count: format::number(window.all.took.total()),
            failed: format::number(window.all.failures()),
            quantiles: [0.5, 0.95, 0.99].map(quantile),
            cells: self.cells(window),
            failures: window.slots.iter().enumerate().filter_map(has_failed).collect(),
            median: self.line(window, 0.5),
            slow: self.line(window, 0.99),
        }
    }

    fn cells(&self, window: &LatencyWindow) -> Vec<Cell> {
        let counts: Vec<(usize, usize, u32)> = window
            .slots
            .iter()
            .enumerate()
            .filter_map(|(x, slot)| slot.as_ref().map(|slot| (x, slot)))
            .flat_map(|(x, slot)| {
                let of_row = move |y: usize| {
                    let counts = slot.took.counts.iter().enumerate().filter(|(bucket, _)| row(*bucket) == y);
                    (x, y, counts.map(|(_, count)| *count).sum::<u32>())
                };
                (self.first..self.first + self.rows).map(of_row)
            })
            .filter(|(.., count)| *count > 0)
            .collect();
        let most = counts.iter().map(|(.., count)| *count).max().unwrap_or(1);
        // By powers of the largest count, so that rare slow rounds stay visible beside many fast ones.
        let level = |count: u32| (1 + count.ilog2() * LEVELS / (most.ilog2() + 1)).min(LEVELS);
        let top = self.first + self.rows - 1;
        counts.into_iter().map(|(x, row, count)| Cell { x, y: top.saturating_sub(row), level: level(count) }).collect()
    }

    /// One horizontal piece for each slot with a value.
    fn line(&self, window: &LatencyWindow, share: f64) -> String {
        let mut path = String::new();
        for (x, slot) in window.slots.iter().enumerate() {
            if let Some(took) = slot.as_ref().and_then(|slot| slot.took.quantile(share)) {
                let _ = write!(path, "M{x} {:.2}h1", self.height_of(took));
            }
        }
        path
    }
}

/// The period that a map covers.
pub(crate) fn reach() -> Duration {
    SLOT * u32::try_from(SLOTS).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::latency::LatencySeries;
    use crate::protocol::UnreachableKind;
    use crate::redlock::clock::BootTime;

    #[test]
    fn a_cell_is_where_its_latency_is_on_the_scale_and_rare_ones_are_pale() {
        let (series, now) = (LatencySeries::default(), BootTime::default().plus(SLOT * 70));
        for _ in 0..1_000 {
            series.record_success(now.minus(SLOT * 2), Duration::from_micros(900));
        }
        series.record_success(now, Duration::from_millis(40));
        series.record_failures(now, UnreachableKind::Timeout, 1);
        let window = series.window(now);
        let scale = Scale::of([&window].into_iter(), Duration::from_millis(50));
        let map = scale.map("rounds".into(), false, &window);
        let [fast, slow] = &map.cells[..] else { panic!("{:?}", map.cells) };
        assert_eq!((fast.x, fast.level, slow.x, slow.level), (SLOTS - 3, LEVELS, SLOTS - 1, 1));
        assert!(slow.y < fast.y && fast.y < scale.rows, "{map:?}");
        assert_eq!(
            (map.count.as_str(), map.failed.as_str(), &map.failures[..]),
            ("1\u{202f}001", "1", &[SLOTS - 1][..])
        );
        // Rows of one ratio: two of them are a factor of two, everywhere.
        for micros in [1_u64, 6, 700, 1_000, 48_000] {
            let (one, two) = (Duration::from_micros(micros), Duration::from_micros(2 * micros));
            assert!((scale.height_of(one) - scale.height_of(two) - 2.0).abs() < 1e-9, "{micros} us");
        }
        // Each on the line of its median, within a row.
        for cell in [fast, slow] {
            let piece = map.median.split('M').find(|piece| piece.starts_with(&format!("{} ", cell.x))).expect("drawn");
            let y: f64 = piece.split([' ', 'h']).nth(1).expect("a number").parse().expect("a number");
            assert!((real(cell.y as u64)..=real(cell.y as u64 + 1)).contains(&y), "{piece} for {cell:?}");
        }
        let labels: Vec<_> = scale.ticks.iter().map(|tick| tick.label.as_str()).collect();
        assert_eq!(labels, ["10 ms", "1 ms"]);
        let mark = scale.tick(Duration::from_millis(50)).expect("on the scale");
        assert!(mark.percent.parse::<f64>().expect("a number") < scale.ticks[0].percent.parse().expect("a number"));
    }

    #[test]
    fn without_a_round_the_map_is_empty_and_says_so() {
        let window = LatencySeries::default().window(BootTime::default());
        let scale = Scale::of([&window].into_iter(), Duration::from_millis(50));
        let map = scale.map("rounds".into(), false, &window);
        assert!(map.cells.is_empty() && map.median.is_empty() && map.quantiles.iter().all(|text| text == "-"));
        assert_eq!(scale.rows, ROWS_MIN);
    }
}
