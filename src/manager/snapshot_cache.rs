//! The last snapshot of the held leases: read from the nodes on demand and with a minimum interval, or in the background.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::lease_snapshot::{LeaseChange, ListedChange, Snapshot, take};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::ResourceName;

/// Reading may take one part in this many of the time: a snapshot is used this many times as long as reading it took.
const REFRESH_PAUSE: u32 = 10;
/// An unused snapshot is dropped after this time.
const SNAPSHOT_IDLE: Duration = Duration::from_mins(5);
/// A reading that takes this long is not waited for: the last snapshot answers at once, and is read anew in the background, also
/// while nobody asks.
const SLOW_READING: Duration = Duration::from_millis(200);
/// Up to this age.
const SLOW_MAX_AGE: Duration = Duration::from_mins(5);
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

    /// Whether reading takes so long that nobody waits for it.
    fn is_slow(&self) -> bool {
        self.took >= SLOW_READING
    }

    /// What is answered at once: not older than `max_age`, or what is left of a slow reading.
    fn at_once(&mut self, now: BootTime, max_age: Duration) -> Option<Arc<Snapshot>> {
        self.ask(now);
        let max_age = if self.is_slow() { SLOW_MAX_AGE } else { max_age };
        let latest = self.latest(now, max_age);
        self.overview_at = self.overview_at.max(Some(now).filter(|_| self.is_slow()));
        latest
    }

    /// Whether the nodes are to be read although nobody waits for it.
    fn is_due(&mut self, now: BootTime) -> bool {
        if self.is_slow() {
            self.recording_since.get_or_insert(now);
        }
        let is_within = |at: Option<BootTime>, period| at.is_some_and(|at| now.since(at) <= period);
        let max_age = COUNT_MAX_AGE.max(self.took * COUNT_PAUSE);
        let is_stale = self.count.as_ref().is_none_or(|count| now.since(count.taken) >= max_age);
        let is_counted = self.is_slow() || is_within(self.scraped_at, COUNT_LINGER);
        let is_missing = self.is_slow() && self.latest.is_none();
        is_within(self.overview_at, OVERVIEW_LINGER) || is_stale && is_counted || is_missing
    }

    /// Ends the recording of changes. Returns what is to be dropped, which takes a while, so not under the lock.
    fn forget(&mut self) -> impl Sized + use<> {
        (self.recording_since, self.applied) = (None, 0);
        (self.latest.take(), std::mem::take(&mut self.changes))
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
        let latest = self.state.lock().at_once(engine.clock.now(), Duration::ZERO);
        match latest {
            Some(snapshot) => snapshot,
            None => self.fresh(engine, has_no_vote).await,
        }
    }

    async fn fresh<N: Node, C: Clock, E: Entropy>(
        &self,
        engine: &Redlock<N, C, E>,
        has_no_vote: impl Fn() -> u64,
    ) -> Arc<Snapshot> {
        let _taking = self.taking.lock().await;
        let now = engine.clock.now();
        let (latest, is_asked) = {
            let mut state = self.state.lock();
            let max_age = self.refresh.max(state.took * REFRESH_PAUSE);
            let is_asked = state.recording_since.is_some();
            // Nobody knows yet how long the first reading takes: if it is slow, it is kept, which needs the changes since.
            state.recording_since.get_or_insert(now);
            (state.latest(now, max_age), is_asked)
        };
        if let Some(snapshot) = latest {
            return snapshot;
        }
        let fresh = Arc::new(take(engine, now, has_no_vote).await);
        let (held, oldest_at_ms) = fresh.count(engine.terms().lock_delay);
        let mut state = self.state.lock();
        state.count = Some(LeaseCount { held, oldest_at_ms, taken: now });
        state.took = fresh.took;
        if !is_asked && !state.is_slow() && state.asked_at < now {
            state.forget();
        }
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
            state.overview_at = Some(now);
            state.at_once(now, OVERVIEW_MAX_AGE)
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

    /// Takes a snapshot repeatedly while pages are read, metrics scraped, or reading takes long. Never returns; dropping it stops it.
    pub(crate) async fn keep_fresh<N: Node, C: Clock, E: Entropy>(
        &self,
        engine: &Redlock<N, C, E>,
        has_no_vote: impl Fn() -> u64,
    ) {
        loop {
            engine.clock.sleep(self.refresh).await;
            let now = engine.clock.now();
            if self.state.lock().is_due(now) {
                self.fresh(engine, &has_no_vote).await;
            }
        }
    }

    /// Drops a snapshot that has not been used lately.
    pub(crate) fn sweep(&self, now: BootTime) {
        let Ok(_idle) = self.taking.try_lock() else { return };
        let mut state = self.state.lock();
        if now.since(state.asked_at) <= SNAPSHOT_IDLE || state.is_slow() {
            return;
        }
        let stale = state.forget();
        drop(state);
        drop(stale);
    }
}

#[cfg(test)]
#[path = "snapshot_cache_tests.rs"]
mod tests;
