//! Inspect: reads a node's vote and its stored state of one resource.

pub(super) mod reference;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::record::LeaseRecord;
use super::reply::{NodeInspection, Reply, StoredLock};
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};
use crate::types::ResourceName;

node_script!(with_marker "../fences.lua", "inspect.lua", "../members.lua", "members.lua");

/// The command for an inspection.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    resource: &ResourceName,
    script_ref: ScriptRef,
) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 3, 1);
    command.keys([keys::META_KEY, &context.template.lock(resource), &keys::block(resource)]);
    command.marker_args(context, sent_at);
    command.build()
}

/// Reads the reply to an inspection.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    if reply.text()? != "I" {
        return malformed("has an unknown code");
    }
    let no_vote = match reply.text()? {
        "A" => {
            reply.number()?;
            None
        }
        code => Some(reply.no_vote(code)?),
    };
    let kind = reply.text()?;
    let left_ms = reply.left_ms()?;
    let value = reply.bytes()?;
    let foreign = |fingerprint: &str| StoredLock::Foreign { left_ms, fingerprint: fingerprint.into() };
    if kind == "members" {
        let (fence, members) = (reply.fence()?, reply.members()?);
        return Ok(Reply::Inspected(NodeInspection { no_vote, lock: StoredLock::Members(members), fence }));
    }
    let lock = match kind {
        "free" => StoredLock::Free,
        "ours" => match LeaseRecord::parse(value) {
            Some(record) => StoredLock::Lease { record, left_ms: left_ms.unwrap_or_default() },
            None => foreign("unreadable"),
        },
        "foreign" => match std::str::from_utf8(value) {
            Ok(fingerprint) => foreign(fingerprint),
            Err(_) => return malformed("has a fingerprint that is no text"),
        },
        _ => return malformed("has an unknown kind of key"),
    };
    let fence = reply.fence()?;
    Ok(Reply::Inspected(NodeInspection { no_vote, lock, fence }))
}
