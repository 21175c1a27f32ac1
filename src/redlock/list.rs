//! Reads one node's index of held leases, page by page. The caller merges the lists of several nodes.

use std::time::Duration;

use super::clock::Clock;
use super::engine::Redlock;
use super::node::Node;
use super::random::Entropy;
use super::round::Until;
use crate::protocol::{ListArgs, ListedLease, Reply, Request};

/// Leases per page, which takes a node half a millisecond.
const PAGE: u32 = 250;
/// Maximum number of pages of one scan: 10 million leases.
const PAGES_MAX: u32 = 40_000;
/// Timeout of one page.
const PAGE_TIMEOUT: Duration = Duration::from_millis(500);

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Passes every lease of one node to `take`, some of them twice. `false` where the node did not answer
    /// every page.
    pub async fn scan(&self, index: usize, take: impl Fn(Vec<ListedLease>)) -> bool {
        let mut cursor = 0;
        for _ in 0..PAGES_MAX {
            let now = self.clock.now();
            let request = Request::List(ListArgs { cursor, count: PAGE });
            let mut tally = self.round(&[index], request, now, now.plus(PAGE_TIMEOUT), Until::All, Result::is_ok).await;
            match tally.take(index) {
                Some(Ok(Reply::Page { next, leases })) => {
                    take(leases);
                    // Embedded nodes answer at once: let other tasks run between two pages.
                    tokio::task::yield_now().await;
                    match next {
                        Some(next) => cursor = next,
                        None => return true,
                    }
                }
                _ => return false,
            }
        }
        false
    }
}
