//! Waiters: each instance publishes the waiters in its queues, and reads those of the others. No vote depends on it: it is for
//! display, and keeps the place of a caller that comes from another instance.

mod entry;
pub(super) mod reference;

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::Value;

use entry::PAGE_ENTRIES;
pub use entry::{
    FIRST_WAITERS_MAX, InstanceName, PublishedPlace, PublishedResource, PublishedWaiter, WAITER_NOTE_MAX_BYTES,
    WAITERS_ENTRY_MAX_BYTES, WAITERS_TTL, WaitersEntry,
};
pub(crate) use entry::{PLACE_TAG_BYTES, PLACES_MAX};

use super::keys;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptRef, millis, node_script};

node_script!("waiters.lua");

/// Arguments of [`Request::Waiters`](super::request::Request::Waiters).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitersArgs {
    /// The requesting instance; its own entry is not returned.
    pub instance: InstanceName,
    /// The entry to publish, see [`WaitersEntry::encode`]; `None`: nothing is published, and the earlier entry expires.
    pub entry: Option<Arc<str>>,
    /// How long the node keeps that entry.
    pub ttl: Duration,
    /// 0 at first, then `cursor` of this node's last [`PublishedWaitersPage`].
    pub cursor: u64,
}

/// The entries that other instances have published on one node since the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedWaitersPage {
    /// The requesting instance's entry was stored.
    pub is_published: bool,
    /// The start of the next page. A time on the node's clock, in microseconds.
    pub cursor: u64,
    /// There is another page already.
    pub has_more: bool,
    /// At most eight entries, the one that was published first before the others.
    pub entries: Vec<ListedEntry>,
}

/// One instance's entry on a node. Any client of the node may have written it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    /// The instance that published it.
    pub instance: InstanceName,
    /// The key's remaining TTL. Milliseconds.
    pub left_ms: u64,
    /// See [`WaitersEntry::parse`].
    pub entry: Arc<[u8]>,
}

/// The command for an exchange.
pub(super) fn build(args: &WaitersArgs, script_ref: ScriptRef) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 2, 1);
    command.keys([keys::WAITERS_KEY, &keys::waiters(args.instance.as_str())]);
    command.text(args.instance.as_str()).text(args.entry.as_deref().unwrap_or_default());
    command.number(millis(args.ttl)).number(args.cursor).number(PAGE_ENTRIES as u64).text(keys::WAITERS_PREFIX);
    command.build()
}

/// Reads the reply to an exchange.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    let (is_published, cursor, has_more) = (reply.flag()?, reply.number()?, reply.flag()?);
    let mut entries = Vec::new();
    while reply.remaining() > 0 {
        let (name, left_ms, entry) = (reply.bytes()?, reply.left_ms()?, reply.bytes()?);
        if entries.len() == PAGE_ENTRIES {
            return malformed("has more entries than were asked for");
        }
        // Skipped: names that are no instance's, and keys without a TTL or of another size than an instance writes.
        let instance = std::str::from_utf8(name).ok().and_then(InstanceName::parse);
        if let (Some(instance), Some(left_ms), true) = (instance, left_ms, entry.len() <= WAITERS_ENTRY_MAX_BYTES) {
            entries.push(ListedEntry { instance, left_ms, entry: entry.into() });
        }
    }
    Ok(Reply::Waiters(PublishedWaitersPage { is_published, cursor, has_more, entries }))
}
