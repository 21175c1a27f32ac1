//! Fill: writes one page of the data of a quorum of other nodes into a process without a vote (`docs/views.md`, *What is
//! filled*).
//!
//! The pages of a fill arrive in order, each is applied once, and a repeated page changes nothing. The script decides what
//! depends on the process itself (its own key, its own tombstones), since this may change until the page arrives.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::read_all::Tombstone;
use super::record::LeaseRecord;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader};
use super::script::{Command, CommandBuilder, LIFETIME_MAX_MS, ScriptContext, ScriptRef, node_script};
use super::view::View;
use crate::types::{ResourceName, TokenHash};

node_script!(with_marker "../names.lua", "../ended.lua", "fill.lua");

/// Arguments of [`Request::Fill`](super::request::Request::Fill).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FillArgs {
    /// The future view that names the process as admitted in it.
    pub view: Arc<View>,
    /// Random for each fill: pages of other fills do not count for this one.
    pub nonce: u64,
    /// From 1 to `pages`.
    pub page: u32,
    /// The number of pages of this fill.
    pub pages: u32,
    /// The process is in both lists of a change, and its own keys are part of the data: a process that lost them since it
    /// installed the view refuses the fill.
    pub keeps: bool,
    /// Tombstones precede the entries that they may end, in this page and across pages.
    pub entries: Vec<FillEntry>,
}

/// An entry for the process. `left_ms` is its lifetime there, by the process' own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FillEntry {
    /// Refuse this token or attempt.
    Tombstone(Tombstone),
    /// A lease that a quorum of others shows: it counts like a lease that the process granted itself. If the process has another
    /// key there, or a tombstone, it stores a block or nothing instead.
    Copy { resource: ResourceName, record: LeaseRecord, left_ms: u64 },
    /// As `Copy`, if the process already has the token's key; otherwise a block. If the fence is 0, the process keeps its own.
    Keep { resource: ResourceName, record: LeaseRecord, left_ms: u64 },
    /// No vote on this resource for `left_ms`, unless the token, or all its claims, end earlier.
    Block { resource: ResourceName, token: TokenHash, claims: Arc<str>, left_ms: u64 },
    /// A foreign client's lock: a block, and the lock itself if its value is known.
    Foreign { resource: ResourceName, value: Option<Arc<[u8]>>, left_ms: u64 },
}

impl FillEntry {
    /// The lifetime given.
    pub(super) fn left_ms(&self) -> u64 {
        match self {
            Self::Tombstone(Tombstone { left_ms, .. })
            | Self::Copy { left_ms, .. }
            | Self::Keep { left_ms, .. }
            | Self::Block { left_ms, .. }
            | Self::Foreign { left_ms, .. } => *left_ms,
        }
    }
}

/// The command for a page.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &FillArgs,
    script_ref: ScriptRef,
) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 2, args.entries.len());
    command.keys([keys::META_KEY, keys::LEASES_KEY]);
    command.marker_args(context, sent_at);
    command.number(args.nonce).number(args.page.into()).number(args.pages.into());
    command.text(context.template.head()).text(context.template.tail());
    command.text(&args.view.id.to_string()).text(&args.view.encode()).number(args.keeps.into());
    for entry in &args.entries {
        match entry {
            FillEntry::Tombstone(Tombstone { resource, token, attempt, reason, left_ms }) => {
                let key = attempt.as_ref().map_or_else(
                    || keys::token_tombstone(resource, token),
                    |attempt| keys::attempt_tombstone(resource, token, attempt),
                );
                command.text("t").text(&key).number(lifetime(*left_ms)).text("").text(reason.as_str());
            }
            FillEntry::Copy { resource, record, left_ms } | FillEntry::Keep { resource, record, left_ms } => {
                let kind = if matches!(entry, FillEntry::Copy { .. }) { "c" } else { "k" };
                command.text(kind).text(resource.as_str()).number(lifetime(*left_ms));
                command.text(record.token.as_str()).text(&record.encode());
            }
            FillEntry::Block { resource, token, claims, left_ms } => {
                command.text("b").text(resource.as_str()).number(lifetime(*left_ms)).text(token.as_str()).text(claims);
            }
            FillEntry::Foreign { resource, value, left_ms } => {
                command.text("f").text(resource.as_str()).number(lifetime(*left_ms)).text("");
                command.bytes(value.as_deref().unwrap_or_default());
            }
        }
    }
    command.build()
}

/// Within the range that a node can add up; Redis refuses a TTL of 0.
fn lifetime(left_ms: u64) -> u64 {
    left_ms.clamp(1, LIFETIME_MAX_MS)
}

/// Reads the reply to a page.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    let pages = |reply: &mut ReplyReader<'_>| {
        u32::try_from(reply.number()?).map_err(|_| Malformed("has a number of pages out of range".into()))
    };
    match reply.text()? {
        "F" => Ok(Reply::Filled { done: pages(&mut reply)? }),
        "X" => Ok(Reply::FillOutOfOrder { done: pages(&mut reply)? }),
        "A" => Ok(Reply::FillNotNeeded),
        code => Ok(Reply::NoVote(reply.no_vote(code)?)),
    }
}
