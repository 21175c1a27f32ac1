//! The fences of leases that are held together: a quorum of nodes gives one number to each lease (`docs/modes.md`). This
//! instance's simultaneous grants of one resource propose their fences together, in one *block* of rising numbers: proposed
//! separately, most would be refused for a higher one. Of the blocks of two instances, the higher block is taken.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::clock::Clock;
use super::engine::Redlock;
use super::node::Node;
use super::quorum::quorum_of;
use super::random::Entropy;
use super::round::Until;
use crate::mutant::{self, Mutant};
use crate::protocol::{AcquireSharedArgs, NodeResult, Reply, Request, UpdateArgs, UpdateKind, View};
use crate::types::{Fence, ResourceName};

/// Maximum number of rounds to have a quorum give one fence to a lease.
const MEMBER_FENCE_ROUNDS: usize = 8;
/// By how much a block may lie ahead of the numbers that nodes gave, and of the time: up to this many microseconds, doubled
/// in each further round of its first lease. It exceeds the length of a block, so that two blocks seldom overlap.
const FENCE_LEAD_US: u64 = 2_000;
/// Distance between two numbers of a block: new leases that reach a node between two proposals are given the numbers between.
const FENCE_GAP: u64 = 8;

/// The proposed blocks, by resource. Each entry belongs to callers whose attempts are being made, and ends with them.
#[derive(Debug, Clone, Default)]
pub(super) struct FenceBlocks(Arc<Mutex<HashMap<ResourceName, Block>>>);

#[derive(Debug)]
struct Block {
    /// Proposals of this block whose rounds are not over.
    in_flight: usize,
    /// The callers that propose in the next block.
    next: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// The minimum of the proposal.
    least: u64,
    /// How far a block that begins with this proposal may lie ahead.
    lead: u64,
    sender: oneshot::Sender<Proposal>,
}

/// A number to propose. While it exists, the resource's next block is not begun.
#[derive(Debug)]
struct Proposal {
    fence: Fence,
    _in_flight: Option<InFlight>,
}

impl FenceBlocks {
    /// The next number to propose, at least `least`. `lead`: how far it may lie ahead if others propose as well.
    ///
    /// Cancel: the others continue without this proposal.
    async fn next(&self, resource: &ResourceName, least: u64, lead: u64) -> Proposal {
        let receiver = {
            let mut blocks = self.0.lock();
            let Some(block) = blocks.get_mut(resource) else {
                blocks.insert(resource.clone(), Block { in_flight: 1, next: Vec::new() });
                return self.proposal(resource, least);
            };
            let (sender, receiver) = oneshot::channel();
            block.next.push(Waiting { least, lead, sender });
            receiver
        };
        receiver.await.unwrap_or(Proposal { fence: Fence(least.saturating_add(lead)), _in_flight: None })
    }

    fn proposal(&self, resource: &ResourceName, fence: u64) -> Proposal {
        let in_flight = InFlight { blocks: self.clone(), resource: resource.clone() };
        Proposal { fence: Fence(fence), _in_flight: Some(in_flight) }
    }
}

/// One proposal of a block. Dropping the last one begins the next block.
#[derive(Debug)]
struct InFlight {
    blocks: FenceBlocks,
    resource: ResourceName,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let next = {
            let mut blocks = self.blocks.0.lock();
            let Entry::Occupied(mut entry) = blocks.entry(self.resource.clone()) else { return };
            let block = entry.get_mut();
            block.in_flight -= 1;
            if block.in_flight > 0 {
                return;
            }
            let next = std::mem::take(&mut block.next);
            block.in_flight = next.len();
            if next.is_empty() {
                entry.remove();
            }
            next
        };
        let least = next.iter().map(|waiting| waiting.least).max().unwrap_or(0);
        let mut fence = least.saturating_add(next.first().map_or(0, |waiting| waiting.lead));
        for waiting in next {
            // If the caller is gone, its number comes back here and is dropped.
            drop(waiting.sender.send(self.blocks.proposal(&self.resource, fence)));
            fence = fence.saturating_add(FENCE_GAP);
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Lets a quorum give one fence to this lease. A node gives each number once, so no two leases get the same one;
    /// the rule for exclusive leases, which writes the highest fence back whoever has it, would allow that. If the
    /// answers differ, the highest is proposed to all; a node gives it if it is above all that it gave, and its next
    /// number otherwise. A proposal beside others lies ahead, since these were given numbers meanwhile. `None` if
    /// that fails, or the view changes: numbers given in two views do not add up, and may be of two lists.
    ///
    /// Why a fence is above all fences that were answered before its caller asked: a node of both quorums gave the
    /// earlier fence before it gave any number to this lease.
    pub(super) async fn settle_member_fence(
        &self,
        args: AcquireSharedArgs,
        mut given: Vec<Option<Fence>>,
        view: &Arc<View>,
    ) -> Option<Fence> {
        let (mut too_far, quorum) = (None::<Fence>, quorum_of(self.size_in(view)));
        let mut others: Vec<usize> = (0..given.len()).filter(|index| given[*index].is_some()).collect();
        for round in 0..MEMBER_FENCE_ROUNDS {
            if let Some(fence) = agreed(&given, quorum) {
                others.retain(|index| given[*index] != Some(fence));
                self.store_agreed_fence(&args, fence, others);
                return Some(fence);
            }
            let possible = given.iter().flatten().filter(|fence| too_far.is_none_or(|far| **fence < far));
            let highest = possible.max().copied()?.0;
            let proposal = match too_far {
                // The proposals of others may be too far ahead as well.
                Some(_) => Proposal { fence: Fence(highest), _in_flight: None },
                None => {
                    let present = if round > 0 { self.cluster_clock.request_time().0 } else { 0 };
                    let lead = self.entropy.below(FENCE_LEAD_US << round);
                    self.fence_blocks.next(&args.resource, highest.max(present), lead).await
                }
            };
            let proposed = proposal.fence;
            let request = Request::AcquireShared(AcquireSharedArgs { proposed: Some(proposed), ..args.clone() });
            let now = self.clock.now();
            let deadline = now.plus(self.node_timeout_for(Some(args.ttl)));
            let is_yes = |a: &NodeResult| fence_in(Some(a)) == Some(proposed);
            let tally = self.round(&self.everyone(), request, now, deadline, Until::Decided, is_yes).await;
            drop(proposal);
            if tally.view().id != view.id && !mutant::is(Mutant::ViewsMixed) {
                return None;
            }
            // A node that was added meanwhile has the next index.
            given.resize(tally.answers().len().max(given.len()), None);
            for (index, answer) in tally.received() {
                given[index] = fence_in(Some(answer)).or(given[index]);
                if matches!(answer, Ok(Reply::FenceTooFarAhead)) {
                    too_far = Some(too_far.map_or(proposed, |far| far.min(proposed)));
                }
            }
            // The other nodes have not answered yet, and most will give this fence.
            others = tally.received().map(|(index, _)| index).collect();
        }
        agreed(&given, quorum)
    }

    /// Stores a fence that a quorum gave on the nodes that gave another, so that later rounds find one number. Not
    /// awaited: nothing depends on it.
    fn store_agreed_fence(&self, args: &AcquireSharedArgs, fence: Fence, others: Vec<usize>) {
        if others.is_empty() {
            return;
        }
        let request = Request::Update(UpdateArgs {
            resource: args.resource.clone(),
            token: args.token.clone(),
            ttl: Some(args.ttl),
            fence: Some(fence),
            kind: UpdateKind::Edit,
            labels: None,
        });
        let (engine, ttl) = (self.clone(), args.ttl);
        self.tasks.spawn(async move {
            let now = engine.clock.now();
            let deadline = now.plus(engine.node_timeout_for(Some(ttl)));
            engine.round(&others, request, now, deadline, Until::All, Result::is_ok).await;
        });
    }
}

fn fence_in(answer: Option<&NodeResult>) -> Option<Fence> {
    match answer {
        Some(Ok(Reply::Admitted { fence, .. })) => Some(*fence),
        _ => None,
    }
}

/// The fence that a quorum gave.
fn agreed(given: &[Option<Fence>], quorum: usize) -> Option<Fence> {
    if mutant::is(Mutant::NoWriteBack) {
        return given.iter().flatten().max().copied();
    }
    let count = |fence: Fence| given.iter().filter(|of| **of == Some(fence)).count();
    given.iter().flatten().copied().find(|fence| count(*fence) >= quorum)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_fence_counts_once_a_quorum_gave_it_to_this_lease() {
        let given = |of: &[u64]| of.iter().map(|n| (*n > 0).then_some(Fence(*n))).collect::<Vec<_>>();
        assert_eq!(agreed(&given(&[5, 6, 0]), 2), None);
        assert_eq!(agreed(&given(&[5, 5, 9]), 2), Some(Fence(5)), "whatever the third one gave");
        assert_eq!(agreed(&given(&[0, 0, 9]), 2), None);
    }

    /// What it may propose now.
    fn fence(of: &mut (impl Future<Output = Proposal> + Unpin)) -> Option<(u64, Proposal)> {
        of.now_or_never().map(|proposal| (proposal.fence.0, proposal))
    }

    #[test]
    fn those_that_come_during_a_block_propose_the_next_one_together() {
        let (blocks, name) = (FenceBlocks::default(), ResourceName::parse("x").expect("valid"));
        let next = |least, lead| Box::pin(blocks.next(&name, least, lead));
        let (alone, first) = fence(&mut next(100, 50)).expect("nobody else proposes");
        assert_eq!(alone, 100);
        let [mut a, mut b, mut c, mut d] = [next(90, 20), next(200, 1_000), next(150, 1_000), next(10, 0)];
        assert!([&mut a, &mut b, &mut c, &mut d].into_iter().all(|of| fence(of).is_none()));
        drop((b, first));
        let (base, in_flight) = fence(&mut a).expect("its number");
        assert_eq!(base, 220, "above all that any of them was given, as far ahead as the first one says");
        let (third, other) = fence(&mut c).expect("its number");
        let mut late = next(0, 3);
        assert!(fence(&mut late).is_none());
        drop((in_flight, other));
        let (fourth, last) = fence(&mut d).expect("its number");
        assert_eq!((third, fourth), (base + 2 * FENCE_GAP, base + 3 * FENCE_GAP), "whoever has left");
        assert!(fence(&mut late).is_none());
        drop(last);
        assert_eq!(fence(&mut late).expect("its number").0, 3);
        assert!(blocks.0.lock().is_empty(), "nothing stays");
    }
}
