//! The reference of `downgrade`.

use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::reference::shared_holders::{self, MemberLease};
use crate::protocol::{DowngradeArgs, LeaseRecord, NoVote, Reply};
use crate::types::Mode;

/// Runs one downgrade.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &DowngradeArgs) -> Reply {
    let (now_ms, DowngradeArgs { resource, token, claims }) = (context.now_ms(), args);
    if let Some(no_vote) = memory.marker.check_vote(context) {
        return Reply::NoVote(no_vote);
    }
    if let Some(reason) = memory.tombstone(context, resource, token) {
        return Reply::Ended { reason };
    }
    if let Some(left_ms) = memory.blocks.left_ms(resource, now_ms) {
        return Reply::NoVote(NoVote::Blocked { left_ms });
    }
    if let Some(MemberLease { record, end_ms }) = shared_holders::member_of(memory, now_ms, resource, token) {
        return match record.mode {
            Mode::Shared => Reply::Downgraded { record: record.clone(), left_ms: end_ms - now_ms },
            mode => Reply::ModeDiffers { mode },
        };
    }
    let record = match memory.locks.get(resource, now_ms) {
        None => return Reply::Missing,
        Some(LockValue::Lease(record)) if record.token == *token => record,
        Some(_) => return Reply::Other { fence: None },
    };
    // An attempt that joined the lease later relies on an exclusive one.
    let is_known = |claim: &str| claim == "p," || claims.contains(claim);
    let Some(left_ms) =
        memory.locks.left_ms(resource, now_ms).flatten().filter(|_| record.claims.split_inclusive(',').all(is_known))
    else {
        return Reply::Other { fence: None };
    };
    let record = LeaseRecord { mode: Mode::Shared, ..record.clone() };
    memory.locks.remove(resource, now_ms);
    let member = MemberLease { record: record.clone(), end_ms: now_ms + left_ms };
    shared_holders::store(memory, now_ms, resource, member, left_ms.max(1));
    Reply::Downgraded { record, left_ms }
}
