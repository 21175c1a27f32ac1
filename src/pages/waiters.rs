//! The page of the waiters of all instances, oldest first, with the holders that they wait for.

use askama::Template;

use super::format;
use super::layout::Layout;
use super::paging::Paging;
use super::table_query::TableQuery;
use crate::manager::overview::{ListedWaiter, Overview};
use crate::manager::tickets::listed::ListedTicket;
use crate::manager::types::{CycleEdge, Deadlock};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaiterRow {
    /// Name of the resource.
    pub resource: String,
    /// Name of the instance where the request waits.
    pub instance: String,
    /// Whether that instance shows the page.
    pub is_here: bool,
    /// Position in that instance's queue, from 1.
    pub position: usize,
    /// Owner label; empty if the waiter gave none.
    pub owner: String,
    /// The owner label, encoded for a query.
    pub owner_query: String,
    /// The waiter's note; for other instances, its beginning.
    pub note: String,
    /// How long it has been waiting.
    pub waiting: String,
    /// `waiting` in milliseconds.
    pub waiting_ms: u64,
    /// Maximum further wait; empty if it is not known.
    pub left: String,
    /// `left` in milliseconds.
    pub left_ms: u64,
    /// Owner label of the holder; empty if there is none.
    pub holder: String,
    /// Whether a lease on the resource is listed.
    pub is_held: bool,
    /// Whether a ticket waits instead of a connection.
    pub is_ticket: bool,
    /// The ticket's name; empty for waiters of other instances.
    pub ticket: String,
    /// The name of the target of the ticket's call-backs; empty without call-backs.
    pub target: String,
}

/// A ticket of this instance whose grant is not accepted yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OfferedRow {
    /// The id of the ticket.
    pub id: String,
    /// Name of the resource.
    pub resource: String,
    /// The name of the target of the ticket's call-backs; empty: its caller polls.
    pub target: String,
    /// The end of the offer, in UTC.
    pub until: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadlockRow {
    /// Each waiter with its resource and the holder; only links that the client may read, at least one.
    pub links: Vec<DeadlockLink>,
    /// Number of further links.
    pub hidden: usize,
    /// When the deadlock was detected, in UTC.
    pub since: String,
    /// How long the deadlock has been known.
    pub age: String,
    /// `age` in milliseconds.
    pub age_ms: u64,
    /// When the deadlock ends by itself at the latest, in UTC: its first request gives up. Empty if that is not known.
    pub until: String,
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

/// `may_read`: which links are shown. `waiting`: those the reader may see. Units of `wall_ms`: milliseconds since 1970.
pub(crate) fn deadlock_rows(
    deadlocks: &[Deadlock],
    may_read: impl Fn(&CycleEdge) -> bool,
    waiting: &[ListedWaiter],
    wall_ms: u64,
) -> Vec<DeadlockRow> {
    deadlocks.iter().filter_map(|deadlock| deadlock_row(deadlock, &may_read, waiting, wall_ms)).collect()
}

fn deadlock_row(
    deadlock: &Deadlock,
    may_read: impl Fn(&CycleEdge) -> bool,
    waiting: &[ListedWaiter],
    wall_ms: u64,
) -> Option<DeadlockRow> {
    let link = |edge: &CycleEdge| DeadlockLink {
        owner: format::visible(&edge.owner),
        resource: edge.waits_for.to_string(),
        holder: format::visible(&edge.held_by),
    };
    let links: Vec<_> = deadlock.cycle.iter().filter(|edge| may_read(edge)).map(link).collect();
    let hidden = deadlock.cycle.len() - links.len();
    let (age, age_ms) = (format::clock(deadlock.age), format::ms(deadlock.age));
    let since = format::time_of_day(wall_ms.saturating_sub(age_ms));
    let is_of =
        |w: &&ListedWaiter| deadlock.cycle.iter().any(|edge| edge.waits_for == w.resource && edge.owner == *w.owner);
    let left = waiting.iter().filter(is_of).filter_map(|waiter| waiter.left).min();
    let until = left.map(|left| format::time_of_day(wall_ms.saturating_add(format::ms(left)).saturating_add(999)));
    let until = until.unwrap_or_default();
    (!links.is_empty()).then_some(DeadlockRow { links, hidden, since, age, age_ms, until })
}

#[derive(Debug, Template)]
#[template(path = "waiters.html")]
pub(crate) struct WaitersPage {
    layout: Layout,
    deadlocks: Vec<DeadlockRow>,
    rows: Vec<WaiterRow>,
    offered: Vec<OfferedRow>,
    resources: usize,
    /// Number of waiters of other instances that are only counted.
    further: usize,
    waiters_known: bool,
    instance: String,
    query: TableQuery,
    paging: Paging,
    /// The age of the list with the holders.
    age: String,
    age_ms: u64,
}

/// A waiter before filtering and paging, with the owner of the resource, if a lease on it is listed.
type Candidate<'a> = (&'a ListedWaiter, Option<&'a str>);

fn matches(query: &TableQuery, (waiter, holder): &Candidate<'_>) -> bool {
    query.finds([waiter.resource.as_str(), &waiter.owner, &waiter.note, holder.unwrap_or_default()])
}

/// `candidates`: oldest first; equal ones keep this order.
fn sort(query: &TableQuery, candidates: &mut [Candidate<'_>]) {
    candidates.sort_by(|(a, a_holder), (b, b_holder)| {
        query.ordered(match query.sort {
            "resource" => a.resource.cmp(&b.resource),
            "owner" => a.owner.cmp(&b.owner),
            "left" => a.left.cmp(&b.left),
            "holder" => a_holder.cmp(b_holder),
            _ => a.waiting.cmp(&b.waiting),
        })
    });
}

impl WaitersPage {
    /// `waiting`: oldest first. `may_read`: which links of deadlocks are shown. Units of `wall_ms`: milliseconds since 1970.
    pub(crate) fn new(
        layout: Layout,
        overview: &Overview,
        waiting: &[ListedWaiter],
        query: TableQuery,
        deadlocks: &[Deadlock],
        may_read: impl Fn(&CycleEdge) -> bool,
        wall_ms: u64,
    ) -> Self {
        let holder_of = |waiter: &ListedWaiter| {
            let lease = overview.leases.leases.get(&waiter.resource);
            lease.filter(|lease| lease.left > overview.age).map(|lease| lease.labels().owner.as_ref())
        };
        let all = waiting.iter().map(|waiter| (waiter, holder_of(waiter)));
        let mut found: Vec<Candidate<'_>> = all.filter(|candidate| matches(&query, candidate)).collect();
        sort(&query, &mut found);
        let paging = query.paging(found.len());
        let row = |(q, holder): &Candidate<'_>| WaiterRow {
            resource: q.resource.to_string(),
            instance: q.instance.to_string(),
            is_here: q.instance == overview.instance,
            position: q.position,
            owner: format::visible(&q.owner),
            owner_query: format::query(&q.owner),
            waiting: format::clock(q.waiting),
            waiting_ms: format::ms(q.waiting),
            note: format::visible(&q.note),
            left: q.left.map(format::clock).unwrap_or_default(),
            left_ms: q.left.map_or(0, format::ms),
            holder: holder.map(format::visible).unwrap_or_default(),
            is_held: holder.is_some(),
            is_ticket: q.is_ticket,
            ticket: String::new(),
            target: String::new(),
        };
        let rows = found[paging.from..paging.to].iter().map(row).collect();
        Self {
            layout,
            deadlocks: deadlock_rows(deadlocks, may_read, waiting, wall_ms),
            rows,
            offered: Vec::new(),
            resources: overview.waiting.len(),
            further: overview.total_waiting().saturating_sub(waiting.len()),
            waiters_known: overview.waiters_known,
            instance: overview.instance.to_string(),
            query,
            paging,
            age: format::time(overview.age),
            age_ms: format::ms(overview.age),
        }
    }

    /// Names the tickets among the waiters of this instance, and adds the offered ones. `tickets`: those that the reader may see.
    #[must_use]
    pub(crate) fn with_tickets(mut self, tickets: &[ListedTicket]) -> Self {
        for ticket in tickets {
            let (id, resource) = (ticket.id.to_string(), ticket.resource.to_string());
            let target = ticket.target.clone().unwrap_or_default();
            let Some(position) = ticket.position else {
                self.offered.push(OfferedRow { id, resource, target, until: format::time_of_day(ticket.accept_by_ms) });
                continue;
            };
            let owner = format::visible(&ticket.owner);
            // The queue may have advanced since.
            let is_it = |row: &&mut WaiterRow| {
                row.is_here
                    && row.is_ticket
                    && row.position == position
                    && row.resource == resource
                    && row.owner == owner
            };
            if let Some(row) = self.rows.iter_mut().find(is_it) {
                (row.ticket, row.target) = (id, target);
            }
        }
        self
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pages::locks::tests::{four, layout};
    use crate::pages::table_query::WAITERS;

    pub(crate) fn waiter(resource: &str, owner: &str, waiting_s: u64, left_s: Option<u64>) -> ListedWaiter {
        ListedWaiter {
            resource: crate::types::ResourceName::parse(resource).expect("valid"),
            instance: crate::protocol::InstanceName::from_random(1),
            position: 1,
            owner: owner.into(),
            waiting: Duration::from_secs(waiting_s),
            left: left_s.map(Duration::from_secs),
            note: format!("note of {owner}").into(),
            is_ticket: false,
        }
    }

    #[test]
    fn a_deadlock_says_until_when() {
        let edge = |owner: &str, waits_for: &str, held_by: &str| CycleEdge {
            owner: owner.to_owned(),
            waits_for: crate::types::ResourceName::parse(waits_for).expect("valid"),
            held_by: held_by.to_owned(),
            token_id: crate::types::TokenId::parse("9c1f02ab").expect("valid"),
        };
        let cycle = vec![edge("ann", "y", "bob"), edge("bob", "x", "ann")];
        let deadlock = [Deadlock { cycle, age: Duration::from_secs(3) }];
        let waiting = [
            waiter("y", "ann", 3, Some(20)),
            waiter("x", "bob", 2, Some(15)),
            waiter("y", "eve", 1, Some(1)),
            waiter("z", "ann", 1, Some(2)),
        ];
        let rows = |waiting: &[ListedWaiter]| deadlock_rows(&deadlock, |_| true, waiting, 36_000_000);
        assert_eq!((rows(&waiting)[0].until.as_str(), rows(&[])[0].until.as_str()), ("10:00:15", ""));
    }

    #[test]
    fn waiters_are_found_and_ordered_and_say_until_when_and_why() {
        let waiting = [waiter("deploy/prod", "bob", 9, Some(5)), waiter("a", "<ann>", 7, None)];
        let page = |query: TableQuery| WaitersPage::new(layout(), &four(), &waiting, query, &[], |_| true, 0);
        let owners = |query| page(query).rows.iter().map(|row| row.owner.clone()).collect::<Vec<_>>();
        let own = || TableQuery::of(WAITERS);
        assert_eq!(owners(own()), ["bob", "<ann>"], "oldest first");
        assert_eq!(owners(TableQuery { descending: false, ..own() }), ["<ann>", "bob"]);
        assert_eq!(owners(TableQuery { sort: "resource", descending: false, ..own() }), ["<ann>", "bob"]);
        assert_eq!(owners(TableQuery { sort: "left", descending: true, ..own() }), ["bob", "<ann>"]);
        for (find, found) in [("PROD", "bob"), ("of <an", "<ann>")] {
            assert_eq!(owners(TableQuery { find: find.to_owned(), ..own() }), [found]);
        }
        let html = page(own()).render().expect("a page");
        for part in ["data-left=\"5000\"", "not known", "note of &#60;ann&#62;", "sort=left&#38;dir=asc"] {
            assert!(html.contains(part), "{part}: {html}");
        }
        let ticket = |digit: &str, position: Option<usize>| ListedTicket {
            id: crate::protocol::TicketId::parse(&format!("tk_{}", digit.repeat(32))).expect("an id"),
            resource: waiting[0].resource.clone(),
            owner: "bob".to_owned(),
            target: Some("n8n".to_owned()),
            position,
            accept_by_ms: 36_000_000,
        };
        let tickets = [ticket("1", Some(1)), ticket("2", None), ticket("3", Some(2))];
        let mut here = four();
        here.instance = waiting[0].instance.clone();
        let mut waiters = waiting.clone();
        waiters.iter_mut().for_each(|waiter| waiter.is_ticket = true);
        // At another instance.
        waiters[1].instance = crate::protocol::InstanceName::from_random(2);
        let marked = WaitersPage::new(layout(), &here, &waiters, own(), &[], |_| true, 0).with_tickets(&tickets);
        let marks: Vec<_> = marked.rows.iter().map(|row| (row.ticket.len(), row.target.as_str())).collect();
        assert_eq!((marks, marked.offered.len()), (vec![(35, "n8n"), (0, "")], 1), "the third one has left its queue");
        let html = marked.render().expect("a page");
        for part in [
            "ticket tk_1111",
            "tk_2222",
            "offered to n8n until 10:00:00",
            "calls n8n",
            "<span class=\"note\">ticket</span>",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        let none = page(TableQuery { find: "nobody".to_owned(), ..own() }).render().expect("a page");
        assert!(none.contains("No waiter matches this filter") && none.contains("value=\"nobody\""), "{none}");
    }
}
