//! The simulated operator: changes the list of nodes, their servers and the terms, and configures instances. After the faults it
//! corrects configurations by what the instances say.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::actors::{Inst, all_terms, declared, run_id, terms_of};
use super::coverage::HardState;
use super::network::address_of;
use super::profile::{TEMPLATES, TERMS_MS};
use super::world::{Event, MS, SEC, Todo, Us, World};
use crate::protocol::keys::KeyTemplate;
use crate::protocol::{ClusterParams, NodeList, RosterEntry, Terms, View, quarantine_for};
use crate::redlock::quorum::quorum_of;
use crate::types::NodeId;

/// From the last fault until instances follow the addresses that their nodes show.
pub(super) const FOLLOWS: Us = 4 * SEC;
/// From the last fault until changes of the list that had begun are over.
pub(super) const SETTLES: Us = 10 * SEC;

/// What instances say of lists.
#[derive(Debug, Default)]
pub(super) struct SaidOfLists {
    /// Names that an instance must be started with.
    pub unlisted: BTreeSet<NodeId>,
    /// For each node of another cluster, by an instance's list, the list that it shows.
    pub others: Vec<BTreeSet<NodeId>>,
}

impl SaidOfLists {
    pub(super) fn add(&mut self, of_one: Self) {
        self.unlisted.extend(of_one.unlisted);
        self.others.extend(of_one.others);
    }

    /// The other list that is shown most often.
    fn other_list(&self) -> Option<&BTreeSet<NodeId>> {
        self.others.iter().max_by_key(|list| self.others.iter().filter(|other| other == list).count())
    }
}

impl World {
    /// An operator adds a name to the list or removes one, at some instance.
    pub(super) fn relist(&mut self, inst: usize) {
        if self.calm {
            return;
        }
        let (listed, others): (Vec<usize>, Vec<usize>) =
            (0..self.servers.len()).partition(|server| self.is_listed(*server));
        let configured: Vec<usize> = listed.iter().copied().filter(|server| *server < self.profile.nodes).collect();
        let adds = others.len() > 1 || listed.len() <= self.profile.shortest_list() || self.fault_rng.chance(40);
        let from = if adds && !others.is_empty() { others } else { listed };
        let (is_added, server) = (adds && from.len() < self.servers.len(), self.fault_rng.pick(&from));
        // The last one that is configured is not removed while it has forgotten, see `is_stopped`.
        if is_added || configured != [server] || self.servers[server].machine.is_active() {
            // What it has of released leases is nobody's business while it is not of the list.
            self.checker.lost_tail.insert(server);
            self.trace(|| {
                format!("an operator asks i{inst}: n{server} {}", if is_added { "added" } else { "removed" })
            });
            self.todo.push(Todo::Relist { inst, server, is_added });
        }
        let (gap, next) = (self.fault_rng.range(300, 3_500) * MS, self.fault_rng.index(self.insts.len()));
        self.at(self.now + gap, Event::Relist { inst: next });
    }

    /// A change of the list was answered: an operator knows the list that it left.
    pub(super) fn note_list(&mut self) {
        if let Some(list) = &self.highest_view().list {
            let is_listed = |server: &usize| list.names.contains(&self.profile.name_of(*server));
            let listed = (0..self.servers.len()).filter(is_listed).collect();
            self.answered_lists.push(listed);
        }
    }

    /// An operator replaces the first node's server by the other one, at some instance.
    pub(super) fn replace(&mut self, inst: usize) {
        let Some(second) = self.profile.second_server().filter(|_| !self.calm) else { return };
        let highest = self.highest_view();
        let is_named = highest
            .entry(&self.profile.name_of(0))
            .is_some_and(|entry| *entry.run == *self.servers[second].machine.run());
        let server = if is_named { 0 } else { second };
        // Where only others heal, a fault beside a replacement may leave too few that know anything.
        let others = || (1..self.profile.nodes).map(|other| &self.servers[other]);
        let all_vote = others().all(|s| s.up && s.machine.is_active() && s.machine.view().id == highest.id);
        let may_begin = !self.profile.heals_only || all_vote && self.replacing.is_empty();
        if self.servers[server].up && may_begin {
            self.replacing.insert(inst);
            // What the other one has of released leases is nobody's business.
            self.checker.lost_tail.extend([0, second]);
            self.trace(|| format!("an operator asks i{inst}: server {server} is n0"));
            self.todo.push(Todo::Replace { inst, server });
        }
        let (gap, next) = (self.fault_rng.range(300, 4_500) * MS, self.fault_rng.index(self.insts.len()));
        self.at(self.now + gap, Event::Replace { inst: next });
    }

    /// An operator changes the terms, at some instance.
    pub(super) fn reterm(&mut self, inst: usize) {
        if self.calm {
            return;
        }
        let mut terms = terms_of(self.fault_rng.pick(&TERMS_MS));
        // By the time, so that the draws stay as they were: half of the changes leave the template.
        let template = usize::try_from(self.now / MS % 4).unwrap_or(0);
        terms.template = TEMPLATES.get(template).and_then(|template| KeyTemplate::parse(template).ok());
        self.trace(|| format!("an operator asks i{inst}: terms {terms}"));
        self.todo.push(Todo::Reterm { inst, terms });
        let (gap, next) = (self.fault_rng.range(300, 3_500) * MS, self.fault_rng.index(self.insts.len()));
        self.at(self.now + gap, Event::Reterm { inst: next });
    }

    /// A change of the list or of terms that an operator asked for has ended.
    pub(super) fn change_ends(&mut self, inst: usize) {
        if let Some(place) = self.changing.iter().position(|of| *of == inst) {
            self.changing.swap_remove(place);
        }
    }

    /// Half of the instances that start again have the list that the last change left; all of them if no node shows a list, since
    /// nothing else shows them the present one (docs/safety.md).
    pub(super) fn configure_list(&mut self, inst: usize) {
        let life = self.insts[inst].life;
        let is_half = (life as usize + inst) % 2 == 1 || self.highest_view().list.is_none();
        let list = self.answered_lists.last().filter(|_| self.profile.lists_follow && life > 0 && is_half);
        if let Some(list) = list.cloned() {
            self.profile.configured.insert(inst, list);
            self.coverage.count(HardState::StartedWithNewList);
        }
    }

    /// An instance that starts knows the cluster by the name under which its own list and terms would be declared (seed 144722).
    pub(super) fn name_cluster(&mut self, inst: usize) {
        if self.profile.relists || self.profile.reterms {
            let params = &self.insts[inst].params;
            let cluster = declared(&self.profile, &self.profile.list_of(inst), &params.terms());
            self.insts[inst].params = Arc::new(ClusterParams { cluster, ..ClusterParams::clone(params) });
        }
    }

    /// An instance that starts again has its former configuration, or the terms that the highest view has by now.
    pub(super) fn configure_terms(&mut self, inst: usize) {
        if self.calm || !self.profile.reterms {
            return;
        }
        let views: Vec<_> = self.servers.iter().map(|s| s.machine.view()).collect();
        // Not those of a change that may come to nothing.
        let is_in_force = |terms: &&Terms| {
            views.iter().filter(|view| view.terms() == Some(terms)).count() >= quorum_of(self.servers.len())
        };
        let Some(terms) = views.iter().find_map(|view| view.terms().filter(is_in_force)).cloned() else { return };
        if self.insts[inst].life > 0 && self.fault_rng.chance(40) {
            self.configure(inst, &terms);
            self.coverage.count(HardState::StartedWithNewTerms);
        }
    }

    fn configure(&mut self, inst: usize, terms: &Terms) {
        let Terms { guard, lock_delay, fence_ttl, ref template } = *terms;
        let of_max_ttl = Duration::from_millis(self.insts[inst].max_ttl_ms);
        let quarantine = quarantine_for(of_max_ttl, lock_delay, guard);
        let cluster = declared(&self.profile, &self.profile.list_of(inst), terms);
        let template = template.clone().unwrap_or_default();
        self.insts[inst].params =
            Arc::new(ClusterParams { cluster, guard, lock_delay, quarantine, fence_ttl, template });
    }

    /// After the last fault. If all clocks were stepped just now, some instance must live that has seen it (seed 661332).
    pub(super) fn correct_once_settled(&mut self) {
        if self.is_settled() || self.now >= self.profile.calm_ms * MS + SETTLES / 2 {
            self.correct_configurations(None);
        } else {
            self.at(self.now + SEC / 10, Event::CorrectOnceSettled);
        }
    }

    /// Again, once no change is under way: what it leaves behind may need an operator, too (seed 289718). But neither long after the
    /// faults nor just before instances are asked (seed 2357). `said`: by the instances.
    pub(super) fn correct_again(&mut self, said: &SaidOfLists) {
        let latest = self.opens().min(self.profile.calm_ms * MS + 3 * SETTLES) - SETTLES;
        if self.changing.is_empty() || self.now >= latest {
            self.correct_configurations(Some(said));
        } else {
            self.at(self.now + SEC, Event::CorrectAgain);
        }
    }

    /// An operator starts instances with the present list: those that were started with an old one, or were cut off during
    /// several changes, and may know too few of its nodes; and those whose view every node has forgotten. `again`: changes that had
    /// begun are over by now, and instances have said what they know of lists.
    pub(super) fn correct_configurations(&mut self, again: Option<&SaidOfLists>) {
        if self.profile.reterms && !self.profile.lists_follow {
            self.correct_terms();
        }
        let highest = self.highest_view();
        if self.profile.replaces {
            return self.correct_addresses(&highest);
        }
        let (id, first, list) = (highest.id, self.profile.nodes, highest.list.clone());
        let names =
            |servers: &[usize]| -> BTreeSet<NodeId> { servers.iter().map(|i| self.profile.name_of(*i)).collect() };
        let configured = names(&Vec::from_iter(0..first));
        // Where no node shows a list, nothing else shows instances the present one.
        let answered = self.answered_lists.last().filter(|_| self.profile.lists_follow);
        let known = answered.map_or_else(|| configured.clone(), |servers| names(servers));
        // By its name: of a configured one, the second server may be the named one (seed 84577).
        let other_list = again.and_then(SaidOfLists::other_list);
        let is_listed = |server: &usize| {
            let name = self.profile.name_of(*server);
            let is_unlisted = again.is_some_and(|said| said.unlisted.contains(&name));
            if let Some(other) = other_list {
                return other.contains(&name) || is_unlisted;
            }
            let is_in = |list: &Arc<NodeList>| {
                list.names.contains(&name) || list.old.as_ref().is_some_and(|old| old.names.contains(&name))
            };
            list.as_ref().map_or_else(|| known.contains(&name), is_in) || is_unlisted
        };
        let named = self.named_server();
        let is_other = |server: &usize| Some(*server) == self.profile.second_server() || *server == 0;
        let corrected: Vec<usize> = (0..self.servers.len())
            .filter(|server| is_listed(server) && (*server == named || !is_other(server)))
            .collect();
        let present = names(&corrected);
        // A node of its list whose address it does not follow (docs/views.md, *An address*; seed 203482) is none that it knows.
        let asked = |inst: &Inst, name: &NodeId| {
            (0..self.servers.len()).any(|server| inst.asked >> server & 1 == 1 && self.profile.name_of(server) == *name)
        };
        let knows_too_few = |inst: &Inst| {
            let own = inst.asks_in.list.as_ref().map_or(&configured, |list| &list.names);
            let known = own.intersection(&present).filter(|name| asked(inst, name));
            first == 1 || known.count() <= own.len() - quorum_of(own.len())
        };
        let knows_too_few: Vec<bool> = self.insts.iter().map(knows_too_few).collect();
        let has_other_list = other_list.is_some() || again.is_some_and(|said| !said.unlisted.is_empty());
        let starts_old = |inst| answered.is_some() && list.is_none() && self.profile.list_of(inst) != corrected;
        let starts_old: Vec<bool> = (0..self.insts.len()).map(starts_old).collect();
        self.profile.corrected = Some(corrected);
        if self.profile.reterms && self.profile.lists_follow {
            self.correct_terms(); // with the names of these lists
        }
        // Then only an instance that still runs can complete the change (seed 127976).
        let must_run = self.are_terms_of_few(None) && !has_other_list;
        for inst in (0..self.insts.len()).filter(|_| !must_run) {
            let (life, asks_in) = (self.insts[inst].life, self.insts[inst].asks_in.id);
            let is_stranded = list.is_some() && knows_too_few[inst] && asks_in < id;
            // A list of one whose node forgets has forgotten the change, and an instance that was started with it follows that node. Not
            // at once: if all clocks were stepped just now, some instance must live that has seen it.
            let is_forgotten = again.is_some() && first == 1;
            if is_stranded
                || is_forgotten
                || has_other_list
                || starts_old[inst]
                || again.is_none() && (list.is_some() && life > 0 || asks_in > id)
            {
                self.crash(inst);
            }
        }
    }

    /// An operator starts instances with the terms in force, if they were started with others that the nodes have forgotten, and empties
    /// nodes of the same view that were blank and given to instances with other terms.
    fn correct_terms(&mut self) {
        let highest = self.highest_view();
        let clusters = self.servers.iter().filter(|s| s.machine.view().id == highest.id).map(|s| s.machine.cluster());
        let clusters: Vec<_> = clusters.collect();
        let most = clusters.iter().max_by_key(|name| clusters.iter().filter(|other| other == name).count());
        let Some(cluster) = most.cloned() else { return };
        let now = self.now;
        for server in self.servers.iter_mut().filter(|s| s.machine.view().id == highest.id) {
            if !["", &*cluster].contains(&&*server.machine.cluster()) {
                server.empty(now);
            }
        }
        let accepts = |params: &ClusterParams| {
            let own = params.cluster.terms();
            let accepted = |list: &NodeList| {
                list.terms == *own || list.changed.iter().any(|changed| changed.accepted.contains(own))
            };
            let is_named = highest.terms().is_some_and(|terms| terms.template.is_some());
            let is_member = params.cluster.get() == cluster;
            let is_accepted = is_member && params.cluster.is_accepted_in(&highest);
            highest.list.as_deref().map_or(is_accepted, accepted) || is_named && is_member
        };
        let wrong: Vec<usize> = (0..self.insts.len()).filter(|inst| !accepts(&self.insts[*inst].params)).collect();
        // If all nodes forgot, the instances must be configured alike: those that begin the cluster again give it its name (seed 32541).
        let common = cluster.is_empty().then(|| self.insts[0].params.terms());
        for inst in wrong {
            let former = Arc::clone(&self.insts[inst].params);
            for terms in all_terms() {
                if !accepts(&self.insts[inst].params) {
                    self.configure(inst, &terms);
                }
            }
            // That cluster may be one that a removed node has begun (seed 713412).
            if !accepts(&self.insts[inst].params) {
                self.insts[inst].params = former;
            }
            if let Some(terms) = common.as_ref().filter(|terms| self.insts[inst].params.terms() != **terms) {
                self.configure(inst, terms);
            }
            self.crash(inst);
        }
    }

    /// An operator starts again the instances that reach another server than the last view names, unless a quorum of what an instance
    /// reaches shows that address: then it follows by itself.
    pub(super) fn correct_addresses(&mut self, view: &View) {
        let (named, name) = (self.named_server(), self.profile.name_of(0));
        self.profile.corrected = Some(std::iter::once(named).chain(1..self.profile.nodes).collect());
        let entry = view.entry(&name).filter(|entry| entry.address.is_some());
        for inst in 0..self.insts.len() {
            let used = self.insts[inst].first_server;
            let shows = |server: &usize| self.servers[*server].machine.view().entry(&name) == entry;
            let (quorum, others) = (quorum_of(self.profile.nodes), (1..self.profile.nodes).filter(shows).count());
            let is_above = self.insts[inst].asks_in.id < view.id && others + usize::from(shows(&used)) >= quorum;
            let follows = entry.is_some() && (others >= quorum || is_above);
            if used != named && !follows {
                self.crash(inst);
            }
        }
    }

    /// Of two servers of the first name, the one that the highest view names, by its address or else by its run; if that view removes
    /// the name, the one with the later view, whose vote may still be needed.
    pub(super) fn named_server(&self) -> usize {
        let (view, second) = (self.highest_view(), self.profile.second_server());
        let view_of = |server: usize| self.servers[server].machine.view().id;
        let Some(entry) = view.entry(&self.profile.name_of(0)) else {
            return second.filter(|second| view_of(*second) > view_of(0)).unwrap_or(0);
        };
        let is_second = |(entry, second): (&RosterEntry, usize)| match entry.address.as_deref() {
            Some(address) => *address == *address_of(second),
            None => entry.run[..20] == run_id(second, 0, 0)[..20],
        };
        second.filter(|second| is_second((entry, *second))).unwrap_or(0)
    }

    /// Both clusters lost a majority, and the other one was first: an operator stops its instance, and empties the nodes that it took.
    pub(super) fn part_clusters(&mut self) {
        let now = self.now;
        self.trace(|| "an operator stops the other cluster".into());
        self.profile.other_is_stopped = true;
        self.end(self.insts.len() - 1);
        for node in self.checker.taken_by_other.clone() {
            self.servers[node].empty(now);
        }
    }
}
