//! Which view a new one is derived from, and which processes it names: pure rules (`docs/views.md`, *Changing the view*, steps
//! 2 and 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::protocol::{MemberStatus, NoVote, NodeStatus, RosterEntry, View, ViewId, Vote};
use crate::types::NodeId;

/// By how much the number of a view may be above the highest that any other process knows: a cluster that changes its view each
/// second gets there in 136 years.
const NUMBERS_AHEAD_MAX: u64 = 1 << 32;

/// What a process says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// It votes, in whatever view.
    pub(crate) is_sound: bool,
    /// It has served its quarantine, and waits for a vote.
    pub(crate) is_served: bool,
    /// It could be filled: it is not of another cluster, and its clock is right.
    pub(crate) is_fillable: bool,
    /// Which process it is.
    pub(crate) run: Arc<str>,
    /// The view that it has installed.
    pub(crate) view: Arc<View>,
    /// It installs no lower view.
    pub(crate) promised: ViewId,
    /// Its last admission.
    pub(crate) admitted: ViewId,
}

impl Member {
    fn new(vote: &Vote, run: &str, view: &Arc<View>, promised: ViewId, admitted: ViewId) -> Self {
        let is_sound = matches!(vote, Vote::Active | Vote::NoVote(NoVote::OtherView { .. }));
        let is_served = matches!(vote, Vote::NoVote(NoVote::Unseeded { .. }));
        let waits = matches!(vote, Vote::NoVote(NoVote::Quarantined { .. }));
        let is_fillable = is_sound || is_served || waits;
        Self { is_sound, is_served, is_fillable, run: run.into(), view: Arc::clone(view), promised, admitted }
    }
}

impl From<&NodeStatus> for Member {
    fn from(status: &NodeStatus) -> Self {
        Self::new(&status.vote, &status.run, &status.view, status.promised, status.admitted)
    }
}

impl From<&MemberStatus> for Member {
    fn from(status: &MemberStatus) -> Self {
        Self::new(&status.vote, &status.run, &status.view, status.promised, status.admitted)
    }
}

/// Leaves out who shows a view, or a promise, whose number is further above all others than numbers ever are: taken as it is, it
/// would leave no number for the next view. `own`: the view of this instance.
pub(crate) fn plausible(members: Vec<Option<Member>>, own: ViewId) -> Vec<Option<Member>> {
    let number = |m: &Member| m.promised.max(m.view.id).number();
    let mut numbers: Vec<u64> = members.iter().flatten().map(number).collect();
    numbers.sort_unstable();
    let limit = |known: u64| known.saturating_add(NUMBERS_AHEAD_MAX);
    let highest = numbers
        .into_iter()
        .fold(own.number(), |known, number| if number <= limit(known) { known.max(number) } else { known });
    members.into_iter().map(|member| member.filter(|m| number(m) <= highest)).collect()
}

/// The nodes, as far as they answered, and those that prevent a new view.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    /// By node index.
    pub(crate) names: &'a [NodeId],
    /// By node index; `None` without an answer.
    pub(crate) members: &'a [Option<Member>],
    /// By node index: another process under this name was seen alive just now.
    pub(crate) rivals: &'a [bool],
    /// By node index: if it does not answer, it has ended for good.
    pub(crate) ended: &'a [bool],
    /// By node index: where this instance reaches it, if it is a server that can be moved.
    pub(crate) addresses: &'a [Option<Arc<str>>],
    /// How many votes are needed.
    pub(crate) quorum: usize,
}

/// A new view.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Its record.
    pub(crate) view: Arc<View>,
    /// The nodes that vote, and are to install it.
    pub(crate) sound: Vec<usize>,
    /// Those that it admits, once they are filled.
    pub(crate) targets: Vec<usize>,
    /// Too few vote: everybody answered that it votes or has served its quarantine.
    pub(crate) by_clock: bool,
}

impl Known<'_> {
    /// The view that counts as the highest, and the nodes that vote in it, or in another one that names them alike.
    pub(crate) fn base(&self) -> (Arc<View>, Vec<usize>) {
        let highest = self.believed();
        let named = self.sound().filter(|(i, m)| self.is_named(&highest, *i, m)).map(|(i, _)| i).collect();
        (highest, named)
    }

    /// The highest view in which a process votes, of those that no single node can have made up (`docs/views.md`, *What one node
    /// says*). Where a quorum votes in one view, a higher one counts only if a quorum has promised it: whoever made it got these
    /// promises first. And none counts that has an address which neither a quorum shows nor this instance uses.
    fn believed(&self) -> Arc<View> {
        let shown = || self.sound().map(|(_, m)| &m.view).filter(|view| self.unconfirmed(view).is_none());
        let votes_in =
            |view: &Arc<View>| self.sound().filter(|(i, m)| m.view == *view && self.is_named(view, *i, m)).count();
        let chosen = shown().filter(|view| votes_in(view) >= self.quorum).max_by_key(|view| view.id);
        let counts = |view: &&Arc<View>| chosen.is_none_or(|chosen| view.id > chosen.id && self.is_promised(view.id));
        shown().filter(counts).max_by_key(|view| view.id).or(chosen).cloned().unwrap_or_default()
    }

    fn sound(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter_map(|(i, m)| Some((i, m.as_ref().filter(|m| m.is_sound)?)))
    }

    fn is_named(&self, view: &View, i: usize, member: &Member) -> bool {
        match view.entry(&self.names[i]) {
            Some(entry) => entry.run == member.run && entry.since == member.admitted,
            None => view.id == ViewId::NONE,
        }
    }

    /// A quorum has promised, or installed, this view or a higher one.
    fn is_promised(&self, id: ViewId) -> bool {
        self.members.iter().flatten().filter(|m| m.promised.max(m.view.id) >= id).count() >= self.quorum
    }

    /// The first node to which the view gives an address that this instance does not use, and that no quorum shows.
    pub(crate) fn unconfirmed(&self, view: &View) -> Option<usize> {
        let is_unconfirmed = |i: &usize| {
            let name = &self.names[*i];
            let Some(entry) = view.entry(name).filter(|entry| entry.address.is_some()) else { return false };
            let is_used = self.addresses.get(*i).is_some_and(|own| *own == entry.address);
            let shows = self.sound().filter(|(_, m)| m.view.entry(name) == Some(entry)).count();
            !is_used && shows < self.quorum && !mutant::is(Mutant::AddressOfOneNode)
        };
        (0..self.names.len()).find(is_unconfirmed)
    }

    /// A node votes in a higher view than the one that counts, which a quorum has promised: it is to be brought back by a new
    /// one.
    pub(crate) fn has_stray(&self) -> bool {
        let (base, _) = self.base();
        self.sound().any(|(_, m)| m.view.id > base.id && self.is_promised(m.view.id))
    }

    /// The highest number that any process knows.
    pub(crate) fn highest(&self) -> ViewId {
        self.members.iter().flatten().map(|m| m.promised.max(m.view.id)).max().unwrap_or(ViewId::NONE)
    }

    /// The nodes that could be admitted by what a quorum of others knows; without a quorum of others, none. Not one that shows a
    /// run which the view has under another name: a view with one run under two names stops every instance.
    pub(crate) fn to_heal(&self) -> Vec<usize> {
        let (base, named) = self.base();
        let is_other = |i: &usize| !named.contains(i) && !self.rivals[*i];
        let fillable = |i: &usize| self.members[*i].as_ref().is_some_and(|m| m.is_fillable);
        let others = (0..self.names.len()).filter(|i| is_other(i) && fillable(i) && self.has_own_run(&base, *i));
        if named.len() >= self.quorum { others.collect() } else { Vec::new() }
    }

    /// No other name of the view has the run that node `i` shows, unless another process answers under that name: one that is
    /// silent may be the one whose run is claimed.
    fn has_own_run(&self, base: &View, i: usize) -> bool {
        let run = |j: usize| self.members[j].as_ref().map(|m| &m.run);
        let has_it = |j: usize| {
            let entry = base.entry(&self.names[j]).filter(|_| !self.is_ended(j));
            entry.is_some_and(|entry| Some(&entry.run) == run(i) && run(j).is_none_or(|run| *run == entry.run))
        };
        !(0..self.names.len()).any(|j| j != i && has_it(j))
    }

    /// Processes that vote in a lower view, and that the highest does not name, where too few of those that it names are left
    /// to fill them. While they keep these votes, which count nowhere, nobody can be admitted: neither by the others nor by the
    /// clock. Only where everybody answers: the votes of who is silent may be what contradicts that view, and as long as one is
    /// silent nobody is admitted by the clock.
    pub(crate) fn to_give_up(&self) -> Vec<usize> {
        let (highest, named) = self.base();
        let is_silent = |i: usize| self.members[i].is_none() && !self.is_ended(i);
        let is_outside = |i: &usize| {
            let sound = self.members[*i].as_ref().filter(|m| m.is_sound);
            sound.is_some_and(|m| m.view.id < highest.id) && !named.contains(i)
        };
        let outside = (0..self.names.len()).filter(is_outside);
        let is_stuck = named.len() < self.quorum && !(0..self.names.len()).any(is_silent);
        if is_stuck { outside.collect() } else { Vec::new() }
    }

    /// Whether too few vote, and every other process of the list has served its quarantine, or has ended for good and leaves a
    /// quorum. Where one stays away, two clusters whose lists overlap could each get a quorum: it may vote for the other one
    /// (seed 1544 of the simulation).
    pub(crate) fn is_cold(&self) -> bool {
        let (_, named) = self.base();
        let waits = |i: usize| !self.rivals[i] && self.members[i].as_ref().is_some_and(|m| m.is_served);
        let left = (0..self.names.len()).filter(|i| !self.is_ended(*i)).collect::<Vec<_>>();
        named.len() < self.quorum && left.len() >= self.quorum && left.iter().all(|i| named.contains(i) || waits(*i))
    }

    /// The names that stand in the way of a cold view, except of those that are in quarantine, which time ends.
    pub(crate) fn waited_for(&self) -> Vec<usize> {
        let (_, named) = self.base();
        let waits =
            |i: usize| !self.rivals[i] && self.members[i].as_ref().is_some_and(|m| m.is_fillable && !m.is_sound);
        let missing = (0..self.names.len()).filter(|i| !named.contains(i) && !waits(*i) && !self.is_ended(*i));
        if named.len() < self.quorum { missing.collect() } else { Vec::new() }
    }

    fn is_ended(&self, i: usize) -> bool {
        self.ended[i] && self.members[i].is_none()
    }

    /// The view `id`, after these nodes promised it. It admits one node that forgot, drawn by `pick`; where too few vote, all of
    /// them. `None`: a quorum neither votes, nor has everybody else waited.
    pub(crate) fn derive(&self, id: ViewId, pick: usize) -> Option<Change> {
        let (base, sound) = self.base();
        let entry = |i: usize, since: ViewId| {
            let (name, run) = (&self.names[i], Arc::clone(&self.members.get(i)?.as_ref()?.run));
            let address = base.entry(name).and_then(|entry| entry.address.clone());
            Some((name.clone(), RosterEntry { run, since, address }))
        };
        let kept = |i: &usize| entry(*i, self.members[*i].as_ref()?.admitted);
        let mut roster: BTreeMap<NodeId, RosterEntry> = base.roster.clone();
        // One that has ended leaves the roster: should it answer again, it is filled like one that forgot.
        let stays = |name: &NodeId| self.names.iter().position(|n| n == name).is_some_and(|i| !self.is_ended(i));
        roster.retain(|name, _| stays(name));
        roster.extend(sound.iter().filter_map(kept));
        let is_cold = self.is_cold();
        let required = if mutant::is(Mutant::OneReaderLess) { self.quorum - 1 } else { self.quorum };
        let targets: Vec<usize> = if is_cold {
            (0..self.names.len()).filter(|i| !sound.contains(i) && !self.is_ended(*i)).collect()
        } else if sound.len() < required {
            return None;
        } else {
            let ready = self.to_heal();
            ready.get(pick % ready.len().max(1)).copied().into_iter().collect()
        };
        roster.extend(targets.iter().filter_map(|i| entry(*i, id)));
        Some(Change { view: Arc::new(View { id, roster }), sound, targets, by_clock: is_cold })
    }
}

#[cfg(test)]
#[path = "next_view_tests.rs"]
mod tests;
