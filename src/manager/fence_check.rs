//! Checks whether a fence is that of the current lease. Like every read, the answer is about the past: only a
//! comparison within the protected store's own write protects it.

use std::cmp::Ordering;
use std::time::Duration;

use super::service::LockManager;
use super::types::NoQuorum;
use crate::protocol::{LeaseRecord, NodeInspection, NodeResult, Reply, StoredLock};
use crate::redlock::clock::Clock;
use crate::redlock::inspect::{ClusterInspection, ResourceState};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{Fence, ResourceName, TokenId};

/// What a quorum of nodes knows of a fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FenceState {
    /// The fence belongs to the current lease.
    Current {
        /// Identifies the current lease.
        token_id: TokenId,
        /// Maximum time left until the lease's deadline.
        valid_for: Duration,
    },
    /// A larger fence has been given.
    Stale {
        /// The largest fence that the nodes remember.
        newest: Fence,
    },
    /// The fence is the largest that was given, and its lease is over.
    Over,
    /// The fence is larger than every fence that was given.
    NeverGiven {
        /// The largest fence that the nodes remember.
        newest: Fence,
    },
    /// The nodes remember no fence of this resource.
    Forgotten,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Checks a fence of one resource.
    ///
    /// Errors: [`NoQuorum`] if too few nodes answered, or too few of those that answered forgot nothing.
    /// Cancel: nothing is left behind.
    pub async fn check_fence(&self, resource: &ResourceName, fence: Fence) -> Result<FenceState, NoQuorum> {
        let inspected = self.engine().inspect(resource).await;
        let inspected = inspected.map_err(|answers| self.no_quorum(0, self.engine().outcomes(&answers)))?;
        let (quorum, lock_delay) = (self.engine().quorum(), self.engine().terms().lock_delay);
        fence_state(&inspected, fence, quorum, lock_delay)
            .ok_or_else(|| self.no_quorum(0, self.engine().outcomes(&inspected.answers)))
    }
}

/// The state of `fence`; `None` if the answers do not decide it.
fn fence_state(inspected: &ClusterInspection, fence: Fence, quorum: usize, lock_delay: Duration) -> Option<FenceState> {
    // One node alone may show any fence.
    let is_agreed =
        |record: &LeaseRecord| inspected.agreement(&record.token, quorum).is_none_or(|agreement| agreement.has_fence);
    if let ResourceState::Members(members) = &inspected.state {
        let standing = members.iter().find(|member| member.record.fence == fence && member.agreeing >= quorum);
        if let Some(member) = standing {
            if !is_agreed(&member.record) {
                return None;
            }
            let (token_id, valid_for) = (member.record.token.id(), member.left.saturating_sub(lock_delay));
            let is_over = valid_for.is_zero();
            return Some(if is_over { FenceState::Over } else { FenceState::Current { token_id, valid_for } });
        }
    }
    if let ResourceState::Lease { record, left } = &inspected.state
        && inspected.agreeing >= quorum
    {
        if !is_agreed(record) {
            return None;
        }
        let (newest, valid_for) = (record.fence, left.saturating_sub(lock_delay));
        return Some(match fence.cmp(&newest) {
            Ordering::Less => FenceState::Stale { newest },
            Ordering::Greater => FenceState::NeverGiven { newest },
            Ordering::Equal if valid_for.is_zero() => FenceState::Over,
            Ordering::Equal => FenceState::Current { token_id: record.token.id(), valid_for },
        });
    }
    // This node and those that did not answer may hold the fence, or an ended acquire may have left it behind.
    if inspected.answers.iter().any(|answer| holds(answer, fence)) {
        return None;
    }
    // A quorum that forgot nothing has at least one node of every lease's quorum.
    let remembering: Vec<&NodeInspection> = inspected.answers.iter().filter_map(remembers).collect();
    if remembering.len() < quorum {
        return None;
    }
    let mut newest: Vec<Fence> = remembering.iter().map(|node| node.fence).collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    // If every node remembers, a fence that only one of them has does not count.
    let (largest, is_all) = (newest.first().copied().unwrap_or(Fence(0)), newest.len() == inspected.answers.len());
    let newest = newest.get(usize::from(is_all && newest.len() > 2)).copied().unwrap_or(largest);
    if newest < fence && fence <= largest {
        return None;
    }
    Some(match fence.cmp(&newest) {
        _ if newest == Fence(0) => FenceState::Forgotten,
        Ordering::Less => FenceState::Stale { newest },
        Ordering::Equal => FenceState::Over,
        Ordering::Greater => FenceState::NeverGiven { newest },
    })
}

fn holds(answer: &Option<NodeResult>, fence: Fence) -> bool {
    match answer {
        Some(Ok(Reply::Inspected(NodeInspection { lock: StoredLock::Lease { record, .. }, .. }))) => {
            record.fence == fence
        }
        Some(Ok(Reply::Inspected(NodeInspection { lock: StoredLock::Members(members), .. }))) => {
            members.iter().any(|(record, _)| record.fence == fence)
        }
        _ => false,
    }
}

/// The answer of a node that votes, and so remembers the fences that it gave.
fn remembers(answer: &Option<NodeResult>) -> Option<&NodeInspection> {
    match answer {
        Some(Ok(Reply::Inspected(inspection))) if inspection.no_vote.is_none() => Some(inspection),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::NoVote;
    use crate::types::Token;

    const LOCK_DELAY: Duration = Duration::from_millis(100);

    fn record(fence: u64) -> LeaseRecord {
        let hash = Token::parse("a-token-of-22-characters").expect("valid").hash();
        let text = format!("{}|000000|30000|{fence}|0123456789abcdef,|", hash.as_str());
        LeaseRecord::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text}"))
    }

    /// A node's answer: its counter, and whether it votes.
    fn node(fence: u64, votes: bool) -> Option<NodeResult> {
        let no_vote = (!votes).then_some(NoVote::Quarantined { left_ms: 1 });
        Some(Ok(Reply::Inspected(NodeInspection { no_vote, lock: StoredLock::Free, fence: Fence(fence) })))
    }

    /// A voting node that stores the lease with this fence.
    fn holder(fence: u64) -> Option<NodeResult> {
        let lock = StoredLock::Lease { record: record(fence), left_ms: 1_100 };
        Some(Ok(Reply::Inspected(NodeInspection { no_vote: None, lock, fence: Fence(fence) })))
    }

    fn free(answers: Vec<Option<NodeResult>>) -> ClusterInspection {
        ClusterInspection { state: ResourceState::Free, agreeing: 2, answers }
    }

    fn leased(fence: u64, left_ms: u64, agreeing: usize, answers: Vec<Option<NodeResult>>) -> ClusterInspection {
        let state = ResourceState::Lease { record: record(fence), left: Duration::from_millis(left_ms) };
        ClusterInspection { state, agreeing, answers }
    }

    fn of(inspected: &ClusterInspection, fence: u64) -> Option<FenceState> {
        fence_state(inspected, Fence(fence), 2, LOCK_DELAY)
    }

    #[test]
    fn the_lease_that_stands_decides() {
        // A counter may be ahead of every lease: a withdrawn attempt raised it.
        let stands = leased(7, 1_100, 2, vec![node(7, true), node(9, true), None]);
        let token_id = record(7).token.id();
        assert_eq!(of(&stands, 7), Some(FenceState::Current { token_id, valid_for: Duration::from_secs(1) }));
        assert_eq!(of(&stands, 6), Some(FenceState::Stale { newest: Fence(7) }));
        assert_eq!(of(&stands, 8), Some(FenceState::NeverGiven { newest: Fence(7) }));
        let in_lock_delay = leased(7, 100, 2, vec![node(7, true), node(7, true), None]);
        assert_eq!(of(&in_lock_delay, 7), Some(FenceState::Over));
    }

    #[test]
    fn without_a_lease_the_counters_decide() {
        let over = free(vec![node(7, true), node(5, true), None]);
        assert_eq!(of(&over, 7), Some(FenceState::Over));
        assert_eq!(of(&over, 6), Some(FenceState::Stale { newest: Fence(7) }));
        assert_eq!(of(&over, 8), Some(FenceState::NeverGiven { newest: Fence(7) }));
        assert_eq!(of(&free(vec![node(0, true), node(0, true), None]), 6), Some(FenceState::Forgotten));
    }

    #[test]
    fn one_nodes_counter_or_record_makes_no_fence_stale() {
        let over = free(vec![node(7, true), node(7, true), node(900, true)]);
        assert_eq!(
            (of(&over, 7), of(&over, 6)),
            (Some(FenceState::Over), Some(FenceState::Stale { newest: Fence(7) }))
        );
        assert_eq!((of(&over, 900), of(&over, 901)), (None, Some(FenceState::NeverGiven { newest: Fence(7) })));
        let open = leased(900, 1_100, 2, vec![holder(7), holder(900), None]);
        assert_eq!((of(&open, 900), of(&open, 7)), (None, None));
    }

    #[test]
    fn too_few_nodes_that_remember_decide_nothing() {
        assert_eq!(of(&free(vec![node(7, true), node(0, false), None]), 7), None);
        // Two leases, each on one of three nodes: either may stand on the one that did not answer.
        let remnants = leased(7, 1_100, 1, vec![holder(7), holder(8), None]);
        assert_eq!((of(&remnants, 7), of(&remnants, 8)), (None, None));
        assert_eq!(of(&remnants, 5), Some(FenceState::Stale { newest: Fence(8) }));
    }
}
