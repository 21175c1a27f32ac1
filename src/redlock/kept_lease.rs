//! Values about a kept lease: its end as the nodes store it, and its outcome as [`super::kept_lease_renewal`] reports it.

use std::future::Future;

use super::clock::BootTime;
use crate::protocol::{EndReason, LeaseRecord};
use crate::types::{ResourceName, TokenHash};

/// How a kept lease ended, as far as this instance knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptEnd {
    /// The time for which it was kept is over, and it was released.
    KeptOut,
    /// It was ended for this reason.
    Ended(EndReason),
    /// It expired before the time for which it was to be kept was over.
    Lost,
}

/// The instance that renewed a kept lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptBy {
    /// The instance that granted the lease, or changed its end.
    Granter,
    /// An instance that took the lease over.
    Adopter,
}

/// A kept lease, as an observer receives it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptView<'a> {
    pub resource: &'a ResourceName,
    /// Hash of the lease's token.
    pub token: &'a TokenHash,
    /// The lease as this instance last saw it.
    pub record: &'a LeaseRecord,
}

/// Is notified of the outcomes of the leases that this instance keeps, and releases them.
pub(crate) trait KeptObserver: Send + Sync {
    /// A renewal was confirmed; the lease is promised until `deadline`.
    fn renewed(&self, lease: KeptView<'_>, by: KeptBy, deadline: BootTime);
    /// A renewal was not confirmed; it is tried again.
    fn not_renewed(&self, by: KeptBy);
    /// The lease is no longer renewed. Not called if another instance knows how the lease ended.
    fn ended(&self, lease: KeptView<'_>, end: KeptEnd);
    /// Releases the lease. Returns whether a quorum has ended it.
    fn release(&self, resource: &ResourceName, token: &TokenHash) -> impl Future<Output = bool> + Send;
}

/// Until when a lease is kept, as the nodes show it; 0 if they do not. One node may have missed the end, or lie about
/// it: no lease is renewed or ended early on the word of a single node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptTimes {
    /// The end that at least two nodes show, or the only node.
    pub(super) agreed_ms: u64,
    /// The latest end that any node shows.
    pub(super) latest_ms: u64,
}

impl KeptTimes {
    /// From the end that each node shows, out of `nodes` nodes.
    pub(super) fn of(mut ends: Vec<u64>, nodes: usize) -> Self {
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let at = |place: usize| ends.get(place).copied().unwrap_or(0);
        Self { agreed_ms: at(usize::from(nodes > 1)), latest_ms: at(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nodes_word_neither_prolongs_nor_ends_a_kept_lease() {
        let times = |ends: &[u64], nodes| {
            let KeptTimes { agreed_ms, latest_ms } = KeptTimes::of(ends.to_vec(), nodes);
            (agreed_ms, latest_ms)
        };
        assert_eq!(times(&[7], 1), (7, 7), "the only node");
        assert_eq!(times(&[7, 0, 7], 3), (7, 7), "one has missed it");
        assert_eq!(times(&[7, 900, 7], 3), (7, 900), "not renewed beyond 7");
        assert_eq!(times(&[7, 900, 0], 3), (7, 900));
        assert_eq!(times(&[7, 1, 7], 3), (7, 7), "not ended at 1");
        assert_eq!(times(&[7], 3), (0, 7), "one of three");
        assert_eq!(times(&[], 3), (0, 0));
    }
}
