//! Requests per second of a principal: a token bucket, stored as one instant (the generic cell rate algorithm). Renewals and
//! releases have their own bucket, so that no other request costs a holder its lease.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::redlock::clock::BootTime;

/// Size of a burst after a pause, in seconds of the average rate.
pub(crate) const BURST_SECONDS: u64 = 2;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Renewals and releases per second for each lease that a principal may have. A lease of the shortest default TTL (100 ms) is
/// renewed every 33 ms, so a holder that renews at a third of its TTL never reaches this.
const HOLDER_REQUESTS_PER_LEASE: u32 = 40;

/// The class under which a request is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestClass {
    /// A renewal or a release: without it a holder loses its lease, or others wait in vain.
    Holder,
    /// All other requests.
    Other,
}

/// A request that exceeds its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateExceeded {
    /// Requests of this class per second.
    pub(crate) per_second: u32,
    /// Time until the next request is allowed.
    pub(crate) wait: Duration,
}

/// The buckets of one principal.
#[derive(Debug, Default)]
pub(crate) struct RateLimits {
    holder: TokenBucket,
    other: TokenBucket,
}

impl RateLimits {
    /// Counts one request; `leases` is the maximum number of leases of the principal.
    ///
    /// Errors: [`RateExceeded`]; the request is then not counted.
    pub(crate) fn count(
        &self,
        class: RequestClass,
        per_second: u32,
        leases: usize,
        now: BootTime,
    ) -> Result<(), RateExceeded> {
        let (bucket, per_second) = match class {
            RequestClass::Other => (&self.other, per_second),
            RequestClass::Holder => {
                let leases = u32::try_from(leases).unwrap_or(u32::MAX);
                (&self.holder, per_second.saturating_add(leases.saturating_mul(HOLDER_REQUESTS_PER_LEASE)))
            }
        };
        bucket.take(per_second, now).map_err(|wait| RateExceeded { per_second, wait })
    }
}

/// One bucket. `take` may be called concurrently.
#[derive(Debug, Default)]
pub(crate) struct TokenBucket {
    /// When the bucket will be full again. Units: nanoseconds of the boot clock.
    full_at: AtomicU64,
}

impl TokenBucket {
    /// Takes one token; `per_second` are added each second, up to [`BURST_SECONDS`] times that.
    ///
    /// Errors: the time until a token is available.
    pub(crate) fn take(&self, per_second: u32, now: BootTime) -> Result<(), Duration> {
        let price = NANOS_PER_SECOND / u64::from(per_second.max(1));
        let depth = BURST_SECONDS * NANOS_PER_SECOND;
        let now = u64::try_from(now.since(BootTime::default()).as_nanos()).unwrap_or(u64::MAX);
        let mut missing = 0;
        let taken = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
            let after = full_at.max(now).saturating_add(price);
            missing = after.saturating_sub(now.saturating_add(depth));
            (missing == 0).then_some(after)
        });
        taken.map(drop).map_err(|_| Duration::from_nanos(missing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> BootTime {
        BootTime::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_burst_is_followed_by_the_average_rate_and_the_returned_wait_is_exact() {
        let bucket = TokenBucket::default();
        let burst = (0..).take_while(|_| bucket.take(10, at(5_000)).is_ok()).count();
        assert_eq!(burst, 20);
        let wait = bucket.take(10, at(5_000)).expect_err("empty");
        assert_eq!(wait, Duration::from_millis(100));
        assert!(bucket.take(10, at(5_099)).is_err());
        assert_eq!(bucket.take(10, at(5_100)), Ok(()));
        assert!(bucket.take(10, at(5_100)).is_err());
    }

    /// M3: a loop of other requests cannot use up what renewals and releases need.
    #[test]
    fn m3_a_holder_can_renew_each_of_its_leases_whatever_else_is_sent() {
        let limits = RateLimits::default();
        let refused = (0..100).find_map(|_| limits.count(RequestClass::Other, 5, 3, at(1)).err()).expect("refused");
        assert_eq!(refused.per_second, 5);
        for ms in (1..10_000).step_by(33) {
            (0..3).for_each(|_| assert_eq!(limits.count(RequestClass::Holder, 5, 3, at(ms)), Ok(())));
        }
        let flood = (0..1_000).find_map(|_| limits.count(RequestClass::Holder, 5, 3, at(10_000)).err());
        assert_eq!(flood.expect("still bounded").per_second, 125);
    }

    proptest! {
        /// In every interval at most the burst plus the average of that interval is allowed.
        #[test]
        fn never_more_than_the_burst_and_the_average(rate in 1_u32..200, gaps in proptest::collection::vec(0_u64..50, 1..200)) {
            let bucket = TokenBucket::default();
            let (mut now, mut passed) = (1_000, Vec::new());
            for gap in gaps {
                now += gap;
                if bucket.take(rate, at(now)).is_ok() {
                    passed.push(now);
                }
            }
            for (i, from) in passed.iter().enumerate() {
                for (j, to) in passed.iter().enumerate().skip(i) {
                    let maximum = u64::from(rate) * BURST_SECONDS + (to - from) * u64::from(rate) / 1_000 + 1;
                    prop_assert!(u64::try_from(j - i).expect("small") < maximum + 1, "{} in {} ms", j - i + 1, to - from);
                }
            }
        }

        /// Requests at the average rate are never refused.
        #[test]
        fn the_average_rate_is_always_allowed(rate in 1_u32..1_000) {
            let bucket = TokenBucket::default();
            let gap = 1_000_u64.div_ceil(u64::from(rate));
            prop_assert!((0..500).all(|i| bucket.take(rate, at(10 + i * gap)).is_ok()));
        }
    }
}
