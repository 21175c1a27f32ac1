//! The times that decide when a waiter asks the nodes again, in one place, since they are meant to fit
//! each other: jitter < settling < yielding < polling.

use std::time::Duration;

/// Spread of the attempts at the instant at which a lease ends: instances should not collide, and a
/// node's clock may be a millisecond behind.
pub(crate) const WAKE_JITTER: Duration = Duration::from_millis(3);

/// Pause of the head when fewer nodes have reported the end of a lease than a quorum needs: an attempt
/// before that costs two rounds and cannot win. A few round trips are enough for the rest to report.
pub(crate) const SETTLE_PAUSE: Duration = Duration::from_millis(5);

/// Pause of the head when it yields to waiters of other instances: many round trips, so that a waiter
/// woken by a notice wins on a busy machine too. The winner's own release ends the pause early.
pub(crate) const YIELD_PAUSE: Duration = Duration::from_millis(20);

/// Longest pause between two attempts where no notice can be relied on: the bound on how late a lost
/// notice is made up for, at one round per second and resource.
pub(crate) const POLL_MAX: Duration = Duration::from_secs(1);

/// Attempts in a row, with growing pauses, against a lease that fewer than a quorum of nodes confirm;
/// after them the head polls.
pub(crate) const UNCONFIRMED_TRIES: u32 = 10;
