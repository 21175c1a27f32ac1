//! The cluster clock: this instance's estimate of the time on the nodes, which every request carries.
//! It is the boot clock plus an offset that the node monitor ([`super::monitor`]) measures, so a step
//! of the host's wall clock changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::clock::{BootTime, Clock};
use crate::mutant::{self, Mutant};
use crate::protocol::RequestTime;

/// The cluster clock, shared by all requests of an instance.
#[derive(Debug, Clone)]
pub struct ClusterClock<C> {
    clock: C,
    offset_us: Arc<AtomicI64>,
    is_anchored: Arc<AtomicBool>,
    is_order_due: Arc<AtomicBool>,
}

impl<C: Clock> ClusterClock<C> {
    /// A clock that follows the host's wall clock until the node monitor has anchored it.
    pub fn new(clock: C) -> Self {
        let offset = offset_between(clock.now(), clock.wall_ms().saturating_mul(1_000));
        Self {
            clock,
            offset_us: Arc::new(AtomicI64::new(offset)),
            is_anchored: Arc::default(),
            is_order_due: Arc::default(),
        }
    }

    /// The estimate for now. Microseconds since 1970, below 2^53 until the year 2255.
    pub fn request_time(&self) -> RequestTime {
        self.request_time_at(self.clock.now())
    }

    /// The estimate for a reading of the boot clock.
    pub fn request_time_at(&self, reading: BootTime) -> RequestTime {
        if mutant::is(Mutant::RequestTimeFollowsWall) {
            return RequestTime(self.clock.wall_ms().saturating_mul(1_000));
        }
        let offset = self.offset_us.load(Ordering::Acquire);
        let us = i64::try_from(reading.as_micros()).unwrap_or(i64::MAX).saturating_add(offset);
        RequestTime(u64::try_from(us).unwrap_or(0))
    }

    /// Records a measurement of the nodes' time: it is `by_us` microseconds ahead of the estimate, which follows it from now on.
    pub fn anchor(&self, by_us: i64) {
        self.slew(by_us);
        self.is_anchored.store(true, Ordering::Release);
    }

    /// Whether the nodes' time was measured. Before that no votes may be requested: a node whose clock is wrong by
    /// the same amount as this host's would grant, with a fence from that wrong time.
    pub fn is_anchored(&self) -> bool {
        self.is_anchored.load(Ordering::Acquire)
    }

    /// Records whether this clock followed a step by orders of quarantine in an earlier view than the nodes', which were not
    /// repeated yet.
    pub fn set_order_due(&self, is_due: bool) {
        self.is_order_due.store(is_due, Ordering::Release);
    }

    /// Whether no lease may be taken because of that: in the present view a process may vote that was not quarantined.
    pub fn is_order_due(&self) -> bool {
        self.is_order_due.load(Ordering::Acquire)
    }

    /// Changes the offset by `by_us` microseconds. Whoever reads it then also reads what was recorded before.
    pub fn slew(&self, by_us: i64) {
        self.offset_us.fetch_add(by_us, Ordering::Release);
    }
}

fn offset_between(reading: BootTime, us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX).saturating_sub(i64::try_from(reading.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::clock::SystemClock;

    #[test]
    fn it_follows_its_offset_and_not_the_wall_clock() {
        let cluster_clock = ClusterClock::new(SystemClock);
        let reading = SystemClock.now();
        assert!(!cluster_clock.is_anchored());
        let RequestTime(before) = cluster_clock.request_time_at(reading);
        cluster_clock.anchor(1_000_000_000_i64 - before.cast_signed());
        assert_eq!(cluster_clock.request_time_at(reading), RequestTime(1_000_000_000));
        assert!(cluster_clock.is_anchored());
        cluster_clock.slew(-5);
        assert_eq!(cluster_clock.request_time_at(reading), RequestTime(999_999_995));
        assert_eq!(
            cluster_clock.request_time_at(reading.plus(std::time::Duration::from_millis(3))),
            RequestTime(1_000_002_995)
        );
    }
}
