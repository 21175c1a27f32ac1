//! The reference of `index.lua`.

use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::{IndexArgs, Reply};

/// Puts leases into the index.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &IndexArgs) -> Reply {
    for (resource, token) in args.leases.iter() {
        let value = memory.locks.get(resource, context.now_ms());
        let is_its = matches!(value, Some(LockValue::Lease(record)) if record.token == *token);
        if is_its || matches!(value, Some(LockValue::Members(_))) {
            memory.locks.enlist(resource);
        }
    }
    Reply::Indexed
}
