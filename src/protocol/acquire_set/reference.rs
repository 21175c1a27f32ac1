//! The reference of `acquire_set.lua`.

use crate::mutant::{self, Mutant};
use crate::protocol::acquire::reference::{beside_members, grant, held, join};
use crate::protocol::record::CLAIMS_MAX_BYTES;
use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::reference::shared_holders::{self, RefusedUntil};
use crate::protocol::reply::NodeGrant;
use crate::protocol::{AcquireSetArgs, EndReason, NoVote, Reply, acquire_shared, intent};
use crate::types::{ResourceName, WantedMode};

/// Runs one acquire of several resources.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireSetArgs) -> Reply {
    if let Some(no_vote) = memory.marker.check_vote(context) {
        return Reply::NoVote(no_vote);
    }
    let mut refused = Vec::new();
    for (index, resource) in args.resources.iter().enumerate() {
        refused.extend(refusal(memory, context, args, resource).map(|why| (index, why)));
    }
    // A token that already has some of them continues: the next caller may be waiting for it.
    let has_any = args.resources.iter().enumerate().any(|(index, resource)| {
        refused.iter().all(|(other, _)| *other != index) && has(memory, context, args, resource)
    });
    if !has_any && !mutant::is(Mutant::SharedUnderIntent) {
        refused.extend(intended(memory, context, args, &refused));
        refused.sort_by_key(|(index, _)| *index);
    }
    if refused.is_empty() {
        let leases = args.resources.iter().map(|resource| take(memory, context, args, resource)).collect();
        return Reply::SetGranted { leases };
    }
    if mutant::is(Mutant::HalfSetKept) {
        let is_free = |index: &usize| refused.iter().all(|(other, _)| other != index);
        for index in (0..args.resources.len()).filter(is_free) {
            take(memory, context, args, &args.resources[index]);
        }
    }
    Reply::SetRefused { refused }
}

/// Whether the token has this resource.
fn has(memory: &Memory, context: &CallContext<'_>, args: &AcquireSetArgs, resource: &ResourceName) -> bool {
    let now_ms = context.now_ms();
    match memory.locks.get(resource, now_ms) {
        Some(LockValue::Lease(record)) => record.token == args.token,
        _ => shared_holders::member_of(memory, now_ms, resource, &args.token).is_some(),
    }
}

/// The resources of which only another caller's intent keeps the set out.
fn intended(
    memory: &mut Memory,
    context: &CallContext<'_>,
    args: &AcquireSetArgs,
    refused: &[(usize, Reply)],
) -> Vec<(usize, Reply)> {
    let wanted = if args.is_shared { WantedMode::Shared } else { WantedMode::Exclusive };
    let mut out = Vec::new();
    for (index, resource) in args.resources.iter().enumerate() {
        let left_ms = intent::reference::keeps_out(memory, context.now_ms(), (resource, &args.token), wanted);
        if let Some(left_ms) = left_ms.filter(|_| refused.iter().all(|(other, _)| *other != index)) {
            out.push((index, shared_holders::held_by(memory, context, resource, RefusedUntil::Intent(left_ms))));
        }
    }
    out
}

/// Why this resource refuses the set, apart from intents.
fn refusal(
    memory: &mut Memory,
    context: &CallContext<'_>,
    args: &AcquireSetArgs,
    resource: &ResourceName,
) -> Option<Reply> {
    if args.is_shared {
        return acquire_shared::reference::refusal(memory, context, &args.one_shared(resource), false);
    }
    let now_ms = context.now_ms();
    if let Some(reason) = memory.tombstone(context, resource, &args.token) {
        return Some(Reply::Ended { reason });
    }
    if memory.cancelled.get(&(resource.clone(), args.token.clone(), args.attempt.clone()), now_ms).is_some() {
        return Some(Reply::Ended { reason: EndReason::Cancelled });
    }
    if let Some(left_ms) = memory.cut_block(context, resource) {
        return Some(Reply::NoVote(NoVote::Blocked { left_ms }));
    }
    match memory.locks.get(resource, now_ms) {
        None => None,
        Some(LockValue::Lease(record)) if record.token == args.token => {
            let is_known = record.claims.split(',').any(|claim| claim == args.attempt.as_str());
            let is_full = !is_known && record.claims.len() >= CLAIMS_MAX_BYTES;
            is_full.then_some(Reply::TooManyClaims)
        }
        Some(value) if value.is_damaged_lease_of(&args.token) => {
            Some(Reply::Held { left_ms: memory.locks.left_ms(resource, now_ms).flatten(), record: None })
        }
        Some(LockValue::Members(_)) => Some(beside_members(memory, context, (resource, &args.token))),
        Some(_) => Some(held(memory, context, resource)),
    }
}

fn take(memory: &mut Memory, context: &CallContext<'_>, args: &AcquireSetArgs, resource: &ResourceName) -> NodeGrant {
    if args.is_shared {
        let reply = acquire_shared::reference::take(memory, context, &args.one_shared(resource));
        let Reply::Admitted { fence, joined } = reply else { unreachable!("checked before: {reply:?}") };
        return NodeGrant { fence, joined };
    }
    let one = args.one(resource);
    let has_it = matches!(memory.locks.get(resource, context.now_ms()), Some(LockValue::Lease(_)));
    match if has_it { join(memory, context, &one) } else { grant(memory, context, &one, true) } {
        Reply::Granted { fence, joined } => NodeGrant { fence, joined },
        other => unreachable!("checked before: {other:?}"),
    }
}
