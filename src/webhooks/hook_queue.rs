//! The messages of one hook as a state machine: which messages wait, when a failed one is tried again, and when the
//! hook is switched off. It has no clock and no tasks, so a test can cover a day of failures.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::deliveries::LastTry;
use super::event::HookMessage;
use super::transport::Answer;
use crate::redlock::clock::BootTime;

/// Maximum number of waiting messages of one hook; further messages are dropped and counted.
pub(super) const HOOK_QUEUE_MAX: usize = 1_000;
/// Maximum number of messages of one hook that are kept to be sent again by hand: the last given up or dropped.
pub(super) const REPLAY_MAX: usize = 100;
/// Tries of one hook at a time while its receiver accepts messages; one try while it does not.
pub(super) const HOOK_TRIES: usize = 4;
/// Pauses before the second and each further try: together about an hour. Seconds.
pub(super) const HOOK_PAUSES_S: [u64; 8] = [5, 30, 60, 120, 300, 600, 1_200, 1_200];
/// A hook is switched off after this time without an accepted message.
pub(super) const HOOK_OFF_AFTER: Duration = Duration::from_hours(24);

/// A message that waits for its next try.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Waiting {
    pub(super) message: HookMessage,
    /// How many tries of the message were made.
    pub(super) tries: usize,
}

/// Since when a hook is off, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchedOff {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The reason, in a few words.
    pub why: &'static str,
}

/// Counts of one hook since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HookCounts {
    /// Accepted messages.
    pub accepted: u64,
    /// Messages that did not fit into the queue, or came while the hook was off.
    pub dropped: u64,
    /// Messages whose last try was not accepted.
    pub gave_up: u64,
}

/// The change that a finished try makes, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HookChange {
    Nothing,
    /// The first failure after a success.
    Fails,
    /// The first success after a failure.
    Works,
    /// The message was given up.
    GaveUp,
    Off(&'static str),
}

/// The messages of one hook.
#[derive(Debug, Default)]
pub(super) struct HookQueue {
    /// The waiting messages by the time of their next try, then in the order of their arrival.
    waiting: BTreeMap<(BootTime, u64), Waiting>,
    arrived: u64,
    pub(super) under_way: usize,
    replayable: VecDeque<HookMessage>,
    failing_since: Option<BootTime>,
    pub(super) off: Option<SwitchedOff>,
    pub(super) last: Option<LastTry>,
    pub(super) counts: HookCounts,
}

impl HookQueue {
    /// Adds a message that is due now. False if it was dropped.
    pub(super) fn push(&mut self, message: HookMessage, now: BootTime) -> bool {
        if self.off.is_some() || self.waiting.len() >= HOOK_QUEUE_MAX {
            self.counts.dropped += 1;
            self.remember(message);
            return false;
        }
        self.wait(now, Waiting { message, tries: 0 });
        true
    }

    fn wait(&mut self, due: BootTime, waiting: Waiting) {
        self.arrived += 1;
        self.waiting.insert((due, self.arrived), waiting);
    }

    fn remember(&mut self, message: HookMessage) {
        self.replayable.push_back(message);
        if self.replayable.len() > REPLAY_MAX {
            self.replayable.pop_front();
        }
    }

    fn may_begin(&self) -> bool {
        let limit = if self.failing_since.is_some() { 1 } else { HOOK_TRIES };
        self.off.is_none() && self.under_way < limit
    }

    /// The message whose try begins now. It counts as under way until [`Self::finished`].
    pub(super) fn take_due(&mut self, now: BootTime) -> Option<Waiting> {
        let due = self.waiting.first_entry().filter(|first| first.key().0 <= now);
        if due.is_none() || !self.may_begin() {
            return None;
        }
        self.under_way += 1;
        self.waiting.pop_first().map(|(_, waiting)| waiting)
    }

    /// When the next try begins, unless a try under way must end first.
    pub(super) fn next_due(&self) -> Option<BootTime> {
        let first = self.waiting.first_key_value().map(|((due, _), _)| *due);
        first.filter(|_| self.may_begin())
    }

    /// Records the end of a try. `jittered` varies a pause.
    pub(super) fn finished(
        &mut self,
        tried: Waiting,
        last: LastTry,
        now: BootTime,
        jittered: impl Fn(Duration) -> Duration,
    ) -> HookChange {
        self.under_way = self.under_way.saturating_sub(1);
        let (answer, at_ms) = (last.answer, last.at_ms);
        self.last = Some(last);
        if answer.is_accepted() {
            self.counts.accepted += 1;
            return if self.failing_since.take().is_some() { HookChange::Works } else { HookChange::Nothing };
        }
        let is_first = self.failing_since.is_none();
        let since = *self.failing_since.get_or_insert(now);
        if answer.is_gone() {
            self.remember(tried.message);
            return self.switch_off(at_ms, "its receiver answered 410: it wants no more messages");
        }
        if now.since(since) >= HOOK_OFF_AFTER {
            self.remember(tried.message);
            return self.switch_off(at_ms, "no message was accepted for 24 h");
        }
        let Some(pause_s) = HOOK_PAUSES_S.get(tried.tries) else {
            self.counts.gave_up += 1;
            self.remember(tried.message);
            return HookChange::GaveUp;
        };
        let asked = match answer {
            Answer::Status { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let pause = jittered(Duration::from_secs(*pause_s)).max(asked);
        self.wait(now.plus(pause), Waiting { tries: tried.tries + 1, ..tried });
        if is_first { HookChange::Fails } else { HookChange::Nothing }
    }

    /// Switches the hook off. Waiting messages count as dropped, and are kept for a replay as far as they fit.
    fn switch_off(&mut self, at_ms: u64, why: &'static str) -> HookChange {
        let waiting = std::mem::take(&mut self.waiting);
        self.counts.dropped += waiting.len() as u64;
        waiting.into_values().for_each(|waiting| self.remember(waiting.message));
        self.off = Some(SwitchedOff { at_ms, why });
        HookChange::Off(why)
    }

    /// Switches the hook on. True if it was off.
    pub(super) fn switch_on(&mut self) -> bool {
        self.failing_since = None;
        self.off.take().is_some()
    }

    /// Sends again the kept messages that were given up or dropped, and switches the hook on. Returns how many.
    pub(super) fn replay(&mut self, now: BootTime) -> usize {
        self.switch_on();
        let messages = std::mem::take(&mut self.replayable);
        messages.into_iter().map(|message| self.push(message, now)).filter(|is_queued| *is_queued).count()
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failing_since.is_some()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn replayable(&self) -> usize {
        self.replayable.len()
    }

    /// For a stop, keeps only messages that were never tried. Returns how many messages are lost.
    pub(super) fn drop_retries(&mut self) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|_, waiting| waiting.tries == 0);
        before - self.waiting.len()
    }
}

#[cfg(test)]
#[path = "hook_queue_tests.rs"]
mod tests;
