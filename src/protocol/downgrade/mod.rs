//! Downgrade: an exclusive lease becomes a shared one, with the same token, fence and end. Never the reverse.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::record::LeaseRecord;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};
use crate::types::{Mode, ResourceName, TokenHash};

node_script!(with_marker "../ended.lua", "downgrade.lua", "../members.lua", "decide.lua");

/// Arguments of [`Request::Downgrade`](super::request::Request::Downgrade).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DowngradeArgs {
    /// The leased resource.
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
    /// Every claim that the sender has seen, each followed by a comma. An attempt that joined later relies on an exclusive lease,
    /// so a node that knows of such an attempt refuses.
    pub claims: Arc<str>,
}

/// The command for a downgrade.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &DowngradeArgs,
    script_ref: ScriptRef,
) -> Command {
    let DowngradeArgs { resource, token, claims } = args;
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 4, 1);
    command.keys([keys::META_KEY, &context.template.lock(resource)]);
    command.keys([&keys::token_tombstone(resource, token), &keys::members(resource)]);
    command.marker_args(context, sent_at);
    command.text(token.as_str()).text(resource.as_str()).text(claims);
    command.build()
}

/// Reads the reply to a downgrade.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "G" => {
            let left_ms = reply.left_ms()?.unwrap_or_default();
            match LeaseRecord::parse(reply.bytes()?).filter(|record| record.mode == Mode::Shared) {
                Some(record) => Ok(Reply::Downgraded { record, left_ms }),
                None => malformed("has no shared lease"),
            }
        }
        "M" => Ok(Reply::Missing),
        "O" => reply.other(),
        "Y" => Ok(Reply::ModeDiffers { mode: reply.member_mode()? }),
        "D" => Ok(Reply::Ended { reason: reply.end_reason()? }),
        code => Ok(Reply::NoVote(reply.no_vote(code)?)),
    }
}
