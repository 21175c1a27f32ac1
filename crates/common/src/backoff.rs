//! Delays between attempts: full jitter below a bound that doubles, so that contenders that split a vote, or clients that lost a
//! server, do not retry at the same time.
//!
//! Source: the Redis manual ("retry after a random delay"); "Exponential Backoff And Jitter", AWS
//! Architecture Blog, 2015 (full jitter).

use std::time::Duration;

use super::random::Entropy;

/// Bounds of the delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffRange {
    /// Upper bound of the first delay.
    pub first: Duration,
    /// Maximum of the upper bound.
    pub max: Duration,
}

/// Endless delays: the k-th is uniform in `[0, min(most, first · 2^k)]`. The caller bounds the tries.
#[derive(Debug, Clone)]
pub struct Backoff<E> {
    range: BackoffRange,
    upper: Duration,
    entropy: E,
}

impl<E: Entropy> Backoff<E> {
    /// Starts at the first delay.
    pub fn new(range: BackoffRange, entropy: E) -> Self {
        Self { range, upper: range.first.min(range.max), entropy }
    }

    /// Draws a delay, and doubles the bound of the next one.
    pub fn next_delay(&mut self) -> Duration {
        let upper = self.upper;
        self.upper = upper.saturating_mul(2).min(self.range.max);
        uniform(&self.entropy, upper)
    }

    /// Starts over with the first delay.
    pub fn reset(&mut self) {
        self.upper = self.range.first.min(self.range.max);
    }
}

/// A random duration from zero to `upper`, in whole microseconds.
pub fn uniform<E: Entropy>(entropy: &E, upper: Duration) -> Duration {
    let upper_us = u64::try_from(upper.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(entropy.below(upper_us.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SystemEntropy;
    use proptest::prelude::*;

    proptest! {
        /// T18: delays are random and stay in their range; a zero range does not panic (rslock did).
        #[test]
        fn t18_delays_stay_in_a_doubling_range(first in 0u64..500, most in 0u64..500) {
            let range = BackoffRange { first: Duration::from_millis(first), max: Duration::from_millis(most) };
            let mut backoff = Backoff::new(range, SystemEntropy);
            let mut upper = range.first.min(range.max);
            for _ in 0..12 {
                prop_assert!(backoff.next_delay() <= upper);
                upper = (upper * 2).min(range.max);
            }
        }
    }

    #[test]
    fn t18_delays_differ() {
        let range = BackoffRange { first: Duration::from_secs(1), max: Duration::from_secs(1) };
        let mut backoff = Backoff::new(range, SystemEntropy);
        let first = backoff.next_delay();
        assert!((0..20).any(|_| backoff.next_delay() != first));
    }
}
