//! Kept leases, which the service renews: writes them into a node's index, and reads those that were not renewed in time. No vote
//! depends on this.

pub(super) mod reference;

use std::time::Duration;

use deadpool_redis::redis::Value;

use super::keys;
use super::reply::{ListedLease, Reply};
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, millis, node_script};
use crate::types::ResourceName;

node_script!("../names.lua", "kept.lua");

/// The maximum number of leases that one request indexes, and the maximum that it checks.
pub const KEPT_PAGE_MAX: usize = 256;
/// The time after which a due lease is reported again.
pub const KEPT_PAUSE: Duration = Duration::from_secs(1);

/// Arguments of [`Request::Kept`](super::request::Request::Kept).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptArgs {
    /// Leases to be indexed, at most [`KEPT_PAGE_MAX`]; the lock of each need not exist.
    pub add: Vec<ResourceName>,
}

/// The kept leases of a node that are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptPage {
    /// The requested leases are indexed.
    pub is_indexed: bool,
    /// There may be more.
    pub has_more: bool,
    /// Leases with less than half of their TTL left. Any client of the node may have indexed a lease that is not kept.
    pub due: Vec<ListedLease>,
}

/// The command for an exchange.
pub(super) fn build(context: &ScriptContext<'_>, args: &KeptArgs, script_ref: ScriptRef) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 1, 1);
    command.keys([keys::KEPT_KEY]);
    command.number(millis(context.params.lock_delay)).number(KEPT_PAGE_MAX as u64).number(millis(KEPT_PAUSE));
    command.text(context.template.head()).text(context.template.tail());
    for resource in args.add.iter().take(KEPT_PAGE_MAX) {
        command.text(resource.as_str());
    }
    command.build()
}

/// Reads the reply to an exchange.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    let (is_indexed, has_more) = (reply.flag()?, reply.flag()?);
    if reply.remaining() > 3 * KEPT_PAGE_MAX {
        return malformed("has more leases than were asked for");
    }
    let (due, _) = reply.listed_leases()?;
    Ok(Reply::Kept(KeptPage { is_indexed, has_more, due }))
}
