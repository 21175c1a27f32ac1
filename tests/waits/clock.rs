//! Time and randomness of a simulated run: tokio's paused clock, and numbers that follow from a seed.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::entropy::Entropy;

const EPOCH_MS: u64 = 1_700_000_000_000;
const UPTIME: Duration = Duration::from_secs(1_000);

/// The clock of all instances and nodes. It advances when all tasks wait.
#[derive(Clone, Copy)]
pub(super) struct Paused(Instant);

impl Paused {
    #[expect(clippy::disallowed_methods, reason = "paused time is what this simulation runs on")]
    fn instant() -> Instant {
        Instant::now()
    }

    /// The run begins now.
    pub(super) fn start() -> Self {
        Self(Self::instant())
    }

    pub(super) fn elapsed(self) -> Duration {
        Self::instant().duration_since(self.0)
    }

    /// What nodes read. Microseconds since 1970.
    pub(super) fn node_us(self) -> u64 {
        EPOCH_MS * 1_000 + u64::try_from(self.elapsed().as_micros()).expect("short")
    }
}

impl Clock for Paused {
    fn now(&self) -> BootTime {
        BootTime::default().plus(UPTIME + self.elapsed())
    }

    fn wall_ms(&self) -> u64 {
        self.node_us() / 1_000
    }

    fn sleep_until(&self, at: BootTime) -> impl Future<Output = ()> + Send + 'static {
        tokio::time::sleep(at.since(self.now()))
    }
}

/// SplitMix64: the same numbers for the same seed, in the order in which they are asked for.
#[derive(Clone)]
pub(super) struct SeededRandom(Arc<Mutex<u64>>);

impl SeededRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
    }

    pub(super) fn range(&self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub(super) fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn index(&self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("small")
    }

    pub(super) fn ms(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.range(from, to))
    }
}

impl Entropy for SeededRandom {
    fn fill(&self, into: &mut [u8]) {
        for chunk in into.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            chunk.copy_from_slice(&bits[..chunk.len()]);
        }
    }

    fn bits(&self) -> u64 {
        let mut state = self.0.lock().expect("no panic");
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
