//! The reference of `rename.lua`.

use crate::mutant::{self, Mutant};
use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::{EndReason, LeaseRecord, NoVote, RenameArgs, Reply};
use crate::types::ResourceName;

pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &RenameArgs) -> Reply {
    let is_pending = memory.marker.0.as_ref().is_some_and(|m| m.is_pending() && m.view.id == context.view);
    match memory.marker.check_vote(context) {
        None => return Reply::Renamed,
        Some(NoVote::OtherView { .. }) if is_pending => {}
        Some(no_vote) => return Reply::NoVote(no_vote),
    }
    let target = &context.params.template;
    let Some(own) = memory.names.own.clone().filter(|own| own.template != *target || own.moving.is_some()) else {
        return Reply::Renamed;
    };
    let receives = own.template == *target;
    memory.names.set(own.template, Some(receives));
    let now_ms = context.now_ms();
    let keys = if receives { &memory.names.moved } else { &memory.locks };
    let is_lease = |value: &LockValue| value.looks_like_lease() || matches!(value, LockValue::Members(_));
    let mut named: Vec<ResourceName> =
        keys.iter(now_ms).filter(|(_, value, _)| is_lease(value)).map(|(resource, ..)| resource.clone()).collect();
    named.sort_unstable();
    let count = usize::try_from(args.count.max(1)).unwrap_or(usize::MAX);
    for resource in named.iter().take(count) {
        if receives {
            receive(memory, context, resource);
        } else if let Some(lock) = memory.locks.take(resource) {
            memory.names.moved.give_back(resource, lock);
        }
    }
    if named.len() > count && !mutant::is(Mutant::PartOfNames) {
        return Reply::Renaming { receives, cursor: 1 };
    }
    if receives {
        memory.names.set(target.clone(), None);
        return Reply::Renamed;
    }
    memory.names.set(target.clone(), Some(true));
    memory.show(target);
    Reply::Renaming { receives: true, cursor: 0 }
}

/// Gives one lease, or all members of a resource, the new name.
fn receive(memory: &mut Memory, context: &CallContext<'_>, resource: &ResourceName) {
    let (now_ms, longest_ms) = (context.now_ms(), memory.marker.longest_quarantine_ms(context));
    let leases = memory.names.moved.leases_of(resource, now_ms);
    let leases: Vec<(LeaseRecord, u64)> =
        leases.into_iter().map(|(record, left_ms)| (record.clone(), left_ms)).collect();
    let Some(lock) = memory.names.moved.take(resource) else { return };
    let is_released = |record: &LeaseRecord| {
        memory.tombstone(context, resource, &record.token).is_some_and(|reason| reason != EndReason::Revoked)
    };
    if matches!(lock.value, LockValue::Lease(_)) && leases.iter().any(|(record, _)| is_released(record)) {
        return;
    }
    if memory.locks.get(resource, now_ms).is_none() {
        return memory.locks.give_back(resource, lock);
    }
    // Something else has the name: a block until the lease's end, so that neither is lost.
    for (record, left_ms) in leases.iter().filter(|(record, _)| !record.claims.is_empty()) {
        let (token, left_ms) = (Some(record.token.clone()), (*left_ms).min(longest_ms).max(1));
        memory.blocks.add(resource, token, &record.claims, left_ms, longest_ms, now_ms);
    }
}
