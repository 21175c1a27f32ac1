//! The reference of `update.lua`.

use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::{CallContext, refuses_updates};
use crate::protocol::reference::memory::Memory;
use crate::protocol::reference::shared_holders::{self, MemberLease};
use crate::protocol::{
    LeaseRecord, MAX_RENEWALS, NoVote, NodeResult, Reply, Unreachable, UnreachableKind, UpdateArgs, UpdateKind,
};
use crate::types::{Fence, Mode};

/// Runs one update.
///
/// Errors: `Protocol` if the value begins with this token but is no lease: the script fails on it.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &UpdateArgs) -> NodeResult {
    let mut no_vote = memory.marker.check_vote(context);
    if refuses_updates(no_vote.as_ref()) {
        return Ok(no_vote.map_or(Reply::Missing, Reply::NoVote));
    }
    if let Some(reason) = memory.tombstone(context, &args.resource, &args.token) {
        return Ok(no_vote.map_or(Reply::Ended { reason }, Reply::NoVote));
    }
    // A node in quarantine, or with a block for the resource, updates the lease, but does not vote.
    if !mutant::is(Mutant::BlockedExtendCounts) {
        let block = memory.blocks.left_ms(&args.resource, context.now_ms());
        no_vote = no_vote.or(block.map(|left_ms| NoVote::Blocked { left_ms }));
        // This lease's key must not outlast the lease's block, and vote again.
        let is_named = memory.blocks.names(&args.resource, &args.token, context.now_ms());
        if let Some(no_vote) = no_vote.clone().filter(|_| is_named && !mutant::is(Mutant::BlockedExtendApplied)) {
            return Ok(Reply::NoVote(no_vote));
        }
    }
    let reply = |reply: Reply| Ok(no_vote.clone().map_or(reply, Reply::NoVote));
    if let Some(reply) = mutant_reply(memory, context, args) {
        return Ok(reply);
    }
    if let Some(member) = shared_holders::member_of(memory, context.now_ms(), &args.resource, &args.token).cloned() {
        let updated = update_member(memory, context, args, member);
        return if updated == Reply::FenceTooFarAhead { Ok(updated) } else { reply(updated) };
    }
    let record = match memory.locks.get(&args.resource, context.now_ms()) {
        Some(LockValue::Lease(record)) if record.token == args.token => record.clone(),
        Some(value) if value.is_damaged_lease_of(&args.token) => {
            let detail = "the lock's value begins with this token but is no lease";
            return Err(Unreachable::new(UnreachableKind::Protocol, detail));
        }
        Some(_) => return reply(Reply::Other { fence: None }),
        None => return reply(Reply::Missing),
    };
    let wanted = args.fence.map_or(0, |fence| fence.0);
    if wanted > 0 && record.fence.0 > wanted {
        return reply(Reply::Other { fence: Some(record.fence) }); // this token's next lease
    }
    if wanted > memory.marker.highest_plausible_fence(context) {
        return Ok(Reply::FenceTooFarAhead);
    }
    reply(update(memory, context, args, record))
}

fn update(memory: &mut Memory, context: &CallContext<'_>, args: &UpdateArgs, mut record: LeaseRecord) -> Reply {
    let (now_ms, resource) = (context.now_ms(), &args.resource);
    let left_ms = memory.locks.left_ms(resource, now_ms).flatten();
    let ttl_ms = context.key_ttl_ms(args.ttl.unwrap_or(record.ttl));
    if left_ms.is_none_or(|left_ms| ttl_ms > left_ms) {
        memory.locks.set_end(resource, Some(now_ms.saturating_add(ttl_ms)));
    }
    if args.kind == UpdateKind::Renewal {
        record.renewals = record.renewals.saturating_add(1).min(MAX_RENEWALS);
        // An extend adds its own claim: no late cancel of an attempt may end a lease that the extend confirmed.
        if !record.claims.split(',').any(|claim| claim == "p") && !mutant::is(Mutant::ExtendUnclaimed) {
            record.claims = format!("{}p,", record.claims).into();
        }
    }
    let wanted = args.fence.map_or(0, |fence| fence.0);
    let labels = edit_of(args, &record);
    if wanted > record.fence.0 || labels.is_some() {
        record.fence = Fence(record.fence.0.max(wanted));
        if let Some(labels) = labels {
            record.labels = labels;
        }
        memory.store_fence(resource, record.fence.0);
    }
    if let Some(slot) = memory.locks.lease_mut(resource, now_ms) {
        slot.clone_from(&record);
    }
    Reply::Updated { record, before_ms: left_ms.unwrap_or(0) }
}

/// The labels to be written, if any.
fn edit_of(args: &UpdateArgs, record: &LeaseRecord) -> Option<Arc<str>> {
    let is_late = args.kind == UpdateKind::FirstEnd && record.labels().kept_until_ms > 0;
    args.labels.clone().filter(|labels| !labels.is_empty() && !is_late)
}

/// Updates a member, which has its own end; the fence is stored if a quorum gave it, and stays otherwise.
fn update_member(memory: &mut Memory, context: &CallContext<'_>, args: &UpdateArgs, member: MemberLease) -> Reply {
    let (now_ms, resource, MemberLease { mut record, end_ms }) = (context.now_ms(), &args.resource, member);
    let wanted = args.fence.filter(|fence| *fence != record.fence && fence.0 > 0);
    if args.kind == UpdateKind::Renewal && wanted.is_some() {
        return Reply::Other { fence: Some(record.fence).filter(|fence| fence.0 > 0) };
    }
    if args.fence.is_some_and(|fence| fence.0 > memory.marker.highest_plausible_fence(context)) {
        return Reply::FenceTooFarAhead;
    }
    if args.kind == UpdateKind::Renewal {
        record.renewals = record.renewals.saturating_add(1).min(MAX_RENEWALS);
        if !record.claims.split(',').any(|claim| claim == "p") && !mutant::is(Mutant::ExtendUnclaimed) {
            record.claims = format!("{}p,", record.claims).into();
        }
    }
    if let Some(fence) = wanted {
        record.fence = fence;
        memory.store_fence(resource, fence.0);
    }
    if let Some(labels) = edit_of(args, &record) {
        record.labels = labels;
    }
    let px_ms = context.key_ttl_ms(args.ttl.unwrap_or(record.ttl));
    let later_ms = end_ms.max(now_ms.saturating_add(px_ms));
    shared_holders::store(memory, now_ms, resource, MemberLease { record: record.clone(), end_ms: later_ms }, px_ms);
    Reply::Updated { record, before_ms: end_ms - now_ms }
}

/// Two forbidden behaviours of an update: mutants.
fn mutant_reply(memory: &mut Memory, context: &CallContext<'_>, args: &UpdateArgs) -> Option<Reply> {
    let is_held = match memory.locks.get(&args.resource, context.now_ms()) {
        Some(LockValue::Lease(record)) if record.token == args.token => return None,
        found => found.is_some(),
    };
    let (ttl, fence) = (args.ttl?, args.fence?);
    let (token, claims, labels) = (args.token.clone(), "p,".into(), "{}".into());
    let record = LeaseRecord { mode: Mode::Exclusive, token, renewals: 0, ttl, fence, claims, labels };
    if mutant::is(Mutant::WriteBackUnheld) && args.kind != UpdateKind::Renewal {
        memory.store_fence(&args.resource, fence.0);
        return Some(Reply::Updated { record, before_ms: 0 });
    }
    if mutant::is(Mutant::ExtendCreates) && !is_held {
        let end = context.now_ms().saturating_add(context.key_ttl_ms(ttl));
        memory.locks.put(&args.resource, LockValue::Lease(record.clone()), Some(end));
        return Some(Reply::Updated { record, before_ms: 0 });
    }
    None
}
