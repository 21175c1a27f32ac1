//! The lock keys of a machine and the index by which held leases are listed. Stands apart so that
//! no lock can come or go without its index entry. Knows what a value looks like, no verb.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::store::Expiring;
use crate::protocol::LeaseRecord;
use crate::types::{ResourceName, TokenHash};

/// Where the hash of the token ends in a lock's value.
const TOKEN_HEX_LEN: usize = 64;

/// What stands at a lock's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LockValue {
    /// A lease of ours.
    Lease(LeaseRecord),
    /// Any other string.
    Bytes(Arc<[u8]>),
    /// A key of another Redis type, which is named.
    OtherType(&'static str),
}

impl LockValue {
    /// Reads a string as the scripts would.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        match LeaseRecord::parse(bytes) {
            Some(record) if record.encode().as_bytes() == bytes => Self::Lease(record),
            _ => Self::Bytes(bytes.into()),
        }
    }

    /// What an operator names to evict exactly this: SHA-1 of a string in hex, or the type.
    pub(super) fn fingerprint(&self) -> Arc<str> {
        match self {
            Self::Lease(record) => sha1_hex(record.encode().as_bytes()),
            Self::Bytes(bytes) => sha1_hex(bytes),
            Self::OtherType(kind) => format!("type:{kind}").into(),
        }
    }

    /// `ours` of the scripts: also true of some strings that are no lease when looked at closely.
    pub(super) fn looks_ours(&self) -> bool {
        match self {
            Self::Lease(_) => true,
            Self::OtherType(_) => false,
            Self::Bytes(bytes) => bytes.get(TOKEN_HEX_LEN) == Some(&b'|') && has_lease_head(bytes),
        }
    }

    /// Begins with this token, yet is no lease: the scripts fail on it.
    pub(super) fn is_spoilt_lease_of(&self, token: &TokenHash) -> bool {
        match self {
            Self::Bytes(bytes) => {
                bytes.starts_with(token.as_str().as_bytes()) && bytes.get(TOKEN_HEX_LEN) == Some(&b'|')
            }
            Self::Lease(_) | Self::OtherType(_) => false,
        }
    }
}

/// Lua's `^%x+|%d+|%d+|%d+|`.
fn has_lease_head(bytes: &[u8]) -> bool {
    let mut parts = bytes.split(|b| *b == b'|');
    let mut part_is = |good: fn(&u8) -> bool| parts.next().is_some_and(|p| !p.is_empty() && p.iter().all(good));
    part_is(u8::is_ascii_hexdigit)
        && part_is(u8::is_ascii_digit)
        && part_is(u8::is_ascii_digit)
        && part_is(u8::is_ascii_digit)
        && parts.next().is_some()
}

fn sha1_hex(bytes: &[u8]) -> Arc<str> {
    sha1_smol::Sha1::from(bytes).digest().to_string().into()
}

/// All lock keys of a machine.
#[derive(Debug, Clone, Default)]
pub(super) struct Locks {
    keys: Expiring<ResourceName, Lock>,
    /// Held leases by place. A place is never given twice, so a page can go on behind the last one
    /// whatever came or went meanwhile.
    index: BTreeMap<u64, ResourceName>,
    last_place: u64,
}

#[derive(Debug, Clone)]
struct Lock {
    value: LockValue,
    /// Its place in the index; 0 for what is not a lease.
    place: u64,
}

impl Locks {
    /// What stands at the key.
    pub(super) fn get(&self, resource: &ResourceName, now_ms: u64) -> Option<&LockValue> {
        self.keys.get(resource, now_ms).map(|lock| &lock.value)
    }

    /// The lease at the key, to change it in place.
    pub(super) fn lease_mut(&mut self, resource: &ResourceName, now_ms: u64) -> Option<&mut LeaseRecord> {
        match self.keys.get_mut(resource, now_ms).map(|lock| &mut lock.value) {
            Some(LockValue::Lease(record)) => Some(record),
            _ => None,
        }
    }

    /// Redis' `PTTL`, see [`Expiring::left_ms`].
    pub(super) fn left_ms(&self, resource: &ResourceName, now_ms: u64) -> Option<Option<u64>> {
        self.keys.left_ms(resource, now_ms)
    }

    /// Redis' `SET`, with the index entry of a lease.
    pub(super) fn put(&mut self, resource: &ResourceName, value: LockValue, end_ms: Option<u64>) {
        let mut place = 0;
        if matches!(value, LockValue::Lease(_)) {
            self.last_place += 1;
            place = self.last_place;
            self.index.insert(place, resource.clone());
        }
        if let Some(old) = self.keys.put(resource.clone(), Lock { value, place }, end_ms) {
            self.index.remove(&old.place);
        }
    }

    /// Redis' `PEXPIRE` on a key that is there.
    pub(super) fn set_end(&mut self, resource: &ResourceName, end_ms: Option<u64>) {
        self.keys.set_end(resource, end_ms);
    }

    /// Redis' `DEL`. Whether there was a live key.
    pub(super) fn remove(&mut self, resource: &ResourceName, now_ms: u64) -> bool {
        let live = self.keys.left_ms(resource, now_ms).is_some();
        if let Some(old) = self.keys.remove(resource) {
            self.index.remove(&old.place);
        }
        live
    }

    /// Drops up to `limit` keys that are over.
    pub(super) fn purge(&mut self, now_ms: u64, limit: usize) {
        let index = &mut self.index;
        self.keys.purge(now_ms, limit, |_, lock| {
            index.remove(&lock.place);
        });
    }

    /// Up to `count` leases behind place `cursor`, and the place to go on from (`None` at the end).
    pub(super) fn page(
        &self,
        cursor: u64,
        count: usize,
        now_ms: u64,
    ) -> (Option<u64>, Vec<(&ResourceName, &LeaseRecord)>) {
        let mut behind = self.index.range((Bound::Excluded(cursor), Bound::Unbounded));
        let mut last = cursor;
        let mut leases = Vec::new();
        for (place, resource) in behind.by_ref().take(count.max(1)) {
            last = *place;
            if let Some(LockValue::Lease(record)) = self.get(resource, now_ms) {
                leases.push((resource, record));
            }
        }
        (behind.next().map(|_| last), leases)
    }

    /// The latest end of a key.
    pub(super) fn latest_end_ms(&self) -> Option<u64> {
        self.keys.latest_end_ms()
    }

    /// The earliest end of a key from `from_ms` on.
    pub(super) fn next_end_ms(&self, from_ms: u64) -> Option<u64> {
        self.keys.next_end_ms(from_ms)
    }

    /// Keys in memory.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Index entries in memory.
    pub(super) fn index_len(&self) -> usize {
        self.index.len()
    }
}
