//! The reference of `revoke.lua`.

use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::{Memory, end_ms};
use crate::protocol::reference::shared_holders;
use crate::protocol::{EndReason, Found, Reply, RevokeArgs, TOKEN_TOMBSTONE};

/// Runs one revocation.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &RevokeArgs) -> Reply {
    let RevokeArgs { resource, token } = args;
    let now_ms = context.now_ms();
    let blocked_ms = memory.blocks.left_ms(resource, now_ms).filter(|_| memory.blocks.names(resource, token, now_ms));
    let held_ms = memory.locks.left_ms(resource, now_ms).flatten();
    if let Some(member) = shared_holders::member_of(memory, now_ms, resource, token) {
        let left_ms = (member.end_ms - now_ms).max(blocked_ms.unwrap_or(0));
        put_tombstone(memory, context, args, left_ms);
        return Reply::Revoked { left_ms };
    }
    // The token stays in the resource's block: the lease is held until its end.
    let left_ms = match (memory.find(context, resource, token), blocked_ms) {
        (Found::Match, _) => held_ms.max(blocked_ms).unwrap_or(0),
        (_, Some(left_ms)) => left_ms,
        (Found::Nothing, None) => return Reply::Missing,
        (Found::Other, None) => return Reply::Other { fence: None },
    };
    put_tombstone(memory, context, args, left_ms);
    Reply::Revoked { left_ms }
}

/// It outlives the lease, and takes the place of no other reason.
fn put_tombstone(memory: &mut Memory, context: &CallContext<'_>, args: &RevokeArgs, left_ms: u64) {
    let before = memory.tombstone(context, &args.resource, &args.token);
    if before.is_none_or(|reason| reason == EndReason::Revoked) {
        let end = end_ms(context, TOKEN_TOMBSTONE).saturating_add(left_ms);
        memory.ended.put((args.resource.clone(), args.token.clone()), EndReason::Revoked, Some(end));
    }
}
