//! The reference of `restore.lua`.

use crate::mutant::{self, Mutant};
use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::{CallContext, refuses_updates};
use crate::protocol::reference::memory::Memory;
use crate::protocol::reference::shared_holders::{self, MemberLease};
use crate::protocol::{NoVote, Reply, RestoreArgs, ViewId};
use crate::types::Mode;

/// Runs one restore.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &RestoreArgs) -> Reply {
    let RestoreArgs { resource, record, left_ms } = args;
    let no_vote = memory.marker.check_vote(context);
    // A voting process accepts a repair only in the view in which the extend was confirmed.
    if refuses_updates(no_vote.as_ref()) || matches!(no_vote, Some(NoVote::OtherView { .. })) {
        return no_vote.map_or(Reply::Restored, Reply::NoVote);
    }
    if let Some(reason) = memory.tombstone(context, resource, &record.token) {
        return Reply::Ended { reason };
    }
    if record.fence.0 > memory.marker.highest_plausible_fence(context) {
        return Reply::FenceTooFarAhead;
    }
    let (now_ms, mut left_ms) = (context.now_ms(), (*left_ms).max(1)); // Redis refuses a TTL of 0
    let block_ms = memory.blocks.left_ms(resource, now_ms);
    if record.mode != Mode::Exclusive {
        return restore_member(memory, context, args, block_ms.is_some());
    }
    match memory.locks.get(resource, now_ms) {
        None => {}
        Some(LockValue::Lease(own)) if block_ms.is_some() && own.token == record.token && own.fence <= record.fence => {
            left_ms = left_ms.max(memory.locks.left_ms(resource, now_ms).flatten().unwrap_or(0));
        }
        Some(_) => return Reply::Other { fence: None },
    }
    if let Some(block_ms) = block_ms {
        // The repair of an older extend would remove a block that stands for another lease.
        let filled = memory.marker.0.as_ref().map_or(ViewId::NONE, |m| m.filled);
        if context.view < filled && !mutant::is(Mutant::RepairOfOlderView) {
            return Reply::Other { fence: None };
        }
        // The lease replaces the block, which may stand for other leases too: the lease ends no earlier than the block.
        if !mutant::is(Mutant::RepairShortensBlock) {
            left_ms = left_ms.max(block_ms);
        }
        memory.blocks.remove(resource);
    }
    let end = now_ms.saturating_add(left_ms);
    memory.locks.put(resource, LockValue::from_bytes(record.encode().as_bytes()), Some(end));
    memory.expect_late(context);
    memory.store_fence(resource, record.fence.0);
    Reply::Restored
}

/// Restores a member beside compatible members. A block stays: it may stand for other members, which this one does not exclude.
fn restore_member(memory: &mut Memory, context: &CallContext<'_>, args: &RestoreArgs, is_blocked: bool) -> Reply {
    let (now_ms, RestoreArgs { resource, record, left_ms }) = (context.now_ms(), args);
    let is_fitting = match (memory.locks.get(resource, now_ms), shared_holders::find(memory, now_ms, resource)) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(_), Some(members)) => {
            let is_new = members.get(&record.token, now_ms).is_none();
            is_new && members.kind == record.mode.wanted() && !members.is_taken(record.mode, &record.token, now_ms)
        }
    };
    if is_blocked || !is_fitting {
        return Reply::Other { fence: None };
    }
    let px_ms = (*left_ms).max(1);
    let member = MemberLease { record: record.clone(), end_ms: now_ms.saturating_add(px_ms) };
    shared_holders::store(memory, now_ms, resource, member, px_ms);
    memory.store_fence(resource, record.fence.0);
    Reply::Restored
}
