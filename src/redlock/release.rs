//! Release, forced release and revocation: one idempotent pass over all nodes, in a task of its own,
//! so that a caller who goes away does not stop it. What the pass did not reach is tried again
//! within the bounds of the clean-up; the TTL ends the rest.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::oneshot;

use super::cleanup::CLEANUP_MAX;
use super::clock::Clock;
use super::engine::Redlock;
use super::entropy::Entropy;
use super::node::Node;
use super::quorum::{Decision, NodeOutcome, Tally, Verdict};
use super::round::Until;
use crate::mutant::{Mutant, is};
use crate::protocol::{
    DeleteForeignArgs, EndReason, Found, NodeInspection, NodeResult, ReleaseArgs, Released, Reply, Request, RevokeArgs,
};
use crate::types::{ResourceName, TokenHash};

/// What a release came to.
#[derive(Debug, Clone)]
pub enum ReleaseOutcome {
    /// The lease was there and is gone.
    Released,
    /// Somebody else holds the resource; untouched.
    NotHolder,
    /// It was gone already: ended before for this reason, or (`None`) run out.
    Gone(Option<EndReason>),
    /// Too few nodes answered, or remember, to know. The rest is tried in the background.
    Unknown {
        /// Nodes on which it was released.
        released: usize,
        /// What each node said.
        nodes: Vec<NodeOutcome>,
    },
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Ends the lease of `token` for good and leaves a tombstone, so that no late duplicate of its
    /// acquire can come back.
    ///
    /// Cancel: the release goes on in its own task.
    pub async fn release(&self, resource: &ResourceName, token: &TokenHash, reason: EndReason) -> ReleaseOutcome {
        self.release_then(resource, token, reason, || {}).await
    }

    /// The same; `sent` is called when the release was handed to every node's connection: what is
    /// asked from then on arrives behind it, on each of them.
    ///
    /// Cancel: as [`Self::release`]; `sent` is called all the same.
    pub async fn release_then(
        &self,
        resource: &ResourceName,
        token: &TokenHash,
        reason: EndReason,
        sent: impl FnOnce() + Send + 'static,
    ) -> ReleaseOutcome {
        self.end(Request::Release(ReleaseArgs { resource: resource.clone(), token: token.clone(), reason }), sent).await
    }

    /// Deletes a foreigner's lock on the nodes where it still has this fingerprint.
    ///
    /// Cancel: goes on in its own task.
    pub async fn delete_foreign(&self, resource: &ResourceName, fingerprint: Arc<str>) -> ReleaseOutcome {
        self.end(Request::DeleteForeign(DeleteForeignArgs { resource: resource.clone(), fingerprint }), || {}).await
    }

    async fn end(&self, request: Request, sent: impl FnOnce() + Send + 'static) -> ReleaseOutcome {
        let (answer, outcome) = oneshot::channel();
        let engine = self.clone();
        self.tasks.spawn(async move {
            let started = engine.clock.now();
            let deadline = started.plus(engine.settings.node_timeout);
            let everyone = engine.everyone();
            let pass = engine.round(&everyone, request.clone(), started, deadline, Until::Won, found_it);
            let mut pass = std::pin::pin!(pass);
            // The first poll of a round hands its request to every node.
            let first = poll_fn(|cx| Poll::Ready(pass.as_mut().poll(cx))).await;
            sent();
            let tally = match first {
                Poll::Ready(tally) => tally,
                Poll::Pending => pass.await,
            };
            // Stragglers of a won pass are awaited by the round; what failed is tried again here.
            let failed = |(i, a): (usize, &NodeResult)| a.is_err().then_some(i);
            let left: Vec<usize> = tally.received().filter_map(failed).collect();
            let about = match &request {
                Request::Release(ReleaseArgs { resource, .. }) => Some(resource.clone()),
                _ => None,
            };
            if !left.is_empty() {
                engine.deliver(request, left, started.plus(CLEANUP_MAX));
            }
            let outcome = match (engine.release_outcome(&tally, None), about) {
                (ReleaseOutcome::NotHolder | ReleaseOutcome::Gone(None), Some(resource))
                    if !is(Mutant::ReleaseBelievesAll) =>
                {
                    engine.release_outcome(&tally, Some(&engine.votes_on(resource).await))
                }
                (outcome, _) => outcome,
            };
            // The caller may be gone: its answer then goes nowhere, the release stays.
            let _ = answer.send(outcome);
        });
        outcome.await.unwrap_or(ReleaseOutcome::Unknown { released: 0, nodes: Vec::new() })
    }

    /// Refuses renewals from now on. Returns the longest time left on a node, in milliseconds, where
    /// a quorum has taken note.
    ///
    /// Cancel: nodes that were asked may have taken note.
    pub async fn revoke(&self, resource: &ResourceName, token: &TokenHash) -> Result<u64, ReleaseOutcome> {
        let request = Request::Revoke(RevokeArgs { resource: resource.clone(), token: token.clone() });
        let started = self.clock.now();
        let deadline = started.plus(self.settings.node_timeout);
        let is_yes = |a: &NodeResult| matches!(a, Ok(Reply::Revoked { .. }));
        let tally = self.round(&self.everyone(), request, started, deadline, Until::All, is_yes).await;
        let left = tally.received().filter_map(|(_, a)| match a {
            Ok(Reply::Revoked { left_ms }) => Some(*left_ms),
            _ => None,
        });
        match (tally.decision(), left.max()) {
            (Decision::Reached, Some(left_ms)) => Ok(left_ms),
            _ => Err(self.release_outcome(&tally, None)),
        }
    }

    /// Who may vote. A release asks nobody for a vote, so that it is always possible; this is asked
    /// behind it, and only before a holder is told that its lease was lost.
    async fn votes_on(&self, resource: ResourceName) -> Tally {
        let started = self.clock.now();
        let deadline = started.plus(self.settings.node_timeout);
        let request = Request::Inspect { resource };
        self.round(&self.everyone(), request, started, deadline, Until::WonAndGrace, may_vote).await
    }

    /// Released, if it was on any node and may have been on a quorum; otherwise what a quorum says. A
    /// node that is known (`votes`) to have no vote, or is not known to have one, may have forgotten the
    /// lease: that it has none says nothing.
    fn release_outcome(&self, tally: &Tally, votes: Option<&Tally>) -> ReleaseOutcome {
        let counts = |index: usize| {
            votes.is_none_or(|votes| votes.answers().get(index).and_then(Option::as_ref).is_some_and(may_vote))
        };
        let (mut mine, mut other, mut nothing, mut earlier) = (0, 0, 0, None);
        for (index, answer) in tally.received() {
            match answer {
                Ok(Reply::Released(Released { found, earlier: before })) => {
                    match found {
                        Found::Match => mine += 1,
                        Found::Other if counts(index) => other += 1,
                        Found::Nothing if counts(index) => nothing += 1,
                        Found::Other | Found::Nothing => {}
                    }
                    earlier = earlier.or(*before);
                }
                Ok(Reply::Revoked { .. }) => mine += 1,
                Ok(Reply::Other { .. }) => other += 1,
                Ok(Reply::Missing) => nothing += 1,
                _ => {}
            }
        }
        let unknown = self.nodes.len() - (mine + other + nothing);
        let is_reached = tally.received().filter(|(_, a)| a.is_ok()).count() >= self.quorum();
        if is_reached && mine > 0 && mine + unknown >= self.quorum() {
            return ReleaseOutcome::Released;
        }
        if !is_reached || (earlier.is_none() && other + nothing < self.quorum()) {
            let mut nodes = self.outcomes(tally.answers());
            for (index, answer) in votes.into_iter().flat_map(Tally::received) {
                if let (Ok(Reply::Inspected(NodeInspection { no_vote: Some(why), .. })), Some(node)) =
                    (answer, nodes.get_mut(index))
                {
                    node.verdict = Verdict::NoVote(why.clone());
                }
            }
            return ReleaseOutcome::Unknown { released: mine, nodes };
        }
        match earlier {
            Some(reason) => ReleaseOutcome::Gone(Some(reason)),
            None if other > 0 => ReleaseOutcome::NotHolder,
            None => ReleaseOutcome::Gone(None),
        }
    }
}

fn may_vote(answer: &NodeResult) -> bool {
    matches!(answer, Ok(Reply::Inspected(NodeInspection { no_vote: None, .. })))
}

fn found_it(answer: &NodeResult) -> bool {
    matches!(answer, Ok(Reply::Released(Released { found: Found::Match, .. })))
}
