//! The waiters of the whole cluster: this instance publishes its own waiters on the nodes, and reads there those of
//! the others, at most two seconds late while a quorum of nodes answers. Each instance serves its own queues: what it
//! knows of the others is for display, except the places that callers bring along (`moved_places`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::moved_places::{self, PlacedWaiters};
use super::overview::ListedWaiter;
use super::published_waiters::{OwnWaiters, Publisher};
use super::service::LockManager;
use super::types::{InstanceQueue, WaiterInfo};
use crate::protocol::{
    InstanceName, ListedEntry, PLACES_MAX, PublishedResource, PublishedWaiter, WAITERS_TTL, WaitersArgs, WaitersEntry,
};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::ResourceName;
use crate::waiting::event::WaiterEntry;
use crate::waiting::kept_places::PlaceKey;
use crate::waiting::state_machine::Queue;

/// Time between two exchanges with the nodes.
const EXCHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// For this long after the last exchange with a quorum, the waiters of other instances count as known.
const KNOWN_FOR: Duration = Duration::from_secs(3);
/// Maximum number of other instances that are remembered; the waiters of further instances are not shown.
const INSTANCES_MAX: usize = 64;
/// Larger than an instance admits: any client that may write to a node may have made up a larger number.
const WAITERS_MAX: usize = 1_000_000;

/// The waiters of other instances, as far as they are known.
#[derive(Default)]
pub(super) struct ClusterWaiters(Mutex<Others>);

#[derive(Default)]
struct Others {
    instances: BTreeMap<InstanceName, OtherInstance>,
    /// When a quorum of nodes was last read to its end.
    complete_at: Option<BootTime>,
    /// Whether an instance was left out in the last exchange.
    has_overflow: bool,
}

/// The newest entry of one instance that any node showed.
struct OtherInstance {
    stamp: u64,
    written_at: BootTime,
    ends_at: BootTime,
    waiting: usize,
    oldest_ms: u64,
    resources: BTreeMap<ResourceName, PublishedResource>,
    /// How long each place had waited, by its tag. Milliseconds.
    places: HashMap<Arc<str>, u64>,
}

impl OtherInstance {
    /// How long a waiter has waited at `now`, given that it had waited for `waiting_ms` when the entry was written.
    fn waited(&self, waiting_ms: u64, now: BootTime) -> Duration {
        Duration::from_millis(waiting_ms).saturating_add(now.since(self.written_at))
    }

    fn left(&self, waiter: &PublishedWaiter, now: BootTime) -> Option<Duration> {
        waiter.left_ms.map(|left| Duration::from_millis(left).saturating_sub(now.since(self.written_at)))
    }

    /// Leaves out the waiter of this place, if the entry names it: matched by the time that both have waited, and by owner.
    fn leave_out(&mut self, tag: &Arc<str>, (resource, owner): &(ResourceName, Arc<str>)) {
        let (Some(waited), Some(of)) = (self.places.get(tag), self.resources.get_mut(resource)) else { return };
        let is_moved = |w: &PublishedWaiter| w.waiting_ms == *waited && w.owner == *owner;
        let Some(at) = of.first.iter().position(is_moved) else { return };
        of.first.remove(at);
        of.waiting = of.waiting.saturating_sub(1);
        if of.waiting == 0 {
            self.resources.remove(resource);
        }
        self.waiting = self.waiting.saturating_sub(1);
        let oldest = self.resources.values().filter_map(|of| of.first.first()).map(|w| w.waiting_ms).max();
        self.oldest_ms = oldest.unwrap_or(self.oldest_ms);
    }

    fn waiting_for(&self, instance: &InstanceName, resource: &PublishedResource, now: BootTime) -> InstanceQueue {
        let oldest = resource.first.first().map_or(Duration::ZERO, |first| self.waited(first.waiting_ms, now));
        InstanceQueue { instance: instance.clone(), waiting: resource.waiting, oldest }
    }

    fn waiters_for<'a>(
        &'a self,
        instance: &'a InstanceName,
        resource: &'a PublishedResource,
        now: BootTime,
    ) -> impl Iterator<Item = WaiterInfo> + 'a {
        resource.first.iter().enumerate().map(move |(i, waiter)| WaiterInfo {
            instance: instance.clone(),
            position: i + 1,
            mode: waiter.mode(),
            owner: waiter.owner.to_string(),
            waiting: self.waited(waiter.waiting_ms, now),
            left: self.left(waiter, now),
            note: waiter.note.to_string(),
            is_ticket: waiter.is_ticket,
        })
    }
}

/// Counts of the waiters of other instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OthersSummary {
    /// How many wait there in all.
    pub(super) waiting: usize,
    /// How many of these wait for resources that are not named.
    pub(super) unnamed: usize,
    /// How long the oldest has waited.
    pub(super) oldest: Option<Duration>,
    /// Whether a quorum of nodes was read lately, and no instance was left out.
    pub(super) is_known: bool,
}

impl OthersSummary {
    /// Whether the resources of all these waiters are known.
    pub(super) fn all_named(&self) -> bool {
        self.is_known && self.unnamed == 0
    }
}

impl ClusterWaiters {
    /// Takes an entry from a node if it is the newest of its instance.
    fn receive(&self, listed: &ListedEntry, now: BootTime) {
        let Some(entry) = WaitersEntry::parse(&listed.entry) else { return };
        let left = Duration::from_millis(listed.left_ms).min(WAITERS_TTL);
        let (ends_at, written_at) = (now.plus(left), now.minus(WAITERS_TTL.saturating_sub(left)));
        let mut others = self.0.lock();
        let known = others.instances.get(&listed.instance);
        if known.is_some_and(|known| known.stamp >= entry.stamp) {
            return;
        }
        if known.is_none() && others.instances.len() >= INSTANCES_MAX {
            others.has_overflow = true;
            return;
        }
        let named = |mut r: PublishedResource| {
            r.waiting = r.waiting.min(WAITERS_MAX);
            Some((ResourceName::parse(&r.resource).ok()?, r))
        };
        let other = OtherInstance {
            stamp: entry.stamp,
            written_at,
            ends_at,
            waiting: entry.waiting.min(WAITERS_MAX),
            oldest_ms: entry.oldest_ms,
            resources: entry.resources.into_iter().filter_map(named).collect(),
            places: entry.places.into_iter().map(|place| (place.tag, place.waiting_ms)).collect(),
        };
        others.instances.insert(listed.instance.clone(), other);
    }

    /// Begins an exchange: expired entries are forgotten.
    fn begin(&self, now: BootTime) {
        let mut others = self.0.lock();
        others.instances.retain(|_, other| other.ends_at > now);
        others.has_overflow = false;
    }

    /// Leaves out waiters whose places are known to wait elsewhere now: at this instance, or at an instance that wrote its
    /// entry later. The entry of an instance that was killed would list them a second time until it expires.
    fn leave_out_moved(&self, own: &OwnWaiters) {
        let mut others = self.0.lock();
        let placed = |other: &OtherInstance| {
            let waiters = other.resources.iter().flat_map(|(name, of)| of.first.iter().map(move |w| (name, w)));
            moved_places::placed(
                other.places.iter().map(|(tag, waiting_ms)| (Arc::clone(tag), *waiting_ms)),
                waiters.map(|(name, w)| (w.waiting_ms, (name.clone(), Arc::clone(&w.owner)))),
            )
        };
        let elsewhere: Vec<(InstanceName, BootTime, PlacedWaiters)> =
            others.instances.iter().map(|(name, other)| (name.clone(), other.written_at, placed(other))).collect();
        let own = own.placed();
        for (name, other) in &mut others.instances {
            let written = (other.written_at, name);
            let later = elsewhere.iter().filter(|(by, at, _)| (*at, by) > written).map(|(_, _, of)| of);
            for (tag, waiter) in later.chain([&own]).flatten() {
                other.leave_out(tag, waiter);
            }
        }
    }

    /// Records that a quorum of nodes was read to its end.
    fn completed(&self, now: BootTime) {
        self.0.lock().complete_at = Some(now);
    }

    pub(super) fn summary(&self, now: BootTime) -> OthersSummary {
        let others = self.0.lock();
        let is_read = others.complete_at.is_some_and(|at| now.since(at) <= KNOWN_FOR);
        let mut summary = OthersSummary { is_known: is_read && !others.has_overflow, ..OthersSummary::default() };
        for other in others.live(now).map(|(_, other)| other).filter(|other| other.waiting > 0) {
            let named: usize = other.resources.values().map(|r| r.waiting).sum();
            summary.waiting = summary.waiting.saturating_add(other.waiting);
            summary.unnamed = summary.unnamed.saturating_add(other.waiting.saturating_sub(named));
            summary.oldest = summary.oldest.max(Some(other.waited(other.oldest_ms, now)));
        }
        summary
    }

    /// Whether all waiters for a resource at other instances are known: an instance with many names publishes only
    /// the queues whose waiters have waited longest.
    pub(super) fn knows_of(&self, resource: &ResourceName, now: BootTime) -> bool {
        let others = self.0.lock();
        let is_read = others.complete_at.is_some_and(|at| now.since(at) <= KNOWN_FOR) && !others.has_overflow;
        let says_all = |other: &OtherInstance| {
            let named: usize = other.resources.values().map(|r| r.waiting).sum();
            named >= other.waiting || other.resources.contains_key(resource)
        };
        is_read && others.live(now).all(|(_, other)| says_all(other))
    }

    /// How long the caller of this place has waited at another instance; zero if no instance is known to have the place.
    pub(super) fn waited_for(&self, key: &PlaceKey, now: BootTime) -> Duration {
        let (tag, others) = (moved_places::tag(key), self.0.lock());
        let waited =
            |other: &OtherInstance| Some(moved_places::waited(*other.places.get(&tag)?, now.since(other.written_at)));
        others.live(now).filter_map(|(_, other)| waited(other)).max().unwrap_or_default()
    }

    /// How many wait for a resource at other instances.
    pub(super) fn waiting_for(&self, resource: &ResourceName, now: BootTime) -> usize {
        let others = self.0.lock();
        others.live(now).filter_map(|(_, other)| other.resources.get(resource)).map(|r| r.waiting).sum()
    }

    /// The waiters for a resource that other instances name, and how many wait there in all, from one state.
    fn waiters_for(&self, resource: &ResourceName, now: BootTime) -> (Vec<WaiterInfo>, usize) {
        let others = self.0.lock();
        let named = others.live(now).filter_map(|(name, other)| Some((name, other, other.resources.get(resource)?)));
        let (mut shown, mut waiting) = (Vec::new(), 0);
        for (name, other, waiters) in named {
            waiting += waiters.waiting;
            shown.extend(other.waiters_for(name, waiters, now));
        }
        (shown, waiting)
    }
}

impl Others {
    fn live(&self, now: BootTime) -> impl Iterator<Item = (&InstanceName, &OtherInstance)> {
        self.instances.iter().filter(move |(_, other)| other.ends_at > now)
    }
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Publishes the waiters of this instance when they changed, and reads those of the others, once a second. Never
    /// returns; dropping it stops it, and the published waiters expire after [`WAITERS_TTL`].
    pub async fn run_waiter_exchange(self) {
        let (mut publisher, mut cursors) = (Publisher::new(self.now()), BTreeMap::new());
        loop {
            self.exchange_waiters(&mut publisher, &mut cursors).await;
            self.clock().sleep(EXCHANGE_INTERVAL).await;
        }
    }

    /// The waiters of this instance. When it stops, its waiters are answered and return elsewhere: their places stay published.
    fn own_waiters(&self, last: &OwnWaiters) -> OwnWaiters {
        let (all, oldest) = self.shared.waiting.places(|places, queue| {
            let oldest = places.oldest(queue, PLACES_MAX).into_iter();
            (queue.all_waiters(), oldest.map(|(key, since)| (key.clone(), since)).collect::<Vec<_>>())
        });
        // Hashed after the lock of the queues was released.
        let places = oldest.iter().map(|(key, since)| (moved_places::tag(key), *since)).collect();
        let is_stopping = self.shared.draining.is_cancelled();
        OwnWaiters::of(all, if is_stopping { last.places.clone() } else { places })
    }

    async fn exchange_waiters(&self, publisher: &mut Publisher, cursors: &mut BTreeMap<usize, u64>) {
        let (now, known) = (self.now(), &self.shared.cluster_waiters);
        let entry: Option<Arc<str>> =
            publisher.due(self.own_waiters(&publisher.last), now).map(|entry| entry.encode().into());
        known.begin(now);
        let listed = self.engine().everyone();
        let exchange = |index: &usize| {
            let cursor = cursors.get(index).copied().unwrap_or_default();
            let (instance, entry) = (self.shared.instance.clone(), entry.clone());
            let args = WaitersArgs { instance, entry, ttl: WAITERS_TTL, cursor };
            self.engine().exchange_waiters(*index, args, |listed| known.receive(&listed, self.now()))
        };
        let done = futures_util::future::join_all(listed.iter().map(exchange)).await;
        cursors.extend(listed.iter().zip(&done).filter_map(|(node, done)| Some((*node, done.as_ref()?.cursor))));
        let (quorum, done) = (self.engine().quorum(), || done.iter().flatten());
        if done().filter(|exchange| exchange.is_published).count() >= quorum {
            publisher.stored_at = Some(now);
        }
        if done().filter(|exchange| exchange.is_complete).count() >= quorum {
            known.completed(self.now());
        }
        known.leave_out_moved(&publisher.last);
    }

    /// The name of this run of this instance.
    pub fn instance(&self) -> &InstanceName {
        &self.shared.instance
    }

    /// The waiters for a resource: those of this instance, then those that the other instances name; and how many
    /// wait at the others in all.
    pub(super) fn waiters_for(&self, resource: &ResourceName) -> (Vec<WaiterInfo>, usize) {
        let now = self.now();
        let own = |(i, waiter): (usize, WaiterEntry)| WaiterInfo {
            instance: self.shared.instance.clone(),
            position: i + 1,
            mode: waiter.mode,
            owner: waiter.owner.to_string(),
            waiting: now.since(waiter.since),
            left: Some(waiter.until.since(now)),
            note: waiter.note.to_string(),
            is_ticket: waiter.is_ticket,
        };
        let own = self.shared.waiting.queue(|queue| queue.waiters_of(resource)).into_iter().enumerate().map(own);
        let (others, waiting_elsewhere) = self.shared.cluster_waiters.waiters_for(resource, now);
        (own.chain(others).collect(), waiting_elsewhere)
    }

    /// How many wait for each resource, and where: this instance first.
    pub(super) fn waiting_by_resource(&self) -> BTreeMap<ResourceName, Vec<InstanceQueue>> {
        let now = self.now();
        let mut waiting: BTreeMap<ResourceName, Vec<InstanceQueue>> = BTreeMap::new();
        for (resource, count, since) in self.shared.waiting.queue(Queue::waiter_counts) {
            let here =
                InstanceQueue { instance: self.shared.instance.clone(), waiting: count, oldest: now.since(since) };
            waiting.insert(resource, vec![here]);
        }
        let others = self.shared.cluster_waiters.0.lock();
        for (instance, other) in others.live(now) {
            for (resource, waiters) in &other.resources {
                let there = other.waiting_for(instance, waiters, now);
                waiting.entry(resource.clone()).or_default().push(there);
            }
        }
        waiting
    }

    /// The longest wait in each queue of this instance, with its owner and the number of waiters in the queue.
    pub fn longest_waits(&self) -> Vec<(ListedWaiter, usize)> {
        let instance = self.instance();
        let mut queues: HashMap<ResourceName, (ListedWaiter, usize)> = HashMap::new();
        for waiter in self.waiters().into_iter().filter(|waiter| waiter.instance == *instance) {
            match queues.get_mut(&waiter.resource) {
                Some((oldest, count)) => {
                    *count += 1;
                    if waiter.waiting > oldest.waiting {
                        *oldest = waiter;
                    }
                }
                None => _ = queues.insert(waiter.resource.clone(), (waiter, 1)),
            }
        }
        queues.into_values().collect()
    }

    /// Every waiter of this instance, and the waiters that the other instances name, the oldest first.
    pub fn waiters(&self) -> Vec<ListedWaiter> {
        let now = self.now();
        let own = |(resource, position, waiter): (ResourceName, usize, WaiterEntry)| ListedWaiter {
            resource,
            instance: self.shared.instance.clone(),
            position,
            owner: waiter.owner,
            waiting: now.since(waiter.since),
            left: Some(waiter.until.since(now)),
            note: waiter.note,
            is_ticket: waiter.is_ticket,
        };
        let mut all: Vec<ListedWaiter> = self.shared.waiting.queue(Queue::all_waiters).into_iter().map(own).collect();
        let others = self.shared.cluster_waiters.0.lock();
        let resources =
            others.live(now).flat_map(|(name, other)| other.resources.iter().map(move |r| (name, other, r)));
        let count = all.len();
        all.extend(resources.flat_map(|(instance, other, (resource, waiters))| {
            waiters.first.iter().enumerate().map(move |(i, waiter)| ListedWaiter {
                resource: resource.clone(),
                instance: instance.clone(),
                position: i + 1,
                owner: Arc::clone(&waiter.owner),
                waiting: other.waited(waiter.waiting_ms, now),
                left: other.left(waiter, now),
                note: Arc::clone(&waiter.note),
                is_ticket: waiter.is_ticket,
            })
        }));
        drop(others);
        if all.len() > count {
            all.sort_by(|a, b| {
                b.waiting.cmp(&a.waiting).then_with(|| (a.position, &a.resource).cmp(&(b.position, &b.resource)))
            });
        }
        all
    }
}

#[cfg(test)]
#[path = "cluster_waiters_tests.rs"]
mod tests;
