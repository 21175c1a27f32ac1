//! The page of the waiters of all instances, oldest first, with the holders that they wait for.

use askama::Template;

use super::format;
use super::layout::Layout;
use super::paging::Paging;
use crate::manager::overview::{ListedWaiter, Overview};
use crate::manager::types::{CycleEdge, Deadlock};

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
    /// The owner label, encoded for a query.
    pub owner_query: String,
    /// How long it has been waiting.
    pub waiting: String,
    /// The same in milliseconds.
    pub waiting_ms: u64,
    /// Owner label of the holder; empty if there is none.
    pub holder: String,
    /// Whether a lease on the resource is listed.
    pub is_held: bool,
}

/// One deadlock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadlockRow {
    /// Who waits for what, and who holds it; only what the client may read, and at least one.
    pub links: Vec<DeadlockLink>,
    /// Number of further links.
    pub hidden: usize,
    /// For how long it has been known.
    pub age: String,
    /// The same in milliseconds.
    pub age_ms: u64,
}

/// One owner of a deadlock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadlockLink {
    /// Owner label of the waiter.
    pub owner: String,
    /// The resource that it waits for.
    pub resource: String,
    /// Owner label of its holder.
    pub holder: String,
}

/// `may_read`: which links are shown.
pub(crate) fn deadlock_rows(deadlocks: &[Deadlock], may_read: impl Fn(&CycleEdge) -> bool) -> Vec<DeadlockRow> {
    deadlocks.iter().filter_map(|deadlock| deadlock_row(deadlock, &may_read)).collect()
}

fn deadlock_row(deadlock: &Deadlock, may_read: impl Fn(&CycleEdge) -> bool) -> Option<DeadlockRow> {
    let link = |edge: &CycleEdge| DeadlockLink {
        owner: format::visible(&edge.owner),
        resource: edge.waits_for.to_string(),
        holder: format::visible(&edge.held_by),
    };
    let links: Vec<_> = deadlock.cycle.iter().filter(|edge| may_read(edge)).map(link).collect();
    let hidden = deadlock.cycle.len() - links.len();
    let (age, age_ms) = (format::clock(deadlock.age), format::ms(deadlock.age));
    (!links.is_empty()).then_some(DeadlockRow { links, hidden, age, age_ms })
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "waiters.html")]
pub(crate) struct WaitersPage {
    layout: Layout,
    deadlocks: Vec<DeadlockRow>,
    rows: Vec<WaiterRow>,
    resources: usize,
    /// Waiters of other instances that are only counted.
    further: usize,
    waiters_known: bool,
    instance: String,
    paging: Paging,
}

impl WaitersPage {
    /// `waiting`: oldest first. `may_read`: which links of deadlocks are shown.
    pub(crate) fn new(
        layout: Layout,
        overview: &Overview,
        waiting: &[ListedWaiter],
        page: usize,
        deadlocks: &[Deadlock],
        may_read: impl Fn(&CycleEdge) -> bool,
    ) -> Self {
        let paging = Paging::new(waiting.len(), page, "/ui/waiters".to_owned());
        let row = |q: &ListedWaiter| {
            let lease = overview.leases.leases.get(&q.resource).filter(|lease| lease.left > overview.age);
            WaiterRow {
                resource: q.resource.to_string(),
                instance: q.instance.to_string(),
                is_here: q.instance == overview.instance,
                position: q.position,
                owner: format::visible(&q.owner),
                owner_query: format::query(&q.owner),
                waiting: format::clock(q.waiting),
                waiting_ms: format::ms(q.waiting),
                holder: lease.map(|l| format::visible(&l.record.labels().owner)).unwrap_or_default(),
                is_held: lease.is_some(),
            }
        };
        let rows = waiting[paging.from..paging.to].iter().map(row).collect();
        Self {
            layout,
            deadlocks: deadlock_rows(deadlocks, may_read),
            rows,
            resources: overview.waiting.len(),
            further: overview.total_waiting().saturating_sub(waiting.len()),
            waiters_known: overview.waiters_known,
            instance: overview.instance.to_string(),
            paging,
        }
    }
}
