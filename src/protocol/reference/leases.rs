//! The verbs that give and keep leases: twins of `acquire.lua`, `hold.lua` and `plant.lua`, line by
//! line. Stands apart from [`super::release`] as the scripts do: these may vote, those may not.

use std::sync::Arc;

use super::locks::LockValue;
use super::marker::{Visit, is_silent, millis};
use super::memory::{Memory, end_ms};
use crate::mutant::{self, Mutant};
use crate::protocol::{EndReason, LeaseRecord, MAX_RENEWALS, NodeResult, Reply, Unreachable, UnreachableKind};
use crate::types::{AttemptId, Fence, ResourceName, TokenHash, Ttl};

/// A replay is refused once the claims are this long, in bytes: 16 of them, 18 bytes each.
const CLAIMS_FULL_BYTES: usize = 288;

/// Whose lease, on what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whose<'a> {
    /// What is held.
    pub(super) resource: &'a ResourceName,
    /// By whom.
    pub(super) token: &'a TokenHash,
}

/// The rest of an acquire.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish<'a> {
    /// Which attempt asks.
    pub(super) attempt: &'a AttemptId,
    /// For how long.
    pub(super) ttl: Ttl,
    /// Labels, encoded.
    pub(super) labels: &'a Arc<str>,
}

/// The rest of a hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change<'a> {
    /// `None`: the lease's own.
    pub(super) ttl: Option<Ttl>,
    /// `None`: whatever it is.
    pub(super) fence: Option<Fence>,
    /// Counts a renewal.
    pub(super) renewal: bool,
    /// `None` or empty: kept.
    pub(super) labels: Option<&'a Arc<str>>,
}

/// `acquire.lua`.
pub(super) fn acquire(memory: &mut Memory, visit: &Visit<'_>, whose: Whose<'_>, wish: Wish<'_>) -> NodeResult {
    let (now_ms, resource) = (visit.now_ms(), whose.resource);
    if let Some(no_vote) = memory.mark.admit(visit) {
        return Ok(Reply::NoVote(no_vote));
    }
    if let Some(reason) = memory.tombstone(visit, resource, whose.token) {
        return Ok(Reply::Ended { reason });
    }
    if memory.cancelled.get(&(resource.clone(), wish.attempt.clone()), now_ms).is_some() {
        return Ok(Reply::Ended { reason: EndReason::Cancelled });
    }
    match memory.locks.get(resource, now_ms) {
        Some(LockValue::Lease(record)) if record.token == *whose.token => join(memory, visit, whose, wish),
        Some(value) if value.is_spoilt_lease_of(whose.token) => {
            let left_ms = memory.locks.left_ms(resource, now_ms).flatten();
            Ok(Reply::Held { left_ms, record: None })
        }
        Some(LockValue::OtherType(_)) => {
            // The script finds out only when it tries to set the key.
            memory.mark.rotate(visit);
            let fence = next_fence(memory, visit, resource);
            memory.mark.remember(fence);
            Ok(held(memory, visit, resource))
        }
        Some(_) => Ok(held(memory, visit, resource)),
        None => Ok(grant(memory, visit, whose, wish)),
    }
}

/// The same token again: a replay joins the lease, its fence unchanged.
fn join(memory: &mut Memory, visit: &Visit<'_>, whose: Whose<'_>, wish: Wish<'_>) -> NodeResult {
    let now_ms = visit.now_ms();
    let left = memory.locks.left_ms(whose.resource, now_ms).flatten();
    let record = memory.locks.lease_mut(whose.resource, now_ms).expect("the caller found a lease here");
    if !record.claims.split(',').any(|claim| claim == wish.attempt.as_str()) {
        if record.claims.len() >= CLAIMS_FULL_BYTES {
            return Ok(Reply::TooManyClaims);
        }
        record.claims = format!("{}{},", record.claims, wish.attempt.as_str()).into();
    }
    let fence = record.fence;
    let asked = end_ms(visit, padded(wish.ttl, visit));
    let end = left.map_or(asked, |left| asked.max(now_ms + left));
    memory.locks.set_end(whose.resource, Some(end));
    Ok(Reply::Granted { fence, joined: true })
}

/// Above every fence of this resource that the node gave, and not below the request's stamp.
fn next_fence(memory: &Memory, visit: &Visit<'_>, resource: &ResourceName) -> u64 {
    let floor = if mutant::ignores_stamps() { 0 } else { visit.sent_at.0 };
    (memory.counter(visit, resource) + 1).max(memory.mark.base() + 1).max(floor)
}

fn grant(memory: &mut Memory, visit: &Visit<'_>, whose: Whose<'_>, wish: Wish<'_>) -> Reply {
    memory.mark.rotate(visit);
    let fence = next_fence(memory, visit, whose.resource);
    let record = LeaseRecord {
        token: whose.token.clone(),
        renewals: 0,
        ttl: wish.ttl,
        fence: Fence(fence),
        claims: format!("{},", wish.attempt.as_str()).into(),
        labels: wish.labels.clone(),
    };
    let end = end_ms(visit, padded(wish.ttl, visit));
    memory.locks.put(whose.resource, LockValue::Lease(record), Some(end));
    memory.remember(visit, whose.resource, fence);
    Reply::Granted { fence: Fence(fence), joined: false }
}

/// By a lease of ours, or by a foreigner, whatever the key's type.
fn held(memory: &mut Memory, visit: &Visit<'_>, resource: &ResourceName) -> Reply {
    let now_ms = visit.now_ms();
    let left_ms = memory.locks.left_ms(resource, now_ms).flatten();
    let value = memory.locks.get(resource, now_ms);
    let record = match value {
        Some(LockValue::Lease(record)) => Some(record.clone()),
        _ => None,
    };
    if !value.is_some_and(LockValue::looks_ours) {
        return Reply::Held { left_ms, record };
    }
    let longest_ms = memory.mark.longest_quarantine_ms(visit);
    if let Some(left) = left_ms.filter(|left| *left <= longest_ms) {
        return Reply::Held { left_ms: Some(left), record };
    }
    // No lease is longer than the quarantine: this clock went backwards.
    memory.locks.set_end(resource, Some(now_ms.saturating_add(longest_ms)));
    Reply::Held { left_ms: Some(longest_ms), record }
}

/// `hold.lua`.
pub(super) fn hold(memory: &mut Memory, visit: &Visit<'_>, whose: Whose<'_>, change: Change<'_>) -> NodeResult {
    let no_vote = memory.mark.admit(visit);
    if is_silent(no_vote.as_ref()) {
        return Ok(barred_or(no_vote, Reply::Missing));
    }
    if let Some(reason) = memory.tombstone(visit, whose.resource, whose.token) {
        return Ok(barred_or(no_vote, Reply::Ended { reason }));
    }
    if let Some(reply) = mistaken_hold(memory, visit, whose, change) {
        return Ok(reply);
    }
    let record = match memory.locks.get(whose.resource, visit.now_ms()) {
        Some(LockValue::Lease(record)) if record.token == *whose.token => record.clone(),
        Some(value) if value.is_spoilt_lease_of(whose.token) => return Err(spoilt()),
        Some(_) => return Ok(barred_or(no_vote, Reply::Other { fence: None })),
        None => return Ok(barred_or(no_vote, Reply::Missing)),
    };
    let want = change.fence.map_or(0, |f| f.0);
    if want > 0 && record.fence.0 > want {
        return Ok(barred_or(no_vote, Reply::Other { fence: Some(record.fence) })); // this token's next lease
    }
    if want > memory.mark.furthest_fence(visit) {
        return Ok(Reply::FenceTooFarAhead);
    }
    let kept = keep(memory, visit, whose.resource, record, change);
    Ok(barred_or(no_vote, kept))
}

/// What a hold must never do: planted bugs.
fn mistaken_hold(memory: &mut Memory, visit: &Visit<'_>, whose: Whose<'_>, change: Change<'_>) -> Option<Reply> {
    let is_held = match memory.locks.get(whose.resource, visit.now_ms()) {
        Some(LockValue::Lease(record)) if record.token == *whose.token => return None,
        found => found.is_some(),
    };
    let ttl = change.ttl?;
    let fence = change.fence?;
    let (token, claims, labels) = (whose.token.clone(), "p,".into(), "{}".into());
    let record = LeaseRecord { token, renewals: 0, ttl, fence, claims, labels };
    if mutant::is(Mutant::WriteBackUnheld) && !change.renewal {
        let counter = memory.counter(visit, whose.resource);
        memory.remember(visit, whose.resource, fence.0.max(counter));
        return Some(Reply::Updated { record, before_ms: 0 });
    }
    if mutant::is(Mutant::ExtendCreates) && !is_held {
        let end = end_ms(visit, padded(ttl, visit));
        memory.locks.put(whose.resource, LockValue::Lease(record.clone()), Some(end));
        return Some(Reply::Updated { record, before_ms: 0 });
    }
    None
}

fn keep(
    memory: &mut Memory,
    visit: &Visit<'_>,
    resource: &ResourceName,
    mut record: LeaseRecord,
    change: Change<'_>,
) -> Reply {
    let now_ms = visit.now_ms();
    let left = memory.locks.left_ms(resource, now_ms).flatten();
    let px = millis(padded(change.ttl.unwrap_or(record.ttl), visit));
    if left.is_none_or(|left| px > left) {
        memory.locks.set_end(resource, Some(now_ms.saturating_add(px)));
    }
    if change.renewal {
        record.renewals = record.renewals.saturating_add(1).min(MAX_RENEWALS);
        // An extend is a claim of its own: no late cancel of an attempt may take back what it confirms.
        if !record.claims.split(',').any(|claim| claim == "p") && !mutant::is(Mutant::ExtendUnclaimed) {
            record.claims = format!("{}p,", record.claims).into();
        }
    }
    let want = change.fence.map_or(0, |f| f.0);
    let labels = change.labels.filter(|l| !l.is_empty());
    if want > record.fence.0 || labels.is_some() {
        record.fence = Fence(record.fence.0.max(want));
        if let Some(labels) = labels {
            record.labels = labels.clone();
        }
        let counter = memory.counter(visit, resource);
        memory.remember(visit, resource, record.fence.0.max(counter));
    }
    if let Some(slot) = memory.locks.lease_mut(resource, now_ms) {
        slot.clone_from(&record);
    }
    Reply::Updated { record, before_ms: left.unwrap_or(0) }
}

/// `plant.lua`.
pub(super) fn plant(
    memory: &mut Memory,
    visit: &Visit<'_>,
    resource: &ResourceName,
    record: &LeaseRecord,
    left_ms: u64,
) -> NodeResult {
    let no_vote = memory.mark.admit(visit);
    if is_silent(no_vote.as_ref()) {
        return Ok(barred_or(no_vote, Reply::Restored));
    }
    if let Some(reason) = memory.tombstone(visit, resource, &record.token) {
        return Ok(Reply::Ended { reason });
    }
    if record.fence.0 > memory.mark.furthest_fence(visit) {
        return Ok(Reply::FenceTooFarAhead);
    }
    if memory.locks.get(resource, visit.now_ms()).is_some() {
        return Ok(Reply::Other { fence: None });
    }
    let end = visit.now_ms().saturating_add(left_ms.max(1)); // Redis refuses a TTL of 0
    memory.locks.put(resource, LockValue::from_bytes(record.encode().as_bytes()), Some(end));
    let counter = memory.counter(visit, resource);
    memory.remember(visit, resource, record.fence.0.max(counter));
    Ok(Reply::Restored)
}

fn barred_or(no_vote: Option<crate::protocol::NoVote>, reply: Reply) -> Reply {
    no_vote.map_or(reply, Reply::NoVote)
}

/// What a key gets: the TTL and the lock delay.
pub(super) fn padded(ttl: Ttl, visit: &Visit<'_>) -> std::time::Duration {
    if mutant::is(Mutant::NoLockDelay) {
        return ttl.as_duration();
    }
    std::time::Duration::from_millis(ttl.as_ms().saturating_add(millis(visit.params.lock_delay)))
}

/// The scripts fail on a value that begins with the caller's token and is no lease.
pub(super) fn spoilt() -> Unreachable {
    Unreachable::new(UnreachableKind::Protocol, "the lock's value begins with this token but is no lease")
}
