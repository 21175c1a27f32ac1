//! The pauses of waiters, drawn from the random bits that each event brings.

use std::time::Duration;

use super::event::WaiterId;
use super::queue_state::Queue;
use crate::redlock::backoff::BackoffRange;

impl Queue {
    /// The pause after an unclear answer: full jitter below a bound that doubles, so that contenders do not retry
    /// at the same time.
    pub(super) fn pause(&mut self, id: WaiterId) -> Duration {
        let mut pauses = 0;
        self.update(id, |waiter| {
            pauses = waiter.pauses;
            waiter.pauses = pauses.saturating_add(1);
        });
        let BackoffRange { first, max } = self.settings.retry;
        self.draw(first.saturating_mul(1_u32.checked_shl(pauses).unwrap_or(u32::MAX)).min(max))
    }

    /// A random duration from zero to `upper`, in whole microseconds. Several draws in one event differ.
    pub(super) fn draw(&mut self, upper: Duration) -> Duration {
        self.random = splitmix(self.random);
        let upper_us = u64::try_from(upper.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
        let drawn_us = (u128::from(self.random) * u128::from(upper_us)) >> 64;
        Duration::from_micros(u64::try_from(drawn_us).unwrap_or(0))
    }
}

/// Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014.
fn splitmix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
