//! Restarts of an embedded node: after a crash, a clean stop, a reboot, with a damaged or unwritable
//! file. The clock is set by the tests.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::*;
use crate::protocol::reference::{ReferenceNode, Resumed};
use crate::protocol::{
    AcquireArgs, AcquireSetArgs, AcquireSharedArgs, CancelArgs, ClusterParams, DowngradeArgs, EndReason, Found,
    IntentArgs, NoVote, NodeResult, ReleaseArgs, Reply, Request, RequestTime, RevokeArgs, TokenUse, UnreachableKind,
    UpdateArgs, UpdateKind, Vote,
};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::types::{AttemptId, Fence, Mode, NodeId, PermitLimit, ResourceName, Token, TokenHash, Ttl, WantedMode};

const WALL_MS: u64 = 1_700_000_000_000;

/// Boot clock and wall clock of one machine.
#[derive(Debug, Clone)]
struct ManualClock {
    boot_us: Arc<AtomicU64>,
    wall_ms: Arc<AtomicU64>,
}

impl ManualClock {
    fn new() -> Self {
        Self { boot_us: Arc::new(AtomicU64::new(1_000_000_000)), wall_ms: Arc::new(AtomicU64::new(WALL_MS)) }
    }

    fn advance(&self, span: Duration) {
        let us = u64::try_from(span.as_micros()).expect("short");
        self.boot_us.fetch_add(us, Ordering::SeqCst);
        self.wall_ms.fetch_add(us / 1_000, Ordering::SeqCst);
    }

    fn step_wall_back(&self, span: Duration) {
        self.wall_ms.fetch_sub(u64::try_from(span.as_millis()).expect("short"), Ordering::SeqCst);
    }

    fn reboot(&self) {
        self.boot_us.store(3_000_000, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> BootTime {
        BootTime::from_nanos(self.boot_us.load(Ordering::SeqCst) * 1_000)
    }

    fn wall_ms(&self) -> u64 {
        self.wall_ms.load(Ordering::SeqCst)
    }

    fn sleep_until(&self, _at: BootTime) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }
}

fn config(dir: &tempfile::TempDir, name: &str, clock: &ManualClock) -> EmbeddedConfig<ManualClock> {
    let params = ClusterParams {
        cluster: "c".into(),
        guard: Duration::from_millis(500),
        lock_delay: Duration::from_secs(1),
        quarantine: Duration::from_secs(305),
        fence_ttl: Duration::from_mins(10),
        template: Default::default(),
    };
    EmbeddedConfig { id: NodeId::parse(name).expect("valid"), dir: dir.path().to_owned(), params, clock: clock.clone() }
}

type TestNode = Arc<EmbeddedNode<ManualClock>>;

fn start(dir: &tempfile::TempDir, clock: &ManualClock) -> TestNode {
    EmbeddedNode::open_in(config(dir, "e/1", clock), BootId::named("boot 1")).expect("opens")
}

/// Drops the node as a crash would, once a write in progress has ended.
async fn crash(node: TestNode) {
    let alone = async {
        while Arc::strong_count(&node) > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), alone).await.expect("the write ends");
}

fn open_error(dir: &tempfile::TempDir, name: &str, clock: &ManualClock) -> String {
    EmbeddedNode::open_in(config(dir, name, clock), BootId::named("boot 1")).expect_err("does not open").to_string()
}

fn name(i: u64) -> ResourceName {
    ResourceName::parse(&format!("r{i}")).expect("valid")
}

fn token(i: u64) -> TokenHash {
    Token::parse(&format!("token-{i:016}")).expect("valid").hash()
}

fn acquire(i: u64, by: u64, ttl: Duration) -> Request {
    Request::Acquire(AcquireArgs {
        resource: name(i),
        token: token(by),
        attempt: AttemptId::from_random(by),
        ttl: Ttl::from_ms(u64::try_from(ttl.as_millis()).expect("short")).expect("valid"),
        labels: "{}".into(),
        token_use: TokenUse::Again,
    })
}

fn release(i: u64, by: u64) -> Request {
    Request::Release(ReleaseArgs { resource: name(i), token: token(by), reason: EndReason::Released })
}

async fn status(node: &TestNode) -> crate::protocol::NodeStatus {
    // A probe is answered whatever its time; the next requests take its clock.
    match node.clone().call(RequestTime(0).into(), Arc::new(Request::probe())).await {
        Ok(Reply::Status(status)) => *status,
        other => panic!("{other:?}"),
    }
}

async fn ask(node: &TestNode, request: Request) -> NodeResult {
    ask_at(node, status(node).await.now_us, request).await
}

async fn ask_at(node: &TestNode, now_us: u64, request: Request) -> NodeResult {
    node.clone().call(RequestTime(now_us).into(), Arc::new(request)).await
}

async fn granted(node: &TestNode, request: Request) -> Fence {
    match ask(node, request).await {
        Ok(Reply::Granted { fence, joined: false }) => fence,
        other => panic!("{other:?}"),
    }
}

async fn quarantine_left(node: &TestNode) -> Option<Duration> {
    match ask(node, Request::probe()).await {
        Ok(Reply::Status(status)) => match status.vote {
            Vote::Active => None,
            Vote::NoVote(NoVote::Quarantined { left_ms }) => Some(Duration::from_millis(left_ms)),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

const TTL: Duration = Duration::from_secs(30);
/// The TTL, the lock delay, the time written ahead, and the last millisecond of the key.
const WRITTEN: Duration = Duration::from_millis(30_000 + 1_000 + 10_000 + 1);

#[tokio::test]
async fn a_first_start_votes_at_once() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let node = start(&dir, &clock);
    assert_eq!(quarantine_left(&node).await, None);
    assert_eq!(node.report().reserved_for, Duration::ZERO);
}

#[tokio::test]
async fn after_a_crash_it_has_no_vote_until_its_leases_end_and_its_fences_still_rise() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let node = start(&dir, &clock);
    let before = granted(&node, acquire(1, 1, TTL)).await;
    crash(node).await;
    clock.advance(Duration::from_secs(11));
    clock.step_wall_back(Duration::from_secs(86_400));

    let node = start(&dir, &clock);
    assert_eq!(quarantine_left(&node).await, Some(WRITTEN - Duration::from_secs(11)));
    assert!(matches!(ask(&node, acquire(1, 2, TTL)).await, Ok(Reply::NoVote(NoVote::Quarantined { .. }))));
    crash(node).await; // crashes again: the end does not move
    clock.advance(Duration::from_secs(10));
    let node = start(&dir, &clock);
    assert_eq!(quarantine_left(&node).await, Some(WRITTEN - Duration::from_secs(21)));
    clock.advance(WRITTEN - Duration::from_secs(21));
    let after = granted(&node, acquire(1, 2, TTL)).await;
    assert!(after > before, "{after} after {before}");
    assert!(after.0 <= status(&node).await.now_us + 500_000, "a write-back of this fence would be refused");
}

#[tokio::test]
async fn after_a_reboot_the_whole_recorded_time_counts_from_the_start() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let node = start(&dir, &clock);
    let before = granted(&node, acquire(1, 1, TTL)).await;
    crash(node).await;
    clock.advance(Duration::from_secs(3_600));
    clock.reboot();
    clock.step_wall_back(Duration::from_secs(86_400));

    let reopen = || EmbeddedNode::open_in(config(&dir, "e/1", &clock), BootId::named("boot 2")).expect("opens");
    let node = reopen();
    assert_eq!(quarantine_left(&node).await, Some(WRITTEN));
    crash(node).await;
    clock.advance(Duration::from_secs(5));
    let node = reopen();
    assert_eq!(quarantine_left(&node).await, Some(WRITTEN - Duration::from_secs(5)));
    clock.advance(WRITTEN);
    assert!(granted(&node, acquire(1, 2, TTL)).await > before);
}

#[tokio::test]
async fn an_unknown_boot_is_treated_as_a_reboot() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let unknown: BootId = serde_json::from_str("null").expect("no boot id");
    let reopen = || EmbeddedNode::open_in(config(&dir, "e", &clock), unknown.clone()).expect("opens");
    let node = reopen();
    granted(&node, acquire(1, 1, TTL)).await;
    crash(node).await;
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(quarantine_left(&reopen()).await, Some(WRITTEN));
}

#[tokio::test]
async fn after_a_clean_stop_it_waits_only_for_leases_that_are_held() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let node = start(&dir, &clock);
    let mut last = granted(&node, acquire(1, 1, TTL)).await;
    node.close().expect("written");
    node.close().expect("a second time does nothing");
    let refused = node.clone().call(RequestTime(0).into(), Arc::new(release(1, 1))).await;
    assert_eq!(refused.map_err(|e| e.kind), Err(UnreachableKind::Disconnected));
    crash(node).await;

    let node = start(&dir, &clock);
    let left = Duration::from_millis(31_001);
    assert_eq!(quarantine_left(&node).await, Some(left));
    node.close().expect("written");
    crash(node).await;
    let node = start(&dir, &clock);
    assert_eq!(quarantine_left(&node).await, Some(left), "closed within its quarantine");
    clock.advance(left);
    for _ in 0..3 {
        let fence = granted(&node, acquire(1, 2, TTL)).await;
        assert!(fence > last);
        last = fence;
        ask(
            &node,
            Request::Cancel(CancelArgs { resource: name(1), token: token(2), attempt: AttemptId::from_random(2) }),
        )
        .await
        .expect("an answer");
        clock.advance(Duration::from_secs(3)); // past the tombstone of the attempt
    }
    node.close().expect("written");
    crash(node).await;

    clock.step_wall_back(Duration::from_secs(60));
    let node = start(&dir, &clock);
    assert_eq!(quarantine_left(&node).await, None, "no lease was out");
    assert!(granted(&node, acquire(1, 3, TTL)).await > last);
}

#[tokio::test]
async fn a_lease_is_never_granted_again_before_its_end_whenever_the_crash_happens() {
    for crash_after_ms in [0, 1, 4_999, 5_001, 9_999, 10_001, 29_999, 31_000, 31_002, 60_000] {
        let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
        let node = start(&dir, &clock);
        for step in 0..12 {
            granted(&node, acquire(step, 1, TTL)).await;
            clock.advance(Duration::from_secs(1));
        }
        let last_given_at = clock.now();
        clock.advance(Duration::from_millis(crash_after_ms));
        crash(node).await;
        let node = start(&dir, &clock);
        for _ in 0..200 {
            let is_over = clock.now().since(last_given_at) >= TTL;
            let answer = ask(&node, acquire(11, 2, TTL)).await.expect("an answer");
            assert!(is_over || matches!(answer, Reply::NoVote(_)), "{crash_after_ms}: {answer:?}");
            clock.advance(Duration::from_millis(250));
        }
    }
}

#[tokio::test]
async fn steady_load_rewrites_the_file_at_most_every_five_seconds() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let node = start(&dir, &clock);
    for i in 0..6_000 {
        granted(&node, acquire(i, i, TTL)).await;
        let extend = Request::Update(UpdateArgs {
            resource: name(i),
            token: token(i),
            ttl: None,
            fence: None,
            kind: UpdateKind::Renewal,
            labels: None,
        });
        assert!(matches!(ask(&node, extend).await, Ok(Reply::Updated { .. })));
        ask(&node, release(i, i)).await.expect("an answer");
        clock.advance(Duration::from_millis(10)); // a minute in all
    }
    let writes = node.report().writes;
    assert!((6..=14).contains(&writes), "{writes} writes in a minute");
}

#[tokio::test]
async fn each_node_has_its_own_locked_file_and_all_share_one_time() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let one = start(&dir, &clock);
    assert!(open_error(&dir, "e/1", &clock).contains("already running"));
    clock.step_wall_back(Duration::from_secs(60));
    let two = EmbeddedNode::open_in(config(&dir, "e-2", &clock), BootId::named("boot 1")).expect("opens");
    assert_eq!(status(&one).await.now_us, status(&two).await.now_us);
    assert_ne!(one.path(), two.path());
    crash(one).await;
    start(&dir, &clock);
}

#[tokio::test]
async fn a_damaged_or_missing_file_is_an_error_not_a_first_start() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let path: PathBuf = start(&dir, &clock).path().to_owned();
    let good = std::fs::read(&path).expect("a file");
    let mut flipped = good.clone();
    flipped[good.len() / 3] ^= 1;
    let half = good[..good.len() / 2].to_vec();
    for bad in [Vec::new(), half, flipped, vec![0xff; 100], b"{}\n".to_vec(), vec![b'x'; 1 << 20]] {
        std::fs::write(&path, &bad).expect("written");
        let error = open_error(&dir, "e/1", &clock);
        assert!(error.contains("is not this node's state"), "{error}");
    }
    std::fs::remove_file(&path).expect("removed");
    assert!(open_error(&dir, "e/1", &clock).contains("is missing, though"));
    std::fs::create_dir(&path).expect("made");
    assert!(open_error(&dir, "e/1", &clock).contains("cannot be read"));
    std::fs::remove_dir(&path).expect("removed");
    std::fs::write(&path, &good).expect("written");
    start(&dir, &clock);
    std::fs::copy(&path, dir.path().join("node-other.state")).expect("copied");
    assert!(open_error(&dir, "other", &clock).contains("belongs to node e/1"));
}

/// U12 of the neighbour: with an umask of zero, all users could write there.
#[tokio::test]
async fn u12_a_new_data_directory_is_for_its_user_only() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let (above, data) = (dir.path().join("a"), dir.path().join("a/data"));
    let config = EmbeddedConfig { dir: data.clone(), ..config(&dir, "e/1", &clock) };
    let _node = EmbeddedNode::open_in(config, BootId::named("boot 1")).expect("opens");
    for made in [above, data] {
        assert_eq!(made.metadata().expect("made").permissions().mode() & 0o777, 0o700, "{}", made.display());
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_an_error_at_the_start() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    std::fs::create_dir(dir.path().join("node-e%2F1.tmp")).expect("made"); // root may write everywhere else
    assert!(open_error(&dir, "e/1", &clock).contains("cannot be written"));
    let not_a_dir = dir.path().join("file");
    std::fs::write(&not_a_dir, b"").expect("written");
    let config = EmbeddedConfig { dir: not_a_dir, ..config(&dir, "e/1", &clock) };
    let error = EmbeddedNode::open_in(config, BootId::named("boot 1")).expect_err("does not open");
    assert!(matches!(error, OpenError::Directory { .. }), "{error}");
}

/// U4 of the neighbour: probes succeeded all the same, so that the instance reported to be ready.
#[tokio::test]
async fn u4_while_the_disk_is_full_nothing_is_granted_probes_fail_and_releases_succeed() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let node = start(&dir, &clock);
    granted(&node, acquire(1, 1, TTL)).await;
    let in_the_way = dir.path().join("node-e%2F1.tmp");
    std::fs::create_dir(&in_the_way).expect("made");
    let now_us = status(&node).await.now_us;

    let longer = Duration::from_mins(4);
    let extend = Request::Update(UpdateArgs {
        resource: name(1),
        token: token(1),
        ttl: Ttl::from_ms(240_000).ok(),
        fence: None,
        kind: UpdateKind::Renewal,
        labels: None,
    });
    for request in [acquire(2, 2, longer), acquire(2, 2, longer), extend] {
        assert_eq!(ask_at(&node, now_us, request).await.map_err(|e| e.kind), Err(UnreachableKind::Full));
    }
    assert!(node.report().failure.is_some());
    let probe = || ask_at(&node, now_us, Request::probe());
    assert_eq!(probe().await.map_err(|e| e.kind), Err(UnreachableKind::Full));
    let within = ask_at(&node, now_us, acquire(3, 3, Duration::from_millis(100))).await; // within the written bounds
    assert!(matches!(within, Ok(Reply::Granted { .. })), "{within:?}");
    match ask_at(&node, now_us, release(1, 1)).await {
        Ok(Reply::Released(released)) => assert_eq!(released.found, Found::Match),
        other => panic!("{other:?}"),
    }
    std::fs::remove_dir(&in_the_way).expect("removed");
    assert_eq!(probe().await.map_err(|e| e.kind), Err(UnreachableKind::Full), "within a second nothing is tried");
    clock.advance(Duration::from_secs(1));
    let probes_succeed = async {
        while probe().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), probes_succeed).await.expect("a probe writes the file");
    assert_eq!(node.report().failure, None);
    granted(&node, acquire(2, 2, longer)).await;
}

#[tokio::test]
async fn requests_during_a_write_keep_their_order() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let node = start(&dir, &clock);
    let sent_at = RequestTime(status(&node).await.now_us);
    let call = |request| node.clone().call(sent_at.into(), Arc::new(request));
    let answers = futures_util::future::join4(
        call(acquire(1, 1, TTL)),
        call(acquire(1, 2, TTL)),
        call(release(1, 1)),
        call(acquire(1, 3, TTL)),
    )
    .await;
    assert!(matches!(answers.0, Ok(Reply::Granted { .. })), "{answers:?}");
    assert!(matches!(answers.1, Ok(Reply::Held { .. })), "{answers:?}");
    assert!(matches!(answers.2, Ok(Reply::Released(r)) if r.found == Found::Match), "{answers:?}");
    assert!(matches!(answers.3, Ok(Reply::Granted { .. })), "{answers:?}");
    assert_eq!(node.report().writes, 2);
}

#[tokio::test]
async fn a_request_dropped_during_a_write_blocks_no_other() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
    let node = start(&dir, &clock);
    let sent_at = RequestTime(status(&node).await.now_us);
    for by in 0..50 {
        let mut gone =
            Box::pin(node.clone().call(sent_at.into(), Arc::new(acquire(1, by, Duration::from_secs(20 + by)))));
        let first_poll = futures_util::future::poll_immediate(&mut gone).await;
        drop(gone);
        if first_poll.is_none() {
            ask(
                &node,
                Request::Cancel(CancelArgs {
                    resource: name(1),
                    token: token(by),
                    attempt: AttemptId::from_random(by),
                }),
            )
            .await
            .expect("an answer");
        }
    }
    for by in 0..50 {
        ask(&node, release(1, by)).await.expect("an answer");
    }
    granted(&node, acquire(1, 99, TTL)).await;
}

fn permit(slot: u8) -> Mode {
    Mode::Permit { slot, limit: PermitLimit::new(3).expect("valid") }
}

fn share(i: u64, by: u64, mode: Mode, ttl: Duration) -> Request {
    Request::AcquireShared(AcquireSharedArgs {
        resource: name(i),
        token: token(by),
        mode,
        attempt: AttemptId::from_random(by),
        ttl: Ttl::from_ms(u64::try_from(ttl.as_millis()).expect("short")).expect("valid"),
        labels: "{}".into(),
        proposed: None,
    })
}

async fn admitted(node: &TestNode, request: Request) -> Fence {
    match ask(node, request).await {
        Ok(Reply::Admitted { fence, joined: false }) => fence,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn after_a_restart_it_waits_for_the_last_of_leases_that_are_held_together() {
    for modes in [[Mode::Shared; 2], [permit(0), permit(2)]] {
        let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
        let node = start(&dir, &clock);
        admitted(&node, share(1, 1, modes[0], TTL)).await;
        let before = admitted(&node, share(1, 2, modes[1], Duration::from_secs(5))).await;
        crash(node).await;
        let node = start(&dir, &clock);
        assert_eq!(quarantine_left(&node).await, Some(WRITTEN), "that of the longest, not of the last that came");
        let refused = ask(&node, share(1, 3, modes[0], TTL)).await;
        assert!(matches!(refused, Ok(Reply::NoVote(NoVote::Quarantined { .. }))), "{refused:?}");
        clock.advance(WRITTEN);
        let after = admitted(&node, share(1, 3, modes[0], TTL)).await;
        assert!(after > before, "{after} after {before}");
        admitted(&node, share(1, 4, modes[1], Duration::from_secs(5))).await;
        node.close().expect("written");
        crash(node).await;
        let node = start(&dir, &clock);
        assert_eq!(quarantine_left(&node).await, Some(Duration::from_millis(31_001)), "after a clean stop no longer");
    }
}

/// One step of a sequence: what, its resource, its token, a number that each uses as it needs, and what passes before it.
type Step = (u8, u64, u64, u64, u64);

fn request((what, of, by, n, _): Step) -> Request {
    let (resource, token, attempt) = (name(of), token(by), AttemptId::from_random(of * 100 + by * 10 + n % 3));
    let ttl = Ttl::from_ms(1_000 + 700 * n).expect("valid");
    let of_two = Mode::Permit { slot: 1, limit: PermitLimit::new(2).expect("valid") };
    let mode = [Mode::Shared, Mode::Shared, permit(0), permit(1), of_two][n as usize % 5];
    let proposed = (n > 12).then(|| Fence(WALL_MS * 1_000 + n * 1_000_000));
    match what {
        0 => Request::Acquire(AcquireArgs {
            resource,
            token,
            attempt,
            ttl,
            labels: "{}".into(),
            token_use: TokenUse::Again,
        }),
        1..=5 => Request::AcquireShared(AcquireSharedArgs {
            resource,
            token,
            mode,
            attempt,
            ttl,
            labels: "{}".into(),
            proposed,
        }),
        6 => Request::AcquireSet(AcquireSetArgs {
            resources: [resource, name(of ^ 1)].into_iter().collect(),
            token,
            attempt,
            ttl,
            labels: "{}".into(),
            is_shared: n.is_multiple_of(2),
        }),
        7 => Request::Update(UpdateArgs {
            resource,
            token,
            ttl: Some(ttl),
            fence: proposed,
            kind: UpdateKind::Renewal,
            labels: None,
        }),
        8 => {
            let claims: String = (0..3)
                .map(|i| AttemptId::from_random(of * 100 + by * 10 + i))
                .map(|a| format!("{},", a.as_str()))
                .collect();
            Request::Downgrade(DowngradeArgs { resource, token, claims: claims.into() })
        }
        9 => Request::Release(ReleaseArgs { resource, token, reason: EndReason::Released }),
        10 => Request::Cancel(CancelArgs { resource, token, attempt }),
        11 => Request::Revoke(RevokeArgs { resource, token }),
        12 => {
            let mode = if n.is_multiple_of(2) { WantedMode::Exclusive } else { mode.wanted() };
            Request::Intent(IntentArgs { resource, token, since: RequestTime(n), mode, is_withdrawn: n == 15 })
        }
        _ => Request::Inspect { resource },
    }
}

/// Its file, its queue and its clock change nothing of what the rules say: random sequences about leases of all modes, on an
/// embedded node and on the reference at the same times.
#[test]
fn an_embedded_node_gives_the_replies_of_the_reference_about_leases_of_all_modes() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let met = std::cell::RefCell::new(std::collections::BTreeSet::new());
    let passes = prop_oneof![6 => Just(0), 3 => 1..900_u64, 1 => 2_000..9_000_u64];
    let steps = prop::collection::vec((0..14_u8, 0..2_u64, 0..4_u64, 0..16_u64, passes), 1..60);
    let cases = ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() };
    let seed = TestRng::from_seed(RngAlgorithm::ChaCha, b"redlockd embedded differential 1");
    let outcome = TestRunner::new_with_rng(cases, seed).run(&steps, |steps| {
        runtime.block_on(async {
            let (dir, clock) = (tempfile::tempdir().expect("a directory"), ManualClock::new());
            let (node, params) = (start(&dir, &clock), config(&dir, "e/1", &clock).params);
            let mut reference = ReferenceNode::new("run");
            let now_us = status(&node).await.now_us;
            reference.resume(now_us, &params, Resumed { fence: now_us, until_us: 0, why: "init" });
            for step in steps {
                clock.advance(Duration::from_millis(step.4));
                let (request, now_us) = (request(step), status(&node).await.now_us);
                let real = node.clone().call(RequestTime(now_us).into(), Arc::new(request.clone())).await;
                let expected = reference.apply(now_us, "", RequestTime(now_us), &params, &request);
                if let Ok(reply) = &real {
                    let text = format!("{reply:?}");
                    met.borrow_mut().insert(text.split([' ', '(']).next().unwrap_or_default().to_owned());
                }
                prop_assert_eq!(real.map_err(|e| e.kind), expected.map_err(|e| e.kind), "{:?}", request);
            }
            Ok(())
        })
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let met = met.into_inner();
    for kind in
        ["Admitted", "HeldByMembers", "ModeDiffers", "SetGranted", "SetRefused", "Downgraded", "Intent", "Revoked"]
    {
        assert!(met.contains(kind), "no such reply, so not tested: {kind}; received: {met:?}");
    }
}
