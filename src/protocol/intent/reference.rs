//! The reference of `intent.lua`.

use crate::protocol::reference::marker::CallContext;
use crate::protocol::reference::memory::{Memory, end_ms};
use crate::protocol::{INTENT_TTL, IntentArgs, Reply};

/// Leaves an intent, or withdraws it.
pub(in crate::protocol) fn apply(memory: &mut Memory, context: &CallContext<'_>, args: &IntentArgs) -> Reply {
    let IntentArgs { resource, token, is_withdrawn } = args;
    if memory.intents.get(resource, context.now_ms()).is_some_and(|of| of != token) {
        return Reply::Intent { is_own: false };
    }
    if *is_withdrawn {
        memory.intents.remove(resource);
    } else {
        memory.intents.put(resource.clone(), token.clone(), Some(end_ms(context, INTENT_TTL)));
    }
    Reply::Intent { is_own: true }
}
