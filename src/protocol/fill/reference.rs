//! The reference of `fill.lua`.

use std::sync::Arc;
use std::time::Duration;

use crate::mutant::{self, Mutant};
use crate::protocol::reference::blocks::union;
use crate::protocol::reference::locks::LockValue;
use crate::protocol::reference::marker::{CallContext, FillProgress};
use crate::protocol::reference::memory::Memory;
use crate::protocol::reference::shared_holders::{self, MemberLease};
use crate::protocol::{ClusterParams, EndReason, FillArgs, FillEntry, LeaseRecord, NoVote, Reply, Tombstone};
use crate::types::{AttemptId, Fence, Mode, ResourceName, TokenHash};

/// Runs one page of a fill.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &FillArgs) -> Reply {
    // The quarantine here outlasts all filled leases, which instances with another `max_ttl` than the sender's may hold.
    let params = ClusterParams { quarantine: quarantine(context, &args.entries), ..context.params.clone() };
    let context = &CallContext { params: &params, ..*context };
    let no_vote = memory.marker.check_vote(context);
    let votes = match no_vote {
        None | Some(NoVote::OtherView { .. }) => true,
        Some(NoVote::Quarantined { .. } | NoVote::Unseeded { .. }) => false,
        Some(no_vote) => return Reply::NoVote(no_vote),
    };
    // The view must be above any in which this process has voted, whose votes the fill would not know; it must name this very
    // process, and be the last one that it promised: a process that forgot once more has to serve its quarantine first (seed 70400).
    let view = args.view.id;
    let (own, promised) = memory.marker.0.as_ref().map_or_else(Default::default, |m| (m.view.id, m.promised));
    // The process is in both lists of a change: it keeps its keys.
    let keeps = votes && memory.marker.0.as_ref().is_some_and(|m| m.is_pending() && own == view);
    let has_lost = args.keeps && !keeps && !mutant::is(Mutant::KeptUnchecked);
    let is_above = keeps || view > own || mutant::is(Mutant::SameViewAgain);
    let is_promised = view == promised || mutant::is(Mutant::FillUnpromised);
    if has_lost || !is_above || !is_promised || !args.view.names(context.run, view) {
        return Reply::FillNotNeeded;
    }
    if keeps && !memory.names.are_of(&context.params.template) && !mutant::is(Mutant::ReadBeforeRename) {
        return Reply::FillNotNeeded; // its own keys do not have these names yet
    }
    if votes && !keeps {
        // It votes in a view that the new one replaces.
        memory.marker.quarantine(context, "replaced");
    }
    let begun = memory.marker.0.as_ref().and_then(|m| m.fill);
    let is_this = |fill: &FillProgress| (fill.view, fill.nonce, fill.pages) == (view, args.nonce, args.pages);
    let done = begun.filter(is_this).map_or(0, |fill| fill.done);
    if args.page <= done {
        return Reply::Filled { done };
    }
    if args.page != done + 1 {
        return Reply::FillOutOfOrder { done };
    }
    let has_template = args.view.terms().is_some_and(|terms| terms.template.is_some());
    if !keeps && (memory.names.own.is_some() || has_template) {
        memory.names.forget(context.params.template.clone());
    }
    for entry in &args.entries {
        fill(memory, context, entry);
    }
    memory.expect_late(context);
    if let Some(marker) = &mut memory.marker.0 {
        marker.fill = Some(FillProgress { view, nonce: args.nonce, pages: args.pages, done: args.page });
        marker.filled = marker.filled.max(view);
    }
    Reply::Filled { done: args.page }
}

fn quarantine(context: &CallContext<'_>, entries: &[FillEntry]) -> Duration {
    let is_lease = |entry: &&FillEntry| !matches!(entry, FillEntry::Tombstone(_) | FillEntry::Foreign { .. });
    let longest_ms = entries.iter().filter(is_lease).map(FillEntry::left_ms).max().unwrap_or(0);
    context.params.quarantine.max(Duration::from_millis(longest_ms))
}

fn fill(memory: &mut Memory, context: &CallContext<'_>, entry: &FillEntry) {
    let (now_ms, longest_ms) = (context.now_ms(), memory.marker.longest_quarantine_ms(context));
    match entry {
        FillEntry::Tombstone(tombstone) => add_tombstone(memory, now_ms, tombstone),
        FillEntry::Foreign { resource, value, left_ms } => {
            memory.blocks.add(resource, None, "", (*left_ms).max(1), longest_ms, now_ms);
            let value = value.as_ref().filter(|value| !value.is_empty());
            if let (Some(value), None) = (value, memory.locks.get(resource, now_ms)) {
                let end_ms = now_ms.saturating_add((*left_ms).max(1));
                memory.locks.put(resource, LockValue::from_bytes(value), Some(end_ms));
            }
        }
        FillEntry::Copy { resource, record, left_ms } | FillEntry::Keep { resource, record, left_ms } => {
            let Some((claims, is_revoked)) = standing(memory, context, resource, &record.token, &record.claims) else {
                return;
            };
            let record = LeaseRecord { claims, ..record.clone() };
            // A revoked lease is held until its end, and is never copied: a copy would be a vote.
            let put = if record.mode == Mode::Exclusive { copy } else { copy_member };
            let may_copy = match entry {
                FillEntry::Keep { .. } => has_own(memory, now_ms, resource, &record),
                _ => true,
            };
            if is_revoked || !may_copy || !put(memory, now_ms, resource, &record, *left_ms) {
                let left_ms = own_left_ms(memory, now_ms, resource, &record.token).max(*left_ms).max(1);
                memory.blocks.add(resource, Some(record.token), &record.claims, left_ms, longest_ms, now_ms);
            }
        }
        FillEntry::Block { resource, token, claims, left_ms } => {
            if let Some((claims, _)) = standing(memory, context, resource, token, claims) {
                let left_ms = own_left_ms(memory, now_ms, resource, token).max(*left_ms).max(1);
                memory.blocks.add(resource, Some(token.clone()), &claims, left_ms, longest_ms, now_ms);
            }
        }
    }
}

/// The first reason stays, except that any other replaces a revocation. No tombstone is shortened.
fn add_tombstone(memory: &mut Memory, now_ms: u64, tombstone: &Tombstone) {
    let Tombstone { resource, token, attempt, reason, left_ms } = tombstone;
    let replaces = |before: EndReason| if before == EndReason::Revoked { *reason } else { before };
    let end_ms = |left: Option<Option<u64>>| now_ms.saturating_add((*left_ms).max(1).max(left.flatten().unwrap_or(0)));
    if let Some(attempt) = attempt {
        let key = (resource.clone(), token.clone(), attempt.clone());
        let before = memory.cancelled.get(&key, now_ms).copied();
        let end_ms = end_ms(memory.cancelled.left_ms(&key, now_ms));
        memory.cancelled.put(key, before.map_or(*reason, replaces), Some(end_ms));
    } else {
        let key = (resource.clone(), token.clone());
        let before = memory.ended.get(&key, now_ms).copied();
        let end_ms = end_ms(memory.ended.left_ms(&key, now_ms));
        memory.ended.put(key, before.map_or(*reason, replaces), Some(end_ms));
    }
}

/// The claims of this token whose attempts were not cancelled here, and whether the token was revoked here. `None`: the lease has
/// no claim left, or has ended.
fn standing(
    memory: &Memory,
    context: &CallContext<'_>,
    resource: &ResourceName,
    token: &TokenHash,
    claims: &str,
) -> Option<(Arc<str>, bool)> {
    let reason = memory.tombstone(context, resource, token);
    let is_cancelled = |claim: &&str| {
        let attempt = AttemptId::parse(claim.trim_end_matches(','));
        attempt.is_some_and(|attempt| {
            memory.cancelled.get(&(resource.clone(), token.clone(), attempt), context.now_ms()).is_some()
        })
    };
    let claims: String = claims.split_inclusive(',').filter(|claim| !is_cancelled(claim)).collect();
    let is_revoked = reason == Some(EndReason::Revoked);
    ((reason.is_none() || is_revoked) && !claims.is_empty()).then(|| (claims.into(), is_revoked))
}

/// The remaining milliseconds of this process' key of the token: it must not outlast the token's block, and vote again.
fn own_left_ms(memory: &Memory, now_ms: u64, resource: &ResourceName, token: &TokenHash) -> u64 {
    if mutant::is(Mutant::KeyOutlivesItsBlock) {
        return 0;
    }
    let leases = memory.locks.leases_of(resource, now_ms);
    leases.into_iter().find(|(record, _)| record.token == *token).map_or(0, |(_, left_ms)| left_ms)
}

/// Whether this process holds a lease of the record's token on this resource.
fn has_own(memory: &mut Memory, now_ms: u64, resource: &ResourceName, record: &LeaseRecord) -> bool {
    match record.mode {
        Mode::Exclusive => memory.locks.get(resource, now_ms).is_some_and(|own| own.is_of(&record.token)),
        _ => shared_holders::find(memory, now_ms, resource).is_some_and(|all| all.get(&record.token, now_ms).is_some()),
    }
}

/// Stores a copy of the lease; `false`: there is another key.
fn copy(memory: &mut Memory, now_ms: u64, resource: &ResourceName, record: &LeaseRecord, left_ms: u64) -> bool {
    let mut record = record.clone();
    match memory.locks.get(resource, now_ms) {
        None => {}
        Some(LockValue::Lease(own)) if own.token == record.token => {
            record.claims = union(&own.claims, &record.claims);
            record.fence = Fence(record.fence.0.max(own.fence.0));
            record.renewals = record.renewals.max(own.renewals);
        }
        Some(_) => return false,
    }
    let own_left_ms = memory.locks.left_ms(resource, now_ms).flatten().unwrap_or(0);
    let end_ms = now_ms.saturating_add(left_ms.max(1).max(own_left_ms));
    memory.locks.put(resource, LockValue::Lease(record), Some(end_ms));
    true
}

/// Stores a copy of a member beside compatible members; `false`: there is something else.
fn copy_member(memory: &mut Memory, now_ms: u64, resource: &ResourceName, record: &LeaseRecord, left_ms: u64) -> bool {
    let (mut record, left_ms) = (record.clone(), left_ms.max(1));
    let mut end_ms = now_ms.saturating_add(left_ms);
    match (memory.locks.get(resource, now_ms), shared_holders::find(memory, now_ms, resource)) {
        (None, _) => {}
        (Some(_), None) => return false,
        (Some(_), Some(members)) => {
            let is_taken = members.is_taken(record.mode, &record.token, now_ms);
            if members.kind != record.mode.wanted() || is_taken {
                return false;
            }
            if let Some(own) = members.get(&record.token, now_ms) {
                if own.record.mode != record.mode {
                    return false;
                }
                record.claims = union(&own.record.claims, &record.claims);
                // A quorum has given the filled fence to this lease, whatever this process gave; 0: none is known.
                record.fence = if record.fence == Fence(0) { own.record.fence } else { record.fence };
                record.renewals = record.renewals.max(own.record.renewals);
                end_ms = end_ms.max(own.end_ms);
            }
        }
    }
    shared_holders::store(memory, now_ms, resource, MemberLease { record, end_ms }, end_ms - now_ms);
    true
}
