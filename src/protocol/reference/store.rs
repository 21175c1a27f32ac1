//! Keys that expire, with Redis' rules for a TTL: whole milliseconds; a key exists through its last one. Used for every
//! kind of key of a reference node.

use std::collections::BTreeMap;
use std::hash::{Hash, RandomState};

use griddle::HashMap;

/// A map whose entries may have an end.
#[derive(Debug, Clone)]
pub(in crate::protocol) struct Expiring<K: Eq + Hash, V> {
    /// Grows in steps: moving a million tombstones at once would take a quarter of a second.
    slots: HashMap<K, Slot<V>, RandomState>,
    /// By end, then by serial: exactly one entry for each slot with an end, so that memory does not grow with the number of
    /// renewals.
    due: BTreeMap<(u64, u64), K>,
    next_serial: u64,
}

#[derive(Debug, Clone)]
struct Slot<V> {
    value: V,
    end_ms: Option<u64>,
    serial: u64,
}

impl<V> Slot<V> {
    fn is_live(&self, now_ms: u64) -> bool {
        self.end_ms.is_none_or(|end| now_ms <= end)
    }
}

impl<K: Eq + Hash, V> Default for Expiring<K, V> {
    fn default() -> Self {
        Self { slots: HashMap::default(), due: BTreeMap::new(), next_serial: 0 }
    }
}

impl<K: Clone + Eq + Hash, V> Expiring<K, V> {
    /// The value, if the key exists at `now_ms`.
    pub(in crate::protocol) fn get(&self, key: &K, now_ms: u64) -> Option<&V> {
        self.slots.get(key).filter(|slot| slot.is_live(now_ms)).map(|slot| &slot.value)
    }

    /// As [`Self::get`], for changes in place; the end stays.
    pub(in crate::protocol) fn get_mut(&mut self, key: &K, now_ms: u64) -> Option<&mut V> {
        self.slots.get_mut(key).filter(|slot| slot.is_live(now_ms)).map(|slot| &mut slot.value)
    }

    /// Redis' `PTTL`: outer `None` for no key, inner `None` for a key without a TTL. Milliseconds.
    pub(in crate::protocol) fn left_ms(&self, key: &K, now_ms: u64) -> Option<Option<u64>> {
        let slot = self.slots.get(key).filter(|slot| slot.is_live(now_ms))?;
        Some(slot.end_ms.map(|end| end - now_ms))
    }

    /// Every key that exists at `now_ms`, in no order, with its value and remaining milliseconds.
    pub(in crate::protocol) fn iter(&self, now_ms: u64) -> impl Iterator<Item = (&K, &V, Option<u64>)> {
        let live = self.slots.iter().filter(move |(_, slot)| slot.is_live(now_ms));
        live.map(move |(key, slot)| (key, &slot.value, slot.end_ms.map(|end| end - now_ms)))
    }

    /// Redis' `SET`: replaces value and end. Returns the old value, even an expired one.
    pub(in crate::protocol) fn put(&mut self, key: K, value: V, end_ms: Option<u64>) -> Option<V> {
        let serial = self.next_serial;
        self.next_serial += 1;
        if let Some(end) = end_ms {
            self.due.insert((end, serial), key.clone());
        }
        let old = self.slots.insert(key, Slot { value, end_ms, serial })?;
        self.remove_end(old.end_ms, old.serial);
        Some(old.value)
    }

    /// Redis' `PEXPIRE` (or `PERSIST`) on an existing key.
    pub(in crate::protocol) fn set_end(&mut self, key: &K, end_ms: Option<u64>) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let (old, serial) = (slot.end_ms, slot.serial);
        slot.end_ms = end_ms;
        self.remove_end(old, serial);
        if let Some(end) = end_ms {
            self.due.insert((end, serial), key.clone());
        }
    }

    /// Redis' `DEL`. Returns the old value, even an expired one.
    pub(in crate::protocol) fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.slots.remove(key)?;
        self.remove_end(slot.end_ms, slot.serial);
        Some(slot.value)
    }

    /// Drops up to `limit` expired keys, the oldest end first, and passes each to `on_drop`.
    pub(in crate::protocol) fn purge(&mut self, now_ms: u64, limit: usize, mut on_drop: impl FnMut(K, V)) {
        for _ in 0..limit {
            let Some(first) = self.due.first_entry() else { return };
            if first.key().0 >= now_ms {
                return;
            }
            let key = first.remove();
            if let Some(slot) = self.slots.remove(&key) {
                on_drop(key, slot.value);
            }
        }
    }

    /// The latest end of all keys.
    pub(in crate::protocol) fn latest_end_ms(&self) -> Option<u64> {
        self.due.last_key_value().map(|((end, _), _)| *end)
    }

    /// The earliest end from `from_ms` on.
    pub(in crate::protocol) fn next_end_ms(&self, from_ms: u64) -> Option<u64> {
        self.due.range((from_ms, 0)..).next().map(|((end, _), _)| *end)
    }

    /// The number of keys in memory, including expired ones that were not dropped yet.
    pub(in crate::protocol) fn len(&self) -> usize {
        self.slots.len()
    }

    fn remove_end(&mut self, end_ms: Option<u64>, serial: u64) {
        if let Some(end) = end_ms {
            self.due.remove(&(end, serial));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_exists_through_its_last_millisecond() {
        let mut keys = Expiring::default();
        keys.put("k", 1, Some(100));
        assert_eq!(keys.left_ms(&"k", 90), Some(Some(10)));
        assert_eq!(keys.get(&"k", 100), Some(&1));
        assert_eq!(keys.left_ms(&"k", 101), None);
        keys.purge(100, 10, |_, _| panic!("not expired yet"));
        let mut dropped = Vec::new();
        keys.purge(101, 10, |k, v| dropped.push((k, v)));
        assert_eq!((dropped, keys.len()), (vec![("k", 1)], 0));
    }

    #[test]
    fn renewing_a_ttl_a_thousand_times_leaves_one_end() {
        let mut keys = Expiring::default();
        keys.put("k", (), Some(1));
        for end in 0..1_000 {
            keys.set_end(&"k", Some(end));
        }
        keys.put("k", (), Some(7));
        assert_eq!((keys.due.len(), keys.latest_end_ms()), (1, Some(7)));
        keys.set_end(&"k", None);
        assert_eq!((keys.due.len(), keys.left_ms(&"k", u64::MAX)), (0, Some(None)));
        keys.remove(&"k");
        assert_eq!(keys.len(), 0);
    }

    #[test]
    fn a_purge_is_bounded_and_takes_the_oldest_first() {
        let mut keys = Expiring::default();
        for i in 0..10_u64 {
            keys.put(i, (), Some(i));
        }
        let mut dropped = Vec::new();
        keys.purge(100, 3, |k, ()| dropped.push(k));
        assert_eq!((dropped, keys.len()), (vec![0, 1, 2], 7));
    }
}
