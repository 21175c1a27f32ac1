//! Makes metrics and registers them under the house's prefix. Apart from those who count, so that
//! name, help and labels of a family stand in one line there. Knows no family.

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry,
};

/// What all our names begin with.
pub const PREFIX: &str = "redlockd_";

fn name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Registers what was made with constant names: it can fail for a repeated or malformed name only.
fn add<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("metric names and labels are constants");
    registry.register(Box::new(metric.clone())).expect("metric names are unique");
    metric
}

/// A whole number that comes and goes.
pub fn gauge(registry: &Registry, of: &str, help: &str) -> IntGauge {
    add(registry, IntGauge::new(name(of), help))
}

/// The same with labels.
pub fn gauges(registry: &Registry, of: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    add(registry, IntGaugeVec::new(Opts::new(name(of), help), labels))
}

/// A quantity that comes and goes, in base units.
pub fn quantity(registry: &Registry, of: &str, help: &str) -> Gauge {
    add(registry, Gauge::new(name(of), help))
}

/// The same with labels.
pub fn quantities(registry: &Registry, of: &str, help: &str, labels: &[&str]) -> GaugeVec {
    add(registry, GaugeVec::new(Opts::new(name(of), help), labels))
}

/// What only rises.
pub fn counter(registry: &Registry, of: &str, help: &str) -> IntCounter {
    add(registry, IntCounter::new(name(of), help))
}

/// The same in base units that are no whole numbers.
pub fn sum(registry: &Registry, of: &str, help: &str) -> Counter {
    add(registry, Counter::new(name(of), help))
}

/// What only rises, with labels.
pub fn counters(registry: &Registry, of: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(name(of), help), labels))
}

/// A distribution.
pub fn histogram(registry: &Registry, of: &str, help: &str, buckets: &[f64]) -> Histogram {
    add(registry, Histogram::with_opts(HistogramOpts::new(name(of), help).buckets(buckets.to_vec())))
}

/// The same with labels.
pub fn histograms(registry: &Registry, of: &str, help: &str, buckets: &[f64], labels: &[&str]) -> HistogramVec {
    add(registry, HistogramVec::new(HistogramOpts::new(name(of), help).buckets(buckets.to_vec()), labels))
}

/// Brings a counter up to a total that is kept elsewhere. One caller at a time.
pub fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
