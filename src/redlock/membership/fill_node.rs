//! Fills a process that forgot: reads what a quorum of others stores, and writes it into the process
//! (`docs/views.md`, *Changing the view*, step 5 and the first half of step 6). The caller has installed the view on
//! the others before, and admits the process afterwards.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::fill_plan::{Fill, FillPlan};
use crate::mutant::{self, Mutant};
use crate::protocol::{FillArgs, NodeResult, ReadArgs, ReadEntry, Reply, Request, View};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::round::Until;
use crate::types::Fence;

/// Number of keys that one page of a read walks. A page occupies the node for about a millisecond.
const READ_KEYS: u32 = 500;
/// Maximum number of pages of one read: 50 million keys.
const READ_PAGES_MAX: u32 = 100_000;
/// Maximum number of entries that are kept of one node, and of the bytes of their values: what an honest node has for
/// a million leases with their tombstones. A node with more counts as not read.
const READ_ENTRIES_MAX: usize = 2_000_000;
const READ_BYTES_MAX: usize = 256 * 1_024 * 1_024;
/// How long reading the other nodes may take once enough nodes were read.
const READ_GRACE: Duration = Duration::from_secs(5);
/// By how much a fence that a node shows may exceed the nodes' time and all other fences: higher fences would use up
/// the numbers. Microseconds; a month.
const FENCE_AHEAD_MAX_US: u64 = 30 * 24 * 60 * 60 * 1_000_000;
/// Timeout of one page.
const PAGE_TIMEOUT: Duration = Duration::from_millis(500);
/// How often a page is requested. Reading changes nothing, and a page of a fill is applied once.
const PAGE_TRIES: u32 = 3;

/// A process that has received every page of a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filled {
    /// Drawn for each fill, so that pages of two fills are not mixed.
    pub(crate) nonce: u64,
    /// The number of pages of the fill.
    pub(crate) pages: u32,
    /// Every later fence of the process must be above this one.
    pub(crate) seed: Fence,
}

/// What one node knows.
#[derive(Debug)]
pub(super) struct NodePages {
    node: usize,
    pages: Vec<ReadPage>,
    /// Whether the node sent its last page.
    is_complete: bool,
}

impl NodePages {
    /// The highest fence that the node shows anywhere.
    fn highest(&self) -> Fence {
        let fence = |entry: &ReadEntry| match entry {
            ReadEntry::Lease { record, .. } => record.fence,
            _ => Fence(0),
        };
        let pages =
            self.pages.iter().map(|(high_water, _, entries)| entries.iter().map(fence).fold(*high_water, Fence::max));
        pages.max().unwrap_or(Fence(0))
    }
}

/// The time limit for nodes that are read at the same time.
struct ReadLimits {
    end: Mutex<BootTime>,
    /// How many more nodes are needed.
    left: Mutex<usize>,
}

impl ReadLimits {
    fn note_complete(&self, now: BootTime) {
        let mut left = self.left.lock();
        if *left == 1 {
            let mut end = self.end.lock();
            *end = now.plus(READ_GRACE).min(*end);
        }
        *left = left.saturating_sub(1);
    }
}

/// Bytes of an entry's values.
fn value_bytes(entry: &ReadEntry) -> usize {
    match entry {
        ReadEntry::Lease { record, .. } => record.labels.len() + record.claims.len(),
        ReadEntry::Foreign { value, .. } => value.as_ref().map_or(0, |value| value.len()),
        ReadEntry::Block { claims, .. } => claims.len(),
        ReadEntry::Tombstone(_) => 0,
    }
}

/// A page of what a node knows, with its highest fence and its clock.
type ReadPage = (Fence, u64, Vec<ReadEntry>);

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// What these nodes know, in the view that they have installed. They are read at the same time, each completely if possible.
    /// Once `least` were, the others have a few seconds: an endless read would stop all nodes while the list changes.
    pub(super) async fn read_all(&self, readers: &[usize], least: usize, view: &Arc<View>) -> Vec<NodePages> {
        let limits =
            ReadLimits { end: Mutex::new(self.clock.now().plus(self.params().quarantine)), left: Mutex::new(least) };
        let read = join_all(readers.iter().map(|index| self.read_node(*index, view, &limits))).await;
        let pages = readers.iter().zip(read);
        pages.map(|(index, (pages, is_complete))| NodePages { node: *index, pages, is_complete }).collect()
    }

    /// Fills node `target` with what the others know. `None`: fewer than `least` of them were read, or the target did
    /// not accept a page.
    ///
    /// Cancel: the target has some pages, and no vote; another fill begins anew.
    pub(super) async fn fill_with(
        &self,
        read: &[NodePages],
        least: usize,
        target: usize,
        view: &Arc<View>,
    ) -> Option<Filled> {
        let without_ttl = self.params().quarantine;
        let voted = view.old().map_or_else(|| self.size_in(view), |old| old.names.len());
        let (mut plan, mut keeps) = (FillPlan::new(voted, target, without_ttl).of_at_least(least), false);
        if let Some(old) = view.old() {
            let name = self.nodes[target].id();
            let run = view.entry(name).map(|entry| &entry.run);
            // Only a process that was read as the others were keeps what it knew.
            let was_there = read.iter().any(|of| of.node == target && of.is_complete);
            keeps = was_there && old.before.get(name).map(|(run, _)| run) == run;
            plan = plan.for_change(keeps);
            if let (Some(terms), Some(former)) = (view.terms(), &old.terms) {
                plan = plan.lengthened(terms.lock_delay.saturating_sub(former.lock_delay));
            }
        }
        for NodePages { node, pages, is_complete } in read.iter().filter(|pages| self.is_plausible(pages, read)) {
            for (high_water, now_us, entries) in pages {
                plan.add(*node, *high_water, *now_us, entries.clone());
            }
            if *is_complete || mutant::is(Mutant::PartOfPages) {
                plan.complete(*node);
            }
        }
        let Fill { seed, pages } = plan.finish()?;
        let (nonce, count) = (self.entropy.bits(), u32::try_from(pages.len()).ok()?);
        for (page, entries) in (1..).zip(pages) {
            let request = Request::Fill(FillArgs { view: Arc::clone(view), nonce, page, pages: count, keeps, entries });
            let is_taken = |answer: &NodeResult| matches!(answer, Ok(Reply::Filled { done }) if *done >= page);
            self.ask_for_page(target, request, view, is_taken).await?;
        }
        Some(Filled { nonce, pages: count, seed })
    }

    /// Whether the node's fences are not far above the nodes' time and the fences of the others.
    fn is_plausible(&self, pages: &NodePages, read: &[NodePages]) -> bool {
        let others = read.iter().filter(|other| other.node != pages.node).map(NodePages::highest);
        let known = others.fold(Fence(self.cluster_clock.request_time().0), Fence::max);
        let is_plausible = pages.highest().0 <= known.0.saturating_add(FENCE_AHEAD_MAX_US);
        if !is_plausible {
            let node = self.nodes[pages.node].id();
            tracing::error!(%node, "this node shows fences far beyond the nodes' time: nobody is filled with what it shows");
        }
        is_plausible
    }

    /// Every page of one node, and whether these are all. Takes at most a quarantine, after which the target needs no fill.
    async fn read_node(&self, index: usize, view: &Arc<View>, limits: &ReadLimits) -> (Vec<ReadPage>, bool) {
        let (mut pages, mut cursor, mut count, mut bytes) = (Vec::new(), 0, 0, 0);
        for _ in 0..READ_PAGES_MAX {
            if self.clock.now() >= *limits.end.lock() {
                break;
            }
            let request = Request::Read(ReadArgs { cursor, count: READ_KEYS });
            let is_page = |answer: &NodeResult| matches!(answer, Ok(Reply::Knowledge { .. }));
            match self.ask_for_page(index, request, view, is_page).await {
                Some(Reply::Knowledge { next, high_water, now_us, entries }) => {
                    count += entries.len();
                    bytes += entries.iter().map(value_bytes).sum::<usize>();
                    if count > READ_ENTRIES_MAX || bytes > READ_BYTES_MAX {
                        break;
                    }
                    pages.push((high_water, now_us, entries));
                    match next {
                        Some(next) => cursor = next,
                        None => {
                            limits.note_complete(self.clock.now());
                            return (pages, true);
                        }
                    }
                }
                _ => break,
            }
        }
        (pages, false)
    }

    /// `None`: the node did not answer in time, or answered something else.
    async fn ask_for_page(
        &self,
        index: usize,
        request: Request,
        view: &Arc<View>,
        is_page: impl Fn(&NodeResult) -> bool,
    ) -> Option<Reply> {
        for _ in 0..PAGE_TRIES {
            let now = self.clock.now();
            let deadline = now.plus(PAGE_TIMEOUT);
            let mut tally =
                self.round(&[index], request.clone().in_view(view), now, deadline, Until::All, &is_page).await;
            match tally.take(index) {
                Some(answer) if is_page(&answer) => return answer.ok(),
                Some(Err(_)) | None => {}
                Some(Ok(_)) => return None,
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "fill_node_tests.rs"]
mod tests;
