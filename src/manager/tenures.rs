//! Which owner held, or waited for, which name, from when to when, in the last hour and at all instances, for the drawings
//! of pages. Each instance records what ends at it, and publishes that. For people only: nothing depends on it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::event_fields::LeaseEvent;
use super::event_kind::EventKind;
use super::gaps::Gap;
use crate::api::Event;
use crate::keyed_maps::KeyedMap;
use crate::protocol::InstanceName;
use crate::types::{OWNER_MAX_BYTES, ResourceName};

/// The name of the message among the events of other instances.
pub(super) const MESSAGE: &str = "tenures";
/// Maximum number of tenures of one name, leases and waits each: at twice as many, those closest together are merged.
const OF_NAME_MAX: usize = 128;
/// Maximum number of tenures of all names: beyond it, half of them stay. A short lease takes some hundred bytes with its name.
const TENURES_MAX: usize = 20_000;
/// Maximum number of tenures that wait to be published, for seconds.
const UNPUBLISHED_MAX: usize = 2_000;
/// Maximum number of tenures of one name in a message, leases and waits each.
const OF_NAME_IN_MESSAGE_MAX: usize = 4;
/// Maximum number of tenures of all names in a message: those that lasted longest.
const MESSAGE_TENURES_MAX: usize = 128;
/// Maximum number of other instances whose last message is known, so that copies of it through other nodes count once.
const INSTANCES_MAX: usize = 32;
/// Time between two messages.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(5);
const HOUR_MS: u64 = 3_600_000;
const MINUTE_MS: u64 = 60_000;

/// How the lease or the wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TenureEnd {
    /// The holder released the lease.
    Released,
    /// Nobody renewed the lease.
    Expired,
    /// A connection that held the lease, or the service that kept it, lost it.
    Lost,
    /// An operator ended the lease.
    Forced,
    /// The wait ended with a grant.
    Granted,
    /// The wait ended without a grant.
    GaveUp,
}

impl TenureEnd {
    fn is_wait(self) -> bool {
        matches!(self, Self::Granted | Self::GaveUp)
    }
}

/// A lease or a wait that is over, or several of one name that lie close together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tenure {
    /// Owner label; empty without one, `None` for several owners.
    pub owner: Option<String>,
    /// When the tenure began. Milliseconds since 1970.
    pub from_ms: u64,
    /// When the tenure ended. Milliseconds since 1970.
    pub to_ms: u64,
    /// How the tenure ended; of several, the last.
    pub end: TenureEnd,
    /// How many tenures are merged in it.
    pub count: u32,
    /// Their total duration. Milliseconds.
    pub lasted_ms: u64,
}

impl Tenure {
    fn new(owner: &str, to_ms: u64, lasted_ms: u64, end: TenureEnd) -> Self {
        let (owner, from_ms) = (Some(owner.to_owned()), to_ms.saturating_sub(lasted_ms));
        Self { owner, from_ms, to_ms, end, count: 1, lasted_ms }
    }

    /// Whether both are one lease that expired while a connection held it: its end is reported twice.
    fn is_same_lease(&self, other: &Self) -> bool {
        let ends = [self.end, other.end];
        ends.contains(&TenureEnd::Lost)
            && ends.contains(&TenureEnd::Expired)
            && (self.count, other.count) == (1, 1)
            && self.owner == other.owner
            && self.from_ms.abs_diff(other.from_ms) < self.lasted_ms.max(1_000)
    }

    /// Whether one of them stands for several and the other lies mostly within it: two instances sent them for one
    /// name, which is not held twice.
    fn is_within(&self, other: &Self) -> bool {
        let common = self.to_ms.min(other.to_ms).saturating_sub(self.from_ms.max(other.from_ms));
        let shorter = (self.to_ms - self.from_ms).min(other.to_ms - other.from_ms);
        (self.count > 1 || other.count > 1) && common > shorter / 2
    }

    fn extent_with(&self, next: &Self) -> u64 {
        self.to_ms.max(next.to_ms).saturating_sub(self.from_ms.min(next.from_ms))
    }

    fn absorb(&mut self, next: Self) {
        if self.owner != next.owner {
            self.owner = None;
        }
        if next.to_ms >= self.to_ms {
            self.end = next.end;
        }
        (self.from_ms, self.to_ms) = (self.from_ms.min(next.from_ms), self.to_ms.max(next.to_ms));
        self.count = self.count.saturating_add(next.count);
        self.lasted_ms = self.lasted_ms.saturating_add(next.lasted_ms);
    }

    /// Whether another instance can have sent it: no longer than any label, and of the last hour.
    fn is_plausible(&self, now_ms: u64) -> bool {
        self.owner.as_ref().is_none_or(|owner| owner.len() <= OWNER_MAX_BYTES)
            && self.from_ms <= self.to_ms
            && self.count > 0
            && (now_ms.saturating_sub(HOUR_MS)..=now_ms + MINUTE_MS).contains(&self.to_ms)
    }
}

/// Merges the tenures that lie closest together, until at most `max` are left.
fn compact(tenures: &mut Vec<Tenure>, max: usize) {
    let mut within_ms = 250_u64;
    while tenures.len() > max {
        within_ms = within_ms.saturating_mul(2);
        let mut kept: Vec<Tenure> = Vec::with_capacity(tenures.len());
        for next in tenures.drain(..) {
            match kept.last_mut() {
                Some(last) if last.extent_with(&next) <= within_ms => last.absorb(next),
                _ => kept.push(next),
            }
        }
        *tenures = kept;
    }
}

/// The tenures of a name, each list ordered by beginning.
#[derive(Debug, Default)]
struct OfName {
    leases: Vec<Tenure>,
    waits: Vec<Tenure>,
    /// For [`Names::keep_most`] alone.
    is_recent: bool,
}

impl OfName {
    fn len(&self) -> usize {
        self.leases.len() + self.waits.len()
    }

    fn all(&self) -> impl Iterator<Item = &Tenure> {
        self.leases.iter().chain(&self.waits)
    }

    fn last_ms(&self) -> u64 {
        self.all().map(|tenure| tenure.to_ms).max().unwrap_or_default()
    }

    fn lasted_ms(&self) -> u64 {
        self.all().map(|tenure| tenure.lasted_ms).fold(0, u64::saturating_add)
    }

    fn add(&mut self, mut tenure: Tenure) {
        let list = if tenure.end.is_wait() { &mut self.waits } else { &mut self.leases };
        if list.is_empty() {
            *list = vec![tenure];
            return;
        }
        let may_be_known = matches!(tenure.end, TenureEnd::Lost | TenureEnd::Expired);
        if let Some(known) = list.iter_mut().rev().find(|known| may_be_known && known.is_same_lease(&tenure)) {
            (known.end, known.to_ms) = (TenureEnd::Lost, known.to_ms.max(tenure.to_ms));
            return;
        }
        while let Some(at) = list.iter().position(|known| known.is_within(&tenure)) {
            tenure.absorb(list.remove(at));
        }
        let at = list.partition_point(|known| known.from_ms <= tenure.from_ms);
        list.insert(at, tenure);
        if list.len() > 2 * OF_NAME_MAX {
            compact(list, OF_NAME_MAX);
        }
    }

    fn forget_before(&mut self, from_ms: u64) {
        self.leases.retain(|tenure| tenure.to_ms >= from_ms);
        self.waits.retain(|tenure| tenure.to_ms >= from_ms);
    }
}

/// The tenures by name, and how many there are in all.
#[derive(Debug, Default)]
struct Names {
    names: KeyedMap<ResourceName, OfName>,
    count: usize,
}

impl Names {
    /// Adds a tenure. If there are more than `max`, tenures that ended before `from_ms` are dropped, and then half of the rest.
    fn add(&mut self, name: &ResourceName, tenure: Tenure, (max, from_ms): (usize, u64)) {
        let of_name = self.names.entry(name.clone()).or_default();
        let before = of_name.len();
        of_name.add(tenure);
        self.count = self.count + of_name.len() - before;
        if self.count > max {
            self.names.values_mut().for_each(|of_name| of_name.forget_before(from_ms));
            self.names.retain(|_, of_name| of_name.len() > 0);
            self.keep_most(max / 2);
        }
    }

    /// Keeps the names that were used last, in an eighth of the space, and those that were held or waited for longest. In place:
    /// to move all names would make every caller wait.
    fn keep_most(&mut self, max: usize) {
        let mut recent = Least::of(self.names.values().map(|name| (name.last_ms(), name.len())).collect(), max / 8);
        for name in self.names.values_mut() {
            name.is_recent = recent.admits(name.last_ms(), name.len());
        }
        let kept: usize = self.names.values().filter(|name| name.is_recent).map(OfName::len).sum();
        let others = self.names.values().filter(|name| !name.is_recent).map(|name| (name.lasted_ms(), name.len()));
        let mut longest = Least::of(others.collect(), max - kept);
        self.names.retain(|_, name| name.is_recent || longest.admits(name.lasted_ms(), name.len()));
        self.count = self.names.values().map(OfName::len).sum();
    }
}

/// The least value of the names that stay, the highest first, and how many tenures of names with this very value may stay.
struct Least(u64, usize);

impl Least {
    /// Of values with their numbers of tenures, of which `max` may stay.
    fn of(mut values: Vec<(u64, usize)>, max: usize) -> Self {
        values.sort_unstable_by_key(|(value, _)| Reverse(*value));
        let mut left = max;
        for same in values.chunk_by(|a, b| a.0 == b.0) {
            let tenures = same.iter().map(|(_, tenures)| tenures).sum();
            match left.checked_sub(tenures) {
                Some(after) => left = after,
                None => return Self(same[0].0, left),
            }
        }
        Self(0, usize::MAX)
    }

    fn admits(&mut self, value: u64, tenures: usize) -> bool {
        let fits = value == self.0 && tenures <= self.1;
        self.1 -= if fits { tenures } else { 0 };
        fits || value > self.0
    }
}

/// The message that one instance publishes to the others.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    event: String,
    instance: String,
    /// Rises with each message of an instance.
    number: u64,
    tenures: Vec<(String, Tenure)>,
}

/// The known tenures of all instances.
#[derive(Default)]
pub(super) struct Tenures(Mutex<State>);

#[derive(Default)]
struct State {
    known: Names,
    unpublished: Names,
    /// The last message of each of the other instances.
    numbers: BTreeMap<String, u64>,
    number: u64,
    published_ms: u64,
    /// Since when this instance records, and the present when it last checked. Milliseconds since 1970.
    since_ms: Option<u64>,
    now_ms: u64,
}

impl State {
    fn add(&mut self, name: &ResourceName, tenure: Tenure) {
        self.see(tenure.to_ms);
        let from_ms = self.now_ms.saturating_sub(HOUR_MS);
        self.unpublished.add(name, tenure.clone(), (UNPUBLISHED_MAX, 0));
        self.known.add(name, tenure, (TENURES_MAX, from_ms));
    }

    fn see(&mut self, now_ms: u64) {
        self.since_ms.get_or_insert(now_ms);
        self.now_ms = now_ms;
    }
}

impl Tenures {
    /// Records an event of this instance.
    pub(super) fn record_event(&self, kind: EventKind, event: &Event) {
        let end = match kind {
            EventKind::Released => TenureEnd::Released,
            EventKind::Expired => TenureEnd::Expired,
            EventKind::Lost => TenureEnd::Lost,
            EventKind::Forced if matches!(event.reason.as_deref(), Some("now" | "forced")) => TenureEnd::Forced,
            _ => return,
        };
        let resource = event.resource.as_deref().and_then(|name| ResourceName::parse(name).ok());
        if let Some((resource, held_ms)) = resource.zip(event.after_ms) {
            let owner = event.owner.as_deref().unwrap_or_default();
            self.0.lock().add(&resource, Tenure::new(owner, event.at_ms, held_ms, end));
        }
    }

    /// Records the end of a lease of this instance by its holder; ignores a grant.
    pub(super) fn record_lease(&self, lease: &LeaseEvent) {
        if let (EventKind::Released, Some(held)) = (lease.kind, lease.held) {
            let tenure = Tenure::new(&lease.owner, lease.at_ms, duration_ms(held), TenureEnd::Released);
            self.0.lock().add(&lease.resource, tenure);
        }
    }

    /// Records that a wait at this instance has ended now.
    pub(super) fn record_wait(
        &self,
        resource: &ResourceName,
        owner: &str,
        waited: Duration,
        end: TenureEnd,
        now_ms: u64,
    ) {
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        self.0.lock().add(resource, Tenure::new(owner, now_ms, waited_ms, end));
    }

    /// The message to be published now, of at most `max` bytes; must be called every second.
    pub(super) fn due(&self, instance: &str, now_ms: u64, max: usize) -> Option<String> {
        let mut state = self.0.lock();
        state.see(now_ms);
        if state.unpublished.count == 0 || now_ms.saturating_sub(state.published_ms) < duration_ms(PUBLISH_INTERVAL) {
            return None;
        }
        (state.published_ms, state.number) = (now_ms, state.number + 1);
        let (number, unpublished) = (state.number, std::mem::take(&mut state.unpublished));
        drop(state);
        let mut tenures: Vec<(String, Tenure)> = Vec::new();
        for (name, OfName { mut leases, mut waits, .. }) in unpublished.names {
            compact(&mut leases, OF_NAME_IN_MESSAGE_MAX);
            compact(&mut waits, OF_NAME_IN_MESSAGE_MAX);
            tenures.extend(leases.into_iter().chain(waits).map(|tenure| (name.to_string(), tenure)));
        }
        tenures.sort_by_key(|(_, tenure)| Reverse(tenure.lasted_ms));
        tenures.truncate(MESSAGE_TENURES_MAX);
        let mut message = Message { event: MESSAGE.to_owned(), instance: instance.to_owned(), number, tenures };
        while !message.tenures.is_empty() {
            let text = serde_json::to_string(&message).ok()?;
            if text.len() <= max {
                return Some(text);
            }
            message.tenures.truncate(message.tenures.len() * 3 / 4);
        }
        None
    }

    /// Receives another instance's message. Any client of the nodes may publish one: only well-formed, recent ones are kept.
    pub(super) fn receive(&self, text: &[u8], own: &str) {
        let Ok(Message { event, instance, number, tenures }) = serde_json::from_slice(text) else { return };
        if event != MESSAGE || InstanceName::parse(&instance).is_none() || instance == own {
            return;
        }
        let mut state = self.0.lock();
        // Another node has already passed it on.
        if state.numbers.get(&instance).is_some_and(|last| *last >= number) {
            return;
        }
        if !state.numbers.contains_key(&instance) && state.numbers.len() >= INSTANCES_MAX {
            state.numbers.pop_first();
        }
        state.numbers.insert(instance, number);
        let now_ms = state.now_ms;
        for (name, tenure) in tenures.into_iter().take(MESSAGE_TENURES_MAX) {
            if let Ok(name) = ResourceName::parse(&name)
                && tenure.is_plausible(now_ms)
            {
                state.known.add(&name, tenure, (TENURES_MAX, now_ms.saturating_sub(HOUR_MS)));
            }
        }
    }

    /// The tenures that ended since `from_ms`, of the wanted names.
    pub(super) fn since(&self, from_ms: u64, is_wanted: impl Fn(&str) -> bool) -> KnownTenures {
        let state = self.0.lock();
        let mut names = HashMap::new();
        for (name, of_name) in state.known.names.iter().filter(|(name, _)| is_wanted(name.as_str())) {
            let recent: Vec<Tenure> = of_name.all().filter(|tenure| tenure.to_ms >= from_ms).cloned().collect();
            if !recent.is_empty() {
                names.insert(name.to_string(), recent);
            }
        }
        KnownTenures { names, since_ms: state.since_ms.unwrap_or(state.now_ms), gaps: Vec::new() }
    }
}

fn duration_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What this instance knows of some names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KnownTenures {
    /// The tenures by name: leases, then waits.
    pub names: HashMap<String, Vec<Tenure>>,
    /// Since when this instance knows them. Milliseconds since 1970.
    pub since_ms: u64,
    /// The times since then of which it does not.
    pub gaps: Vec<Gap>,
}

#[cfg(test)]
#[path = "tenures_tests.rs"]
mod tests;
