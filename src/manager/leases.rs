//! What this instance knows of held leases: those that it granted itself (for the time left in a
//! failed extend, and for counting), and a snapshot of the whole cluster's (for lists and pages),
//! which is refreshed on demand, at most so often, and never on the path of an acquire.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use super::list_merge::Merge;
use crate::protocol::LeaseRecord;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::entropy::Entropy;
use crate::redlock::node::Node;
use crate::types::{ResourceName, TokenHash};

/// The most leases of its own that an instance remembers; beyond it a failed extend cannot say what
/// is left of the old promise.
const OWN_LEASES_MAX: usize = 1_000_000;
/// Of these, how many are remembered with their names, so that their ends can be told: some megabytes.
const NAMED_MAX: usize = 20_000;
/// A refresh may take at most this share of the time: the pause after it is so many times as long.
const REFRESH_REST: u32 = 10;
/// A snapshot that nobody asked for is dropped after this time.
const SNAPSHOT_IDLE: Duration = Duration::from_mins(5);
/// Leases that are merged before others have their turn: some hundred microseconds.
const TURN: usize = 500;
/// A snapshot of this age is still shown while a fresh one is taken, so that no page waits for the
/// nodes; its age stands on the page.
const OVERVIEW_MAX_AGE: Duration = Duration::from_secs(30);
/// For so long after the last overview the snapshot is kept fresh.
const GLANCE_LINGER: Duration = Duration::from_mins(1);

/// Leases granted or extended by this instance that are still running.
#[derive(Default)]
pub struct OwnLeases {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    deadlines: HashMap<Key, Own>,
    named: usize,
}

struct Own {
    deadline: BootTime,
    /// When this instance first gave a promise for it.
    since: BootTime,
    /// Only where its end is to be told.
    named: Option<Box<(ResourceName, TokenHash)>>,
}

impl Book {
    fn put(&mut self, key: Key, own: Own) {
        self.named += usize::from(own.named.is_some());
        if let Some(old) = self.deadlines.insert(key, own) {
            self.named -= usize::from(old.named.is_some());
        }
    }
}

/// What a [`OwnLeases::sweep`] found.
#[derive(Debug, Default)]
pub struct Swept {
    /// Of those that have run out, the named ones.
    pub over: Vec<(ResourceName, TokenHash)>,
    /// Since when the oldest of those that still run is promised.
    pub oldest: Option<BootTime>,
}

/// Half of a token's hash: 128 bits are enough to tell leases apart, in 16 bytes.
type Key = [u8; 16];

fn key(token: &TokenHash) -> Key {
    let hex = token.as_str().as_bytes();
    std::array::from_fn(|i| nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]))
}

fn nibble(digit: u8) -> u8 {
    if digit.is_ascii_digit() { digit - b'0' } else { digit - b'a' + 10 }
}

impl OwnLeases {
    /// A promise was given at `now`. [`Self::sweep`] gives its name back when it has run out, unless
    /// `NAMED_MAX` others have one already.
    pub fn note(&self, token: &TokenHash, deadline: BootTime, now: BootTime, resource: &ResourceName) {
        let (mut book, key) = (self.lock(), key(token));
        let known = book.deadlines.get(&key).map(|own| (own.since, own.named.is_some()));
        if known.is_some() || book.deadlines.len() < OWN_LEASES_MAX {
            let has_name = known.is_some_and(|(_, is_named)| is_named) || book.named < NAMED_MAX;
            let named = has_name.then(|| Box::new((resource.clone(), token.clone())));
            book.put(key, Own { deadline, since: known.map_or(now, |(since, _)| since), named });
        }
    }

    /// It is over. Since when it was promised here, where it was.
    pub fn forget(&self, token: &TokenHash) -> Option<BootTime> {
        let mut book = self.lock();
        let own = book.deadlines.remove(&key(token))?;
        book.named -= usize::from(own.named.is_some());
        Some(own.since)
    }

    /// What is left of it, where this instance gave it.
    pub fn valid_for(&self, token: &TokenHash, now: BootTime) -> Option<Duration> {
        self.lock().deadlines.get(&key(token)).map(|own| own.deadline.since(now))
    }

    /// How many are running, as of the last [`Self::sweep`].
    pub fn count(&self) -> usize {
        self.lock().deadlines.len()
    }

    /// Drops those that have run out, each told to `lapsed` with the time from its first promise to
    /// the end of its last.
    pub fn sweep(&self, now: BootTime, mut lapsed: impl FnMut(Duration)) -> Swept {
        let (mut book, mut swept) = (self.lock(), Swept::default());
        let deadlines = &mut book.deadlines;
        deadlines.retain(|_, own| {
            let runs = own.deadline > now;
            if runs {
                swept.oldest = Some(swept.oldest.map_or(own.since, |oldest| oldest.min(own.since)));
                return true;
            }
            lapsed(own.deadline.since(own.since));
            swept.over.extend(own.named.take().map(|named| *named));
            false
        });
        if deadlines.capacity() > 1_024 && deadlines.len() < deadlines.capacity() / 4 {
            deadlines.shrink_to_fit();
        }
        book.named -= swept.over.len();
        swept
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease in the snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotLease {
    /// As the first node that was heard has it.
    pub record: LeaseRecord,
    /// The q-th largest TTL of its key when the snapshot was taken.
    pub left: Duration,
}

/// The held leases of the whole cluster at one time.
#[derive(Debug)]
pub struct Snapshot {
    /// By name.
    pub leases: BTreeMap<ResourceName, SnapshotLease>,
    /// When it was begun.
    pub taken: BootTime,
    /// A quorum of nodes told all they have.
    pub complete: bool,
    took: Duration,
    facts: OnceLock<Vec<LabelSummary>>,
}

/// What lists are sorted and filtered by, read out of a lease's labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct LabelSummary {
    /// Who the holder says it is.
    #[serde(rename = "o", default)]
    pub owner: Box<str>,
    /// When it was granted, on the wall clock of the instance that gave it. Milliseconds since 1970.
    #[serde(rename = "t", default)]
    pub acquired_at_ms: u64,
}

impl Snapshot {
    /// Of these leases, without a round behind it: for tests of those who show it.
    pub fn of(leases: BTreeMap<ResourceName, SnapshotLease>, taken: BootTime, complete: bool) -> Self {
        Self { leases, taken, complete, took: Duration::ZERO, facts: OnceLock::new() }
    }

    /// With those leases only that `seen` lets through.
    pub fn only(&self, seen: impl Fn(&ResourceName) -> bool) -> Self {
        let leases = self.leases.iter().filter(|(name, _)| seen(name)).map(|(n, l)| (n.clone(), l.clone())).collect();
        Self { leases, taken: self.taken, complete: self.complete, took: self.took, facts: OnceLock::new() }
    }

    /// The facts of each lease, in the order of `leases`: read once for all pages that show it.
    pub fn facts(&self) -> &[LabelSummary] {
        let read = |lease: &SnapshotLease| serde_json::from_str(&lease.record.labels).unwrap_or_default();
        self.facts.get_or_init(|| self.leases.values().map(read).collect())
    }
}

/// Keeps one snapshot.
pub struct Snapshots {
    /// Held by who takes one.
    taking: tokio::sync::Mutex<()>,
    state: Mutex<Kept>,
    refresh: Duration,
}

#[derive(Default)]
struct Kept {
    latest: Option<Arc<Snapshot>>,
    asked: BootTime,
    glanced: Option<BootTime>,
}

impl Snapshots {
    /// A snapshot is used for `refresh`, or longer where taking it takes long.
    pub fn new(refresh: Duration) -> Self {
        Self { taking: tokio::sync::Mutex::new(()), state: Mutex::default(), refresh }
    }

    /// The current snapshot, taken now where the last one is too old. All who ask meanwhile share it.
    ///
    /// Cancel: the next one who asks takes it.
    pub async fn get<N: Node, C: Clock, E: Entropy>(&self, engine: &Redlock<N, C, E>) -> Arc<Snapshot> {
        self.lock().asked = engine.clock.now();
        self.fresh(engine).await
    }

    async fn fresh<N: Node, C: Clock, E: Entropy>(&self, engine: &Redlock<N, C, E>) -> Arc<Snapshot> {
        let _taking = self.taking.lock().await;
        let now = engine.clock.now();
        if let Some(snapshot) = &self.lock().latest
            && now.since(snapshot.taken) < self.refresh.max(snapshot.took * REFRESH_REST)
        {
            return Arc::clone(snapshot);
        }
        let fresh = Arc::new(take(engine, now).await);
        // A large one takes a while to drop: not under the lock.
        let stale = self.lock().latest.replace(Arc::clone(&fresh));
        drop(stale);
        fresh
    }

    /// What there is, if it is not older than half a minute; else as [`Self::get`]. For pages: those
    /// that are looked at have [`Self::keep_fresh`] to work for them, and never wait for the nodes.
    ///
    /// Cancel: as there.
    pub async fn overview<N: Node, C: Clock, E: Entropy>(&self, engine: &Redlock<N, C, E>) -> Arc<Snapshot> {
        let now = engine.clock.now();
        let latest = {
            let mut kept = self.lock();
            (kept.asked, kept.glanced) = (now, Some(now));
            kept.latest.clone()
        };
        match latest {
            Some(snapshot) if now.since(snapshot.taken) <= OVERVIEW_MAX_AGE => snapshot,
            _ => self.fresh(engine).await,
        }
    }

    /// Takes a snapshot again and again while pages are looked at. Never returns; dropping it stops it.
    pub async fn keep_fresh<N: Node, C: Clock, E: Entropy>(&self, engine: &Redlock<N, C, E>) {
        loop {
            engine.clock.sleep(self.refresh).await;
            let glanced = self.lock().glanced;
            if glanced.is_some_and(|at| engine.clock.now().since(at) <= GLANCE_LINGER) {
                self.fresh(engine).await;
            }
        }
    }

    /// Frees the memory of a snapshot that nobody has asked for lately.
    pub fn sweep(&self, now: BootTime) {
        let mut kept = self.lock();
        let stale = (now.since(kept.asked) > SNAPSHOT_IDLE).then(|| kept.latest.take());
        drop(kept);
        drop(stale);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn take<N: Node, C: Clock, E: Entropy>(engine: &Redlock<N, C, E>, now: BootTime) -> Snapshot {
    let merging = Mutex::new(Merge::of(engine.nodes.len()));
    let hear = &|node, page| merging.lock().unwrap_or_else(PoisonError::into_inner).hear(node, page);
    let scans = (0..engine.nodes.len()).map(|node| engine.scan(node, move |page| hear(node, page)));
    let told = futures_util::future::join_all(scans).await.into_iter().filter(|ok| *ok).count();
    let merged = merging.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut leases = BTreeMap::new();
    for (i, lease) in merged.held(engine.quorum(), engine.nodes.len() - told).enumerate() {
        if i % TURN == TURN - 1 {
            tokio::task::yield_now().await;
        }
        leases.extend(lease);
    }
    Snapshot {
        leases,
        taken: now,
        complete: told >= engine.quorum(),
        took: engine.clock.now().since(now),
        facts: OnceLock::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(digit: &str) -> TokenHash {
        TokenHash::parse(&digit.repeat(64)).expect("hex")
    }

    #[test]
    fn own_leases_are_known_until_they_run_out() {
        let (own, at) = (OwnLeases::default(), |s| BootTime::default().plus(Duration::from_secs(s)));
        let name = ResourceName::parse("x").expect("valid");
        own.note(&token("a"), at(9), at(1), &name);
        own.note(&token("a"), at(10), at(3), &name);
        own.note(&token("b"), at(20), at(2), &name);
        assert_eq!(own.valid_for(&token("a"), at(4)), Some(Duration::from_secs(6)));
        assert_eq!(own.valid_for(&token("c"), at(4)), None);
        let mut lapsed = Vec::new();
        let swept = own.sweep(at(10), |held| lapsed.push(held));
        assert_eq!((swept.over, swept.oldest), (vec![(name, token("a"))], Some(at(2))));
        assert_eq!(lapsed, [Duration::from_secs(9)], "from the first promise to the end of the last");
        assert_eq!((own.count(), own.valid_for(&token("a"), at(10))), (1, None));
        assert_eq!((own.forget(&token("b")), own.forget(&token("b"))), (Some(at(2)), None));
        assert_eq!((own.count(), own.lock().named), (0, 0));
    }

    #[test]
    fn facts_are_read_from_labels_in_the_order_of_names() {
        let lease = |labels: &str| {
            let value = format!("{}|000000|1000|7|p,|{labels}", "a".repeat(64));
            let record = LeaseRecord::parse(value.as_bytes()).expect("a record");
            SnapshotLease { record, left: Duration::from_secs(1) }
        };
        let name = |name| ResourceName::parse(name).expect("valid");
        let long = r#"{"o":"ci \"7\"","n":"x","m":{"o":"no"},"t":5}"#;
        let leases = [(name("b"), lease(long)), (name("a"), lease("{}")), (name("c"), lease("|nonsense"))];
        let snapshot = Snapshot::of(leases.into(), BootTime::default(), true);
        let facts = snapshot.facts().iter().map(|f| (&*f.owner, f.acquired_at_ms)).collect::<Vec<_>>();
        assert_eq!(facts, [("", 0), ("ci \"7\"", 5), ("", 0)]);
    }

    #[test]
    fn keys_are_the_first_half_of_the_hash() {
        assert_eq!(key(&TokenHash::parse(&"0f".repeat(32)).expect("hex")), [0x0f; 16]);
    }
}
