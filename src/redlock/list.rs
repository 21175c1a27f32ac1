//! Reads one node's index of held leases, page by page. The caller merges the lists of several nodes.

use std::time::Duration;

use parking_lot::Mutex;

use super::clock::Clock;
use super::engine::Redlock;
use super::node::Node;
use super::random::Entropy;
use super::round::Until;
use crate::protocol::{ListArgs, ListedLease, Reply, Request, StoredLock};
use crate::types::ResourceName;

/// Leases per page; a page takes a node half a millisecond.
const PAGE: u32 = 250;
/// Maximum number of pages of one scan: 10 million leases.
const PAGES_MAX: u32 = 40_000;
/// Timeout of one page.
const PAGE_TIMEOUT: Duration = Duration::from_millis(500);
/// How many leases beyond twice a quorum's number one node may list: it may lie, and its pages would never end.
const LEASES_AHEAD_MAX: usize = 10_000;
/// A page counts as at least `PAGE_COUNTS` leases, and each `BYTES_PER_LEASE` of labels as one more.
const PAGE_COUNTS: usize = 25;
const BYTES_PER_LEASE: usize = 1 << 10;
/// How long a scan that is ahead of the others pauses before it checks again.
const PAUSE: Duration = Duration::from_millis(5);

/// Scans of the nodes that run together, so that no scan gets far ahead of a quorum of them.
#[derive(Debug)]
pub struct ScanProgress {
    quorum: usize,
    /// For each node, how much it has listed, and whether its scan has ended.
    nodes: Mutex<Vec<(usize, bool)>>,
}

impl ScanProgress {
    /// Progress of the scans of these nodes.
    pub fn new(nodes: &[usize], quorum: usize) -> Self {
        let mut all = Vec::new();
        all.resize(nodes.iter().max().map_or(0, |last| last + 1), (0, true));
        nodes.iter().for_each(|node| all[*node].1 = false);
        Self { quorum, nodes: Mutex::new(all) }
    }

    fn count(&self, node: usize, page: &[ListedLease]) {
        let bytes: usize = page.iter().map(|lease| lease.record.labels.len()).sum();
        self.nodes.lock()[node].0 += page.len().max(PAGE_COUNTS) + bytes / BYTES_PER_LEASE;
    }

    fn end(&self, node: usize) {
        self.nodes.lock()[node].1 = true;
    }

    /// Whether the node may be asked for another page; `None`: not before the others have listed more.
    fn may_go_on(&self, node: usize) -> Option<bool> {
        let nodes = self.nodes.lock();
        let mut listed: Vec<usize> = nodes.iter().map(|(listed, _)| *listed).collect();
        listed.sort_unstable_by(|a, b| b.cmp(a));
        let of_quorum = listed.get(self.quorum - 1).copied().unwrap_or(0);
        if nodes[node].0 <= of_quorum.saturating_mul(2).saturating_add(LEASES_AHEAD_MAX) {
            return Some(true);
        }
        let is_final = nodes.iter().enumerate().all(|(i, (_, has_ended))| *has_ended || i == node);
        is_final.then_some(false)
    }
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Passes every lease of one node to `take`, some of them twice. `false` if the node did not answer every page,
    /// or lists far more than a quorum does.
    pub async fn scan(&self, index: usize, progress: &ScanProgress, take: impl Fn(Vec<ListedLease>)) -> bool {
        let is_read = self.scan_pages(index, progress, take).await.is_some();
        progress.end(index);
        is_read
    }

    async fn scan_pages(&self, index: usize, progress: &ScanProgress, take: impl Fn(Vec<ListedLease>)) -> Option<()> {
        let mut cursor = 0;
        for _ in 0..PAGES_MAX {
            let request = Request::List(ListArgs { cursor, count: PAGE });
            let Reply::Page { next, mut leases, unread } = self.ask_of_list(index, request).await? else { return None };
            for resource in unread {
                leases.extend(self.listed_members(index, resource).await?);
            }
            progress.count(index, &leases);
            take(leases);
            // Embedded nodes answer at once: let other tasks run between two pages.
            tokio::task::yield_now().await;
            let Some(next) = next else { return Some(()) };
            loop {
                match progress.may_go_on(index) {
                    Some(true) => break,
                    Some(false) => return None,
                    None => self.clock.sleep(PAUSE).await,
                }
            }
            cursor = next;
        }
        None
    }

    /// The members of a lock that a page lists without its members.
    async fn listed_members(&self, index: usize, resource: ResourceName) -> Option<Vec<ListedLease>> {
        let request = Request::Inspect { resource: resource.clone() };
        let Reply::Inspected(inspection) = self.ask_of_list(index, request).await? else { return None };
        let StoredLock::Members(members) = inspection.lock else { return Some(Vec::new()) };
        let listed = |(record, left_ms)| ListedLease { resource: resource.clone(), record, left_ms };
        Some(members.into_iter().map(listed).collect())
    }

    async fn ask_of_list(&self, index: usize, request: Request) -> Option<Reply> {
        let now = self.clock.now();
        let mut tally = self.round(&[index], request, now, now.plus(PAGE_TIMEOUT), Until::All, Result::is_ok).await;
        tally.take(index)?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_minority_lists_far_more_than_a_quorum() {
        let progress = ScanProgress::new(&[0, 1, 2], 2);
        let list = |node, pages| (0..pages).for_each(|_| progress.count(node, &[]));
        list(0, LEASES_AHEAD_MAX / PAGE_COUNTS);
        assert_eq!(progress.may_go_on(0), Some(true));
        list(0, 1);
        assert_eq!(progress.may_go_on(0), None, "the others may list as many");
        list(1, 1);
        assert_eq!(progress.may_go_on(0), Some(true), "two have listed a page");
        list(0, 2);
        progress.end(1);
        assert_eq!(progress.may_go_on(0), None);
        progress.end(2);
        assert_eq!(progress.may_go_on(0), Some(false), "nobody lists more");
        let alone = ScanProgress::new(&[2], 1);
        (0..LEASES_AHEAD_MAX).for_each(|_| alone.count(2, &[]));
        assert_eq!(alone.may_go_on(2), Some(true), "a quorum by itself");
    }
}
