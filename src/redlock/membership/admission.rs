//! Which nodes that have served their quarantine get the vote back now, and with which fence.

use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::protocol::{NoVote, NodeStatus, RequestTime, Vote};
use crate::types::{Fence, NodeId};

/// What the decision depends on, besides the nodes' states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// How many votes are needed.
    pub(crate) quorum: usize,
    /// The cluster clock now.
    pub(crate) now: RequestTime,
}

/// Nodes that get the vote back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// By index.
    pub(crate) nodes: Vec<usize>,
    /// They give higher fences only.
    pub(crate) seed: Fence,
    /// Too few others have a fence: it is the clock's.
    pub(crate) by_clock: bool,
}

/// Of the nodes in `ready`, those that get the vote back. `states` were read after their quarantine was over.
///
/// They are seeded with the highest fence of a quorum of *other* nodes. Where no quorum votes, all nodes must answer that
/// they vote or wait: then everything that anybody knows is known, and the seed is at least the cluster clock. Without the
/// last one, two clusters whose lists overlap could each get a quorum: it may vote for the other one (seed 1544 of the
/// simulation).
pub(crate) fn admission(
    names: &[NodeId],
    states: &[Option<NodeStatus>],
    ready: &[usize],
    terms: &Terms,
) -> Option<Admission> {
    let answered = || states.iter().enumerate().filter_map(|(i, s)| Some((i, s.as_ref()?)));
    let votes: Vec<Fence> = answered().filter(|(_, s)| s.vote == Vote::Active).map(|(_, s)| s.high_water).collect();
    let is_waiting = |s: &NodeStatus| matches!(s.vote, Vote::NoVote(NoVote::Unseeded { .. }));
    let waiting: Vec<(usize, &NodeStatus)> = answered().filter(|(_, s)| is_waiting(s)).collect();
    let nodes: Vec<usize> = waiting.iter().map(|(i, _)| *i).filter(|i| ready.contains(i)).collect();
    let nodes: Vec<usize> = nodes.into_iter().filter(|i| rival(names, states, *i).is_none()).collect();
    if nodes.is_empty() {
        return None;
    }
    let required = if mutant::is(Mutant::SeedFromOne) { 1 } else { terms.quorum };
    if votes.len() >= required {
        return votes.into_iter().max().map(|seed| Admission { nodes, seed, by_clock: false });
    }
    if votes.len() + waiting.len() < states.len() {
        return None;
    }
    let known = votes.into_iter().chain(waiting.iter().map(|(_, s)| s.high_water));
    let seed = known.chain([Fence(terms.now.0)]).max()?;
    Some(Admission { nodes, seed, by_clock: true })
}

/// The run of another process under a node's name, which an instance saw alive within the last seconds: the name leads to two
/// servers.
pub(crate) fn rival(names: &[NodeId], states: &[Option<NodeStatus>], node: usize) -> Option<Arc<str>> {
    let (name, own) = (names.get(node)?, states.get(node)?.as_ref()?);
    let mut seen = states.iter().flatten().filter_map(|s| s.alive.get(name));
    seen.find(|run| ***run != *own.run).cloned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const NOW_US: u64 = 1_700_000_000_000_000;

    fn names() -> Vec<NodeId> {
        ["a", "b", "c"].map(|name| NodeId::parse(name).expect("valid")).to_vec()
    }

    fn state(vote: Vote, fence: u64, waits_since_us: u64) -> Option<NodeStatus> {
        Some(NodeStatus {
            vote,
            now_us: NOW_US,
            high_water: Fence(fence),
            run: format!("run{fence}"),
            why: String::new(),
            since_us: 0,
            until_us: waits_since_us,
            alive: BTreeMap::new(),
        })
    }

    fn votes(fence: u64) -> Option<NodeStatus> {
        state(Vote::Active, fence, 0)
    }

    fn waits(fence: u64, since_us: u64) -> Option<NodeStatus> {
        state(Vote::NoVote(NoVote::Unseeded { high_water: Fence(fence) }), fence, since_us)
    }

    fn decide(states: &[Option<NodeStatus>]) -> Option<Admission> {
        let terms = Terms { quorum: 2, now: RequestTime(NOW_US) };
        admission(&names(), states, &[0, 1, 2], &terms)
    }

    #[test]
    fn the_seed_is_the_highest_fence_of_a_quorum_of_others() {
        let admitted = Admission { nodes: vec![0], seed: Fence(9), by_clock: false };
        assert_eq!(decide(&[waits(99, 0), votes(9), votes(7)]), Some(admitted));
    }

    #[test]
    fn where_all_forgot_the_seed_is_at_least_the_clock() {
        let admitted = Admission { nodes: vec![0, 2], seed: Fence(NOW_US), by_clock: true };
        assert_eq!(decide(&[waits(1, NOW_US), votes(9), waits(2, NOW_US)]), Some(admitted));
    }

    #[test]
    fn where_a_node_stays_away_the_others_wait_for_it_however_long() {
        assert_eq!(decide(&[waits(1, 0), votes(9), None]), None);
        assert_eq!(decide(&[waits(1, 0), waits(2, 0), None]), None);
        let other = Vote::NoVote(NoVote::OtherCluster { theirs: "another".into() });
        assert_eq!(decide(&[waits(1, 0), waits(2, 0), state(other, 3, 0)]), None);
    }

    /// F1: a moved address leads to a blank server while the former one lives.
    #[test]
    fn f1_a_newcomer_gets_no_vote_while_its_predecessor_is_alive() {
        let mut witness = votes(7);
        witness.as_mut().expect("a state").alive = [(names().remove(0), "another".into())].into();
        assert_eq!(decide(&[waits(1, 0), votes(9), witness.clone()]), None);
        assert_eq!(rival(&names(), &[waits(1, 0), None, witness], 0).as_deref(), Some("another"));
        let mut same = votes(7);
        same.as_mut().expect("a state").alive = [(names().remove(0), "run1".into())].into();
        assert!(decide(&[waits(1, 0), votes(9), same]).is_some(), "it is the one that was seen");
    }
}
