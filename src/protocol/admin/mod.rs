//! Admin: the operations on the node itself (probe, init, quarantine, activate), which share a script.

pub(super) mod reference;

use deadpool_redis::redis::{Cmd, Value};

use super::keys;
use super::params::RequestTime;
use super::reply::{NodeStatus, Reply, Vote};
use super::reply_reader::{Malformed, ReplyReader};
use super::script::{CommandBuilder, ScriptContext, ScriptRef, node_script};
use crate::types::Fence;

node_script!(with_marker "admin.lua");

/// How many entries of the index of leases one probe checks: one instance that probes each second keeps up with this
/// many abandoned leases per second, for about a millisecond of the node's time if there are that many.
const SWEEP_MAX: u32 = 512;

/// The command for an operation on the node; `seed` is that of an activation.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    operation: &str,
    seed: Option<Fence>,
    script_ref: ScriptRef,
) -> Cmd {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 2, 1);
    command.keys([keys::META_KEY, keys::LEASES_KEY]);
    command.marker_args(context, sent_at);
    command.text(operation).number(seed.map_or(0, |fence| fence.0));
    command.text(context.template.head()).text(context.template.tail()).number(SWEEP_MAX.into());
    command.build()
}

/// Reads the node's status.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    let vote = match reply.text()? {
        "A" => {
            reply.number()?;
            Vote::Active
        }
        "N" => {
            reply.number()?;
            Vote::AlreadyInitialised
        }
        code => Vote::NoVote(reply.no_vote(code)?),
    };
    Ok(Reply::Status(NodeStatus {
        vote,
        high_water: reply.fence()?,
        now_us: reply.number()?,
        run: reply.text()?.to_owned(),
        why: reply.text()?.to_owned(),
        since_us: reply.number()?,
        until_us: reply.number()?,
    }))
}
