//! The reference of `release.lua`.

use crate::mutant::{self, Mutant};
use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::{Memory, end_ms};
use crate::protocol::reference::shared_holders::{self, MemberLease};
use crate::protocol::{CancelArgs, EndReason, Found, LeaseRecord, ReleaseArgs, Released, Reply, TOKEN_TOMBSTONE};

/// A release, for which the script gets an empty attempt: the lease ends for good.
pub(in crate::protocol) fn release(memory: &mut Memory, context: &CallContext<'_>, args: &ReleaseArgs) -> Reply {
    let mut earlier = memory.tombstone(context, &args.resource, &args.token);
    let mut found = memory.find(context, &args.resource, &args.token);
    match found {
        Found::Match => {
            memory.locks.remove(&args.resource, context.now_ms());
        }
        // The token's first acquire may arrive later.
        _ if mutant::is(Mutant::LateUnread) => {}
        _ => memory.read_tombstones(context, TOKEN_TOMBSTONE),
    }
    if memory.blocks.take_out(&args.resource, Some(&args.token), None, context.now_ms()).is_some() {
        found = Found::Match;
    }
    // A release that finds its lease counts as the first one, except after a revocation.
    earlier = earlier.filter(|reason| found != Found::Match || *reason == EndReason::Revoked);
    if shared_holders::member_of(memory, context.now_ms(), &args.resource, &args.token).is_some() {
        shared_holders::remove(memory, context.now_ms(), &args.resource, &args.token);
        found = Found::Match;
    }
    if leaves_tombstone(earlier) {
        let key = (args.resource.clone(), args.token.clone());
        memory.ended.put(key, args.reason, Some(end_ms(context, TOKEN_TOMBSTONE)));
    }
    Reply::Released(Released { found, earlier })
}

/// A cancel: the attempt's claim is withdrawn, and the lease ends with its last claim.
pub(in crate::protocol) fn cancel(memory: &mut Memory, context: &CallContext<'_>, args: &CancelArgs) -> Reply {
    let now_ms = context.now_ms();
    let key = (args.resource.clone(), args.token.clone(), args.attempt.clone());
    let earlier = memory.cancelled.get(&key, now_ms).copied();
    let mut found = memory.find(context, &args.resource, &args.token);
    if found == Found::Match {
        let record = memory.locks.lease_mut(&args.resource, now_ms);
        let claims = record.as_ref().map_or("", |record| &record.claims);
        let rest = claims.replacen(&format!("{},", args.attempt.as_str()), "", 1);
        if rest.len() == claims.len() {
            found = Found::Other; // only other attempts claim this token's lease, or a foreign client has changed it
        } else if rest.is_empty() || mutant::is(Mutant::CancelByToken) {
            memory.locks.remove(&args.resource, now_ms);
        } else if let Some(record) = record {
            record.claims = rest.into();
        }
    }
    if memory.blocks.take_out(&args.resource, Some(&args.token), Some(&args.attempt), now_ms).is_some() {
        found = Found::Match;
    }
    if let Some(member) = shared_holders::member_of(memory, now_ms, &args.resource, &args.token).cloned() {
        let rest = member.record.claims.replacen(&format!("{},", args.attempt.as_str()), "", 1);
        if rest.len() < member.record.claims.len() {
            found = Found::Match;
            if rest.is_empty() || mutant::is(Mutant::CancelByToken) {
                shared_holders::remove(memory, now_ms, &args.resource, &args.token);
            } else {
                let record = LeaseRecord { claims: rest.into(), ..member.record };
                shared_holders::store(memory, now_ms, &args.resource, MemberLease { record, ..member }, 0);
            }
        }
    }
    if leaves_tombstone(earlier) {
        let end = end_ms(context, context.params.attempt_tombstone());
        memory.cancelled.put(key, EndReason::Cancelled, Some(end));
    }
    Reply::Released(Released { found, earlier })
}

/// The first reason stays, except that a release replaces a revocation.
fn leaves_tombstone(earlier: Option<EndReason>) -> bool {
    matches!(earlier, None | Some(EndReason::Revoked)) && !mutant::is(Mutant::NoTombstone)
}
