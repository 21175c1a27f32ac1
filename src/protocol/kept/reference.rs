//! The reference of `kept.lua`.

use std::collections::BTreeMap;

use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::{CallContext, millis};
use crate::protocol::reference::memory::Memory;
use crate::protocol::{KEPT_PAGE_MAX, KEPT_PAUSE, KeptArgs, KeptPage, ListedLease, Reply};
use crate::types::ResourceName;

/// `redlockd:kept`: when each kept lease is checked next. Milliseconds.
pub(in crate::protocol) type KeptIndex = BTreeMap<ResourceName, u64>;

/// Runs one exchange.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &KeptArgs) -> Reply {
    let now_ms = context.now_ms();
    memory.kept.extend(args.add.iter().take(KEPT_PAGE_MAX).map(|resource| (resource.clone(), now_ms)));
    let mut found: Vec<_> =
        memory.kept.iter().filter(|(_, at)| **at <= now_ms).map(|(r, at)| (*at, r.clone())).collect();
    found.sort_unstable();
    found.truncate(KEPT_PAGE_MAX);
    let has_more = found.len() == KEPT_PAGE_MAX;
    let mut due = Vec::new();
    for (_, resource) in found {
        let is_shared = matches!(memory.locks.get(&resource, now_ms), Some(LockValue::Members(_)));
        let mut leases = memory.locks.leases_of(&resource, now_ms);
        if leases.is_empty() && !is_shared {
            memory.kept.remove(&resource);
            continue;
        }
        // Of several leases, only the kept ones.
        leases.retain(|(record, _)| !is_shared || record.labels.contains("\"k\":"));
        let mut earliest_ms = None;
        for (record, left_ms) in leases {
            let half = record.ttl.as_ms().div_ceil(2).saturating_add(millis(context.params.lock_delay));
            let pause_ms = left_ms.saturating_sub(half);
            if pause_ms == 0 && due.len() < KEPT_PAGE_MAX {
                due.push(ListedLease { resource: resource.clone(), record: record.clone(), left_ms });
            }
            earliest_ms = earliest_ms.min(Some(pause_ms)).or(Some(pause_ms));
        }
        let pause_ms = earliest_ms.filter(|pause_ms| *pause_ms > 0).unwrap_or(millis(KEPT_PAUSE));
        memory.kept.insert(resource, now_ms + pause_ms);
    }
    Reply::Kept(KeptPage { is_indexed: true, has_more, due })
}
