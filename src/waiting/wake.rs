//! What a notice about an ended lease means: it wakes the first waiters once for each end, when a quorum of nodes can
//! be free, and again if the lease was seen afterwards. Each resource has one filter. All times that decide when a
//! waiter asks the nodes again are here, since they depend on each other: jitter < settling < yielding < polling.

use std::collections::VecDeque;
use std::time::Duration;

use crate::mutant::{self, Mutant};
use crate::redlock::notifications::{LeaseTag, Notice};

/// Spread of the attempts at the instant at which a lease ends: instances should not collide, and a
/// node's clock may be a millisecond behind.
pub(crate) const WAKE_JITTER: Duration = Duration::from_millis(3);

/// Pause of the first waiters when fewer nodes than a quorum needs have reported the end of a lease: an earlier
/// attempt costs two rounds and cannot win. A few round trips are enough for the rest to report.
pub(crate) const SETTLE_PAUSE: Duration = Duration::from_millis(5);

/// Pause of the first waiters when they yield to waiters of other instances: many round trips, so that a waiter
/// woken by a notice wins on a busy machine too. The winner's own release ends the pause early.
pub(crate) const YIELD_PAUSE: Duration = Duration::from_millis(20);

/// Longest pause between two attempts where no notice can be relied on. It bounds the delay that a lost notice
/// causes, at one round per second and resource.
pub(crate) const POLL_MAX: Duration = Duration::from_secs(1);

/// Leases whose ends are tracked at a time: enough for the attempts of a few instances.
const TRACKED_MAX: usize = 8;

/// No pause before the next attempt.
const NOW: Duration = Duration::ZERO;

/// How many nodes must have reported an end before a quorum can be free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NeededNotices {
    /// For a lease that was ended: nodes without a subscription count as if they had reported it.
    pub ended: u32,
    /// For an attempt that was withdrawn: a whole quorum, since with fewer nodes it never held the lease.
    pub withdrawn: u32,
}

/// The known ends of one resource's leases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WakeFilter {
    /// The latest ends; notices about several leases may be interleaved.
    ends: VecDeque<TrackedEnd>,
    /// The leases that the last attempt found on a quorum of nodes; at most [`TRACKED_MAX`].
    confirmed: Vec<LeaseTag>,
}

/// What is known of the end of one lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct TrackedEnd {
    lease: Option<LeaseTag>,
    /// The nodes that reported the end, one bit each.
    nodes: u64,
    wake: WakeState,
    /// A node reported the end after the head's attempt began: the report counts if the attempt still met the lease
    /// on other nodes.
    is_new: bool,
}

/// Whether the head was woken for an end.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
enum WakeState {
    #[default]
    NotWoken,
    /// Woken before a quorum was known to be free: the head is woken again when the end is certain.
    WokenEarly,
    /// Woken for the last time.
    Done,
}

impl WakeFilter {
    /// The entry of this lease; a new one replaces the oldest if there are too many.
    fn track(&mut self, lease: Option<LeaseTag>) -> &mut TrackedEnd {
        let index = self.ends.iter().position(|e| e.lease == lease).unwrap_or_else(|| {
            if self.ends.len() >= TRACKED_MAX {
                self.ends.pop_front();
            }
            self.ends.push_back(TrackedEnd { lease, ..TrackedEnd::default() });
            self.ends.len() - 1
        });
        &mut self.ends[index]
    }

    /// The head begins an attempt: earlier reports say nothing about what the attempt will find.
    pub(super) fn on_attempt_started(&mut self) {
        for end in &mut self.ends {
            end.is_new = false;
        }
    }

    /// The head is woken for a release that is still being sent: it is woken again when the end is certain.
    pub(super) fn on_handover(&mut self, lease: LeaseTag) {
        let lease = Some(lease);
        *self.track(lease) = TrackedEnd { lease, wake: WakeState::WokenEarly, ..TrackedEnd::default() };
    }

    /// The end of this lease wakes no waiter.
    pub(super) fn ignore(&mut self, lease: LeaseTag) {
        let lease = Some(lease);
        *self.track(lease) = TrackedEnd { lease, wake: WakeState::Done, ..TrackedEnd::default() };
    }

    /// The lease has certainly ended. `None`: a lock of another client.
    pub(super) fn on_certain_end(&mut self, lease: Option<LeaseTag>) -> Option<Duration> {
        if lease.is_some() {
            let end = self.track(lease);
            end.is_new = true;
            if end.wake == WakeState::Done {
                return None;
            }
            end.wake = WakeState::Done;
        }
        Some(NOW)
    }

    /// A node reported an end.
    pub(super) fn on_notice(&mut self, node: usize, notice: Notice, needed: NeededNotices) -> Option<Duration> {
        // A withdrawn attempt mostly had no quorum. If the head found its lease on a quorum, that lease has ended,
        // and the nodes without a subscription may have ended it as well.
        let is_confirmed = notice.lease.is_some_and(|lease| self.confirmed.contains(&lease));
        let withdrawn = notice.withdrawn && !is_confirmed;
        let end = self.track(notice.lease);
        if end.wake == WakeState::Done && notice.lease.is_none() {
            // Locks of other clients have no tag: this may be the end of another lock.
            *end = TrackedEnd::default();
        }
        end.is_new = true;
        if end.wake == WakeState::Done {
            return None;
        }
        end.nodes |= 1_u64.checked_shl(u32::try_from(node).unwrap_or(u32::MAX)).unwrap_or(0);
        let needed = if withdrawn { needed.withdrawn } else { needed.ended };
        if end.nodes.count_ones() >= needed {
            end.wake = WakeState::Done;
            return Some(NOW);
        }
        let is_first = !withdrawn && end.wake == WakeState::NotWoken;
        if is_first {
            end.wake = WakeState::WokenEarly;
        }
        is_first.then_some(SETTLE_PAUSE)
    }

    /// A node reported the end of this lease after the head's attempt began.
    pub(super) fn is_ending(&self, lease: LeaseTag) -> bool {
        self.ends.iter().any(|end| end.lease == Some(lease) && end.is_new)
    }

    /// The leases were found on nodes, whatever was reported of their ends: an attempt with this token may have been
    /// withdrawn and another one granted, whose end counts again. Reports during the head's attempt, which still
    /// found the lease on other nodes, count now. With each lease: whether a quorum has it.
    pub(super) fn on_seen_held(&mut self, leases: impl Iterator<Item = (LeaseTag, bool)>) -> Option<Duration> {
        let mut is_new = false;
        self.confirmed.clear();
        for (lease, is_confirmed) in leases {
            if is_confirmed && self.confirmed.len() < TRACKED_MAX {
                self.confirmed.push(lease);
            }
            let known = self.ends.iter().position(|e| e.lease == Some(lease));
            let known = known.filter(|_| !mutant::is(Mutant::EndsCountOnce));
            is_new |= known.and_then(|index| self.ends.remove(index)).is_some_and(|end| end.is_new);
        }
        is_new.then_some(SETTLE_PAUSE)
    }

    /// The head was granted the resource: later notices about the ends that led to it wake no waiter.
    pub(super) fn on_granted(&mut self) {
        self.confirmed.clear();
        for end in &mut self.ends {
            (end.wake, end.is_new) = (WakeState::Done, false);
        }
    }
}
