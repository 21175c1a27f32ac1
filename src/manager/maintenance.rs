//! Periodic maintenance, once a second: removes expired leases, and publishes the events that no request causes:
//! expired leases, and nodes that changed state.

use std::collections::VecDeque;
use std::time::Duration;

use super::events::{EventKind, set_end, set_lease};
use super::incidents::{self, Moment};
use super::own_leases::ExpiredLease;
use super::service::{GaugeSamples, LockManager};
use super::types::LeaseOutcome;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::extend::{ExtendParams, ExtendRefusal};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::NodeId;
use crate::waiting::kept_places::Places;

/// Time between two passes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of lapsed leases to check; further ones are not reported as expired.
const LAPSED_MAX: usize = 1_024;
/// Maximum number of these in one pass: each costs two round trips.
const LAPSED_PER_PASS: usize = 64;

/// Smallest jump of the wall clock against the monotonic clock in a pass: NTP slews by less.
const JUMP_MIN: Duration = Duration::from_millis(100);

/// Compares the wall clock with the monotonic clock.
#[derive(Debug, Default)]
struct ClockJumpDetector {
    last: Option<(BootTime, u64)>,
}

impl ClockJumpDetector {
    /// By how much the wall clock has jumped since the last call, either way; zero below [`JUMP_MIN`].
    fn jump(&mut self, now: BootTime, wall_ms: u64) -> Duration {
        let Some((then, wall_then_ms)) = self.last.replace((now, wall_ms)) else { return Duration::ZERO };
        let (passed, wall) = (now.since(then), i128::from(wall_ms) - i128::from(wall_then_ms));
        let off_ms = (wall - i128::try_from(passed.as_millis()).unwrap_or(i128::MAX)).unsigned_abs();
        let off = Duration::from_millis(u64::try_from(off_ms).unwrap_or(u64::MAX));
        if off < JUMP_MIN { Duration::ZERO } else { off }
    }
}

/// A lease whose promised time has passed.
struct LapsedLease {
    /// When to check the lease.
    check_at: BootTime,
    lease: ExpiredLease,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Runs a pass every second. Never returns; dropping it stops it.
    pub async fn run_maintenance(self) {
        let (mut lapsed, mut detector) = (VecDeque::new(), ClockJumpDetector::default());
        loop {
            let asleep = self.now();
            self.clock().sleep(INTERVAL).await;
            let late = self.now().since(asleep).saturating_sub(INTERVAL);
            self.shared.standstills.observe(late, self.wall_ms());
            self.shared.waiting.give_up_places(Places::expire);
            let now = self.now();
            let lock_delay = self.engine().terms().lock_delay;
            for lease in self.shared.own_leases.sweep(now) {
                if lapsed.len() < LAPSED_MAX {
                    lapsed.push_back(LapsedLease { check_at: lease.deadline.plus(lock_delay), lease });
                }
            }
            self.sample_gauges(detector.jump(now, self.wall_ms()));
            self.shared.snapshots.sweep(now);
            self.shared.events.sweep(now);
            self.shared.events.publish_activity(self.wall_ms());
            self.report_incidents();
            self.check_distant_ends().await;
            self.check_lapsed(&mut lapsed, now).await;
        }
    }

    fn sample_gauges(&self, jump: Duration) {
        let of = |is_ticket| self.shared.waiting.queue(|queue| queue.oldest_since_of(is_ticket));
        let (longest_wait_since, longest_ticket_since) = (of(false), of(true));
        let mut samples = self.shared.samples.lock();
        let clock_jumps = samples.clock_jumps.saturating_add(jump);
        *samples = GaugeSamples { longest_wait_since, longest_ticket_since, clock_jumps };
        drop(samples);
        if !jump.is_zero() {
            tracing::warn!(jump_ms = jump.as_millis(), "this machine's wall clock jumped; leases do not depend on it");
        }
    }

    /// Logs and publishes what has changed of nodes and quorum since the last pass.
    fn report_incidents(&self) {
        let (nodes, needed) = (self.nodes(), self.engine().quorum());
        let at = Moment { now: self.now(), wall_ms: self.wall_ms() };
        for incident in self.shared.incidents.observe(&nodes, needed, at) {
            let (wait, latencies) = (self.node_timeout(), self.shared.node_latencies.get());
            let late = |node: &NodeId| Some(latencies?.of(node)?.late_calls(at.now, wait));
            incidents::log(&incident, &nodes, needed, &self.situation(&nodes), (wait, &late));
            incidents::publish(&incident, &nodes, &self.shared.events, at.wall_ms);
        }
    }

    /// Checks leases whose time has passed: they were extended or released through another instance, or expired.
    async fn check_lapsed(&self, lapsed: &mut VecDeque<LapsedLease>, now: BootTime) {
        for _ in 0..lapsed.len().min(LAPSED_PER_PASS) {
            let Some(LapsedLease { check_at, lease }) = lapsed.pop_front() else { return };
            if check_at > now {
                lapsed.push_back(LapsedLease { check_at, lease });
                continue;
            }
            match self.engine().inspect(&lease.resource).await.map(|view| view.state) {
                Ok(state) if let Some((_, left)) = state.lease_of(&lease.token) => {
                    lapsed.push_back(LapsedLease { check_at: now.plus(left), lease });
                }
                Ok(_) => self.publish_if_expired(check_at, &lease).await,
                // The nodes do not answer: the end is not reported.
                Err(_) => {}
            }
        }
    }

    /// Publishes the end of a lease that expired. An extend never revives a lease, so its refusal gives the reason of the end.
    async fn publish_if_expired(&self, keys_gone: BootTime, lapsed: &ExpiredLease) {
        let params = ExtendParams {
            resource: lapsed.resource.clone(),
            token: lapsed.token.clone(),
            ttl: None,
            until_ms: 0,
            fence: None,
            labels: None,
        };
        let why = self.engine().extend(&params).await;
        if matches!(why, Err(ExtendRefusal::Gone(None) | ExtendRefusal::NotHolder)) {
            let held = keys_gone.minus(self.engine().terms().lock_delay).since(lapsed.end.since);
            if let Some(observer) = self.shared.end_observer.get() {
                observer(LeaseOutcome::Lapsed, held);
            }
            let events = &self.shared.events;
            events.publish(EventKind::Expired, self.wall_ms(), |event| {
                set_lease(event, &lapsed.resource, &lapsed.token);
                set_end(event, &lapsed.end, held);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_of_the_wall_clock_are_detected_in_both_directions_and_drift_is_not() {
        let (mut detector, at) =
            (ClockJumpDetector::default(), |ms| BootTime::default().plus(Duration::from_millis(ms)));
        let steps =
            [(0, 50_000, 0), (1_000, 51_040, 0), (2_000, 57_040, 5_000), (3_000, 48_040, 10_000), (4_000, 49_000, 0)];
        for (now, wall, expected) in steps {
            assert_eq!(detector.jump(at(now), wall), Duration::from_millis(expected), "at {now}");
        }
    }
}
