//! The lock keys of a reference node and the index that lists held leases. Each change of a key updates its index entry.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::shared_holders::MemberLeases;
use super::store::Expiring;
use crate::protocol::LeaseRecord;
use crate::types::{Mode, ResourceName, TokenHash};

/// The length of the token's hash at the start of a lock's value.
const TOKEN_HEX_LEN: usize = 64;

/// A resource with its leases, each with its remaining milliseconds.
type ListedResource<'a> = (&'a ResourceName, Vec<(&'a LeaseRecord, u64)>);

/// The value at a lock's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) enum LockValue {
    /// A lease of this service.
    Lease(LeaseRecord),
    /// Shared leases or permits.
    Members(MemberLeases),
    /// Any other string.
    Bytes(Arc<[u8]>),
    /// A key of another Redis type, by its name.
    OtherType(&'static str),
}

impl LockValue {
    /// Reads a string as the scripts would.
    pub(in crate::protocol) fn from_bytes(bytes: &[u8]) -> Self {
        match LeaseRecord::parse(bytes) {
            Some(record) if record.mode == Mode::Exclusive && record.encode().as_bytes() == bytes => {
                Self::Lease(record)
            }
            _ => Self::Bytes(bytes.into()),
        }
    }

    /// Identifies this value for its deletion: SHA-1 of a string in hex, or `type:` and the type.
    pub(in crate::protocol) fn fingerprint(&self) -> Arc<str> {
        match self {
            Self::Lease(record) => sha1_hex(record.encode().as_bytes()),
            Self::Members(members) => sha1_hex(&members.key_value()),
            Self::Bytes(bytes) => sha1_hex(bytes),
            Self::OtherType(kind) => format!("type:{kind}").into(),
        }
    }

    /// The scripts' check for a lease, which some strings that are no lease pass too.
    pub(in crate::protocol) fn looks_like_lease(&self) -> bool {
        match self {
            Self::Lease(_) => true,
            Self::Members(_) | Self::OtherType(_) => false,
            Self::Bytes(bytes) => bytes.get(TOKEN_HEX_LEN) == Some(&b'|') && has_lease_head(bytes),
        }
    }

    /// Whether this is a lease of this token.
    pub(in crate::protocol) fn is_of(&self, token: &TokenHash) -> bool {
        matches!(self, Self::Lease(record) if record.token == *token)
    }

    /// Whether the value begins with this token, but is no lease.
    pub(in crate::protocol) fn is_damaged_lease_of(&self, token: &TokenHash) -> bool {
        match self {
            Self::Bytes(bytes) => {
                bytes.starts_with(token.as_str().as_bytes()) && bytes.get(TOKEN_HEX_LEN) == Some(&b'|')
            }
            Self::Lease(_) | Self::Members(_) | Self::OtherType(_) => false,
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

/// All lock keys of a node.
#[derive(Debug, Clone, Default)]
pub(in crate::protocol) struct LockKeys {
    keys: Expiring<ResourceName, Lock>,
    /// Held leases by place. No place is used twice, so that a page can continue after the last one whatever has changed in
    /// between.
    index: BTreeMap<u64, ResourceName>,
    last_place: u64,
}

/// A key that was taken from its name.
#[derive(Debug, Clone)]
pub(in crate::protocol) struct TakenLock {
    pub(in crate::protocol) value: LockValue,
    end_ms: Option<u64>,
    is_listed: bool,
}

#[derive(Debug, Clone)]
struct Lock {
    value: LockValue,
    /// The key's place in the index; 0 for a value without leases.
    place: u64,
}

impl LockKeys {
    /// The value at the key.
    pub(in crate::protocol) fn get(&self, resource: &ResourceName, now_ms: u64) -> Option<&LockValue> {
        self.keys.get(resource, now_ms).map(|lock| &lock.value)
    }

    /// The lease at the key, for changes in place.
    pub(in crate::protocol) fn lease_mut(&mut self, resource: &ResourceName, now_ms: u64) -> Option<&mut LeaseRecord> {
        match self.keys.get_mut(resource, now_ms).map(|lock| &mut lock.value) {
            Some(LockValue::Lease(record)) => Some(record),
            _ => None,
        }
    }

    /// Redis' `PTTL`, see [`Expiring::left_ms`].
    pub(in crate::protocol) fn left_ms(&self, resource: &ResourceName, now_ms: u64) -> Option<Option<u64>> {
        self.keys.left_ms(resource, now_ms)
    }

    /// Every key, in no order, with its value and remaining milliseconds.
    pub(in crate::protocol) fn iter(
        &self,
        now_ms: u64,
    ) -> impl Iterator<Item = (&ResourceName, &LockValue, Option<u64>)> {
        self.keys.iter(now_ms).map(|(resource, lock, left_ms)| (resource, &lock.value, left_ms))
    }

    /// Redis' `SET`, with the index entry of a lease.
    pub(in crate::protocol) fn put(&mut self, resource: &ResourceName, value: LockValue, end_ms: Option<u64>) {
        let mut place = 0;
        if matches!(value, LockValue::Lease(_) | LockValue::Members(_)) {
            self.last_place += 1;
            place = self.last_place;
            self.index.insert(place, resource.clone());
        }
        if let Some(old) = self.keys.put(resource.clone(), Lock { value, place }, end_ms) {
            self.index.remove(&old.place);
        }
    }

    /// Takes a lease out of the index until [`Self::enlist`].
    pub(in crate::protocol) fn take_from_index(&mut self, resource: &ResourceName) {
        if let Some(lock) = self.keys.get_mut(resource, 0) {
            self.index.remove(&std::mem::take(&mut lock.place));
        }
    }

    /// Puts a lease into the index, if it is not there.
    pub(in crate::protocol) fn enlist(&mut self, resource: &ResourceName) {
        if let Some(lock) = self.keys.get_mut(resource, 0).filter(|lock| lock.place == 0) {
            self.last_place += 1;
            lock.place = self.last_place;
            self.index.insert(lock.place, resource.clone());
        }
    }

    /// Redis' `PEXPIRE` on an existing key.
    pub(in crate::protocol) fn set_end(&mut self, resource: &ResourceName, end_ms: Option<u64>) {
        self.keys.set_end(resource, end_ms);
    }

    /// Redis' `DEL`. Returns whether the key existed.
    pub(in crate::protocol) fn remove(&mut self, resource: &ResourceName, now_ms: u64) -> bool {
        let live = self.keys.left_ms(resource, now_ms).is_some();
        if let Some(old) = self.keys.remove(resource) {
            self.index.remove(&old.place);
        }
        live
    }

    /// Takes a key from its name, with its end and its entry in the index; also an expired one.
    pub(in crate::protocol) fn take(&mut self, resource: &ResourceName) -> Option<TakenLock> {
        let end_ms = self.keys.left_ms(resource, 0)?;
        let Lock { value, place } = self.keys.remove(resource)?;
        self.index.remove(&place);
        Some(TakenLock { value, end_ms, is_listed: place > 0 })
    }

    /// Puts such a key at a name.
    pub(in crate::protocol) fn give_back(&mut self, resource: &ResourceName, lock: TakenLock) {
        self.put(resource, lock.value, lock.end_ms);
        if !lock.is_listed {
            self.take_from_index(resource);
        }
    }

    /// Drops up to `limit` expired keys.
    pub(in crate::protocol) fn purge(&mut self, now_ms: u64, limit: usize) {
        let index = &mut self.index;
        self.keys.purge(now_ms, limit, |_, lock| {
            index.remove(&lock.place);
        });
    }

    /// Up to `count` held resources after place `cursor`, each with its leases and their remaining milliseconds, and the cursor of
    /// the next page (`None` at the end).
    pub(in crate::protocol) fn page(
        &self,
        cursor: u64,
        count: usize,
        now_ms: u64,
    ) -> (Option<u64>, Vec<ListedResource<'_>>) {
        let mut after = self.index.range((Bound::Excluded(cursor), Bound::Unbounded));
        let mut last = cursor;
        let mut leases = Vec::new();
        for (place, resource) in after.by_ref().take(count.max(1)) {
            last = *place;
            leases.push((resource, self.leases_of(resource, now_ms)));
        }
        (after.next().map(|_| last), leases)
    }

    /// The leases of a resource, with their remaining milliseconds: several only for members.
    pub(in crate::protocol) fn leases_of(&self, resource: &ResourceName, now_ms: u64) -> Vec<(&LeaseRecord, u64)> {
        match self.get(resource, now_ms) {
            Some(LockValue::Lease(record)) => {
                self.left_ms(resource, now_ms).flatten().map(|left_ms| (record, left_ms)).into_iter().collect()
            }
            Some(LockValue::Members(members)) => {
                members.living(now_ms).map(|member| (&member.record, member.end_ms - now_ms)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The latest end of a key.
    pub(in crate::protocol) fn latest_end_ms(&self) -> Option<u64> {
        self.keys.latest_end_ms()
    }

    /// The earliest end of a key, or of a member, from `from_ms` on.
    pub(in crate::protocol) fn next_end_ms(&self, from_ms: u64) -> Option<u64> {
        let members = self.iter(from_ms).filter_map(|(_, value, _)| match value {
            LockValue::Members(members) => members.living(from_ms).map(|member| member.end_ms).min(),
            _ => None,
        });
        members.chain(self.keys.next_end_ms(from_ms)).min()
    }

    /// Number of keys in memory, expired ones included.
    pub(in crate::protocol) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Index entries in memory.
    pub(in crate::protocol) fn index_len(&self) -> usize {
        self.index.len()
    }
}
