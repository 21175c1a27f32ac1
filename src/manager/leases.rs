//! What this instance knows of held leases: those that it granted itself (for the time left after a failed
//! extend, and for counting), and a snapshot of those of the whole cluster (for lists and pages), which is
//! taken on demand and with a minimum interval.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;

use super::list_merge::ListMerge;
use crate::protocol::LeaseRecord;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::entropy::Entropy;
use crate::redlock::node::Node;
use crate::types::{ResourceName, TokenHash};

/// Maximum of own leases that are remembered; for further ones a failed extend cannot answer how much time
/// is left.
const OWN_LEASES_MAX: usize = 1_000_000;
/// Of these, the maximum that is remembered with resource and token, so that their expiry can be published:
/// some megabytes.
const NAMED_MAX: usize = 20_000;
/// Refreshing may take one part in this many of the time: a snapshot is used so many times as long as it took.
const REFRESH_PAUSE: u32 = 10;
/// A snapshot that nobody has asked for is dropped after this time.
const SNAPSHOT_IDLE: Duration = Duration::from_mins(5);
/// Leases that are merged before the task yields: some hundred microseconds.
const MERGED_PER_YIELD: usize = 500;
/// A snapshot of this age is still shown while a fresh one is taken, so that no page waits for the nodes;
/// the page shows its age.
const OVERVIEW_MAX_AGE: Duration = Duration::from_secs(30);
/// For so long after the last page the snapshot is kept fresh.
const OVERVIEW_LINGER: Duration = Duration::from_mins(1);

/// Leases granted or extended by this instance that are still running.
#[derive(Default)]
pub(crate) struct OwnLeases {
    state: Mutex<OwnState>,
}

#[derive(Default)]
struct OwnState {
    leases: HashMap<Key, OwnLease>,
    named: usize,
}

struct OwnLease {
    deadline: BootTime,
    /// When this instance first granted or extended it.
    since: BootTime,
    /// Only where its expiry is to be published.
    named: Option<Box<(ResourceName, TokenHash)>>,
}

impl OwnState {
    fn put(&mut self, key: Key, own: OwnLease) {
        self.named += usize::from(own.named.is_some());
        if let Some(old) = self.leases.insert(key, own) {
            self.named -= usize::from(old.named.is_some());
        }
    }
}

/// What [`OwnLeases::sweep`] found.
#[derive(Debug, Default)]
pub(crate) struct ExpiredLeases {
    /// Those that have run out and are remembered with their names.
    pub named: Vec<(ResourceName, TokenHash)>,
    /// When the oldest of those that still run was first granted or extended here.
    pub oldest_since: Option<BootTime>,
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
    /// A lease was granted or extended at `now`. [`Self::sweep`] returns its name when it has run out, unless
    /// `NAMED_MAX` others are named already.
    pub(crate) fn record(&self, token: &TokenHash, deadline: BootTime, now: BootTime, resource: &ResourceName) {
        let (mut state, key) = (self.state.lock(), key(token));
        let known = state.leases.get(&key).map(|own| (own.since, own.named.is_some()));
        if known.is_some() || state.leases.len() < OWN_LEASES_MAX {
            let has_name = known.is_some_and(|(_, is_named)| is_named) || state.named < NAMED_MAX;
            let named = has_name.then(|| Box::new((resource.clone(), token.clone())));
            state.put(key, OwnLease { deadline, since: known.map_or(now, |(since, _)| since), named });
        }
    }

    /// The lease is over. When it was first granted or extended here, if it was.
    pub(crate) fn remove(&self, token: &TokenHash) -> Option<BootTime> {
        let mut state = self.state.lock();
        let own = state.leases.remove(&key(token))?;
        state.named -= usize::from(own.named.is_some());
        Some(own.since)
    }

    /// Time left until its deadline, where this instance granted or extended it.
    pub(crate) fn valid_for(&self, token: &TokenHash, now: BootTime) -> Option<Duration> {
        self.state.lock().leases.get(&key(token)).map(|own| own.deadline.since(now))
    }

    /// How many are running, as of the last [`Self::sweep`].
    pub(crate) fn count(&self) -> usize {
        self.state.lock().leases.len()
    }

    /// Removes those that have run out. `on_lapsed` gets for each the time from its first grant here to its
    /// last deadline.
    pub(crate) fn sweep(&self, now: BootTime, mut on_lapsed: impl FnMut(Duration)) -> ExpiredLeases {
        let (mut state, mut expired) = (self.state.lock(), ExpiredLeases::default());
        let leases = &mut state.leases;
        leases.retain(|_, own| {
            let runs = own.deadline > now;
            if runs {
                expired.oldest_since = Some(expired.oldest_since.map_or(own.since, |oldest| oldest.min(own.since)));
                return true;
            }
            on_lapsed(own.deadline.since(own.since));
            expired.named.extend(own.named.take().map(|named| *named));
            false
        });
        if leases.capacity() > 1_024 && leases.len() < leases.capacity() / 4 {
            leases.shrink_to_fit();
        }
        state.named -= expired.named.len();
        expired
    }
}

/// A lease in the snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotLease {
    /// As the first node that answered has it.
    pub record: LeaseRecord,
    /// The q-th largest TTL of its key when the snapshot was taken.
    pub left: Duration,
}

/// The held leases of the whole cluster at one time.
#[derive(Debug)]
pub struct Snapshot {
    /// By name.
    pub leases: BTreeMap<ResourceName, SnapshotLease>,
    /// When taking it began.
    pub taken: BootTime,
    /// A quorum of nodes was read to its end.
    pub complete: bool,
    took: Duration,
    labels: OnceLock<Vec<LabelSummary>>,
}

/// What lists are sorted and filtered by, from a lease's labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct LabelSummary {
    /// The owner that the holder names.
    #[serde(rename = "o", default)]
    pub owner: Box<str>,
    /// When it was granted, on the wall clock of the instance that did. Milliseconds since 1970.
    #[serde(rename = "t", default)]
    pub acquired_at_ms: u64,
}

impl Snapshot {
    /// Of these leases, without asking nodes: for tests of what shows a snapshot.
    pub fn of(leases: BTreeMap<ResourceName, SnapshotLease>, taken: BootTime, complete: bool) -> Self {
        Self { leases, taken, complete, took: Duration::ZERO, labels: OnceLock::new() }
    }

    /// Only the leases whose names `is_visible` accepts.
    pub fn only(&self, is_visible: impl Fn(&ResourceName) -> bool) -> Self {
        let leases =
            self.leases.iter().filter(|(name, _)| is_visible(name)).map(|(n, l)| (n.clone(), l.clone())).collect();
        Self { leases, taken: self.taken, complete: self.complete, took: self.took, labels: OnceLock::new() }
    }

    /// The labels of each lease, in the order of `leases`: parsed once for all pages that show them.
    pub fn labels(&self) -> &[LabelSummary] {
        let read = |lease: &SnapshotLease| serde_json::from_str(&lease.record.labels).unwrap_or_default();
        self.labels.get_or_init(|| self.leases.values().map(read).collect())
    }
}

/// The last snapshot, and when the next one is due.
pub(crate) struct Snapshots {
    /// Locked while one is taken.
    taking: tokio::sync::Mutex<()>,
    state: Mutex<SnapshotState>,
    refresh: Duration,
}

#[derive(Default)]
struct SnapshotState {
    latest: Option<Arc<Snapshot>>,
    asked_at: BootTime,
    overview_at: Option<BootTime>,
}

impl Snapshots {
    /// A snapshot is used for `refresh`, or longer where taking it took long.
    pub(crate) fn new(refresh: Duration) -> Self {
        Self { taking: tokio::sync::Mutex::new(()), state: Mutex::default(), refresh }
    }

    /// The current snapshot, taken now where the last one is too old. Concurrent calls share it.
    ///
    /// Cancel: the next call takes it.
    pub(crate) async fn get<N: Node, C: Clock, E: Entropy>(&self, engine: &Redlock<N, C, E>) -> Arc<Snapshot> {
        self.state.lock().asked_at = engine.clock.now();
        self.fresh(engine).await
    }

    async fn fresh<N: Node, C: Clock, E: Entropy>(&self, engine: &Redlock<N, C, E>) -> Arc<Snapshot> {
        let _taking = self.taking.lock().await;
        let now = engine.clock.now();
        if let Some(snapshot) = &self.state.lock().latest
            && now.since(snapshot.taken) < self.refresh.max(snapshot.took * REFRESH_PAUSE)
        {
            return Arc::clone(snapshot);
        }
        let fresh = Arc::new(take(engine, now).await);
        // A large one takes a while to drop, so not under the lock.
        let stale = self.state.lock().latest.replace(Arc::clone(&fresh));
        drop(stale);
        fresh
    }

    /// The last snapshot if it is not older than half a minute, else as [`Self::get`]. For pages, which do not
    /// wait for the nodes while [`Self::keep_fresh`] runs.
    ///
    /// Cancel: as there.
    pub(crate) async fn overview<N: Node, C: Clock, E: Entropy>(&self, engine: &Redlock<N, C, E>) -> Arc<Snapshot> {
        let now = engine.clock.now();
        let latest = {
            let mut state = self.state.lock();
            (state.asked_at, state.overview_at) = (now, Some(now));
            state.latest.clone()
        };
        match latest {
            Some(snapshot) if now.since(snapshot.taken) <= OVERVIEW_MAX_AGE => snapshot,
            _ => self.fresh(engine).await,
        }
    }

    /// Takes a snapshot repeatedly while pages are read. Never returns; dropping it stops it.
    pub(crate) async fn keep_fresh<N: Node, C: Clock, E: Entropy>(&self, engine: &Redlock<N, C, E>) {
        loop {
            engine.clock.sleep(self.refresh).await;
            let overview_at = self.state.lock().overview_at;
            if overview_at.is_some_and(|at| engine.clock.now().since(at) <= OVERVIEW_LINGER) {
                self.fresh(engine).await;
            }
        }
    }

    /// Drops a snapshot that nobody has asked for lately.
    pub(crate) fn sweep(&self, now: BootTime) {
        let mut state = self.state.lock();
        let stale = (now.since(state.asked_at) > SNAPSHOT_IDLE).then(|| state.latest.take());
        drop(state);
        drop(stale);
    }
}

async fn take<N: Node, C: Clock, E: Entropy>(engine: &Redlock<N, C, E>, now: BootTime) -> Snapshot {
    let merge = Mutex::new(ListMerge::new(engine.nodes.len()));
    let add_page = &|node, page| merge.lock().add_page(node, page);
    let scans = (0..engine.nodes.len()).map(|node| engine.scan(node, move |page| add_page(node, page)));
    let complete = futures_util::future::join_all(scans).await.into_iter().filter(|ok| *ok).count();
    let merged = merge.into_inner();
    let mut leases = BTreeMap::new();
    for (i, lease) in merged.held(engine.quorum(), engine.nodes.len() - complete).enumerate() {
        if i % MERGED_PER_YIELD == MERGED_PER_YIELD - 1 {
            tokio::task::yield_now().await;
        }
        leases.extend(lease);
    }
    Snapshot {
        leases,
        taken: now,
        complete: complete >= engine.quorum(),
        took: engine.clock.now().since(now),
        labels: OnceLock::new(),
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
        own.record(&token("a"), at(9), at(1), &name);
        own.record(&token("a"), at(10), at(3), &name);
        own.record(&token("b"), at(20), at(2), &name);
        assert_eq!(own.valid_for(&token("a"), at(4)), Some(Duration::from_secs(6)));
        assert_eq!(own.valid_for(&token("c"), at(4)), None);
        let mut lapsed = Vec::new();
        let expired = own.sweep(at(10), |held| lapsed.push(held));
        assert_eq!((expired.named, expired.oldest_since), (vec![(name, token("a"))], Some(at(2))));
        assert_eq!(lapsed, [Duration::from_secs(9)], "from the first grant to the last deadline");
        assert_eq!((own.count(), own.valid_for(&token("a"), at(10))), (1, None));
        assert_eq!((own.remove(&token("b")), own.remove(&token("b"))), (Some(at(2)), None));
        assert_eq!((own.count(), own.state.lock().named), (0, 0));
    }

    #[test]
    fn labels_are_parsed_in_the_order_of_names() {
        let lease = |labels: &str| {
            let value = format!("{}|000000|1000|7|p,|{labels}", "a".repeat(64));
            let record = LeaseRecord::parse(value.as_bytes()).expect("a record");
            SnapshotLease { record, left: Duration::from_secs(1) }
        };
        let name = |name| ResourceName::parse(name).expect("valid");
        let long = r#"{"o":"ci \"7\"","n":"x","m":{"o":"no"},"t":5}"#;
        let leases = [(name("b"), lease(long)), (name("a"), lease("{}")), (name("c"), lease("|nonsense"))];
        let snapshot = Snapshot::of(leases.into(), BootTime::default(), true);
        let labels = snapshot.labels().iter().map(|f| (&*f.owner, f.acquired_at_ms)).collect::<Vec<_>>();
        assert_eq!(labels, [("", 0), ("ci \"7\"", 5), ("", 0)]);
    }

    #[test]
    fn keys_are_the_first_half_of_the_hash() {
        assert_eq!(key(&TokenHash::parse(&"0f".repeat(32)).expect("hex")), [0x0f; 16]);
    }
}
