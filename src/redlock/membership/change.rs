//! Changing the view: promise, derive, install, read, fill, admit (`docs/views.md`, *Changing the view*). Any
//! instance may do it at any time and stop at any step: another instance starts over with a higher number.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::fill_node::NodePages;
use super::next_view::{Change, Member, NodeAnswers, plausible};
use crate::mutant::{self, Mutant};
use crate::protocol::{AdmitArgs, MemberStatus, NodeResult, Reply, Request, Terms, View, ViewId};
use crate::redlock::clock::Clock;
use crate::redlock::engine::Redlock;
use crate::redlock::node::Node;
use crate::redlock::node_health::Followed;
use crate::redlock::quorum::{Tally, quorum_of};
use crate::redlock::random::Entropy;
use crate::redlock::round::Until;
use crate::types::{Fence, NodeId};

/// Timeout of one step on one node.
const STEP_TIMEOUT: Duration = Duration::from_millis(500);
/// A change with older promises installs nothing: this process stood still while others continued. Two nodes that voted in
/// the view before could leave it, and a third could have been admitted to it meanwhile (seed 41771 of the simulation).
const PROMISES_LAST: Duration = Duration::from_secs(1);

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The change is done; this many processes were admitted.
    Done(usize),
    /// There is nothing to change, or too few nodes answer.
    Nothing,
    /// Another instance is changing the view, or a step failed: the change must be retried above every number that was seen.
    Displaced,
}

/// The purpose of a view.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ViewPurpose<'a> {
    /// A node that forgot is to vote again, or a change that another instance began is to be completed.
    Healing,
    /// Only this node is to be admitted.
    Admission(usize),
    /// These names are to vote.
    List(&'a BTreeSet<NodeId>),
    /// These terms are to count.
    Terms(&'a Terms),
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Makes one view above `above`, and admits the processes that are ready. `rivals`: by node, another process
    /// under its name is alive. `ended`: by node, it has ended for good unless it answers. `followed`: by node, this instance's last
    /// answer of a process there.
    ///
    /// Cancel: a promise, or a view that some nodes have installed, may be left behind; the next change starts above it.
    pub(crate) async fn change_view(
        &self,
        above: ViewId,
        rivals: &[bool],
        ended: &[bool],
        followed: &[Option<Followed>],
        what: ViewPurpose<'_>,
    ) -> Outcome {
        let (id, asked_at) = (above.above(self.entropy.bits()), self.clock.now());
        let tally = self.step(&self.nodes.opened(), Request::Promise { view: id }).await;
        let replies: Vec<Option<&MemberStatus>> =
            tally.answers().iter().map(|a| a.as_ref().and_then(member_of)).collect();
        let members = plausible(replies.iter().map(|reply| reply.map(Member::from)).collect(), id);
        let names: Vec<NodeId> = self.nodes.iter().take(replies.len()).map(|node| node.id().clone()).collect();
        let addresses = self.addresses();
        let configured = self.configured();
        if rivals.len().min(ended.len()).min(followed.len()) < names.len() {
            return Outcome::Displaced; // a node was added meanwhile
        }
        // A process that promised under a name that is being replaced, even after `rivals` was taken, is admitted
        // only by the replacement: that follows from a quorum of others, never from the time that has passed.
        let mut rivals = rivals.to_vec();
        if let Some(moving) = self.replacing.lock().filter(|i| !matches!(what, ViewPurpose::Admission(of) if of == *i))
        {
            rivals.iter_mut().skip(moving).take(1).for_each(|rival| *rival = true);
        }
        let rivals = &rivals;
        let own = &self.views.current();
        let known =
            NodeAnswers { names: &names, members: &members, rivals, ended, addresses: &addresses, configured, own };
        let resumed;
        let known = if matches!(what, ViewPurpose::Healing) {
            resumed = known.by_disk(followed);
            NodeAnswers { members: &resumed, ..known }
        } else {
            known
        };
        let refuses = |reply: &&MemberStatus| !reply.is_done && Member::from(*reply).is_fillable;
        if replies.iter().flatten().any(refuses) {
            return Outcome::Displaced;
        }
        if self.is_of_unknown_list(&known.base().0) {
            return Outcome::Nothing;
        }
        let change = match what {
            ViewPurpose::Healing => known.derive(id, usize::try_from(self.entropy.bits() % 64).unwrap_or(0)),
            ViewPurpose::Admission(node) => {
                let place = known.to_heal().iter().position(|other| *other == node);
                place.and_then(|place| known.derive(id, place))
            }
            ViewPurpose::List(names) => known.relist(id, names.clone(), self.settings.params.cluster.terms()),
            ViewPurpose::Terms(terms) => known.with_terms(id, terms, &self.settings.params),
        };
        let Some(mut change) = change.filter(|change| !self.is_of_unknown_list(&change.view)) else {
            return Outcome::Nothing;
        };
        self.name_addresses(&mut change, &known.base().0);
        let highest = replies.iter().flatten().map(|reply| reply.high_water).max().unwrap_or(Fence(0));
        if self.clock.now().since(asked_at) > PROMISES_LAST {
            return Outcome::Displaced;
        }
        self.carry_out(&change, highest).await
    }

    /// Sets, for an admitted process, the address at which this instance reached it.
    fn name_addresses(&self, change: &mut Change, base: &View) {
        let view = Arc::make_mut(&mut change.view);
        for node in change.targets.iter().map(|i| &self.nodes[*i]) {
            // Also for a new name, which others may not have configured; it may be admitted later than added (seed 6648).
            let is_new = view.list.is_some() && base.entry(node.id()).is_none();
            let address = node.moved_to().or_else(|| if is_new { node.address() } else { None });
            if let (Some(address), Some(entry)) = (address, view.roster.get_mut(node.id())) {
                entry.address = Some(address);
            }
        }
    }

    /// Moves nodes that vote in a lower view to this view. Nodes that the view does not name lose their votes.
    pub(crate) async fn move_on(&self, nodes: &[usize], view: &Arc<View>) {
        self.step(nodes, Request::Install { view: Arc::clone(view) }).await;
    }

    /// Installs the view, then fills and admits each of its targets separately. `highest`: the highest fence of the
    /// processes that promised.
    async fn carry_out(&self, change: &Change, highest: Fence) -> Outcome {
        let Change { view, sound, targets, by_clock, readers } = change;
        let early =
            if mutant::is(Mutant::ReadBeforeInstall) { self.read_all(sound, *readers, view).await } else { Vec::new() };
        let tally = self.step(sound, Request::Install { view: Arc::clone(view) }).await;
        let entered: Vec<usize> = tally.received().filter(|(_, a)| is_done(a)).map(|(i, _)| i).collect();
        if entered.len() < *readers && !mutant::is(Mutant::OneReaderLess) {
            return Outcome::Displaced;
        }
        // If no process votes yet, the view is adopted when one is admitted to it.
        let is_change_of_list = view.old().is_some();
        if !entered.is_empty() && !is_change_of_list {
            self.take_view(view, &entered);
        }
        if targets.is_empty() {
            return Outcome::Done(0);
        }
        let entered = self.rename(view, entered, targets).await;
        if entered.len() < *readers && !mutant::is(Mutant::OneReaderLess) {
            return Outcome::Displaced;
        }
        let pages =
            if mutant::is(Mutant::ReadBeforeInstall) { early } else { self.read_all(&entered, *readers, view).await };
        let minimum = if *by_clock { highest.max(Fence(self.cluster_clock.request_time().0)) } else { Fence(0) };
        // During a change of the list no node votes, so all targets are filled at once.
        let mut admitted = 0;
        if is_change_of_list {
            let all = targets.iter().map(|target| self.fill_and_admit(change, *target, &pages, minimum));
            admitted = join_all(all).await.into_iter().filter(|done| *done).count();
        } else {
            for target in targets {
                admitted += usize::from(self.fill_and_admit(change, *target, &pages, minimum).await);
            }
        }
        if admitted >= if is_change_of_list { quorum_of(self.size_in(view)) } else { 1 } {
            self.take_view(view, &entered);
        }
        if admitted < targets.len() { Outcome::Displaced } else { Outcome::Done(admitted) }
    }

    async fn fill_and_admit(&self, change: &Change, target: usize, pages: &[NodePages], minimum: Fence) -> bool {
        let (view, by_clock) = (&change.view, change.by_clock);
        let Some(filled) = self.fill_with(pages, change.readers, target, view).await else { return false };
        let (nonce, pages, seed) = (filled.nonce, filled.pages, filled.seed.max(minimum));
        let admit = AdmitArgs { view: Arc::clone(view), nonce, pages, seed, by_clock };
        self.step(&[target], Request::Admit(admit)).await.yes() > 0
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
