//! What an instance publishes of its own waiters, and when.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::moved_places::{self, OwnPlaces, PlacedWaiters};
use crate::protocol::{FIRST_WAITERS_MAX, PublishedResource, PublishedWaiter, WaitersEntry};
use crate::redlock::clock::BootTime;
use crate::types::ResourceName;
use crate::waiting::event::WaiterEntry;

/// An unchanged entry is published again after this time, so that two attempts in a row may fail before it expires.
const REFRESH_AFTER: Duration = Duration::from_secs(3);

/// The waiters of this instance, without times that change by themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnWaiters {
    pub(super) waiting: usize,
    resources: Vec<OwnResource>,
    pub(super) places: OwnPlaces,
}

/// The waiters for one resource; resources are in order of their oldest waiters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnResource {
    resource: ResourceName,
    waiting: usize,
    first: Vec<WaiterEntry>,
}

impl OwnWaiters {
    /// The waiters in `all`, the oldest first.
    pub(super) fn of(all: Vec<(ResourceName, usize, WaiterEntry)>, kept: OwnPlaces) -> Self {
        let (mut own, mut places) = (Self { waiting: all.len(), places: kept, ..Self::default() }, HashMap::new());
        for (resource, _, waiter) in all {
            let place = *places.entry(resource.clone()).or_insert(own.resources.len());
            if place == own.resources.len() {
                own.resources.push(OwnResource { resource, waiting: 0, first: Vec::new() });
            }
            let Some(entry) = own.resources.get_mut(place) else { continue };
            entry.waiting += 1;
            if entry.first.len() < FIRST_WAITERS_MAX {
                entry.first.push(waiter);
            }
        }
        own
    }

    /// The waiters with places, as far as the entry names them.
    pub(super) fn placed(&self) -> PlacedWaiters {
        let of =
            |own: &OwnResource, waiter: &WaiterEntry| (waiter.since, (own.resource.clone(), Arc::clone(&waiter.owner)));
        let waiters = self.resources.iter().flat_map(|own| own.first.iter().map(move |waiter| of(own, waiter)));
        let places = self.places.iter().map(|(tag, since)| (Arc::clone(tag), *since));
        moved_places::placed(places, waiters)
    }

    /// The entry as it is written at `now`.
    pub(super) fn entry(&self, stamp: u64, now: BootTime) -> WaitersEntry {
        let ms = |since: BootTime| u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
        let published = |own: &OwnResource| PublishedResource {
            resource: own.resource.as_str().into(),
            waiting: own.waiting,
            first: own
                .first
                .iter()
                .map(|w| PublishedWaiter {
                    owner: Arc::clone(&w.owner),
                    waiting_ms: ms(w.since),
                    shares: PublishedWaiter::shares_of(w.mode),
                    left_ms: u64::try_from(w.until.since(now).as_millis()).ok(),
                    note: PublishedWaiter::note_of(&w.note),
                    is_ticket: w.is_ticket,
                })
                .collect(),
        };
        let oldest = self.resources.first().and_then(|oldest| oldest.first.first());
        WaitersEntry {
            stamp,
            waiting: self.waiting,
            oldest_ms: oldest.map_or(0, |waiter| ms(waiter.since)),
            resources: self.resources.iter().map(published).collect(),
            places: moved_places::published(&self.places, now),
        }
    }
}

/// What this instance has published.
pub(super) struct Publisher {
    stamp: u64,
    pub(super) last: OwnWaiters,
    /// When a quorum of nodes stored it; `None`: it must be published again.
    pub(super) stored_at: Option<BootTime>,
}

impl Publisher {
    /// A publisher without an entry, which is equivalent to an entry without waiters.
    pub(super) fn new(now: BootTime) -> Self {
        Self { stamp: 0, last: OwnWaiters::default(), stored_at: Some(now) }
    }

    /// The entry to be published now, if the waiters changed, or if the last entry will expire or was stored by too
    /// few nodes. An entry without waiters may expire, since earlier entries expire first.
    pub(super) fn due(&mut self, own: OwnWaiters, now: BootTime) -> Option<WaitersEntry> {
        let is_fresh = self.stored_at.is_some_and(|at| own.waiting == 0 || now.since(at) < REFRESH_AFTER);
        if own == self.last && is_fresh {
            return None;
        }
        self.stamp += 1;
        self.stored_at = None;
        self.last = own;
        Some(self.last.entry(self.stamp, now))
    }
}
