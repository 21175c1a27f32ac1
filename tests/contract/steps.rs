//! Generates random sequences: the seeded runner, and the steps of the differential test.

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use redlockd::protocol::UpdateKind;

/// A runner of `cases` sequences, the same for the same seed.
pub fn seeded_runner(cases: u32, seed: &[u8; 32]) -> TestRunner {
    let config =
        ProptestConfig { cases, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, seed))
}

/// One step. Numbers select among few resources, tokens and attempts, so that steps affect each other.
#[derive(Debug, Clone)]
pub enum Step {
    Ask {
        what: Ask,
        sent_at: SentAtKind,
        who: Who,
    },
    Foreign {
        resource: usize,
        value: usize,
        ttl_ms: Option<u64>,
    },
    Expire {
        resource: usize,
        ttl_ms: Option<u64>,
    },
    Delete {
        resource: usize,
    },
    FlushAll,
    Evict,
    ResetStatistics,
    Restart {
        keeps_memory: bool,
    },
    /// The server's clock was ahead, and went back.
    ClockWasAhead,
    /// The node loses its vote, is filled with this, and gets it again.
    Heal {
        entries: Vec<Filled>,
    },
    /// Wait until the shortest TTLs and quarantines have ended.
    Wait,
}

#[derive(Debug, Clone)]
pub enum Ask {
    Acquire {
        resource: usize,
        token: u64,
        attempt: u64,
        ms: u64,
    },
    /// Of a mode in [`MODES`].
    AcquireShared {
        resource: usize,
        token: u64,
        attempt: u64,
        ms: u64,
        mode: usize,
        proposed: FenceKind,
    },
    /// Knows these attempts.
    Downgrade {
        resource: usize,
        token: u64,
        attempts: Vec<u64>,
    },
    Intent {
        resource: usize,
        token: u64,
        since: u64,
        mode: Option<usize>,
        is_withdrawn: bool,
    },
    /// Of these resources, with the attempt of the first.
    AcquireSet {
        resources: Vec<usize>,
        token: u64,
        attempt: u64,
        ms: u64,
        is_shared: bool,
    },
    Update {
        resource: usize,
        token: u64,
        ms: Option<u64>,
        fence: FenceKind,
        kind: UpdateKind,
        labels: Option<&'static str>,
    },
    Restore {
        resource: usize,
        token: u64,
        ms: u64,
        fence: FenceKind,
        mode: Option<usize>,
    },
    Kept {
        resource: usize,
    },
    Cancel {
        resource: usize,
        token: u64,
        attempt: u64,
    },
    Release {
        resource: usize,
        token: u64,
        forced: bool,
    },
    Revoke {
        resource: usize,
        token: u64,
    },
    DeleteForeign {
        resource: usize,
        sees: bool,
    },
    Inspect {
        resource: usize,
    },
    Waiters {
        instance: usize,
        publishes: bool,
        from_start: bool,
    },
    Read,
    Fill {
        nonce: u64,
        page: u32,
        entries: Vec<Filled>,
    },
    /// Of an instance, perhaps a witness, which sees a run of another node alive.
    Probe {
        instance: usize,
        is_witness: bool,
        alive: Option<(usize, usize)>,
    },
    Init,
    Quarantine {
        instance: usize,
    },
    /// A change of the view, by so much above the present one.
    Member {
        what: MemberKind,
        by: u64,
        is_named: bool,
        fence: FenceKind,
    },
}

#[derive(Debug, Clone, Copy)]
pub enum MemberKind {
    Promise,
    Install,
    Admit,
}

#[derive(Debug, Clone, Copy)]
pub enum SentAtKind {
    Now,
    SlightlyOff(i64),
    Late,
    Early,
}

/// Whose parameters the request has.
#[derive(Debug, Clone, Copy)]
pub enum Who {
    Us,
    OtherCluster,
    LongerTtl,
    /// Ours, in a view that is by one lower, or higher.
    LowerView,
    HigherView,
}

/// An entry of a fill.
#[derive(Debug, Clone)]
pub struct Filled {
    pub kind: FilledKind,
    pub resource: usize,
    pub token: u64,
    pub attempts: Vec<u64>,
    pub ms: u64,
    pub fence: FenceKind,
}

#[derive(Debug, Clone, Copy)]
pub enum FilledKind {
    Copy,
    CopyMember { mode: usize },
    Block,
    Foreign { value: usize },
    Released,
    Revoked,
    Cancelled,
}

#[derive(Debug, Clone, Copy)]
pub enum FenceKind {
    /// The last fence that was given.
    Last,
    OneMore,
    OneLess,
    Any,
    Ahead,
    TooFarAhead,
}

pub const RESOURCES: [&str; 2] = ["a", "a/b"];
/// Slot and limit; no limit: shared.
pub const MODES: [(u8, u64); 5] = [(0, 0), (0, 2), (1, 2), (0, 3), (2, 3)];
pub const FOREIGN: [&[u8]; 4] = [b"", b"theirs", &[0xff; 20], &[b'|'; 80]];

fn lease_ms() -> impl Strategy<Value = u64> {
    prop_oneof![1 => 1..30_u64, 4 => 15_000..60_000_u64]
}

fn fences() -> impl Strategy<Value = FenceKind> {
    use FenceKind::{Ahead, Any, Last, OneLess, OneMore, TooFarAhead};
    prop_oneof![4 => Just(Last), 2 => Just(OneMore), 1 => Just(OneLess), 2 => Just(Any), 1 => Just(Ahead), 1 => Just(TooFarAhead)]
}

fn filled() -> impl Strategy<Value = Filled> {
    use FilledKind::{Block, Cancelled, Copy, Foreign, Released, Revoked};
    let kind = prop_oneof![
        6 => Just(Copy),
        6 => Just(Block),
        1 => (0..=FOREIGN.len()).prop_map(|value| Foreign { value }),
        1 => Just(Released),
        1 => Just(Revoked),
        1 => Just(Cancelled),
    ];
    let attempts = prop::collection::vec(0..4_u64, 1..3);
    (kind, 0..RESOURCES.len(), 0..2_u64, attempts, lease_ms(), fences())
        .prop_map(|(kind, resource, token, attempts, ms, fence)| Filled { kind, resource, token, attempts, ms, fence })
}

fn update_kinds() -> impl Strategy<Value = UpdateKind> {
    prop_oneof![2 => Just(UpdateKind::Renewal), 1 => Just(UpdateKind::Edit), 1 => Just(UpdateKind::FirstEnd)]
}

/// The first is no end: people write texts.
fn edited_labels() -> impl Strategy<Value = Option<&'static str>> {
    let edit = |labels| Just(Some(labels));
    prop_oneof![3 => Just(None), 1 => edit(""), 1 => edit(r#"{"n":"x|y\"k\":1","m":{"k":"1"},"t":0}"#), 1 => edit(r#"{"t":0,"k":1}"#)]
}

fn asks() -> impl Strategy<Value = Ask> {
    let (r, t, a) = (0..RESOURCES.len(), 0..2_u64, 0..4_u64);
    prop_oneof![
        60 => (r.clone(), t.clone(), a.clone(), lease_ms())
            .prop_map(|(resource, token, attempt, ms)| Ask::Acquire { resource, token, attempt, ms }),
        50 => (r.clone(), t.clone(), prop::option::of(lease_ms()), fences(), update_kinds(), edited_labels())
            .prop_map(|(resource, token, ms, fence, kind, labels)| Ask::Update { resource, token, ms, fence, kind, labels }),
        24 => (prop::sample::subsequence((0..RESOURCES.len()).collect::<Vec<_>>(), 1..=RESOURCES.len()), t.clone(), a.clone(), lease_ms())
            .prop_map(|(resources, token, attempt, ms)| Ask::AcquireSet { resources, token, attempt, ms, is_shared: false }),
        12 => (r.clone(), t.clone(), lease_ms(), fences())
            .prop_map(|(resource, token, ms, fence)| Ask::Restore { resource, token, ms, fence, mode: None }),
        20 => (r.clone(), t.clone(), a).prop_map(|(resource, token, attempt)| Ask::Cancel { resource, token, attempt }),
        8 => (r.clone(), t.clone(), any::<bool>()).prop_map(|(resource, token, forced)| Ask::Release { resource, token, forced }),
        6 => (r.clone(), t).prop_map(|(resource, token)| Ask::Revoke { resource, token }),
        6 => (r.clone(), any::<bool>()).prop_map(|(resource, sees)| Ask::DeleteForeign { resource, sees }),
        12 => r.prop_map(|resource| Ask::Inspect { resource }),
        12 => (0..3_usize, any::<bool>(), any::<bool>())
            .prop_map(|(instance, publishes, from_start)| Ask::Waiters { instance, publishes, from_start }),
        4 => Just(Ask::Read),
        10 => (0..2_u64, prop_oneof![3 => Just(1), 1 => 2..4_u32], prop::collection::vec(filled(), 0..4))
            .prop_map(|(nonce, page, entries)| Ask::Fill { nonce, page, entries }),
        10 => (0..2_usize, any::<bool>(), prop::option::of((0..2_usize, 0..2_usize)))
            .prop_map(|(instance, is_witness, alive)| Ask::Probe { instance, is_witness, alive }),
        1 => Just(Ask::Init),
        2 => (0..2_usize).prop_map(|instance| Ask::Quarantine { instance }),
        12 => (prop_oneof![Just(MemberKind::Promise), Just(MemberKind::Install), Just(MemberKind::Admit)], 0..3_u64, prop::bool::weighted(0.8), fences())
            .prop_map(|(what, by, is_named, fence)| Ask::Member { what, by, is_named, fence }),
    ]
}

pub fn steps() -> impl Strategy<Value = Step> {
    let sent_at = prop_oneof![
        60 => Just(SentAtKind::Now),
        16 => (-4_000_000..4_000_000_i64).prop_map(SentAtKind::SlightlyOff),
        1 => Just(SentAtKind::Late),
        1 => Just(SentAtKind::Early),
    ];
    let who = prop_oneof![60 => Just(Who::Us), 1 => Just(Who::OtherCluster), 1 => Just(Who::LongerTtl), 3 => Just(Who::LowerView), 3 => Just(Who::HigherView)];
    let resource = 0..RESOURCES.len();
    let foreign_ttl = prop_oneof![1 => Just(None), 1 => (1..20_u64).prop_map(Some), 1 => Just(Some(30_000))];
    prop_oneof![
        150 => (asks(), sent_at, who).prop_map(|(what, sent_at, who)| Step::Ask { what, sent_at, who }),
        8 => (resource.clone(), 0..=FOREIGN.len(), foreign_ttl.clone())
            .prop_map(|(resource, value, ttl_ms)| Step::Foreign { resource, value, ttl_ms }),
        4 => (resource.clone(), foreign_ttl).prop_map(|(resource, ttl_ms)| Step::Expire { resource, ttl_ms }),
        4 => resource.prop_map(|resource| Step::Delete { resource }),
        1 => Just(Step::FlushAll),
        1 => Just(Step::Evict),
        1 => Just(Step::ResetStatistics),
        1 => any::<bool>().prop_map(|keeps_memory| Step::Restart { keeps_memory }),
        1 => Just(Step::ClockWasAhead),
        8 => prop::collection::vec(filled(), 1..4).prop_map(|entries| Step::Heal { entries }),
        5 => Just(Step::Wait),
    ]
}

fn modes() -> impl Strategy<Value = usize> {
    prop_oneof![6 => Just(0_usize), 3 => Just(1_usize), 3 => Just(2_usize), 1 => Just(3_usize), 1 => Just(4_usize)]
}

/// Steps of few resources, of which each has shared leases or permits most of the time.
pub fn member_steps() -> impl Strategy<Value = Step> {
    let (r, t, a) = (0..RESOURCES.len(), 0..4_u64, 0..4_u64);
    let mode = prop::option::weighted(0.8, modes());
    let attempts = prop::collection::vec(0..4_u64, 0..5);
    let proposed = prop_oneof![4 => Just(FenceKind::Any), 1 => fences()];
    let kinds = prop_oneof![
        8 => modes().prop_map(|mode| FilledKind::CopyMember { mode }),
        2 => Just(FilledKind::Copy),
        3 => Just(FilledKind::Block),
        1 => Just(FilledKind::Foreign { value: 1 }),
        1 => Just(FilledKind::Revoked),
        1 => Just(FilledKind::Cancelled),
    ];
    let entries = (kinds, r.clone(), t.clone(), prop::collection::vec(0..4_u64, 1..3), lease_ms(), fences())
        .prop_map(|(kind, resource, token, attempts, ms, fence)| Filled { kind, resource, token, attempts, ms, fence });
    let asks = prop_oneof![
        90 => (r.clone(), t.clone(), a.clone(), lease_ms(), modes(), proposed).prop_map(
            |(resource, token, attempt, ms, mode, proposed)| {
                Ask::AcquireShared { resource, token, attempt, ms, mode, proposed }
            }
        ),
        20 => (r.clone(), t.clone(), a.clone(), lease_ms())
            .prop_map(|(resource, token, attempt, ms)| Ask::Acquire { resource, token, attempt, ms }),
        40 => (prop::sample::subsequence((0..RESOURCES.len()).collect::<Vec<_>>(), 1..=2), t.clone(), a.clone(), lease_ms(), prop::bool::weighted(0.7))
            .prop_map(|(resources, token, attempt, ms, is_shared)| Ask::AcquireSet { resources, token, attempt, ms, is_shared }),
        40 => (r.clone(), t.clone(), prop::option::of(lease_ms()), fences(), update_kinds(), edited_labels())
            .prop_map(|(resource, token, ms, fence, kind, labels)| Ask::Update { resource, token, ms, fence, kind, labels }),
        20 => (r.clone(), t.clone(), attempts)
            .prop_map(|(resource, token, attempts)| Ask::Downgrade { resource, token, attempts }),
        8 => (r.clone(), t.clone(), 1..4_u64, prop::option::of(modes()), prop::bool::weighted(0.3)).prop_map(
            |(resource, token, since, mode, is_withdrawn)| Ask::Intent { resource, token, since, mode, is_withdrawn }
        ),
        16 => (r.clone(), t.clone(), lease_ms(), fences(), mode)
            .prop_map(|(resource, token, ms, fence, mode)| Ask::Restore { resource, token, ms, fence, mode }),
        30 => (r.clone(), t.clone(), a).prop_map(|(resource, token, attempt)| Ask::Cancel { resource, token, attempt }),
        16 => (r.clone(), t.clone()).prop_map(|(resource, token)| Ask::Release { resource, token, forced: false }),
        6 => (r.clone(), t).prop_map(|(resource, token)| Ask::Revoke { resource, token }),
        2 => r.clone().prop_map(|resource| Ask::DeleteForeign { resource, sees: true }),
        16 => r.clone().prop_map(|resource| Ask::Inspect { resource }),
        8 => r.clone().prop_map(|resource| Ask::Kept { resource }),
        4 => Just(Ask::Read),
    ];
    let sent_at = prop_oneof![
        20 => Just(SentAtKind::Now),
        6 => (-4_000_000..4_000_000_i64).prop_map(SentAtKind::SlightlyOff),
    ];
    prop_oneof![
        150 => (asks, sent_at).prop_map(|(what, sent_at)| Step::Ask { what, sent_at, who: Who::Us }),
        1 => (r.clone(), 0..=FOREIGN.len()).prop_map(|(resource, value)| Step::Foreign { resource, value, ttl_ms: Some(20_000) }),
        2 => r.prop_map(|resource| Step::Delete { resource }),
        6 => prop::collection::vec(entries, 1..4).prop_map(|entries| Step::Heal { entries }),
        8 => Just(Step::Wait),
    ]
}
