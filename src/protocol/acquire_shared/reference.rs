//! The reference of `acquire_shared`.

use crate::mutant::{self, Mutant};
use crate::protocol::acquire::reference::held;
use crate::protocol::record::{CLAIMS_MAX_BYTES, MEMBERS_MAX};
use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::reference::shared_holders::{self, MemberLease, RefusedUntil};
use crate::protocol::{AcquireSharedArgs, EndReason, LeaseRecord, NoVote, Reply, intent};
use crate::types::{Fence, Mode};

/// Runs one acquire.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireSharedArgs) -> Reply {
    if let Some(no_vote) = memory.marker.check_vote(context) {
        return Reply::NoVote(no_vote);
    }
    refusal(memory, context, args, true).unwrap_or_else(|| take(memory, context, args))
}

/// Why the request is refused. `heeds_intents`: another caller's intent refuses it too.
pub(in crate::protocol) fn refusal(
    memory: &mut Memory,
    context: &CallContext<'_>,
    args: &AcquireSharedArgs,
    heeds_intents: bool,
) -> Option<Reply> {
    let (now_ms, resource, token) = (context.now_ms(), &args.resource, &args.token);
    if let Some(reason) = memory.tombstone(context, resource, token) {
        return Some(Reply::Ended { reason });
    }
    if memory.cancelled.get(&(resource.clone(), token.clone(), args.attempt.clone()), now_ms).is_some() {
        return Some(Reply::Ended { reason: EndReason::Cancelled });
    }
    // For every mode, even for a member: the block may stand for another lease.
    if let Some(left_ms) = memory.cut_block(context, resource) {
        return Some(Reply::NoVote(NoVote::Blocked { left_ms }));
    }
    let is_foreign = match memory.locks.get(resource, now_ms) {
        None => false,
        Some(LockValue::Lease(record)) if record.token == *token => {
            return Some(Reply::ModeDiffers { mode: Mode::Exclusive });
        }
        Some(value) if value.is_damaged_lease_of(token) && value.looks_like_lease() => {
            return Some(Reply::ModeDiffers { mode: Mode::Exclusive });
        }
        Some(LockValue::Lease(_) | LockValue::Bytes(_)) => return Some(held(memory, context, resource)),
        Some(LockValue::OtherType(_)) => true,
        Some(LockValue::Members(_)) => shared_holders::find(memory, now_ms, resource).is_none(),
    };
    if args.proposed.is_some_and(|fence| fence.0 > memory.marker.highest_plausible_fence(context)) {
        return Some(Reply::FenceTooFarAhead);
    }
    if is_foreign {
        return Some(Reply::Held { left_ms: memory.locks.left_ms(resource, now_ms).flatten(), record: None });
    }
    match shared_holders::member_of(memory, now_ms, resource, token) {
        Some(member) if member.record.mode != args.mode => Some(Reply::ModeDiffers { mode: member.record.mode }),
        Some(member) => {
            let is_known = member.record.claims.split(',').any(|claim| claim == args.attempt.as_str());
            let is_full = !is_known && member.record.claims.len() >= CLAIMS_MAX_BYTES;
            is_full.then_some(Reply::TooManyClaims)
        }
        None => kept_out(memory, context, args, heeds_intents),
    }
}

/// Why a new member is refused.
fn kept_out(
    memory: &mut Memory,
    context: &CallContext<'_>,
    args: &AcquireSharedArgs,
    heeds_intents: bool,
) -> Option<Reply> {
    let (now_ms, resource, token) = (context.now_ms(), &args.resource, &args.token);
    let living = shared_holders::find(memory, now_ms, resource);
    let counted = living.map_or(0, |members| members.living(now_ms).count());
    if living.is_some_and(|members| members.kind != args.mode.wanted()) {
        return Some(shared_holders::held_by(memory, context, resource, RefusedUntil::Last));
    }
    let is_taken = match args.mode {
        Mode::Permit { limit, .. } if mutant::is(Mutant::CountPerNode) => counted >= usize::from(limit.get()),
        mode => living.is_some_and(|members| members.is_taken(mode, token, now_ms)),
    };
    let intended = intent::reference::keeps_out(memory, now_ms, (resource, token), args.mode.wanted());
    if let Some(left_ms) = intended.filter(|_| heeds_intents && !mutant::is(Mutant::SharedUnderIntent)) {
        return Some(shared_holders::held_by(memory, context, resource, RefusedUntil::Intent(left_ms)));
    }
    (is_taken || counted >= MEMBERS_MAX)
        .then(|| shared_holders::held_by(memory, context, resource, RefusedUntil::First))
}

/// Grants the lease if nothing refuses the request. A repeated request of the same token joins the lease; the fence then rises
/// only to a proposed one, or above it.
pub(in crate::protocol) fn take(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireSharedArgs) -> Reply {
    let (now_ms, resource, token) = (context.now_ms(), &args.resource, &args.token);
    let px_ms = context.key_ttl_ms(args.ttl);
    if let Some(MemberLease { mut record, end_ms }) =
        shared_holders::member_of(memory, now_ms, resource, token).cloned()
    {
        if !record.claims.split(',').any(|claim| claim == args.attempt.as_str()) {
            record.claims = format!("{}{},", record.claims, args.attempt.as_str()).into();
        }
        if args.proposed.is_some_and(|proposed| proposed > record.fence) {
            record.fence = next_fence(memory, context, args);
        }
        let (fence, end_ms) = (record.fence, end_ms.max(now_ms.saturating_add(px_ms)));
        shared_holders::store(memory, now_ms, resource, MemberLease { record, end_ms }, px_ms);
        return Reply::Admitted { fence, joined: true };
    }
    let fence = next_fence(memory, context, args);
    let record = LeaseRecord {
        mode: args.mode,
        token: token.clone(),
        renewals: 0,
        ttl: args.ttl,
        fence,
        claims: format!("{},", args.attempt.as_str()).into(),
        labels: args.labels.clone(),
    };
    let from_ms = if mutant::is(Mutant::EndByInstance) { context.sent_at.0 / 1_000 } else { now_ms };
    shared_holders::store(
        memory,
        now_ms,
        resource,
        MemberLease { record, end_ms: from_ms.saturating_add(px_ms) },
        px_ms,
    );
    intent::reference::withdraw(memory, now_ms, resource, token);
    Reply::Admitted { fence, joined: false }
}

/// Each number is given once: a proposed one only if it is above all that this node gave.
fn next_fence(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireSharedArgs) -> Fence {
    memory.begin_generation(context);
    let minimum = if mutant::ignores_request_times() { 0 } else { context.sent_at.0 };
    let known = memory.fences.last(&args.resource).max(memory.marker.base());
    let proposed =
        args.proposed.map(|fence| fence.0).filter(|fence| *fence > known || mutant::is(Mutant::FenceGivenTwice));
    let fence = proposed.unwrap_or((known + 1).max(minimum));
    memory.store_fence(&args.resource, fence);
    Fence(fence)
}
