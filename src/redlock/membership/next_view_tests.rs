//! Who is named by a new view, and when there is none.

use std::time::Duration;

use super::*;
use crate::mutant::{FOUND_BY_DERIVE, plant, restore};
use crate::protocol::ClusterName;
use crate::protocol::keys::KeyTemplate;
use crate::redlock::membership::view_monitor::Latest;

fn names() -> Vec<NodeId> {
    ["a", "b", "c"].map(|name| NodeId::parse(name).expect("valid")).to_vec()
}

/// A view of three processes, of which the last was admitted in a later one.
fn view(number: u64, runs: [&str; 3]) -> Arc<View> {
    let id = (1..number).fold(ViewId::NONE.above(7), |id, _| id.above(7));
    let entry = |(name, run): (NodeId, &str)| {
        (name, RosterEntry { run: run.into(), since: ViewId::NONE.above(7), address: None })
    };
    Arc::new(View { id, list: None, roster: names().into_iter().zip(runs).map(entry).collect() })
}

fn votes(run: &str, view: &Arc<View>) -> Option<Member> {
    Some(Member {
        is_sound: true,
        is_served: false,
        is_fillable: true,
        is_ours: true,
        run: run.into(),
        inherited: None,
        view: Arc::clone(view),
        promised: view.id,
        admitted: if view.id == ViewId::NONE { ViewId::NONE } else { ViewId::NONE.above(7) },
    })
}

fn promised(run: &str, view: &Arc<View>, higher: &View) -> Option<Member> {
    votes(run, view).map(|member| Member { promised: higher.id, ..member })
}

fn forgot(run: &str, is_served: bool) -> Option<Member> {
    let member = votes(run, &Arc::default())?;
    Some(Member { is_sound: false, is_served, ..member })
}

fn derive(members: &[Option<Member>], rivals: [bool; 3]) -> Option<Change> {
    let names = names();
    NodeAnswers {
        names: &names,
        members,
        rivals: &rivals,
        ended: &[false; 3],
        addresses: &[],
        configured: 3,
        own: &Arc::default(),
    }
    .derive(ViewId::NONE.above(9).above(9).above(9), 0)
}

#[test]
fn a_process_that_forgot_is_named_anew_and_the_others_stay() {
    let w = view(1, ["a1", "b1", "c1"]);
    let change = derive(&[votes("a1", &w), forgot("b2", false), votes("c1", &w)], [false; 3]).expect("a change");
    assert_eq!((change.sound, change.targets, change.by_clock), (vec![0, 2], vec![1], false));
    let runs: Vec<(&str, bool)> = change.view.roster.values().map(|e| (&*e.run, e.since == change.view.id)).collect();
    assert_eq!(runs, [("a1", false), ("b2", true), ("c1", false)]);
}

#[test]
fn a_newcomer_is_not_named_while_its_predecessor_is_alive() {
    let w = view(1, ["a1", "b1", "c1"]);
    let members = [votes("a1", &w), forgot("b2", true), votes("c1", &w)];
    let change = derive(&members, [false, true, false]).expect("a view without a target");
    assert_eq!(change.targets, Vec::<usize>::new());
    assert_eq!(change.view.roster, w.roster);
}

/// N4, also where the process whose run is claimed is late or has ended.
#[test]
fn a_process_that_shows_the_run_of_another_name_is_not_named() {
    let names = ["a", "b", "c", "d", "e"].map(|name| NodeId::parse(name).expect("valid"));
    let id = ViewId::NONE.above(7);
    let entry =
        |name: &NodeId| (name.clone(), RosterEntry { run: format!("{name}1").into(), since: id, address: None });
    let w = Arc::new(View { id, list: None, roster: names.iter().map(entry).collect() });
    let to_heal = |a: Option<Member>, b: Option<Member>, ended: bool| {
        let members = [a, b, votes("c1", &w), votes("d1", &w), votes("e1", &w)];
        let ended = [ended, false, false, false, false];
        let known = NodeAnswers {
            names: &names,
            members: &members,
            rivals: &[false; 5],
            ended: &ended,
            addresses: &[],
            configured: 5,
            own: &Arc::default(),
        };
        known.to_heal()
    };
    assert_eq!(to_heal(votes("a1", &w), forgot("a1", true), false), [0; 0]);
    assert_eq!(to_heal(None, forgot("a1", true), false), [0; 0], "a does not answer");
    // Two names exchanged their servers, or the former one has ended for good.
    assert_eq!(to_heal(forgot("b1", true), forgot("a1", true), false), [0, 1]);
    assert_eq!(to_heal(None, forgot("a1", true), true), [1]);
}

#[test]
fn a_process_that_the_highest_view_does_not_name_does_not_count() {
    let (low, high) = (view(1, ["a1", "b1", "c1"]), view(2, ["a1", "b2", "c1"]));
    let change = derive(&[votes("a1", &high), votes("b1", &low), votes("c1", &high)], [false; 3]).expect("a change");
    assert_eq!((change.sound, change.targets), (vec![0, 2], vec![1]), "the former process is to be filled");
    assert!(derive(&[votes("a1", &high), votes("b1", &low), None], [false; 3]).is_none());
}

#[test]
fn a_process_outside_the_highest_view_gives_up_its_vote_where_too_few_are_left_to_fill_it() {
    let (low, high) = (view(1, ["a1", "b1", "c1"]), view(2, ["a1", "b2", "c1"]));
    let to_give_up = |members: &[Option<Member>]| {
        NodeAnswers {
            names: &names(),
            members,
            rivals: &[false; 3],
            ended: &[false; 3],
            addresses: &[],
            configured: 3,
            own: &Arc::default(),
        }
        .to_give_up()
        .first()
        .copied()
    };
    assert_eq!(to_give_up(&[votes("a1", &high), votes("b1", &low), forgot("c2", true)]), Some(1));
    assert_eq!(to_give_up(&[votes("a1", &high), votes("b1", &low), votes("c1", &low)]), None, "two can fill it");
    assert_eq!(to_give_up(&[votes("a1", &high), forgot("b1", true), None]), None);
    assert_eq!(to_give_up(&[None, votes("b1", &low), None]), None, "no higher view is known");
}

#[test]
fn where_too_few_vote_everybody_else_must_have_waited_and_answer() {
    let w = view(1, ["a1", "b1", "c1"]);
    let change = derive(&[votes("a1", &w), forgot("b2", true), forgot("c2", true)], [false; 3]).expect("a change");
    assert_eq!((change.sound, change.targets, change.by_clock), (vec![0], vec![1, 2], true));
    assert!(derive(&[votes("a1", &w), forgot("b2", true), forgot("c2", false)], [false; 3]).is_none());
    assert!(derive(&[votes("a1", &w), forgot("b2", true), None], [false; 3]).is_none());
    assert!(derive(&[votes("a1", &w), forgot("b2", true), forgot("c2", true)], [false, false, true]).is_none());
}

#[test]
fn a_node_that_has_ended_is_not_waited_for_and_leaves_the_roster() {
    let w = view(1, ["a1", "b1", "c1"]);
    let with = |members: [Option<Member>; 3], ended: [bool; 3]| {
        let names = names();
        let known = NodeAnswers {
            names: &names,
            members: &members,
            rivals: &[false; 3],
            ended: &ended,
            addresses: &[],
            configured: 3,
            own: &Arc::default(),
        };
        (known.waited_for(), known.derive(ViewId::NONE.above(9).above(9), 0))
    };
    let (c_ended, nobody) = ([false, false, true], [false; 3]);
    assert_eq!(with([votes("a1", &w), forgot("b2", true), None], nobody), (vec![2], None));
    assert_eq!(with([votes("a1", &w), forgot("b2", false), None], c_ended), (vec![], None), "it has not waited yet");
    assert_eq!(with([votes("a1", &w), None, None], c_ended), (vec![1], None), "too few are left");
    let (waited_for, change) = with([votes("a1", &w), forgot("b2", true), None], c_ended);
    let change = change.expect("a change");
    assert_eq!((waited_for, &change.sound, &change.targets, change.by_clock), (vec![], &vec![0], &vec![1], true));
    let runs: Vec<&str> = change.view.roster.values().map(|e| &*e.run).collect();
    assert_eq!(runs, ["a1", "b2"]);
    // It answers after all, in its old view: it is filled like one that forgot.
    let b2 = votes("b2", &change.view).map(|m| Member { admitted: change.view.id, ..m });
    let (_, again) = with([votes("a1", &change.view), b2, votes("c1", &w)], c_ended);
    assert_eq!(again.map(|c| (c.sound, c.targets)), Some((vec![0, 1], vec![2])));
}

#[test]
fn the_first_view_names_those_that_voted_before_there_were_views() {
    let none = Arc::default();
    let change = derive(&[votes("a1", &none), votes("b1", &none), None], [false; 3]).expect("a change");
    assert_eq!((change.sound, change.targets, change.view.roster.len()), (vec![0, 1], vec![], 2));
    assert!(change.view.roster.values().all(|entry| entry.since == ViewId::NONE));
}

/// What is believed of these members, and what follows from it.
fn seen(members: &[Option<Member>], addresses: &[Option<Arc<str>>]) -> (ViewId, Vec<usize>, Vec<usize>, bool) {
    let names = names();
    let known = NodeAnswers {
        names: &names,
        members,
        rivals: &[false; 3],
        ended: &[false; 3],
        addresses,
        configured: 3,
        own: &Arc::default(),
    };
    let (base, named) = known.base();
    (base.id, named, known.to_give_up(), known.has_stray())
}

#[test]
fn a_view_that_one_node_made_up_moves_and_displaces_nobody() {
    let real = view(1, ["a1", "b1", "c1"]);
    for made_up in [view(2, ["x", "y", "c1"]), view(2, ["a1", "y", "c1"]), view(2, ["a1", "b1", "c1"])] {
        let members = [votes("a1", &real), votes("b1", &real), votes("c1", &made_up)];
        let (base, named, to_give_up, has_stray) = seen(&members, &[]);
        assert_eq!((base, to_give_up, has_stray), (real.id, vec![], false), "{made_up:?}");
        assert!(named.starts_with(&[0, 1]), "{named:?}");
    }
    // While one of the others is silent, nobody contradicts it. Who is left keeps its vote all the same.
    let displaces = view(2, ["x", "y", "c1"]);
    assert_eq!(seen(&[None, votes("b1", &real), votes("c1", &displaces)], &[]).2, Vec::<usize>::new());
}

#[test]
fn a_view_that_a_quorum_promised_counts_from_its_first_vote_on() {
    let (low, high) = (view(1, ["a1", "b1", "c1"]), view(2, ["a1", "b1", "c1"]));
    let members = [votes("a1", &high), promised("b1", &low, &high), votes("c1", &low)];
    assert_eq!(seen(&members, &[]), (high.id, vec![0, 1, 2], vec![], false));
    // Where too few are left to contradict it, too.
    assert_eq!(seen(&[votes("a1", &high), votes("b1", &low), None], &[]).0, high.id);
}

#[test]
fn one_nodes_word_gives_no_other_node_an_address() {
    let real = view(1, ["a1", "b1", "c1"]);
    let mut elsewhere = View::clone(&view(2, ["a1", "b1", "c1"]));
    elsewhere.roster.get_mut(&names()[0]).expect("an entry").address = Some("evil:1".into());
    let elsewhere = Arc::new(elsewhere);
    // Also not while a change is under way, whose number it knows.
    let alone = [votes("a1", &real), promised("b1", &real, &elsewhere), votes("c1", &elsewhere)];
    let seen_alone = seen(&alone, &[]);
    assert_eq!((seen_alone.0, seen_alone.3), (real.id, true), "a new view brings it back");
    let change = derive(&alone, [false; 3]).expect("a change");
    assert!(change.view.roster.values().all(|entry| entry.address.is_none()), "{change:?}");
    // A quorum shows it, or this instance moved the node itself.
    let two = [promised("a1", &real, &elsewhere), votes("b1", &elsewhere), votes("c1", &elsewhere)];
    assert_eq!(seen(&two, &[]).0, elsewhere.id);
    assert_eq!(seen(&alone, &[Some("evil:1".into()), None, None]).0, elsewhere.id);
    assert_eq!(with_mutant(Mutant::AddressOfOneNode, || seen(&alone, &[]).0), elsewhere.id, "the mutant is not found");
}

/// Which view's addresses count for an instance in the view `current` that reaches `a` at this address.
fn followed(members: &[Option<Member>], current: &View, address: &str) -> Option<ViewId> {
    let (names, own) = (names(), Arc::new(current.clone()));
    let addresses = [Some(address.into()), None, None];
    let (rivals, ended) = ([false; 3], [false; 3]);
    let known = NodeAnswers {
        names: &names,
        members,
        rivals: &rivals,
        ended: &ended,
        addresses: &addresses,
        configured: 3,
        own: &own,
    };
    known.last_shown(current.id).map(|view| view.id)
}

#[test]
fn where_nobody_votes_the_addresses_that_a_quorum_of_those_that_stay_remembers_count_even_below_the_own_view() {
    let at = |number: u64, address: &str| {
        let mut view = View::clone(&view(number, ["a1", "b1", "c1"]));
        view.roster.get_mut(&names()[0]).expect("an entry").address = Some(address.into());
        Arc::new(view)
    };
    let (v2, v3) = (at(2, "old:1"), at(3, "new:1"));
    let waits = |view: &Arc<View>| votes("x", view).map(|member| Member { is_sound: false, ..member });
    // The replacement was lost with the ends of all logs, also of the new server's.
    let at_new = [waits(&v2), waits(&v2), waits(&v2)];
    assert_eq!(followed(&at_new, &v3, "new:1"), Some(v2.id));
    // Also if the new server alone remembers it: who is at the former one does not see that.
    let at_new = [waits(&v3), waits(&v2), waits(&v2)];
    assert_eq!(followed(&at_new, &v3, "new:1"), Some(v2.id));
    // And there it stays, whatever the former server shows.
    let at_old = [waits(&v3), waits(&v2), waits(&v2)];
    assert_eq!(followed(&at_old, &v3, "old:1"), Some(v2.id));
    // A process does not count for being left: else two servers that name each other would be followed in turn.
    assert_eq!(followed(&[waits(&v2), waits(&v2), None], &v3, "new:1"), None);
    assert_eq!(followed(&[waits(&v2), waits(&v2), waits(&v3)], &v3, "new:1"), None);
    // Without such a quorum, what is above the own view counts, if a quorum shows it.
    assert_eq!(followed(&[waits(&v3), waits(&v3), waits(&v2)], &v2, "old:1"), Some(v3.id));
    assert_eq!(followed(&[waits(&v2), waits(&v3), None], &v2, "old:1"), None);
    // Processes that have forgotten everything are no such quorum.
    let blank: Arc<View> = Arc::default();
    assert_eq!(followed(&[waits(&blank), waits(&blank), waits(&blank)], &v3, "new:1"), None);
}

fn with_mutant<T>(mutant: Mutant, run: impl FnOnce() -> T) -> T {
    assert!(FOUND_BY_DERIVE.contains(&mutant));
    let before = plant(Some(mutant), false);
    let outcome = run();
    restore(before);
    outcome
}

#[test]
fn a_node_that_names_itself_alone_is_no_quorum() {
    let real = view(1, ["a1", "b1", "c1"]);
    let list = NodeList { names: [names()[2].clone()].into(), terms: "0".into(), changed: None, old: None };
    let alone = Arc::new(View { list: Some(Arc::new(list)), ..View::clone(&view(2, ["a1", "b1", "c1"])) });
    let members = [votes("a1", &real), votes("b1", &real), votes("c1", &alone)];
    assert_eq!(seen(&members, &[]).0, real.id);
    assert_eq!(with_mutant(Mutant::ListOfOneNode, || seen(&members, &[]).0), alone.id, "the mutant is not found");
    // Also not where no quorum votes, and it says that it waits for its vote.
    let waiting = votes("c1", &alone).map(|m| Member { is_sound: false, is_served: true, ..m });
    let members = [forgot("a2", true), votes("b1", &real), waiting];
    assert_eq!(seen(&members, &[]).0, real.id);
    assert_eq!(with_mutant(Mutant::ListOfOneNode, || seen(&members, &[]).0), ViewId::NONE, "the mutant is not found");
    // Also not while a change is under way, whose number it knows: had it been chosen, one of the others had left theirs.
    let members = [promised("a1", &real, &alone), promised("b1", &real, &alone), votes("c1", &alone)];
    assert_eq!(seen(&members, &[]).0, real.id);
}

/// c was removed and still answers, then d, which is gone; then the clocks of all others stepped (seed 275919 of the simulation).
#[test]
fn a_process_that_was_removed_does_not_say_which_list_counts() {
    let names = ["a", "b", "c", "d"].map(|name| NodeId::parse(name).expect("valid"));
    let with_list = |number, names: &[NodeId], old: &[NodeId]| {
        let old = (!old.is_empty()).then(|| OldList {
            names: old.iter().cloned().collect(),
            before: BTreeMap::from([(old[2].clone(), ("c1".into(), ViewId::NONE.above(7)))]),
            terms: None,
        });
        let names = names.iter().cloned().collect();
        let list = Some(Arc::new(NodeList { names, terms: "0".into(), changed: None, old }));
        Arc::new(View { list, ..View::clone(&view(number, ["a1", "b1", "c1"])) })
    };
    let removing_c = with_list(2, &[names[0].clone(), names[1].clone(), names[3].clone()], &names);
    let last = with_list(5, &names[..2], &[]);
    let served = |run: &str| votes(run, &last).map(|m| Member { is_sound: false, is_served: true, ..m });
    let base = |members: &[Option<Member>]| {
        let (ended, own) = ([false; 4], &Arc::default());
        let known =
            NodeAnswers { names: &names, members, rivals: &ended, ended: &ended, addresses: &[], configured: 4, own };
        let names = known.base().0.list.as_ref().map(|list| list.names.len());
        (names, known.is_cold())
    };
    let members = [served("a1"), served("b1"), votes("c1", &removing_c), None];
    assert_eq!(base(&members), (Some(2), true));
    assert_eq!(with_mutant(Mutant::LeftOutCounts, || base(&members)), (Some(3), false), "the mutant is not found");
    // Also if the others restarted with their data since (seeds 708466 and 771185), if they are two servers.
    let members = [served("a2"), served("b2"), votes("c1", &removing_c), None];
    assert_eq!(base(&members), (Some(2), true));
    assert_eq!(with_mutant(Mutant::RestartedNotShown, || base(&members)), (Some(3), false), "the mutant is not found");
    assert_eq!(base(&[served("a2"), served("a2"), votes("c1", &removing_c), None]), (Some(3), false));
    // One process alone does not say that the list has changed since.
    assert_eq!(base(&[served("a1"), None, votes("c1", &removing_c), None]), (Some(3), false));
}

#[test]
fn a_view_that_one_node_makes_up_takes_nobodys_vote_while_a_change_is_under_way() {
    let real = view(1, ["a1", "b1", "c1"]);
    let mut unknown = View::clone(&view(2, ["a1", "b1", "c1"]));
    let many = ["a", "b", "c", "x", "y", "z"].map(|name| NodeId::parse(name).expect("valid"));
    unknown.list = Some(Arc::new(NodeList { names: many.into(), terms: "0".into(), changed: None, old: None }));
    for made_up in [view(2, ["a9", "b9", "c1"]), Arc::new(unknown)] {
        let members = [promised("a1", &real, &made_up), promised("b1", &real, &made_up), votes("c1", &made_up)];
        let (id, voters, _, _) = seen(&members, &[]);
        assert_eq!((id, voters), (real.id, vec![0, 1]));
        let change = derive(&members, [false; 3]).expect("a change");
        assert_eq!((change.sound, change.targets), (vec![0, 1], vec![2]), "it is filled like one that forgot");
    }
}

#[test]
fn the_view_is_known_where_this_instances_clock_is_off_and_nobody_votes_for_it() {
    let (low, high) = (view(1, ["a1", "b1", "c1"]), view(2, ["a1", "b1", "c1"]));
    let refuses = |run: &str, view: &Arc<View>| {
        votes(run, view).map(|member| Member { is_sound: false, is_fillable: false, ..member })
    };
    let shown = |members: &[Option<Member>]| {
        let (names, own) = (names(), Arc::default());
        let (members, ended) = (members, [false; 3]);
        let known = NodeAnswers {
            names: &names,
            members,
            rivals: &ended,
            ended: &ended,
            addresses: &[],
            configured: 3,
            own: &own,
        };
        known.shown().map(|view| view.id)
    };
    assert_eq!(shown(&[refuses("a1", &high), refuses("b1", &high), refuses("c1", &low)]), Some(high.id));
    assert_eq!(shown(&[refuses("a1", &high), refuses("b1", &low), refuses("c1", &low)]), Some(low.id));
    assert_eq!(shown(&[refuses("a1", &high), refuses("b9", &high), None]), Some(high.id), "it restarted");
    assert_eq!(shown(&[refuses("a1", &high), refuses("a1", &high), None]), None, "one server under two names");
    let foreign = |run| refuses(run, &high).map(|member| Member { is_ours: false, ..member });
    assert_eq!(
        shown(&[foreign("a1"), foreign("b1"), foreign("c1")]),
        None,
        "of another cluster, whose name is to be learnt"
    );
}

#[test]
fn a_number_far_above_all_others_is_left_out() {
    let (low, high) = (view(3, ["a1", "b1", "c1"]), ViewId::parse(&"f".repeat(32)).expect("a view"));
    let last = Arc::new(View { id: high, ..(*low).clone() });
    let left = |members, own| plausible(members, own).iter().map(Option::is_some).collect::<Vec<_>>();
    let low_two = || [votes("a1", &low), votes("b1", &low)];
    let with = |third| low_two().into_iter().chain([third]).collect::<Vec<_>>();
    assert_eq!(left(with(votes("c1", &last)), ViewId::NONE), [true, true, false]);
    assert_eq!(left(with(promised("c1", &low, &last)), low.id), [true, true, false]);
    assert_eq!(left(with(votes("c1", &last)), last.id), [true, true, true], "this instance knows it");
    assert_eq!(left(with(promised("c1", &low, &view(900, ["", "", ""]))), low.id), [true, true, true]);
}

/// The same processes in a view that changes the list from all three names to these.
fn changed(number: u64, names_of: &[usize]) -> Arc<View> {
    let (before, all) = (view(number, ["a1", "b1", "c1"]), names());
    let old = OldList { names: all.iter().cloned().collect(), before: BTreeMap::new(), terms: None };
    let listed: BTreeSet<NodeId> = names_of.iter().map(|i| all[*i].clone()).collect();
    let list = NodeList { names: listed, terms: "0".into(), changed: None, old: Some(old) };
    Arc::new(View { list: Some(Arc::new(list)), ..View::clone(&before) })
}

#[test]
fn a_change_of_the_list_is_settled_by_a_view_without_the_former_one_and_leaves_a_name() {
    let (all, none, view) = (names(), [false; 3], changed(2, &[0, 1]));
    let members = [votes("a1", &view), votes("b1", &view), votes("c1", &view)];
    let own = Arc::default();
    let known = NodeAnswers {
        names: &all,
        members: &members,
        rivals: &none,
        ended: &none,
        addresses: &[],
        configured: 3,
        own: &own,
    };
    assert!(known.is_unsettled());
    let next = known.derive(view.id.above(1), 0).expect("a view");
    let list = next.view.list.as_ref().expect("a list");
    assert_eq!((list.names.len(), &list.old, &next.targets), (2, &None, &vec![]));
    let settled = [votes("a1", &next.view), votes("b1", &next.view), votes("c1", &view)];
    let known = NodeAnswers { members: &settled, ..known };
    assert!(!known.is_unsettled());
    let of = |names: &[usize]| {
        known.relist(next.view.id.above(1), names.iter().map(|i| all[*i].clone()).collect(), &"0".into())
    };
    assert!(of(&[0]).is_some() && of(&[]).is_none(), "nobody could change an empty list");
}

/// Seed 431322: an instance that did not know a name of the list waited for it, and named nobody.
#[test]
fn a_name_of_the_list_that_is_not_known_here_is_waited_for_while_too_few_vote() {
    let (all, none, own, view) = (names(), [false; 3], Arc::default(), changed(2, &[0, 1]));
    let unlisted = |second: Option<Member>, known: usize| {
        NodeAnswers {
            names: &all[..known],
            members: &[votes("a1", &view), second, None][..known],
            rivals: &none[..known],
            ended: &none[..known],
            addresses: &[],
            configured: known,
            own: &own,
        }
        .unlisted()
    };
    let third = BTreeSet::from([all[2].clone()]);
    assert_eq!(unlisted(forgot("b2", true), 2), third, "of the former list");
    assert_eq!(unlisted(forgot("b2", true), 1), all[1..].iter().cloned().collect());
    assert!(unlisted(forgot("b2", true), 3).is_empty() && unlisted(votes("b1", &view), 2).is_empty());
}

/// Who left the list shows the view that removed it; the one that settled the change is only where the list stands.
#[test]
fn who_left_a_list_is_a_witness_of_it_when_it_was_settled_since() {
    let (removing, other) = (changed(2, &[1]), changed(2, &[0]));
    let list = NodeList { old: None, ..NodeList::clone(removing.list.as_ref().expect("a list")) };
    let settled = Arc::new(View { list: Some(Arc::new(list)), ..View::clone(&view(3, ["a1", "b1", "c1"])) });
    let witnesses = |members: [Option<Member>; 3]| {
        let (addresses, own, no) = (Vec::new(), Arc::default(), || vec![false; 3]);
        let (names, members) = (names(), members.to_vec());
        Latest { names, members, rivals: no(), ended: no(), followed: Vec::new(), addresses, configured: 3, own }
            .who_show_list(&settled)
    };
    assert_eq!(witnesses([votes("a1", &removing), votes("b1", &settled), forgot("c1", false)]), [0, 1]);
    assert_eq!(
        witnesses([votes("a1", &other), votes("b1", &settled), None]),
        [1],
        "another list is no word for this one"
    );
}

#[test]
fn a_name_is_not_added_where_its_process_would_get_no_entry() {
    let (all, own, two) = (names(), Arc::default(), view(1, ["a1", "b1", "c1"]));
    let mut two = View::clone(&two);
    two.roster.remove(&all[2]);
    let two = Arc::new(two);
    let relisted = |third: Option<Member>, is_rival: bool| {
        let (members, rivals, ended) =
            ([votes("a1", &two), votes("b1", &two), third], [false, false, is_rival], [false; 3]);
        let known = NodeAnswers {
            names: &all,
            members: &members,
            rivals: &rivals,
            ended: &ended,
            addresses: &[],
            configured: 2,
            own: &own,
        };
        known.relist(two.id.above(1), all.iter().cloned().collect(), &"0".into())
    };
    assert!(relisted(forgot("c1", false), false).is_some_and(|change| change.view.entry(&all[2]).is_some()));
    assert_eq!(relisted(forgot("c1", false), true), None, "another process is seen under its name");
    assert_eq!(relisted(None, false), None, "it does not answer");
}

/// This instance moved nobody and sees the address of the higher view on one node alone, so it does not believe that view: of the
/// two lists of processes, {a, b2, c} votes already. No other view is made of who is left of the former one.
#[test]
fn nothing_is_derived_from_a_view_below_one_that_a_voter_has_installed() {
    let low = view(1, ["a1", "b1", "c1"]);
    let mut replaced = View::clone(&view(2, ["a1", "b2", "c1"]));
    replaced.roster.get_mut(&names()[1]).expect("an entry").address = Some("new:1".into());
    let (replaced, none, own) = (Arc::new(replaced), [false; 3], Arc::default());
    let made = |members: [Option<Member>; 3]| {
        let names = names();
        let (members, ended) = (&members, &none);
        let known =
            NodeAnswers { names: &names, members, rivals: ended, ended, addresses: &[], configured: 3, own: &own };
        let id = replaced.id.above(1);
        let relisted = |of: &[usize]| known.relist(id, of.iter().map(|i| names[*i].clone()).collect(), &"0".into());
        let made = [known.derive(id, 0), relisted(&[0, 1]), relisted(&[1, 2])];
        assert!(!known.is_cold(), "a process that votes in a higher view has not waited");
        made.map(|change| change.is_some())
    };
    let with_mutant = |members: [Option<Member>; 3]| with_mutant(Mutant::HigherViewCounts, || made(members));
    // c is not reached, or forgot; b is the former process, which was not asked to give up its vote.
    for c in [None, forgot("c2", false), forgot("c2", true)] {
        let members = [votes("a1", &replaced), votes("b1", &low), c];
        assert_eq!(made(members.clone()), [false; 3]);
        assert_ne!(with_mutant(members), [false; 3], "the mutant is not found");
    }
    // Both former processes of two replacements, one after the other.
    assert_eq!(made([None, votes("b1", &low), votes("c1", &replaced)]), [false; 3]);
    // Others contradict it: nobody else installed it, and it is brought back.
    assert_eq!(made([votes("a1", &replaced), votes("b1", &low), votes("c1", &low)]), [true; 3]);
}

#[test]
fn a_change_that_is_half_done_is_not_completed_by_who_has_installed_a_higher_view() {
    let mut half = View::clone(&changed(2, &[0, 1]));
    let before = names().into_iter().zip(["a1", "b1", "c1"]);
    let mut list = NodeList::clone(half.list.as_ref().expect("a list"));
    let old = list.old.as_mut().expect("the former one");
    old.before = before.map(|(name, run)| (name, (run.into(), ViewId::NONE))).collect();
    half.list = Some(Arc::new(list));
    half.roster.values_mut().for_each(|entry| entry.since = ViewId::NONE.above(9).above(9).above(9));
    let half = Arc::new(half);
    let mut higher = View::clone(&view(3, ["a1", "b2", "c1"]));
    higher.roster.get_mut(&names()[1]).expect("an entry").address = Some("new:1".into());
    let higher = Arc::new(higher);
    assert!(derive(&[votes("a1", &half), votes("b1", &half), None], [false; 3]).is_some());
    let members = [votes("a1", &half), votes("b1", &higher), None];
    assert!(derive(&members, [false; 3]).is_none());
    assert!(
        with_mutant(Mutant::HigherViewCounts, || derive(&members, [false; 3])).is_some(),
        "the mutant is not found"
    );
}

/// Seed 1775 of the simulation: c, which was added, voted; the others of the former list forgot. A view by the clock was installed
/// by all that vote, and then left.
#[test]
fn a_view_by_the_clock_that_was_left_half_done_is_made_again_with_those_that_the_list_had_added() {
    let mut half = View::clone(&changed(2, &[0, 1, 2]));
    let mut list = NodeList::clone(half.list.as_ref().expect("a list"));
    let former: BTreeSet<NodeId> = names()[..2].iter().cloned().collect();
    let before = names().into_iter().zip(["a1", "b1", "c1"]).map(|(name, run)| (name, (run.into(), ViewId::NONE)));
    list.old = Some(OldList { names: former, before: before.collect(), terms: None });
    half.list = Some(Arc::new(list));
    half.roster.values_mut().for_each(|entry| entry.since = half.id);
    let half = Arc::new(half);
    let members = [forgot("a2", true), votes("b1", &half), votes("c1", &half)];
    let (names, none, own) = (names(), [false; 3], Arc::default());
    let known = NodeAnswers {
        names: &names,
        members: &members,
        rivals: &none,
        ended: &none,
        addresses: &[],
        configured: 2,
        own: &own,
    };
    assert!(known.is_cold() && known.waited_for().is_empty() && known.to_give_up().is_empty());
    let change = known.derive(half.id.above(1), 0).expect("a view");
    assert_eq!((change.sound, change.targets, change.readers), (vec![1, 2], vec![0, 1, 2], 2));
}

#[test]
fn other_terms_keep_the_list_and_every_process_is_filled_for_them() {
    let ms = Duration::from_millis;
    let (all, own, base) = (names(), Arc::default(), view(1, ["a1", "b1", "c1"]));
    let (cluster, terms) = (ClusterName::from("c"), |guard| Terms {
        guard: ms(guard),
        lock_delay: ms(1_000),
        fence_ttl: ms(9),
        template: None,
    });
    let Terms { guard, lock_delay, fence_ttl, .. } = terms(500);
    let params =
        ClusterParams { cluster, guard, lock_delay, quarantine: ms(9_000), fence_ttl, template: Default::default() };
    let none = [false; 3];
    let known = |members: &[Option<Member>], to: u64, above: ViewId| {
        let known =
            NodeAnswers { names: &all, members, rivals: &none, ended: &none, addresses: &[], configured: 3, own: &own };
        known.with_terms(above.above(1), &terms(to), &params)
    };
    assert_eq!(known(&[votes("a1", &base), None, forgot("c1", false)], 400, base.id), None, "too few vote");
    let first = known(&[votes("a1", &base), votes("b1", &base), None], 400, base.id).expect("a view");
    let list = first.view.list.as_deref().expect("a list");
    let old = list.old.as_ref().expect("a former list");
    assert_eq!((list.names.len(), &old.names, old.terms.clone()), (3, &list.names, Some(terms(500))));
    assert_eq!(first.view.terms(), Some(&terms(400)));
    assert!(first.view.roster.values().all(|entry| entry.since == first.view.id), "also the silent one");
    // They stay when the list changes, and are the former ones of the next change.
    let now = settled(&first.view);
    let members = [votes("a1", &now), votes("b1", &now), votes("c1", &now)];
    let next = known(&members, 300, now.id).expect("a view");
    let of_next = next.view.list.as_deref().expect("a list");
    assert_eq!(of_next.old.as_ref().and_then(|old| old.terms.clone()), Some(terms(400)));
    let accepted = of_next.changed.as_ref().map(|changed| changed.accepted.clone());
    assert_eq!(accepted, Some(vec![params.cluster.terms_with(&terms(400)), params.cluster.terms_with(&terms(300))]));
    // A record names templates from the first change of the template on.
    let (mut now, mut records) = (settled(&next.view), Vec::new());
    for (to, template) in [(300, Some("lock:{resource}")), (400, None), (400, Some("{resource}"))] {
        let template = template.and_then(|template| KeyTemplate::parse(template).ok());
        let wanted = Terms { template, ..terms(to) }.or_template(&params.in_view(&now).template);
        let members = [votes("a1", &now), votes("b1", &now), votes("c1", &now)];
        let known = NodeAnswers {
            names: &all,
            members: &members,
            rivals: &none,
            ended: &none,
            addresses: &[],
            configured: 3,
            own: &own,
        };
        let change = known.with_terms(now.id.above(1), &wanted, &params).expect("a view");
        let was = change.view.old().and_then(|old| old.terms.clone());
        records.push(format!("{} to {}", was.expect("some"), change.view.terms().expect("some")));
        now = settled(&change.view);
    }
    let expected = [
        "300 1000 9 {resource} to 300 1000 9 lock:{resource}",
        "300 1000 9 lock:{resource} to 400 1000 9 lock:{resource}",
        "400 1000 9 lock:{resource} to 400 1000 9 {resource}",
    ];
    assert_eq!(records, expected);
}

/// The view that follows a change, with the admissions that [`votes`] has: the former list is left out.
fn settled(view: &View) -> Arc<View> {
    let list = NodeList { old: None, ..NodeList::clone(view.list.as_ref().expect("a list")) };
    let mut settled = View { id: view.id.above(0), list: Some(Arc::new(list)), ..view.clone() };
    settled.roster.values_mut().for_each(|entry| entry.since = ViewId::NONE.above(7));
    Arc::new(settled)
}
