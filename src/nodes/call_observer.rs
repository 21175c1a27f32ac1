//! The observer of calls to a node: metrics and the latency history.

use std::time::Duration;

use crate::protocol::UnreachableKind;
use crate::types::NodeId;

/// Receives each call that was completed, or that was dropped after the node timeout. Calls that were dropped earlier are not
/// reported.
pub trait NodeObserver: Send + Sync + 'static {
    /// `took` counts from the first poll of the call. Must return at once.
    fn call_completed(
        &self,
        node: &NodeId,
        operation: &'static str,
        took: Duration,
        outcome: Result<(), UnreachableKind>,
    );
}

impl<F> NodeObserver for F
where
    F: Fn(&NodeId, &'static str, Duration, Result<(), UnreachableKind>) + Send + Sync + 'static,
{
    fn call_completed(
        &self,
        node: &NodeId,
        operation: &'static str,
        took: Duration,
        outcome: Result<(), UnreachableKind>,
    ) {
        self(node, operation, took, outcome);
    }
}
