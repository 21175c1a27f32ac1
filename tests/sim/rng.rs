//! The randomness of a simulation: SplitMix64, one stream per purpose, so that an additional draw in one
//! place does not change the others. A seed must always mean the same history.

use std::sync::{Arc, Mutex};

use crate::redlock::random::Entropy;

/// A seeded stream of numbers.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    /// The stream of `purpose` in the world of `seed`.
    pub(super) fn new(seed: u64, purpose: u64) -> Self {
        let mut mixer = Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ purpose.wrapping_mul(0x9E6C_63D0_876A_3F6B));
        Self(mixer.next())
    }

    /// 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is at least 1.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// An index below `len`.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    /// From `low` to `high`, both included.
    pub(super) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// From `-most` to `most`.
    pub(super) fn either_way(&mut self, most: i64) -> i64 {
        let span = most.unsigned_abs() * 2 + 1;
        i64::try_from(self.below(span)).expect("a small span") - most
    }

    /// True in `percent` of 100 draws.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of them.
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}

/// The entropy of one life of one simulated instance.
#[derive(Debug, Clone)]
pub(super) struct SimEntropy(Arc<Mutex<Rng>>);

impl SimEntropy {
    /// From its own stream.
    pub(super) fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(rng)))
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, into: &mut [u8]) {
        let mut rng = self.0.lock().expect("no panic while drawing");
        for chunk in into.chunks_mut(8) {
            chunk.copy_from_slice(&rng.next().to_le_bytes()[..chunk.len()]);
        }
    }
}
