//! Drawings: numbers become coordinates here, and the templates write them as SVG, without a script
//! or a style of their own. Each drawing stands beside the same numbers in words. Knows no page.

use std::fmt::Write as _;
use std::time::Duration;

use super::format;
use crate::manager::latency::{BUCKETS, Histogram, LatencyWindow, SLOT, SLOTS, TimeSlot, bounds};

/// Width and height of the large drawings. Units: of the drawing.
pub const WIDTH: f64 = 960.0;
/// See [`WIDTH`].
pub const HEIGHT: f64 = 220.0;
/// Size of a sparkline.
pub const SPARK_WIDTH: f64 = 240.0;
/// See [`SPARK_WIDTH`].
pub const SPARK_HEIGHT: f64 = 36.0;

fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

/// Small counts as fractions: nothing here comes near the end of what they hold exactly.
#[expect(clippy::cast_precision_loss, reason = "counts of a drawing")]
fn real(n: usize) -> f64 {
    n as f64
}

/// A number for SVG, to a tenth.
fn at(x: f64) -> String {
    let text = format!("{x:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// A line in steps, one for each slot that has something, broken where they have not: it says no more
/// than is known, and a single slot is seen too.
fn line(values: &[Option<f64>], most: f64, width: f64, height: f64) -> String {
    let step = width / real(values.len().max(1));
    let mut path = String::new();
    let mut is_down = false;
    for (i, value) in values.iter().enumerate() {
        let Some(value) = value else {
            is_down = false;
            continue;
        };
        let y = at(height - 2.0 - (value / most.max(1.0)).min(1.0) * (height - 4.0));
        let _ = match is_down {
            true => write!(path, "V{y}h{}", at(step)),
            false => write!(path, "M{} {y}h{}", at(real(i) * step), at(step)),
        };
        is_down = true;
    }
    path
}

/// A small line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sparkline {
    /// Medians, as a path.
    pub median: String,
    /// 99th percentiles, as a path.
    pub slow: String,
    /// The top of the drawing, in words; empty where nothing is drawn.
    pub top: String,
}

fn quantiles(window: &LatencyWindow, share: f64) -> Vec<Option<f64>> {
    let of = |slot: &Option<TimeSlot>| slot.as_ref().and_then(|s| s.took.quantile(share)).map(micros);
    window.slots.iter().map(of).collect()
}

/// Medians and 99th percentiles over time, in a box of this size.
pub fn sparkline(window: &LatencyWindow, width: f64, height: f64) -> Sparkline {
    let (median, slow) = (quantiles(window, 0.5), quantiles(window, 0.99));
    let most = slow.iter().flatten().fold(0.0_f64, |a, b| a.max(*b));
    let top = if most > 0.0 { format::latency(Duration::from_secs_f64(most / 1e6)) } else { String::new() };
    Sparkline { median: line(&median, most, width, height), slow: line(&slow, most, width, height), top }
}

/// A quarter of a minute in a heat strip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeatCell {
    /// Where it begins.
    pub x: usize,
    /// 0 nothing, 1 fast to 4 as slow as the node may be.
    pub level: u8,
    /// Something failed: marked by a shape.
    pub has_failed: bool,
    /// In words.
    pub title: String,
}

/// Bounds of the levels, as parts of the time that a node may take.
const LEVELS: [(u32, u8); 3] = [(20, 1), (5, 2), (2, 3)];

/// One cell per slot, judged against the time that a node may take.
pub fn heat(window: &LatencyWindow, node_timeout: Duration) -> Vec<HeatCell> {
    let cell = |(i, slot): (usize, &Option<TimeSlot>)| {
        let slow = slot.as_ref().and_then(|s| s.took.quantile(0.99));
        let failures = slot.as_ref().map_or(0, TimeSlot::failures);
        let level = slow.map_or(0, |took| {
            LEVELS.iter().find(|(part, _)| took <= node_timeout / *part).map_or(4, |(_, level)| *level)
        });
        let back = SLOT * u32::try_from(SLOTS - 1 - i).unwrap_or(0);
        let when = if back.is_zero() { "now".to_owned() } else { format!("{} ago", format::time(back)) };
        let mut title = match slow {
            Some(took) => format!("{when}: p99 {}", format::latency(took)),
            None => format!("{when}: no answer"),
        };
        if failures > 0 {
            let _ = write!(title, ", {} failed", format::number(failures));
        }
        HeatCell { x: i, level, has_failed: failures > 0, title }
    };
    window.slots.iter().enumerate().map(cell).collect()
}

/// One bar of a distribution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    /// Left edge.
    pub x: String,
    /// Upper edge.
    pub y: String,
    /// Width.
    pub width: String,
    /// Height.
    pub height: String,
    /// In words.
    pub title: String,
}

/// A line across the distribution, or a tick below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tick {
    /// Where.
    pub x: String,
    /// What it says.
    pub label: String,
    /// The row in which it is written, so that neighbours do not cover each other.
    pub row: usize,
    /// It is written to the left of its line.
    pub is_left: bool,
}

/// A distribution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// From the shortest to the longest time, on a logarithmic scale.
    pub bars: Vec<Bar>,
    /// Below it.
    pub ticks: Vec<Tick>,
    /// Quantiles.
    pub marks: Vec<Tick>,
}

/// The quantiles that are named.
pub const SHARES: [(&str, f64); 3] = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)];

/// The distribution of times; `None` where there is none.
pub fn distribution(all: &Histogram) -> Option<Distribution> {
    let first = all.counts.iter().position(|n| *n > 0)?;
    let last = all.counts.iter().rposition(|n| *n > 0)?;
    // Some room at both sides, and a scale that does not jump with every single time.
    let (first, last) = (first.saturating_sub(4), (last + 4).max(first + 24).min(BUCKETS - 1));
    let step = WIDTH / real(last - first + 1);
    let most = f64::from(all.counts.iter().copied().max().unwrap_or(1).max(1));
    let bar = |i: usize| {
        let count = all.counts[i];
        let height = (f64::from(count) / most * (HEIGHT - 48.0)).max(1.5);
        let (low, high) = bounds(i);
        let (low, high) = (Duration::from_micros(low), Duration::from_micros(high));
        Bar {
            x: at(real(i - first) * step),
            y: at(HEIGHT - height),
            width: at((step - 1.0).max(0.5)),
            height: at(height),
            title: format!("{} to {}: {}", format::latency(low), format::latency(high), format::number(count)),
        }
    };
    let place = |us: u64| {
        let i = (first..=last).find(|i| bounds(*i).1 > us)?;
        let (low, high) = bounds(i);
        let part = real(usize::try_from(us.saturating_sub(low)).ok()?) / real(usize::try_from(high - low).ok()?);
        (us >= bounds(first).0).then_some((real(i - first) + part) * step)
    };
    let decades = (0..7).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
    let tick = |us: u64| {
        let label = format::latency(Duration::from_micros(us)).replace(".00", "").replace(".0 s", " s");
        place(us).map(|x| Tick { x: at(x), label, row: 0, is_left: x > WIDTH - 40.0 })
    };
    let mark = |(row, (name, share)): (usize, &(&str, f64))| {
        let took = all.quantile(*share)?;
        let x = place(u64::try_from(took.as_micros()).ok()?)?;
        let label = format!("{name} {}", format::latency(took));
        Some(Tick { x: at(x), label, row, is_left: x > WIDTH - 110.0 })
    };
    Some(Distribution {
        bars: (first..=last).filter(|i| all.counts[*i] > 0).map(bar).collect(),
        ticks: decades.filter_map(tick).collect(),
        marks: SHARES.iter().enumerate().filter_map(mark).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::latency::LatencySeries;
    use crate::protocol::UnreachableKind;
    use crate::redlock::clock::BootTime;

    fn window() -> LatencyWindow {
        let (series, now) = (LatencySeries::default(), BootTime::default().plus(SLOT * 70));
        for i in 1..=100 {
            series.record_success(now.minus(SLOT * 2), Duration::from_micros(i * 100));
        }
        series.record_success(now, Duration::from_millis(3));
        series.record_failure(now, UnreachableKind::Timeout);
        series.window(now)
    }

    #[test]
    fn a_line_is_broken_where_nothing_happened() {
        let spark = sparkline(&window(), SPARK_WIDTH, SPARK_HEIGHT);
        assert_eq!(spark.median.matches('M').count(), 2, "{}", spark.median);
        assert!(spark.top.ends_with("ms"));
        let nothing = spark_of_nothing();
        assert!(nothing.median.is_empty() && nothing.top.is_empty());
    }

    fn spark_of_nothing() -> Sparkline {
        sparkline(&LatencySeries::default().window(BootTime::default()), 10.0, 10.0)
    }

    #[test]
    fn a_heat_strip_has_sixty_cells_and_marks_failures() {
        let cells = heat(&window(), Duration::from_millis(50));
        assert_eq!(cells.len(), SLOTS);
        let now = &cells[SLOTS - 1];
        assert!(now.has_failed && now.title.starts_with("now: p99 ") && now.title.ends_with("1 failed"), "{now:?}");
        assert_eq!((cells[0].level, now.level, cells[SLOTS - 3].level), (0, 2, 2));
        assert_eq!(heat(&window(), Duration::from_millis(4))[SLOTS - 1].level, 4);
    }

    #[test]
    fn a_distribution_has_its_quantiles_in_order_and_within_the_drawing() {
        let drawn = distribution(&window().all.took).expect("some");
        let x = |tick: &Tick| tick.x.parse::<f64>().expect("a number");
        assert_eq!(drawn.marks.len(), 3);
        assert!(drawn.marks.windows(2).all(|pair| x(&pair[0]) <= x(&pair[1])));
        assert!(drawn.ticks.windows(2).all(|pair| x(&pair[0]) < x(&pair[1])));
        assert!(drawn.marks.iter().chain(&drawn.ticks).all(|t| (0.0..=WIDTH).contains(&x(t))));
        assert!(drawn.ticks.iter().any(|t| t.label == "1 ms"), "{:?}", drawn.ticks);
        assert!(distribution(&Histogram::default()).is_none());
    }
}
