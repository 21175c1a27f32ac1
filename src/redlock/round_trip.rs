//! How long nodes take to answer, and how long a round waits for them: the measured time of the fastest quorum, with
//! an allowance. Nodes in other regions need no setting, and a round does not wait for one slow node.
//!
//! Source: RFC 6298 (a smoothed round trip and four times its deviation).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::types::Ttl;

/// Rounds do not wait for a node that takes more than this many times as long as the slowest node of the fastest quorum.
const FARTHEST: u32 = 4;
/// A round of a request with a TTL waits at most for this part of the TTL, or for the setting `node_timeout` if that is longer.
const PARTS_OF_TTL: u32 = 4;

/// A node's round trip, as its probes measured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    smoothed: Duration,
    deviation: Duration,
}

impl RoundTrip {
    /// The round trip after the first answer.
    pub fn first(took: Duration) -> Self {
        Self { smoothed: took, deviation: took / 2 }
    }

    /// The round trip of a node whose answers all take the same time.
    pub fn steady(took: Duration) -> Self {
        Self { smoothed: took, deviation: Duration::ZERO }
    }

    /// The round trip after one more answer.
    #[must_use]
    pub fn and(self, took: Duration) -> Self {
        Self {
            smoothed: (self.smoothed * 7 + took) / 8,
            deviation: (self.deviation * 3 + self.smoothed.abs_diff(took)) / 4,
        }
    }

    /// The average duration of an answer.
    pub fn smoothed(self) -> Duration {
        self.smoothed
    }

    /// A duration that nearly every answer stays below.
    pub fn longest(self) -> Duration {
        self.smoothed.saturating_add(self.deviation * 4)
    }
}

/// How long rounds wait for an answer.
#[derive(Debug)]
pub(crate) struct AnswerTimeout {
    least: Duration,
    most_us: AtomicU64,
    measured_us: AtomicU64,
}

impl AnswerTimeout {
    /// `least`: the setting `node_timeout`. The timeout is at most half of the guard: nodes refuse requests that are
    /// older than the guard, so a request that they answer within this time is not refused for its age.
    pub(crate) fn new(least: Duration, guard: Duration) -> Self {
        let timeout = Self { least, most_us: AtomicU64::new(0), measured_us: AtomicU64::new(0) };
        timeout.limit(guard);
        timeout
    }

    /// Follows another guard.
    pub(crate) fn limit(&self, guard: Duration) {
        self.most_us.store(micros((guard / 2).max(self.least)), Ordering::Relaxed);
    }

    /// The timeout of a request without a TTL.
    pub(crate) fn present(&self) -> Duration {
        let load = |us: &AtomicU64| Duration::from_micros(us.load(Ordering::Relaxed));
        load(&self.measured_us).min(load(&self.most_us)).max(self.least)
    }

    /// The timeout of a request with this TTL.
    pub(crate) fn for_ttl(&self, ttl: Option<Ttl>) -> Duration {
        let part = ttl.map_or(Duration::MAX, |ttl| ttl.as_duration() / PARTS_OF_TTL);
        self.present().min(part.max(self.least))
    }

    /// Follows the round trips of the nodes that answer. If they are not a quorum, nothing changes: no round succeeds.
    pub(crate) fn follow(&self, round_trips: &[RoundTrip], quorum: usize) {
        let mut longest: Vec<Duration> = round_trips.iter().map(|trip| trip.longest()).collect();
        longest.sort_unstable();
        let Some(enough) = quorum.checked_sub(1).and_then(|last| longest.get(last)) else { return };
        let far = enough.saturating_mul(FARTHEST);
        let needed = longest.iter().copied().filter(|took| *took <= far).max().unwrap_or(*enough);
        self.measured_us.store(micros(needed), Ordering::Relaxed);
    }
}

fn micros(period: Duration) -> u64 {
    u64::try_from(period.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn steady(took: u64) -> RoundTrip {
        (0..60).fold(RoundTrip::first(ms(took)), |trip, _| trip.and(ms(took)))
    }

    fn timeout(trips: &[RoundTrip], quorum: usize) -> AnswerTimeout {
        let timeout = AnswerTimeout::new(ms(50), ms(1_000));
        timeout.follow(trips, quorum);
        timeout
    }

    fn ttl(n: u64) -> Option<Ttl> {
        Some(Ttl::from_ms(n).expect("in range"))
    }

    #[test]
    fn nodes_nearby_keep_the_setting_and_nodes_in_three_regions_are_waited_for() {
        assert_eq!(timeout(&[steady(1), steady(1), steady(2)], 2).present(), ms(50));
        let regions = timeout(&[steady(30), steady(80), steady(150)], 2).present();
        assert!((ms(150)..ms(160)).contains(&regions), "{regions:?}");
        // From the first probe on.
        let first = [30, 80, 150].map(|took| RoundTrip::first(ms(took)));
        assert!(timeout(&first, 2).present() > ms(150));
    }

    #[test]
    fn one_slow_node_is_not_waited_for_and_without_a_quorum_nothing_changes() {
        assert_eq!(timeout(&[steady(1), steady(2), steady(400)], 2).present(), ms(50));
        let timeout = timeout(&[steady(100), steady(100)], 2);
        let before = timeout.present();
        timeout.follow(&[steady(1)], 2);
        assert_eq!(timeout.present(), before);
    }

    #[test]
    fn no_round_waits_for_more_than_a_quarter_of_the_ttl_or_half_of_the_guard() {
        let far = timeout(&[steady(300), steady(300), steady(300)], 2);
        assert!(far.present() >= ms(300) && far.for_ttl(ttl(60_000)) == far.present());
        assert_eq!((far.for_ttl(ttl(800)), far.for_ttl(ttl(100))), (ms(200), ms(50)));
        assert_eq!(timeout(&[steady(900), steady(900)], 2).present(), ms(500), "half of the guard");
    }

    #[test]
    fn a_node_that_became_slower_is_followed_within_seconds() {
        let slower = (0..3).fold(steady(30), |trip, _| trip.and(ms(60)));
        assert!(slower.longest() > ms(60) && slower.smoothed() < ms(60), "{slower:?}");
    }

    proptest! {
        #[test]
        fn the_timeout_stays_within_its_bounds(trips in proptest::collection::vec((0u64..5_000, 0u64..5_000), 0..7), of_ttl in 10u64..100_000) {
            let trips: Vec<RoundTrip> = trips.into_iter().map(|(a, b)| RoundTrip::first(ms(a)).and(ms(b))).collect();
            let timeout = timeout(&trips, trips.len() / 2 + 1);
            prop_assert!(timeout.present() >= ms(50) && timeout.present() <= ms(500));
            prop_assert!(timeout.for_ttl(ttl(of_ttl)) <= ms(of_ttl / 4 + 1).max(ms(50)));
        }
    }
}
