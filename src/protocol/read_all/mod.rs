//! Read: one page of all data of a node. A process that forgot is filled from these pages.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::record::{FOREIGN_VALUE_MAX, LeaseRecord, MEMBERS_MAX};
use super::reply::{EndReason, Reply};
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};
use crate::types::{AttemptId, ResourceName, TokenHash};

node_script!(with_marker "../names.lua", "read_all.lua");

/// The maximum number of keys that one page walks. It occupies the node for about a millisecond if all are leases.
const PAGE_MAX: u32 = 500;

/// Arguments of [`Request::Read`](super::request::Request::Read).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadArgs {
    /// 0 for the first page, then `next` of [`Reply::Knowledge`].
    pub cursor: u64,
    /// How many keys to scan, of any kind; at most 500. The page has only the useful ones.
    pub count: u32,
}

/// Data of a node. `left_ms` is the remaining lifetime by this node's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadEntry {
    /// A lease at the lock's key. Without a TTL (`None`) if a client removed it.
    Lease { resource: ResourceName, record: LeaseRecord, left_ms: Option<u64> },
    /// A foreign client's lock; with its value if that is a string of up to 1 KiB.
    Foreign { resource: ResourceName, value: Option<Arc<[u8]>>, left_ms: Option<u64> },
    /// A token (`None`: a foreign client) in the block of the resource, and the attempts that claimed its lease.
    Block { resource: ResourceName, token: Option<TokenHash>, claims: Arc<str>, left_ms: u64 },
    /// The record of an ended token or attempt.
    Tombstone(Tombstone),
}

/// A node's record of an ended token or attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// The leased resource.
    pub resource: ResourceName,
    /// Hash of the token.
    pub token: TokenHash,
    /// The attempt that was cancelled; `None`: the token's lease was ended.
    pub attempt: Option<AttemptId>,
    pub reason: EndReason,
    /// Remaining lifetime of the tombstone in milliseconds.
    pub left_ms: u64,
}

/// The command for a page.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &ReadArgs,
    script_ref: ScriptRef,
) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 1, 1);
    command.keys([keys::META_KEY]);
    command.marker_args(context, sent_at);
    command.number(args.cursor).number(args.count.clamp(1, PAGE_MAX).into());
    command.text(context.template.head()).text(context.template.tail());
    // If a page has more than one key, it has no more shared leases and permits than one lock may have: with 500 keys besides,
    // the largest page has 3.6 MiB, of 4 MiB that an instance accepts.
    command.number(u64::try_from(FOREIGN_VALUE_MAX).unwrap_or(u64::MAX)).number(MEMBERS_MAX as u64);
    command.build()
}

pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "R" => {}
        code => return Ok(Reply::NoVote(reply.no_vote(code)?)),
    }
    let next = match reply.text()?.parse::<u64>() {
        Ok(cursor) => Some(cursor).filter(|cursor| *cursor > 0),
        Err(_) => return malformed("has a cursor that is no number"),
    };
    let (high_water, now_us) = (reply.fence()?, reply.number()?);
    let mut entries = Vec::with_capacity(reply.remaining() / 4);
    while reply.remaining() > 0 {
        let (kind, name, left_ms, value) = (reply.text()?, reply.bytes()?, reply.left_ms()?, reply.bytes()?);
        // Skipped: foreign keys whose names no resource can have.
        if let Ok(name) = std::str::from_utf8(name) {
            entries.extend(parse_entry(kind, name, left_ms, value)?);
        }
    }
    Ok(Reply::Knowledge { next, high_water, now_us, entries })
}

fn parse_entry(kind: &str, name: &str, left_ms: Option<u64>, value: &[u8]) -> Result<Option<ReadEntry>, Malformed> {
    let text = || std::str::from_utf8(value).map_err(|_| Malformed("has an entry that is no text".into()));
    if kind == "T" {
        let Some(reason) = EndReason::parse(text()?) else { return malformed("has an unknown reason") };
        let Some((resource, token, attempt)) = keys::parse_tombstone(name) else { return Ok(None) };
        let left_ms = left_ms.unwrap_or_default();
        return Ok(Some(ReadEntry::Tombstone(Tombstone { resource, token, attempt, reason, left_ms })));
    }
    let Ok(resource) = ResourceName::parse(name) else { return Ok(None) };
    Ok(Some(match kind {
        "L" => match LeaseRecord::parse(value) {
            Some(record) => ReadEntry::Lease { resource, record, left_ms },
            None => ReadEntry::Foreign { resource, value: Some(value.into()), left_ms },
        },
        "F" => ReadEntry::Foreign { resource, value: None, left_ms },
        "B" => {
            let (token, claims) = text()?.split_once('|').ok_or_else(|| Malformed("has a block of no token".into()))?;
            let token = match token {
                keys::FOREIGN_FIELD => None,
                token => Some(TokenHash::parse(token).ok_or_else(|| Malformed("has a block of no token".into()))?),
            };
            ReadEntry::Block { resource, token, claims: claims.into(), left_ms: left_ms.unwrap_or_default() }
        }
        _ => return malformed("has an unknown kind of entry"),
    }))
}
