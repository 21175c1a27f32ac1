//! Intent: while a waiter for an exclusive lease waits for members to end, nodes admit no new members. It decides the order;
//! exclusion does not depend on it.

pub(super) mod reference;

use std::time::Duration;

use deadpool_redis::redis::Value;

use super::keys;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader};
use super::script::{Command, CommandBuilder, ScriptRef, millis, node_script};
use crate::types::{ResourceName, TokenHash};

node_script!("intent.lua");

/// How long an intent lasts without a renewal.
pub const INTENT_TTL: Duration = Duration::from_secs(2);

/// Arguments of [`Request::Intent`](super::request::Request::Intent).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentArgs {
    /// The resource that the caller waits for.
    pub resource: ResourceName,
    /// Hash of the token that it will have.
    pub token: TokenHash,
    /// It waits no more.
    pub is_withdrawn: bool,
}

/// The command for an intent.
pub(super) fn build(args: &IntentArgs, script_ref: ScriptRef) -> Command {
    let IntentArgs { resource, token, is_withdrawn } = args;
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 1, 1);
    command.keys([&keys::intent(resource)]);
    command.text(token.as_str()).number(if *is_withdrawn { 0 } else { millis(INTENT_TTL) });
    command.build()
}

/// Reads the reply to an intent.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    Ok(Reply::Intent { is_own: ReplyReader::new(value)?.flag()? })
}
