//! Shared leases and permits of a reference node: the data that `members.lua` keeps in the lock's key and the hash of members.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::locks::LockValue;
use super::marker::CallContext;
use super::memory::Memory;
use crate::mutant::{self, Mutant};
use crate::protocol::record::{MEMBERS_SHOWN, member_kind};
use crate::protocol::{HeldByMembers, LeaseRecord, Reply};
use crate::types::{Mode, ResourceName, TokenHash, WantedMode};

/// One shared lease or permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct MemberLease {
    pub(in crate::protocol) record: LeaseRecord,
    /// The member's last millisecond, on the node's clock.
    pub(in crate::protocol) end_ms: u64,
}

/// All members of a resource, including ended ones until the next change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct MemberLeases {
    /// The common kind of the members.
    pub(in crate::protocol) kind: WantedMode,
    of: BTreeMap<TokenHash, MemberLease>,
}

impl MemberLeases {
    pub(in crate::protocol) fn new(kind: WantedMode) -> Self {
        Self { kind, of: BTreeMap::new() }
    }

    /// The value of the lock's key.
    pub(in crate::protocol) fn key_value(&self) -> Arc<[u8]> {
        format!("S|{}", member_kind(self.kind)).into_bytes().into()
    }

    /// The members whose last millisecond has not passed.
    pub(in crate::protocol) fn living(&self, now_ms: u64) -> impl Iterator<Item = &MemberLease> {
        self.of.values().filter(move |member| member.end_ms >= now_ms)
    }

    /// This token's member, if it lives.
    pub(in crate::protocol) fn get(&self, token: &TokenHash, now_ms: u64) -> Option<&MemberLease> {
        self.of.get(token).filter(|member| member.end_ms >= now_ms)
    }

    /// Whether another token has this slot.
    pub(in crate::protocol) fn is_taken(&self, mode: Mode, token: &TokenHash, now_ms: u64) -> bool {
        let same = |member: &MemberLease| member.record.token != *token && member.record.mode.slot() == mode.slot();
        mode.slot().is_some() && self.living(now_ms).any(same)
    }

    fn remove(&mut self, token: &TokenHash) {
        self.of.remove(token);
    }
}

/// The members of a resource, if one of them lives. Without one, the key counts as a foreign client's.
pub(in crate::protocol) fn find<'a>(
    memory: &'a Memory,
    now_ms: u64,
    resource: &ResourceName,
) -> Option<&'a MemberLeases> {
    match memory.locks.get(resource, now_ms)? {
        LockValue::Members(members) => members.living(now_ms).next().is_some().then_some(members),
        _ => None,
    }
}

/// This token's member.
pub(in crate::protocol) fn member_of<'a>(
    memory: &'a Memory,
    now_ms: u64,
    resource: &ResourceName,
    token: &TokenHash,
) -> Option<&'a MemberLease> {
    find(memory, now_ms, resource)?.get(token, now_ms)
}

/// Stores a member; the key lasts at least for `px_ms` from now. Ended members are removed.
pub(in crate::protocol) fn store(
    memory: &mut Memory,
    now_ms: u64,
    resource: &ResourceName,
    member: MemberLease,
    px_ms: u64,
) {
    let kind = member.record.mode.wanted();
    let mut members = find(memory, now_ms, resource).cloned().unwrap_or_else(|| MemberLeases::new(kind));
    let is_new = members.of.is_empty();
    members.of.retain(|_, member| member.end_ms >= now_ms);
    members.of.insert(member.record.token.clone(), member);
    let before_ms = memory.locks.left_ms(resource, now_ms).flatten().filter(|_| !is_new).unwrap_or(0);
    let left_ms = if mutant::is(Mutant::KeyOfLastMember) { px_ms } else { px_ms.max(before_ms) };
    memory.locks.put(resource, LockValue::Members(members), Some(now_ms.saturating_add(left_ms)));
}

/// Removes a member; the last one removes both keys.
pub(in crate::protocol) fn remove(memory: &mut Memory, now_ms: u64, resource: &ResourceName, token: &TokenHash) {
    let Some(mut members) = find(memory, now_ms, resource).cloned() else { return };
    members.remove(token);
    match members.living(now_ms).map(|member| member.end_ms).max() {
        None => drop(memory.locks.remove(resource, now_ms)),
        Some(last_ms) => {
            members.of.retain(|_, member| member.end_ms >= now_ms);
            memory.locks.put(resource, LockValue::Members(members), Some(last_ms.max(now_ms + 1)));
        }
    }
}

/// Until when members refuse a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) enum RefusedUntil {
    /// Until the last of them ends.
    Last,
    /// Until the first of them ends.
    First,
    /// Until another caller's intent ends, in milliseconds.
    Intent(u64),
}

/// The refusal of a request by members or an intent.
pub(in crate::protocol) fn held_by(
    memory: &mut Memory,
    context: &CallContext<'_>,
    resource: &ResourceName,
    until: RefusedUntil,
) -> Reply {
    let now_ms = context.now_ms();
    let is_intent = matches!(until, RefusedUntil::Intent(_));
    let Some(members) = find(memory, now_ms, resource) else {
        let left_ms = if let RefusedUntil::Intent(left_ms) = until { left_ms } else { 0 };
        let (taken, members) = Default::default();
        return Reply::HeldByMembers(HeldByMembers { left_ms, kind: None, is_intent, taken, members });
    };
    let first_ms = members.living(now_ms).map(|member| member.end_ms).min().unwrap_or(now_ms) - now_ms;
    let taken = members.living(now_ms).filter_map(|member| member.record.mode.slot()).collect();
    let shown = members.living(now_ms).take(MEMBERS_SHOWN).map(|member| member.record.clone()).collect();
    let kind = Some(members.kind);
    let longest_ms = memory.marker.longest_quarantine_ms(context);
    let key_ms = memory.locks.left_ms(resource, now_ms).flatten().filter(|left_ms| *left_ms <= longest_ms);
    if key_ms.is_none() {
        // No lease lasts longer than the quarantine: this clock went backwards.
        memory.locks.set_end(resource, Some(now_ms.saturating_add(longest_ms)));
    }
    let last_ms = key_ms.unwrap_or(longest_ms);
    let left_ms = match until {
        RefusedUntil::Last => last_ms,
        RefusedUntil::First => first_ms.min(last_ms),
        RefusedUntil::Intent(left_ms) => left_ms.min(last_ms),
    };
    Reply::HeldByMembers(HeldByMembers { left_ms, kind, is_intent, taken, members: shown })
}
