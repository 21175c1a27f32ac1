//! The reference of `list.lua`, with another order of the leases, and with all members: nothing limits its reply.

use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::{ListArgs, ListedLease, Reply};

/// The next page after the cursor.
pub(in crate::protocol) fn apply(memory: &Memory, context: &CallContext<'_>, args: &ListArgs) -> Reply {
    let now_ms = context.now_ms();
    let count = usize::try_from(args.count).unwrap_or(usize::MAX);
    let (next, leases) = memory.locks.page(args.cursor, count, now_ms);
    let leases = leases
        .into_iter()
        .flat_map(|(resource, leases)| {
            leases.into_iter().map(|(record, left_ms)| ListedLease {
                resource: resource.clone(),
                record: record.clone(),
                left_ms,
            })
        })
        .collect();
    Reply::Page { next, leases, unread: Vec::new() }
}
