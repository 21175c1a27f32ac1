//! One independent node as the algorithm sees it: ordered requests, typed answers, and the record
//! that a lock's value carries. Redis, embedded and simulated nodes implement [`Node`]; the answers
//! mean the same on each (`tests/contract.rs` holds them to it). Knows no wire format but the
//! lock's value, and no quorum.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::feed::Hearing;
use super::types::{AttemptId, Fence, Labels, NodeId, ResourceName, TokenHash, Ttl};

/// The most attempts that may claim one lease: replays of one `POST`. More are refused.
pub const MAX_CLAIMS: usize = 16;
/// How long a release is remembered, so that a late duplicate of its acquire cannot come back.
pub const TOKEN_TOMBSTONE: Duration = Duration::from_secs(60);
/// A renewal count stops here: it has six digits in the lock's value.
pub const MAX_RENEWALS: u32 = 999_999;

/// What all instances over one set of nodes must agree on, and what each script is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Fingerprint of node names, guard, lock delay, fence TTL and key template. A node that has another one
    /// does not vote for us.
    pub cluster: Arc<str>,
    /// Clock offset, or age of a request, beyond which a node does not vote.
    pub guard: Duration,
    /// Added to each TTL on the nodes, never promised.
    pub lock_delay: Duration,
    /// How long a node that lost its memory has no vote. See [`quarantine_for`].
    pub quarantine: Duration,
    /// How long an unused resource's fence counter is kept.
    pub fence_ttl: Duration,
}

impl Terms {
    /// How long the tombstone of an attempt stays: longer than an acquire can be late and still be
    /// accepted (`guard`, on a clock that may be off by `guard`).
    pub fn attempt_tombstone(&self) -> Duration {
        self.guard.saturating_mul(2).saturating_add(Duration::from_secs(1))
    }
}

/// ⌈1.01·(max_ttl + lock_delay)⌉ + 2·guard: every lease that a node may have voted for is over by
/// then, with clock rates up to 1 % apart.
pub fn quarantine_for(max_ttl: Duration, lock_delay: Duration, guard: Duration) -> Duration {
    let lease_ms = u64::try_from(max_ttl.saturating_add(lock_delay).as_millis()).unwrap_or(u64::MAX);
    let padded_ms = lease_ms.saturating_add(lease_ms.div_ceil(100));
    Duration::from_millis(padded_ms).saturating_add(guard.saturating_mul(2))
}

/// When a request was sent, on the instance's stamp clock (see [`super::stamp`]): microseconds
/// since 1970. Also the floor of the fences that the request may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

/// Why a lease was ended for good; kept on the nodes for [`TOKEN_TOMBSTONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// By its holder.
    Released,
    /// At once, by an operator.
    Forced,
    /// By an operator, when it ends: it may not be renewed any more.
    Revoked,
    /// One attempt, given up before it was granted.
    Cancelled,
}

impl EndReason {
    /// The word on the nodes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Forced => "forced",
            Self::Revoked => "revoked",
            Self::Cancelled => "cancelled",
        }
    }

    /// Reads the word from a node.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Released, Self::Forced, Self::Revoked, Self::Cancelled].into_iter().find(|r| r.as_str() == word)
    }
}

/// What is asked of a node. One request is one atomic script there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Take the resource if it is free, or join the lease that this token already has.
    /// Answers: [`Reply::Granted`], [`Reply::Held`], [`Reply::Dead`], [`Reply::TooManyClaims`], [`Reply::Barred`].
    Acquire { resource: ResourceName, token: TokenHash, attempt: AttemptId, ttl: Ttl, labels: Arc<str> },
    /// Extend, edit the labels, or write a fence back, where this token holds it. Never creates,
    /// never revives, never shortens what the node holds.
    /// Answers: [`Reply::Kept`], [`Reply::Missing`], [`Reply::Other`], [`Reply::Dead`], [`Reply::Future`],
    /// [`Reply::Barred`] (a quarantined node has extended all the same, but does not vote).
    Hold {
        resource: ResourceName,
        token: TokenHash,
        /// `None`: the lease's own TTL.
        ttl: Option<Ttl>,
        /// `None`: whichever the node has. Otherwise nodes below it are lifted to it.
        fence: Option<Fence>,
        /// Counts as a renewal (for people).
        renewal: bool,
        /// New labels, encoded.
        labels: Option<Arc<str>>,
    },
    /// Repair: put a lease back where it is missing. Only after an extend that has its quorum.
    /// Answers: [`Reply::Planted`], [`Reply::Other`], [`Reply::Dead`], [`Reply::Future`], [`Reply::Barred`].
    Plant { resource: ResourceName, record: LeaseRecord, left_ms: u64 },
    /// Withdraw one attempt's claim; the lease goes when no claim is left.
    /// Answers: [`Reply::Released`].
    Cancel { resource: ResourceName, token: TokenHash, attempt: AttemptId },
    /// End the lease of this token for good. Idempotent. Answers: [`Reply::Released`].
    Release { resource: ResourceName, token: TokenHash, reason: EndReason },
    /// No further renewals. Answers: [`Reply::Revoked`], [`Reply::Missing`], [`Reply::Other`].
    Revoke { resource: ResourceName, token: TokenHash },
    /// Delete a foreigner's lock if it still has this fingerprint. Answers: [`Reply::Released`].
    Evict { resource: ResourceName, fingerprint: Arc<str> },
    /// Look. Answers: [`Reply::Seen`].
    Inspect { resource: ResourceName },
    /// A page of the held leases. Answers: [`Reply::Page`]. A lease may be on two pages; one that is
    /// held throughout is on one at least.
    List { cursor: u64, count: u32 },
    /// State of the node itself. Answers: [`Reply::Status`].
    Probe,
    /// Declare a node that has never voted since it was blank part of a new cluster. Answers: [`Reply::Status`].
    Init,
    /// Take the node's vote until every lease it may have voted for is over; also hands the node to
    /// this instance's cluster fingerprint. Answers: [`Reply::Status`].
    Quarantine,
    /// Give the vote back to a node that has served its quarantine; `seed` is the highest fence of
    /// the others. Answers: [`Reply::Status`].
    Activate { seed: Fence },
}

impl Request {
    /// The verb, for metrics and logs.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Acquire { .. } => "acquire",
            Self::Hold { .. } => "extend",
            Self::Plant { .. } => "plant",
            Self::Cancel { .. } => "cancel",
            Self::Release { .. } => "release",
            Self::Revoke { .. } => "revoke",
            Self::Evict { .. } => "evict",
            Self::Inspect { .. } => "inspect",
            Self::List { .. } => "list",
            Self::Probe => "probe",
            Self::Init => "init",
            Self::Quarantine => "quarantine",
            Self::Activate { .. } => "activate",
        }
    }
}

/// Every verb that [`Request::verb`] can give.
pub const VERBS: [&str; 13] = [
    "acquire",
    "extend",
    "plant",
    "cancel",
    "release",
    "revoke",
    "evict",
    "inspect",
    "list",
    "probe",
    "init",
    "quarantine",
    "activate",
];

/// What a node answered. Which request may get which answer is said at [`Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A vote. `joined`: the token already held it here.
    Granted { fence: Fence, joined: bool },
    /// Somebody else has it. `left_ms` is the key's TTL, `None` for a foreign key without one;
    /// `record` is `None` for a foreigner's lock.
    Held { left_ms: Option<u64>, record: Option<LeaseRecord> },
    /// Extended. `record` is the lease as it stands now; `before_ms` what the key had left before.
    Kept { record: LeaseRecord, before_ms: u64 },
    /// The node has no such key.
    Missing,
    /// Somebody else's, or (with a fence) this token's next lease.
    Other { fence: Option<Fence> },
    /// This token's lease, or this attempt, was ended for good.
    Dead { reason: EndReason },
    /// More than [`MAX_CLAIMS`] attempts claim the lease.
    TooManyClaims,
    /// The fence lies further ahead than clocks may differ.
    Future,
    /// Repaired.
    Planted,
    /// Of a release, a cancel or an eviction.
    Released(Released),
    /// Renewals are refused from now on; the key ends in `left_ms`.
    Revoked { left_ms: u64 },
    /// This node has no vote.
    Barred(Barred),
    /// See [`Request::Inspect`].
    Seen(Seen),
    /// See [`Request::List`]. `next` is `None` at the end.
    Page { next: Option<u64>, leases: Vec<Listed> },
    /// See [`Request::Probe`].
    Status(NodeStatus),
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// What stood there.
    pub found: Found,
    /// The tombstone that an earlier release or revocation had left.
    pub earlier: Option<EndReason>,
}

/// What a release found in place of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The lease (or claim) itself; it is gone now.
    Mine,
    /// Nothing.
    Nothing,
    /// Another lease or a foreigner's lock, untouched.
    Other,
}

/// Why a node has no vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Barred {
    /// It may have forgotten leases that are still running.
    Quarantined { left_ms: u64 },
    /// Quarantine is over; the others have not yet told it their fences.
    Unseeded { high_water: Fence },
    /// The request was late, or one of the two clocks is off. `node_us` is the node's time,
    /// microseconds since 1970.
    ClockOff { node_us: u64 },
    /// It belongs to instances with another node list, guard, lock delay or key template.
    OtherCluster { theirs: String },
}

/// One node's view of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Why the node has no vote, if so.
    pub barred: Option<Barred>,
    /// What it holds.
    pub lock: SeenLock,
}

/// What stands at the lock's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeenLock {
    /// Nothing.
    Free,
    /// A lease of ours.
    Lease { record: LeaseRecord, left_ms: u64 },
    /// Somebody else's key: no TTL where `left_ms` is `None`. The fingerprint is a SHA-1 of the
    /// value, or `type:` and the key's type; the value itself is a secret of its holder.
    Foreign { left_ms: Option<u64>, fingerprint: Arc<str> },
}

/// One lease on one node's page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What is held.
    pub resource: ResourceName,
    /// By whom.
    pub record: LeaseRecord,
    /// The key's TTL on the node.
    pub left_ms: u64,
}

/// A node's own affairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// Whether it votes.
    pub vote: Vote,
    /// Its clock, microseconds since 1970.
    pub now_us: u64,
    /// The highest fence that it has seen.
    pub high_water: Fence,
    /// The process that answers: Redis' `run_id`.
    pub run: String,
    /// Why it entered its present state: `init`, `blank`, `restart`, `clock`, `evicted`, `ordered`; may be empty.
    pub why: String,
    /// Since when, on the node's clock. Microseconds since 1970, 0 if unknown.
    pub since_us: u64,
    /// End of the last quarantine on the node's clock. Microseconds since 1970, 0 if there was none.
    pub until_us: u64,
}

/// Whether a node votes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vote {
    /// It does.
    Active,
    /// It does not.
    Barred(Barred),
    /// Answer to an `Init` only: the node carries a marker already.
    AlreadyInitialised,
}

/// The lease as it stands in a lock's value:
/// `token hash|renewals (6 digits)|ttl_ms|fence|attempt,attempt,|labels`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Whose.
    pub token: TokenHash,
    /// How often it was extended, as far as the nodes counted.
    pub renewals: u32,
    /// The TTL it was acquired with.
    pub ttl: Ttl,
    /// Its fencing token here.
    pub fence: Fence,
    /// The attempts that claim it, each followed by a comma; `p,` once it was extended or planted.
    pub claims: Arc<str>,
    /// Encoded [`Labels`].
    pub labels: Arc<str>,
}

impl LeaseRecord {
    /// Reads a lock's value; `None` for a foreigner's.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let mut parts = text.splitn(6, '|');
        let token = TokenHash::parse(parts.next()?)?;
        let renewals = parts.next()?.parse().ok()?;
        let ttl = Ttl::from_ms(parts.next()?.parse().ok()?).ok()?;
        let fence = Fence(parts.next()?.parse().ok()?);
        let claims = parts.next()?.into();
        Some(Self { token, renewals, ttl, fence, claims, labels: parts.next()?.into() })
    }

    /// The lock's value.
    pub fn encode(&self) -> String {
        format!(
            "{}|{:06}|{}|{}|{}|{}",
            self.token.as_str(),
            self.renewals.min(MAX_RENEWALS),
            self.ttl.as_ms(),
            self.fence,
            self.claims,
            self.labels
        )
    }

    /// The labels; empty ones where they cannot be read.
    pub fn labels(&self) -> Labels {
        serde_json::from_str(&self.labels).unwrap_or_default()
    }
}

/// No usable answer from a node. The request may still have taken effect, or may yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {detail}")]
pub struct Unreachable {
    /// What kind, for metrics and for the caller.
    pub kind: UnreachableKind,
    /// For the log only: may name addresses.
    pub detail: Arc<str>,
}

impl Unreachable {
    /// An error with its detail for the log.
    pub fn new(kind: UnreachableKind, detail: impl Into<Arc<str>>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

/// Kinds of [`Unreachable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnreachableKind {
    /// No answer within the node timeout.
    Timeout,
    /// No connection; nothing was sent.
    Disconnected,
    /// The connection broke while the request was under way.
    Broken,
    /// More requests under way than the limit; nothing was sent.
    Overloaded,
    /// Wrong password, or not permitted.
    Auth,
    /// A replica.
    ReadOnly,
    /// Memory full.
    Full,
    /// Still loading its data, or busy in a script.
    Busy,
    /// Unfit to vote: see the node's findings. Nothing was sent.
    Unfit,
    /// An answer that is none.
    Protocol,
}

impl UnreachableKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Timeout,
        Self::Disconnected,
        Self::Broken,
        Self::Overloaded,
        Self::Auth,
        Self::ReadOnly,
        Self::Full,
        Self::Busy,
        Self::Unfit,
        Self::Protocol,
    ];

    /// The word in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::Broken => "broken",
            Self::Overloaded => "overloaded",
            Self::Auth => "auth",
            Self::ReadOnly => "read-only",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Unfit => "unfit",
            Self::Protocol => "protocol",
        }
    }
}

impl fmt::Display for UnreachableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One node's answer to one request.
pub type Answer = Result<Reply, Unreachable>;

/// What is known of the server behind a node, beside its votes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDetails {
    /// The server's version.
    pub version: Option<String>,
    /// What makes it unfit, or worth a look.
    pub findings: Vec<Finding>,
}

/// Something about a node that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Stable word.
    pub code: &'static str,
    /// One sentence, with what to do.
    pub detail: String,
    /// It costs the node its vote.
    pub bars: bool,
}

/// An independent master.
///
/// Ordering: requests for one resource take effect on the node in the order in which their futures
/// were first polled, for as long as the connection lives.
pub trait Node: Send + Sync + 'static {
    /// Its configured name.
    fn id(&self) -> &NodeId;

    /// What is known of the server behind it, for operators. Costs no round trip.
    fn details(&self) -> NodeDetails {
        NodeDetails::default()
    }

    /// How this instance hears of leases that end there. Without notices waiters look now and then.
    fn hearing(&self) -> Hearing<'_> {
        Hearing::Nothing
    }

    /// Asks once; nothing is ever repeated in hiding. The future is first polled by the caller; from
    /// then on the request may take effect, whatever becomes of the future.
    ///
    /// Errors: [`Unreachable`]; at once where there is no connection. The per-node deadline is the
    /// caller's.
    /// Cancel: the request may have taken effect or may do so later; undo it with
    /// [`Request::Cancel`] or [`Request::Release`], which travel behind it.
    fn call(self: Arc<Self>, stamp: Stamp, request: Arc<Request>) -> impl Future<Output = Answer> + Send + 'static;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_quarantine_outlasts_the_longest_lease_by_a_percent_and_two_guards() {
        let q = quarantine_for(Duration::from_mins(5), Duration::from_secs(1), Duration::from_millis(500));
        assert_eq!(q, Duration::from_millis(301_000 + 3_010 + 1_000));
        let saturated = quarantine_for(Duration::MAX, Duration::MAX, Duration::ZERO);
        assert_eq!(saturated, Duration::from_millis(u64::MAX));
    }

    #[test]
    fn foreign_values_are_not_leases() {
        let rslock = [0xff_u8; 20];
        let zeros = format!("{}|", "0".repeat(64));
        for foreign in [&b""[..], b"a3f1", &rslock, zeros.as_bytes(), &[b'|'; 80]] {
            assert_eq!(LeaseRecord::parse(foreign), None);
        }
    }

    #[test]
    fn every_verb_is_listed_once() {
        let mut verbs = VERBS.to_vec();
        verbs.sort_unstable();
        verbs.dedup();
        assert_eq!(verbs.len(), VERBS.len());
        assert!(VERBS.contains(&Request::Probe.verb()));
    }

    proptest! {
        #[test]
        fn a_record_comes_back_from_its_value(renewals in 0..=MAX_RENEWALS, ttl in 1u64..1 << 40, fence in 0u64..1 << 53, labels in ".{0,80}") {
            let record = LeaseRecord {
                token: TokenHash::parse(&"0f".repeat(32)).expect("hex"),
                renewals,
                ttl: Ttl::from_ms(ttl).expect("in range"),
                fence: Fence(fence),
                claims: "a0123456789abcdef,p,".into(),
                labels: labels.into(),
            };
            prop_assert_eq!(LeaseRecord::parse(record.encode().as_bytes()), Some(record));
        }

        #[test]
        fn parsing_any_bytes_never_panics(bytes: Vec<u8>) {
            let _ = LeaseRecord::parse(&bytes);
        }
    }
}
