//! The rules of the quorum as pure functions, to be compared with the paper and property-tested.
//!
//! Source: the Redis manual's distributed-locks page.

use std::sync::Arc;
use std::time::Duration;

use crate::mutant::{self, Mutant};
use crate::protocol::{EndReason, Found, NoVote, NodeInspection, NodeResult, Released, Reply, UnreachableKind, View};
use crate::types::{Fence, NodeId, TokenHash};

/// The quorum: N/2 + 1 of the *configured* nodes, whether or not they can be reached.
pub(crate) fn quorum_of(nodes: usize) -> usize {
    if mutant::is(Mutant::QuorumHalf) {
        return (nodes / 2).max(1);
    }
    nodes / 2 + 1
}

/// So many of `nodes` that every quorum has one of them: more than a minority.
pub(crate) fn more_than_a_minority(nodes: usize) -> usize {
    nodes - quorum_of(nodes) + 1
}

/// Whether a vote can still change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A quorum said yes.
    Reached,
    /// A quorum can no longer be reached.
    Impossible,
    /// The decision depends on answers that are still missing.
    Open,
}

/// Counts the answers of one round, by node index.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    answers: Vec<Option<NodeResult>>,
    yes: usize,
    no: usize,
    /// Number of nodes of the list, known or not.
    size: usize,
    view: Arc<View>,
}

impl Tally {
    /// A tally for a round over all of `nodes` nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        Self::in_view((nodes, nodes), Arc::default())
    }

    /// A tally for a round over a list of `size` nodes, for an instance that knows `known` nodes. The votes count in this view.
    pub(crate) fn in_view((known, size): (usize, usize), view: Arc<View>) -> Self {
        Self { answers: (0..known).map(|_| None).collect(), yes: 0, no: 0, size, view }
    }

    /// How many votes are needed.
    pub(crate) fn quorum(&self) -> usize {
        quorum_of(self.size)
    }

    /// How many nodes may vote.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The view in which these votes count.
    pub(crate) fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Records one node's answer; only the node's first answer counts.
    pub(crate) fn record(&mut self, index: usize, answer: NodeResult, is_yes: bool) {
        let Some(slot @ None) = self.answers.get_mut(index) else { return };
        *slot = Some(answer);
        if is_yes {
            self.yes += 1;
        } else {
            self.no += 1;
        }
    }

    /// State of the vote.
    pub(crate) fn decision(&self) -> Decision {
        let quorum = self.quorum();
        if self.yes >= quorum {
            Decision::Reached
        } else if self.size.saturating_sub(self.no) < quorum {
            Decision::Impossible
        } else {
            Decision::Open
        }
    }

    /// How many further answers can decide the vote at the earliest; `usize::MAX` if it is decided.
    pub(crate) fn least_to_decide(&self) -> usize {
        let quorum = self.quorum();
        match self.decision() {
            Decision::Open => (quorum - self.yes).min(self.size.saturating_sub(self.no) + 1 - quorum),
            Decision::Reached | Decision::Impossible => usize::MAX,
        }
    }

    /// Number of yes-votes so far.
    pub(crate) fn yes(&self) -> usize {
        self.yes
    }

    /// The answers so far, by node index.
    pub(crate) fn answers(&self) -> &[Option<NodeResult>] {
        &self.answers
    }

    /// The same votes, each with its meaning for one part of the request.
    pub(crate) fn map(&self, meaning: impl Fn(&NodeResult) -> NodeResult) -> Self {
        let answers = self.answers.iter().map(|answer| answer.as_ref().map(&meaning)).collect();
        Self { answers, yes: self.yes, no: self.no, size: self.size, view: Arc::clone(&self.view) }
    }

    /// Removes and returns one node's answer.
    pub(crate) fn take(&mut self, index: usize) -> Option<NodeResult> {
        self.answers.get_mut(index).and_then(Option::take)
    }

    /// The answers received so far, with their node indexes.
    pub(crate) fn received(&self) -> impl Iterator<Item = (usize, &NodeResult)> {
        self.answers.iter().enumerate().filter_map(|(i, a)| a.as_ref().map(|a| (i, a)))
    }
}

/// The earliest time after which a quorum can be free, given how long the resource is still held on each node: the
/// q-th smallest time. `None`, for a node or as the result: unknown.
pub(crate) fn quorum_free_in(held: impl IntoIterator<Item = Option<Duration>>, quorum: usize) -> Option<Duration> {
    let mut known: Vec<Duration> = held.into_iter().flatten().collect();
    known.sort_unstable();
    known.get(quorum.checked_sub(1)?).copied()
}

/// One node's part in an outcome, as reported to callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOutcome {
    pub node: NodeId,
    /// The node's answer, in short.
    pub verdict: Verdict,
}

/// The part of a node's answer that explains the outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The node granted, or agreed to the change.
    Granted,
    /// Another lock holds the resource; `left_ms` is `None` for a key without a TTL.
    Held { left_ms: Option<u64>, holder: Option<(TokenHash, Fence)> },
    /// The node does not have the lease.
    Missing,
    /// The node has another lease.
    Other,
    /// The token's lease was released, cancelled or revoked.
    Ended(EndReason),
    /// The node refused: too many claims, or a fence too far ahead.
    Refused,
    /// The node may not vote; with the reason.
    NoVote(NoVote),
    /// There was no usable answer.
    Unreachable(UnreachableKind),
    /// The outcome was certain before the node answered.
    NotAwaited,
}

/// Why this instance asks no node for a vote yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAsked {
    /// A view and the nodes' time are not known before a quorum has answered.
    NoQuorum,
    /// See [`ClusterClock::is_order_due`](super::cluster_clock::ClusterClock::is_order_due).
    OrderDue,
}

impl Verdict {
    /// The verdict of an answer; `None`: there is no answer yet.
    pub fn of(answer: Option<&NodeResult>) -> Self {
        match answer {
            None => Self::NotAwaited,
            Some(Err(error)) => Self::Unreachable(error.kind),
            Some(Ok(reply)) => Self::of_reply(reply),
        }
    }

    fn of_reply(reply: &Reply) -> Self {
        match reply {
            Reply::Held { left_ms, record } => {
                Self::Held { left_ms: *left_ms, holder: record.as_ref().map(|r| (r.token.clone(), r.fence)) }
            }
            Reply::HeldByMembers(held) => Self::Held {
                left_ms: Some(held.left_ms),
                holder: held.members.first().map(|r| (r.token.clone(), r.fence)),
            },
            Reply::ModeDiffers { .. } => Self::Other,
            Reply::SetRefused { refused } => match refused.first() {
                Some((_, why)) => Self::of_reply(why),
                None => Self::Refused,
            },
            Reply::Missing => Self::Missing,
            Reply::Other { .. } => Self::Other,
            Reply::Ended { reason } => Self::Ended(*reason),
            Reply::TooManyClaims | Reply::FenceTooFarAhead => Self::Refused,
            Reply::NoVote(no_vote) | Reply::Inspected(NodeInspection { no_vote: Some(no_vote), .. }) => {
                Self::NoVote(no_vote.clone())
            }
            Reply::Released(Released { found: Found::Nothing, .. }) => Self::Missing,
            Reply::Released(Released { found: Found::Other, .. }) => Self::Other,
            _ => Self::Granted,
        }
    }

    /// Stable text for answers and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Held { .. } => "held",
            Self::Missing => "missing",
            Self::Other => "other-holder",
            Self::Ended(_) => "ended",
            Self::Refused => "refused",
            Self::NoVote(NoVote::Quarantined { .. }) => "quarantined",
            Self::NoVote(NoVote::Unseeded { .. }) => "awaiting-seed",
            Self::NoVote(NoVote::Blocked { .. }) => "blocked",
            Self::NoVote(NoVote::ClockOff { .. }) => "clock-off",
            Self::NoVote(NoVote::OtherCluster { .. }) => "other-cluster",
            Self::NoVote(NoVote::OtherView { .. }) => "other-view",
            Self::NoVote(NoVote::OtherProcess { .. }) => "other-process",
            Self::NoVote(NoVote::NewerProtocol { .. }) => "newer-protocol",
            Self::Unreachable(kind) => kind.as_str(),
            Self::NotAwaited => "not-awaited",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Unreachable;
    use proptest::prelude::*;

    /// T02 and T03: an integer, of the configured nodes.
    #[test]
    fn t02_t03_the_quorum_is_a_majority_of_the_configured_nodes() {
        assert_eq!([1, 2, 3, 4, 5, 7].map(quorum_of), [1, 2, 2, 3, 3, 4]);
    }

    #[test]
    fn a_quorum_is_free_after_the_qth_smallest_ttl() {
        let ms = |n| Some(Duration::from_millis(n));
        assert_eq!(quorum_free_in([ms(900), ms(100), ms(500)], 2), ms(500));
        assert_eq!(quorum_free_in([ms(0), None, ms(70)], 2), ms(70));
        assert_eq!(quorum_free_in([None, None, ms(70)], 2), None);
        assert_eq!(quorum_free_in([ms(3)], 1), ms(3));
    }

    fn yes() -> NodeResult {
        Ok(Reply::Granted { fence: Fence(1), joined: false })
    }

    fn no() -> NodeResult {
        Err(Unreachable::new(UnreachableKind::Timeout, "late"))
    }

    /// T01: with an even N, a tied vote is decided and not left open.
    #[test]
    fn t01_a_tie_is_impossible_not_open() {
        for nodes in [2, 4] {
            let mut tally = Tally::new(nodes);
            for i in 0..nodes / 2 {
                tally.record(i, yes(), true);
                tally.record(nodes / 2 + i, no(), false);
            }
            assert_eq!(tally.decision(), Decision::Impossible);
        }
    }

    proptest! {
        #[test]
        fn two_quorums_always_overlap(nodes in 1usize..=15) {
            prop_assert!(2 * quorum_of(nodes) > nodes);
            prop_assert!(quorum_of(nodes) <= nodes);
        }

        #[test]
        fn a_decision_once_made_stays(votes in proptest::collection::vec(any::<bool>(), 1..=15)) {
            let mut tally = Tally::new(votes.len());
            let mut decided = Decision::Open;
            for (i, vote) in votes.iter().enumerate() {
                tally.record(i, if *vote { yes() } else { no() }, *vote);
                if decided != Decision::Open {
                    prop_assert_eq!(tally.decision(), decided);
                }
                decided = tally.decision();
            }
            prop_assert_ne!(decided, Decision::Open);
            let in_favour = votes.iter().filter(|v| **v).count();
            prop_assert_eq!(decided == Decision::Reached, in_favour >= quorum_of(votes.len()));
        }

        #[test]
        fn a_second_answer_of_a_node_does_not_count(nodes in 2usize..=9) {
            let mut tally = Tally::new(nodes);
            for _ in 0..nodes {
                tally.record(0, yes(), true);
            }
            prop_assert_eq!(tally.yes(), 1);
        }
    }
}
