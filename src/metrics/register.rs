//! Creates metrics and registers them with the common prefix, so that a metric's name, help and labels are one line at its
//! definition.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry,
};

/// Prefix of all names.
const PREFIX: &str = "redlockd_";

fn prefixed(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Registers a metric. It can fail only for a repeated or malformed name, and names are constants.
fn add<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("metric names and labels are constants");
    registry.register(Box::new(metric.clone())).expect("metric names are unique");
    metric
}

/// A gauge with whole numbers.
pub(super) fn gauge(registry: &Registry, metric_name: &str, help: &str) -> IntGauge {
    add(registry, IntGauge::new(prefixed(metric_name), help))
}

/// As [`gauge`], with labels.
pub(super) fn gauges(registry: &Registry, metric_name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    add(registry, IntGaugeVec::new(Opts::new(prefixed(metric_name), help), labels))
}

/// A gauge in base units, such as seconds.
pub(super) fn quantity(registry: &Registry, metric_name: &str, help: &str) -> Gauge {
    add(registry, Gauge::new(prefixed(metric_name), help))
}

/// As [`quantity`], with labels.
pub(super) fn quantities(registry: &Registry, metric_name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    add(registry, GaugeVec::new(Opts::new(prefixed(metric_name), help), labels))
}

pub(super) fn counter(registry: &Registry, metric_name: &str, help: &str) -> IntCounter {
    add(registry, IntCounter::new(prefixed(metric_name), help))
}

/// A counter in base units, such as seconds.
pub(super) fn sum(registry: &Registry, metric_name: &str, help: &str) -> Counter {
    add(registry, Counter::new(prefixed(metric_name), help))
}

/// A counter with labels.
pub(super) fn counters(registry: &Registry, metric_name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(prefixed(metric_name), help), labels))
}

pub(super) fn histogram(registry: &Registry, metric_name: &str, help: &str, buckets: &[f64]) -> Histogram {
    add(registry, Histogram::with_opts(HistogramOpts::new(prefixed(metric_name), help).buckets(buckets.to_vec())))
}

/// A histogram with labels.
pub(super) fn histograms(
    registry: &Registry,
    metric_name: &str,
    help: &str,
    buckets: &[f64],
    labels: &[&str],
) -> HistogramVec {
    add(registry, HistogramVec::new(HistogramOpts::new(prefixed(metric_name), help).buckets(buckets.to_vec()), labels))
}

/// Raises a counter to a total that is kept elsewhere. One caller at a time.
pub(super) fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// Histograms by one label with known values. Each has a line per bucket in a scrape, so its first event creates it. The
/// histogram of the first value always exists, so that the family does.
pub(super) struct LazyHistograms {
    family: HistogramVec,
    handles: Vec<(&'static str, OnceLock<Histogram>)>,
}

impl LazyHistograms {
    /// Histograms for these values.
    pub(super) fn new(family: HistogramVec, values: &[&'static str]) -> Self {
        values.iter().take(1).for_each(|value| drop(family.with_label_values(&[value])));
        Self { family, handles: values.iter().map(|value| (*value, OnceLock::new())).collect() }
    }

    /// Records a duration. An unknown value is ignored.
    pub(super) fn observe(&self, value: &str, took: Duration) {
        if let Some((value, handle)) = self.handles.iter().find(|(known, _)| *known == value) {
            handle.get_or_init(|| self.family.with_label_values(&[value])).observe(took.as_secs_f64());
        }
    }
}
