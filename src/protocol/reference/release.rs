//! The verbs that end leases and those that only look: twins of `release.lua`, `revoke.lua`,
//! `evict.lua`, `inspect.lua` and `list.lua`. Stands apart from [`super::leases`] because none of
//! these votes: giving back is always allowed.

use super::leases::Whose;
use super::locks::LockValue;
use super::marker::Visit;
use super::memory::{Memory, end_ms};
use crate::mutant::{self, Mutant};
use crate::protocol::{EndReason, Found, ListedLease, NodeInspection, Released, Reply, StoredLock, TOKEN_TOMBSTONE};
use crate::types::{AttemptId, ResourceName};

/// `release.lua` with the empty attempt: the lease ends for good.
pub(super) fn release(memory: &mut Memory, visit: &Visit<'_>, whose: Whose<'_>, reason: EndReason) -> Reply {
    let key = (whose.resource.clone(), whose.token.clone());
    let earlier = memory.ended.get(&key, visit.now_ms()).copied();
    let found = find(memory, visit, whose);
    if found == Found::Match {
        memory.locks.remove(whose.resource, visit.now_ms());
    }
    if matches!(earlier, None | Some(EndReason::Revoked)) && !mutant::is(Mutant::NoTombstone) {
        memory.ended.put(key, reason, Some(end_ms(visit, TOKEN_TOMBSTONE)));
    }
    Reply::Released(Released { found, earlier })
}

/// `release.lua` with an attempt: its claim is withdrawn; the lease goes when none is left.
pub(super) fn cancel(memory: &mut Memory, visit: &Visit<'_>, whose: Whose<'_>, attempt: &AttemptId) -> Reply {
    let now_ms = visit.now_ms();
    let key = (whose.resource.clone(), attempt.clone());
    let earlier = memory.cancelled.get(&key, now_ms).copied();
    let mut found = find(memory, visit, whose);
    if found == Found::Match {
        let record = memory.locks.lease_mut(whose.resource, now_ms);
        let claims = record.as_ref().map_or("", |record| &record.claims);
        let rest = claims.replacen(&format!("{},", attempt.as_str()), "", 1);
        if rest.len() == claims.len() {
            found = Found::Other; // this token's lease, claimed by other attempts, or spoilt by somebody
        } else if rest.is_empty() || mutant::is(Mutant::CancelByToken) {
            memory.locks.remove(whose.resource, now_ms);
        } else if let Some(record) = record {
            record.claims = rest.into();
        }
    }
    if matches!(earlier, None | Some(EndReason::Revoked)) && !mutant::is(Mutant::NoTombstone) {
        memory.cancelled.put(key, EndReason::Cancelled, Some(end_ms(visit, visit.params.attempt_tombstone())));
    }
    Reply::Released(Released { found, earlier })
}

fn find(memory: &Memory, visit: &Visit<'_>, whose: Whose<'_>) -> Found {
    match memory.locks.get(whose.resource, visit.now_ms()) {
        Some(LockValue::Lease(record)) if record.token == *whose.token => Found::Match,
        Some(value) if value.is_spoilt_lease_of(whose.token) => Found::Match,
        Some(_) => Found::Other,
        None => Found::Nothing,
    }
}

/// `revoke.lua`.
pub(super) fn revoke(memory: &mut Memory, visit: &Visit<'_>, whose: Whose<'_>) -> Reply {
    match find(memory, visit, whose) {
        Found::Nothing => Reply::Missing,
        Found::Other => Reply::Other { fence: None },
        Found::Match => {
            let left_ms = memory.locks.left_ms(whose.resource, visit.now_ms()).flatten().unwrap_or(0);
            let end = end_ms(visit, TOKEN_TOMBSTONE).saturating_add(left_ms);
            memory.ended.put((whose.resource.clone(), whose.token.clone()), EndReason::Revoked, Some(end));
            Reply::Revoked { left_ms }
        }
    }
}

/// `evict.lua`.
pub(super) fn evict(memory: &mut Memory, visit: &Visit<'_>, resource: &ResourceName, fingerprint: &str) -> Reply {
    let found = match memory.locks.get(resource, visit.now_ms()) {
        None => Found::Nothing,
        Some(value) if *value.fingerprint() == *fingerprint => Found::Match,
        Some(_) => Found::Other,
    };
    if found == Found::Match {
        memory.locks.remove(resource, visit.now_ms());
    }
    Reply::Released(Released { found, earlier: None })
}

/// `inspect.lua`.
pub(super) fn inspect(memory: &mut Memory, visit: &Visit<'_>, resource: &ResourceName) -> Reply {
    let no_vote = memory.mark.admit(visit);
    let left_ms = memory.locks.left_ms(resource, visit.now_ms()).flatten();
    let lock = match memory.locks.get(resource, visit.now_ms()) {
        None => StoredLock::Free,
        Some(LockValue::Lease(record)) => StoredLock::Lease { record: record.clone(), left_ms: left_ms.unwrap_or(0) },
        Some(value) => StoredLock::Foreign { left_ms, fingerprint: value.fingerprint() },
    };
    Reply::Inspected(NodeInspection { no_vote, lock })
}

/// `list.lua`.
pub(super) fn list(memory: &Memory, visit: &Visit<'_>, cursor: u64, count: u32) -> Reply {
    let now_ms = visit.now_ms();
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let (next, leases) = memory.locks.page(cursor, count, now_ms);
    let leases = leases
        .into_iter()
        .filter_map(|(resource, record)| {
            let left_ms = memory.locks.left_ms(resource, now_ms).flatten()?;
            Some(ListedLease { resource: resource.clone(), record: record.clone(), left_ms })
        })
        .collect();
    Reply::Page { next, leases }
}
