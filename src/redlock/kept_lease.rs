//! Values about a kept lease: its end as the nodes store it, and its outcome as [`super::kept_lease_renewal`] reports it.

use std::future::Future;

use super::clock::BootTime;
use crate::protocol::{EndReason, LeaseRecord};
use crate::types::{ResourceName, TokenHash};

/// How a kept lease ended, as far as this instance knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptEnd {
    /// Its time was over, and it was released.
    KeptOut,
    /// Somebody ended it.
    Ended(EndReason),
    /// It ran out, although its time was not over.
    Lost,
}

/// Who renewed a kept lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptBy {
    /// The instance that granted it, or changed its end.
    Granter,
    /// An instance that took it over.
    Adopter,
}

/// A kept lease, as an observer gets it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptView<'a> {
    pub resource: &'a ResourceName,
    /// Hash of its token.
    pub token: &'a TokenHash,
    /// The lease as this instance saw it last.
    pub record: &'a LeaseRecord,
}

/// Is called with what becomes of the leases that this instance keeps, and releases them.
pub(crate) trait KeptObserver: Send + Sync {
    /// A renewal was confirmed; the lease is promised until `deadline`.
    fn renewed(&self, lease: KeptView<'_>, by: KeptBy, deadline: BootTime);
    /// A renewal was not confirmed; it is tried again.
    fn not_renewed(&self, by: KeptBy);
    /// It is renewed no more. Not called where another instance knows how it ended.
    fn ended(&self, lease: KeptView<'_>, end: KeptEnd);
    /// Releases it. Whether a quorum has ended it.
    fn release(&self, resource: &ResourceName, token: &TokenHash) -> impl Future<Output = bool> + Send;
}

/// Until when a lease is kept, as the nodes show it; 0 where they do not. One of them may have missed the end, or lie about it:
/// a lease is not renewed, nor ended early, at the word of a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptTimes {
    /// What two nodes show at least, or the only one.
    pub(super) agreed_ms: u64,
    /// The latest that any shows.
    pub(super) latest_ms: u64,
}

impl KeptTimes {
    /// Of what each node shows, out of so many nodes.
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
