//! The reference of `inspect.lua`.

use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::{NoVote, NodeInspection, Reply, StoredLock};
use crate::types::{Fence, ResourceName};

/// Runs one inspection.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, resource: &ResourceName) -> Reply {
    let block = memory.blocks.left_ms(resource, context.now_ms());
    let no_vote = memory.marker.check_vote(context).or(block.map(|left_ms| NoVote::Blocked { left_ms }));
    let left_ms = memory.locks.left_ms(resource, context.now_ms()).flatten();
    let lock = match memory.locks.get(resource, context.now_ms()) {
        None => StoredLock::Free,
        Some(LockValue::Lease(record)) => StoredLock::Lease { record: record.clone(), left_ms: left_ms.unwrap_or(0) },
        Some(LockValue::Members(members)) if members.living(context.now_ms()).next().is_some() => {
            let leases = memory.locks.leases_of(resource, context.now_ms()).into_iter();
            StoredLock::Members(leases.map(|(record, left_ms)| (record.clone(), left_ms)).collect())
        }
        Some(value) => StoredLock::Foreign { left_ms, fingerprint: value.fingerprint() },
    };
    let fence = Fence(memory.fences.last(resource));
    Reply::Inspected(NodeInspection { no_vote, lock, fence })
}
