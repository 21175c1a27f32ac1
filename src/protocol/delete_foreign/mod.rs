//! Deletes a foreign client's lock, if its value is still the one that the operator saw.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::keys;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};
use crate::types::ResourceName;

node_script!("../names.lua", "delete_foreign.lua");

/// Arguments of [`Request::DeleteForeign`](super::request::Request::DeleteForeign).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteForeignArgs {
    /// The resource whose lock key is deleted.
    pub resource: ResourceName,
    /// As in [`StoredLock::Foreign`](super::reply::StoredLock::Foreign).
    pub fingerprint: Arc<str>,
}

/// The command for the deletion.
pub(super) fn build(context: &ScriptContext<'_>, args: &DeleteForeignArgs, script_ref: ScriptRef) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 2, 1);
    command.keys([&context.template.lock(&args.resource), &keys::block(&args.resource)]);
    command.text(&args.fingerprint).text(&keys::freed_channel(&args.resource));
    command.build()
}

/// Reads the reply to the deletion.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    ReplyReader::new(value)?.released()
}
