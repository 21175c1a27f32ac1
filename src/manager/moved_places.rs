//! Places that go along to another instance: each instance publishes since when the requests with a `wait_id` have waited there,
//! and one of them that arrives here, because that instance stopped or died, waits since then. It concerns the order within the
//! queues of this instance, and no vote. What is published runs out after [`WAITERS_TTL`](crate::protocol::WAITERS_TTL).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::protocol::{PLACE_TAG_BYTES, PublishedPlace};
use crate::redlock::clock::BootTime;
use crate::types::ResourceName;
use crate::waiting::kept_places::PlaceKey;

/// The longest wait that is believed: no caller waits for longer, and any client of a node may have made up a larger one.
const WAITED_MAX: Duration = Duration::from_hours(24);

/// Since when the requests with a `wait_id` wait, by tag: those that have waited longest.
pub(super) type OwnPlaces = Vec<(Arc<str>, BootTime)>;

/// Stands for a place on the nodes: readers of the nodes learn neither the principal nor the `wait_id`.
pub(super) fn tag(key: &PlaceKey) -> Arc<str> {
    let mut digest = Sha256::new();
    for part in key.resources.iter().map(|resource| resource.as_str()).chain([&*key.principal, key.wait_id.as_str()]) {
        digest.update(part);
        digest.update([0]);
    }
    HEXLOWER.encode(&digest.finalize()[..PLACE_TAG_BYTES / 2]).into()
}

/// Waiters by the tags of their places: what for, and the owner.
pub(super) type PlacedWaiters = Vec<(Arc<str>, (ResourceName, Arc<str>))>;

/// The waiters of places, of one instance: those that have waited since the same instant, or for as long. `places` and `waiters`:
/// by that.
pub(super) fn placed<K: Eq + Hash>(
    places: impl Iterator<Item = (Arc<str>, K)>,
    waiters: impl Iterator<Item = (K, (ResourceName, Arc<str>))>,
) -> PlacedWaiters {
    let mut by_wait: HashMap<K, Vec<(ResourceName, Arc<str>)>> = HashMap::new();
    waiters.for_each(|(waited, waiter)| by_wait.entry(waited).or_default().push(waiter));
    let of = |(tag, waited): (Arc<str>, K)| {
        let waiters = by_wait.get(&waited).into_iter().flatten().cloned();
        waiters.map(|waiter| (Arc::clone(&tag), waiter)).collect::<Vec<_>>()
    };
    places.flat_map(of).collect()
}

/// As they are written at `now`.
pub(super) fn published(own: &OwnPlaces, now: BootTime) -> Vec<PublishedPlace> {
    let ms = |since| u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
    own.iter().map(|(tag, since)| PublishedPlace { tag: Arc::clone(tag), waiting_ms: ms(*since) }).collect()
}

/// How long a place counts as having waited that had waited so long some time ago.
pub(super) fn waited(waiting_ms: u64, ago: Duration) -> Duration {
    Duration::from_millis(waiting_ms).saturating_add(ago).min(WAITED_MAX)
}
