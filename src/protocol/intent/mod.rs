//! Intent: the head of a queue asks nodes to admit no request that would block it. An intent decides which caller is next;
//! exclusion never depends on it.

pub(super) mod reference;

use std::time::Duration;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::record::member_kind;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader};
use super::script::{Command, CommandBuilder, ScriptRef, millis, node_script};
use crate::types::{ResourceName, TokenHash, WantedMode};

node_script!("intent.lua");

/// How long an intent lasts without a renewal.
pub const INTENT_TTL: Duration = Duration::from_secs(2);

/// Arguments of [`Request::Intent`](super::request::Request::Intent).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentArgs {
    /// The resource that the caller waits for.
    pub resource: ResourceName,
    /// Hash of the token of the caller's future lease.
    pub token: TokenHash,
    /// When the caller began to wait: of two callers, the intent of the longer waiting one stands.
    pub since: RequestTime,
    /// How the caller will share the resource: compatible requests are admitted.
    pub mode: WantedMode,
    /// The caller waits no more.
    pub is_withdrawn: bool,
}

/// The command for an intent.
pub(super) fn build(args: &IntentArgs, script_ref: ScriptRef) -> Command {
    let IntentArgs { resource, token, since, mode, is_withdrawn } = args;
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 1, 1);
    command.keys([&keys::intent(resource)]);
    command.text(token.as_str()).number(if *is_withdrawn { 0 } else { millis(INTENT_TTL) });
    command.number(since.0).text(&if *mode == WantedMode::Exclusive { "e".into() } else { member_kind(*mode) });
    command.build()
}

/// Reads the reply to an intent.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    Ok(Reply::Intent { is_own: ReplyReader::new(value)?.flag()? })
}
