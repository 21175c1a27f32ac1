//! Who waits at this instance, the longest first, and who is in the way. Knows no request.

use askama::Template;

use super::format;
use super::layout::Layout;
use super::paging::Paging;
use crate::manager::overview::{ListedWaiter, Overview};

/// One waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterRow {
    /// For what.
    pub resource: String,
    /// 1 is next.
    pub position: usize,
    /// Who, made visible; empty where it gave no name.
    pub owner: String,
    /// Since how long.
    pub waiting: String,
    /// The same. Milliseconds.
    pub waiting_ms: u64,
    /// Who has it, made visible; empty where nobody is listed.
    pub holder: String,
    /// Whether a lease of somebody without a name is in the way.
    pub is_held: bool,
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "waiters.html")]
pub struct WaitersPage {
    layout: Layout,
    rows: Vec<WaiterRow>,
    resources: usize,
    paging: Paging,
}

impl WaitersPage {
    /// The page; `queued` is the oldest first.
    pub fn new(layout: Layout, overview: &Overview, queued: &[ListedWaiter], page: usize) -> Self {
        let paging = Paging::new(queued.len(), page, "/ui/waiters".to_owned());
        let row = |q: &ListedWaiter| {
            let lease = overview.leases.leases.get(&q.resource).filter(|lease| lease.left > overview.age);
            WaiterRow {
                resource: q.resource.to_string(),
                position: q.position,
                owner: format::visible(&q.owner),
                waiting: format::clock(q.waiting),
                waiting_ms: format::ms(q.waiting),
                holder: lease.map(|l| format::visible(&l.record.labels().owner)).unwrap_or_default(),
                is_held: lease.is_some(),
            }
        };
        let rows = queued[paging.from..paging.to].iter().map(row).collect();
        Self { layout, rows, resources: overview.waiting.len(), paging }
    }
}
