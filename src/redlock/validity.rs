//! How long a lease is valid: its TTL minus the time that the attempt took and the allowance for clock rates.
//!
//! Source: the Redis manual's distributed-locks page.

use std::time::Duration;

use crate::mutant::{self, Mutant};
use crate::types::Ttl;

/// Allowance for clocks that run at different rates: `ttl · ppm / 10^6`, rounded up, + `floor`.
pub(crate) fn drift(ttl: Ttl, ppm: u32, floor: Duration) -> Duration {
    if mutant::is(Mutant::NoDrift) {
        return Duration::ZERO;
    }
    let share_us = u128::from(ttl.as_ms()) * 1_000 * u128::from(ppm);
    let share_us = u64::try_from(share_us.div_ceil(1_000_000)).unwrap_or(u64::MAX);
    Duration::from_micros(share_us).saturating_add(floor)
}

/// validity = TTL - elapsed - drift, at least zero.
/// `elapsed` counts from before the attempt's first node call.
pub(crate) fn validity(ttl: Ttl, elapsed: Duration, drift: Duration) -> Duration {
    ttl.as_duration().saturating_sub(elapsed).saturating_sub(drift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ttl(ms: u64) -> Ttl {
        Ttl::from_ms(ms).expect("in range")
    }

    fn drift_default(ms: u64) -> Duration {
        drift(ttl(ms), 10_000, Duration::from_millis(2))
    }

    /// T04: ttl 10 000, drift 102, elapsed 40 gives 9858.
    #[test]
    fn t04_validity_subtracts_both_elapsed_and_drift() {
        assert_eq!(drift_default(10_000), Duration::from_millis(102));
        let left = validity(ttl(10_000), Duration::from_millis(40), drift_default(10_000));
        assert_eq!(left, Duration::from_millis(9_858));
    }

    /// T06: a TTL at, just above and just below its drift neither wraps nor panics.
    #[test]
    fn t06_a_ttl_of_the_size_of_its_drift_has_no_validity() {
        for ms in [1, 2, 3] {
            let left = validity(ttl(ms), Duration::ZERO, drift_default(ms));
            assert!(left < Duration::from_millis(1), "{ms} ms: {left:?}");
        }
        assert_eq!(validity(ttl(5), Duration::MAX, Duration::MAX), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn validity_never_exceeds_the_ttl_minus_elapsed(ms in 1u64..1 << 40, elapsed in 0u64..1 << 41, ppm in 0u32..1_000_000) {
            let (t, e) = (ttl(ms), Duration::from_millis(elapsed));
            let left = validity(t, e, drift(t, ppm, Duration::from_millis(2)));
            prop_assert!(left + e <= t.as_duration().max(e));
        }
    }
}
