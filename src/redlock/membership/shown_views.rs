//! Which of the views that processes show counts (`docs/views.md`, *Changing the view* and *What one node says*).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::member::Member;
use super::next_view::NodeAnswers;
use crate::mutant::{self, Mutant};
use crate::protocol::{View, ViewId};
use crate::redlock::quorum::{self, quorum_of};
use crate::types::NodeId;

impl NodeAnswers<'_> {
    /// The highest view in which a process votes, except views that a single node may have made up (`docs/views.md`,
    /// *What one node says*). If a quorum votes in one view, the result is that view, or a higher view with the same
    /// list that a quorum has promised and that names these voters as the lower view does. A view with an address
    /// that neither a quorum shows nor this instance uses does not count. If no quorum votes, neither does what a process shows that
    /// a later list left out: the list of its view may have further names that have left since (seed 275919).
    pub(super) fn believed(&self) -> Arc<View> {
        let shown = self.distinct(self.sound());
        let votes_in = |view: &Arc<View>| {
            let list = self.list(view);
            let votes = |(i, m): &(usize, &Member)| list.contains(i) && m.view == *view && self.is_named(view, *i, m);
            self.sound().filter(votes).count()
        };
        // Also among views with a quorum of their own: one node alone is a quorum of a list that it made up.
        let voted = shown.iter().map(|view| (votes_in(view), *view));
        let have_quorum = voted.filter(|(votes, view)| *votes >= self.quorum(view));
        let by_votes =
            |(votes, view): &(usize, &Arc<View>)| (if mutant::is(Mutant::ListOfOneNode) { 0 } else { *votes }, view.id);
        let chosen = have_quorum.max_by_key(by_votes).map(|(_, view)| view);
        let highest = |views: Vec<&Arc<View>>| views.into_iter().max_by_key(|view| view.id).cloned();
        match chosen {
            Some(chosen) => {
                let follow = shown.into_iter().filter(|view| self.follows(view, chosen)).collect();
                highest(follow).unwrap_or_else(|| Arc::clone(chosen))
            }
            None => {
                let latest = self.shown().filter(|latest| self.is_witnessed(latest));
                let concerned = latest.map(|latest| self.concerned(latest)).unwrap_or_default();
                let counts = |(i, m): &(usize, &Member)| {
                    concerned.contains(i) || latest.is_none_or(|latest| m.view.id >= latest.id)
                };
                highest(self.distinct(self.sound().filter(counts))).unwrap_or_else(|| self.remembered())
            }
        }
    }

    /// Whether more than a minority of this instance's own list shows the view: one node alone is a quorum of a list that it made up.
    fn is_witnessed(&self, view: &View) -> bool {
        let shows = |i: &usize| self.members[*i].as_ref().is_some_and(|m| m.is_ours && *m.view == *view);
        let witnesses = self.list(self.own).into_iter().filter(shows).count();
        let is_enough = witnesses >= self.more_than_a_minority() || mutant::is(Mutant::ListOfOneNode);
        is_enough && !mutant::is(Mutant::LeftOutCounts)
    }

    /// The views that these show, each once, without views with an address that is not confirmed.
    fn distinct<'m>(&self, members: impl Iterator<Item = (usize, &'m Member)>) -> Vec<&'m Arc<View>> {
        let mut views: Vec<&Arc<View>> = Vec::with_capacity(1);
        for (_, member) in members {
            if !views.contains(&&member.view) {
                views.push(&member.view);
            }
        }
        views.retain(|view| self.unconfirmed(view).is_none());
        views
    }

    /// Whether the view can derive from the view in which a quorum votes, and leaves each of these voters its vote.
    fn follows(&self, view: &View, chosen: &View) -> bool {
        let voters = self.voters(view);
        let list = |view: &View| view.list.as_ref().map(|list| (list.names.clone(), list.changed.clone()));
        let is_above = view.id > chosen.id && self.is_promised(view.id, chosen) && list(view) == list(chosen);
        is_above && self.voters(chosen).iter().all(|i| voters.contains(i))
    }

    /// If no node votes: no view, with the latest list that a process, or this instance, remembers. Otherwise all
    /// would return to the configured list, and the quorums of two lists need not meet.
    fn remembered(&self) -> Arc<View> {
        let views = self.members.iter().flatten().map(|m| &m.view).chain([self.own]);
        let latest = views.filter(|view| view.list.is_some()).max_by_key(|view| view.id);
        let latest = latest.filter(|_| !mutant::is(Mutant::ListForgotten)).map(|view| View::clone(view));
        Arc::new(View { id: ViewId::NONE, ..latest.unwrap_or_default() })
    }

    /// The highest view that a quorum of its list shows, whether or not they answer votes now: an instance whose own clock is off
    /// gets no votes, and must know whose clocks count. Processes that restarted with their data count, too: they never install a
    /// lower view again, so nobody is granted in a list before (seeds 708466 and 771185).
    pub(crate) fn shown(&self) -> Option<&Arc<View>> {
        let all = || self.members.iter().enumerate().filter_map(|(i, m)| Some((i, m.as_ref().filter(|m| m.is_ours)?)));
        let shows = |view: &Arc<View>| {
            let list = self.list(view);
            let is_of = |(i, m): &(usize, &Member)| {
                let counts = self.is_named(view, *i, m) || !mutant::is(Mutant::RestartedNotShown);
                list.contains(i) && m.view == *view && counts
            };
            // Two names that lead to one server count once.
            let runs: BTreeSet<&Arc<str>> = all().filter(is_of).map(|(_, m)| &m.run).collect();
            runs.len() >= self.quorum(view)
        };
        let views = all().map(|(_, m)| &m.view).filter(|view| view.id != ViewId::NONE && shows(view));
        views.max_by_key(|view| view.id)
    }

    /// The view whose addresses count while no process votes: the highest one that a quorum shows without the processes that it
    /// would move, even below `current`, which all may have forgotten (seeds 54621 and 115096 of the simulation); without such
    /// a quorum, the highest one above `current`. With no address that is not confirmed.
    pub(crate) fn last_shown(&self, current: ViewId) -> Option<&Arc<View>> {
        let views =
            || self.members.iter().flatten().filter(|m| m.is_ours && m.view.id != ViewId::NONE).map(|m| &m.view);
        let shown = || views().filter(|view| self.unconfirmed(view).is_none());
        let of_quorum = shown().filter(|view| self.stay_and_show(view) >= self.quorum(view)).max_by_key(|view| view.id);
        of_quorum.or_else(|| shown().filter(|view| view.id > current).max_by_key(|view| view.id))
    }

    /// How many processes show the addresses of this view, without those under names that it would move to another address.
    fn stay_and_show(&self, view: &View) -> usize {
        let address = |of: &View, i: usize| of.entry(&self.names[i]).and_then(|entry| entry.address.clone());
        let stays = |i: &usize| address(view, *i).is_none_or(|to| self.addresses.get(*i) == Some(&Some(to)));
        let is_alike = |shown: &View| (0..self.names.len()).all(|i| address(shown, i) == address(view, i));
        let shows = |i: &usize| self.members[*i].as_ref().is_some_and(|m| m.is_ours && is_alike(&m.view));
        self.list(view).into_iter().filter(stays).filter(shows).count()
    }

    /// Whether a quorum of this base's list has promised, or installed, this view or a higher one.
    pub(super) fn is_promised(&self, id: ViewId, base: &View) -> bool {
        let promised = |i: &usize| self.members[*i].as_ref().is_some_and(|m| m.promised.max(m.view.id) >= id);
        self.list(base).into_iter().filter(promised).count() >= self.quorum(base)
    }

    /// The first node for which the view has an address that this instance does not use and no quorum shows.
    pub(crate) fn unconfirmed(&self, view: &View) -> Option<usize> {
        let is_unconfirmed = |i: &usize| !self.is_confirmed(view, &self.names[*i], self.addresses.get(*i));
        (0..self.names.len()).find(is_unconfirmed)
    }

    /// Whether the name has no address in the view, or the address in use, or one that a quorum shows, or one that
    /// more than a minority of this instance's list shows: of a longer list it may not know a quorum yet.
    pub(crate) fn is_confirmed(&self, view: &View, name: &NodeId, used: Option<&Option<Arc<str>>>) -> bool {
        let Some(entry) = view.entry(name).filter(|entry| entry.address.is_some()) else { return true };
        let is_used = used.is_some_and(|own| *own == entry.address);
        let shows = self.members.iter().flatten().filter(|m| m.view.entry(name) == Some(entry)).count();
        let enough = self.quorum(view).min(self.quorum_before(view)).min(self.more_than_a_minority());
        is_used || shows >= enough || mutant::is(Mutant::AddressOfOneNode)
    }

    /// How many nodes of this instance's list are more than a minority.
    fn more_than_a_minority(&self) -> usize {
        quorum::more_than_a_minority(self.own.list.as_ref().map_or(self.configured, |list| list.names.len()))
    }

    /// For a change of the list: how many votes the old list needed.
    fn quorum_before(&self, view: &View) -> usize {
        view.old().map_or(usize::MAX, |old| quorum_of(old.names.len()))
    }
}
