//! What one run measured. Knows nothing of what was run.

use std::fmt;
use std::time::Duration;

/// Cycles of one subject, with so many at once.
#[derive(Debug, Default, Clone)]
pub struct Run {
    /// Of each cycle, sorted.
    took_us: Vec<f64>,
    /// How long it lasted.
    pub lasted: Duration,
    /// Cycles that failed.
    pub errors: u64,
    /// CPU time of the subject's own process per cycle, microseconds; 0 where it has none of its own.
    pub cpu_us: f64,
}

impl Run {
    /// Of cycles that took so long.
    pub fn new(took: Vec<Duration>, lasted: Duration, errors: u64) -> Self {
        let mut took_us: Vec<f64> = took.iter().map(|t| t.as_secs_f64() * 1e6).collect();
        took_us.sort_by(f64::total_cmp);
        Self { took_us, lasted, errors, cpu_us: 0.0 }
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
        let Some(last) = self.took_us.len().checked_sub(1) else { return f64::NAN };
        self.took_us[((last as f64) * part).round() as usize]
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.percentile(0.5), self.percentile(0.99));
        write!(f, "{:.0} cycles/s, p50 {p50:.0} µs, p99 {p99:.0} µs, {} errors", self.rate(), self.errors)
    }
}

/// The middle one; of an even number the larger of the two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
