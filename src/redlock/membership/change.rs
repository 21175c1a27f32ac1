//! Changing the view: promise, derive, install, read, fill, admit (`docs/views.md`, *Changing the view*). Any instance does it,
//! at any time, and may stop anywhere: another one starts over with a higher number.

use std::sync::Arc;
use std::time::Duration;

use super::next_view::{Change, Known, Member, plausible};
use crate::mutant::{self, Mutant};
use crate::protocol::{AdmitArgs, MemberStatus, NodeResult, Reply, Request, View, ViewId};
use crate::redlock::clock::Clock;
use crate::redlock::engine::Redlock;
use crate::redlock::node::Node;
use crate::redlock::quorum::Tally;
use crate::redlock::random::Entropy;
use crate::redlock::round::Until;
use crate::types::{Fence, NodeId};

/// Timeout of one step on one node.
const STEP_TIMEOUT: Duration = Duration::from_millis(500);

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done; so many processes were admitted.
    Done(usize),
    /// There is nothing to change, or too few answer.
    Nothing,
    /// Another instance is changing the view, or a step failed: to be tried again above every number that was seen.
    Displaced,
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Makes one view above `above`, and admits who is ready to be. `rivals`: by node, another process under its name is alive.
    /// `ended`: by node, it has ended for good unless it answers. `only`: no other node is admitted.
    ///
    /// Cancel: a promise, or a view that some nodes have installed, may be left behind; the next change starts above it.
    pub(crate) async fn change_view(
        &self,
        above: ViewId,
        rivals: &[bool],
        ended: &[bool],
        only: Option<usize>,
    ) -> Outcome {
        let id = above.above(self.entropy.bits());
        let tally = self.step(&self.everyone(), Request::Promise { view: id }).await;
        let replies: Vec<Option<&MemberStatus>> =
            tally.answers().iter().map(|a| a.as_ref().and_then(member_of)).collect();
        let members = plausible(replies.iter().map(|reply| reply.map(Member::from)).collect(), id);
        let names: Vec<NodeId> = self.nodes.iter().map(|node| node.id().clone()).collect();
        let addresses = self.addresses();
        let known =
            Known { names: &names, members: &members, rivals, ended, addresses: &addresses, quorum: self.quorum() };
        let refuses = |reply: &&MemberStatus| !reply.is_done && Member::from(*reply).is_fillable;
        if replies.iter().flatten().any(refuses) {
            return Outcome::Displaced;
        }
        let pick = match only {
            None => usize::try_from(self.entropy.bits() % 64).unwrap_or(0),
            Some(node) => match known.to_heal().iter().position(|other| *other == node) {
                Some(place) => place,
                None => return Outcome::Nothing,
            },
        };
        let Some(mut change) = known.derive(id, pick) else { return Outcome::Nothing };
        self.name_addresses(&mut change);
        let highest = replies.iter().flatten().map(|reply| reply.high_water).max().unwrap_or(Fence(0));
        self.carry_out(&change, highest).await
    }

    /// An admitted process has the address at which this instance reached it.
    fn name_addresses(&self, change: &mut Change) {
        let view = Arc::make_mut(&mut change.view);
        for node in change.targets.iter().map(|i| &self.nodes[*i]) {
            if let (Some(address), Some(entry)) = (node.moved_to(), view.roster.get_mut(node.id())) {
                entry.address = Some(address);
            }
        }
    }

    /// Moves nodes that vote in a lower view on to this one. Those that it does not name lose their votes.
    pub(crate) async fn move_on(&self, nodes: &[usize], view: &Arc<View>) {
        self.step(nodes, Request::Install { view: Arc::clone(view) }).await;
    }

    /// Installs the view, then fills and admits each of its targets by itself. `highest`: the highest fence of those that
    /// promised.
    async fn carry_out(&self, Change { view, sound, targets, by_clock }: &Change, highest: Fence) -> Outcome {
        let early = if mutant::is(Mutant::ReadBeforeInstall) { self.read_all(sound, view).await } else { Vec::new() };
        let tally = self.step(sound, Request::Install { view: Arc::clone(view) }).await;
        let entered: Vec<usize> = tally.received().filter(|(_, a)| is_done(a)).map(|(i, _)| i).collect();
        let required = if *by_clock { sound.len() } else { self.quorum() };
        if entered.len() < required && !mutant::is(Mutant::OneReaderLess) {
            return Outcome::Displaced;
        }
        // If no process votes yet, the view is adopted when one is admitted to it.
        if !entered.is_empty() {
            self.views.take(view);
        }
        if targets.is_empty() {
            return Outcome::Done(0);
        }
        let pages = if mutant::is(Mutant::ReadBeforeInstall) { early } else { self.read_all(&entered, view).await };
        let minimum = if *by_clock { highest.max(Fence(self.cluster_clock.request_time().0)) } else { Fence(0) };
        let mut admitted = 0;
        for target in targets {
            let least = if *by_clock { sound.len() } else { self.quorum() };
            let Some(filled) = self.fill_with(&pages, least, *target, view).await else { continue };
            let (nonce, pages, seed) = (filled.nonce, filled.pages, filled.seed.max(minimum));
            let admit = AdmitArgs { view: Arc::clone(view), nonce, pages, seed, by_clock: *by_clock };
            let tally = self.step(&[*target], Request::Admit(admit)).await;
            admitted += tally.yes();
        }
        if admitted > 0 {
            self.views.take(view);
        }
        if admitted < targets.len() { Outcome::Displaced } else { Outcome::Done(admitted) }
    }

    async fn step(&self, nodes: &[usize], request: Request) -> Tally {
        let now = self.clock.now();
        self.round(nodes, request, now, now.plus(STEP_TIMEOUT), Until::All, is_done).await
    }
}

fn member_of(answer: &NodeResult) -> Option<&MemberStatus> {
    match answer {
        Ok(Reply::Member(status)) => Some(status),
        _ => None,
    }
}

fn is_done(answer: &NodeResult) -> bool {
    member_of(answer).is_some_and(|status| status.is_done)
}
