//! Asks the nodes whether a client's token already holds a resource: such a client does not wait.

use futures_util::future::join_all;

use super::driver::WaitDriver;
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{ResourceName, TokenHash};

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// Whether a quorum has this token's lease.
    pub(crate) async fn holds(&self, resource: &ResourceName, token: &TokenHash) -> bool {
        let state = self.0.engine.inspect(resource).await.map(|inspected| inspected.state);
        state.is_ok_and(|state| state.lease_of(token).is_some())
    }

    /// Whether a quorum has this token's lease of each resource.
    pub(crate) async fn holds_all(&self, resources: &[ResourceName], token: &TokenHash) -> bool {
        join_all(resources.iter().map(|resource| self.holds(resource, token))).await.into_iter().all(|holds| holds)
    }
}
