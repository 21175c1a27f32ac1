//! Exchanges waiters with one node: sends what this instance publishes, and reads what the others have published
//! since. No vote depends on it.

use std::time::Duration;

use super::clock::Clock;
use super::engine::Redlock;
use super::node::Node;
use super::random::Entropy;
use super::round::Until;
use crate::protocol::{ListedEntry, Reply, Request, WaitersArgs};

/// Maximum number of pages, of 8 entries each, that are read at a time; the next exchange continues from there.
const PAGES_MAX: u32 = 16;
/// Timeout of one page.
const PAGE_TIMEOUT: Duration = Duration::from_millis(500);

/// How an exchange with one node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitersExchange {
    /// Whether the entry was stored; false if there was none.
    pub is_published: bool,
    /// Where the next exchange with this node continues.
    pub cursor: u64,
    /// Whether everything up to now was read.
    pub is_complete: bool,
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Publishes `args.entry` on one node and passes the entries that others have published there since `args.cursor`
    /// to `take`. `None` if the node did not answer.
    ///
    /// Cancel: the entry may be stored.
    pub async fn exchange_waiters(
        &self,
        index: usize,
        mut args: WaitersArgs,
        take: impl Fn(ListedEntry),
    ) -> Option<WaitersExchange> {
        let mut exchange = WaitersExchange { is_published: false, cursor: args.cursor, is_complete: false };
        for _ in 0..PAGES_MAX {
            let (now, request) = (self.clock.now(), Request::Waiters(args.clone()));
            let mut tally = self.round(&[index], request, now, now.plus(PAGE_TIMEOUT), Until::All, Result::is_ok).await;
            let Some(Ok(Reply::Waiters(page))) = tally.take(index) else { return None };
            page.entries.into_iter().for_each(&take);
            exchange.is_published |= page.is_published;
            exchange.cursor = page.cursor;
            (args.entry, args.cursor) = (None, page.cursor);
            if !page.has_more {
                exchange.is_complete = true;
                break;
            }
        }
        Some(exchange)
    }
}
