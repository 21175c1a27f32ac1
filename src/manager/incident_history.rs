//! The incidents that an instance keeps, of this and former runs and of all instances; and the times of which it lacks them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::event_kind::EventKind;
use super::gaps::{Gap, GapReason};
use super::history_exchange::{FilledGap, HistoryExchange};
use super::incident_file::{self, HistoryFile, Incidents, Unwritten};
use crate::api::Event;

/// A longer pause between two passes of [`IncidentHistory::tick`], which should follow each other after a second,
/// means that this instance stood still.
const STANDSTILL_MIN: Duration = Duration::from_secs(3);
/// Messages must be received for this long before a gap counts as over, since the clocks of other instances may be ahead.
const OVERLAP: Duration = Duration::from_secs(2);
/// A request for a time that ends this much later than the last pass here is answered as if it ended now.
const CLOCKS_DIFFER: Duration = Duration::from_secs(5);
/// How often the file records that this instance runs.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct IncidentHistory {
    pub(super) incidents: Incidents,
    unwritten: Option<mpsc::Sender<Unwritten>>,
    exchange: HistoryExchange,
    /// Until when this instance knows what happened; 0 before it knew anything. Units of all: milliseconds since 1970.
    known_ms: u64,
    tick_ms: u64,
    listens_since_ms: Option<u64>,
    alive_ms: u64,
    /// Why nothing is known since `known_ms`.
    reason: Option<GapReason>,
    /// The gaps of this run, filled or not: events that are not incidents are never filled in.
    gaps_of_run: Vec<Gap>,
}

impl IncidentHistory {
    /// Takes over the incidents of former runs, and returns the queue of entries to be written.
    pub(super) fn load(&mut self, file: &HistoryFile) -> mpsc::Receiver<Unwritten> {
        let (sender, unwritten) = incident_file::queue();
        let present = std::mem::replace(&mut self.incidents, file.past.clone());
        // The incidents of this run so far.
        for event in present.iter() {
            self.incidents.push(Arc::clone(event));
            let _ = sender.try_send(Unwritten::Line(Arc::clone(event)));
        }
        self.unwritten = Some(sender);
        // The first pass may have been earlier, when it knew nothing of the file.
        for gap in present.gaps().iter().filter(|gap| gap.to_ms > file.ended_ms) {
            self.add_gap(Gap { from_ms: gap.from_ms.max(file.ended_ms), ..*gap });
        }
        self.known_ms = self.known_ms.max(file.ended_ms);
        unwritten
    }

    /// Adds an incident that happened now.
    pub(super) fn add(&mut self, event: Arc<Event>) {
        self.write(Arc::clone(&event));
        self.incidents.push(event);
    }

    fn write(&self, event: Arc<Event>) {
        if let Some(unwritten) = self.unwritten.as_ref().filter(|queue| incident_file::may_wait(&event, queue)) {
            // If the queue is full, the incident is kept in memory only.
            let _ = unwritten.try_send(Unwritten::Line(event));
        }
    }

    /// Must be called every second. Returns the request, to be published now, for what is not known. `is_listening`:
    /// messages of other instances arrive.
    pub(super) fn tick(&mut self, own: &str, is_listening: bool, now_ms: u64) -> Option<String> {
        let stood_still = now_ms.saturating_sub(self.tick_ms) >= ms(STANDSTILL_MIN);
        self.tick_ms = now_ms;
        if stood_still {
            (self.listens_since_ms, self.reason) = (None, Some(GapReason::NotRunning));
        }
        if is_listening {
            let since_ms = *self.listens_since_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(since_ms) >= ms(OVERLAP) {
                self.is_known_to(now_ms);
            }
        } else {
            self.listens_since_ms = None;
            self.reason.get_or_insert(GapReason::CutOff);
        }
        self.exchange.due(own, self.incidents.gaps(), now_ms)
    }

    fn is_known_to(&mut self, now_ms: u64) {
        if let Some(gap) = self.open_gap(now_ms) {
            self.add_gap(gap);
            self.exchange.restart();
        }
        (self.known_ms, self.reason) = (now_ms, None);
        if now_ms.saturating_sub(self.alive_ms) >= ms(ALIVE_INTERVAL)
            && let Some(unwritten) = &self.unwritten
        {
            self.alive_ms = now_ms;
            let _ = unwritten.try_send(Unwritten::Alive);
        }
    }

    fn add_gap(&mut self, gap: Gap) {
        self.write(Arc::new(gap.line()));
        self.incidents.add_gap(gap);
        self.gaps_of_run.push(gap);
        if self.gaps_of_run.len() > super::gaps::GAPS_MAX {
            let oldest = self.gaps_of_run.remove(0);
            self.gaps_of_run[0].from_ms = oldest.from_ms;
        }
    }

    fn open_gap(&self, now_ms: u64) -> Option<Gap> {
        let reason = self.reason.unwrap_or(GapReason::NotRunning);
        let gap = Gap { from_ms: self.known_ms, to_ms: now_ms, reason };
        let is_disturbed = self.reason.is_some() || self.tick_ms == 0;
        let is_late = now_ms.saturating_sub(self.known_ms) >= ms(STANDSTILL_MIN);
        (gap.from_ms < gap.to_ms && (is_disturbed || is_late)).then_some(gap)
    }

    /// The times of which incidents may be missing, the oldest first.
    pub(super) fn gaps(&self, now_ms: u64) -> Vec<Gap> {
        self.incidents.gaps().iter().copied().chain(self.open_gap(now_ms)).collect()
    }

    /// The gaps of this run, including gaps whose incidents are now known.
    pub(super) fn gaps_of_run(&self, now_ms: u64) -> Vec<Gap> {
        self.gaps_of_run.iter().copied().chain(self.open_gap(now_ms)).collect()
    }

    /// Handles a request of another instance. Returns the answer to be published, of at most `max` bytes.
    pub(super) fn answer(&mut self, request: &[u8], own: &str, max: usize) -> Option<String> {
        let is_up_to_date = self.reason.is_none();
        let knows = |from_ms, to_ms: u64| {
            let is_now = is_up_to_date && to_ms.saturating_sub(self.known_ms) < ms(CLOCKS_DIFFER);
            let (from_ms, to_ms) =
                self.incidents.known_within(from_ms, if is_now { to_ms } else { to_ms.min(self.known_ms) });
            (from_ms.min(to_ms), to_ms)
        };
        self.exchange.answer(request, own, (&self.incidents, &knows), max)
    }

    /// Receives the answer of another instance. `is_valid` checks each incident in it.
    pub(super) fn receive(&mut self, answer: &[u8], own: &str, is_valid: impl Fn(&Event) -> bool) {
        let Some(FilledGap { from_ms, to_ms, events }) = self.exchange.receive(answer, own) else { return };
        for event in events.into_iter().filter(|event| is_valid(event)).map(|event| Event { name: None, ..event }) {
            if !self.incidents.has(&event) {
                self.add(Arc::new(event));
            }
        }
        self.incidents.sort();
        if from_ms < to_ms {
            let filled = Gap { from_ms, to_ms, reason: GapReason::NotRunning };
            self.incidents.fill_gap(&filled);
            self.write(Arc::new(filled.filled_line()));
        }
    }

    /// Incidents of this kind, newest first.
    pub(super) fn of_kind(&self, kind: EventKind) -> impl Iterator<Item = &Arc<Event>> {
        self.incidents.iter().rev().filter(move |event| event.event == kind.as_str())
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "incident_history_tests.rs"]
mod tests;
