//! The only file that reads the time. Decisions use a monotonic clock that also runs during suspend. The wall clock is for
//! display, and for the first estimate of the nodes' clocks.
//!
//! Source: Linux `CLOCK_BOOTTIME`, see clock_gettime(2). `std::time::Instant` is `CLOCK_MONOTONIC` there, which stands still
//! during suspend, while Redis' TTLs run on.

use std::future::Future;
use std::time::Duration;

/// A reading of a [`Clock`]: time since an arbitrary origin before the start of the process. Units: nanoseconds inside; all
/// arithmetic saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BootTime(u64);

impl BootTime {
    /// A reading from nanoseconds since the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Whole microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// How much later `self` is than `earlier`; zero if it is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self + by`, at most the largest reading.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// `self - by`, at least the origin.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The algorithm's source of time. The simulation has its own.
pub trait Clock: Clone + Send + Sync + 'static {
    /// Monotonic, and runs during suspend. The only clock that decisions use.
    fn now(&self) -> BootTime;

    /// The host's wall clock in milliseconds since 1970: for display, and for the cluster clock until a quorum of nodes has
    /// answered.
    fn wall_ms(&self) -> u64;

    /// Resolves at or after `at`. Cancel: nothing is left behind.
    fn sleep_until(&self, at: BootTime) -> impl Future<Output = ()> + Send + 'static;

    /// Resolves after `period`. Cancel: nothing is left behind.
    fn sleep(&self, period: Duration) -> impl Future<Output = ()> + Send + 'static {
        self.sleep_until(self.now().plus(period))
    }
}

/// The machine's clocks, with tokio's timer.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one file that reads time")]
    fn read(id: rustix::time::ClockId) -> rustix::time::Timespec {
        rustix::time::clock_gettime(id)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> BootTime {
        let t = Self::read(rustix::time::ClockId::Boottime);
        let (secs, nanos) = (t.tv_sec.unsigned_abs(), t.tv_nsec.unsigned_abs());
        BootTime(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    fn wall_ms(&self) -> u64 {
        let t = Self::read(rustix::time::ClockId::Realtime);
        let secs = u64::try_from(t.tv_sec).unwrap_or(0);
        secs.saturating_mul(1_000).saturating_add(t.tv_nsec.unsigned_abs() / 1_000_000)
    }

    fn sleep_until(&self, at: BootTime) -> impl Future<Output = ()> + Send + 'static {
        sleep_on_system_clock(*self, at)
    }
}

/// During suspend, tokio's timer stops but this clock does not, so the clock is read again after each sleep.
async fn sleep_on_system_clock(clock: SystemClock, at: BootTime) {
    loop {
        let left = at.since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_does_not_run_backwards() {
        let (a, b) = (SystemClock.now(), SystemClock.now());
        assert!(b >= a);
        assert!(b.since(a) < Duration::from_secs(60));
        assert_eq!(a.since(b.plus(Duration::from_secs(1))), Duration::ZERO);
    }

    #[test]
    fn arithmetic_saturates() {
        let end = BootTime::from_nanos(u64::MAX);
        assert_eq!(end.plus(Duration::MAX), end);
        assert_eq!(BootTime::default().minus(Duration::MAX), BootTime::default());
    }

    #[tokio::test]
    async fn sleeping_until_the_past_returns_at_once() {
        SystemClock.sleep_until(BootTime::default()).await;
    }
}
