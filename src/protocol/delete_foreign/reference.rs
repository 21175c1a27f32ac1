//! The reference of `delete_foreign.lua`.

use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::{DeleteForeignArgs, Found, Released, Reply};

/// Runs one deletion.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &DeleteForeignArgs) -> Reply {
    let found = match memory.locks.get(&args.resource, context.now_ms()) {
        None => Found::Nothing,
        Some(LockValue::Members(members)) if members.living(context.now_ms()).next().is_some() => Found::Other,
        Some(value) if value.fingerprint() == args.fingerprint => Found::Match,
        Some(_) => Found::Other,
    };
    if found == Found::Match {
        memory.locks.remove(&args.resource, context.now_ms());
        memory.blocks.take_out(&args.resource, None, None, context.now_ms());
    }
    Reply::Released(Released { found, earlier: None })
}
