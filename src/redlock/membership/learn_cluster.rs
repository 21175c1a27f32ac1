//! The cluster's name is the fingerprint of the list and terms under which it was declared. An instance that was started with later
//! ones takes the name from the nodes (`docs/views.md`, *Changing the list*).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::protocol::{ClusterParams, NoVote, NodeList, View, ViewId, Vote};
use crate::redlock::clock::Clock;
use crate::redlock::monitor::{NodeHealth, NodeMonitor};
use crate::redlock::node::Node;
use crate::redlock::quorum::quorum_of;
use crate::redlock::random::Entropy;
use crate::types::NodeId;

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Takes the cluster's name from the nodes if this configuration's list or terms are later than those under which the cluster
    /// was declared. From then on the configured list is one that was changed, as in a view with a list: if all nodes forget, other
    /// instances must not take the first list for it, whose name this is (seed 24814). Returns to the configured name if a quorum
    /// shows that: all had forgotten, and an instance that was started then has declared the list anew. Or if all forgot before this
    /// instance took a view.
    pub(super) fn learn_cluster(&self) {
        let (engine, health) = (&self.engine, self.health());
        let params = &engine.settings.params;
        let answer = |(node, health): (&Arc<N>, &NodeHealth)| {
            let status = health.status.as_ref().filter(|_| health.error.is_none())?;
            Some((node.id().clone(), status.vote.clone(), Arc::clone(&status.view)))
        };
        let answers: Vec<_> = engine.nodes.iter().zip(&health).filter_map(answer).collect();
        let configured: BTreeSet<NodeId> =
            engine.nodes.iter().take(engine.configured()).map(|node| node.id().clone()).collect();
        let shows_configured = |(node, vote, _): &&(NodeId, Vote, Arc<View>)| {
            let is_shown = matches!(vote, Vote::NoVote(NoVote::OtherCluster { theirs }) if *theirs == *params.cluster.configured());
            is_shown && configured.contains(node)
        };
        if answers.iter().filter(shows_configured).count() >= quorum_of(configured.len()) {
            tracing::warn!(
                "the nodes forgot this cluster, and another instance has declared it anew with this list and terms"
            );
            return params.cluster.return_to_configured();
        }
        let current = engine.views.current();
        if is_learned_name_obsolete(&configured, &answers, params, &current) {
            tracing::warn!(
                "the nodes forgot the cluster whose name this instance had taken: it uses its own list and terms"
            );
            return params.cluster.return_to_configured();
        }
        if is_accepted_later(&configured, &answers, params, &current) {
            return engine.views.replace(&Arc::default());
        }
        if let Some((theirs, terms)) = name_of(&configured, &answers, params) {
            tracing::warn!(
                cluster = theirs,
                "the list of nodes or their terms were changed since this cluster was declared: its name is used"
            );
            params.cluster.learn(theirs);
            let is_first = current.id == ViewId::NONE && terms == *params.cluster.terms();
            if is_first && !mutant::is(Mutant::ListForgotten) {
                let list = NodeList { names: configured, terms, ..NodeList::default() };
                engine.views.replace(&Arc::new(View { list: Some(Arc::new(list)), ..View::default() }));
            }
        }
    }
}

/// The cluster's name, if it is not this instance's, and the hash of the terms under which it was declared. Nodes count that show it
/// in a view whose list has the terms of `own`, or accepts them, or in a view from before the first change of the list, if it is the
/// name of that view's nodes with these terms: they may be in several views if a change is half done. A quorum of the configured
/// nodes must show it, and so must a quorum of a shown list, or of the list that this one changes. If all other configured nodes
/// answer that they forgot, one node suffices whose list is the configured one.
fn name_of<'a>(
    configured: &BTreeSet<NodeId>,
    answers: &'a [(NodeId, Vote, Arc<View>)],
    own: &ClusterParams,
) -> Option<(&'a str, Arc<str>)> {
    let accepts = |list: &NodeList| {
        let changed = list.changed.iter().flat_map(|changed| &changed.accepted);
        changed.chain([&list.terms]).any(|terms| terms == own.cluster.terms())
    };
    let counts = |theirs: &str, view: &View| match &view.list {
        Some(list) => accepts(list),
        None => *theirs == *own.declared_with(view.roster.keys()),
    };
    let shown = answers.iter().filter_map(|(node, vote, view)| match vote {
        Vote::NoVote(NoVote::OtherCluster { theirs }) if counts(theirs, view) => {
            Some((node, theirs.as_str(), view.list.as_deref()))
        }
        _ => None,
    });
    let shown: Vec<_> = shown.collect();
    let is_learned = |theirs: &str| {
        let says_so = |name: &NodeId| shown.iter().any(|(node, other, _)| *node == name && *other == theirs);
        let count = |names: &BTreeSet<NodeId>| names.iter().filter(|name| says_so(name)).count();
        let of_quorum = |names: &BTreeSet<NodeId>| count(names) >= quorum_of(names.len());
        let mut lists = shown.iter().filter(|(_, other, _)| *other == theirs).filter_map(|(_, _, list)| *list);
        let is_present = |list: &NodeList| {
            list.has_just(configured) && configured.iter().all(|name| says_so(name) || has_forgotten(name, answers))
        };
        lists.any(|list| {
            let is_shown = of_quorum(&list.names) || list.old.iter().any(|old| of_quorum(&old.names));
            is_shown && of_quorum(configured) || is_present(list)
        })
    };
    let others = shown.iter().filter(|(_, theirs, list)| list.is_some() && **theirs != *own.cluster.get());
    let (_, theirs, list) = others.into_iter().find(|(_, theirs, _)| is_learned(theirs))?;
    Some((theirs, Arc::clone(&list.as_ref()?.terms)))
}

/// Whether the node answers that it forgot.
fn has_forgotten(name: &NodeId, answers: &[(NodeId, Vote, Arc<View>)]) -> bool {
    let waits = |vote: &Vote| matches!(vote, Vote::NoVote(NoVote::Quarantined { .. } | NoVote::Unseeded { .. }));
    answers.iter().any(|(node, vote, view)| node == name && view.id == ViewId::NONE && waits(vote))
}

/// Whether this instance took the cluster's name, but no view yet, and all nodes forgot: nothing says any more which terms that name
/// has (seed 144722).
fn is_learned_name_obsolete(
    configured: &BTreeSet<NodeId>,
    answers: &[(NodeId, Vote, Arc<View>)],
    own: &ClusterParams,
    current: &View,
) -> bool {
    let is_unknown = current.id == ViewId::NONE && current.list.is_none() && own.cluster.is_learned();
    is_unknown && configured.iter().all(|name| has_forgotten(name, answers))
}

/// Whether this instance asks in a view that does not accept its configuration, so that it has to use its configured name there, while
/// a quorum shows a later view that accepts it: it was started while the terms were changed (seed 543619).
fn is_accepted_later(
    configured: &BTreeSet<NodeId>,
    answers: &[(NodeId, Vote, Arc<View>)],
    own: &ClusterParams,
    current: &View,
) -> bool {
    let name = own.cluster.get();
    let is_accepted = |view: &View| own.in_view(view).cluster.get() == name;
    let shows = |(node, vote, view): &&(NodeId, Vote, Arc<View>)| {
        let is_ours = matches!(vote, Vote::NoVote(NoVote::OtherCluster { theirs }) if **theirs == *name);
        is_ours && configured.contains(node) && view.id > current.id && is_accepted(view)
    };
    !is_accepted(current) && answers.iter().filter(shows).count() >= quorum_of(configured.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ChangedTerms, ClusterName, OldList, RosterEntry, Terms};
    use crate::redlock::engine::RedlockSettings;

    fn names(of: &[u8]) -> BTreeSet<NodeId> {
        of.iter().map(|n| NodeId::parse(&format!("n{n}")).expect("valid")).collect()
    }

    /// A view of a cluster that was declared with the terms of `own`, and whose list is this one, or was not changed.
    fn view(own: &ClusterParams, roster: &[u8], list: Option<(&[u8], Option<&[u8]>)>) -> Arc<View> {
        let id = ViewId::NONE.above(1);
        let entry = |name| (name, RosterEntry { run: "run".into(), since: id, address: None });
        let list = list.map(|(listed, old)| {
            let old = old.map(|old| OldList { names: names(old), before: [].into(), terms: None });
            Arc::new(NodeList { names: names(listed), terms: Arc::clone(own.cluster.terms()), changed: None, old })
        });
        Arc::new(View { id, roster: names(roster).into_iter().map(entry).collect(), list })
    }

    type Answer<'a> = (u8, Option<&'a str>, Arc<View>);

    /// The hash of the terms with which the name is taken. `None` as the name: the node waits in quarantine.
    fn terms_learned(own: &ClusterParams, configured: &[u8], answers: &[Answer<'_>]) -> Option<Arc<str>> {
        let answer = |(n, theirs, view): &Answer<'_>| {
            let no_vote = match theirs {
                Some(theirs) => NoVote::OtherCluster { theirs: (*theirs).into() },
                None => NoVote::Quarantined { left_ms: 9 },
            };
            (names(&[*n]).pop_first().expect("one"), Vote::NoVote(no_vote), Arc::clone(view))
        };
        let answers: Vec<_> = answers.iter().map(answer).collect();
        name_of(&names(configured), &answers, own).map(|(_, terms)| terms)
    }

    fn learned(own: &ClusterParams, configured: &[u8], answers: &[Answer<'_>]) -> bool {
        terms_learned(own, configured, answers).is_some_and(|terms| terms == *own.cluster.terms())
    }

    #[test]
    fn the_name_is_taken_from_a_quorum_of_the_configured_nodes_and_of_a_list() {
        let own = RedlockSettings::of_tests().params;
        let x = |n, of: &[u8]| (n, Some("x"), view(&own, of, Some((of, None))));
        let all = [1, 2, 3, 4];
        assert!(learned(&own, &all, &[x(1, &all), x(2, &all), x(3, &all)]));
        assert!(!learned(&own, &all, &[x(1, &all), x(2, &all)]), "the others are silent");
        assert!(learned(&own, &[1, 2, 5], &[x(1, &all), x(2, &all), x(3, &all)]), "another list");
        assert!(!learned(&own, &[1, 5, 6], &[x(1, &all), x(2, &all), x(3, &all)]), "few are configured");
        let y = (2, Some("y"), view(&own, &[1], Some((&[1], None))));
        assert!(!learned(&own, &[1, 2, 3], &[x(1, &[1]), y]), "one of three");
        let mine: &str = &own.cluster.get();
        assert!(!learned(&own, &all, &[1, 2, 3].map(|n| (n, Some(mine), view(&own, &all, Some((&all, None)))))));
        let other = ClusterParams { cluster: "other".into(), ..ClusterParams::clone(&own) };
        let of_other = |n| (n, Some("x"), view(&other, &all, Some((&all, None))));
        assert!(!learned(&own, &all, &[1, 2, 3].map(of_other)), "other terms");
        let accepted = ChangedTerms { now: Terms::default(), accepted: vec![Arc::clone(own.cluster.terms())] };
        let later = [1, 2, 3].map(|n| {
            let list = NodeList {
                changed: Some(accepted.clone()),
                ..NodeList::clone(of_other(n).2.list.as_deref().expect("a list"))
            };
            (n, Some("x"), Arc::new(View { list: Some(Arc::new(list)), ..View::clone(&of_other(n).2) }))
        });
        assert_eq!(terms_learned(&own, &all, &later).as_ref(), Some(other.cluster.terms()), "accepted ones");
    }

    /// Seed 431322: two different changes were half done, and a third node was in neither.
    #[test]
    fn a_node_that_knows_no_list_yet_counts_if_the_name_is_that_of_its_view() {
        let own = RedlockSettings::of_tests().params;
        let declared: &str = &own.declared_with(&names(&[1, 2, 3]));
        let half_done = [
            (1, Some(declared), view(&own, &[1, 2], Some((&[1, 3], Some(&[1, 2, 3]))))),
            (2, Some(declared), view(&own, &[1, 2, 3], None)),
            (3, Some(declared), view(&own, &[1, 2, 3], Some((&[1, 2, 3, 4], Some(&[1, 2, 3]))))),
        ];
        assert!(learned(&own, &[1, 2, 3, 4], &half_done));
        // One node shows a list with the right terms; what the others say was declared with other ones.
        let claimed = half_done.map(|(n, _, view)| (n, Some("x"), view));
        assert!(!learned(&own, &[1, 2, 3, 4], &claimed));
    }

    #[test]
    fn an_instance_that_was_started_during_the_change_that_accepts_it_asks_anew() {
        let own = ClusterParams {
            cluster: ClusterName::new("own", "new"),
            ..ClusterParams::clone(&RedlockSettings::of_tests().params)
        };
        own.cluster.learn("x");
        let with = |number: u64, terms: &str, accepted: &[&str]| {
            let id = (0..number).fold(ViewId::NONE, |id, _| id.above(0));
            let accepted = accepted.iter().map(|terms| Arc::from(*terms)).collect();
            let changed = Some(ChangedTerms { now: Terms::default(), accepted });
            let list = NodeList { names: names(&[1, 2, 3]), terms: terms.into(), changed, old: None };
            Arc::new(View { id, roster: [].into(), list: Some(Arc::new(list)) })
        };
        let answers = |theirs: &str, of: &[&Arc<View>]| -> Vec<_> {
            let vote = || Vote::NoVote(NoVote::OtherCluster { theirs: theirs.into() });
            names(&[1, 2, 3]).into_iter().zip(of).map(|(node, view)| (node, vote(), Arc::clone(view))).collect()
        };
        let (first, before) = (with(2, "first", &[]), with(3, "first", &[]));
        let (accepts, after) = (with(4, "first", &["new"]), with(6, "first", &["new"]));
        let later = |theirs, of: &[&Arc<View>], current| {
            is_accepted_later(&names(&[1, 2, 3]), &answers(theirs, of), &own, current)
        };
        assert!(later("x", &[&after, &after], &before));
        assert!(!later("x", &[&after, &before], &before), "one of three");
        assert!(!later("y", &[&after, &after], &before), "of a third cluster");
        assert!(!later("x", &[&before, &before], &first), "not accepted");
        assert!(!later("x", &[&after, &after], &accepts), "it is accepted where it asks");
    }

    #[test]
    fn a_name_of_other_terms_is_given_up_if_all_nodes_forgot_before_a_view_was_taken() {
        let own = ClusterParams {
            cluster: ClusterName::new("own", "new"),
            ..ClusterParams::clone(&RedlockSettings::of_tests().params)
        };
        let blank = |n: u8| {
            let no_vote = NoVote::Quarantined { left_ms: 9 };
            (names(&[n]).pop_first().expect("one"), Vote::NoVote(no_vote), Arc::<View>::default())
        };
        let given_up = |answers: &[_], view: &View| is_learned_name_obsolete(&names(&[1, 2, 3]), answers, &own, view);
        let all = [1, 2, 3].map(blank);
        assert!(!given_up(&all, &View::default()), "it is the configured one");
        own.cluster.learn("x");
        assert!(given_up(&all, &View::default()));
        assert!(!given_up(&all[1..], &View::default()), "one is silent");
        let mut one_knows = all.clone();
        one_knows[0].1 = Vote::NoVote(NoVote::OtherCluster { theirs: "x".into() });
        assert!(!given_up(&one_knows, &View::default()));
        let with_list = view(&own, &[1, 2, 3], Some((&[1, 2, 3], None)));
        assert!(!given_up(&all, &with_list), "it makes views with this list");
        assert!(!given_up(&all, &View { list: with_list.list.clone(), ..View::default() }), "the same");
    }

    /// The others were wiped: nobody could be filled any more.
    #[test]
    fn one_node_that_shows_the_configured_list_suffices_beside_nodes_that_forgot() {
        let own = RedlockSettings::of_tests().params;
        let all = [1, 2, 3, 4];
        let blank = |n| (n, None, Arc::default());
        let x = |n, of: &[u8]| (n, Some("x"), view(&own, of, Some((of, None))));
        assert!(learned(&own, &all, &[blank(1), blank(2), x(3, &all), x(4, &all)]));
        assert!(learned(&own, &all, &[blank(1), blank(2), blank(3), x(4, &all)]), "seed 7110");
        assert!(!learned(&own, &[1, 2, 3], &[blank(1), blank(2), x(3, &all)]), "another list");
        assert!(!learned(&own, &[1, 2, 3], &[blank(1), x(3, &[1, 2, 3])]), "one is silent");
        assert!(!learned(&own, &all, &[blank(1), x(3, &all), x(4, &all)]), "one is silent");
        let of_three = [blank(1), blank(2), x(3, &[2, 3, 4]), x(4, &[2, 3, 4])];
        assert!(!learned(&own, &[1, 2, 3, 5], &of_three), "another list");
        // Seed 5732: the removal of a node was half done.
        let removed = view(&own, &[1, 3, 4], Some((&[1, 3, 4], Some(&all))));
        let half_done = [(1, Some("x"), removed.clone()), blank(2), blank(3), (4, Some("x"), removed)];
        assert!(learned(&own, &all, &half_done));
        assert!(!learned(&own, &[1, 3, 4, 5], &half_done), "another list");
        assert!(!learned(&own, &[1, 2, 3, 4, 5], &half_done), "one is silent");
        let votes = (2, None, view(&own, &all, None));
        assert!(!learned(&own, &all, &[blank(1), votes, x(3, &all), x(4, &all)]), "one is of this instance's cluster");
        let other = (2, Some("y"), view(&own, &all, Some((&all, None))));
        assert!(!learned(&own, &all, &[blank(1), other, x(3, &all), x(4, &all)]), "one is of a third cluster");
    }
}
