//! Each finding, from made-up observations.

use super::*;
use crate::cli::doctor::collect::{ForeignKey, ObservedLease, ObservedMarker};
use crate::nodes::redis::{ServerFinding, ServerInfo};
use crate::protocol::{NodeList, OldList, RosterEntry, View, ViewId};
use crate::types::NodeId;

fn diagnose_as(cluster: &str, checks: &[NodeCheck]) -> Diagnosis {
    let cluster = ClusterName::new(cluster, "t");
    let (node_timeout, guard) = (Duration::from_millis(50), Duration::from_millis(500));
    let terms = Terms { guard, lock_delay: guard * 2, fence_ttl: Duration::from_mins(1), template: None };
    diagnose(checks, &Thresholds { node_timeout, terms, cluster: &cluster })
}

/// Three nodes without a fault.
fn healthy() -> Vec<NodeCheck> {
    ["a", "b", "c"].iter().map(|node| NodeCheck { node: (*node).to_owned(), result: Ok(seen(node)) }).collect()
}

fn seen(node: &str) -> NodeObservation {
    NodeObservation {
        latency: Duration::from_micros(200),
        server: ServerInfo { run_id: format!("run-{node}"), version: "7.0.15".into(), ..ServerInfo::default() },
        marker: Some(ObservedMarker {
            run: format!("run-{node}"),
            state: "a".into(),
            cluster: "x".into(),
            ..ObservedMarker::default()
        }),
        ..NodeObservation::default()
    }
}

/// The problems and remarks if the first node is changed.
fn with_first(change: impl FnOnce(&mut NodeObservation)) -> (String, String) {
    let mut checks = healthy();
    change(checks[0].result.as_mut().expect("reachable"));
    findings(&checks)
}

fn findings(checks: &[NodeCheck]) -> (String, String) {
    let diagnosis = diagnose_as("x", checks);
    assert_eq!(diagnosis.lines.len(), checks.len());
    (diagnosis.problems.join("\n"), diagnosis.remarks.join("\n"))
}

#[test]
fn healthy_nodes_have_no_findings() {
    assert_eq!(findings(&healthy()), (String::new(), String::new()));
}

#[test]
fn each_fault_is_a_problem() {
    type Change = Box<dyn FnOnce(&mut NodeObservation)>;
    let foreign = |without_ttl| vec![ForeignKey { key: "session:1".into(), without_ttl }];
    let faults: [(Change, &str); 6] = [
        (
            Box::new(|s| s.latency = Duration::from_millis(60)),
            "a: an answer takes 60000 us, and rounds wait for 50000 us",
        ),
        (Box::new(|s| s.offset_us = 700_000), "a: its clock is +700 ms off"),
        (Box::new(move |s| s.foreign = foreign(true)), "can never be acquired here: session:1"),
        (Box::new(|s| s.server.findings = vec![ServerFinding::Cluster]), "a: The server runs in cluster mode"),
        (Box::new(|s| s.server.run_id = "run-b".into()), "a and b are the same server"),
        (Box::new(|s| s.marker.as_mut().expect("has one").cluster = "y".into()), "clusters with different settings"),
    ];
    for (change, words) in faults {
        let (problems, _) = with_first(change);
        assert!(problems.contains(words), "{words}: {problems}");
    }
    let (problems, _) = with_first(|s| s.marker.as_mut().expect("has one").cluster = String::new());
    assert!(!problems.contains("clusters with different settings"), "it forgot: {problems}");
}

/// S5: healthy nodes that instances with other settings use are no pass for a roll-out.
#[test]
fn s5_nodes_of_instances_with_other_settings_are_a_problem() {
    let found = diagnose_as("y", &healthy());
    assert!(
        found.problems.len() == 1 && found.problems[0].starts_with("a, b, c: other settings than these"),
        "{found:?}"
    );
    let new: Vec<NodeCheck> = healthy()
        .into_iter()
        .map(|check| NodeCheck { result: check.result.map(|seen| NodeObservation { marker: None, ..seen }), ..check })
        .collect();
    assert!(!diagnose_as("y", &new).problems.concat().contains("other settings"), "new nodes have none");
}

/// S5: that the next failure is an outage is nothing to be content with.
#[test]
fn s5_no_margin_is_a_problem_and_a_smaller_one_a_remark() {
    let without_vote = |nodes: usize| {
        let mut checks = healthy();
        for node in ["d", "e"].into_iter().take(nodes - 3) {
            checks.push(NodeCheck { node: node.to_owned(), result: Ok(seen(node)) });
        }
        checks[0].result.as_mut().expect("reachable").marker.as_mut().expect("has one").state = "q".into();
        findings(&checks)
    };
    let (problems, _) = without_vote(3);
    assert_eq!(problems, "2 of 3 nodes vote, 2 are needed: the next failure is an outage");
    let (problems, remarks) = without_vote(5);
    assert!(problems.is_empty() && remarks.contains("4 of 5 nodes vote, 3 are needed: 1 more may fail"), "{remarks}");
}

#[test]
fn nodes_in_three_regions_are_no_problem() {
    let mut checks = healthy();
    for (check, took) in checks.iter_mut().zip([30, 80, 150]) {
        check.result.as_mut().expect("reachable").latency = Duration::from_millis(took);
    }
    let (problems, remarks) = findings(&checks);
    assert_eq!(problems, "");
    assert!(remarks.contains("c: an answer takes 150000 us, and rounds wait for 150000 us"), "{remarks}");
}

#[test]
fn remarks_are_not_problems() {
    let (problems, remarks) = with_first(|s| {
        s.latency = Duration::from_millis(30);
        s.server.findings = vec![ServerFinding::HasReplicas { count: 1, allowed: true }];
        s.foreign = vec![ForeignKey { key: "other/lock".into(), without_ttl: false }];
        s.leases = vec![ObservedLease { key: "left/over".into(), token_id: "0123abcd".into(), left_ms: 4_000 }];
    });
    assert_eq!(problems, "");
    for words in ["answer takes 30000 us", "replica", "other/lock", "left/over: the lease 0123abcd is on 1 of 3"] {
        assert!(remarks.contains(words), "{words}: {remarks}");
    }
}

#[test]
fn f1_a_name_that_leads_to_two_servers_and_a_process_outside_the_view_are_named() {
    let id = ViewId::NONE.above(1);
    let entry = RosterEntry { run: "run-former".into(), since: id, address: None };
    let view = View { id, list: None, roster: [(NodeId::parse("a").expect("valid"), entry)].into() };
    let mut checks = healthy();
    let marker = |checks: &mut Vec<NodeCheck>, i: usize| {
        checks[i].result.as_mut().expect("reachable").marker.take().expect("has one")
    };
    let second = ObservedMarker { view: Some(view), ..marker(&mut checks, 1) };
    checks[1].result.as_mut().expect("reachable").marker = Some(second);
    // It votes in the view from before it was replaced.
    let own = View { id: ViewId::NONE.above(0), ..View::default() };
    let first = ObservedMarker { view: Some(own), ..marker(&mut checks, 0) };
    checks[0].result.as_mut().expect("reachable").marker = Some(first);
    let (problems, remarks) = findings(&checks);
    assert!(!remarks.contains("brings it along"), "{remarks}");
    assert!(
        problems.is_empty() && remarks.contains("a: the nodes' view names another process (run run-form)"),
        "{remarks}"
    );
    let alive = [("a".to_owned(), "run-former".to_owned()), ("b".to_owned(), "run-b".to_owned())].into();
    let third = ObservedMarker { alive, ..marker(&mut checks, 2) };
    checks[2].result.as_mut().expect("reachable").marker = Some(third);
    let (problems, remarks) = findings(&checks);
    assert!(
        problems.contains("a: its name leads to two servers: an instance reaches another one (run run-form)"),
        "{problems}"
    );
    assert_eq!((problems.lines().count(), remarks.as_str()), (1, ""));
}

#[test]
fn missing_votes_new_and_unreachable_nodes_are_reported() {
    let mut checks = healthy();
    checks[0].result = Err("the connection is refused".into());
    checks[1].result.as_mut().expect("reachable").marker.as_mut().expect("has one").run = "older".into();
    let (problems, _) = findings(&checks);
    for words in ["a: the connection is refused", "b: it was restarted", "1 of 3 nodes vote and 2 are needed"] {
        assert!(problems.contains(words), "{words}: {problems}");
    }
    let mut checks = healthy();
    checks.iter_mut().for_each(|c| c.result.as_mut().expect("reachable").marker = None);
    assert!(findings(&checks).0.contains("redlockd init"));
    let mut checks = healthy();
    checks.pop();
    assert!(findings(&checks).1.contains("2 nodes tolerate no more failures than 1"));
}

/// Each configured node in a view of this list; `pending`: the first nodes that were not filled for it.
fn in_list(names: &[&str], old: Option<&[&str]>, pending: usize) -> Vec<NodeCheck> {
    let id = ViewId::NONE.above(6);
    let set = |names: &[&str]| names.iter().map(|name| NodeId::parse(name).expect("valid")).collect();
    let old = old.map(|names| OldList { names: set(names), before: BTreeMap::new(), terms: None });
    let list = NodeList { names: set(names), terms: "t".into(), changed: None, old };
    let view = View { id, list: Some(list.into()), roster: BTreeMap::new() };
    let mut checks = healthy();
    for (i, check) in checks.iter_mut().enumerate() {
        let marker = check.result.as_mut().expect("reachable").marker.as_mut().expect("has one");
        (marker.view, marker.is_pending) = (Some(view.clone()), i < pending);
    }
    checks
}

#[test]
fn the_nodes_list_counts_and_not_the_configured_one() {
    let (problems, remarks) = findings(&in_list(&["a", "b", "d"], None, 0));
    assert_eq!(problems, "");
    assert!(remarks.contains("the nodes' list has d, not configured here"), "{remarks}");
    assert!(remarks.contains("c: not of the nodes' list any more"), "{remarks}");
    let mut checks = in_list(&["a", "b", "c", "d", "e"], None, 0);
    checks[0].result = Err("the connection is refused".into());
    let (problems, remarks) = findings(&checks);
    assert_eq!(problems.lines().count(), 1, "{problems}");
    assert!(remarks.contains("2 of 5 nodes vote as far as they were checked, 3 are needed"), "{remarks}");
    let mut checks = in_list(&["a", "b", "c"], None, 0);
    let marker = checks[2].result.as_mut().expect("reachable").marker.as_mut().expect("has one");
    let higher = marker.view.as_ref().map(|view| View { id: view.id.above(6), ..view.clone() });
    marker.view = higher;
    let (problems, remarks) = findings(&checks);
    assert!(remarks.contains("a: it is in view 1, others are in view 2"), "{problems} {remarks}");
}

#[test]
fn a_change_of_the_list_that_is_half_done_is_a_problem() {
    let (problems, _) = findings(&in_list(&["a", "b", "c"], Some(&["a", "b", "c", "d"]), 1));
    assert!(!problems.contains("is being changed"), "two of three vote: {problems}");
    let (problems, _) = findings(&in_list(&["a", "b", "c"], Some(&["a", "b", "c", "d"]), 2));
    assert!(problems.contains("is being changed from a, b, c, d to a, b, c, and nobody votes"), "{problems}");
}

#[test]
fn s5_a_cluster_whose_list_was_changed_since_is_the_configured_one() {
    let other = |checks: &mut Vec<NodeCheck>| {
        for check in checks {
            check.result.as_mut().expect("reachable").marker.as_mut().expect("has one").cluster = "y".into();
        }
    };
    // The list was changed since it was declared: an instance takes the name from the nodes.
    let mut checks = in_list(&["a", "b", "c"], None, 0);
    other(&mut checks);
    assert_eq!(findings(&checks).0, "");
}
