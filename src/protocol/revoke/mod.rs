//! Revoke: the lease keeps its present end and can no longer be renewed.

pub(super) mod reference;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::TOKEN_TOMBSTONE;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, millis, node_script};
use crate::types::{ResourceName, TokenHash};

node_script!("../names.lua", "revoke.lua");

/// Arguments of [`Request::Revoke`](super::request::Request::Revoke).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevokeArgs {
    /// The leased resource.
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
}

/// The command for a revocation.
pub(super) fn build(context: &ScriptContext<'_>, args: &RevokeArgs, script_ref: ScriptRef) -> Command {
    let RevokeArgs { resource, token } = args;
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 3, 1);
    command.keys([&context.template.lock(resource), &keys::token_tombstone(resource, token), &keys::block(resource)]);
    command.text(token.as_str()).number(millis(TOKEN_TOMBSTONE));
    command.build()
}

/// Reads the reply to a revocation.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "V" => Ok(Reply::Revoked { left_ms: reply.left_ms()?.unwrap_or_default() }),
        "M" => Ok(Reply::Missing),
        "O" => reply.other(),
        _ => malformed("has an unknown code"),
    }
}
