//! What happened to locks in the last hour, by the minute and at all instances: grants, waits, contention, and which owner held
//! which name for how long. Each instance counts for itself and publishes its minutes. For people only: nothing depends on it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::event_fields::LeaseEvent;
use super::event_kind::EventKind;
use super::latency::{BUCKETS, Histogram, bucket};
use crate::api::Event;
use crate::keyed_maps::KeyedMap;
use crate::protocol::InstanceName;
use crate::types::{OWNER_MAX_BYTES, ResourceName};

/// Minutes that are kept: an hour.
pub(crate) const MINUTES: usize = 60;
/// The name of the message of a minute among the events of other instances.
pub(super) const MESSAGE: &str = "activity";
/// Maximum number of names, and of pairs of name and owner, that are counted in a minute: at twice as many, those
/// with the smallest counts are dropped.
const TRACKED_MAX: usize = 512;
/// How many of these are kept of a minute and published: those with the largest counts.
const KEPT_MAX: usize = 16;
/// Maximum number of instances whose minutes are kept, one for each run; those that reported last stay.
const INSTANCES_MAX: usize = 32;
/// Time after which the present minute is published again.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(5);
/// Larger than any count of an instance in a minute: larger counts of others are made up.
const COUNT_MAX: u64 = 10_000_000;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;

/// One minute of one instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Minute {
    /// The minute. Minutes since 1970.
    minute: u64,
    grants: u64,
    contended: u64,
    /// The buckets with at least one wait, and their counts.
    waits: Vec<(usize, u32)>,
    /// Counts of contended requests by name.
    names: Vec<(String, u64)>,
    /// Milliseconds for which ended leases were held, by name and owner.
    held: Vec<((String, String), u64)>,
}

/// A minute as one instance publishes it to the others.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    event: String,
    instance: String,
    minute: Minute,
}

/// Counts by key; the smallest are dropped when there are too many.
#[derive(Debug)]
struct TopCounts<K>(KeyedMap<K, u64>);

impl<K: Hash + Eq + Ord + Clone> TopCounts<K> {
    fn add(&mut self, key: K, count: u64) {
        let sum = self.0.entry(key).or_default();
        *sum = sum.saturating_add(count);
        if self.0.len() > 2 * TRACKED_MAX {
            self.0 = self.largest(TRACKED_MAX).into_iter().collect();
        }
    }

    /// The entries with the largest counts, the largest first.
    fn largest(&self, limit: usize) -> Vec<(K, u64)> {
        let order = |(a, x): &(&K, &u64), (b, y): &(&K, &u64)| y.cmp(x).then_with(|| a.cmp(b));
        let mut all: Vec<(&K, &u64)> = self.0.iter().collect();
        if limit < all.len() {
            all.select_nth_unstable_by(limit, order);
            all.truncate(limit);
        }
        all.sort_unstable_by(order);
        all.into_iter().map(|(key, count)| (key.clone(), *count)).collect()
    }
}

/// The present minute of this instance.
#[derive(Debug)]
struct Present {
    minute: u64,
    grants: u64,
    contended: u64,
    waits: Histogram,
    names: TopCounts<ResourceName>,
    held: TopCounts<(ResourceName, Box<str>)>,
}

impl Present {
    fn new(minute: u64) -> Self {
        let (names, held) = (TopCounts(KeyedMap::default()), TopCounts(KeyedMap::default()));
        Self { minute, grants: 0, contended: 0, waits: Histogram::default(), names, held }
    }

    fn kept(&self) -> Minute {
        let waits = self.waits.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0);
        let held = self.held.largest(KEPT_MAX).into_iter();
        Minute {
            minute: self.minute,
            grants: self.grants,
            contended: self.contended,
            waits: waits.collect(),
            names: self.names.largest(KEPT_MAX).into_iter().map(|(name, n)| (name.to_string(), n)).collect(),
            held: held.map(|((name, owner), ms)| ((name.to_string(), owner.into()), ms)).collect(),
        }
    }
}

/// What happened to an acquire.
#[derive(Debug, Clone, Copy)]
pub(super) struct AcquireSeen {
    /// How long it waited, if it was ready to wait and was granted or gave up.
    pub waited: Option<Duration>,
    /// Whether it was refused, or had to wait, since another had the lease.
    pub is_contended: bool,
    /// Whether the nodes granted the lease.
    pub is_granted: bool,
}

/// The minutes of all instances.
#[derive(Default)]
pub(super) struct Activity(Mutex<State>);

#[derive(Default)]
struct State {
    present: Option<Present>,
    /// When this instance began to count. Milliseconds since 1970.
    since_ms: Option<u64>,
    published_ms: u64,
    /// Finished minutes of this instance that are not published yet.
    unpublished: VecDeque<Minute>,
    /// By instance and minute; this instance's own minutes are under an empty name.
    minutes: BTreeMap<String, BTreeMap<u64, Minute>>,
}

impl State {
    fn present(&mut self, wall_ms: u64) -> &mut Present {
        self.since_ms.get_or_insert(wall_ms);
        let minute = wall_ms / MINUTE_MS;
        if self.present.as_ref().is_some_and(|present| present.minute < minute)
            && let Some(past) = self.present.take()
        {
            let kept = past.kept();
            self.unpublished.push_back(kept.clone());
            self.unpublished.truncate(MINUTES);
            self.keep(String::new(), kept);
        }
        self.present.get_or_insert_with(|| Present::new(minute))
    }

    fn keep(&mut self, instance: String, minute: Minute) {
        let latest = |minutes: &BTreeMap<u64, Minute>| minutes.keys().next_back().copied();
        if !self.minutes.contains_key(&instance) && self.minutes.len() >= INSTANCES_MAX {
            let others = self.minutes.iter().filter(|(name, _)| !name.is_empty());
            let oldest = others.min_by_key(|(_, minutes)| latest(minutes)).map(|(name, _)| name.clone());
            oldest.map(|name| self.minutes.remove(&name));
        }
        let minutes = self.minutes.entry(instance).or_default();
        minutes.insert(minute.minute, minute);
        if minutes.len() > MINUTES {
            minutes.pop_first();
        }
    }
}

impl Activity {
    /// Counts an event of this instance.
    pub(super) fn record_event(&self, kind: EventKind, event: &Event) {
        // A connection that lost its lease reports that as well; the lease's end is another event.
        let is_end = match kind {
            EventKind::Released | EventKind::Expired => true,
            EventKind::Forced => matches!(event.reason.as_deref(), Some("now" | "forced")),
            EventKind::Acquired => false,
            _ => return,
        };
        let mut state = self.0.lock();
        let present = state.present(event.at_ms);
        let resource = event.resource.as_deref().and_then(|name| ResourceName::parse(name).ok());
        if !is_end {
            present.grants += 1;
        } else if let Some((resource, held_ms)) = resource.zip(event.after_ms) {
            present.held.add((resource, event.owner.as_deref().unwrap_or_default().into()), held_ms);
        }
    }

    /// Counts a grant of this instance, or the end of its lease by the holder.
    pub(super) fn record_lease(&self, lease: &LeaseEvent) {
        let mut state = self.0.lock();
        let present = state.present(lease.at_ms);
        match (lease.kind, lease.held) {
            (EventKind::Acquired, _) => present.grants += 1,
            (EventKind::Released, Some(held)) => {
                let held_ms = u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
                present.held.add((lease.resource.clone(), lease.owner.clone()), held_ms);
            }
            _ => {}
        }
    }

    /// Counts an acquire of this instance that was decided.
    pub(super) fn record_acquire(&self, resource: &ResourceName, seen: AcquireSeen, wall_ms: u64) {
        let mut state = self.0.lock();
        let present = state.present(wall_ms);
        if let Some(waited) = seen.waited {
            let count = &mut present.waits.counts[wait_bucket(waited)];
            *count = count.saturating_add(1);
        }
        if seen.is_contended {
            present.contended += 1;
            present.names.add(resource.clone(), 1);
        }
    }

    /// The messages to be published now, each of at most `max` bytes.
    pub(super) fn due(&self, instance: &str, wall_ms: u64, max: usize) -> Vec<String> {
        let mut state = self.0.lock();
        // It ends the last minute if that is over.
        state.present(wall_ms);
        let mut due: Vec<Minute> = state.unpublished.drain(..).collect();
        if Duration::from_millis(wall_ms.saturating_sub(state.published_ms)) >= PUBLISH_INTERVAL {
            state.published_ms = wall_ms;
            due.push(state.present(wall_ms).kept());
        }
        drop(state);
        let is_quiet = |minute: &Minute| minute.grants == 0 && minute.contended == 0 && minute.held.is_empty();
        due.into_iter().filter(|minute| !is_quiet(minute)).filter_map(|minute| message(instance, minute, max)).collect()
    }

    /// Receives another instance's message. Any client of the nodes may publish one: only well-formed, recent ones are kept.
    pub(super) fn receive(&self, text: &[u8], own: &str) {
        let Ok(Message { event, instance, mut minute }) = serde_json::from_slice(text) else { return };
        let mut state = self.0.lock();
        let Some(present) = state.present.as_ref().map(|present| present.minute) else { return };
        let is_recent = minute.minute <= present + 1 && minute.minute.saturating_add(MINUTES as u64) > present;
        if event != MESSAGE || InstanceName::parse(&instance).is_none() || instance == own || !is_recent {
            return;
        }
        // Any client that may publish on a node may have sent it.
        minute.waits.retain(|(bucket, _)| *bucket < BUCKETS);
        minute.waits.truncate(BUCKETS);
        minute.names.retain(|(name, _)| ResourceName::parse(name).is_ok());
        minute.held.retain(|((name, owner), _)| owner.len() <= OWNER_MAX_BYTES && ResourceName::parse(name).is_ok());
        minute.names.truncate(KEPT_MAX);
        minute.held.truncate(KEPT_MAX);
        let counts = [&mut minute.grants, &mut minute.contended].into_iter();
        counts
            .chain(minute.names.iter_mut().map(|(_, count)| count))
            .for_each(|count| *count = (*count).min(COUNT_MAX));
        state.keep(instance, minute);
    }

    /// The hour that ends now.
    pub(super) fn hour(&self, wall_ms: u64) -> Hour {
        let mut state = self.0.lock();
        let present = state.present(wall_ms).kept();
        let first = present.minute.saturating_sub(MINUTES as u64 - 1);
        let mut hour = Hour {
            minutes: vec![MinuteCounts::default(); MINUTES],
            from_ms: first * MINUTE_MS,
            known_from_ms: state.since_ms.unwrap_or(wall_ms).max(first * MINUTE_MS),
            ..Hour::default()
        };
        let (mut contended, mut held) = (HashMap::new(), HashMap::new());
        for minutes in state.minutes.values() {
            let recent = minutes.range(first..=present.minute);
            hour.instances += usize::from(recent.clone().next().is_some());
            recent.for_each(|(_, minute)| hour.add(minute, &mut contended, &mut held));
        }
        hour.instances += usize::from(!state.minutes.contains_key(""));
        hour.add(&present, &mut contended, &mut held);
        hour.contended = contended;
        hour.held = held.into_iter().map(|(key, ms)| (key, Duration::from_millis(ms))).collect();
        hour
    }
}

/// The message for this minute, with fewer names if it is too long.
fn message(instance: &str, mut minute: Minute, max: usize) -> Option<String> {
    loop {
        let message = Message { event: MESSAGE.to_owned(), instance: instance.to_owned(), minute };
        let text = serde_json::to_string(&message).ok()?;
        if text.len() <= max {
            return Some(text);
        }
        minute = message.minute;
        if minute.held.pop().is_none() & minute.names.pop().is_none() {
            return None;
        }
    }
}

/// Waits are longer than latencies: a millisecond of a wait counts as a microsecond.
fn wait_bucket(waited: Duration) -> usize {
    bucket(Duration::from_micros(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX)))
}

/// The time that this share of the waits did not exceed.
fn wait_quantile(waits: &Histogram, share: f64) -> Option<Duration> {
    waits.quantile(share).map(|micros| Duration::from_millis(u64::try_from(micros.as_micros()).unwrap_or(u64::MAX)))
}

/// One minute of all instances together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MinuteCounts {
    pub grants: u64,
    /// Requests that were refused or had to wait, since another had the lease.
    pub contended: u64,
    waits: Histogram,
}

impl MinuteCounts {
    /// The time that 95 % of the requests that were ready to wait did not exceed; `None` without such requests.
    pub(crate) fn wait_p95(&self) -> Option<Duration> {
        wait_quantile(&self.waits, 0.95)
    }
}

/// The last hour of all instances, as far as this instance knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hour {
    /// The [`MINUTES`] minutes, the oldest first.
    pub minutes: Vec<MinuteCounts>,
    /// The sum of all minutes.
    pub all: MinuteCounts,
    /// When the first minute begins. Milliseconds since 1970.
    pub from_ms: u64,
    /// When this instance's knowledge begins. Milliseconds since 1970.
    pub known_from_ms: u64,
    /// How many runs of instances contributed.
    pub instances: usize,
    /// Contended requests by name: the names with the most requests of each minute.
    pub contended: HashMap<String, u64>,
    /// How long each owner held each name within this hour: of leases that have ended, the longest of each minute.
    pub held: HashMap<(String, String), Duration>,
}

impl Hour {
    fn add(
        &mut self,
        minute: &Minute,
        contended: &mut HashMap<String, u64>,
        held: &mut HashMap<(String, String), u64>,
    ) {
        let begins_ms = minute.minute * MINUTE_MS;
        let index = usize::try_from(begins_ms.saturating_sub(self.from_ms) / MINUTE_MS).unwrap_or(MINUTES);
        let Some(counts) = self.minutes.get_mut(index) else { return };
        for counts in [counts, &mut self.all] {
            counts.grants = counts.grants.saturating_add(minute.grants);
            counts.contended = counts.contended.saturating_add(minute.contended);
            for (bucket, count) in &minute.waits {
                let sum = &mut counts.waits.counts[*bucket];
                *sum = sum.saturating_add(*count);
            }
        }
        for (name, count) in &minute.names {
            let sum = contended.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        // Leases of one name do not overlap: within the hour they were held at most for the part of it up to here.
        let longest = (begins_ms + MINUTE_MS).saturating_sub(self.from_ms);
        for (key, held_ms) in &minute.held {
            let sum = held.entry(key.clone()).or_default();
            *sum = sum.saturating_add((*held_ms).min(longest)).min(HOUR_MS);
        }
    }
}

#[cfg(test)]
#[path = "activity_tests.rs"]
mod tests;
