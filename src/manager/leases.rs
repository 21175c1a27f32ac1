//! What this instance knows of held leases: those that it granted itself (for the time left in a
//! failed extend, and for counting), and a snapshot of the whole cluster's (for lists and pages),
//! which is refreshed on demand, at most so often, and never on the path of an acquire.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::entropy::Entropy;
use crate::redlock::node::{LeaseRecord, Listed, Node};
use crate::redlock::types::{ResourceName, TokenHash};

/// The most leases of its own that an instance remembers; beyond it a failed extend cannot say what
/// is left of the old promise.
const OWN_LEASES_MAX: usize = 1_000_000;
/// A refresh may take at most this share of the time: the pause after it is so many times as long.
const REFRESH_REST: u32 = 10;
/// A snapshot that nobody asked for is dropped after this time.
const SNAPSHOT_IDLE: Duration = Duration::from_mins(5);

/// Leases granted or extended by this instance that are still running.
#[derive(Default)]
pub struct OwnLeases {
    deadlines: Mutex<HashMap<Key, Own>>,
}

struct Own {
    deadline: BootTime,
    /// When this instance first gave a promise for it.
    since: BootTime,
    /// Only where its end is to be told.
    named: Option<Box<(ResourceName, TokenHash)>>,
}

/// What a [`OwnLeases::sweep`] found.
#[derive(Debug, Default)]
pub struct Swept {
    /// Of those that have run out, the named ones.
    pub over: Vec<(ResourceName, TokenHash)>,
    /// Since when the oldest of those that still run is promised.
    pub oldest: Option<BootTime>,
}

/// Half of a token's hash: 128 bits are enough to tell leases apart, in 16 bytes.
type Key = [u8; 16];

fn key(token: &TokenHash) -> Key {
    let hex = token.as_str().as_bytes();
    std::array::from_fn(|i| nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]))
}

fn nibble(digit: u8) -> u8 {
    if digit.is_ascii_digit() { digit - b'0' } else { digit - b'a' + 10 }
}

impl OwnLeases {
    /// A promise was given at `now`; with its name, [`Self::sweep`] gives it back when it has run out.
    pub fn note(&self, token: &TokenHash, deadline: BootTime, now: BootTime, named: Option<&ResourceName>) {
        let named = named.map(|resource| Box::new((resource.clone(), token.clone())));
        let mut deadlines = self.lock();
        let has_room = deadlines.len() < OWN_LEASES_MAX;
        match deadlines.entry(key(token)) {
            Entry::Occupied(mut own) => *own.get_mut() = Own { deadline, since: own.get().since, named },
            Entry::Vacant(place) if has_room => drop(place.insert(Own { deadline, since: now, named })),
            Entry::Vacant(_) => {}
        }
    }

    /// It is over. Since when it was promised here, where it was.
    pub fn forget(&self, token: &TokenHash) -> Option<BootTime> {
        self.lock().remove(&key(token)).map(|own| own.since)
    }

    /// What is left of it, where this instance gave it.
    pub fn valid_for(&self, token: &TokenHash, now: BootTime) -> Option<Duration> {
        self.lock().get(&key(token)).map(|own| own.deadline.since(now))
    }

    /// How many are running, as of the last [`Self::sweep`].
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Drops those that have run out, each told to `lapsed` with the time from its first promise to
    /// the end of its last.
    pub fn sweep(&self, now: BootTime, mut lapsed: impl FnMut(Duration)) -> Swept {
        let (mut deadlines, mut swept) = (self.lock(), Swept::default());
        deadlines.retain(|_, own| {
            let runs = own.deadline > now;
            if runs {
                swept.oldest = Some(swept.oldest.map_or(own.since, |oldest| oldest.min(own.since)));
                return true;
            }
            lapsed(own.deadline.since(own.since));
            swept.over.extend(own.named.take().map(|named| *named));
            false
        });
        if deadlines.capacity() > 1_024 && deadlines.len() < deadlines.capacity() / 4 {
            deadlines.shrink_to_fit();
        }
        swept
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Own>> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease in the snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotLease {
    /// As the first node that was heard has it.
    pub record: LeaseRecord,
    /// The q-th largest TTL of its key when the snapshot was taken.
    pub left: Duration,
}

/// The held leases of the whole cluster at one time.
#[derive(Debug)]
pub struct Snapshot {
    /// By name.
    pub leases: BTreeMap<ResourceName, SnapshotLease>,
    /// When it was begun.
    pub taken: BootTime,
    /// A quorum of nodes told all they have.
    pub complete: bool,
    took: Duration,
}

/// Keeps one snapshot.
pub struct Snapshots {
    current: tokio::sync::Mutex<Option<Arc<Snapshot>>>,
    asked: Mutex<BootTime>,
    refresh: Duration,
}

impl Snapshots {
    /// A snapshot is used for `refresh`, or longer where taking it takes long.
    pub fn new(refresh: Duration) -> Self {
        Self { current: tokio::sync::Mutex::new(None), asked: Mutex::new(BootTime::default()), refresh }
    }

    /// The current snapshot, taken now where the last one is too old. All who ask meanwhile share it.
    ///
    /// Cancel: the next one who asks takes it.
    pub async fn get<N: Node, C: Clock, E: Entropy>(&self, engine: &Redlock<N, C, E>) -> Arc<Snapshot> {
        let mut current = self.current.lock().await;
        let now = engine.clock.now();
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = now;
        if let Some(snapshot) = current.as_ref()
            && now.since(snapshot.taken) < self.refresh.max(snapshot.took * REFRESH_REST)
        {
            return Arc::clone(snapshot);
        }
        let fresh = Arc::new(take(engine, now).await);
        *current = Some(Arc::clone(&fresh));
        fresh
    }

    /// Frees the memory of a snapshot that nobody has asked for lately.
    pub fn sweep(&self, now: BootTime) {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(asked) > SNAPSHOT_IDLE
            && let Ok(mut current) = self.current.try_lock()
        {
            *current = None;
        }
    }
}

/// The leases that nodes have under one name (one, unless something went wrong), with the TTL that
/// each of these nodes gives its key.
type Copies = Vec<(LeaseRecord, Vec<u64>)>;

async fn take<N: Node, C: Clock, E: Entropy>(engine: &Redlock<N, C, E>, now: BootTime) -> Snapshot {
    let merged: Mutex<HashMap<ResourceName, Copies>> = Mutex::default();
    let add = |page: Vec<Listed>, seen: &mut HashSet<ResourceName>| {
        let mut merged = merged.lock().unwrap_or_else(PoisonError::into_inner);
        for Listed { resource, record, left_ms } in page {
            // A scan may give an element twice: one node is one voice.
            if !seen.insert(resource.clone()) {
                continue;
            }
            let copies = merged.entry(resource).or_default();
            match copies.iter_mut().find(|(known, _)| known.token == record.token) {
                Some((_, lefts)) => lefts.push(left_ms),
                None => copies.push((record, vec![left_ms])),
            }
        }
    };
    let scans = (0..engine.nodes.len()).map(|i| engine.scan(i, &add));
    let told = futures_util::future::join_all(scans).await.into_iter().filter(|ok| *ok).count();
    let silent = engine.nodes.len() - told;
    let merged = merged.into_inner().unwrap_or_else(PoisonError::into_inner);
    let decide = |(resource, copies): (ResourceName, Copies)| {
        let (record, mut lefts) = copies.into_iter().max_by_key(|(_, lefts)| lefts.len())?;
        if lefts.len() + silent < engine.quorum() {
            return None;
        }
        lefts.sort_unstable_by(|a, b| b.cmp(a));
        let left_ms = lefts.get(engine.quorum() - 1).or(lefts.last()).copied()?;
        Some((resource, SnapshotLease { record, left: Duration::from_millis(left_ms) }))
    };
    Snapshot {
        leases: merged.into_iter().filter_map(decide).collect(),
        taken: now,
        complete: told >= engine.quorum(),
        took: engine.clock.now().since(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(digit: &str) -> TokenHash {
        TokenHash::parse(&digit.repeat(64)).expect("hex")
    }

    #[test]
    fn own_leases_are_known_until_they_run_out() {
        let (own, at) = (OwnLeases::default(), |s| BootTime::default().plus(Duration::from_secs(s)));
        let name = ResourceName::parse("x").expect("valid");
        own.note(&token("a"), at(9), at(1), Some(&name));
        own.note(&token("a"), at(10), at(3), Some(&name));
        own.note(&token("b"), at(20), at(2), None);
        assert_eq!(own.valid_for(&token("a"), at(4)), Some(Duration::from_secs(6)));
        assert_eq!(own.valid_for(&token("c"), at(4)), None);
        let mut lapsed = Vec::new();
        let swept = own.sweep(at(10), |held| lapsed.push(held));
        assert_eq!((swept.over, swept.oldest), (vec![(name, token("a"))], Some(at(2))));
        assert_eq!(lapsed, [Duration::from_secs(9)], "from the first promise to the end of the last");
        assert_eq!((own.count(), own.valid_for(&token("a"), at(10))), (1, None));
        assert_eq!((own.forget(&token("b")), own.forget(&token("b"))), (Some(at(2)), None));
        assert_eq!(own.count(), 0);
    }

    #[test]
    fn keys_are_the_first_half_of_the_hash() {
        assert_eq!(key(&TokenHash::parse(&"0f".repeat(32)).expect("hex")), [0x0f; 16]);
    }
}
