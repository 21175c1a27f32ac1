//! The reference of `intent.lua`.

use crate::protocol::reference::marker::{CallContext, millis};
use crate::protocol::reference::memory::{Memory, end_ms};
use crate::protocol::{INTENT_TTL, IntentArgs, Reply};
use crate::types::{ResourceName, TokenHash, WantedMode};

/// A caller's intent as a node stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct StoredIntent {
    token: TokenHash,
    since_us: u64,
    mode: WantedMode,
}

/// Stores or withdraws an intent.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &IntentArgs) -> Reply {
    let IntentArgs { resource, token, since, mode, is_withdrawn } = args;
    let now_ms = context.now_ms();
    let other = memory.intents.get(resource, now_ms).filter(|of| of.token != *token);
    if *is_withdrawn {
        let is_own = other.is_none();
        if is_own {
            memory.intents.remove(resource);
        }
        return Reply::Intent { is_own };
    }
    let own = (since.0, token);
    let stands = left_ms(memory, now_ms, resource).is_some();
    if stands && other.is_some_and(|of| (of.since_us, &of.token) < own) {
        return Reply::Intent { is_own: false };
    }
    let intent = StoredIntent { token: token.clone(), since_us: since.0, mode: *mode };
    memory.intents.put(resource.clone(), intent, Some(end_ms(context, INTENT_TTL)));
    Reply::Intent { is_own: true }
}

/// The remaining time of an intent. One above the TTL was left before the node's clock went back, and does not count.
fn left_ms(memory: &Memory, now_ms: u64, resource: &ResourceName) -> Option<u64> {
    memory.intents.left_ms(resource, now_ms).flatten().filter(|left_ms| *left_ms <= millis(INTENT_TTL))
}

/// How long another caller's incompatible intent still blocks a request. Milliseconds.
pub(in crate::protocol) fn keeps_out(
    memory: &Memory,
    now_ms: u64,
    (resource, token): (&ResourceName, &TokenHash),
    wanted: WantedMode,
) -> Option<u64> {
    let intent = memory.intents.get(resource, now_ms)?;
    let is_in_the_way = intent.token != *token && !intent.mode.is_compatible(wanted);
    left_ms(memory, now_ms, resource).filter(|_| is_in_the_way)
}

/// Withdraws the intent of a caller that got its lease.
pub(in crate::protocol) fn withdraw(memory: &mut Memory, now_ms: u64, resource: &ResourceName, token: &TokenHash) {
    if memory.intents.get(resource, now_ms).is_some_and(|of| of.token == *token) {
        memory.intents.remove(resource);
    }
}
