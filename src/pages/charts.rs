//! Charts: computes the coordinates that the templates write as SVG. Every chart has its numbers beside it as text.

use std::fmt::Write as _;
use std::time::Duration;

use super::format;
use crate::manager::latency::{BUCKETS, Histogram, LatencyWindow, SLOT, SLOTS, TimeSlot, axis, bounds};

/// Width of the large charts. Units: of the SVG's view box.
pub(crate) const WIDTH: f64 = 960.0;
/// Height of the large charts.
pub(crate) const HEIGHT: f64 = 220.0;
/// Width of a sparkline.
pub(crate) const SPARK_WIDTH: f64 = 240.0;
/// Height of a sparkline.
pub(crate) const SPARK_HEIGHT: f64 = 36.0;

fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

/// A small count as a float.
#[expect(clippy::cast_precision_loss, reason = "counts of a chart are far below 2^52")]
fn real(n: usize) -> f64 {
    n as f64
}

/// A coordinate with at most one decimal.
fn coordinate(x: f64) -> String {
    let text = format!("{x:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// A stepped line: one horizontal piece for each slot with a value, interrupted at slots without one.
fn step_line(values: &[Option<f64>], maximum: f64, width: f64, height: f64) -> String {
    let step = width / real(values.len().max(1));
    let mut path = String::new();
    let mut is_drawing = false;
    for (i, value) in values.iter().enumerate() {
        let Some(value) = value else {
            is_drawing = false;
            continue;
        };
        let y = coordinate(height - 2.0 - (value / maximum.max(1.0)).min(1.0) * (height - 4.0));
        let _ = match is_drawing {
            true => write!(path, "V{y}h{}", coordinate(step)),
            false => write!(path, "M{} {y}h{}", coordinate(real(i) * step), coordinate(step)),
        };
        is_drawing = true;
    }
    path
}

/// Medians and 99th percentiles over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sparkline {
    /// Medians, as a path.
    pub median: String,
    /// 99th percentiles, as a path.
    pub slow: String,
    /// The value at the top, as text; empty if nothing is drawn.
    pub top: String,
}

fn quantiles(window: &LatencyWindow, share: f64) -> Vec<Option<f64>> {
    let of = |slot: &Option<TimeSlot>| slot.as_ref().and_then(|s| s.took.quantile(share)).map(micros);
    window.slots.iter().map(of).collect()
}

/// Draws a sparkline of this size.
pub(crate) fn sparkline(window: &LatencyWindow, width: f64, height: f64) -> Sparkline {
    let (median, slow) = (quantiles(window, 0.5), quantiles(window, 0.99));
    let maximum = slow.iter().flatten().fold(0.0_f64, |a, b| a.max(*b));
    let top = if maximum > 0.0 { format::latency(Duration::from_secs_f64(maximum / 1e6)) } else { String::new() };
    Sparkline {
        median: step_line(&median, maximum, width, height),
        slow: step_line(&slow, maximum, width, height),
        top,
    }
}

/// One time slot of a heat strip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeatCell {
    /// Index, from the left.
    pub x: usize,
    /// 0: no answer; 1: fast; 4: close to the node timeout.
    pub level: u8,
    /// Whether a call failed: shown by a shape.
    pub has_failed: bool,
    /// The cell as text.
    pub title: String,
}

/// Upper bounds of the levels, as fractions of the node timeout.
const LEVELS: [(u32, u8); 3] = [(20, 1), (5, 2), (2, 3)];

/// One cell per time slot, relative to the node timeout.
pub(crate) fn heat(window: &LatencyWindow, node_timeout: Duration) -> Vec<HeatCell> {
    let cell = |(i, slot): (usize, &Option<TimeSlot>)| {
        let slow = slot.as_ref().and_then(|s| s.took.quantile(0.99));
        let failures = slot.as_ref().map_or(0, TimeSlot::failures);
        let level = slow.map_or(0, |took| {
            LEVELS.iter().find(|(divisor, _)| took <= node_timeout / *divisor).map_or(4, |(_, level)| *level)
        });
        let age = SLOT * u32::try_from(SLOTS - 1 - i).unwrap_or(0);
        let when = if age.is_zero() { "now".to_owned() } else { format!("{} ago", format::time(age)) };
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

/// One bar of a histogram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bar {
    pub x: String,
    pub y: String,
    pub width: String,
    pub height: String,
    /// The bar as text.
    pub title: String,
}

/// A tick below the distribution, or a vertical line across it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tick {
    pub x: String,
    pub label: String,
    /// Row of the text, so that neighbouring texts do not overlap.
    pub row: usize,
    /// Whether the text is left of the line.
    pub is_left: bool,
}

/// A distribution of times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Distribution {
    /// From the shortest to the longest time, on a logarithmic scale.
    pub bars: Vec<Bar>,
    /// The scale below the bars.
    pub ticks: Vec<Tick>,
    /// Vertical lines at the quantiles.
    pub quantiles: Vec<Tick>,
}

/// The quantiles that are shown.
pub(crate) const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)];

/// Draws the distribution; `None` if there are no times.
pub(crate) fn distribution(times: &Histogram) -> Option<Distribution> {
    let first = times.counts.iter().position(|n| *n > 0)?;
    let last = times.counts.iter().rposition(|n| *n > 0)?;
    // Space at both sides, so that the scale does not change with every new time. All buckets have the same width on this axis,
    // so heights are densities.
    let (first, last) = (first.saturating_sub(4), (last + 4).max(first + 24).min(BUCKETS - 1));
    let step = WIDTH / real(last - first + 1);
    let maximum = f64::from(times.counts.iter().copied().max().unwrap_or(1).max(1));
    let bar = |i: usize| {
        let count = times.counts[i];
        let height = (f64::from(count) / maximum * (HEIGHT - 48.0)).max(1.5);
        let (low, high) = bounds(i);
        let (low, high) = (Duration::from_secs_f64(low / 1e6), Duration::from_secs_f64(high / 1e6));
        Bar {
            x: coordinate(real(i - first) * step),
            y: coordinate(HEIGHT - height),
            width: coordinate((step - 1.0).max(0.5)),
            height: coordinate(height),
            title: format!("{} to {}: {}", format::latency(low), format::latency(high), format::number(count)),
        }
    };
    let position = |took: Duration| {
        let at = axis(took) - real(first);
        (0.0..real(last + 1 - first)).contains(&at).then_some(at * step)
    };
    let scale = (0..7).flat_map(|power| [1, 2, 5].map(|digit| Duration::from_micros(digit * 10_u64.pow(power))));
    let tick = |at: Duration| {
        let label = format::latency(at).replace(".00", "").replace(".0 s", " s");
        position(at).map(|x| Tick { x: coordinate(x), label, row: 0, is_left: x > WIDTH - 40.0 })
    };
    let quantile = |(row, (name, share)): (usize, &(&str, f64))| {
        let took = times.quantile(*share)?;
        let x = position(took)?;
        let label = format!("{name} {}", format::latency(took));
        Some(Tick { x: coordinate(x), label, row, is_left: x > WIDTH - 110.0 })
    };
    Some(Distribution {
        bars: (first..=last).filter(|i| times.counts[*i] > 0).map(bar).collect(),
        ticks: scale.filter_map(tick).collect(),
        quantiles: QUANTILES.iter().enumerate().filter_map(quantile).collect(),
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
        series.record_failures(now, UnreachableKind::Timeout, 1);
        series.window(now)
    }

    #[test]
    fn a_line_is_interrupted_where_there_are_no_values() {
        let spark = sparkline(&window(), SPARK_WIDTH, SPARK_HEIGHT);
        assert_eq!(spark.median.matches('M').count(), 2, "{}", spark.median);
        assert!(spark.top.ends_with("ms"));
        let empty = empty_sparkline();
        assert!(empty.median.is_empty() && empty.top.is_empty());
    }

    fn empty_sparkline() -> Sparkline {
        sparkline(&LatencySeries::default().window(BootTime::default()), 10.0, 10.0)
    }

    #[test]
    fn a_heat_strip_has_sixty_cells_and_marks_failures() {
        // A fifth of it is above 9.9 ms by more than a quantile may be off.
        let cells = heat(&window(), Duration::from_millis(55));
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
        assert_eq!(drawn.quantiles.len(), 3);
        assert!(drawn.quantiles.windows(2).all(|pair| x(&pair[0]) <= x(&pair[1])));
        assert!(drawn.ticks.windows(2).all(|pair| x(&pair[0]) < x(&pair[1])));
        assert!(drawn.quantiles.iter().chain(&drawn.ticks).all(|t| (0.0..=WIDTH).contains(&x(t))));
        let at = |label: &str| drawn.ticks.iter().find(|tick| tick.label == label).map(x).expect("on the scale");
        // Equal ratios are equal distances.
        assert!((at("1 ms") - at("500 µs") - (at("2 ms") - at("1 ms"))).abs() <= 0.2, "{:?}", drawn.ticks);
        assert!(distribution(&Histogram::default()).is_none());
    }
}
