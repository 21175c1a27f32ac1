//! The reference of `acquire_shared`.

use crate::mutant::{self, Mutant};
use crate::protocol::acquire::reference::held;
use crate::protocol::record::{CLAIMS_MAX_BYTES, MEMBERS_MAX};
use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::members::{self, Member, Until};
use crate::protocol::reference::memory::Memory;
use crate::protocol::{AcquireSharedArgs, EndReason, LeaseRecord, NoVote, Reply};
use crate::types::{Fence, Mode};

/// Runs one acquire.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireSharedArgs) -> Reply {
    let (now_ms, resource, token) = (context.now_ms(), &args.resource, &args.token);
    if let Some(no_vote) = memory.marker.check_vote(context) {
        return Reply::NoVote(no_vote);
    }
    if let Some(reason) = memory.tombstone(context, resource, token) {
        return Reply::Ended { reason };
    }
    if memory.cancelled.get(&(resource.clone(), token.clone(), args.attempt.clone()), now_ms).is_some() {
        return Reply::Ended { reason: EndReason::Cancelled };
    }
    // For every mode, also to a member: it may stand for another lease.
    if let Some(left_ms) = memory.blocks.left_ms(resource, now_ms) {
        return Reply::NoVote(NoVote::Blocked { left_ms });
    }
    let is_foreign = match memory.locks.get(resource, now_ms) {
        None => false,
        Some(LockValue::Lease(record)) if record.token == *token => {
            return Reply::ModeDiffers { mode: Mode::Exclusive };
        }
        Some(value) if value.is_damaged_lease_of(token) && value.looks_like_lease() => {
            return Reply::ModeDiffers { mode: Mode::Exclusive };
        }
        Some(LockValue::Lease(_) | LockValue::Bytes(_)) => return held(memory, context, resource),
        Some(LockValue::OtherType(_)) => true,
        Some(LockValue::Members(_)) => members::find(memory, now_ms, resource).is_none(),
    };
    if args.proposed.is_some_and(|fence| fence.0 > memory.marker.highest_plausible_fence(context)) {
        return Reply::FenceTooFarAhead;
    }
    if is_foreign {
        return Reply::Held { left_ms: memory.locks.left_ms(resource, now_ms).flatten(), record: None };
    }
    if let Some(member) = members::member_of(memory, now_ms, resource, token) {
        let member = member.clone();
        return join(memory, context, args, member);
    }
    admit(memory, context, args)
}

/// The same token again: the replay joins the lease. Its fence rises only to a proposed one, or above it.
fn join(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireSharedArgs, member: Member) -> Reply {
    let Member { mut record, end_ms } = member;
    if record.mode != args.mode {
        return Reply::ModeDiffers { mode: record.mode };
    }
    if !record.claims.split(',').any(|claim| claim == args.attempt.as_str()) {
        if record.claims.len() >= CLAIMS_MAX_BYTES {
            return Reply::TooManyClaims;
        }
        record.claims = format!("{}{},", record.claims, args.attempt.as_str()).into();
    }
    if args.proposed.is_some_and(|proposed| proposed > record.fence) {
        record.fence = next_fence(memory, context, args);
    }
    let (fence, px_ms) = (record.fence, context.key_ttl_ms(args.ttl));
    let end_ms = end_ms.max(context.now_ms().saturating_add(px_ms));
    members::store(memory, context.now_ms(), &args.resource, Member { record, end_ms }, px_ms);
    Reply::Admitted { fence, joined: true }
}

fn admit(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireSharedArgs) -> Reply {
    let (now_ms, resource, token) = (context.now_ms(), &args.resource, &args.token);
    let living = members::find(memory, now_ms, resource);
    let counted = living.map_or(0, |members| members.living(now_ms).count());
    if living.is_some_and(|members| members.kind != args.mode.wanted()) {
        return members::held_by(memory, context, resource, Until::Last);
    }
    let is_taken = match args.mode {
        Mode::Permit { limit, .. } if mutant::is(Mutant::CountPerNode) => counted >= usize::from(limit.get()),
        mode => living.is_some_and(|members| members.is_taken(mode, token, now_ms)),
    };
    let intent = memory.intents.get(resource, now_ms).cloned();
    if intent.as_ref().is_some_and(|of| of != token) && !mutant::is(Mutant::SharedUnderIntent) {
        let left_ms = memory.intents.left_ms(resource, now_ms).flatten().unwrap_or(0);
        return members::held_by(memory, context, resource, Until::Intent(left_ms));
    }
    if is_taken || counted >= MEMBERS_MAX {
        return members::held_by(memory, context, resource, Until::First);
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
    let px_ms = context.key_ttl_ms(args.ttl);
    let from_ms = if mutant::is(Mutant::EndByInstance) { context.sent_at.0 / 1_000 } else { now_ms };
    members::store(memory, now_ms, resource, Member { record, end_ms: from_ms.saturating_add(px_ms) }, px_ms);
    if intent.is_some() {
        memory.intents.remove(resource);
    }
    Reply::Admitted { fence, joined: false }
}

/// Each number is given once: a proposed one only if it is above all that this node gave.
fn next_fence(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireSharedArgs) -> Fence {
    memory.marker.rotate(context);
    let minimum = if mutant::ignores_request_times() { 0 } else { context.sent_at.0 };
    let known = memory.counter(context, &args.resource).max(memory.marker.base());
    let proposed =
        args.proposed.map(|fence| fence.0).filter(|fence| *fence > known || mutant::is(Mutant::FenceGivenTwice));
    let fence = proposed.unwrap_or((known + 1).max(minimum));
    let counter = memory.counter(context, &args.resource);
    memory.store_fence(context, &args.resource, fence.max(counter));
    Fence(fence)
}
