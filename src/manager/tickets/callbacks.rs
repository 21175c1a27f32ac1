//! The messages about a ticket: which message is due in each state, its content, and what the receiver's answer means. An
//! instance that takes over a ticket sends the due message again, with the same id: each arrives at least once.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::table::Served;
use crate::manager::callbacks::{CallbackEvent, CallbackKind, DeliveryOutcome};
use crate::manager::service::LockManager;
use crate::mutant::{self, Mutant};
use crate::protocol::{Ticket, TicketCallback, TicketEnd, TicketHead, TicketId, TicketPhase};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{Fence, Mode, WantedMode};

/// `lock.ending` is sent when a tenth of the time for which the lease is kept is left, at most this long before the end.
const ENDING_BEFORE_MAX: Duration = Duration::from_mins(5);
const ENDING_PART: u64 = 10;
/// Minimum time for which a message is tried, from when this instance begins: its own time may be over by then, if
/// the instance that should have sent it ended, or the nodes answered late. Each message is tried at least once.
const TRIED_MIN: Duration = Duration::from_secs(5);

/// The message that the ticket's end owes to the receiver: none if the receiver or the caller ended the ticket.
pub(super) fn message_of_end(ticket: &Ticket, head: TicketHead) -> Option<CallbackKind> {
    ticket.body.callback.as_ref()?;
    let was_granted = head.fence.0 > 0;
    match head.end? {
        TicketEnd::WaitTimeout | TicketEnd::Deadlock => Some(CallbackKind::Refused),
        TicketEnd::Lost | TicketEnd::Forced if was_granted => Some(CallbackKind::Lost),
        TicketEnd::Lost | TicketEnd::Forced => Some(CallbackKind::Refused),
        TicketEnd::KeptOut | TicketEnd::Undelivered | TicketEnd::Cancelled | TicketEnd::Released => None,
    }
}

/// Whether the receiver may not know of the grant: it did not accept the grant (seed 1824 of the crash tests). For
/// such a receiver, a lease that ends by itself is lost.
fn is_unaccepted(ticket: &Ticket, head: TicketHead) -> bool {
    head.phase == TicketPhase::Granted && ticket.body.callback.is_some()
}

/// The state of a ticket whose lease has ended for this reason: done, unless the receiver must be informed.
pub(super) fn over(ticket: &Ticket, head: TicketHead, end: TicketEnd, now_ms: u64) -> TicketHead {
    let end = if end == TicketEnd::KeptOut && is_unaccepted(ticket, head) { TicketEnd::Lost } else { end };
    let over = head.ended(TicketPhase::Ended, end, now_ms);
    if message_of_end(ticket, over).is_some() { over } else { over.at(TicketPhase::Done, now_ms) }
}

/// When to inform the receiver that the lease ends soon. Milliseconds since 1970.
pub(super) fn ending_at_ms(ticket: &Ticket, kept_until_ms: u64) -> u64 {
    let most_ms = u64::try_from(ENDING_BEFORE_MAX.as_millis()).unwrap_or(u64::MAX);
    kept_until_ms.saturating_sub((ticket.body.keep_ms / ENDING_PART).min(most_ms))
}

/// The message of a ticket. It contains no secret: a receiver that may know the resource's name may not be allowed to
/// use the lease. `leases`: the ticket's leases, as far as they are known.
fn event(
    (id, ticket, leases): (&TicketId, &Ticket, &[(Fence, Mode)]),
    head: TicketHead,
    kind: CallbackKind,
    kept_until_ms: u64,
) -> CallbackEvent {
    let mut data = Map::new();
    let mut put = |name: &str, value: Value| drop(data.insert(name.to_owned(), value));
    put("ticket", json!(id.as_str()));
    if ticket.others.is_empty() {
        put("resource", json!(ticket.resource.to_string()));
        put("lock_url", json!(format!("/locks/{}", ticket.resource)));
    } else {
        let names: Vec<String> = ticket.resources().map(ToString::to_string).collect();
        // Names need no escaping in a query.
        put("lock_url", json!(format!("/locks?resource={}", names.join("&resource="))));
        put("resources", json!(names));
    }
    put("mode", json!(ticket.mode.as_str()));
    if let WantedMode::Permit { limit } = ticket.mode {
        put("limit", json!(limit.get()));
    }
    if let Some(slot) = leases.first().and_then(|(_, mode)| mode.slot()) {
        put("slot", json!(slot));
    }
    put("token_id", json!(ticket.token.id().to_string()));
    put("owner", json!(ticket.body.labels.owner));
    put("metadata", json!(ticket.body.labels.metadata));
    put("ticket_url", json!(format!("/tickets/{id}")));
    if head.fence.0 > 0 {
        match ticket.others.is_empty() {
            true => put("fence", json!(head.fence.0)),
            false => {
                let each = ticket.resources().zip(leases);
                let each = each.map(|(name, (fence, _))| json!({ "resource": name.to_string(), "fence": fence.0 }));
                put("leases", each.collect());
            }
        }
    }
    let at_ms = match kind {
        CallbackKind::Granted => {
            put("kept_until", json!(time(kept_until_ms)));
            put("accept_by", json!(time(head.accept_by_ms)));
            head.since_ms
        }
        CallbackKind::Ending => {
            put("kept_until", json!(time(kept_until_ms)));
            ending_at_ms(ticket, kept_until_ms)
        }
        CallbackKind::Refused | CallbackKind::Lost => {
            put("ended_by", json!(head.end.map_or("lost", TicketEnd::as_str)));
            head.since_ms
        }
    };
    // A different end of the lease needs a different message; a dot would end the id in its signature.
    let id = match kind {
        CallbackKind::Ending => format!("{id}_ending_{kept_until_ms}"),
        _ => format!("{id}_{}", kind.as_str().trim_start_matches("lock.")),
    };
    CallbackEvent { id, kind, at_ms, data, principal: ticket.body.labels.principal.clone() }
}

fn time(ms: u64) -> String {
    let at = jiff::Timestamp::from_millisecond(i64::try_from(ms).unwrap_or(i64::MAX));
    at.map(|at| format!("{at:.3}")).unwrap_or_default()
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The boot-clock instant of a time in a ticket.
    fn ticket_instant(&self, at_ms: u64) -> BootTime {
        self.now().plus(Duration::from_millis(at_ms.saturating_sub(self.ticket_now_ms())))
    }

    /// Until when a message is tried whose own time ends at `until_ms`.
    fn tried_until_ms(&self, until_ms: u64) -> u64 {
        let least_ms = u64::try_from(TRIED_MIN.as_millis()).unwrap_or(u64::MAX);
        match mutant::is(Mutant::MessageUntried) {
            true => until_ms,
            false => until_ms.max(self.ticket_now_ms().saturating_add(least_ms)),
        }
    }

    /// Sends one message until it is accepted, at the latest until `until_ms`. Never resolves without a receiver.
    ///
    /// Cancel: the message may have arrived.
    async fn send_about(
        &self,
        served: &Served,
        head: TicketHead,
        kind: CallbackKind,
        (kept_until_ms, until_ms): (u64, u64),
    ) -> DeliveryOutcome {
        let Some(TicketCallback { target, sealed, .. }) = &served.ticket.body.callback else {
            return std::future::pending().await;
        };
        let Some(sender) = self.shared.tickets.sender() else { return std::future::pending().await };
        let callback = sender.open(target, sealed.as_deref(), served.id.as_str());
        let shown = TicketHead { accept_by_ms: until_ms, ..head };
        let event = event((&served.id, &served.ticket, &served.leases()), shown, kind, kept_until_ms);
        sender.deliver(callback, event, self.ticket_instant(until_ms), CancellationToken::new()).await
    }

    /// Offers the grant to the receiver, which accepts it, refuses it, or does not answer in time. Never resolves for
    /// a ticket whose caller asks for it. A receiver that has accepted is not called again, however long the nodes
    /// take to store that: some receivers can be called only once.
    pub(super) async fn offer_grant(&self, served: &Served, head: TicketHead) -> TicketHead {
        let times = (head.kept_until_ms, self.tried_until_ms(head.accept_by_ms));
        let outcome = match served.is_taken() {
            true => DeliveryOutcome::Accepted,
            false => self.send_about(served, head, CallbackKind::Granted, times).await,
        };
        let now_ms = self.ticket_now_ms();
        match outcome {
            DeliveryOutcome::Accepted => {
                served.set_taken();
                head.at(TicketPhase::Accepted, now_ms)
            }
            DeliveryOutcome::Gone => head.ended(TicketPhase::Ended, TicketEnd::Cancelled, now_ms),
            DeliveryOutcome::Undelivered | DeliveryOutcome::Cancelled => {
                head.ended(TicketPhase::Ended, TicketEnd::Undelivered, now_ms)
            }
        }
    }

    /// Sends `lock.ending` when it is due, once for each end of the lease, and never resolves.
    pub(super) async fn announce_end(&self, served: &Served, head: TicketHead, kept_until_ms: u64) {
        if head.phase == TicketPhase::Accepted && kept_until_ms > 0 && served.announced() < kept_until_ms {
            let at_ms = ending_at_ms(&served.ticket, kept_until_ms);
            self.clock().sleep_until(self.ticket_instant(at_ms)).await;
            self.send_about(served, head, CallbackKind::Ending, (kept_until_ms, kept_until_ms)).await;
            served.set_announced(kept_until_ms);
        }
        std::future::pending().await
    }

    /// Informs the receiver of the ticket's end, if a message is owed.
    pub(super) async fn inform_of_end(&self, served: &Served, head: TicketHead) {
        if let (Some(kind), Some(callback)) = (message_of_end(&served.ticket, head), &served.ticket.body.callback) {
            let until_ms = self.tried_until_ms(head.since_ms.saturating_add(callback.accept_ms));
            self.send_about(served, head, kind, (0, until_ms)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::TicketTerms;
    use crate::types::{Fence, Labels, ResourceName, Token, Ttl, WantedMode};

    fn ticket(has_callback: bool) -> Ticket {
        let callback = TicketCallback { target: "t".into(), sealed: None, accept_ms: 1_000 };
        let terms = TicketTerms {
            labels: Labels::default(),
            keep_ms: 100_000,
            made_ms: 1,
            wait_until_ms: 2,
            refuses_deadlock: false,
            mode: WantedMode::Exclusive,
            callback: has_callback.then_some(callback),
        };
        let resource = ResourceName::parse("a/b").expect("valid");
        Ticket::new(resource, Token::from_random([7; 24]).hash(), Ttl::from_ms(5_000).expect("valid"), terms)
    }

    #[test]
    fn an_end_is_reported_to_a_receiver_that_does_not_know_it() {
        let waiting = TicketHead::waiting(5);
        let granted = TicketHead { fence: Fence(9), ..waiting.at(TicketPhase::Accepted, 6) };
        let kind = |head: TicketHead, end| message_of_end(&ticket(true), head.ended(TicketPhase::Ended, end, 7));
        assert_eq!(kind(waiting, TicketEnd::WaitTimeout), Some(CallbackKind::Refused));
        assert_eq!(kind(waiting, TicketEnd::Forced), Some(CallbackKind::Refused));
        assert_eq!(kind(granted, TicketEnd::Forced), Some(CallbackKind::Lost));
        assert_eq!(kind(granted, TicketEnd::Lost), Some(CallbackKind::Lost));
        for end in [TicketEnd::Released, TicketEnd::Undelivered, TicketEnd::Cancelled, TicketEnd::KeptOut] {
            assert_eq!(kind(granted, end), None, "{end:?}");
        }
        assert_eq!(over(&ticket(true), granted, TicketEnd::Lost, 8).phase, TicketPhase::Ended);
        assert_eq!(over(&ticket(false), granted, TicketEnd::Lost, 8).phase, TicketPhase::Done);
        assert_eq!(over(&ticket(true), granted, TicketEnd::Released, 8).phase, TicketPhase::Done);
        let unaccepted = granted.at(TicketPhase::Granted, 6);
        let end = |head, has_callback| over(&ticket(has_callback), head, TicketEnd::KeptOut, 8).end;
        let [kept_out, lost] = [TicketEnd::KeptOut, TicketEnd::Lost].map(Some);
        assert_eq!([end(granted, true), end(unaccepted, true), end(unaccepted, false)], [kept_out, lost, kept_out]);
    }

    #[test]
    fn a_ticket_that_no_node_could_show_again_is_refused_by_its_longest_part() {
        use super::super::{requests::check_length, types::TicketError};
        let names = (0..15).map(|n| ResourceName::parse(&format!("{n}/{}", "x".repeat(250))).expect("valid"));
        let mut ticket = ticket(true).with_others(names.collect());
        assert!(check_length(&ticket).is_ok());
        ticket.body.labels.note = "\u{1}".repeat(1_000);
        ticket.body.labels.owner = "\u{1}".repeat(255);
        ticket.body.callback.iter_mut().for_each(|callback| callback.sealed = Some("s".repeat(5_000)));
        let refused = check_length(&ticket);
        assert!(matches!(refused, Err(TicketError::TooLarge { field: "note", .. })), "{refused:?}");
    }

    #[test]
    fn a_message_says_what_its_receiver_needs_and_its_id_has_no_dot() {
        let (id, ticket) = (TicketId::parse("tk_00000000000000000000000000000000").expect("an id"), ticket(true));
        let head = TicketHead { fence: Fence(9), accept_by_ms: 3_000, ..TicketHead::waiting(5) };
        let granted = event((&id, &ticket, &[]), head, CallbackKind::Granted, 200_000);
        assert_eq!(granted.id, format!("{id}_granted"));
        assert_eq!(granted.data["fence"], 9);
        assert_eq!((&granted.data["mode"], granted.data.get("slot")), (&json!("exclusive"), None));
        let limit = crate::types::PermitLimit::new(3).expect("in range");
        let permit = Ticket { mode: WantedMode::Permit { limit }, ..ticket.clone() };
        let data =
            event((&id, &permit, &[(Fence(9), Mode::Permit { slot: 2, limit })]), head, CallbackKind::Granted, 7).data;
        assert_eq!((&data["mode"], &data["limit"], &data["slot"]), (&json!("permit"), &json!(3), &json!(2)));
        assert_eq!(granted.data["accept_by"], "1970-01-01T00:00:03.000Z");
        assert_eq!(granted.data["lock_url"], "/locks/a/b");
        let ending = event((&id, &ticket, &[]), head, CallbackKind::Ending, 200_000);
        assert_eq!((ending.id, ending.at_ms), (format!("{id}_ending_200000"), 190_000), "a tenth before it");
        let set = ticket.with_others(vec![ResourceName::parse("c").expect("valid")]);
        let leases = [9, 4].map(|fence| (Fence(fence), Mode::Exclusive));
        let data = event((&id, &set, &leases), head, CallbackKind::Granted, 200_000).data;
        assert_eq!((&data["resources"], data.get("resource"), data.get("fence")), (&json!(["a/b", "c"]), None, None));
        assert_eq!(data["leases"], json!([{ "resource": "a/b", "fence": 9 }, { "resource": "c", "fence": 4 }]));
        assert_eq!(data["lock_url"], "/locks?resource=a/b&resource=c");
    }
}
