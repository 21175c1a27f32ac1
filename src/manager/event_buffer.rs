//! The events that one instance keeps: a bounded buffer with sequence numbers. Each stream reads it with its own
//! cursor and detects what it missed; the pages show the recent part.

use std::collections::VecDeque;
use std::sync::Arc;

use super::event_fields::LeaseEvent;
use super::event_kind::EventKind;
use crate::api::Event;
use crate::keyed_maps::KeyedSet;

/// Maximum number of kept events, and how far a stream may lag: some seconds of a busy cluster, a few hundred KiB.
/// Renewals are counted separately, since they would push all other events off the pages.
pub(crate) const EVENTS_MAX: usize = 1_024;
/// Maximum size of both together, since any client that can publish on a node can make each as large as the longest deadlock.
pub(crate) const EVENTS_BYTES_MAX: usize = 4 << 20;

/// Names of received events that are remembered, so that an event which several nodes pass on counts once.
const SEEN_NAMES_MAX: usize = 4 * EVENTS_MAX;

/// The memory that an event uses, with its texts.
pub(super) fn size_of(event: &Event) -> usize {
    let texts = [&event.at, &event.resource, &event.token_id, &event.owner, &event.reason, &event.detail];
    let more = [&event.principal, &event.instance, &event.node, &event.name];
    let texts: usize = texts.iter().chain(&more).filter_map(|text| text.as_ref()).map(String::capacity).sum();
    let edges = event.cycle.iter().flatten().map(|edge| {
        let texts = [&edge.owner, &edge.waits_for, &edge.held_by, &edge.token_id];
        size_of_val(edge) + texts.iter().map(|text| text.capacity()).sum::<usize>()
    });
    size_of_val(event) + event.event.capacity() + texts + edges.sum::<usize>()
}

/// An event with its place in this instance's sequence.
#[derive(Debug, Clone)]
pub struct NumberedEvent {
    /// Rises by one for each event.
    pub number: u64,
    pub event: Arc<Event>,
}

/// An event as it is kept.
#[derive(Debug, Clone)]
pub(super) enum KeptEvent {
    Made(Arc<Event>),
    /// Not made into an event yet.
    Lease(LeaseEvent),
}

impl KeptEvent {
    /// The event, made now if it was not made yet.
    pub(super) fn event(&self) -> Arc<Event> {
        match self {
            Self::Made(event) => Arc::clone(event),
            Self::Lease(lease) => Arc::new(lease.event()),
        }
    }

    /// Whether it is the event of an incident.
    pub(super) fn is_incident(&self) -> bool {
        match self {
            Self::Made(event) => EventKind::parse(&event.event).is_none_or(EventKind::is_incident),
            Self::Lease(lease) => lease.kind.is_incident(),
        }
    }

    fn is_renewal(&self) -> bool {
        match self {
            Self::Made(event) => event.event == EventKind::Extended.as_str(),
            Self::Lease(lease) => lease.kind == EventKind::Extended,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Made(event) => size_of(event),
            Self::Lease(LeaseEvent { resource, token, owner, .. }) => {
                size_of_val(self) + resource.as_str().len() + token.as_str().len() + owner.len()
            }
        }
    }
}

#[derive(Debug)]
struct Kept {
    number: u64,
    event: KeptEvent,
}

/// At most [`EVENTS_MAX`] renewals and as many other events, and [`EVENTS_BYTES_MAX`] of both, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct EventBuffer {
    events: VecDeque<Kept>,
    renewals: usize,
    bytes: usize,
    next: u64,
    /// No event with this number or a higher one has been removed.
    complete_from: u64,
}

impl EventBuffer {
    /// Adds an event. Removes the oldest of its kind (renewal or not) if there are too many, or the oldest of all if
    /// they are too large.
    pub(super) fn push(&mut self, event: KeptEvent) {
        let is_renewal = event.is_renewal();
        let kept = if is_renewal { self.renewals } else { self.events.len() - self.renewals };
        self.bytes += event.size();
        self.events.push_back(Kept { number: self.next, event });
        self.next += 1;
        self.renewals += usize::from(is_renewal);
        if kept >= EVENTS_MAX
            && let Some(oldest) = self.events.iter().position(|kept| kept.event.is_renewal() == is_renewal)
        {
            self.remove(oldest);
        }
        while self.bytes > EVENTS_BYTES_MAX {
            self.remove(0);
        }
    }

    fn remove(&mut self, index: usize) {
        let Some(removed) = self.events.remove(index) else { return };
        self.bytes -= removed.event.size();
        self.renewals -= usize::from(removed.event.is_renewal());
        self.complete_from = self.complete_from.max(removed.number + 1);
    }

    /// The number of the next event.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Whether an event from this number on has been removed.
    pub(super) fn has_gap_from(&self, number: u64) -> bool {
        number < self.complete_from
    }

    /// The kept events from this number on, oldest first.
    pub(super) fn from(&self, number: u64) -> impl Iterator<Item = NumberedEvent> {
        let kept = self.events.range(self.index_of(number)..);
        kept.map(|kept| NumberedEvent { number: kept.number, event: kept.event.event() })
    }

    /// How many events from this number on have been removed.
    pub(super) fn missed_from(&self, number: u64) -> u64 {
        let span = self.complete_from.saturating_sub(number);
        let kept = self.index_of(self.complete_from).saturating_sub(self.index_of(number));
        span.saturating_sub(kept as u64)
    }

    /// All events except renewals, newest first.
    pub(super) fn recent(&self) -> impl Iterator<Item = &KeptEvent> {
        self.events.iter().rev().map(|kept| &kept.event).filter(|event| !event.is_renewal())
    }

    /// Records that events of other instances are not received from here on: a stream that resumes later has a gap.
    pub(super) fn interrupt(&mut self) {
        self.events.retain(|kept| !kept.event.is_renewal());
        self.bytes = self.events.iter().map(|kept| kept.event.size()).sum();
        self.renewals = 0;
        self.next += 1;
        self.complete_from = self.next;
    }

    fn index_of(&self, number: u64) -> usize {
        self.events.partition_point(|kept| kept.number < number)
    }
}

/// The names of the last events, to drop copies.
#[derive(Default)]
pub(super) struct SeenNames {
    names: KeyedSet<String>,
    order: VecDeque<String>,
}

impl SeenNames {
    /// False if the name was there already.
    pub(super) fn add(&mut self, name: String) -> bool {
        if !self.names.insert(name.clone()) {
            return false;
        }
        self.order.push_back(name);
        if self.order.len() > SEEN_NAMES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind) -> KeptEvent {
        KeptEvent::Made(Arc::new(Event { event: kind.as_str().to_owned(), ..Event::default() }))
    }

    #[test]
    fn renewals_do_not_displace_other_events() {
        let mut buffer = EventBuffer::default();
        buffer.push(event(EventKind::Acquired));
        for _ in 0..2 * EVENTS_MAX {
            buffer.push(event(EventKind::Extended));
        }
        assert_eq!((buffer.recent().count(), buffer.from(0).count()), (1, 1 + EVENTS_MAX));
        assert!(buffer.has_gap_from(1) && !buffer.has_gap_from(1 + EVENTS_MAX as u64));
        assert_eq!(buffer.missed_from(0), EVENTS_MAX as u64, "the first event is still here");
        assert_eq!(buffer.missed_from(buffer.next_number()), 0);
    }

    #[test]
    fn n7_large_events_of_others_are_bounded_in_bytes() {
        let mut buffer = EventBuffer::default();
        let size = 16_000;
        for at_ms in 0..EVENTS_MAX as u64 {
            let detail = Some("x".repeat(size));
            let lost = Event { detail, at_ms, ..Event::clone(&event(EventKind::Lost).event()) };
            buffer.push(KeptEvent::Made(Arc::new(lost)));
        }
        let kept = buffer.from(0).count();
        assert!(kept * size <= EVENTS_BYTES_MAX && kept > EVENTS_BYTES_MAX / size - 10, "{kept}");
        assert!(buffer.has_gap_from(0) && buffer.missed_from(0) == (EVENTS_MAX - kept) as u64);
        buffer.interrupt();
        (0..EVENTS_MAX).for_each(|_| buffer.push(event(EventKind::Acquired)));
        assert_eq!(buffer.recent().next().map(|kept| kept.event().event.clone()).as_deref(), Some("acquired"));
    }

    #[test]
    fn events_before_an_interruption_stay_recent_and_are_followed_by_a_gap() {
        let mut buffer = EventBuffer::default();
        buffer.push(event(EventKind::Acquired));
        buffer.push(event(EventKind::Extended));
        buffer.interrupt();
        buffer.push(event(EventKind::Released));
        let recent: Vec<String> = buffer.recent().map(|kept| kept.event().event.clone()).collect();
        assert_eq!(recent, ["released", "acquired"]);
        assert!(buffer.has_gap_from(2) && !buffer.has_gap_from(3));
        assert_eq!(buffer.from(3).map(|e| e.number).collect::<Vec<_>>(), [3]);
    }
}
