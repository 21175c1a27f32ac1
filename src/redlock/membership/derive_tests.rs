//! Who is named by a new view, and when there is none.

use super::*;

fn names() -> Vec<NodeId> {
    ["a", "b", "c"].map(|name| NodeId::parse(name).expect("valid")).to_vec()
}

/// A view of three processes, of which the last was admitted in a later one.
fn view(number: u64, runs: [&str; 3]) -> Arc<View> {
    let id = (1..number).fold(ViewId::NONE.above(7), |id, _| id.above(7));
    let entry = |(name, run): (NodeId, &str)| {
        (name, RosterEntry { run: run.into(), since: ViewId::NONE.above(7), address: None })
    };
    Arc::new(View { id, roster: names().into_iter().zip(runs).map(entry).collect() })
}

fn votes(run: &str, view: &Arc<View>) -> Option<Member> {
    Some(Member {
        is_sound: true,
        is_served: false,
        is_fillable: true,
        run: run.into(),
        view: Arc::clone(view),
        promised: view.id,
        admitted: if view.id == ViewId::NONE { ViewId::NONE } else { ViewId::NONE.above(7) },
    })
}

fn forgot(run: &str, is_served: bool) -> Option<Member> {
    let member = votes(run, &Arc::default())?;
    Some(Member { is_sound: false, is_served, ..member })
}

fn derive(members: &[Option<Member>], rivals: [bool; 3]) -> Option<Change> {
    let names = names();
    Known { names: &names, members, rivals: &rivals, ended: &[false; 3], quorum: 2 }
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

#[test]
fn a_process_that_the_highest_view_does_not_name_does_not_count() {
    let (low, high) = (view(1, ["a1", "b1", "c1"]), view(2, ["a1", "b2", "c1"]));
    let change = derive(&[votes("a1", &high), votes("b1", &low), votes("c1", &low)], [false; 3]).expect("a change");
    assert_eq!((change.sound, change.targets), (vec![0, 2], vec![1]), "the former process is to be filled");
    assert!(derive(&[votes("a1", &high), votes("b1", &low), None], [false; 3]).is_none());
}

#[test]
fn a_process_outside_the_highest_view_gives_up_its_vote_where_too_few_are_left_to_fill_it() {
    let (low, high) = (view(1, ["a1", "b1", "c1"]), view(2, ["a1", "b2", "c1"]));
    let to_give_up = |members: &[Option<Member>]| {
        Known { names: &names(), members, rivals: &[false; 3], ended: &[false; 3], quorum: 2 }
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
        let known = Known { names: &names, members: &members, rivals: &[false; 3], ended: &ended, quorum: 2 };
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
