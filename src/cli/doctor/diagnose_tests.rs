//! Each judgement by itself, from looks that were never taken.

use super::*;
use crate::cli::doctor::collect::{ForeignKey, ObservedLease, ObservedMarker};
use crate::nodes::redis::{ServerFinding, ServerInfo};

const RULES: Thresholds = Thresholds { node_timeout: Duration::from_millis(50), guard: Duration::from_millis(500) };

/// Three nodes without a fault.
fn healthy() -> Vec<NodeCheck> {
    ["a", "b", "c"].iter().map(|node| NodeCheck { node: (*node).to_owned(), seen: Ok(seen(node)) }).collect()
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

/// What is said when the first node is changed: problems, remarks.
fn with_first(change: impl FnOnce(&mut NodeObservation)) -> (String, String) {
    let mut looks = healthy();
    change(looks[0].seen.as_mut().expect("reachable"));
    said(&looks)
}

fn said(looks: &[NodeCheck]) -> (String, String) {
    let judgement = diagnose(looks, &RULES);
    assert_eq!(judgement.lines.len(), looks.len());
    (judgement.problems.join("\n"), judgement.remarks.join("\n"))
}

#[test]
fn nothing_is_said_of_healthy_nodes() {
    assert_eq!(said(&healthy()), (String::new(), String::new()));
}

#[test]
fn each_fault_is_a_problem_in_plain_words() {
    type Change = Box<dyn FnOnce(&mut NodeObservation)>;
    let foreign = |immortal| vec![ForeignKey { key: "session:1".into(), immortal }];
    let faults: [(Change, &str); 6] = [
        (Box::new(|s| s.latency = Duration::from_millis(30)), "a: an answer takes 30000 us"),
        (Box::new(|s| s.offset_us = 700_000), "a: its clock is +700 ms off"),
        (Box::new(move |s| s.foreign = foreign(true)), "can never be acquired here: session:1"),
        (Box::new(|s| s.server.findings = vec![ServerFinding::Cluster]), "a: The server runs in cluster mode"),
        (Box::new(|s| s.server.run_id = "run-b".into()), "a and b are one and the same server"),
        (Box::new(|s| s.marker.as_mut().expect("has one").cluster = "y".into()), "declared with different settings"),
    ];
    for (change, words) in faults {
        let (problems, _) = with_first(change);
        assert!(problems.contains(words), "{words}: {problems}");
    }
}

#[test]
fn what_is_worth_knowing_is_a_remark() {
    let (problems, remarks) = with_first(|s| {
        s.latency = Duration::from_millis(12);
        s.server.findings = vec![ServerFinding::HasReplicas { count: 1 }];
        s.foreign = vec![ForeignKey { key: "other/lock".into(), immortal: false }];
        s.leases = vec![ObservedLease { key: "left/over".into(), token_id: "0123abcd".into(), left_ms: 4_000 }];
        s.marker.as_mut().expect("has one").state = "q".into();
    });
    assert_eq!(problems, "");
    for words in [
        "answer takes 12000 us",
        "replica",
        "other/lock",
        "left/over: the lease 0123abcd is on 1 of 3",
        "2 of 3 nodes vote",
    ] {
        assert!(remarks.contains(words), "{words}: {remarks}");
    }
}

#[test]
fn too_few_votes_new_nodes_and_missing_ones_are_told() {
    let mut looks = healthy();
    looks[0].seen = Err("nobody listens there".into());
    looks[1].seen.as_mut().expect("reachable").marker.as_mut().expect("has one").run = "older".into();
    let (problems, _) = said(&looks);
    for words in ["a: nobody listens there", "b: it was restarted", "1 of 3 nodes vote and 2 are needed"] {
        assert!(problems.contains(words), "{words}: {problems}");
    }
    let mut looks = healthy();
    looks.iter_mut().for_each(|l| l.seen.as_mut().expect("reachable").marker = None);
    assert!(said(&looks).0.contains("redlockd init"));
    let mut looks = healthy();
    looks.pop();
    assert!(said(&looks).1.contains("2 nodes tolerate no more failures than 1"));
}
