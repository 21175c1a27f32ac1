//! List: one page of the index of held leases.

pub(super) mod reference;

use deadpool_redis::redis::Value;

use super::keys;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};

node_script!("../names.lua", "list.lua");

/// The maximum number of leases per requested page: it occupies the node for one or two milliseconds.
pub(super) const PAGE_MAX: u32 = 1_000;

/// Arguments of [`Request::List`](super::request::Request::List).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListArgs {
    /// 0 for the first page, then `next` of [`Reply::Page`].
    pub cursor: u64,
    /// The requested number of leases.
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

pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    let next = match reply.text()?.parse::<u64>() {
        Ok(0) => None,
        Ok(cursor) => Some(cursor),
        Err(_) => return malformed("has a cursor that is no number"),
    };
    let (leases, unread) = reply.listed_leases()?;
    Ok(Reply::Page { next, leases, unread })
}
