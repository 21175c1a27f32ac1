//! Rename: leases of a process receive the names of the key template of a view that changes it (`docs/views.md`, *Changing the
//! terms*). All of them first leave the former names, so that no lease takes the name of another one.

pub(super) mod reference;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};

node_script!(with_marker "../names.lua", "../ended.lua", "rename.lua");

/// The maximum number of keys that one page walks: it occupies the node for about two milliseconds if all are leases.
const PAGE_MAX: u32 = 500;

/// A place in a change of names, and arguments of [`Request::Rename`](super::request::Request::Rename).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameArgs {
    /// Every lease has left the former names: they receive the new ones.
    pub receives: bool,
    /// 0 for the first page of each of the two steps.
    pub cursor: u64,
    /// How many keys to scan, of any kind; at most 500.
    pub count: u32,
}

/// The command for a page.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &RenameArgs,
    script_ref: ScriptRef,
) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 1, 1);
    command.keys([keys::META_KEY]).marker_args(context, sent_at);
    command.text(context.template.head()).text(context.template.tail());
    command
        .text(if args.receives { "i" } else { "o" })
        .number(args.cursor)
        .number(args.count.clamp(1, PAGE_MAX).into());
    command.build()
}

pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "D" => Ok(Reply::Renamed),
        "N" => {
            let receives = match reply.text()? {
                "i" => true,
                "o" => false,
                _ => return malformed("has an unknown step"),
            };
            match reply.text()?.parse() {
                Ok(cursor) => Ok(Reply::Renaming { receives, cursor }),
                Err(_) => malformed("has a cursor that is no number"),
            }
        }
        code => Ok(Reply::NoVote(reply.no_vote(code)?)),
    }
}
