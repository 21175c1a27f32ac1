//! The reference of `revoke.lua`.

use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::{Memory, end_ms};
use crate::protocol::{EndReason, Found, Reply, RevokeArgs, TOKEN_TOMBSTONE};

/// Runs one revocation.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &RevokeArgs) -> Reply {
    let RevokeArgs { resource, token } = args;
    match memory.find(context, resource, token) {
        Found::Nothing => Reply::Missing,
        Found::Other => Reply::Other { fence: None },
        Found::Match => {
            let left_ms = memory.locks.left_ms(resource, context.now_ms()).flatten().unwrap_or(0);
            let end = end_ms(context, TOKEN_TOMBSTONE).saturating_add(left_ms);
            memory.ended.put((resource.clone(), token.clone()), EndReason::Revoked, Some(end));
            Reply::Revoked { left_ms }
        }
    }
}
