//! Index: adds leases to the index of held leases, some time after they were granted. Exclusion does not depend on it.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::keys;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};
use crate::types::{ResourceName, TokenHash};

node_script!("../names.lua", "index.lua");

/// The maximum number of leases of one request, which occupies the node for some 200 microseconds.
pub const INDEX_MAX: usize = 256;

/// Arguments of [`Request::Index`](super::request::Request::Index).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexArgs {
    /// The leases, at least one, at most [`INDEX_MAX`]. Those that their token no longer holds are left out.
    pub leases: Arc<[(ResourceName, TokenHash)]>,
}

/// The command for an index request.
pub(super) fn build(context: &ScriptContext<'_>, args: &IndexArgs, script_ref: ScriptRef) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 1, args.leases.len().div_ceil(4));
    command.keys([keys::LEASES_KEY]);
    command.text(context.template.head()).text(context.template.tail());
    for (resource, token) in args.leases.iter() {
        command.text(resource.as_str()).text(token.as_str());
    }
    command.build()
}

pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    if ReplyReader::new(value)?.flag()? { Ok(Reply::Indexed) } else { malformed("is not 1") }
}
