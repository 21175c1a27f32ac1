//! The reference of `acquire.lua`.

use crate::mutant::{self, Mutant};
use crate::protocol::record::CLAIMS_MAX_BYTES;
use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::reference::shared_holders::{self, RefusedUntil};
use crate::protocol::{AcquireArgs, EndReason, LeaseRecord, NoVote, Reply, TokenUse, intent};
use crate::types::{Fence, Mode, ResourceName, TokenHash, WantedMode};

/// Runs one acquire.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireArgs) -> Reply {
    let (now_ms, resource) = (context.now_ms(), &args.resource);
    if let Some(no_vote) = memory.marker.check_vote(context) {
        return Reply::NoVote(no_vote);
    }
    if let Some(reason) =
        memory.tombstone(context, resource, &args.token).filter(|_| reads_tombstone(memory, context, args))
    {
        return Reply::Ended { reason };
    }
    if memory.cancelled.get(&(resource.clone(), args.token.clone(), args.attempt.clone()), now_ms).is_some() {
        return Reply::Ended { reason: EndReason::Cancelled };
    }
    // Also for the token that has the key: the block may stand for another lease.
    if let Some(left_ms) = memory.cut_block(context, resource) {
        return Reply::NoVote(NoVote::Blocked { left_ms });
    }
    // The script reads no key of another type.
    if let None | Some(LockValue::OtherType(_)) = memory.locks.get(resource, now_ms)
        && let Some(left_ms) =
            intent::reference::keeps_out(memory, now_ms, (resource, &args.token), WantedMode::Exclusive)
    {
        return shared_holders::held_by(memory, context, resource, RefusedUntil::Intent(left_ms));
    }
    match memory.locks.get(resource, now_ms) {
        Some(LockValue::Lease(record)) if record.token == args.token => join(memory, context, args),
        Some(value) if value.is_damaged_lease_of(&args.token) => {
            Reply::Held { left_ms: memory.locks.left_ms(resource, now_ms).flatten(), record: None }
        }
        Some(LockValue::OtherType(_)) => {
            // The script detects this only when it tries to set the key.
            memory.begin_generation(context);
            let fence = next_fence(memory, context, resource);
            memory.marker.store_fence(fence);
            held(memory, context, resource)
        }
        Some(LockValue::Members(_)) => beside_members(memory, context, (resource, &args.token)),
        Some(_) => held(memory, context, resource),
        // The instance adds the lease to the index later.
        None => grant(memory, context, args, false),
    }
}

/// Whether the tombstone of the token is read. The script reads it in more cases.
fn reads_tombstone(memory: &Memory, context: &CallContext<'_>, args: &AcquireArgs) -> bool {
    let is_new = context.sent_at.0 > memory.marker.high_water() || mutant::is(Mutant::OldUnread);
    args.token_use == TokenUse::Again || memory.reads_tombstones(context) || !is_new
}

/// The members of the resource refuse an exclusive request.
pub(in crate::protocol) fn beside_members(
    memory: &mut Memory,
    context: &CallContext<'_>,
    (resource, token): (&ResourceName, &TokenHash),
) -> Reply {
    let now_ms = context.now_ms();
    match shared_holders::member_of(memory, now_ms, resource, token) {
        Some(member) => Reply::ModeDiffers { mode: member.record.mode },
        None if shared_holders::find(memory, now_ms, resource).is_some() => {
            shared_holders::held_by(memory, context, resource, RefusedUntil::Last)
        }
        None => held(memory, context, resource),
    }
}

/// A repeated request of the same token: the replay joins the lease and leaves its fence unchanged.
pub(in crate::protocol) fn join(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireArgs) -> Reply {
    let now_ms = context.now_ms();
    let left_ms = memory.locks.left_ms(&args.resource, now_ms).flatten();
    let record = memory.locks.lease_mut(&args.resource, now_ms).expect("the caller found a lease here");
    if !record.claims.split(',').any(|claim| claim == args.attempt.as_str()) {
        if record.claims.len() >= CLAIMS_MAX_BYTES {
            return Reply::TooManyClaims;
        }
        record.claims = format!("{}{},", record.claims, args.attempt.as_str()).into();
    }
    let fence = record.fence;
    let requested = now_ms.saturating_add(context.key_ttl_ms(args.ttl));
    let end = left_ms.map_or(requested, |left_ms| requested.max(now_ms + left_ms));
    memory.locks.set_end(&args.resource, Some(end));
    Reply::Granted { fence, joined: true }
}

/// Above every fence that the node gave to this resource, and at least the time of sending.
fn next_fence(memory: &Memory, context: &CallContext<'_>, resource: &ResourceName) -> u64 {
    let minimum = if mutant::ignores_request_times() { 0 } else { context.sent_at.0 };
    (memory.fences.last(resource) + 1).max(memory.marker.base() + 1).max(minimum)
}

/// A new lease of a free resource, added to the index at once or not.
pub(in crate::protocol) fn grant(
    memory: &mut Memory,
    context: &CallContext<'_>,
    args: &AcquireArgs,
    is_listed: bool,
) -> Reply {
    memory.begin_generation(context);
    if args.token_use == TokenUse::Again {
        memory.expect_late(context);
    }
    let fence = next_fence(memory, context, &args.resource);
    let record = LeaseRecord {
        mode: Mode::Exclusive,
        token: args.token.clone(),
        renewals: 0,
        ttl: args.ttl,
        fence: Fence(fence),
        claims: format!("{},", args.attempt.as_str()).into(),
        labels: args.labels.clone(),
    };
    let end = context.now_ms().saturating_add(context.key_ttl_ms(args.ttl));
    memory.locks.put(&args.resource, LockValue::Lease(record), Some(end));
    if !is_listed {
        memory.locks.take_from_index(&args.resource);
    }
    memory.store_fence(&args.resource, fence);
    Reply::Granted { fence: Fence(fence), joined: false }
}

/// Another lease holds it, or a foreign client's key of any type.
pub(in crate::protocol) fn held(memory: &mut Memory, context: &CallContext<'_>, resource: &ResourceName) -> Reply {
    let now_ms = context.now_ms();
    let left_ms = memory.locks.left_ms(resource, now_ms).flatten();
    let value = memory.locks.get(resource, now_ms);
    let record = match value {
        Some(LockValue::Lease(record)) => Some(record.clone()),
        _ => None,
    };
    if !value.is_some_and(LockValue::looks_like_lease) {
        return Reply::Held { left_ms, record };
    }
    let longest_ms = memory.marker.longest_quarantine_ms(context);
    if let Some(left_ms) = left_ms.filter(|left_ms| *left_ms <= longest_ms) {
        return Reply::Held { left_ms: Some(left_ms), record };
    }
    // No lease lasts longer than the quarantine: this clock went backwards.
    memory.locks.set_end(resource, Some(now_ms.saturating_add(longest_ms)));
    Reply::Held { left_ms: Some(longest_ms), record }
}
