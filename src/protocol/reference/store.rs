//! Keys that end: a hash map beside an ordered list of ends, with Redis' rules for a TTL (whole
//! milliseconds; a key is there up to and including its last one). Stands apart because every kind
//! of key of the machine lives and dies by it. Knows no lock and no clock: `now_ms` is an argument.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// A map whose entries may have an end.
#[derive(Debug, Clone)]
pub(super) struct Expiring<K, V> {
    slots: HashMap<K, Slot<V>>,
    /// By end, then by serial: exactly one entry for each slot that has an end, so that memory is
    /// bounded by what is held, however often a TTL is renewed.
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

impl<K, V> Default for Expiring<K, V> {
    fn default() -> Self {
        Self { slots: HashMap::new(), due: BTreeMap::new(), next_serial: 0 }
    }
}

impl<K: Clone + Eq + Hash, V> Expiring<K, V> {
    /// The value, if the key is there at `now_ms`.
    pub(super) fn get(&self, key: &K, now_ms: u64) -> Option<&V> {
        self.slots.get(key).filter(|slot| slot.is_live(now_ms)).map(|slot| &slot.value)
    }

    /// The same, to change it in place; its end stays.
    pub(super) fn get_mut(&mut self, key: &K, now_ms: u64) -> Option<&mut V> {
        self.slots.get_mut(key).filter(|slot| slot.is_live(now_ms)).map(|slot| &mut slot.value)
    }

    /// Redis' `PTTL`: outer `None` for no key, inner `None` for a key without a TTL. Milliseconds.
    pub(super) fn left_ms(&self, key: &K, now_ms: u64) -> Option<Option<u64>> {
        let slot = self.slots.get(key).filter(|slot| slot.is_live(now_ms))?;
        Some(slot.end_ms.map(|end| end - now_ms))
    }

    /// Redis' `SET`: the value and its end replace what was there, which is returned even where it
    /// had expired.
    pub(super) fn put(&mut self, key: K, value: V, end_ms: Option<u64>) -> Option<V> {
        let serial = self.next_serial;
        self.next_serial += 1;
        if let Some(end) = end_ms {
            self.due.insert((end, serial), key.clone());
        }
        let old = self.slots.insert(key, Slot { value, end_ms, serial })?;
        self.forget_end(old.end_ms, old.serial);
        Some(old.value)
    }

    /// Redis' `PEXPIRE` (or `PERSIST`) on a key that is there.
    pub(super) fn set_end(&mut self, key: &K, end_ms: Option<u64>) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let (old, serial) = (slot.end_ms, slot.serial);
        slot.end_ms = end_ms;
        self.forget_end(old, serial);
        if let Some(end) = end_ms {
            self.due.insert((end, serial), key.clone());
        }
    }

    /// Redis' `DEL`; returns the value even where it had expired.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.slots.remove(key)?;
        self.forget_end(slot.end_ms, slot.serial);
        Some(slot.value)
    }

    /// Drops up to `limit` keys that are over, the longest over first, and hands each to `gone`.
    pub(super) fn purge(&mut self, now_ms: u64, limit: usize, mut gone: impl FnMut(K, V)) {
        for _ in 0..limit {
            let Some(first) = self.due.first_entry() else { return };
            if first.key().0 >= now_ms {
                return;
            }
            let key = first.remove();
            if let Some(slot) = self.slots.remove(&key) {
                gone(key, slot.value);
            }
        }
    }

    /// The latest end of all keys that have one.
    pub(super) fn latest_end_ms(&self) -> Option<u64> {
        self.due.last_key_value().map(|((end, _), _)| *end)
    }

    /// The earliest end from `from_ms` on.
    pub(super) fn next_end_ms(&self, from_ms: u64) -> Option<u64> {
        self.due.range((from_ms, 0)..).next().map(|((end, _), _)| *end)
    }

    /// How many keys are in memory, expired ones that were not yet dropped included.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    fn forget_end(&mut self, end_ms: Option<u64>, serial: u64) {
        if let Some(end) = end_ms {
            self.due.remove(&(end, serial));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_there_through_its_last_millisecond() {
        let mut keys = Expiring::default();
        keys.put("k", 1, Some(100));
        assert_eq!(keys.left_ms(&"k", 90), Some(Some(10)));
        assert_eq!(keys.get(&"k", 100), Some(&1));
        assert_eq!(keys.left_ms(&"k", 101), None);
        keys.purge(100, 10, |_, _| panic!("not over yet"));
        let mut gone = Vec::new();
        keys.purge(101, 10, |k, v| gone.push((k, v)));
        assert_eq!((gone, keys.len()), (vec![("k", 1)], 0));
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
        let mut gone = Vec::new();
        keys.purge(100, 3, |k, ()| gone.push(k));
        assert_eq!((gone, keys.len()), (vec![0, 1, 2], 7));
    }
}
