//! Results of runs, and their medians, percentiles and ranges.

use std::time::Duration;

/// Cores busy with something else, beyond which a machine is not quiet.
const OTHER_CORES_MAX: f64 = 0.25;

/// Cycles of one subject, with so many at once.
#[derive(Debug, Default, Clone)]
pub struct Run {
    /// Of each cycle, sorted.
    took_us: Vec<f64>,
    /// How long it lasted.
    pub lasted: Duration,
    /// Cycles that failed.
    pub errors: u64,
    /// The longest single request; of what has no requests, the longest cycle.
    pub longest: Duration,
    /// Processor's time per cycle.
    pub cpu: Cpu,
    /// Cores that were busy with anything else meanwhile; negative by what the counts differ.
    pub other_cores: f64,
}

/// Processor's time per cycle, microseconds, by who spent it.
#[derive(Debug, Default, Clone, Copy)]
pub struct Cpu {
    /// The subject's own process; 0 where it has none of its own.
    pub subject: f64,
    /// All nodes together.
    pub nodes: f64,
    /// This process: the load, and whatever runs in it.
    pub load: f64,
}

impl Cpu {
    /// Of all parties.
    pub fn sum(&self) -> f64 {
        self.subject + self.nodes + self.load
    }
}

impl Run {
    /// Of cycles that took so long.
    pub fn new(took: Vec<Duration>, lasted: Duration, errors: u64) -> Self {
        let longest = took.iter().max().copied().unwrap_or_default();
        let mut took_us: Vec<f64> = took.iter().map(|t| t.as_secs_f64() * 1e6).collect();
        took_us.sort_by(f64::total_cmp);
        Self { took_us, lasted, errors, longest, cpu: Cpu::default(), other_cores: 0.0 }
    }

    /// Cycles.
    pub fn cycles(&self) -> usize {
        self.took_us.len()
    }

    /// Cycles per second.
    pub fn rate(&self) -> f64 {
        self.took_us.len() as f64 / self.lasted.as_secs_f64()
    }

    /// Microseconds within which that part of the cycles was done.
    pub fn percentile(&self, part: f64) -> f64 {
        percentile(&self.took_us, part)
    }
}

/// The value within which that part of them lies. They are sorted.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    sorted[((last as f64) * part).round() as usize]
}

/// Prints how much of the machine was others' meanwhile: ratios of runs that others disturbed are worth
/// little.
pub fn print_other_load<'a>(runs: impl Iterator<Item = &'a Run>) {
    let cores = Spread::of(runs.map(|run| run.other_cores));
    let advice = if cores.median > OTHER_CORES_MAX { ": too many, measure again on a quiet machine" } else { "" };
    println!("\nCores that anything else kept busy during these runs: {}{advice}.", cores.text(2));
}

/// One figure of several rounds.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// The middle one; of an even number the mean of the two.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// Of these; of none, not a number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        let count = values.len();
        let median = if count == 0 { f64::NAN } else { (at((count - 1) / 2) + at(count / 2)) / 2.0 };
        Self { median, least: at(0), most: at(count.saturating_sub(1)) }
    }

    /// The median and the range, with so many decimals.
    pub fn text(&self, decimals: usize) -> String {
        let Self { median, least, most } = self;
        format!("{median:.decimals$} ({least:.decimals$} to {most:.decimals$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        let spread = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!((spread.least, spread.median, spread.most), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
        assert!(Spread::of([]).median.is_nan());
        let run = Run::new((1..=100).map(Duration::from_micros).collect(), Duration::from_secs(2), 0);
        assert_eq!((run.rate(), run.percentile(0.0), run.percentile(1.0)), (50.0, 1.0, 100.0));
        assert!((run.percentile(0.5) - 51.0).abs() < 1.1 && run.longest == Duration::from_micros(100));
    }
}
