//! Cases about events on a server: foreign clients, lost memory, other clusters, evictions.

use std::sync::Arc;
use std::time::Duration;

use redlockd::protocol::{
    AdmitArgs, ClusterParams, DeleteForeignArgs, FillArgs, Found, NoVote, NodeStatus, ProbeArgs, Released, Reply,
    Request, RequestTime, RosterEntry, StoredLock, View, Vote,
};
use redlockd::types::{Fence, NodeId};

use super::subject::{Server, acquire, extend, inspect, name, params, release, view, view_id};

fn status(node: &mut impl Server, params: &ClusterParams, request: &Request) -> NodeStatus {
    let sent_at = RequestTime(node.now_us());
    match node.ask_with(sent_at, params, request) {
        Ok(Reply::Status(status)) => *status,
        other => panic!("{other:?}"),
    }
}

/// Fills the node with nothing and gives it the vote in the first view.
fn admit(node: &mut impl Server, params: &ClusterParams, seed: Fence, by_clock: bool) {
    let view = view(1, &node.run());
    let fill = FillArgs { view: Arc::clone(&view), nonce: 1, page: 1, pages: 1, keeps: false, entries: vec![] };
    let sent_at = RequestTime(node.now_us());
    node.ask_with(sent_at, params, &Request::Promise { view: view.id }).expect("an answer");
    assert_eq!(node.ask_with(sent_at, params, &Request::Fill(fill)), Ok(Reply::Filled { done: 1 }));
    let args = AdmitArgs { view: Arc::clone(&view), nonce: 1, pages: 1, seed, by_clock };
    let admitted = node.ask_with(sent_at, params, &Request::Admit(args)).expect("an answer");
    assert!(matches!(admitted, Reply::Member(m) if m.is_done && m.high_water == seed));
    node.set_view(&view);
}

/// A promise lets the votes go on; an installed view ends those in lower ones; neither goes back.
pub fn views_only_rise_and_name_the_process_that_takes_them(node: &mut impl Server) {
    let member = |node: &mut dyn FnMut(&Request) -> Reply, request: Request| match node(&request) {
        Reply::Member(member) => *member,
        other => panic!("{other:?}"),
    };
    let mut ask = |request: Request| member(&mut |r| node.ask(r), request);
    assert!(ask(Request::Promise { view: view_id(5) }).is_done);
    assert!(!ask(Request::Promise { view: view_id(5) }).is_done, "promised already");
    let run = node.run();
    // Named with its last admission, which was in no view.
    let named = |number, since| {
        let name = NodeId::parse("n").expect("valid");
        let roster = [(name, RosterEntry { run: run.as_str().into(), since: view_id(since), address: None })].into();
        Arc::new(View { id: view_id(number), roster, list: None })
    };
    fence_of(&node.ask(&acquire("a", 1, 1, 20_000)));
    let mut install = |view| member(&mut |r| node.ask(r), Request::Install { view });
    assert!(!install(named(4, 0)).is_done, "below what it promised");
    assert!(install(named(6, 0)).is_done);
    assert!(install(named(6, 0)).is_done, "a repeated request");
    assert!(!install(named(5, 0)).is_done, "a lower one");
    let refused = node.ask(&acquire("b", 2, 2, 1_000));
    assert_eq!(refused, Reply::NoVote(NoVote::OtherView { view: named(6, 0) }), "with the record of the higher view");
    assert!(matches!(node.ask(&extend("a", 1, None, None)), Reply::NoVote(NoVote::OtherView { .. })));
    node.set_view(&named(6, 0));
    fence_of(&node.ask(&acquire("b", 2, 2, 1_000)));
    node.set_view(&named(7, 0));
    let only_id = Arc::new(View { id: view_id(6), ..View::default() });
    assert_eq!(node.ask(&acquire("c", 3, 3, 1_000)), Reply::NoVote(NoVote::OtherView { view: only_id }));
}

/// It could otherwise neither be filled, where too few others are left, nor wait for its vote like one that forgot.
pub fn a_process_that_a_higher_view_does_not_name_loses_its_vote(node: &mut impl Server) {
    let member = |reply| match reply {
        Reply::Member(member) => *member,
        other => panic!("{other:?}"),
    };
    fence_of(&node.ask(&acquire("a", 1, 1, 20_000)));
    let kept = member(node.ask(&Request::Install { view: view(0, "00") }));
    assert_eq!((kept.is_done, kept.vote), (true, Vote::Active), "its own view");
    let lost = member(node.ask(&Request::Install { view: view(7, "00") }));
    assert!(!lost.is_done && matches!(lost.vote, Vote::NoVote(NoVote::Quarantined { .. })), "{lost:?}");
    assert_eq!(status(node, &params(), &Request::probe()).why, "displaced");
    assert!(matches!(node.ask(&acquire("b", 2, 2, 1_000)), Reply::NoVote(NoVote::Quarantined { .. })));
    assert!(matches!(node.ask(&extend("a", 1, None, None)), Reply::NoVote(NoVote::Quarantined { .. })));
    assert!(member(node.ask(&Request::Promise { view: view_id(8) })).is_done, "one that waits promises too");
}

fn fence_of(reply: &Reply) -> Fence {
    match reply {
        Reply::Granted { fence, .. } => *fence,
        other => panic!("{other:?}"),
    }
}

pub fn a_foreign_lock_is_held_regardless_of_its_value(node: &mut impl Server) {
    let zeros = format!("{}|", "0".repeat(64));
    for value in [&b""[..], b"22 characters of python", &[0xff; 20], zeros.as_bytes(), &[b'|'; 80]] {
        node.foreign_set(&name("a"), value, Some(20_000));
        match node.ask(&acquire("a", 1, 1, 1_000)) {
            Reply::Held { left_ms: Some(left), record: None } => assert!((10_000..=20_000).contains(&left)),
            other => panic!("{other:?}"),
        }
        assert_eq!(node.ask(&extend("a", 1, None, None)), Reply::Other { fence: None });
        let others = Reply::Released(Released { found: Found::Other, earlier: None });
        assert_eq!(node.ask(&release("a", 9)).clone_without_reason(), others);
    }
    node.foreign_set(&name("a"), b"without a TTL", None);
    assert_eq!(node.ask(&acquire("a", 1, 1, 1_000)), Reply::Held { left_ms: None, record: None });
    node.foreign_list(&name("a"), Some(20_000));
    assert!(matches!(node.ask(&acquire("a", 1, 1, 1_000)), Reply::Held { left_ms: Some(_), record: None }));
    assert_eq!(node.ask(&extend("a", 1, None, None)), Reply::Other { fence: None });
    assert!(node.foreign_delete(&name("a")));
    fence_of(&node.ask(&acquire("a", 1, 1, 1_000)));
}

/// Removes the earlier reason, which does not matter to these cases.
trait WithoutReason {
    fn clone_without_reason(&self) -> Reply;
}

impl WithoutReason for Reply {
    fn clone_without_reason(&self) -> Reply {
        match self {
            Self::Released(released) => Self::Released(Released { earlier: None, ..*released }),
            other => other.clone(),
        }
    }
}

pub fn a_lease_excludes_foreign_clients(node: &mut impl Server) {
    fence_of(&node.ask(&acquire("a", 1, 1, 20_000)));
    assert!(!node.foreign_acquire(&name("a"), b"theirs", 20_000));
    node.ask(&release("a", 1));
    assert!(node.foreign_acquire(&name("a"), b"theirs", 20_000));
    assert!(matches!(node.ask(&acquire("a", 2, 2, 1_000)), Reply::Held { record: None, .. }));
}

pub fn a_foreign_lock_is_deleted_only_with_the_fingerprint_that_was_seen(node: &mut impl Server) {
    let delete = |fingerprint: &str| {
        Request::DeleteForeign(DeleteForeignArgs { resource: name("a"), fingerprint: fingerprint.into() })
    };
    let seen = |node: &mut dyn FnMut(&Request) -> Reply| match node(&inspect("a")) {
        Reply::Inspected(seen) => match seen.lock {
            StoredLock::Foreign { fingerprint, .. } => fingerprint,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let released = |found| Reply::Released(Released { found, earlier: None });
    assert_eq!(node.ask(&delete("x")), released(Found::Nothing));
    node.foreign_set(&name("a"), b"abc", None);
    let print = seen(&mut |r| node.ask(r));
    assert_eq!(&*print, "a9993e364706816aba3e25717850c26c9cd0d89d", "FIPS 180's own example");
    node.foreign_set(&name("a"), b"abd", None);
    assert_eq!(node.ask(&delete(&print)), released(Found::Other));
    node.foreign_list(&name("a"), None);
    assert_eq!(&*seen(&mut |r| node.ask(r)), "type:list");
    assert_eq!(node.ask(&delete("type:list")), released(Found::Match));
    assert!(matches!(node.ask(&inspect("a")), Reply::Inspected(s) if s.lock == StoredLock::Free));
}

pub fn a_lease_whose_ttl_was_removed_ends_after_the_quarantine(node: &mut impl Server) {
    fence_of(&node.ask(&acquire("a", 1, 1, 20_000)));
    for ttl_ms in [None, Some(3_600_000)] {
        assert!(node.foreign_expire(&name("a"), ttl_ms));
        match node.ask(&acquire("a", 2, 2, 1_000)) {
            Reply::Held { left_ms: Some(60_000), record: Some(_) } => {}
            other => panic!("{other:?}"),
        }
        match node.ask(&inspect("a")) {
            Reply::Inspected(seen) => {
                assert!(matches!(seen.lock, StoredLock::Lease { left_ms, .. } if (30_000..=60_000).contains(&left_ms)));
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn a_node_that_lost_its_memory_has_no_vote(node: &mut impl Server) {
    fence_of(&node.ask(&acquire("a", 1, 1, 20_000)));
    node.flush_all();
    assert_eq!(node.ask(&acquire("a", 2, 2, 1_000)), Reply::NoVote(NoVote::Quarantined { left_ms: 60_000 }));
    assert_eq!(status(node, &params(), &Request::probe()).why, "blank");
    node.restart_empty();
    assert!(matches!(node.ask(&acquire("a", 2, 2, 1_000)), Reply::NoVote(NoVote::Quarantined { .. })));
    assert!(matches!(node.ask(&extend("a", 1, None, None)), Reply::NoVote(NoVote::Quarantined { .. })));
    // Nothing has voted since it was blank: an operator may say that it is new, once.
    assert_eq!(status(node, &params(), &Request::init()).vote, Vote::Active);
    assert_eq!(status(node, &params(), &Request::init()).vote, Vote::AlreadyInitialised);
}

pub fn a_node_whose_probe_finds_an_eviction_has_no_vote(node: &mut impl Server) {
    assert_eq!(status(node, &params(), &Request::probe()).vote, Vote::Active);
    node.evict_something();
    let after = status(node, &params(), &Request::probe());
    assert_eq!((after.vote, after.why.as_str()), (Vote::NoVote(NoVote::Quarantined { left_ms: 60_000 }), "evicted"));
    let again = status(node, &params(), &Request::probe());
    assert_eq!(again.until_us, after.until_us, "one eviction counts once");
}

pub fn another_cluster_gets_no_vote_and_does_not_change_the_nodes_cluster(node: &mut impl Server) {
    let other = ClusterParams { cluster: "cluster two".into(), ..params() };
    let theirs = || NoVote::OtherCluster { theirs: "cluster one".into() };
    let sent_at = RequestTime(node.now_us());
    assert_eq!(node.ask_with(sent_at, &other, &acquire("a", 1, 1, 1_000)), Ok(Reply::NoVote(theirs())));
    assert_eq!(status(node, &other, &Request::probe()).vote, Vote::NoVote(theirs()));
    let ordered = status(node, &other, &Request::Quarantine { by: "".into() });
    assert_eq!(ordered.vote, Vote::NoVote(NoVote::Quarantined { left_ms: 60_000 }));
    assert!(matches!(node.ask(&acquire("a", 1, 1, 1_000)), Reply::NoVote(NoVote::Quarantined { .. })));
    let sent_at = RequestTime(node.now_us());
    assert_eq!(node.ask_with(sent_at, &other, &acquire("a", 1, 1, 1_000)), Ok(Reply::NoVote(theirs())));
}

/// F5.
pub fn another_cluster_lengthens_no_quarantine(node: &mut impl Server) {
    let other = ClusterParams { cluster: "cluster two".into(), quarantine: Duration::from_hours(24), ..params() };
    assert!(matches!(status(node, &other, &Request::probe()).vote, Vote::NoVote(_)));
    let ordered = status(node, &other, &Request::Quarantine { by: "".into() });
    assert_eq!(ordered.vote, Vote::NoVote(NoVote::Quarantined { left_ms: 60_000 }));
}

/// F5: only what was asked for in this period or the one before counts.
pub fn a_longer_quarantine_is_forgotten_when_nobody_asks_for_it(node: &mut impl Server) {
    let brief = ClusterParams { quarantine: Duration::from_millis(20), ..params() };
    let longer = ClusterParams { quarantine: Duration::from_millis(60), ..params() };
    node.flush_all();
    assert_eq!(status(node, &brief, &Request::init()).vote, Vote::Active);
    let sent_at = RequestTime(node.now_us());
    fence_of(&node.ask_with(sent_at, &longer, &acquire("a", 1, 1, 1)).expect("an answer"));
    // The first period ends 60 ms after the larger one was asked for, the second after as long.
    for after_ms in [61, 61] {
        node.pass(Duration::from_millis(after_ms));
        assert_eq!(status(node, &brief, &Request::probe()).vote, Vote::Active);
    }
    let ordered = status(node, &brief, &Request::Quarantine { by: "".into() });
    assert_eq!(ordered.vote, Vote::NoVote(NoVote::Quarantined { left_ms: 20 }));
}

/// F17.
pub fn a_blank_node_belongs_to_nobody_until_it_is_given_a_vote(node: &mut impl Server) {
    let brief = ClusterParams { quarantine: Duration::from_millis(40), ..params() };
    let other = ClusterParams { cluster: "cluster two".into(), ..brief.clone() };
    node.flush_all();
    assert!(matches!(status(node, &other, &Request::probe()).vote, Vote::NoVote(NoVote::Quarantined { .. })));
    assert!(matches!(status(node, &brief, &Request::probe()).vote, Vote::NoVote(NoVote::Quarantined { .. })));
    node.pass(Duration::from_millis(41));
    assert!(matches!(status(node, &other, &Request::probe()).vote, Vote::NoVote(NoVote::Unseeded { .. })));
    admit(node, &brief, Fence(1), true);
    assert_eq!(status(node, &brief, &Request::probe()).why, "by-clock");
    let theirs = "cluster one".into();
    assert_eq!(status(node, &other, &Request::probe()).vote, Vote::NoVote(NoVote::OtherCluster { theirs }));
}

/// F3.
pub fn an_instance_that_is_alone_in_its_opinion_of_the_time_quarantines_nobody(node: &mut impl Server) {
    let order = |by: &str| Request::Quarantine { by: by.into() };
    let probe = |instance: &str, is_witness| {
        Request::Probe(ProbeArgs { instance: instance.into(), is_witness, alive: vec![], syncs: None })
    };
    status(node, &params(), &probe("one", true));
    status(node, &params(), &probe("two", false));
    let hour_ago = RequestTime(node.now_us() - 3_600_000_000);
    assert!(matches!(
        node.ask_with(hour_ago, &params(), &order("two")),
        Ok(Reply::Status(status)) if status.vote == Vote::Witnessed
    ));
    assert_eq!(status(node, &params(), &Request::probe()).vote, Vote::Active);
    let obeyed = status(node, &params(), &order("one"));
    assert!(matches!(obeyed.vote, Vote::NoVote(NoVote::Quarantined { .. })), "its own note is no witness: {obeyed:?}");
}

/// F1: each instance's note says what it sees now, and is shown to the others.
pub fn a_node_remembers_which_runs_other_instances_see_alive(node: &mut impl Server) {
    let probe = |instance: &str, runs: &[&str]| {
        let alive = runs.iter().map(|run| (NodeId::parse("n2").expect("valid"), (*run).into())).collect();
        Request::Probe(ProbeArgs { instance: instance.into(), is_witness: false, alive, syncs: None })
    };
    let runs = |node: &mut _, request: &Request| -> Vec<String> {
        status(node, &params(), request).alive.iter().map(|(_, run)| run.to_string()).collect()
    };
    assert_eq!(runs(node, &probe("one", &["0a"])), [""; 0]);
    assert_eq!(runs(node, &probe("two", &["0b"])), ["0a"]);
    assert_eq!(runs(node, &probe("one", &["0a"])), ["0b"], "an instance knows its own");
    assert_eq!(runs(node, &Request::probe()), ["0a", "0b"]);
    assert_eq!(runs(node, &probe("one", &["0b"])), ["0b"]);
    assert_eq!(runs(node, &Request::probe()), ["0b"], "in place of its last note");
    runs(node, &probe("one", &[]));
    assert_eq!(runs(node, &probe("two", &["0b"])), [""; 0]);
}

/// F10.
pub fn fewer_evictions_than_before_are_a_reset_of_the_statistics(node: &mut impl Server) {
    node.evict_something();
    status(node, &params(), &Request::probe());
    node.reset_statistics();
    let until_us = status(node, &params(), &Request::probe()).until_us;
    node.reset_statistics();
    assert_eq!(status(node, &params(), &Request::probe()).until_us, until_us);
}

pub fn the_longest_quarantine_that_any_instance_asked_for_counts(node: &mut impl Server) {
    let longer = ClusterParams { quarantine: Duration::from_secs(600), ..params() };
    assert_eq!(status(node, &longer, &Request::probe()).vote, Vote::Active);
    let until = status(node, &params(), &Request::Quarantine { by: "".into() });
    assert_eq!(until.vote, Vote::NoVote(NoVote::Quarantined { left_ms: 600_000 }));
    let longest = ClusterParams { quarantine: Duration::from_secs(700), ..params() };
    let extended = status(node, &longest, &Request::probe());
    assert_eq!(extended.until_us, until.until_us + 100_000_000, "it also lengthens one that is being served");
}

pub fn an_acquire_asks_for_a_quarantine_that_covers_its_lease(node: &mut impl Server) {
    let longer = ClusterParams { quarantine: Duration::from_secs(600), ..params() };
    fence_of(&node.ask(&acquire("a", 1, 1, 1_000))); // begins the first generation of fences
    let sent_at = RequestTime(node.now_us());
    fence_of(&node.ask_with(sent_at, &longer, &acquire("b", 1, 1, 1_000)).expect("an answer"));
    let ordered = status(node, &params(), &Request::Quarantine { by: "".into() });
    assert_eq!(ordered.vote, Vote::NoVote(NoVote::Quarantined { left_ms: 600_000 }));
}

/// Whoever changes `fence_ttl` changes the number of the generation, up or down, as a clock does that is stepped.
pub fn an_acquire_with_a_fence_by_its_time_begins_the_generation_too(node: &mut impl Server) {
    let [often, rarely] = [10, 60].map(|mins| ClusterParams { fence_ttl: Duration::from_mins(mins), ..params() });
    fn ask(node: &mut impl Server, sent_us: u64, params: &ClusterParams, resource: &str) -> u64 {
        fence_of(&node.ask_with(RequestTime(sent_us), params, &acquire(resource, 1, 1, 1_000)).expect("an answer")).0
    }
    for ([a, b, c], before, after) in [(["a", "b", "c"], &often, &rarely), (["d", "e", "f"], &rarely, &often)] {
        node.pass(Duration::from_millis(1));
        let first_us = node.now_us();
        assert_eq!(ask(node, first_us, before, a), first_us);
        node.pass(Duration::from_millis(1));
        let second_us = node.now_us();
        assert_eq!(ask(node, second_us, after, b), second_us);
        // The generation that b began has a as its floor. Had it not begun then, it would begin now, above b.
        assert_eq!(ask(node, first_us - 100_000, after, c), first_us + 1);
    }
}

pub fn a_served_quarantine_ends_with_a_seed_above_all_fences(node: &mut impl Server) {
    let brief = ClusterParams { quarantine: Duration::from_millis(40), ..params() };
    node.flush_all();
    assert!(matches!(status(node, &brief, &Request::probe()).vote, Vote::NoVote(NoVote::Quarantined { .. })));
    node.pass(Duration::from_millis(41));
    let high_water = Fence(0);
    assert_eq!(status(node, &brief, &Request::probe()).vote, Vote::NoVote(NoVote::Unseeded { high_water }));
    let seed = Fence(node.now_us() + 400_000);
    admit(node, &brief, seed, false);
    let active = status(node, &brief, &Request::probe());
    assert_eq!((active.vote, active.high_water), (Vote::Active, seed));
    let sent_at = RequestTime(node.now_us());
    let granted = node.ask_with(sent_at, &brief, &acquire("a", 1, 1, 10)).expect("an answer");
    assert_eq!(fence_of(&granted), Fence(seed.0 + 1));
}

pub fn a_forgotten_fence_does_not_lower_the_next_one(node: &mut impl Server) {
    let brief = ClusterParams { fence_ttl: Duration::from_millis(30), ..params() };
    let ask = |node: &mut dyn FnMut(&Request) -> Reply, by| fence_of(&node(&acquire("a", by, by, 1)));
    let mut last = Fence(0);
    for by in 1..5 {
        // A caller whose clock is slow, so that only the node's memory can keep the fences rising.
        let sent_at = RequestTime(node.now_us() - by * 100_000);
        let fence = ask(&mut |r| node.ask_with(sent_at, &brief, r).expect("an answer"), by);
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        node.pass(Duration::from_millis(65));
    }
}
