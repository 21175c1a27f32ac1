//! Cases about events on a server: foreign clients, lost memory, other clusters, evictions.

use std::time::Duration;

use redlockd::protocol::{
    ClusterParams, DeleteForeignArgs, Found, NoVote, NodeStatus, Released, Reply, Request, RequestTime, StoredLock,
    Vote,
};
use redlockd::types::Fence;

use super::subject::{Server, acquire, extend, inspect, name, params, release};

fn status(node: &mut impl Server, params: &ClusterParams, request: &Request) -> NodeStatus {
    let sent_at = RequestTime(node.now_us());
    match node.ask_with(sent_at, params, request) {
        Ok(Reply::Status(status)) => status,
        other => panic!("{other:?}"),
    }
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
    assert_eq!(status(node, &params(), &Request::Probe).why, "blank");
    node.restart_empty();
    assert!(matches!(node.ask(&acquire("a", 2, 2, 1_000)), Reply::NoVote(NoVote::Quarantined { .. })));
    assert!(matches!(node.ask(&extend("a", 1, None, None)), Reply::NoVote(NoVote::Quarantined { .. })));
    // Nothing has voted since it was blank: an operator may say that it is new, once.
    assert_eq!(status(node, &params(), &Request::Init).vote, Vote::Active);
    assert_eq!(status(node, &params(), &Request::Init).vote, Vote::AlreadyInitialised);
}

pub fn a_node_whose_probe_finds_an_eviction_has_no_vote(node: &mut impl Server) {
    assert_eq!(status(node, &params(), &Request::Probe).vote, Vote::Active);
    node.evict_something();
    let after = status(node, &params(), &Request::Probe);
    assert_eq!((after.vote, after.why.as_str()), (Vote::NoVote(NoVote::Quarantined { left_ms: 60_000 }), "evicted"));
    let again = status(node, &params(), &Request::Probe);
    assert_eq!(again.until_us, after.until_us, "one eviction counts once");
}

pub fn another_cluster_gets_no_vote_and_does_not_change_the_nodes_cluster(node: &mut impl Server) {
    let other = ClusterParams { cluster: "cluster two".into(), ..params() };
    let theirs = || NoVote::OtherCluster { theirs: "cluster one".into() };
    let sent_at = RequestTime(node.now_us());
    assert_eq!(node.ask_with(sent_at, &other, &acquire("a", 1, 1, 1_000)), Ok(Reply::NoVote(theirs())));
    assert_eq!(status(node, &other, &Request::Probe).vote, Vote::NoVote(theirs()));
    let ordered = status(node, &other, &Request::Quarantine);
    assert_eq!(ordered.vote, Vote::NoVote(NoVote::Quarantined { left_ms: 60_000 }));
    assert!(matches!(node.ask(&acquire("a", 1, 1, 1_000)), Reply::NoVote(NoVote::Quarantined { .. })));
    let sent_at = RequestTime(node.now_us());
    assert_eq!(node.ask_with(sent_at, &other, &acquire("a", 1, 1, 1_000)), Ok(Reply::NoVote(theirs())));
}

pub fn the_longest_quarantine_that_any_instance_asked_for_counts(node: &mut impl Server) {
    let longer = ClusterParams { quarantine: Duration::from_secs(600), ..params() };
    assert_eq!(status(node, &longer, &Request::Probe).vote, Vote::Active);
    let until = status(node, &params(), &Request::Quarantine);
    assert_eq!(until.vote, Vote::NoVote(NoVote::Quarantined { left_ms: 600_000 }));
    let longest = ClusterParams { quarantine: Duration::from_secs(700), ..params() };
    let extended = status(node, &longest, &Request::Probe);
    assert_eq!(extended.until_us, until.until_us + 100_000_000, "it also lengthens one that is being served");
}

pub fn a_served_quarantine_ends_with_a_seed_above_all_fences(node: &mut impl Server) {
    let brief = ClusterParams { quarantine: Duration::from_millis(40), ..params() };
    node.flush_all();
    assert!(matches!(status(node, &brief, &Request::Probe).vote, Vote::NoVote(NoVote::Quarantined { .. })));
    node.pass(Duration::from_millis(41));
    let high_water = Fence(0);
    assert_eq!(status(node, &brief, &Request::Probe).vote, Vote::NoVote(NoVote::Unseeded { high_water }));
    let seed = Fence(node.now_us() + 400_000);
    let active = status(node, &brief, &Request::Activate { seed });
    assert_eq!((active.vote, active.high_water), (Vote::Active, seed));
    let sent_at = RequestTime(node.now_us());
    let granted = node.ask_with(sent_at, &brief, &acquire("a", 1, 1, 10)).expect("an answer");
    assert_eq!(fence_of(&granted), Fence(seed.0 + 1));
}

pub fn an_expired_counter_does_not_lower_the_fence(node: &mut impl Server) {
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
