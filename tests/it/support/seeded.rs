//! Randomness from a seed, so that a run can be repeated: the same seed and stream draw the same numbers. Not for secrets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redlockd::redlock::random::Entropy;

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone)]
pub struct Seeded(Arc<AtomicU64>);

#[allow(dead_code, reason = "tests/chaos draws in more ways than the integration tests")]
impl Seeded {
    /// A source of its own for each `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(stream << 32))))
    }

    /// From `low` to `high`, both included.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in so many of a hundred cases.
    pub fn percent(&self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// One of them.
    pub fn pick<'a, T>(&self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).expect("an index")]
    }
}

impl Entropy for Seeded {
    fn fill(&self, into: &mut [u8]) {
        for chunk in into.chunks_mut(8) {
            let step = 0x9e37_79b9_7f4a_7c15_u64;
            let mut z = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(z ^ z >> 31).to_le_bytes()[..chunk.len()]);
        }
    }
}
