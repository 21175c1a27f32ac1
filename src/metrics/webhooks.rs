//! Metrics of call-backs and hooks.

use std::collections::HashMap;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge, Registry};

use super::register::{counter, counters, gauge, histogram, raise};

/// The purpose of a message.
pub(crate) const KINDS: [&str; 3] = ["callback", "hook", "test"];
/// The outcome of a try; `gave-up`: of all tries of a message.
pub(crate) const OUTCOMES: [&str; 5] = ["accepted", "again", "gone", "blocked", "gave-up"];
/// Seconds, up to the maximum duration of a try.
const BUCKETS: [f64; 6] = [0.05, 0.2, 0.5, 1.0, 5.0, 10.0];

/// The values that a scrape reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct WebhookTotals {
    /// Messages to hooks and call-backs that wait or are being sent.
    pub queued: usize,
    /// Hooks that are off.
    pub off: usize,
    /// Messages to hooks that were dropped since the start.
    pub dropped: u64,
}

pub(super) struct WebhookMetrics {
    deliveries: HashMap<(&'static str, &'static str), IntCounter>,
    duration: Histogram,
    queue: IntGauge,
    off: IntGauge,
    dropped: IntCounter,
}

impl WebhookMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let help =
            "Tries to send call-backs, messages of hooks and tests, by outcome; gave-up: a message after its last try.";
        let family = counters(r, "webhook_deliveries_total", help, &["kind", "outcome"]);
        let pairs = KINDS.iter().flat_map(|kind| OUTCOMES.map(|outcome| (*kind, outcome)));
        let deliveries = pairs.map(|(kind, outcome)| ((kind, outcome), family.with_label_values(&[kind, outcome])));
        Self {
            deliveries: deliveries.collect(),
            duration: histogram(r, "webhook_delivery_seconds", "How long tries took to their answer.", &BUCKETS),
            queue: gauge(r, "webhook_queue", "Messages of hooks and call-backs that wait for a try or are under way."),
            off: gauge(r, "webhook_hooks_off", "Hooks that are switched off since their receiver failed or is gone."),
            dropped: counter(r, "webhook_dropped_total", "Messages of hooks that were dropped: off, or too many."),
        }
    }

    /// Counts a try. An unknown kind or outcome is ignored.
    pub(super) fn tried(&self, kind: &str, outcome: &str, took: Option<Duration>) {
        let counter = self.deliveries.iter().find(|((k, o), _)| *k == kind && *o == outcome);
        if let Some((_, counter)) = counter {
            counter.inc();
        }
        if let Some(took) = took {
            self.duration.observe(took.as_secs_f64());
        }
    }

    pub(super) fn set(&self, now: WebhookTotals) {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.queue.set(count(now.queued));
        self.off.set(count(now.off));
        raise(&self.dropped, now.dropped);
    }
}
