//! Restore: the repair that puts a lease back on a node where it is missing.

pub(super) mod reference;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::record::LeaseRecord;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader};
use super::script::{Command, CommandBuilder, LIFETIME_MAX_MS, ScriptContext, ScriptRef, node_script};
use crate::types::ResourceName;

node_script!(with_marker "../fences.lua", "../ended.lua", "restore.lua", "../members.lua", "member.lua");

/// Arguments of [`Request::Restore`](super::request::Request::Restore).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreArgs {
    /// The leased resource.
    pub resource: ResourceName,
    /// The lease as the other nodes hold it.
    pub record: LeaseRecord,
    /// Remaining lifetime of the lock's key, in milliseconds.
    pub left_ms: u64,
}

/// The command for a restore.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &RestoreArgs,
    script_ref: ScriptRef,
) -> Command {
    let RestoreArgs { resource, record, left_ms } = args;
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 4, 1);
    command.keys([keys::META_KEY, &context.template.lock(resource)]);
    command.keys([&keys::token_tombstone(resource, &record.token), keys::LEASES_KEY]);
    command.marker_args(context, sent_at);
    command.number((*left_ms).clamp(1, LIFETIME_MAX_MS)).number(record.fence.0);
    command.text(&record.encode()).text(resource.as_str());
    command.build()
}

/// Reads the reply to a restore.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "P" => Ok(Reply::Restored),
        "O" => reply.other(),
        "D" => Ok(Reply::Ended { reason: reply.end_reason()? }),
        "F" => Ok(Reply::FenceTooFarAhead),
        code => Ok(Reply::NoVote(reply.no_vote(code)?)),
    }
}
