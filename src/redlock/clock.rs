//! The clock of the algorithm, which the client shares, and a clock for tests that move it.

pub use redlockd_common::clock::{BootTime, Clock, SystemClock};

#[cfg(test)]
use std::future::Future;
#[cfg(test)]
use std::time::Duration;

/// tokio's clock, for tests with paused time: it does not advance while a task can run.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PausedClock(tokio::time::Instant);

#[cfg(test)]
impl PausedClock {
    /// One that begins now.
    #[expect(clippy::disallowed_methods, reason = "paused time")]
    pub(crate) fn start() -> Self {
        Self(tokio::time::Instant::now())
    }

    #[expect(clippy::disallowed_methods, reason = "paused time")]
    fn elapsed(self) -> Duration {
        tokio::time::Instant::now().duration_since(self.0)
    }
}

#[cfg(test)]
impl Clock for PausedClock {
    fn now(&self) -> BootTime {
        const UPTIME: Duration = Duration::from_secs(1_000);
        BootTime::default().plus(UPTIME + self.elapsed())
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + u64::try_from(self.elapsed().as_millis()).expect("short")
    }

    fn sleep_until(&self, at: BootTime) -> impl Future<Output = ()> + Send + 'static {
        tokio::time::sleep(at.since(self.now()))
    }
}
