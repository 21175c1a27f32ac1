//! The page of the waiters of all instances, oldest first, with the holders that they wait for.

use askama::Template;

use super::format;
use super::layout::Layout;
use super::paging::Paging;
use crate::manager::overview::{ListedWaiter, Overview};

/// One waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaiterRow {
    /// Name of the resource.
    pub resource: String,
    /// Name of the instance where it waits.
    pub instance: String,
    /// Whether that is the one that shows the page.
    pub is_here: bool,
    /// Position in that instance's queue, from 1.
    pub position: usize,
    /// Owner label; empty if it gave none.
    pub owner: String,
    /// How long it has been waiting.
    pub waiting: String,
    /// The same in milliseconds.
    pub waiting_ms: u64,
    /// Owner label of the holder; empty if there is none.
    pub holder: String,
    /// Whether a lease on the resource is listed.
    pub is_held: bool,
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "waiters.html")]
pub(crate) struct WaitersPage {
    layout: Layout,
    rows: Vec<WaiterRow>,
    resources: usize,
    /// Waiters of other instances that are only counted.
    further: usize,
    waiters_known: bool,
    instance: String,
    paging: Paging,
}

impl WaitersPage {
    /// `waiting`: oldest first.
    pub(crate) fn new(layout: Layout, overview: &Overview, waiting: &[ListedWaiter], page: usize) -> Self {
        let paging = Paging::new(waiting.len(), page, "/ui/waiters".to_owned());
        let row = |q: &ListedWaiter| {
            let lease = overview.leases.leases.get(&q.resource).filter(|lease| lease.left > overview.age);
            WaiterRow {
                resource: q.resource.to_string(),
                instance: q.instance.to_string(),
                is_here: q.instance == overview.instance,
                position: q.position,
                owner: format::visible(&q.owner),
                waiting: format::clock(q.waiting),
                waiting_ms: format::ms(q.waiting),
                holder: lease.map(|l| format::visible(&l.record.labels().owner)).unwrap_or_default(),
                is_held: lease.is_some(),
            }
        };
        let rows = waiting[paging.from..paging.to].iter().map(row).collect();
        Self {
            layout,
            rows,
            resources: overview.waiting.len(),
            further: overview.total_waiting().saturating_sub(waiting.len()),
            waiters_known: overview.waiters_known,
            instance: overview.instance.to_string(),
            paging,
        }
    }
}
