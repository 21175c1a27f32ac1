//! The observer of calls to a node: metrics and the latency history.

use std::time::Duration;

use crate::protocol::UnreachableKind;
use crate::redlock::clock::BootTime;
use crate::types::NodeId;

/// Receives the calls that have ended. Of a call that nobody waits for any more, only that it took longer than callers wait; otherwise
/// it is not reported.
pub trait NodeObserver: Send + Sync + 'static {
    /// Calls of one operation that ended together, each in the same way. `ended`: when, and how long each took from its first poll.
    /// Must return at once.
    fn calls_completed(
        &self,
        node: &NodeId,
        operation: &'static str,
        ended: (BootTime, &[Duration]),
        outcome: Result<(), UnreachableKind>,
    );
}

impl<F> NodeObserver for F
where
    F: Fn(&NodeId, &'static str, (BootTime, &[Duration]), Result<(), UnreachableKind>) + Send + Sync + 'static,
{
    fn calls_completed(
        &self,
        node: &NodeId,
        operation: &'static str,
        ended: (BootTime, &[Duration]),
        outcome: Result<(), UnreachableKind>,
    ) {
        self(node, operation, ended, outcome);
    }
}
