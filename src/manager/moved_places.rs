//! Places that move to another instance: each instance publishes since when its requests with a `wait_id` have waited. If such a
//! request arrives here, because that instance stopped or died, it counts as waiting since then. This affects the order within
//! the queues of this instance, but no vote. Published places expire after [`WAITERS_TTL`](crate::protocol::WAITERS_TTL).

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

/// The longest wait that is believed: no caller waits longer, and any client of a node may have made up a longer one.
const WAITED_MAX: Duration = Duration::from_hours(24);

/// Since when the requests with a `wait_id` have waited, by tag: those that have waited longest.
pub(super) type OwnPlaces = Vec<(Arc<str>, BootTime)>;

/// The tag of a place on the nodes: readers of the nodes learn neither the principal nor the `wait_id`.
pub(super) fn tag(key: &PlaceKey) -> Arc<str> {
    let mut digest = Sha256::new();
    for part in key.resources.iter().map(|resource| resource.as_str()).chain([&*key.principal, key.wait_id.as_str()]) {
        digest.update(part);
        digest.update([0]);
    }
    HEXLOWER.encode(&digest.finalize()[..PLACE_TAG_BYTES / 2]).into()
}

/// Waiters by the tags of their places, with resource and owner.
pub(super) type PlacedWaiters = Vec<(Arc<str>, (ResourceName, Arc<str>))>;

/// The waiters of places, of one instance, matched by the instant since when they wait, or by the time waited.
/// `places` and `waiters` have that value as key.
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

/// The places as they are written at `now`.
pub(super) fn published(own: &OwnPlaces, now: BootTime) -> Vec<PublishedPlace> {
    let ms = |since| u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
    own.iter().map(|(tag, since)| PublishedPlace { tag: Arc::clone(tag), waiting_ms: ms(*since) }).collect()
}

/// How long a place has waited, given that it had waited for `waiting_ms` at the time `ago` before now.
pub(super) fn waited(waiting_ms: u64, ago: Duration) -> Duration {
    Duration::from_millis(waiting_ms).saturating_add(ago).min(WAITED_MAX)
}
