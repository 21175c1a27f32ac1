//! The view from which a new view is derived, and the processes that the new view names: pure rules (`docs/views.md`,
//! *Changing the view*, steps 2 and 3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use super::member::{Member, may_count, plausible};
use crate::mutant::{self, Mutant};
use crate::protocol::{ChangedTerms, ClusterParams, NodeList, OldList, RosterEntry, Terms, View, ViewId};
use crate::redlock::quorum::quorum_of;
use crate::types::NodeId;

/// The nodes' answers so far, and the nodes that prevent a new view.
#[derive(Debug)]
pub(crate) struct NodeAnswers<'a> {
    /// The names, by node index.
    pub(crate) names: &'a [NodeId],
    /// The members by node index; `None` without an answer.
    pub(crate) members: &'a [Option<Member>],
    /// By node index: whether another process under this name was just seen alive.
    pub(crate) rivals: &'a [bool],
    /// By node index: whether the node counts as ended for good if it does not answer.
    pub(crate) ended: &'a [bool],
    /// By node index: the address at which this instance reaches the node, if it is a server that can be moved.
    pub(crate) addresses: &'a [Option<Arc<str>>],
    /// How many names, from the first on, are the list of every view that has no list.
    pub(crate) configured: usize,
    /// The view of this instance.
    pub(crate) own: &'a Arc<View>,
}

/// A view to be installed, and the nodes that install it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) view: Arc<View>,
    /// The nodes that vote, and must install the view.
    pub(crate) sound: Vec<usize>,
    /// The nodes that the view admits, once they are filled.
    pub(crate) targets: Vec<usize>,
    /// Whether too few nodes vote: every node answered that it votes or has served its quarantine.
    pub(crate) by_clock: bool,
    /// How many nodes must have installed the view before any node is read.
    pub(crate) readers: usize,
}

impl NodeAnswers<'_> {
    /// The nodes of the view's list, as far as they are known here.
    pub(crate) fn list(&self, view: &View) -> Vec<usize> {
        match &view.list {
            None => (0..self.configured).collect(),
            Some(list) => self.indexes(&list.names),
        }
    }

    fn indexes(&self, names: &BTreeSet<NodeId>) -> Vec<usize> {
        (0..self.names.len()).filter(|i| names.contains(&self.names[*i])).collect()
    }

    /// How many votes the view needs.
    pub(crate) fn quorum(&self, view: &View) -> usize {
        quorum_of(view.list.as_ref().map_or(self.configured, |list| list.names.len()))
    }

    /// The view that counts as the highest, and the nodes that vote in it, or in another view that names them alike.
    pub(crate) fn base(&self) -> (Arc<View>, Vec<usize>) {
        let highest = self.believed();
        let named = self.voters(&highest);
        (highest, named)
    }

    pub(super) fn voters(&self, view: &View) -> Vec<usize> {
        let list = self.list(view);
        let votes = |(i, m): &(usize, &Member)| list.contains(i) && self.is_named(view, *i, m) && may_count(view, m);
        self.sound().filter(votes).map(|(i, _)| i).collect()
    }

    pub(super) fn sound(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter_map(|(i, m)| Some((i, m.as_ref().filter(|m| m.is_sound)?)))
    }

    pub(super) fn is_named(&self, view: &View, i: usize, member: &Member) -> bool {
        match view.entry(&self.names[i]) {
            Some(entry) => member.is_entry(entry),
            None => view.id == ViewId::NONE,
        }
    }

    /// Whether a node votes in a view above the one that counts, which a quorum has promised: a new view must bring
    /// it back.
    pub(crate) fn has_stray(&self) -> bool {
        let (base, _) = self.base();
        self.sound().any(|(_, m)| m.view.id > base.id && self.is_promised(m.view.id, &base))
    }

    /// The highest number that any process knows.
    pub(crate) fn highest(&self) -> ViewId {
        self.members.iter().flatten().map(|m| m.promised.max(m.view.id)).max().unwrap_or(ViewId::NONE)
    }

    /// Processes that voted before this view, which changes the list, and know everything from before: processes of the former
    /// list, and, if a view by the clock was left half done, processes that voted in the new list (seed 1775 of the simulation).
    fn entered(&self, view: &View) -> Vec<usize> {
        let Some(old) = view.old() else { return Vec::new() };
        let is_before = |i: usize, m: &Member| {
            let (run, since) = old.before.get(&self.names[i])?;
            (*run == m.run && m.admitted >= *since && may_count(view, m)).then_some(i)
        };
        self.sound().filter_map(|(i, m)| is_before(i, m)).collect()
    }

    /// Only those of the former list, whose quorum completes the change.
    fn entered_of_former_list(&self, view: &View) -> Vec<usize> {
        let former = view.old().map(|old| self.indexes(&old.names)).unwrap_or_default();
        self.entered(view).into_iter().filter(|i| former.contains(i)).collect()
    }

    /// Whether a change of the list began and too few vote in the new list yet, but a quorum of the old list can complete it.
    pub(crate) fn is_half_done(&self) -> bool {
        let (base, named) = self.base();
        self.can_complete(&base, &named)
    }

    /// Whether a quorum votes in a changed list, and the view still has the former list: until the next view leaves
    /// it out, all nodes of both lists would have to answer if a majority forgot.
    pub(crate) fn is_unsettled(&self) -> bool {
        let (base, named) = self.base();
        base.old().is_some() && named.len() >= self.quorum(&base)
    }

    pub(super) fn can_complete(&self, base: &View, named: &[usize]) -> bool {
        let Some(old) = base.old() else { return false };
        named.len() < self.quorum(base) && self.entered_of_former_list(base).len() >= quorum_of(old.names.len())
    }

    /// The nodes that could be admitted by what a quorum of others knows; without such a quorum, none. A node is left out
    /// if it shows a run that the view has under another name: a view with one run under two names stops every instance.
    pub(crate) fn to_heal(&self) -> Vec<usize> {
        let (base, named) = self.base();
        let is_other = |i: &usize| !named.contains(i) && !self.rivals[*i];
        let others = self.list(&base).into_iter().filter(|i| is_other(i) && self.may_be_filled(&base, *i));
        if named.len() >= self.quorum(&base) { others.collect() } else { Vec::new() }
    }

    /// Whether the node answers, belongs to no other cluster, and shows no run that the view has under another name.
    pub(crate) fn may_be_filled(&self, base: &View, i: usize) -> bool {
        self.members[i].as_ref().is_some_and(|m| m.is_fillable) && self.has_own_run(base, i)
    }

    /// Whether no other name of the view has the run that node `i` shows. A name does not count if another process
    /// answers under it; a silent process may be the one whose run is claimed.
    fn has_own_run(&self, base: &View, i: usize) -> bool {
        let run = |j: usize| self.members[j].as_ref().map(|m| &m.run);
        let has_it = |j: usize| {
            let entry = base.entry(&self.names[j]).filter(|_| !self.is_ended(j));
            entry.is_some_and(|entry| Some(&entry.run) == run(i) && run(j).is_none_or(|run| *run == entry.run))
        };
        !(0..self.names.len()).any(|j| j != i && has_it(j))
    }

    /// Processes that vote in a lower view and are not named by the highest view, if too few of the named processes
    /// are left to fill them. While they keep these votes, which count nowhere, no process can be admitted: neither
    /// by the others nor by the clock. Only if all nodes answer: the votes of a silent node may contradict that view,
    /// and while a node is silent no process is admitted by the clock.
    pub(crate) fn to_give_up(&self) -> Vec<usize> {
        let (highest, named) = self.base();
        let (all, entered) = (self.concerned(&highest), self.entered(&highest));
        let is_silent = |i: &usize| self.members[*i].is_none() && !self.is_ended(*i);
        let is_outside = |i: &usize| {
            let sound = self.members[*i].as_ref().filter(|m| m.is_sound);
            sound.is_some_and(|m| m.view.id < highest.id) && !named.contains(i) && !entered.contains(i)
        };
        let is_stuck = named.len() < self.quorum(&highest) && !all.iter().any(is_silent);
        if is_stuck { all.into_iter().filter(is_outside).collect() } else { Vec::new() }
    }

    /// The nodes of the view's list, and of the list that it changes.
    pub(super) fn concerned(&self, view: &View) -> Vec<usize> {
        let mut all = self.list(view);
        all.extend(view.old().map(|old| self.indexes(&old.names)).unwrap_or_default());
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether all names of the view's list, and of the list that it changes, are known here.
    fn knows_all(&self, view: &View) -> bool {
        let Some(list) = &view.list else { return true };
        list.names.iter().chain(list.old.iter().flat_map(|old| &old.names)).all(|name| self.names.contains(name))
    }

    /// Whether too few vote, and every other process of the list has served its quarantine, or has ended for good and
    /// leaves a quorum. If a process stays away, it may vote for another cluster, and two clusters with overlapping lists
    /// could each get a quorum (seed 1544 of the simulation). While the list changes: every process of both lists.
    pub(crate) fn is_cold(&self) -> bool {
        let (base, named) = self.base();
        let entered = self.entered(&base);
        let waits = |i: usize| !self.rivals[i] && self.members[i].as_ref().is_some_and(|m| m.is_served);
        let left = self.concerned(&base).into_iter().filter(|i| !self.is_ended(*i)).collect::<Vec<_>>();
        let is_few = named.len() < self.quorum(&base) && !self.can_complete(&base, &named) && self.knows_all(&base);
        let is_known = |i: &usize| named.contains(i) || entered.contains(i) || waits(*i);
        is_few && left.len() >= self.quorum(&base) && left.iter().all(is_known)
    }

    /// The names that prevent a cold view, except names in quarantine, which time ends.
    pub(crate) fn waited_for(&self) -> Vec<usize> {
        let (base, named) = self.base();
        let entered = self.entered(&base);
        let waits =
            |i: usize| !self.rivals[i] && self.members[i].as_ref().is_some_and(|m| m.is_fillable && !m.is_sound);
        let is_missing = |i: &usize| !named.contains(i) && !entered.contains(i) && !waits(*i) && !self.is_ended(*i);
        let is_few = named.len() < self.quorum(&base) && !self.can_complete(&base, &named);
        if is_few { self.concerned(&base).into_iter().filter(is_missing).collect() } else { Vec::new() }
    }

    /// The names of the view's list, and of the list that it changes, that are not known here and prevent a cold view.
    pub(crate) fn unlisted(&self) -> BTreeSet<NodeId> {
        let (base, named) = self.base();
        let is_few = named.len() < self.quorum(&base) && !self.can_complete(&base, &named);
        let mut names = base.list.as_ref().filter(|_| is_few).map(|list| list.names.clone()).unwrap_or_default();
        names.extend(base.old().filter(|_| is_few).into_iter().flat_map(|old| old.names.iter().cloned()));
        names.retain(|name| !self.names.contains(name));
        names
    }

    fn is_ended(&self, i: usize) -> bool {
        self.ended[i] && self.members[i].is_none()
    }

    fn entry(&self, base: &View, i: usize, since: ViewId) -> Option<(NodeId, RosterEntry)> {
        let (name, run) = (&self.names[i], Arc::clone(&self.members.get(i)?.as_ref()?.run));
        let address = base.entry(name).and_then(|entry| entry.address.clone());
        Some((name.clone(), RosterEntry { run, since, address }))
    }

    /// The view `id`, after these nodes promised it. It admits one node that forgot, drawn by `pick`; if too few
    /// vote, all of them; if a change of the list is half done, all of the new list. `None`: neither does a quorum
    /// vote, nor has every other process waited.
    pub(crate) fn derive(&self, id: ViewId, pick: usize) -> Option<Change> {
        let (base, named) = self.base();
        let (is_cold, old) = (self.is_cold(), base.old());
        if let (Some(list), Some(old)) =
            (base.list.as_ref().filter(|_| is_cold || self.can_complete(&base, &named)), old)
        {
            let (mut sound, mut old) = (self.entered_of_former_list(&base), old.clone());
            let mut readers = quorum_of(old.names.len());
            if is_cold {
                // Too few of either list vote: processes that voted in the new list are read, too.
                sound = self.entered(&base);
                let new: Vec<usize> = named.iter().filter(|i| !sound.contains(i)).copied().collect();
                old.before.extend(new.iter().filter_map(|i| self.life(*i)));
                sound.extend(new);
                readers = sound.len();
            }
            let list = NodeList { old: Some(old), ..NodeList::clone(list) };
            return Some(Change { by_clock: is_cold, ..self.anew(id, &base, list, sound, readers) });
        }
        let sound = named;
        let kept = |i: &usize| self.entry(&base, *i, self.members[*i].as_ref()?.admitted);
        let list = self.list(&base);
        let mut roster: BTreeMap<NodeId, RosterEntry> = base.roster.clone();
        // A process that has ended leaves the roster: if it answers again, it is filled like a process that forgot.
        let stays = |name: &NodeId| {
            self.names.iter().position(|n| n == name).is_none_or(|i| list.contains(&i) && !self.is_ended(i))
        };
        roster.retain(|name, _| stays(name));
        roster.extend(sound.iter().filter_map(kept));
        let quorum = self.quorum(&base);
        let required = if mutant::is(Mutant::OneReaderLess) { quorum - 1 } else { quorum };
        let targets: Vec<usize> = if is_cold {
            list.into_iter().filter(|i| !sound.contains(i) && !self.is_ended(*i)).collect()
        } else if sound.len() < required {
            return None;
        } else {
            let ready = self.to_heal();
            ready.get(pick % ready.len().max(1)).copied().into_iter().collect()
        };
        roster.extend(targets.iter().filter_map(|i| self.entry(&base, *i, id)));
        let list = base.list.as_ref().map(|list| Arc::new(NodeList { old: None, ..NodeList::clone(list) }));
        let readers = if is_cold { sound.len() } else { quorum };
        Some(Change { view: Arc::new(View { id, roster, list }), sound, targets, by_clock: is_cold, readers })
    }

    /// The view `id`, which changes the list to these names. All of them that answer are filled for it. `None`: too few vote; no
    /// name is left, as when two instances each remove a different one of two names: that list could not be changed any more; or
    /// a new name would get no entry, so the view would lack its address (seeds 6648 and 11379 of the simulation).
    pub(crate) fn relist(&self, id: ViewId, names: BTreeSet<NodeId>, terms: &Arc<str>) -> Option<Change> {
        let (base, named) = self.base();
        let readers = self.quorum(&base);
        if named.len() < readers || base.id == ViewId::NONE || names.is_empty() {
            return None;
        }
        let all = self.list(&base).into_iter().map(|i| self.names[i].clone()).collect();
        let old_names = base.list.as_ref().map_or(all, |list| list.names.clone());
        let mut before: BTreeMap<_, _> =
            base.roster.iter().map(|(name, entry)| (name.clone(), (Arc::clone(&entry.run), entry.since))).collect();
        before.extend(named.iter().filter_map(|i| self.life(*i)));
        before.retain(|name, _| old_names.contains(name));
        let added: Vec<NodeId> = names.difference(&old_names).cloned().collect();
        let old = Some(OldList { names: old_names, before, terms: None });
        let list = match base.list.as_deref() {
            Some(list) => NodeList { names, old, ..list.clone() },
            None => NodeList { names, terms: Arc::clone(terms), changed: None, old },
        };
        let change = self.anew(id, &base, list, named, readers);
        added.iter().all(|name| change.view.entry(name).is_some()).then_some(change)
    }

    /// The view `id`, with the same list and these terms. As after a change of the list, no process votes before it was filled.
    pub(crate) fn with_terms(&self, id: ViewId, terms: &Terms, own: &ClusterParams) -> Option<Change> {
        let (base, _) = self.base();
        let names = self.list(&base).into_iter().map(|i| self.names[i].clone()).collect();
        let names = base.list.as_ref().map_or(names, |list| list.names.clone());
        let mut change = self.relist(id, names, own.cluster.terms())?;
        let list = Arc::make_mut(Arc::make_mut(&mut change.view).list.as_mut()?);
        let former = own.in_view(&base).terms();
        let mut terms = terms.or_template(&own.template);
        let mut former = former.or_template(&own.template);
        // Where no template was ever changed, records have none: earlier builds read them.
        if terms.template == former.template && base.terms().is_none_or(|terms| terms.template.is_none()) {
            (terms.template, former.template) = (None, None);
        }
        let hash = own.cluster.terms_with(&terms);
        list.changed = Some(ChangedTerms::after(list.changed.as_ref(), terms, hash));
        list.old.as_mut()?.terms = Some(former);
        Some(change)
    }

    fn life(&self, i: usize) -> Option<(NodeId, (Arc<str>, ViewId))> {
        let member = self.members[i].as_ref()?;
        Some((self.names[i].clone(), (Arc::clone(&member.run), member.admitted)))
    }

    /// A view in which no node votes before it was filled.
    fn anew(&self, id: ViewId, base: &View, list: NodeList, sound: Vec<usize>, readers: usize) -> Change {
        let is_target = |i: &usize| !self.rivals[*i] && !self.is_ended(*i);
        // A node that has installed a higher view knows more than the base, and a later view brings it back.
        let is_stray = |i: usize| self.members[i].as_ref().is_some_and(|m| m.is_sound && !may_count(base, m));
        let fills = |i: &usize| sound.contains(i) || is_target(i) && self.may_be_filled(base, *i) && !is_stray(*i);
        let targets: Vec<usize> = self.indexes(&list.names).into_iter().filter(fills).collect();
        // A silent node must be filled, too, by a later view.
        let silent = base.roster.iter().filter(|(name, _)| list.names.contains(name));
        let mut roster: BTreeMap<NodeId, RosterEntry> =
            silent.map(|(name, entry)| (name.clone(), RosterEntry { since: id, ..entry.clone() })).collect();
        roster.extend(targets.iter().filter_map(|i| self.entry(base, *i, id)));
        Change {
            view: Arc::new(View { id, roster, list: Some(Arc::new(list)) }),
            sound,
            targets,
            by_clock: false,
            readers,
        }
    }
}

#[cfg(test)]
#[path = "next_view_tests.rs"]
mod tests;
