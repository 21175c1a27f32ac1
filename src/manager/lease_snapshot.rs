//! The held leases of the whole cluster at one time, for lists, pages and metrics, as the nodes show them. Leases that this
//! instance granted, extended and ended since are merged in, so that a list never contradicts what its reader has just done.

use std::collections::BTreeMap;
use std::sync::OnceLock;
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

/// Number of leases that are merged before the task yields: some hundred microseconds.
const MERGED_PER_YIELD: usize = 250;

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
    pub(super) took: Duration,
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

    pub(super) fn apply(&mut self, ListedChange { resource, change, .. }: &ListedChange) {
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
    pub(super) fn count(&self, lock_delay: Duration) -> (Option<usize>, [Option<u64>; 2]) {
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

/// Such a change, and when it was made.
#[derive(Debug)]
pub(super) struct ListedChange {
    pub(super) at: BootTime,
    pub(super) resource: ResourceName,
    pub(super) change: LeaseChange,
}

/// Reads the nodes.
///
/// Cancel: nothing is left behind.
pub(super) async fn take<N: Node, C: Clock, E: Entropy>(
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
        // The labels are parsed here, between two yields: counting needs all of them at once.
        for one in lease.iter().flat_map(|(_, lease)| lease.all()) {
            one.labels();
        }
        leases.extend(lease);
    }
    let read = usize::try_from((members & !doubtful).count_ones()).unwrap_or(0);
    let took = engine.clock.now().since(now);
    Snapshot { leases, taken: now, complete: read >= engine.quorum(), took }
}
