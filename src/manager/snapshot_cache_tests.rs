//! The snapshot: labels, changes laid over it, and the count for metrics.

use std::collections::BTreeMap;

use super::*;
use crate::manager::lease_snapshot::{LabelSummary, SnapshotLease};
use crate::protocol::{LeaseRecord, NodeResult, Reply, Request, RequestStamp};
use crate::redlock::clock::PausedClock;
use crate::redlock::engine::RedlockSettings;
use crate::redlock::random::SystemEntropy;
use crate::types::NodeId;

fn record(token: &str, labels: &str) -> LeaseRecord {
    let value = format!("{}|000000|1000|7|p,|{labels}", token.repeat(64));
    LeaseRecord::parse(value.as_bytes()).expect("a record")
}

fn name(name: &str) -> ResourceName {
    ResourceName::parse(name).expect("valid")
}

fn at(seconds: u64) -> BootTime {
    BootTime::default().plus(Duration::from_secs(seconds))
}

#[test]
fn labels_are_parsed_or_empty() {
    let long = r#"{"o":"ci \"7\"","n":"x","m":{"o":"no"},"t":5}"#;
    for (labels, owner, acquired_at_ms) in [("{}", "", 0), (long, "ci \"7\"", 5), ("|nonsense", "", 0)] {
        let lease = SnapshotLease::new(record("a", labels), Duration::ZERO, true);
        assert_eq!(*lease.labels(), LabelSummary { owner: owner.into(), acquired_at_ms, kept_until_ms: 0 }, "{labels}");
    }
}

#[test]
fn changes_since_the_reading_are_laid_over_it() {
    let listed = |token| SnapshotLease::new(record(token, "{}"), Duration::from_secs(5), false);
    let leases = [("a", listed("a")), ("b", listed("b")), ("c", listed("c"))];
    let leases = leases.map(|(n, lease)| (name(n), lease)).into();
    let snapshots = Snapshots::new(Duration::from_secs(2));
    snapshots.record(at(9), &name("d"), || unreachable!("nobody reads lists"));
    snapshots.state.lock().ask(at(10));
    snapshots.state.lock().latest = Some(Arc::new(Snapshot::of(leases, at(10), true)));
    let token = |digit: &str| record(digit, "{}").token;
    snapshots.record(at(11), &name("a"), || LeaseChange::Ended(token("a")));
    snapshots.record(at(11), &name("b"), || LeaseChange::Ended(token("f")));
    snapshots.record(at(11), &name("c"), || LeaseChange::Extended(record("c", "{}"), at(18)));
    snapshots.record(at(11), &name("b"), || LeaseChange::Extended(record("f", "{}"), at(18)));
    let before = snapshots.state.lock().latest(at(11), Duration::from_secs(2)).expect("young enough");
    snapshots.record(at(12), &name("d"), || LeaseChange::Granted(record("d", "{}"), at(14)));
    let after = snapshots.state.lock().latest(at(12), Duration::from_secs(2)).expect("young enough");
    let shown = |snapshot: &Snapshot| {
        let row = |(n, l): (&ResourceName, &SnapshotLease)| (n.to_string(), l.left.as_secs(), l.is_confirmed);
        snapshot.leases.iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(shown(&before), [("b".into(), 5, false), ("c".into(), 8, true)]);
    assert_eq!(shown(&after), [("b".into(), 5, false), ("c".into(), 8, true), ("d".into(), 4, true)]);
    assert!(snapshots.state.lock().latest(at(13), Duration::from_secs(2)).is_none(), "too old");
    snapshots.sweep(at(10).plus(SNAPSHOT_IDLE * 2));
    snapshots.state.lock().latest = Some(Arc::new(Snapshot::of(BTreeMap::new(), at(10), true)));
    assert!(snapshots.state.lock().latest(at(11), Duration::MAX).is_none(), "what happened since was not recorded");
}

#[test]
fn only_leases_of_a_quorum_are_counted_and_none_where_too_few_nodes_were_read() {
    let lease = |t: u64, left, is_confirmed| {
        SnapshotLease::new(record("a", &format!("{{\"t\":{t}}}")), Duration::from_secs(left), is_confirmed)
    };
    let kept = SnapshotLease::new(record("a", "{\"t\":7,\"k\":90000}"), Duration::from_secs(9), true);
    let leases =
        [("a", lease(30, 9, true)), ("b", lease(20, 9, true)), ("c", lease(10, 1, true)), ("d", lease(5, 9, false))];
    let leases: BTreeMap<_, _> = leases.into_iter().chain([("e", kept)]).map(|(n, l)| (name(n), l)).collect();
    let count = |complete| Snapshot::of(leases.clone(), at(0), complete).count(Duration::from_secs(1));
    assert_eq!((count(true), count(false)), ((Some(3), [Some(7), Some(20)]), (None, [None, None])), "e is kept");
}

#[test]
fn a_snapshot_that_takes_long_to_read_is_kept_and_answers_at_once_while_it_is_read_anew() {
    let (snapshots, second) = (Snapshots::new(Duration::from_secs(2)), Duration::from_secs(1));
    let mut state = snapshots.state.lock();
    assert!(!state.is_due(at(1)), "nobody asks");
    let count = |taken| Some(LeaseCount { held: Some(1), oldest_at_ms: [None; 2], taken });
    (state.count, state.took) = (count(at(1)), SLOW_READING / 2);
    assert!(!state.is_due(at(90)) && state.at_once(at(90), second).is_none(), "nobody asks");
    (state.took, state.recording_since) = (SLOW_READING * 5, None);
    assert!(state.is_due(at(91)) && state.is_due(at(92)), "it is missing");
    state.latest = Some(Arc::new(Snapshot::of(BTreeMap::new(), at(93), true)));
    state.count = count(at(93));
    assert!(!state.is_due(at(192)) && state.is_due(at(193)), "a hundred times as long as reading takes");
    drop(state);
    snapshots.sweep(at(93).plus(SNAPSHOT_IDLE / 2 * 3));
    let mut state = snapshots.state.lock();
    assert!(!state.is_due(at(100)));
    assert!(state.at_once(at(300), second).is_some(), "while nobody waits");
    assert!(state.is_due(at(301)), "somebody reads it");
    assert!(state.at_once(at(93).plus(SLOW_MAX_AGE + second), second).is_none(), "too old");
}

/// A node that takes some time for a list, and counts lists.
struct ListNode {
    id: NodeId,
    clock: PausedClock,
    takes: Duration,
    lists: Mutex<usize>,
}

impl Node for ListNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    async fn call(self: Arc<Self>, _: RequestStamp, request: Arc<Request>) -> NodeResult {
        if !matches!(*request, Request::List(_)) {
            return Ok(Reply::Indexed);
        }
        self.clock.sleep(self.takes).await;
        *self.lists.lock() += 1;
        Ok(Reply::Page { next: None, leases: Vec::new(), unread: Vec::new() })
    }
}

fn list_engine(takes: Duration) -> (Arc<ListNode>, Redlock<ListNode, PausedClock, SystemEntropy>) {
    let clock = PausedClock::start();
    let id = NodeId::parse("n1").expect("valid");
    let node = Arc::new(ListNode { id, clock, takes, lists: Mutex::default() });
    let engine = Redlock::new(vec![Arc::clone(&node)], clock, SystemEntropy, RedlockSettings::of_tests());
    (node, engine)
}

#[tokio::test(start_paused = true)]
async fn the_first_slow_reading_for_metrics_answers_the_first_list() {
    for (takes, is_kept) in [(SLOW_READING, true), (SLOW_READING / 2, false)] {
        let (node, engine) = list_engine(takes);
        let snapshots = Snapshots::new(Duration::from_secs(2));
        snapshots.count(engine.clock.now(), 0);
        let meanwhile = async {
            engine.clock.sleep(Duration::from_secs(2) + takes / 2).await;
            snapshots.sweep(engine.clock.now().plus(SNAPSHOT_IDLE * 2));
            snapshots.record(engine.clock.now(), &name("a"), || {
                LeaseChange::Granted(record("a", "{}"), engine.clock.now().plus(SNAPSHOT_IDLE))
            });
            engine.clock.sleep(takes).await;
        };
        tokio::select! {
            biased;
            () = snapshots.keep_fresh(&engine, || 0) => unreachable!("it never ends"),
            () = meanwhile => {}
        }
        assert_eq!(*node.lists.lock(), 1, "{takes:?}");
        assert_eq!(
            snapshots.state.lock().recording_since.is_some(),
            is_kept,
            "{takes:?}: what nobody reads costs nothing"
        );
        let listed = snapshots.get(&engine, || 0).await;
        assert_eq!(*node.lists.lock(), if is_kept { 1 } else { 2 }, "{takes:?}");
        assert_eq!(listed.leases.contains_key(&name("a")), is_kept, "granted while the nodes were read");
    }
}
