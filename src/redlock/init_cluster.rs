//! Declaring a new cluster: its blank nodes vote without a quarantine.

use std::sync::Arc;

use super::clock::Clock;
use super::monitor::{NodeMonitor, status_of};
use super::node::Node;
use super::quorum::Tally;
use super::random::Entropy;
use crate::protocol::{
    NoVote, NodeResult, NodeStatus, Reply, Request, RosterEntry, UnreachableKind, View, ViewId, Vote,
};
use crate::types::NodeId;

/// Why a new cluster was not initialised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// A node did not answer.
    #[error("node {0} did not answer ({1}): all nodes must be reachable when a cluster is declared")]
    Unreachable(NodeId, UnreachableKind),
    /// A node is part of a cluster already.
    #[error("node {0} is part of a cluster already; declaring it new could forget leases that are still running")]
    AlreadyInitialised(NodeId),
    /// A node cannot be part of this cluster.
    #[error("node {0}: {1}")]
    Unsuitable(NodeId, String),
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Initialises a new cluster, so that blank nodes vote without a quarantine. All nodes must answer, and none may
    /// be part of a cluster: the operator confirms that no node was wiped.
    ///
    /// Cancel: some nodes may be initialised, others not. Another call succeeds only if all are still
    /// blank; otherwise the blank ones vote after their quarantine.
    pub async fn init(&self) -> Result<(), InitError> {
        let answers = self.send_to_all(self.probe()).await;
        self.record(&answers);
        self.adjust_cluster_clock().await;
        // Probed again: the first probe may have been refused because the cluster clock was not anchored yet.
        let answers = self.send_to_all(self.probe()).await;
        self.check_statuses(&answers.tally, |status| match &status.vote {
            Vote::NoVote(NoVote::Quarantined { .. } | NoVote::Unseeded { .. }) => status.why == "blank",
            _ => false,
        })?;
        let id = ViewId::NONE.above(self.engine.entropy.bits());
        let entry = |(node, answer): (&Arc<N>, &Option<NodeResult>)| {
            let run = status_of(answer.as_ref()?)?.run.as_str().into();
            Some((node.id().clone(), RosterEntry { run, since: id, address: None }))
        };
        let roster = self.engine.nodes.iter().zip(answers.tally.answers()).filter_map(entry).collect();
        let view = Arc::new(View { id, roster, list: None });
        let answers = self.send_to_all(Request::Init { view: Arc::clone(&view) }.in_view(&view)).await;
        self.check_statuses(&answers.tally, |status| status.vote == Vote::Active)?;
        self.engine.views.take(&view);
        self.record(&answers);
        Ok(())
    }

    fn check_statuses(&self, tally: &Tally, is_fine: impl Fn(&NodeStatus) -> bool) -> Result<(), InitError> {
        for (node, answer) in self.engine.nodes.iter().zip(tally.answers()) {
            let id = node.id().clone();
            match answer {
                Some(Ok(Reply::Status(status))) if is_fine(status) => {}
                Some(Ok(Reply::Status(status))) if matches!(status.vote, Vote::NoVote(NoVote::ClockOff { .. })) => {
                    return Err(InitError::Unsuitable(
                        id,
                        "its clock differs from the others' by more than the guard, or it answers too slowly to tell"
                            .into(),
                    ));
                }
                Some(Ok(Reply::Status(_))) => return Err(InitError::AlreadyInitialised(id)),
                Some(Ok(_)) => return Err(InitError::Unreachable(id, UnreachableKind::Protocol)),
                Some(Err(error)) => return Err(InitError::Unreachable(id, error.kind)),
                None => return Err(InitError::Unreachable(id, UnreachableKind::Timeout)),
            }
        }
        Ok(())
    }
}
