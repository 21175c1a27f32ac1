//! House-keeping, once a second: what has run out is forgotten, and what nobody asked for but some
//! want to hear of is told: leases that ran out, nodes that come and go. Never on the path of a request.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use super::events::{EventKind, set_lease};
use super::service::{LockManager, Marks};
use super::types::{LeaseOutcome, NodeSummary};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::entropy::Entropy;
use crate::redlock::extend::{ExtendParams, ExtendRefusal};
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;
use crate::types::{ResourceName, TokenHash};

/// Time between two rounds.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Ends that are looked into, at most: beyond it they go untold.
const ENDS_MAX: usize = 1_024;
/// Of these in one round: each costs two round trips.
const ENDS_PER_ROUND: usize = 64;

/// What the wall clock may gain or lose against the monotonic one in a round: NTP slews by less.
const JUMP_MIN: Duration = Duration::from_millis(100);

/// Holds the wall clock against the monotonic one.
#[derive(Debug, Default)]
struct Pendulum {
    last: Option<(BootTime, u64)>,
}

impl Pendulum {
    /// By how much the wall clock has jumped since the last call, either way; zero below [`JUMP_MIN`].
    fn jump(&mut self, now: BootTime, wall_ms: u64) -> Duration {
        let Some((then, wall_then_ms)) = self.last.replace((now, wall_ms)) else { return Duration::ZERO };
        let (passed, wall) = (now.since(then), i128::from(wall_ms) - i128::from(wall_then_ms));
        let off_ms = (wall - i128::try_from(passed.as_millis()).unwrap_or(i128::MAX)).unsigned_abs();
        let off = Duration::from_millis(u64::try_from(off_ms).unwrap_or(u64::MAX));
        if off < JUMP_MIN { Duration::ZERO } else { off }
    }
}

/// A lease that should have ended by now.
struct End {
    at: BootTime,
    resource: ResourceName,
    token: TokenHash,
}

fn log_node(report: &NodeSummary, before: &str) {
    let (node, state, why) = (report.node.as_str(), report.state.as_str(), report.why.as_deref().unwrap_or_default());
    if state == "up" {
        tracing::info!(node, before, "the node is up");
    } else {
        tracing::warn!(node, state, before, why, "the node has no vote");
    }
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Drops what has run out, again and again. Never returns; dropping it stops it.
    pub async fn run_maintenance(self) {
        let (mut ends, mut states) = (VecDeque::new(), Vec::new());
        let (mut pendulum, mut had_quorum) = (Pendulum::default(), None);
        loop {
            self.clock().sleep(HOUSEKEEPING).await;
            let now = self.now();
            let lock_delay = self.engine().settings.params.lock_delay;
            let observer = self.shared.ends.get();
            let swept = self.shared.own.sweep(now, |held| {
                if let Some(observer) = observer {
                    observer(LeaseOutcome::Lapsed, held);
                }
            });
            for (resource, token) in swept.over {
                if ends.len() < ENDS_MAX {
                    ends.push_back(End { at: now.plus(lock_delay), resource, token });
                }
            }
            self.mark(swept.oldest, pendulum.jump(now, self.wall_ms()));
            self.shared.snapshots.sweep(now);
            self.shared.events.sweep(now);
            had_quorum = Some(self.tell_nodes(&mut states, had_quorum));
            self.tell_ends(&mut ends, now).await;
        }
    }

    fn mark(&self, longest_held_since: Option<BootTime>, jump: Duration) {
        let longest_wait_since = self.shared.room.oldest();
        let mut marks = self.shared.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let clock_jumps = marks.clock_jumps.saturating_add(jump);
        *marks = Marks { longest_held_since, longest_wait_since, clock_jumps };
        drop(marks);
        if !jump.is_zero() {
            tracing::warn!(jump_ms = jump.as_millis(), "this machine's wall clock jumped; leases do not depend on it");
        }
    }

    /// Tells which nodes came or went since the last look, and whether a quorum votes, which is returned.
    fn tell_nodes(&self, states: &mut Vec<String>, had_quorum: Option<bool>) -> bool {
        let reports = self.nodes();
        let (voting, needed) = (reports.iter().filter(|r| r.votes).count(), self.engine().quorum());
        let has_quorum = voting >= needed;
        for (report, before) in reports.iter().zip(states.iter()) {
            if report.state == *before {
                continue;
            }
            log_node(report, before);
            let kind = match report.state.as_str() {
                "up" => EventKind::NodeUp,
                "down" => EventKind::NodeDown,
                "unknown" => continue,
                _ => EventKind::Quarantined,
            };
            self.shared.events.publish_local(kind, self.wall_ms(), |event| {
                event.node = Some(report.node.to_string());
                event.reason = Some(report.state.clone());
            });
        }
        match (had_quorum, has_quorum) {
            (None, true) => tracing::info!(voting, needed, "a quorum of nodes votes: locks can be granted"),
            (Some(false), true) => tracing::info!(voting, needed, "a quorum of nodes votes again"),
            (None | Some(true), false) => {
                tracing::error!(voting, needed, "no quorum of nodes votes: no lock can be granted or extended");
            }
            _ => {}
        }
        *states = reports.into_iter().map(|r| r.state).collect();
        has_quorum
    }

    /// Looks into leases whose time has passed: extended elsewhere, released elsewhere, or run out.
    async fn tell_ends(&self, ends: &mut VecDeque<End>, now: BootTime) {
        for _ in 0..ends.len().min(ENDS_PER_ROUND) {
            let Some(end) = ends.pop_front() else { return };
            if end.at > now {
                ends.push_back(end);
                continue;
            }
            match self.engine().inspect(&end.resource).await.map(|view| view.state) {
                Ok(ResourceState::Lease { record, left }) if record.token == end.token => {
                    ends.push_back(End { at: now.plus(left), ..end });
                }
                Ok(_) => self.tell_end(&end).await,
                // Nobody can say: it goes untold.
                Err(_) => {}
            }
        }
    }

    /// It is gone. An extend never revives, so asking for one only says why.
    async fn tell_end(&self, end: &End) {
        let ask = ExtendParams {
            resource: end.resource.clone(),
            token: end.token.clone(),
            ttl: None,
            fence: None,
            labels: None,
        };
        let why = self.engine().extend(&ask).await;
        if matches!(why, Err(ExtendRefusal::Gone(None) | ExtendRefusal::NotHolder)) {
            let events = &self.shared.events;
            events.publish(EventKind::Expired, self.wall_ms(), |event| set_lease(event, &end.resource, &end.token));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_the_wall_clock_is_seen_either_way_and_drift_is_none() {
        let (mut pendulum, at) = (Pendulum::default(), |ms| BootTime::default().plus(Duration::from_millis(ms)));
        let steps =
            [(0, 50_000, 0), (1_000, 51_040, 0), (2_000, 57_040, 5_000), (3_000, 48_040, 10_000), (4_000, 49_000, 0)];
        for (now, wall, expected) in steps {
            assert_eq!(pendulum.jump(at(now), wall), Duration::from_millis(expected), "at {now}");
        }
    }
}
