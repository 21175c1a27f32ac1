//! Update: extends a lease, edits its labels, or writes its fence back.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::record::LeaseRecord;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, millis, node_script};
use crate::types::{Fence, ResourceName, TokenHash, Ttl};

node_script!(with_marker "../fences.lua", "../ended.lua", "update.lua", "../members.lua", "member.lua");

/// What an update does besides a new end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateKind {
    /// A fence or labels are written.
    Edit,
    /// As `Edit`, and it counts as a renewal.
    Renewal,
    /// As `Edit`, but a lease that is kept already keeps its labels: a late first end must not replace one that was set since.
    FirstEnd,
}

/// Arguments of [`Request::Update`](super::request::Request::Update).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateArgs {
    /// The leased resource.
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
    /// The new lifetime; `None`: the TTL that the lease was acquired with.
    pub ttl: Option<Ttl>,
    /// The lease's fence: a lower stored one is raised to it; a higher one is another lease's of this token; `None`: any. For
    /// a member: a renewal takes only the lease with this fence; another update stores it, as a quorum gave it to this lease.
    pub fence: Option<Fence>,
    pub kind: UpdateKind,
    /// New labels, encoded; `None`: unchanged.
    pub labels: Option<Arc<str>>,
}

/// The command for an update.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &UpdateArgs,
    script_ref: ScriptRef,
) -> Command {
    let UpdateArgs { resource, token, ttl, fence, kind, labels } = args;
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 4, 1);
    command.keys([keys::META_KEY, &context.template.lock(resource)]);
    command.keys([&keys::block(resource), &keys::token_tombstone(resource, token)]);
    command.marker_args(context, sent_at);
    command.text(token.as_str()).number(ttl.map_or(0, |t| t.as_ms())).number(millis(context.params.lock_delay));
    command.number(fence.map_or(0, |f| f.0)).number(*kind as u64).text(labels.as_deref().unwrap_or(""));
    command.build()
}

/// Reads the reply to an update.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "G" => match LeaseRecord::parse(reply.bytes()?) {
            Some(record) => Ok(Reply::Updated { record, before_ms: reply.left_ms()?.unwrap_or_default() }),
            None => malformed("has no lease"),
        },
        "M" => Ok(Reply::Missing),
        "O" => reply.other(),
        "D" => Ok(Reply::Ended { reason: reply.end_reason()? }),
        "F" => Ok(Reply::FenceTooFarAhead),
        code => Ok(Reply::NoVote(reply.no_vote(code)?)),
    }
}
