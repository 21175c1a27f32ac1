//! Cases about durable processes (docs/views.md, "By its disk").

use std::sync::Arc;
use std::time::Duration;

use redlockd::protocol::{
    Inherited, MemberStatus, NoVote, NodeStatus, ProbeArgs, Reply, Request, RosterEntry, View, Vote,
};
use redlockd::types::NodeId;

use super::subject::{Server, acquire, extend, view_id};

const STEP: Duration = Duration::from_millis(50);

fn probe(node: &mut impl Server, syncs: Option<bool>) -> NodeStatus {
    match node.ask(&Request::Probe(ProbeArgs { syncs, ..ProbeArgs::default() })) {
        Reply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

fn install(node: &mut impl Server, view: &Arc<View>) -> MemberStatus {
    match node.ask(&Request::Install { view: Arc::clone(view) }) {
        Reply::Member(member) => *member,
        other => panic!("{other:?}"),
    }
}

/// A view that names the present process, as admitted in view `since`.
fn naming(node: &mut impl Server, number: u64, since: u64) -> Arc<View> {
    let entry = RosterEntry { run: node.run().as_str().into(), since: view_id(since), address: None };
    Arc::new(View { id: view_id(number), roster: [(NodeId::parse("n").expect("valid"), entry)].into(), list: None })
}

/// A durable process with a lease.
fn durable(node: &mut impl Server) -> String {
    node.sync_each_write();
    let view = naming(node, 1, 0);
    assert!(install(node, &view).is_done);
    node.set_view(&view);
    assert!(probe(node, Some(true)).is_durable);
    assert!(matches!(node.ask(&acquire("a", 1, 1, 20_000)), Reply::Granted { .. }));
    node.run()
}

/// Waits until the process may take the other's place. Returns for how long it waited at least. Microseconds.
fn until_ready(node: &mut impl Server) -> u64 {
    let begin = node.now_us();
    loop {
        let before = node.now_us();
        if probe(node, Some(true)).inherited.is_some_and(|was| was.is_ready) {
            return before - begin;
        }
        assert!(before < begin + 10_000_000, "never ready");
        node.pass(STEP);
    }
}

pub fn a_process_with_a_durable_ones_data_takes_its_place(node: &mut impl Server) {
    let run = durable(node);
    let beat_us = probe(node, None).now_us;
    node.restart_kept(0);
    let status = probe(node, None);
    assert!(matches!(status.vote, Vote::NoVote(NoVote::Quarantined { .. })) && status.why == "restart", "{status:?}");
    assert_eq!(status.inherited, Some(Inherited { run: run.into(), beat_us, is_ready: false }));
    let second = naming(node, 2, 0);
    assert!(!install(node, &second).is_done, "what the present process writes may not be on the disk");
    assert!(until_ready(node) <= 2_100_000);
    assert!(matches!(node.ask(&acquire("b", 2, 2, 1_000)), Reply::NoVote(_)), "ready is no vote");
    let member = install(node, &second);
    assert!(member.is_done && member.vote == Vote::Active && member.inherited.is_none(), "{member:?}");
    node.set_view(&second);
    assert_eq!(probe(node, Some(true)).why, "by-disk");
    assert!(matches!(node.ask(&acquire("a", 2, 2, 1_000)), Reply::Held { .. }), "it knows the lease");
    assert!(matches!(node.ask(&extend("a", 1, Some(20_000), None)), Reply::Updated { .. }));
    assert!(matches!(node.ask(&acquire("b", 2, 2, 1_000)), Reply::Granted { .. }));
}

pub fn a_process_that_is_not_durable_leaves_nothing_to_inherit(node: &mut impl Server) {
    durable(node);
    assert!(!probe(node, Some(false)).is_durable, "the policy is another one");
    assert!(!probe(node, None).is_durable, "not known");
    node.restart_kept(0);
    assert_eq!(probe(node, Some(true)).inherited, None);
}

pub fn a_clock_ahead_at_the_start_is_waited_for(node: &mut impl Server) {
    durable(node);
    node.restart_kept(3_000);
    assert!(until_ready(node) >= 2_900_000, "keys that ended within these 3 s are gone");
}

pub fn only_a_view_with_the_last_admission_gives_the_place(node: &mut impl Server) {
    durable(node);
    node.restart_kept(0);
    until_ready(node);
    for (number, since) in [(2, 1), (1, 0)] {
        let other = naming(node, number, since);
        assert!(!install(node, &other).is_done, "{number}, {since}");
    }
    assert!(matches!(node.ask(&Request::Promise { view: view_id(4) }), Reply::Member(member) if member.is_done));
    let third = naming(node, 3, 0);
    assert!(!install(node, &third).is_done, "below its promise");
    node.restart_kept(0);
    assert_eq!(probe(node, Some(true)).inherited, None, "the process in between did not vote");
}
