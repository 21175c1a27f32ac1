//! The reference of `restore.lua`.

use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::{CallContext, refuses_updates};
use crate::protocol::reference::memory::Memory;
use crate::protocol::{Reply, RestoreArgs};

/// Runs one restore.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &RestoreArgs) -> Reply {
    let RestoreArgs { resource, record, left_ms } = args;
    let no_vote = memory.marker.check_vote(context);
    if refuses_updates(no_vote.as_ref()) {
        return no_vote.map_or(Reply::Restored, Reply::NoVote);
    }
    if let Some(reason) = memory.tombstone(context, resource, &record.token) {
        return Reply::Ended { reason };
    }
    if record.fence.0 > memory.marker.highest_plausible_fence(context) {
        return Reply::FenceTooFarAhead;
    }
    if memory.locks.get(resource, context.now_ms()).is_some() {
        return Reply::Other { fence: None };
    }
    let end = context.now_ms().saturating_add((*left_ms).max(1)); // Redis refuses a TTL of 0
    memory.locks.put(resource, LockValue::from_bytes(record.encode().as_bytes()), Some(end));
    let counter = memory.counter(context, resource);
    memory.store_fence(context, resource, record.fence.0.max(counter));
    Reply::Restored
}
