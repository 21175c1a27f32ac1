//! How an instance receives the incidents of a time in which it did not run: it asks another instance, which answers with
//! what it knows of the latest part of that time, and then asks for the rest. For people only: nothing depends on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::gaps::Gaps;
use super::incident_file::{HISTORY_AGE, Incidents};
use crate::api::Event;
use crate::protocol::InstanceName;

/// The names of the messages among the events of other instances.
pub(super) const REQUEST: &str = "history_request";
pub(super) const ANSWER: &str = "history";
/// Time for an answer; after the maximum number of requests without an answer, the other instance counts as gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const TRIES_MAX: u8 = 3;
/// Maximum number of other instances that are known at a time.
const PEERS_MAX: usize = 32;
/// How often all instances are asked for their names after a gap, at doubling intervals: later starters know less.
const DISCOVERIES: u32 = 7;
/// Maximum number of answers of an instance per second: any client that can publish on a node can ask.
const ANSWERS_PER_SECOND: u8 = 4;
/// Maximum number of requests that are remembered, so that copies through other nodes are answered once.
const ANSWERED_MAX: usize = 64;

/// A request for the incidents of a time, or, to all instances, for their names.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    event: String,
    instance: String,
    number: u64,
    /// The instance that is asked; empty: all.
    of: String,
    from_ms: u64,
    to_ms: u64,
}

/// What `instance` knows: all incidents from `from_ms` until before `to_ms`, and some from the rest of the requested time.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    event: String,
    instance: String,
    /// The instance that asked, and the number of the request.
    of: String,
    number: u64,
    from_ms: u64,
    to_ms: u64,
    events: Vec<Event>,
}

/// The incidents of an answer, and the time that they fill; no gap is filled if that time is empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilledGap {
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    pub(super) events: Vec<Event>,
}

#[derive(Debug, Default)]
struct Peer {
    unanswered: u8,
    /// The ends of the gaps of which the instance knows nothing.
    useless: BTreeSet<u64>,
}

#[derive(Debug)]
struct Pending {
    peer: String,
    number: u64,
    from_ms: u64,
    to_ms: u64,
    sent_ms: u64,
}

/// The state of one instance.
#[derive(Debug, Default)]
pub(super) struct HistoryExchange {
    peers: BTreeMap<String, Peer>,
    pending: Option<Pending>,
    number: u64,
    discoveries: u32,
    discover_at_ms: u64,
    answers_left: u8,
    answered: VecDeque<(String, u64)>,
}

impl HistoryExchange {
    /// Starts again after a new gap.
    pub(super) fn restart(&mut self) {
        (self.discoveries, self.discover_at_ms) = (0, 0);
        self.peers.values_mut().for_each(|peer| peer.useless.clear());
    }

    /// The request to be published now; must be called every second. `own`: this instance.
    pub(super) fn due(&mut self, own: &str, gaps: &Gaps, now_ms: u64) -> Option<String> {
        self.answers_left = ANSWERS_PER_SECOND;
        if let Some(pending) = self.pending.take() {
            if now_ms.saturating_sub(pending.sent_ms) < ms(ANSWER_TIMEOUT) {
                self.pending = Some(pending);
                return None;
            }
            if let Some(peer) = self.peers.get_mut(&pending.peer) {
                peer.unanswered += 1;
            }
            self.peers.retain(|_, peer| peer.unanswered < TRIES_MAX);
        }
        let day_ago_ms = now_ms.saturating_sub(ms(HISTORY_AGE));
        let mut recent = gaps.iter().rev().filter(|gap| gap.to_ms > day_ago_ms).peekable();
        recent.peek()?;
        let of_peer = |to_ms| self.peers.iter().find(|(_, peer)| !peer.useless.contains(&to_ms)).map(|(name, _)| name);
        let (of, from_ms, to_ms) = match recent.find_map(|gap| Some((of_peer(gap.to_ms)?, gap))) {
            Some((peer, gap)) => (peer.clone(), gap.from_ms.max(day_ago_ms), gap.to_ms),
            None if self.discoveries < DISCOVERIES && now_ms >= self.discover_at_ms => {
                self.discover_at_ms = now_ms + (1_000 << self.discoveries);
                self.discoveries += 1;
                (String::new(), 0, 0)
            }
            None => return None,
        };
        self.number += 1;
        let number = self.number;
        if !of.is_empty() {
            self.pending = Some(Pending { peer: of.clone(), number, from_ms, to_ms, sent_ms: now_ms });
        }
        let request = Request { event: REQUEST.to_owned(), instance: own.to_owned(), number, of, from_ms, to_ms };
        serde_json::to_string(&request).ok()
    }

    /// The answer to the request of another instance, of at most `max` bytes: the latest that is known of the
    /// requested time; `knows` returns the part that is known.
    pub(super) fn answer(
        &mut self,
        text: &[u8],
        own: &str,
        (known, knows): (&Incidents, &dyn Fn(u64, u64) -> (u64, u64)),
        max: usize,
    ) -> Option<String> {
        let request: Request = serde_json::from_slice(text).ok()?;
        let Request { event, instance, number, of, from_ms: asked_from_ms, to_ms: asked_to_ms } = request;
        let is_asked = of.is_empty() || of == own;
        let key = (instance, number);
        let is_new = !self.answered.contains(&key);
        let is_other = InstanceName::parse(&key.0).is_some() && key.0 != own;
        if event != REQUEST || !is_asked || !is_new || !is_other || self.answers_left == 0 {
            return None;
        }
        self.answers_left -= 1;
        self.answered.push_back(key.clone());
        if self.answered.len() > ANSWERED_MAX {
            self.answered.pop_front();
        }
        let (from_ms, to_ms) = if of.is_empty() { (0, 0) } else { knows(asked_from_ms, asked_to_ms) };
        let answer = Answer {
            event: ANSWER.to_owned(),
            instance: own.to_owned(),
            of: key.0,
            number,
            from_ms,
            to_ms,
            events: Vec::new(),
        };
        let asked = if of.is_empty() { (0, 0) } else { (asked_from_ms, asked_to_ms) };
        serde_json::to_string(&filled_up(answer, known, asked, max)?).ok()
    }

    /// What an answer to this instance fills. Any client of the nodes may publish one: only incidents that were asked for count.
    pub(super) fn receive(&mut self, text: &[u8], own: &str) -> Option<FilledGap> {
        let answer: Answer = serde_json::from_slice(text).ok()?;
        let Answer { event, instance, of, number, from_ms, to_ms, events } = answer;
        if event != ANSWER || of != own || instance == own || InstanceName::parse(&instance).is_none() {
            return None;
        }
        if self.peers.contains_key(&instance) || self.peers.len() < PEERS_MAX {
            self.peers.entry(instance.clone()).or_default().unanswered = 0;
        }
        let is_pending = |pending: &mut Pending| pending.peer == instance && pending.number == number;
        let asked = self.pending.take_if(is_pending)?;
        if to_ms < asked.to_ms || from_ms >= to_ms {
            self.peers.get_mut(&instance)?.useless.insert(asked.to_ms);
        }
        let (from_ms, to_ms) = (from_ms.max(asked.from_ms), to_ms.min(asked.to_ms));
        let is_within = |event: &Event| (asked.from_ms..asked.to_ms).contains(&event.at_ms);
        let events = events.into_iter().filter(is_within).collect();
        Some(FilledGap { from_ms, to_ms: to_ms.max(from_ms), events })
    }
}

/// Adds the latest incidents of the requested time that fit; the answer begins after the first one that does not fit.
fn filled_up(mut answer: Answer, known: &Incidents, asked: (u64, u64), max: usize) -> Option<Answer> {
    let within = |event: &&std::sync::Arc<Event>| (asked.0..asked.1).contains(&event.at_ms);
    let mut events: Vec<_> = known.iter().filter(within).collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.at_ms));
    let empty = serde_json::to_string(&answer).ok()?.len() + 20;
    let mut bytes = empty;
    for event in events {
        let size = serde_json::to_string(event).ok()?.len() + 1;
        // No incident that an instance makes is this large.
        if empty + size > max {
            continue;
        }
        bytes += size;
        if bytes > max {
            answer.from_ms = answer.from_ms.max(event.at_ms.saturating_add(1)).min(answer.to_ms);
            break;
        }
        answer.events.push(Event::clone(event));
    }
    Some(answer)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
