//! The reference of `read_all.lua`. Its pages follow hashes of the keys: any order that is the same for every page is correct.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::mutant::{self, Mutant};
use crate::protocol::record::FOREIGN_VALUE_MAX;
use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::Memory;
use crate::protocol::{NoVote, ReadArgs, ReadEntry, Reply, Tombstone};
use crate::types::Fence;

pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &ReadArgs) -> Reply {
    let is_pending = memory.marker.0.as_ref().is_some_and(|m| m.is_pending() && m.view.id == context.view);
    // A process that still has to be filled for this view has no vote, but knows all that it has ever voted for.
    let may_read = |no_vote: &NoVote| is_pending && matches!(no_vote, NoVote::OtherView { .. });
    if let Some(no_vote) = memory.marker.check_vote(context).filter(|no_vote| !may_read(no_vote)) {
        return Reply::NoVote(no_vote);
    }
    if !memory.names.are_of(&context.params.template) && !mutant::is(Mutant::ReadBeforeRename) {
        let view = memory.marker.0.as_ref().map(|m| std::sync::Arc::clone(&m.view)).unwrap_or_default();
        return Reply::NoVote(NoVote::OtherView { view });
    }
    let count = usize::try_from(args.count.max(1)).unwrap_or(usize::MAX);
    let mut entries = everything(memory, context);
    entries.retain(|(place, _)| *place >= args.cursor);
    entries.sort_by_key(|(place, _)| *place);
    let next = entries.get(count).map(|(place, _)| *place);
    if let Some(next) = next {
        entries.retain(|(place, _)| *place < next);
    }
    let entries = entries.into_iter().map(|(_, entry)| entry).collect();
    Reply::Knowledge { next, high_water: Fence(memory.marker.high_water()), now_us: context.now_us, entries }
}

/// The place of a key; never 0, where a listing begins.
fn place(key: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish().max(1)
}

fn everything(memory: &Memory, context: &CallContext<'_>) -> Vec<(u64, ReadEntry)> {
    let now_ms = context.now_ms();
    // The maximum remaining time of a lease: at most a quarantine, whatever this clock was when the lease was written.
    let longest_ms = memory.marker.longest_quarantine_ms(context);
    let mut all = Vec::new();
    for (resource, value, left_ms) in memory.locks.iter(now_ms) {
        let name = resource.clone();
        let left_ms =
            if value.looks_like_lease() { Some(left_ms.map_or(longest_ms, |ms| ms.min(longest_ms))) } else { left_ms };
        let foreign = |value| ReadEntry::Foreign { resource: name.clone(), value, left_ms };
        let entry = match value {
            LockValue::Lease(record) => ReadEntry::Lease { resource: name.clone(), record: record.clone(), left_ms },
            LockValue::Members(members) if members.living(now_ms).next().is_some() => {
                for member in members.living(now_ms) {
                    // One member per entry: a page has at least as many of them as keys.
                    let (record, left_ms) = (member.record.clone(), Some((member.end_ms - now_ms).min(longest_ms)));
                    let at = place(("member", resource, &record.token));
                    all.push((at, ReadEntry::Lease { resource: name.clone(), record, left_ms }));
                }
                continue;
            }
            LockValue::Members(members) => foreign(Some(members.key_value())),
            LockValue::Bytes(bytes) if bytes.len() <= FOREIGN_VALUE_MAX => foreign(Some(bytes.clone())),
            LockValue::Bytes(_) | LockValue::OtherType(_) => foreign(None),
        };
        all.push((place(("lock", resource)), entry));
    }
    for (resource, tokens) in memory.blocks.iter(now_ms) {
        for (token, of) in tokens.iter().filter(|(_, of)| of.end_ms >= now_ms) {
            let (token, claims, left_ms) = (token.clone(), of.claims.clone(), of.end_ms - now_ms);
            let left_ms = if token.is_some() { left_ms.min(longest_ms) } else { left_ms }; // a foreign lock may last longer
            // One token per entry: a page has at least as many of them as keys.
            let at = place(("block", resource, &token));
            all.push((at, ReadEntry::Block { resource: resource.clone(), token, claims, left_ms }));
        }
    }
    for ((resource, token), reason, left_ms) in memory.ended.iter(now_ms) {
        let (resource, token, left_ms) = (resource.clone(), token.clone(), left_ms.unwrap_or(0));
        let tombstone = Tombstone { resource, token, attempt: None, reason: *reason, left_ms };
        all.push((place(("ended", &tombstone.resource, &tombstone.token)), ReadEntry::Tombstone(tombstone)));
    }
    for ((resource, token, attempt), reason, left_ms) in memory.cancelled.iter(now_ms) {
        let (resource, token, left_ms) = (resource.clone(), token.clone(), left_ms.unwrap_or(0));
        let tombstone = Tombstone { resource, token, attempt: Some(attempt.clone()), reason: *reason, left_ms };
        all.push((place(("cancelled", attempt)), ReadEntry::Tombstone(tombstone)));
    }
    all
}
