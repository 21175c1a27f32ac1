//! Reading one node's index of held leases, page by page. Whoever merges several nodes' pages
//! decides what a quorum holds.

use std::collections::HashSet;
use std::time::Duration;

use super::clock::Clock;
use super::engine::Redlock;
use super::entropy::Entropy;
use super::node::{Listed, Node, Reply, Request};
use super::round::Until;
use super::types::ResourceName;

/// Leases asked for at once: a few hundred microseconds of a node's time.
const PAGE: u32 = 200;
/// The most pages of one scan: 10 million leases.
const PAGES_MAX: u32 = 50_000;
/// How long one page is waited for.
const PAGE_TIMEOUT: Duration = Duration::from_millis(500);

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Gives every lease of one node to `take`, with the set of names that this node has told so
    /// far. `false` where the node fell silent on the way.
    pub async fn scan(&self, index: usize, take: &impl Fn(Vec<Listed>, &mut HashSet<ResourceName>)) -> bool {
        let (mut cursor, mut seen) = (0, HashSet::new());
        for _ in 0..PAGES_MAX {
            let now = self.clock.now();
            let request = Request::List { cursor, count: PAGE };
            let mut tally = self.round(&[index], request, now, now.plus(PAGE_TIMEOUT), Until::All, Result::is_ok).await;
            match tally.take(index) {
                Some(Ok(Reply::Page { next, leases })) => {
                    take(leases, &mut seen);
                    // Nodes in the process answer at once: others are to have their turn between two pages.
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
