//! Cases about tickets.

use std::sync::Arc;
use std::time::Duration;

use redlockd::protocol::{
    InstanceName, Reply, Request, RequestTime, StoredTicket, TICKET_PAUSE, TICKET_SERVED, TICKETS_DUE_MAX, TicketArgs,
    TicketEnd, TicketHead, TicketId, TicketOrder, TicketPhase, TicketsArgs, TicketsPage,
};

use super::subject::{GUARD, Subject, name, params, token};

const LIFE: Duration = Duration::from_secs(60);

fn id(number: u64) -> TicketId {
    TicketId::of("one", &name("x"), &token(number))
}

fn instance(text: &str) -> InstanceName {
    InstanceName::parse(text).expect("valid")
}

fn args(number: u64, order: TicketOrder, head: TicketHead) -> TicketArgs {
    let (body, server) = (Arc::from("{\"r\":\"x|\"}"), instance("here"));
    TicketArgs { id: id(number), order, head, body, server, ttl: LIFE, due: Some(TICKET_SERVED) }
}

fn ask(node: &mut impl Subject, args: TicketArgs) -> Option<StoredTicket> {
    match node.ask(&Request::Ticket(args)) {
        Reply::Ticket(stored) => stored,
        other => panic!("{other:?}"),
    }
}

fn put(node: &mut impl Subject, number: u64, head: TicketHead) -> Option<TicketHead> {
    ask(node, args(number, TicketOrder::Put, head)).map(|stored| stored.head)
}

fn raise(node: &mut impl Subject, number: u64, head: TicketHead) -> Option<TicketHead> {
    ask(node, args(number, TicketOrder::Raise, head)).map(|stored| stored.head)
}

fn exchange(node: &mut impl Subject, by: &str, served: &[(u64, u64)], asked: &[(u64, u64)]) -> TicketsPage {
    exchange_as(node, by, served, asked, true)
}

fn exchange_as(
    node: &mut impl Subject,
    by: &str,
    served: &[(u64, u64)],
    asked: &[(u64, u64)],
    takes_due: bool,
) -> TicketsPage {
    let list = |of: &[(u64, u64)]| of.iter().map(|(number, asked)| (id(*number), *asked)).collect();
    let (served, asked) = (list(served), list(asked));
    let args = TicketsArgs { instance: instance(by), serve: TICKET_SERVED, served, asked, takes_due };
    match node.ask(&Request::Tickets(args)) {
        Reply::Tickets(page) => page,
        other => panic!("{other:?}"),
    }
}

pub fn a_tickets_state_only_rises(node: &mut impl Subject) {
    let waiting = TicketHead::waiting(7);
    let granted = TicketHead { fence: redlockd::types::Fence(9), ..waiting.at(TicketPhase::Granted, 8) };
    let over = granted.ended(TicketPhase::Ended, TicketEnd::Released, 9);
    assert_eq!(raise(node, 1, granted), None, "a state without a ticket is not stored");
    assert_eq!(ask(node, args(1, TicketOrder::Read, waiting)), None);
    let body: Arc<str> = "{\"r\":\"x|\"}".into();
    assert_eq!(
        ask(node, args(1, TicketOrder::Put, waiting)),
        Some(StoredTicket { head: waiting, asked_ms: 7, body: body.clone() })
    );
    assert_eq!(raise(node, 1, over), Some(over));
    assert_eq!(raise(node, 1, granted), Some(over), "a late write changes nothing");
    assert_eq!(put(node, 1, waiting), Some(over));
    assert_eq!(
        ask(node, args(1, TicketOrder::Read, waiting)),
        Some(StoredTicket { head: over, asked_ms: 7, body }),
        "it keeps its body"
    );
}

pub fn a_ticket_is_no_vote_of_a_node_without_one(node: &mut impl Subject) {
    let late = RequestTime(node.now_us() - u64::try_from(GUARD.as_micros()).expect("small") - 1_000_000);
    let request = Request::Ticket(args(1, TicketOrder::Put, TicketHead::waiting(7)));
    let answer = node.ask_with(late, &params(), &request).expect("an answer");
    assert!(matches!(answer, Reply::NoVote(_)), "a late request: {answer:?}");
    assert_eq!(ask(node, args(1, TicketOrder::Read, TicketHead::waiting(7))), None);
}

pub fn a_ticket_is_due_when_nobody_serves_it(node: &mut impl Subject) {
    put(node, 1, TicketHead::waiting(7));
    let page = exchange(node, "here", &[(1, 0)], &[(2, 5)]);
    assert_eq!((page.named[0].is_own, page.named[0].asked_ms, page.due.len()), (true, 7, 0), "{page:?}");
    assert_eq!((page.named[1].is_own, page.named[1].head), (false, None), "there is none");
    let other = exchange(node, "there", &[(1, 0)], &[]);
    assert!(!other.named[0].is_own, "another one serves it: {other:?}");
    assert_eq!(exchange(node, "there", &[], &[(1, 99)]).named[0].asked_ms, 99);
    assert_eq!(exchange(node, "here", &[], &[(1, 98)]).named[0].asked_ms, 99, "the latest");
    node.pass(TICKET_SERVED + Duration::from_millis(1));
    let noted = exchange_as(node, "other", &[], &[(1, 100)], false);
    assert_eq!((noted.due.len(), noted.has_more), (0, false), "{noted:?}");
    assert_eq!(exchange(node, "there", &[], &[]).due, [id(1)], "whoever only asks takes nothing away");
    assert_eq!(exchange(node, "third", &[], &[]).due, [], "somebody was shown it just now");
    node.pass(TICKET_PAUSE + Duration::from_millis(1));
    assert!(exchange(node, "there", &[(1, 0)], &[]).named[0].is_own, "it takes over");
    assert!(!exchange(node, "here", &[(1, 0)], &[]).named[0].is_own, "and the former one learns it");
    raise(node, 1, TicketHead::waiting(7).ended(TicketPhase::Ended, TicketEnd::Cancelled, 9));
    let mut done =
        args(1, TicketOrder::Raise, TicketHead::waiting(7).ended(TicketPhase::Done, TicketEnd::Cancelled, 10));
    done.due = None;
    ask(node, done);
    node.pass(TICKET_SERVED + Duration::from_millis(1));
    assert_eq!(exchange(node, "there", &[], &[]).due, [], "nothing is left to be done");
}

pub fn tickets_end_with_their_keys(node: &mut impl Subject) {
    for number in 0..=TICKETS_DUE_MAX as u64 {
        let mut short = args(number, TicketOrder::Put, TicketHead::waiting(7));
        (short.ttl, short.due) = (Duration::from_millis(300), Some(Duration::from_millis(1)));
        ask(node, short);
    }
    node.pass(Duration::from_millis(400));
    let first = exchange(node, "here", &[], &[]);
    assert_eq!((first.has_more, first.due.len()), (true, 0), "{first:?}");
    let second = exchange(node, "here", &[], &[]);
    assert_eq!((second.has_more, second.due.len()), (false, 0), "{second:?}");
}
