//! Metrics of tickets.

use prometheus::{IntCounter, IntGauge, Registry};

use super::register::{counter, counters, gauges};
use crate::manager::tickets::TicketEvent;
use crate::protocol::TicketEnd;

/// States of the tickets that an instance serves.
const STATES: [&str; 4] = ["waiting", "granted", "accepted", "ending"];

pub(super) struct TicketMetrics {
    served: [IntGauge; 4],
    made: IntCounter,
    adopted: IntCounter,
    granted: IntCounter,
    ends: Vec<(TicketEnd, IntCounter)>,
}

impl TicketMetrics {
    /// Registers all series.
    pub(super) fn new(r: &Registry) -> Self {
        let served = gauges(r, "tickets", "Tickets that this instance serves, by state.", &["state"]);
        let ends = counters(r, "ticket_ends_total", "Tickets that are over, by reason.", &["reason"]);
        Self {
            served: STATES.map(|state| served.with_label_values(&[state])),
            made: counter(r, "tickets_made_total", "Tickets made at this instance."),
            adopted: counter(r, "tickets_adopted_total", "Tickets that another instance served before."),
            granted: counter(r, "tickets_granted_total", "Tickets that got their lease at this instance."),
            ends: TicketEnd::ALL.iter().map(|end| (*end, ends.with_label_values(&[end.as_str()]))).collect(),
        }
    }

    /// Counts an event of a ticket.
    pub(super) fn count(&self, event: TicketEvent) {
        match event {
            TicketEvent::Made => self.made.inc(),
            TicketEvent::Adopted => self.adopted.inc(),
            TicketEvent::Granted => self.granted.inc(),
            TicketEvent::Ended(end) => {
                self.ends.iter().filter(|(known, _)| *known == end).for_each(|(_, counter)| counter.inc());
            }
        }
    }

    /// Sets the number of tickets in each state.
    pub(super) fn set(&self, counts: [usize; 5]) {
        for (gauge, count) in self.served.iter().zip(counts) {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
