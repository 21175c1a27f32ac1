//! The held leases of the whole cluster, for lists, pages and metrics: read from the nodes on demand and with a
//! minimum interval. Leases that this instance granted, extended and ended since are merged in, so that a list never
//! contradicts what its reader has just done.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;

use super::list_merge::ListMerge;
use crate::protocol::LeaseRecord;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::list::ScanProgress;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{ResourceName, TokenHash};

/// Reading may take one part in this many of the time: a snapshot is used this many times as long as reading it took.
const REFRESH_PAUSE: u32 = 10;
/// An unused snapshot is dropped after this time.
const SNAPSHOT_IDLE: Duration = Duration::from_mins(5);
/// Number of leases that are merged before the task yields: some hundred microseconds.
const MERGED_PER_YIELD: usize = 500;
/// A snapshot up to this age is still shown while a fresh one is taken, so that no page waits for the nodes; the page
/// shows its age.
const OVERVIEW_MAX_AGE: Duration = Duration::from_secs(30);
/// For this long after the last page the snapshot is kept fresh.
const OVERVIEW_LINGER: Duration = Duration::from_mins(1);
/// Maximum number of changes of this instance that are kept until the next reading includes them: some megabytes.
/// Beyond it the oldest are dropped, and a list may lack them for the age that it shows.
const CHANGES_MAX: usize = 16_384;
/// The age at which the leases are counted again for metrics; longer if counting takes long, so that it uses at most
/// one per cent of the nodes' time.
const COUNT_MAX_AGE: Duration = Duration::from_secs(30);
const COUNT_PAUSE: u32 = 100;
/// For this long after the last scrape the leases are counted.
const COUNT_LINGER: Duration = Duration::from_mins(3);

/// A lease in the snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotLease {
    /// The record of the first node that answered.
    pub record: LeaseRecord,
    /// The q-th largest TTL of its key when the snapshot was taken; the largest if fewer than a quorum have it.
    pub left: Duration,
    /// Whether a quorum has it. Otherwise it may or may not be held: the other nodes do not answer or have no vote.
    pub is_confirmed: bool,
    /// Shared leases or permits that are held together with it.
    pub others: Vec<SnapshotLease>,
    labels: OnceLock<LabelSummary>,
}

/// The labels of a lease by which lists are sorted and filtered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct LabelSummary {
    /// The owner that the holder names.
    #[serde(rename = "o", default)]
    pub owner: Box<str>,
    /// When the lease was granted, on the wall clock of the granting instance. Milliseconds since 1970.
    #[serde(rename = "t", default)]
    pub acquired_at_ms: u64,
    /// Until when the service renews the lease; 0 if it does not. Milliseconds since 1970.
    #[serde(rename = "k", default)]
    pub kept_until_ms: u64,
}

impl SnapshotLease {
    /// A lease of the snapshot.
    pub fn new(record: LeaseRecord, left: Duration, is_confirmed: bool) -> Self {
        Self { record, left, is_confirmed, others: Vec::new(), labels: OnceLock::new() }
    }

    /// One of several leases that are held together, with the others; `None` without any.
    pub fn of_members(mut members: Vec<Self>) -> Option<Self> {
        members.sort_by_key(|lease| (lease.record.mode.slot(), lease.record.fence));
        let others = members.split_off(members.len().min(1));
        Some(Self { others, ..members.pop()? })
    }

    /// This lease and the leases that are held together with it.
    pub fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }

    /// The lease with the others, without those that `stays` rejects.
    fn only(mut self, stays: impl Fn(&Self) -> bool) -> Option<Self> {
        let mut members = std::mem::take(&mut self.others);
        members.push(self);
        members.retain(stays);
        Self::of_members(members)
    }

    /// The lease's labels, parsed once for all pages that show them.
    pub fn labels(&self) -> &LabelSummary {
        self.labels.get_or_init(|| serde_json::from_str(&self.record.labels).unwrap_or_default())
    }
}

/// The held leases of the whole cluster at one time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The leases by name; of leases that are held together, the first.
    pub leases: BTreeMap<ResourceName, SnapshotLease>,
    /// When reading began.
    pub taken: BootTime,
    /// Whether a quorum of voting nodes was read to its end.
    pub complete: bool,
    took: Duration,
}

impl Snapshot {
    /// A snapshot of these leases, for tests.
    pub fn of(leases: BTreeMap<ResourceName, SnapshotLease>, taken: BootTime, complete: bool) -> Self {
        Self { leases, taken, complete, took: Duration::ZERO }
    }

    /// Only the leases whose names `is_visible` accepts.
    pub fn only(&self, is_visible: impl Fn(&ResourceName) -> bool) -> Self {
        let visible = self.leases.iter().filter(|(name, _)| is_visible(name));
        Self { leases: visible.map(|(n, l)| (n.clone(), l.clone())).collect(), ..*self }
    }

    fn apply(&mut self, ListedChange { resource, change, .. }: &ListedChange) {
        let is = |token: &TokenHash, lease: &SnapshotLease| lease.record.token == *token;
        let is_listed = |token| self.leases.get(resource).is_some_and(|lease| lease.all().any(|one| is(token, one)));
        let listed = match change {
            LeaseChange::Ended(token) if is_listed(token) => {
                self.leases.remove(resource).and_then(|lease| lease.only(|one| !is(token, one)))
            }
            LeaseChange::Ended(_) => return,
            LeaseChange::Extended(record, _) if !is_listed(&record.token) => return,
            LeaseChange::Granted(record, until) | LeaseChange::Extended(record, until) => {
                let lease = SnapshotLease::new(record.clone(), until.since(self.taken), true);
                // Leases that cannot be held together with this one have ended.
                let stays = |one: &SnapshotLease| !is(&record.token, one) && record.mode.is_compatible(one.record.mode);
                let beside = self.leases.remove(resource).and_then(|lease| lease.only(stays));
                let beside = beside.into_iter().flat_map(|mut first| {
                    let mut members = std::mem::take(&mut first.others);
                    members.push(first);
                    members
                });
                SnapshotLease::of_members(beside.chain([lease]).collect())
            }
        };
        if let Some(listed) = listed {
            self.leases.insert(resource.clone(), listed);
        }
    }

    /// The number of leases that a quorum has, and when the oldest of them, and the oldest that the service does not
    /// keep, was granted; `None` if too few nodes were read.
    fn count(&self, lock_delay: Duration) -> (Option<usize>, [Option<u64>; 2]) {
        let all = || self.leases.values().flat_map(SnapshotLease::all);
        let held = all().filter(|lease| lease.is_confirmed && lease.left > lock_delay);
        let (mut count, mut oldest) = (0, [u64::MAX; 2]);
        for lease in held {
            let labels = lease.labels();
            count += 1;
            for (of, counts) in oldest.iter_mut().zip([true, labels.kept_until_ms == 0]) {
                if counts && labels.acquired_at_ms > 0 {
                    *of = labels.acquired_at_ms.min(*of);
                }
            }
        }
        let known = |at: u64| Some(at).filter(|at| *at < u64::MAX && self.complete);
        (self.complete.then_some(count), oldest.map(known))
    }
}

/// A change that this instance made to a lease, with its record and the end of its keys.
#[derive(Debug, Clone)]
pub(crate) enum LeaseChange {
    /// The lease was granted.
    Granted(LeaseRecord, BootTime),
    /// The lease was extended.
    Extended(LeaseRecord, BootTime),
    /// The lease was released, or ended by force.
    Ended(TokenHash),
}

#[derive(Debug)]
struct ListedChange {
    at: BootTime,
    resource: ResourceName,
    change: LeaseChange,
}

/// How many leases the cluster has, as of the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterLeases {
    /// Leases that a quorum has; `None` if fewer than a quorum of voting nodes were read.
    pub held: Option<usize>,
    /// How long the oldest of them has been held, by the wall clocks of two instances; zero without leases.
    pub longest_held: Duration,
    /// The same for leases that the service does not keep: their holders extend them.
    pub longest_unkept: Duration,
    /// How long ago the nodes were read.
    pub age: Duration,
}

struct LeaseCount {
    held: Option<usize>,
    /// When the oldest of all, and of those that are not kept, was granted.
    oldest_at_ms: [Option<u64>; 2],
    taken: BootTime,
}

/// The last snapshot, and when the next one is due.
pub(crate) struct Snapshots {
    /// Locked while a snapshot is taken.
    taking: tokio::sync::Mutex<()>,
    state: Mutex<SnapshotState>,
    refresh: Duration,
}

#[derive(Default)]
struct SnapshotState {
    latest: Option<Arc<Snapshot>>,
    /// Changes since the reading of the snapshot began.
    changes: VecDeque<ListedChange>,
    /// How many of these changes are in `latest` already.
    applied: usize,
    /// Since when changes are recorded; `None` while no lists are read.
    recording_since: Option<BootTime>,
    asked_at: BootTime,
    overview_at: Option<BootTime>,
    scraped_at: Option<BootTime>,
    count: Option<LeaseCount>,
    /// How long the last reading took.
    took: Duration,
}

impl SnapshotState {
    fn ask(&mut self, now: BootTime) {
        self.asked_at = now;
        self.recording_since.get_or_insert(now);
    }

    /// The latest snapshot with all changes, if it is not older than `max_age` and no later change is missing.
    fn latest(&mut self, now: BootTime, max_age: Duration) -> Option<Arc<Snapshot>> {
        let recorded_from = self.recording_since?;
        let latest = self.latest.as_mut().filter(|s| now.since(s.taken) <= max_age && s.taken >= recorded_from)?;
        if self.applied < self.changes.len() {
            // Copied only if a reader still has the former state.
            let snapshot = Arc::make_mut(latest);
            self.changes.range(self.applied..).for_each(|change| snapshot.apply(change));
            self.applied = self.changes.len();
        }
        Some(Arc::clone(latest))
    }
}

impl Snapshots {
    /// A snapshot is used for `refresh`, or longer if reading it took long.
    pub(crate) fn new(refresh: Duration) -> Self {
        Self { taking: tokio::sync::Mutex::new(()), state: Mutex::default(), refresh }
    }

    /// Records that this instance changed a lease at `now`. Cheap while no lists are read.
    pub(crate) fn record(&self, now: BootTime, resource: &ResourceName, change: impl FnOnce() -> LeaseChange) {
        let mut state = self.state.lock();
        if state.recording_since.is_none() {
            return;
        }
        if state.changes.len() == CHANGES_MAX {
            state.changes.pop_front();
            state.applied = state.applied.saturating_sub(1);
        }
        state.changes.push_back(ListedChange { at: now, resource: resource.clone(), change: change() });
    }

    /// The current snapshot, taken now if the last one is too old. Concurrent calls share it. `has_no_vote`: the
    /// nodes, one bit each, that may have forgotten leases.
    ///
    /// Cancel: the next call takes the snapshot.
    pub(crate) async fn get<N: Node, C: Clock, E: Entropy>(
        &self,
        engine: &Redlock<N, C, E>,
        has_no_vote: impl Fn() -> u64,
    ) -> Arc<Snapshot> {
        self.state.lock().ask(engine.clock.now());
        self.fresh(engine, has_no_vote).await
    }

    async fn fresh<N: Node, C: Clock, E: Entropy>(
        &self,
        engine: &Redlock<N, C, E>,
        has_no_vote: impl Fn() -> u64,
    ) -> Arc<Snapshot> {
        let _taking = self.taking.lock().await;
        let now = engine.clock.now();
        let latest = {
            let mut state = self.state.lock();
            let max_age = self.refresh.max(state.took * REFRESH_PAUSE);
            state.latest(now, max_age)
        };
        if let Some(snapshot) = latest {
            return snapshot;
        }
        let fresh = Arc::new(take(engine, now, has_no_vote).await);
        let (held, oldest_at_ms) = fresh.count(engine.terms().lock_delay);
        let mut state = self.state.lock();
        state.count = Some(LeaseCount { held, oldest_at_ms, taken: now });
        state.took = fresh.took;
        if state.recording_since.is_none_or(|since| since > now) {
            return fresh;
        }
        state.changes.retain(|change| change.at >= now);
        state.applied = 0;
        // A large snapshot takes a while to drop, so it is not dropped under the lock.
        let stale = state.latest.replace(fresh);
        let fresh = state.latest(now, Duration::MAX).expect("changes since it was taken are recorded");
        drop(state);
        drop(stale);
        fresh
    }

    /// The last snapshot if it is not older than half a minute, otherwise as [`Self::get`]. For pages, which do not
    /// wait for the nodes while [`Self::keep_fresh`] runs.
    ///
    /// Cancel: as `get`.
    pub(crate) async fn overview<N: Node, C: Clock, E: Entropy>(
        &self,
        engine: &Redlock<N, C, E>,
        has_no_vote: impl Fn() -> u64,
    ) -> Arc<Snapshot> {
        let now = engine.clock.now();
        let latest = {
            let mut state = self.state.lock();
            state.ask(now);
            state.overview_at = Some(now);
            state.latest(now, OVERVIEW_MAX_AGE)
        };
        match latest {
            Some(snapshot) => snapshot,
            None => self.fresh(engine, has_no_vote).await,
        }
    }

    /// The number of leases of the cluster, counted again from time to time while this is called; `None` until they
    /// were first counted. Asks no node. Units of `wall_ms`: milliseconds since 1970.
    pub(crate) fn count(&self, now: BootTime, wall_ms: u64) -> Option<ClusterLeases> {
        let mut state = self.state.lock();
        state.scraped_at = Some(now);
        let age = |at_ms: Option<u64>| Duration::from_millis(at_ms.map_or(0, |at| wall_ms.saturating_sub(at)));
        state.count.as_ref().map(|count| {
            let [longest_held, longest_unkept] = count.oldest_at_ms.map(age);
            ClusterLeases { held: count.held, longest_held, longest_unkept, age: now.since(count.taken) }
        })
    }

    /// Takes a snapshot repeatedly while pages are read or metrics scraped. Never returns; dropping it stops it.
    pub(crate) async fn keep_fresh<N: Node, C: Clock, E: Entropy>(
        &self,
        engine: &Redlock<N, C, E>,
        has_no_vote: impl Fn() -> u64,
    ) {
        loop {
            engine.clock.sleep(self.refresh).await;
            let now = engine.clock.now();
            let (is_read, is_count_due) = {
                let state = self.state.lock();
                let is_within = |at: Option<BootTime>, period| at.is_some_and(|at| now.since(at) <= period);
                let max_age = COUNT_MAX_AGE.max(state.took * COUNT_PAUSE);
                let is_stale = state.count.as_ref().is_none_or(|count| now.since(count.taken) >= max_age);
                let is_read = is_within(state.overview_at, OVERVIEW_LINGER);
                (is_read, is_stale && is_within(state.scraped_at, COUNT_LINGER))
            };
            if is_read || is_count_due {
                self.fresh(engine, &has_no_vote).await;
            }
        }
    }

    /// Drops a snapshot that has not been used lately.
    pub(crate) fn sweep(&self, now: BootTime) {
        let mut state = self.state.lock();
        if now.since(state.asked_at) <= SNAPSHOT_IDLE {
            return;
        }
        let stale = (state.latest.take(), std::mem::take(&mut state.changes));
        (state.recording_since, state.applied) = (None, 0);
        drop(state);
        drop(stale);
    }
}

async fn take<N: Node, C: Clock, E: Entropy>(
    engine: &Redlock<N, C, E>,
    now: BootTime,
    has_no_vote: impl Fn() -> u64,
) -> Snapshot {
    engine.index_now().await;
    let (listed, members) = (engine.everyone(), engine.members());
    let merge = Mutex::new(ListMerge::new(listed.len()));
    let add_page = &|node, page| merge.lock().add_page(node, page);
    let progress = &ScanProgress::new(&listed, engine.quorum());
    let scans = listed.iter().map(|node| engine.scan(*node, progress, move |page| add_page(*node, page)));
    let scans = futures_util::future::join_all(scans).await;
    // A node without a vote may have forgotten leases that it does not list.
    let unread =
        listed.iter().zip(&scans).filter(|(_, is_read)| !**is_read).fold(0_u64, |mask, (node, _)| mask | 1 << node);
    let doubtful = unread | has_no_vote();
    let merged = merge.into_inner();
    let mut leases = BTreeMap::new();
    for (i, lease) in merged.held(engine.quorum(), doubtful).enumerate() {
        if i % MERGED_PER_YIELD == MERGED_PER_YIELD - 1 {
            tokio::task::yield_now().await;
        }
        leases.extend(lease);
    }
    let read = usize::try_from((members & !doubtful).count_ones()).unwrap_or(0);
    let took = engine.clock.now().since(now);
    Snapshot { leases, taken: now, complete: read >= engine.quorum(), took }
}

#[cfg(test)]
#[path = "lease_snapshot_tests.rs"]
mod tests;
