//! The reference of `waiters.lua`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::entry::PAGE_ENTRIES;
use crate::protocol::reference::marker::{CallContext, millis};
use crate::protocol::reference::memory::{Memory, end_ms};
use crate::protocol::reference::store::Expiring;
use crate::protocol::{InstanceName, ListedEntry, PublishedWaitersPage, Reply, WaitersArgs};

/// The keys of the waiters: `redlockd:waiters` and the entries.
#[derive(Debug, Clone, Default)]
pub(in crate::protocol) struct WaitersKeys {
    pub(in crate::protocol) entries: Expiring<InstanceName, Arc<str>>,
    /// When each instance last published, in microseconds.
    index: BTreeMap<InstanceName, u64>,
    index_end_ms: u64,
}

impl WaitersKeys {
    /// Drops up to `limit` expired entries, and the index once it has expired.
    pub(in crate::protocol) fn purge(&mut self, now_ms: u64, limit: usize) {
        self.entries.purge(now_ms, limit, |_, _| {});
        if now_ms > self.index_end_ms {
            self.index.clear();
        }
    }
}

/// Runs one exchange.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &WaitersArgs) -> Reply {
    let (waiters, now_ms) = (&mut memory.waiters, context.now_ms());
    let mut cursor = if context.now_us < args.cursor { 0 } else { args.cursor };
    if let Some(entry) = &args.entry {
        let end = end_ms(context, args.ttl);
        waiters.entries.put(args.instance.clone(), Arc::clone(entry), Some(end));
        waiters.index.insert(args.instance.clone(), context.now_us);
        waiters.index_end_ms = end;
        let ttl_us = millis(args.ttl).saturating_mul(1_000);
        let is_gone = |at: u64| at.checked_add(ttl_us).is_some_and(|end| end <= context.now_us);
        let gone = in_order(waiters).into_iter().filter(|(at, _)| is_gone(*at)).take(PAGE_ENTRIES);
        for (_, instance) in gone.collect::<Vec<_>>() {
            waiters.index.remove(&instance);
        }
    }
    let mut found = in_order(waiters).into_iter().filter(|(at, _)| *at > cursor).collect::<Vec<_>>();
    let has_more = found.len() > PAGE_ENTRIES;
    found.truncate(PAGE_ENTRIES);
    cursor = found.last().map_or(cursor, |(at, _)| *at);
    let others = found.into_iter().map(|(_, instance)| instance).filter(|instance| *instance != args.instance);
    let listed = |instance: InstanceName| {
        let entry = waiters.entries.get(&instance, now_ms)?.as_bytes().into();
        let left_ms = waiters.entries.left_ms(&instance, now_ms).flatten()?;
        Some(ListedEntry { instance, left_ms, entry })
    };
    let entries = others.filter_map(listed).collect();
    Reply::Waiters(PublishedWaitersPage { is_published: args.entry.is_some(), cursor, has_more, entries })
}

/// The index in the order of Redis: by score, then by name.
fn in_order(waiters: &WaitersKeys) -> Vec<(u64, InstanceName)> {
    let mut all: Vec<_> = waiters.index.iter().map(|(instance, at)| (*at, instance.clone())).collect();
    all.sort_unstable();
    all
}
