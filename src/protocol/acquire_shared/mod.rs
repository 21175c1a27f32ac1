//! Acquire shared: a shared lease, or the permit with one slot, beside others of its kind (`docs/modes.md`). It is a separate
//! request, so that exclusive leases pay nothing for it.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::record::{MEMBERS_MAX, member_kind, member_mode};
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, millis, node_script};
use crate::types::{AttemptId, Fence, Mode, ResourceName, TokenHash, Ttl};

node_script!(with_marker "../fences.lua", "acquire_shared.lua", "../ended.lua", "../blocks.lua", "../members.lua", "decide.lua");

/// Arguments of [`Request::AcquireShared`](super::request::Request::AcquireShared).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireSharedArgs {
    /// The resource to take.
    pub resource: ResourceName,
    /// Hash of the token that will prove the lease.
    pub token: TokenHash,
    /// Shared, or a permit.
    pub mode: Mode,
    /// The attempt that claims the lease.
    pub attempt: AttemptId,
    /// The lease's lifetime, without the lock delay.
    pub ttl: Ttl,
    /// Encoded [`Labels`](crate::types::Labels).
    pub labels: Arc<str>,
    /// The fence for this lease, if it is above all that the node gave; otherwise the node's next number.
    pub proposed: Option<Fence>,
}

/// The command for an acquire.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &AcquireSharedArgs,
    script_ref: ScriptRef,
) -> Command {
    let AcquireSharedArgs { resource, token, mode, attempt, ttl, labels, proposed } = args;
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 7, 1);
    command.keys([keys::META_KEY, keys::LEASES_KEY, &context.template.lock(resource)]);
    command.keys([&keys::token_tombstone(resource, token), &keys::attempt_tombstone(resource, token, attempt)]);
    command.keys([&keys::members(resource), &keys::intent(resource)]);
    command.marker_args(context, sent_at);
    command.text(token.as_str()).number(ttl.as_ms());
    command.number(millis(ttl.as_duration().saturating_add(context.params.lock_delay)));
    command.text(attempt.as_str()).text(labels).text(resource.as_str());
    command.text(&member_kind(mode.wanted())).text(&member_mode(*mode));
    command.number(proposed.map_or(0, |fence| fence.0)).number(MEMBERS_MAX as u64);
    command.build()
}

/// Reads the reply to an acquire.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "G" => Ok(Reply::Admitted { fence: reply.fence()?, joined: reply.flag()? }),
        "F" => Ok(Reply::FenceTooFarAhead),
        code => super::acquire::parse_refusal(code, &mut reply),
    }
}

#[cfg(test)]
mod tests {
    use super::SCRIPT;
    use crate::protocol::record::{CLAIMS_MAX_BYTES, MEMBERS_SHOWN};

    #[test]
    fn the_script_has_the_limits_of_the_records() {
        assert!(SCRIPT.body().contains(&format!("#claims >= {CLAIMS_MAX_BYTES} then")));
        assert!(SCRIPT.body().contains(&format!("local SHOWN = {MEMBERS_SHOWN} ")));
    }
}
