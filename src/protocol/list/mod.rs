//! List: one page of the index of held leases.

pub(super) mod reference;

use deadpool_redis::redis::Value;

use super::keys;
use super::record::LeaseRecord;
use super::reply::{ListedLease, Reply};
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};
use crate::types::ResourceName;

node_script!("list.lua");

/// The maximum number of leases asked for as one page: it occupies the node for one or two milliseconds.
pub(super) const PAGE_MAX: u32 = 1_000;

/// Arguments of [`Request::List`](super::request::Request::List).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListArgs {
    /// 0 for the first page, then `next` of [`Reply::Page`].
    pub cursor: u64,
    /// The number of leases wanted.
    pub count: u32,
}

/// The command for a page.
pub(super) fn build(context: &ScriptContext<'_>, args: &ListArgs, script_ref: ScriptRef) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 1, 1);
    command.keys([keys::LEASES_KEY]);
    command.number(args.cursor).number(args.count.clamp(1, PAGE_MAX).into());
    command.text(context.template.head()).text(context.template.tail());
    command.build()
}

/// Reads a page.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    let next = match reply.text()?.parse::<u64>() {
        Ok(0) => None,
        Ok(cursor) => Some(cursor),
        Err(_) => return malformed("has a cursor that is no number"),
    };
    let mut leases = Vec::with_capacity(reply.remaining() / 3);
    while reply.remaining() > 0 {
        let (resource, left_ms, value) = (reply.bytes()?, reply.left_ms()?, reply.bytes()?);
        // Skipped: an index entry that names no resource, and one whose key is a foreign client's by now.
        let resource = std::str::from_utf8(resource).ok().and_then(|name| ResourceName::parse(name).ok());
        if let (Some(resource), Some(left_ms), Some(record)) = (resource, left_ms, LeaseRecord::parse(value)) {
            leases.push(ListedLease { resource, record, left_ms });
        }
    }
    Ok(Reply::Page { next, leases })
}
