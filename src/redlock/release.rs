//! Release, forced release and revocation: one idempotent round over all nodes, in a task of its own, so that it
//! continues if the caller disconnects. The caller is answered as soon as a quorum has confirmed. The clean-up
//! retries nodes that failed or were silent, and the TTL ends the rest.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::oneshot;

use super::cleanup::CLEANUP_MAX;
use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::fan_out::Order;
use super::node::Node;
use super::quorum::{Decision, NodeOutcome, Tally, Verdict};
use super::random::Entropy;
use super::round::{Round, Until};
use crate::mutant::{Mutant, is};
use crate::protocol::{
    DeleteForeignArgs, EndReason, Found, NodeInspection, NodeResult, ReleaseArgs, Released, Reply, Request, RevokeArgs,
};
use crate::types::{ResourceName, TokenHash};

/// Result of a release.
#[derive(Debug, Clone)]
pub enum ReleaseOutcome {
    /// The lease was held and is released.
    Released,
    /// Another lease holds the resource; nothing was changed.
    NotHolder,
    /// The lease had ended already: for this reason, or (`None`) because it expired.
    Gone(Option<EndReason>),
    /// Too few nodes answered, or have a vote, to know. Nodes that failed are retried in the background.
    Unknown {
        /// Number of nodes on which the lease was released.
        released: usize,
        /// The verdict of each node.
        nodes: Vec<NodeOutcome>,
    },
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Ends the lease of `token` and leaves a tombstone, so that a late duplicate of its acquire is
    /// refused.
    ///
    /// Cancel: the release continues in its own task.
    pub async fn release(&self, resource: &ResourceName, token: &TokenHash, reason: EndReason) -> ReleaseOutcome {
        self.release_then(resource, token, reason, || {}, |_| {}).await
    }

    /// As `release`; `sent` is called when the release was handed to the connection of every node that may have the lease: requests
    /// sent from then on arrive after it on each node. `ended` is called with the outcome.
    ///
    /// Cancel: as [`Self::release`]; both functions are still called.
    pub async fn release_then(
        &self,
        resource: &ResourceName,
        token: &TokenHash,
        reason: EndReason,
        sent: impl FnOnce() + Send + 'static,
        ended: impl FnOnce(&ReleaseOutcome) + Send + 'static,
    ) -> ReleaseOutcome {
        self.late.remove(resource, token);
        let order = self.release_order(resource, token);
        let request = Request::Release(ReleaseArgs { resource: resource.clone(), token: token.clone(), reason });
        self.end(request, order, sent, ended).await
    }

    /// Deletes a foreign client's lock on the nodes where it still has this fingerprint.
    ///
    /// Cancel: the deletion continues in its own task.
    pub async fn delete_foreign(&self, resource: &ResourceName, fingerprint: Arc<str>) -> ReleaseOutcome {
        let request = Request::DeleteForeign(DeleteForeignArgs { resource: resource.clone(), fingerprint });
        self.end(request, Order::all(self.everyone()), || {}, |_| {}).await
    }

    async fn end(
        &self,
        request: Request,
        order: Order,
        sent: impl FnOnce() + Send + 'static,
        ended: impl FnOnce(&ReleaseOutcome) + Send + 'static,
    ) -> ReleaseOutcome {
        let (answer, outcome) = oneshot::channel();
        let engine = self.clone();
        // Boxed: a task is moved several times until it runs.
        self.tasks.spawn(Box::pin(async move {
            let started = engine.clock.now();
            let deadline = started.plus(engine.node_timeout());
            let round = engine.round_in_order(order, request.clone(), started, deadline, Until::Won, is_found);
            let mut round = std::pin::pin!(round);
            // The first poll of a round hands its request to every node.
            let first = poll_fn(|cx| Poll::Ready(round.as_mut().poll(cx))).await;
            sent();
            let Round { tally, late, .. } = match first {
                Poll::Ready(done) => done,
                Poll::Pending => round.await,
            };
            let resource = match &request {
                Request::Release(ReleaseArgs { resource, .. }) => Some(resource.clone()),
                _ => None,
            };
            let outcome = match (engine.release_outcome(&tally, None), resource) {
                (ReleaseOutcome::NotHolder | ReleaseOutcome::Gone(None), Some(resource))
                    if !is(Mutant::ReleaseBelievesAll) =>
                {
                    let votes = Box::pin(engine.votes_on(resource)).await;
                    engine.release_outcome(&tally, Some((&votes, started)))
                }
                (outcome, _) => outcome,
            };
            // Called in this task, since the caller may have disconnected.
            ended(&outcome);
            let _ = answer.send(outcome);
            let failed = |(i, a): (usize, &NodeResult)| a.is_err().then_some(i);
            let mut left: Vec<usize> = tally.received().filter_map(failed).collect();
            // The release took effect, but a node that keeps the key blocks the resource once another node fails.
            if let Some(late) = late
                && !is(Mutant::ReleaseStopsAtQuorum)
            {
                left.extend(engine.failures(late, deadline).await);
            }
            if !left.is_empty() {
                engine.deliver_release(request, left, started.plus(CLEANUP_MAX));
            }
        }));
        outcome.await.unwrap_or(ReleaseOutcome::Unknown { released: 0, nodes: Vec::new() })
    }

    /// Makes the nodes refuse extends of this lease. Returns the longest time left on a node, in
    /// milliseconds, once a quorum has confirmed.
    ///
    /// Cancel: some nodes may refuse extends, others not.
    pub async fn revoke(&self, resource: &ResourceName, token: &TokenHash) -> Result<u64, ReleaseOutcome> {
        self.spread_first(resource, token).await;
        let request = Request::Revoke(RevokeArgs { resource: resource.clone(), token: token.clone() });
        let started = self.clock.now();
        let deadline = started.plus(self.node_timeout());
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

    /// Which nodes have a vote. A release needs no votes, so that it is always possible; they are counted after it,
    /// and only before a holder is answered that its lease was lost.
    async fn votes_on(&self, resource: ResourceName) -> Tally {
        let started = self.clock.now();
        let deadline = started.plus(self.node_timeout());
        let request = Request::Inspect { resource };
        self.round(&self.everyone(), request, started, deadline, Until::WonAndGrace, may_vote).await
    }

    /// `Released` if any node had the lease and a quorum may have had it; otherwise what a quorum reports. With
    /// `votes`, and the start of the release, a node without a confirmed vote may have forgotten the lease, so its
    /// report that it lacks the lease is ignored. The same applies to a node that was not seen voting before the
    /// release: it may have been filled after the release had ended the lease elsewhere.
    fn release_outcome(&self, tally: &Tally, votes: Option<(&Tally, BootTime)>) -> ReleaseOutcome {
        let counts = |index: usize| {
            votes.is_none_or(|(votes, started)| {
                let entry = votes.view().entry(self.nodes[index].id());
                votes.answers().get(index).and_then(Option::as_ref).is_some_and(may_vote)
                    && entry.is_some_and(|entry| self.seen_votes.before(index, entry, started))
            })
        };
        let (mut mine, mut other, mut nothing, mut earlier) = (0, 0, 0, None);
        for (index, answer) in tally.received() {
            match answer {
                Ok(Reply::Released(Released { found, earlier: ended })) => {
                    match found {
                        Found::Match => mine += 1,
                        Found::Other if counts(index) => other += 1,
                        Found::Nothing if counts(index) => nothing += 1,
                        Found::Other | Found::Nothing => {}
                    }
                    earlier = earlier.or(*ended);
                }
                Ok(Reply::Revoked { .. }) => mine += 1,
                Ok(Reply::Other { .. }) => other += 1,
                Ok(Reply::Missing) => nothing += 1,
                _ => {}
            }
        }
        let unknown = tally.size().saturating_sub(mine + other + nothing);
        let is_reached = tally.received().filter(|(_, a)| a.is_ok()).count() >= tally.quorum();
        if is_reached && mine > 0 && mine + unknown >= tally.quorum() {
            return ReleaseOutcome::Released;
        }
        if !is_reached || (earlier.is_none() && other + nothing < tally.quorum()) {
            let mut nodes = self.outcomes(tally.answers());
            for (index, answer) in votes.into_iter().flat_map(|(votes, _)| votes.received()) {
                let id = self.nodes[index].id();
                if let (Ok(Reply::Inspected(NodeInspection { no_vote: Some(why), .. })), Some(node)) =
                    (answer, nodes.iter_mut().find(|node| node.node == *id))
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

fn is_found(answer: &NodeResult) -> bool {
    matches!(answer, Ok(Reply::Released(Released { found: Found::Match, .. })))
}
